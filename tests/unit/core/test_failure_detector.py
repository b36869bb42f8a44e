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

PATIENCE_S, SESSION_S = 0.8, 10.0
TICK_S = PATIENCE_S / TICKS
OTHER = LeaderZnode("n2:8080", "http://n2:8080", epoch=4, session_id=8, czxid=40)
NEXT = replace(OTHER, epoch=5, czxid=50)


@dataclass(slots=True)
class Standby:
    """The machine, its clock, and what it was told to do."""

    now_s: float = 100.0
    leader_watch: FailureDetector = field(default_factory=lambda: FailureDetector(PATIENCE_S))
    done: list[Action] = field(default_factory=list)

    def hears(self, event: Event, after_s: float = 0.0) -> list[Action]:
        self.now_s += after_s
        done = self.leader_watch.step(event, self.now_s)
        self.done += done
        return done

    def follows(
        self, leader: LeaderZnode | None = OTHER, after_s: float = 0.0, sessions: frozenset[int] | None = None
    ) -> list[Action]:
        return self.hears(NodeLeads(leader, SESSION_S, sessions), after_s)

    def ticks(self, count: int) -> list[Action]:
        """Pass a number of ticks in time; return their actions."""
        return [each for _ in range(count) for each in self.hears(Signal.TIME, TICK_S)]

    def doubts(self) -> None:
        """Nothing is heard until the doubt stands in the store."""
        assert any(isinstance(each, RaiseSuspicion) for each in self.ticks(6))
        self.hears(SuspicionRaised(OTHER.czxid, stands=True))

    def looks(self, *, stands: bool | None, takes_s: float = 0.0) -> list[Action]:
        (look,) = self.ticks(1)
        assert isinstance(look, CheckSuspicion)
        return self.hears(SuspicionChecked(look, stands), takes_s)


@pytest.fixture
def standby() -> Standby:
    """One that has heard the leader."""
    standby = Standby()
    standby.follows()
    standby.hears(LeaderAnswered(OTHER.czxid))
    return standby


def of_kind(kind: type[Action], done: list[Action]) -> list[Action]:
    return [each for each in done if isinstance(each, kind)]


def test_whoever_leads_is_asked_at_once_and_nobody_else_watched() -> None:
    standby = Standby()
    assert standby.leader_watch.wake_s is None
    assert standby.hears(Signal.TIME) == []
    assert standby.follows() == [AskLeader(OTHER, 0.0, PATIENCE_S)]
    assert standby.follows() == [], "it is the same"
    assert standby.follows(NEXT) == [AskLeader(NEXT, 0.0, PATIENCE_S)]
    assert standby.follows(None) == []
    assert standby.leader_watch.wake_s is None


def test_a_leader_that_has_never_answered_is_not_missed() -> None:
    standby = Standby()
    standby.follows()
    assert standby.hears(LeaderMissed(OTHER.czxid)) == []
    assert of_kind(AskLeader, standby.ticks(TICKS - 1)) == []
    assert standby.ticks(2) == [AskLeader(OTHER, 0.0, PATIENCE_S)], "asked again after a patience"
    assert standby.ticks(100) == []


def test_a_leader_that_answers_is_asked_again_and_may_hold_its_answer_back(standby: Standby) -> None:
    for _ in range(100):
        assert standby.hears(LeaderAnswered(OTHER.czxid), 2 * TICK_S) == [AskLeader(OTHER, 2 * TICK_S, PATIENCE_S)]
    assert standby.leader_watch.wake_s == standby.now_s + TICK_S


def test_what_is_heard_of_another_leader_says_nothing(standby: Standby) -> None:
    for event in (LeaderAnswered(NEXT.czxid), LeaderMissed(NEXT.czxid), SuspicionRaised(NEXT.czxid, stands=True)):
        assert standby.hears(event) == []
    assert standby.hears(SuspicionRaised(OTHER.czxid, stands=True)) == [], "nobody asked"
    assert standby.hears(SuspicionChecked(CheckSuspicion(OTHER.czxid, 0.0), stands=True)) == []


def test_when_an_answer_fails_it_is_asked_again_soon(standby: Standby) -> None:
    assert standby.hears(LeaderMissed(OTHER.czxid)) == []
    assert standby.ticks(1) == [AskLeader(OTHER, 0.0, PATIENCE_S)]


@pytest.mark.parametrize("is_known", [True, False])
def test_a_leader_whose_process_has_ended_is_replaced_at_once(*, is_known: bool) -> None:
    standby = Standby()
    standby.follows()
    if is_known:
        standby.hears(LeaderAnswered(OTHER.czxid))
    assert standby.hears(LeaderProcessEnded(NEXT.czxid)) == [], "another one"
    said, take_over = standby.hears(LeaderProcessEnded(OTHER.czxid))
    assert isinstance(said, Say)
    assert said.event == "leader_process_ended"
    assert take_over == EarlyTakeOver(OTHER.czxid, has_ended=True)
    assert standby.leader_watch.phase is FailureDetectorPhase.RESTING
    assert standby.leader_watch.found_silent == 0


