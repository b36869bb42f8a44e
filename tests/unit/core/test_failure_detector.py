from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.protocol.failure_detector import (
    TICKS,
    Action,
    AskLeader,
    CancelTakeOver,
    CheckSuspicion,
    EarlyTakeOver,
    Event,
    FailureDetector,
    FailureDetectorPhase,
    LeaderAnswered,
    LeaderMissed,
    LeaderProcessEnded,
    NodeLeads,
    RaiseSuspicion,
    SuspicionChecked,
    SuspicionRaised,
)
from loadmanager.core.protocol.leadership import LeaderZnode
from loadmanager.core.protocol.state_machine import Say, Signal

TIMEOUT_S, SESSION_S = 0.8, 10.0
TICK_S = TIMEOUT_S / TICKS
OTHER = LeaderZnode("n2:8080", "http://n2:8080", epoch=4, session_id=8, czxid=40)
NEXT = replace(OTHER, epoch=5, czxid=50)


@dataclass(slots=True)
class Standby:
    """A failure detector with its clock and the actions so far."""

    now_s: float = 100.0
    leader_watch: FailureDetector = field(default_factory=lambda: FailureDetector(TIMEOUT_S))
    done: list[Action] = field(default_factory=list)

    def receive(self, event: Event, after_s: float = 0.0) -> list[Action]:
        self.now_s += after_s
        done = self.leader_watch.step(event, self.now_s)
        self.done += done
        return done

    def follow(
        self, leader: LeaderZnode | None = OTHER, after_s: float = 0.0, sessions: frozenset[int] | None = None
    ) -> list[Action]:
        return self.receive(NodeLeads(leader, SESSION_S, sessions), after_s)

    def tick(self, count: int) -> list[Action]:
        """Pass a number of ticks; return their actions."""
        return [each for _ in range(count) for each in self.receive(Signal.TIME, TICK_S)]

    def raise_suspicion(self) -> None:
        """Stay silent until the suspicion is in the store."""
        assert any(isinstance(each, RaiseSuspicion) for each in self.tick(6))
        self.receive(SuspicionRaised(OTHER.czxid, stands=True))

    def check_suspicion(self, *, stands: bool | None, takes_s: float = 0.0) -> list[Action]:
        (look,) = self.tick(1)
        assert isinstance(look, CheckSuspicion)
        return self.receive(SuspicionChecked(look, stands), takes_s)


@pytest.fixture
def standby() -> Standby:
    """A standby to which the leader has answered."""
    standby = Standby()
    standby.follow()
    standby.receive(LeaderAnswered(OTHER.czxid))
    return standby


def of_kind(kind: type[Action], done: list[Action]) -> list[Action]:
    return [each for each in done if isinstance(each, kind)]


def test_new_leader_is_asked_at_once_and_the_former_one_no_more() -> None:
    standby = Standby()
    assert standby.leader_watch.wake_s is None
    assert standby.receive(Signal.TIME) == []
    assert standby.follow() == [AskLeader(OTHER, 0.0, TIMEOUT_S)]
    assert standby.follow() == [], "it is the same"
    assert standby.follow(NEXT) == [AskLeader(NEXT, 0.0, TIMEOUT_S)]
    assert standby.follow(None) == []
    assert standby.leader_watch.wake_s is None


def test_leader_that_never_answered_is_not_suspected() -> None:
    standby = Standby()
    standby.follow()
    assert standby.receive(LeaderMissed(OTHER.czxid)) == []
    assert of_kind(AskLeader, standby.tick(TICKS - 1)) == []
    assert standby.tick(2) == [AskLeader(OTHER, 0.0, TIMEOUT_S)], "asked again after the timeout"
    assert standby.tick(100) == []


def test_answering_leader_is_asked_again_with_a_hold_time(standby: Standby) -> None:
    for _ in range(100):
        assert standby.receive(LeaderAnswered(OTHER.czxid), 2 * TICK_S) == [AskLeader(OTHER, 2 * TICK_S, TIMEOUT_S)]
    assert standby.leader_watch.wake_s == standby.now_s + TICK_S


def test_events_of_another_leader_are_ignored(standby: Standby) -> None:
    for event in (LeaderAnswered(NEXT.czxid), LeaderMissed(NEXT.czxid), SuspicionRaised(NEXT.czxid, stands=True)):
        assert standby.receive(event) == []
    assert standby.receive(SuspicionRaised(OTHER.czxid, stands=True)) == [], "nobody asked"
    assert standby.receive(SuspicionChecked(CheckSuspicion(OTHER.czxid, 0.0), stands=True)) == []


def test_failed_request_is_repeated_at_the_next_tick(standby: Standby) -> None:
    assert standby.receive(LeaderMissed(OTHER.czxid)) == []
    assert standby.tick(1) == [AskLeader(OTHER, 0.0, TIMEOUT_S)]


@pytest.mark.parametrize("is_known", [True, False])
def test_leader_with_an_ended_process_is_replaced_at_once(*, is_known: bool) -> None:
    standby = Standby()
    standby.follow()
    if is_known:
        standby.receive(LeaderAnswered(OTHER.czxid))
    assert standby.receive(LeaderProcessEnded(NEXT.czxid)) == [], "another one"
    said, take_over = standby.receive(LeaderProcessEnded(OTHER.czxid))
    assert isinstance(said, Say)
    assert said.event == "leader_process_ended"
    assert take_over == EarlyTakeOver(OTHER.czxid, has_ended=True)
    assert standby.leader_watch.phase is FailureDetectorPhase.RESTING
    assert standby.leader_watch.found_silent == 0


def test_silent_leader_is_replaced_after_the_timeout(standby: Standby) -> None:
    begun_s = standby.now_s
    standby.raise_suspicion()
    while not (replaced := of_kind(EarlyTakeOver, standby.check_suspicion(stands=True))):
        pass
    assert replaced == [EarlyTakeOver(OTHER.czxid)]
    assert TIMEOUT_S <= standby.now_s - begun_s < TIMEOUT_S + 3 * TICK_S
    assert standby.leader_watch.found_silent == 1
    assert [(each.event, each.is_warning) for each in standby.done if isinstance(each, Say)] == [
        ("leader_silent", True)
    ]


def test_leader_that_deletes_the_suspicion_is_trusted_for_a_session(standby: Standby) -> None:
    standby.raise_suspicion()
    (said,) = standby.check_suspicion(stands=False)
    assert isinstance(said, Say)
    assert (said.event, said.is_warning) == ("leader_has_zookeeper", False)
    assert standby.leader_watch.phase is FailureDetectorPhase.RESTING
    assert of_kind(RaiseSuspicion, standby.tick(round(SESSION_S / TICK_S) - 1)) == []
    assert of_kind(RaiseSuspicion, standby.tick(2)) != []


def test_suspicion_refused_by_the_store_is_dropped(standby: Standby) -> None:
    standby.tick(6)
    standby.receive(SuspicionRaised(OTHER.czxid, stands=False))
    assert standby.leader_watch.phase is FailureDetectorPhase.RESTING


def test_only_three_consecutive_prompt_checks_count(standby: Standby) -> None:
    standby.raise_suspicion()
    for _ in range(5):
        standby.check_suspicion(stands=True)
        standby.check_suspicion(stands=True)
        assert of_kind(EarlyTakeOver, standby.check_suspicion(stands=True, takes_s=2 * TICK_S)) == [], "a slow store"
        standby.check_suspicion(stands=True)
        assert of_kind(EarlyTakeOver, standby.check_suspicion(stands=None)) == [], "one that did not answer"
    standby.check_suspicion(stands=True)
    standby.check_suspicion(stands=True)
    assert of_kind(EarlyTakeOver, standby.check_suspicion(stands=True)) == [EarlyTakeOver(OTHER.czxid)]


def test_answer_of_a_suspected_leader_cancels_the_take_over(standby: Standby) -> None:
    standby.raise_suspicion()
    standby.receive(LeaderAnswered(OTHER.czxid))
    assert standby.leader_watch.phase is FailureDetectorPhase.HEARD
    standby.receive(LeaderMissed(OTHER.czxid))
    assert any(isinstance(each, RaiseSuspicion) for each in standby.tick(3 * TICKS)), (
        "a long silence is now normal for this leader"
    )
    standby.receive(SuspicionRaised(OTHER.czxid, stands=True))
    while not of_kind(EarlyTakeOver, standby.check_suspicion(stands=True)):
        pass
    assert standby.receive(LeaderAnswered(OTHER.czxid))[0] == CancelTakeOver(OTHER.czxid)