def test_a_leader_that_nobody_hears_is_replaced_after_a_patience(standby: Standby) -> None:
    begun_s = standby.now_s
    standby.doubts()
    while not (replaced := of_kind(EarlyTakeOver, standby.looks(stands=True))):
        pass
    assert replaced == [EarlyTakeOver(OTHER.czxid)]
    assert PATIENCE_S <= standby.now_s - begun_s < PATIENCE_S + 3 * TICK_S
    assert standby.leader_watch.found_silent == 1
    assert [(each.event, each.is_warning) for each in standby.done if isinstance(each, Say)] == [
        ("leader_silent", True)
    ]


def test_a_leader_that_takes_the_doubt_away_is_left_alone_for_a_session(standby: Standby) -> None:
    standby.doubts()
    (said,) = standby.looks(stands=False)
    assert isinstance(said, Say)
    assert (said.event, said.is_warning) == ("leader_has_zookeeper", False)
    assert standby.leader_watch.phase is FailureDetectorPhase.RESTING
    assert of_kind(RaiseSuspicion, standby.ticks(round(SESSION_S / TICK_S) - 1)) == []
    assert of_kind(RaiseSuspicion, standby.ticks(2)) != []


def test_a_doubt_that_the_store_refuses_is_none(standby: Standby) -> None:
    standby.ticks(6)
    standby.hears(SuspicionRaised(OTHER.czxid, stands=False))
    assert standby.leader_watch.phase is FailureDetectorPhase.RESTING


def test_only_three_prompt_looks_in_a_row_count(standby: Standby) -> None:
    standby.doubts()
    for _ in range(5):
        standby.looks(stands=True)
        standby.looks(stands=True)
        assert of_kind(EarlyTakeOver, standby.looks(stands=True, takes_s=2 * TICK_S)) == [], "a slow store"
        standby.looks(stands=True)
        assert of_kind(EarlyTakeOver, standby.looks(stands=None)) == [], "one that did not answer"
    standby.looks(stands=True)
    standby.looks(stands=True)
    assert of_kind(EarlyTakeOver, standby.looks(stands=True)) == [EarlyTakeOver(OTHER.czxid)]


def test_one_that_is_heard_is_doubted_no_more_and_not_replaced(standby: Standby) -> None:
    standby.doubts()
    standby.hears(LeaderAnswered(OTHER.czxid))
    assert standby.leader_watch.phase is FailureDetectorPhase.HEARD
    standby.hears(LeaderMissed(OTHER.czxid))
    assert any(isinstance(each, RaiseSuspicion) for each in standby.ticks(3 * TICKS)), (
        "it was silent for long: that is usual now"
    )
    standby.hears(SuspicionRaised(OTHER.czxid, stands=True))
    while not of_kind(EarlyTakeOver, standby.looks(stands=True)):
        pass
    assert standby.hears(LeaderAnswered(OTHER.czxid))[0] == CancelTakeOver(OTHER.czxid)


def test_a_standby_that_was_stopped_itself_holds_nothing_against_the_leader(standby: Standby) -> None:
    for _ in range(4):
        assert standby.hears(Signal.TIME, 60.0) == []
    assert standby.leader_watch.silent_s == pytest.approx(4 * TICK_S)


def replace_leader(standby: Standby, leader: LeaderZnode) -> float:
    """Have a leader that is heard fall silent and be replaced by this node; how long that took."""
    standby.follows(leader)
    standby.hears(LeaderAnswered(leader.czxid))
    begun_s = standby.now_s
    while not of_kind(RaiseSuspicion, standby.ticks(1)):
        pass
    standby.hears(SuspicionRaised(leader.czxid, stands=True))
    while not of_kind(EarlyTakeOver, standby.looks(stands=True)):
        pass
    standby.follows(None)  # it is elected itself
    return standby.now_s - begun_s


def test_a_justified_take_over_costs_no_patience(standby: Standby) -> None:
    """The session of the leader that was replaced has expired: somebody else would have led by then anyway."""
    for number in range(6):
        assert replace_leader(standby, replace(OTHER, czxid=100 + number, session_id=number)) < PATIENCE_S + 3 * TICK_S
        standby.follows(None, SESSION_S, sessions=frozenset({99}))
        assert standby.leader_watch.patience_s(standby.now_s + SESSION_S) == PATIENCE_S