def test_pause_of_the_standby_does_not_count_as_silence(standby: Standby) -> None:
    for _ in range(4):
        assert standby.receive(Signal.TIME, 60.0) == []
    assert standby.leader_watch.silent_s == pytest.approx(4 * TICK_S)


def replace_leader(standby: Standby, leader: LeaderZnode) -> float:
    """Let a leader fall silent and replace it; returns the seconds that this took."""
    standby.follow(leader)
    standby.receive(LeaderAnswered(leader.czxid))
    begun_s = standby.now_s
    while not of_kind(RaiseSuspicion, standby.tick(1)):
        pass
    standby.receive(SuspicionRaised(leader.czxid, stands=True))
    while not of_kind(EarlyTakeOver, standby.check_suspicion(stands=True)):
        pass
    standby.follow(None)  # it is elected itself
    return standby.now_s - begun_s


def test_justified_take_over_keeps_the_timeout(standby: Standby) -> None:
    """The session of the replaced leader has expired: another node would have been elected anyway."""
    for number in range(6):
        assert replace_leader(standby, replace(OTHER, czxid=100 + number, session_id=number)) < TIMEOUT_S + 3 * TICK_S
        standby.follow(None, SESSION_S, sessions=frozenset({99}))
        assert standby.leader_watch.timeout_s(standby.now_s + SESSION_S) == TIMEOUT_S


def test_needless_take_over_doubles_the_timeout_for_ten_minutes(standby: Standby) -> None:
    lives_on = frozenset({OTHER.session_id})
    for number in range(6):
        timeout_s = standby.leader_watch.timeout_s(standby.now_s)
        assert timeout_s == min(TIMEOUT_S * 2**number, SESSION_S)
        assert replace_leader(standby, replace(OTHER, czxid=100 + number)) >= timeout_s
        assert standby.leader_watch.timeout_s(standby.now_s) == timeout_s, "it is not known yet whether it was needless"
        standby.follow(None, 1.5 * SESSION_S, sessions=lives_on)
    assert standby.leader_watch.timeout_s(standby.now_s + 600.0) == TIMEOUT_S


def test_timeout_is_three_times_the_slowest_recent_answer(standby: Standby) -> None:
    for _ in range(6):
        standby.tick(1)
    standby.receive(LeaderAnswered(OTHER.czxid))
    assert standby.leader_watch.timeout_s(standby.now_s) == pytest.approx(3 * 6 * TICK_S)
    standby.receive(LeaderAnswered(OTHER.czxid))
    standby.receive(Signal.TIME, 60.0)
    assert standby.leader_watch.timeout_s(standby.now_s) == pytest.approx(3 * 3 * TICK_S)
    standby.receive(Signal.TIME, 60.0)
    assert standby.leader_watch.timeout_s(standby.now_s) == TIMEOUT_S


def test_first_answer_does_not_change_the_timeout() -> None:
    standby = Standby()
    standby.follow()
    standby.tick(6)
    standby.receive(LeaderAnswered(OTHER.czxid))
    assert standby.leader_watch.timeout_s(standby.now_s) == TIMEOUT_S


def test_without_a_timeout_only_the_process_end_replaces_the_leader() -> None:
    standby = Standby(leader_watch=FailureDetector(0.0))
    standby.follow()
    standby.receive(LeaderAnswered(OTHER.czxid))
    standby.receive(LeaderMissed(OTHER.czxid))
    assert {type(each) for each in standby.tick(1_000)} == {AskLeader}
    assert EarlyTakeOver(OTHER.czxid, has_ended=True) in standby.receive(LeaderProcessEnded(OTHER.czxid))


def test_take_over_won_by_another_node_keeps_the_timeout(standby: Standby) -> None:
    standby.raise_suspicion()
    while not of_kind(EarlyTakeOver, standby.check_suspicion(stands=True)):
        pass
    standby.follow(NEXT)
    standby.follow(None)
    assert standby.leader_watch.timeout_s(standby.now_s) == TIMEOUT_S


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps, `apart_s` from each other, in which the leader and the store answer in the same way."""

    steps: int
    apart_s: float
    answers: bool
    store: str
    leader: str


STRETCHES = st.lists(
    st.builds(
        Stretch,
        st.integers(1, 20),
        st.sampled_from([TICK_S, TICK_S, TICK_S / 4, 3 * TICK_S, 5.0]),
        st.booleans(),
        st.sampled_from(["stands", "stands", "late", "unknown", "gone", "nothing"]),
        st.sampled_from(["same", "same", "same", "same", "another", "nobody"]),
    ),
    max_size=12,
)


@dataclass(slots=True)
class FailureDetectorModel:
    """Plays stretches and checks the rules of the detector."""

    standby: Standby = field(default_factory=Standby)
    leader: LeaderZnode | None = None
    heard_s: float = math.inf
    doubt_s: float = math.inf
    replaced: int = 0

    def begin(self, stretch: Stretch) -> None:
        if stretch.leader == "nobody":
            self.leader = None
        elif stretch.leader == "another" or self.leader is None:
            czxid = 1 if self.leader is None else self.leader.czxid + 1
            self.leader = replace(OTHER, czxid=czxid)
            self.heard_s = self.doubt_s = math.inf
        self.see(self.standby.follow(self.leader), stretch)

    def see(self, done: list[Action], stretch: Stretch) -> None:
        """Check the actions and execute them."""
        assert (self.standby.leader_watch.wake_s is None) == (self.leader is None)
        now_s = self.standby.now_s
        if of_kind(RaiseSuspicion, done):
            assert now_s - self.heard_s >= TIMEOUT_S / 2
            self.doubt_s = now_s
        for each in of_kind(EarlyTakeOver, done):
            assert self.leader is not None
            assert each == EarlyTakeOver(self.leader.czxid)
            assert now_s - self.heard_s >= TIMEOUT_S - 1e-9, "never heard, or lately"
            assert now_s - self.doubt_s >= 3 * TICK_S - 1e-9, "it had no time to answer there"
            assert stretch.store == "stands"
            assert self.standby.leader_watch.phase is FailureDetectorPhase.RESTING
            self.replaced += 1
        for action in done:
            event = self.result_of(action, stretch)
            if event is not None:
                late_s = 2 * TICK_S if stretch.store == "late" and isinstance(event, SuspicionChecked) else 0.0
                self.see(self.standby.receive(event, late_s), stretch)

    def result_of(self, action: Action, stretch: Stretch) -> Event | None:
        """Return the event that follows an action, None if there is none in this stretch."""
        match action:
            case AskLeader(leader, hold_s) if stretch.answers and not hold_s:
                self.heard_s = self.standby.now_s
                return LeaderAnswered(leader.czxid)
            case AskLeader(leader):
                return LeaderMissed(leader.czxid)
            case RaiseSuspicion(leader) if stretch.store != "nothing":
                return SuspicionRaised(leader.czxid, stands=stretch.store != "gone")
            case CheckSuspicion() if stretch.store != "nothing":
                return SuspicionChecked(action, {"gone": False, "unknown": None}.get(stretch.store, True))
            case _:
                return None


def play(stretches: list[Stretch]) -> FailureDetectorModel:
    model = FailureDetectorModel()
    for stretch in stretches:
        model.begin(stretch)
        for _ in range(stretch.steps):
            model.see(model.standby.receive(Signal.TIME, stretch.apart_s), stretch)
    return model


@given(STRETCHES)
def test_no_leader_is_replaced_before_suspicion_lasts(stretches: list[Stretch]) -> None:
    play(stretches)


def test_model_can_replace_a_leader() -> None:
    heard = Stretch(5, TICK_S, answers=True, store="stands", leader="another")
    silent = Stretch(20, TICK_S, answers=False, store="stands", leader="same")
    assert play([heard, silent]).replaced == 1