def test_with_each_needless_take_over_patience_doubles_up_to_a_session_for_ten_minutes(standby: Standby) -> None:
    lives_on = frozenset({OTHER.session_id})
    for number in range(6):
        patience_s = standby.leader_watch.patience_s(standby.now_s)
        assert patience_s == min(PATIENCE_S * 2**number, SESSION_S)
        assert replace_leader(standby, replace(OTHER, czxid=100 + number)) >= patience_s
        assert standby.leader_watch.patience_s(standby.now_s) == patience_s, (
            "it is not known yet whether it was needless"
        )
        standby.follows(None, 1.5 * SESSION_S, sessions=lives_on)
    assert standby.leader_watch.patience_s(standby.now_s + 600.0) == PATIENCE_S


def test_on_a_busy_machine_patience_is_three_times_the_slowest_answer_lately(standby: Standby) -> None:
    for _ in range(6):
        standby.ticks(1)
    standby.hears(LeaderAnswered(OTHER.czxid))
    assert standby.leader_watch.patience_s(standby.now_s) == pytest.approx(3 * 6 * TICK_S)
    standby.hears(LeaderAnswered(OTHER.czxid))
    standby.hears(Signal.TIME, 60.0)
    assert standby.leader_watch.patience_s(standby.now_s) == pytest.approx(3 * 3 * TICK_S)
    standby.hears(Signal.TIME, 60.0)
    assert standby.leader_watch.patience_s(standby.now_s) == PATIENCE_S


def test_what_a_leader_took_to_answer_first_is_not_usual() -> None:
    standby = Standby()
    standby.follows()
    standby.ticks(6)
    standby.hears(LeaderAnswered(OTHER.czxid))
    assert standby.leader_watch.patience_s(standby.now_s) == PATIENCE_S


def test_silence_never_counts_without_patience_but_the_end_of_the_process_does() -> None:
    standby = Standby(leader_watch=FailureDetector(0.0))
    standby.follows()
    standby.hears(LeaderAnswered(OTHER.czxid))
    standby.hears(LeaderMissed(OTHER.czxid))
    assert {type(each) for each in standby.ticks(1_000)} == {AskLeader}
    assert EarlyTakeOver(OTHER.czxid, has_ended=True) in standby.hears(LeaderProcessEnded(OTHER.czxid))


def test_a_take_over_that_another_has_won_costs_no_patience(standby: Standby) -> None:
    standby.doubts()
    while not of_kind(EarlyTakeOver, standby.looks(stands=True)):
        pass
    standby.follows(NEXT)
    standby.follows(None)
    assert standby.leader_watch.patience_s(standby.now_s) == PATIENCE_S


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
class Story:
    """Plays stretches, and knows what the machine must not do."""

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
        self.see(self.standby.follows(self.leader), stretch)

    def see(self, done: list[Action], stretch: Stretch) -> None:
        """Check what is to be done, and do it."""
        assert (self.standby.leader_watch.wake_s is None) == (self.leader is None)
        now_s = self.standby.now_s
        if of_kind(RaiseSuspicion, done):
            assert now_s - self.heard_s >= PATIENCE_S / 2
            self.doubt_s = now_s
        for each in of_kind(EarlyTakeOver, done):
            assert self.leader is not None
            assert each == EarlyTakeOver(self.leader.czxid)
            assert now_s - self.heard_s >= PATIENCE_S - 1e-9, "never heard, or lately"
            assert now_s - self.doubt_s >= 3 * TICK_S - 1e-9, "it had no time to answer there"
            assert stretch.store == "stands"
            assert self.standby.leader_watch.phase is FailureDetectorPhase.RESTING
            self.replaced += 1
        for action in done:
            event = self.come_of(action, stretch)
            if event is not None:
                late_s = 2 * TICK_S if stretch.store == "late" and isinstance(event, SuspicionChecked) else 0.0
                self.see(self.standby.hears(event, late_s), stretch)

    def come_of(self, action: Action, stretch: Stretch) -> Event | None:
        """None: not before the next stretch, or never."""
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


def play(stretches: list[Stretch]) -> Story:
    story = Story()
    for stretch in stretches:
        story.begin(stretch)
        for _ in range(stretch.steps):
            story.see(story.standby.hears(Signal.TIME, stretch.apart_s), stretch)
    return story


@given(STRETCHES)
def test_no_leader_is_replaced_before_suspicion_lasts(stretches: list[Stretch]) -> None:
    play(stretches)


def test_such_a_story_may_have_a_leader_replaced() -> None:
    heard = Stretch(5, TICK_S, answers=True, store="stands", leader="another")
    silent = Stretch(20, TICK_S, answers=False, store="stands", leader="same")
    assert play([heard, silent]).replaced == 1
