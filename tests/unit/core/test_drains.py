"""Drains: each line of the table, and what holds whatever happens in whatever order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from loadmanager.core.controls import Controls
from loadmanager.core.leading.drains import (
    PAUSE_S,
    REST_S,
    BeginMove,
    BringHome,
    Drain,
    Drains,
    EndDrain,
    Event,
    GiveAway,
    Instruction,
    MoveEnded,
    Planned,
    TriedToEnd,
    WithdrawMove,
)
from loadmanager.core.leading.moves import CalledOff, Failed, Kept, Moved, Outcome, StaleStepError
from loadmanager.core.leading.signal import Signal
from loadmanager.core.names import BrokerId
from loadmanager.core.ownership import Ownership, Registration
from loadmanager.core.plan import Plan, Unload, Verdict
from loadmanager.core.reasons import OwnershipReason, PlacementReason, Reason

A, B, C = (Registration(BrokerId(f"{letter}:1"), number) for number, letter in enumerate("abc", 1))
MOVED = Moved(Ownership())
STALE = Failed(StaleStepError("it is another"))
STAYS = PlacementReason.NO_OTHER_BROKER


def drained(*brokers: Registration, since_s: float = 50.0) -> Controls:
    return Controls(draining={each.broker: since_s for each in brokers})


def away(bundle: str, source: Registration = A, reason: Reason = OwnershipReason.DRAIN) -> Unload:
    return Unload(bundle, source, C if source != C else B, reason)


def home(bundle: str, source: Registration = B) -> Unload:
    return away(bundle, source, PlacementReason.PINNED_TO_BROKER)


def plan(*steps: Unload, staying: Sequence[str] = ()) -> Plan:
    """With a verdict for each but those that go home."""
    acted = [Verdict(s.bundle, s.reason, acted=True) for s in steps if s.reason is OwnershipReason.DRAIN]
    return Plan(1, 0.0, steps, (*acted, *(Verdict(each, STAYS, acted=False) for each in staying)))


@dataclass(slots=True)
class Leader:
    """Drains with what they look at, and a driver that does nothing until it is told to."""

    at_a_time: int = 2
    controls: Controls = field(default_factory=Controls)
    registrations: dict[BrokerId, Registration] = field(
        default_factory=lambda: {each.broker: each for each in (A, B, C)}
    )
    owners: dict[str, Registration] = field(default_factory=dict)
    now_s: float = 100.0
    drains: Drains = field(init=False)

    def __post_init__(self) -> None:
        self.drains = Drains(lambda: self.controls, self.registrations, self._owner_of, lambda: self.at_a_time)

    def _owner_of(self, bundle: str) -> Registration | None:
        return self.owners.get(bundle)

    def step(self, event: Event) -> list[Instruction]:
        return self.drains.step(event, self.now_s)

    def look(self, after_s: float = PAUSE_S) -> list[Instruction]:
        self.now_s += after_s
        return self.step(Signal.TIME)

    def draining(self, *bundles: str, broker: Registration = A) -> Drain:
        """A drain with moves of these bundles under way."""
        self.controls = drained(broker)
        self.owners |= dict.fromkeys(bundles, broker)
        (asked,) = self.look()
        assert isinstance(asked, GiveAway)
        assert [type(told) for told in self.step(Planned(plan(*(away(each, broker) for each in bundles))))] == [
            BeginMove
        ] * len(bundles)
        drain = self.drains.find(broker.broker)
        assert drain is not None
        return drain


@pytest.fixture
def leader() -> Leader:
    return Leader()


def test_nothing_is_looked_at_while_nothing_is_wished(leader: Leader) -> None:
    assert leader.drains.wake_s is None
    assert leader.look() == []
    leader.controls = drained(A)
    leader.step(Signal.CHANGED)
    assert leader.drains.wake_s == leader.now_s, "at once"


def test_a_drain_begins_and_its_bundles_are_decided_on_and_moved(leader: Leader) -> None:
    leader.controls = drained(A)
    assert leader.look() == [GiveAway((A.broker,), 4, frozenset())]
    assert leader.drains.wake_s is None, "not before it is decided"
    assert leader.look() == [], "one decision at a time"
    steps = away("t/1"), away("t/2")
    decided = plan(*steps)
    begun = [BeginMove(step, [verdict]) for step, verdict in zip(steps, decided.verdicts, strict=True)]
    assert leader.step(Planned(decided)) == begun
    assert len(leader.drains._moving) == 2
    assert leader.drains.wake_s == leader.now_s, "a second after the look"
    assert leader.look(0.0) == [GiveAway((A.broker,), 2, frozenset({"t/1", "t/2"}))]


def test_no_more_are_asked_for_while_more_than_half_of_the_window_is_moving(leader: Leader) -> None:
    leader.draining("t/1", "t/2", "t/3", "t/4")
    assert leader.look() == []
    leader.step(MoveEnded("t/4", MOVED))
    assert leader.drains.wake_s == leader.now_s + PAUSE_S
    leader.step(MoveEnded("t/1", MOVED))
    assert leader.drains.wake_s == leader.now_s, "half of it is free"
    assert leader.look(0.0) == [GiveAway((A.broker,), 2, frozenset({"t/2", "t/3"}))]


def test_only_as_many_begin_as_were_asked_for(leader: Leader) -> None:
    leader.controls = drained(A)
    leader.look()
    assert len(leader.step(Planned(plan(*(away(f"t/{number}") for number in range(9)))))) == 4


def test_what_came_of_a_drain_is_counted(leader: Leader) -> None:
    drain = leader.draining("t/1", "t/2", "t/3")
    assert (leader.drains.state(drain, 3), drain.rate_per_s(leader.now_s)) == ("draining", 0.0)
    leader.now_s += 2.0
    leader.step(MoveEnded("t/1", MOVED))
    leader.step(MoveEnded("t/2", MOVED))
    assert drain.rate_per_s(leader.now_s) == 1.0
    assert leader.drains.state(drain, 0) == "draining", "its last move is not over"
    leader.step(MoveEnded("t/3", MOVED))
    assert (drain.moved, drain.failed, leader.drains.state(drain, 0)) == (3, 0, "done")
    assert drain.rate_per_s(leader.now_s + 61.0) == 0.0, "of late"


def test_the_rate_is_of_the_last_minute_and_of_no_more_than_a_thousand_bundles() -> None:
    drain = Drain(A, 50.0, 100.0)
    drain.move_ended(100.0625, has_left=True)
    assert drain.rate_per_s(100.0625) == pytest.approx(10.0), "a shorter time counts as a tenth of a second"
    assert drain.rate_per_s(160.0) == pytest.approx(1 / 60)
    assert drain.rate_per_s(160.0625) == 0.0, "a minute ago is over"
    for _ in range(1_001):
        drain.move_ended(200.0, has_left=True)
    assert drain.moved == 1_002
    assert drain.rate_per_s(210.0) == pytest.approx(1_000 / 60)


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        (Kept(Ownership(), OwnershipReason.UNLOAD_FAILED, "503"), "503"),
        (CalledOff("cancelled"), "cancelled"),
        (Failed(RuntimeError("lost")), "lost"),
    ],
)
def test_a_bundle_that_did_not_leave_is_given_a_rest_and_says_why(leader: Leader, outcome: Outcome, why: str) -> None:
    drain = leader.draining("t/1")
    leader.step(MoveEnded("t/1", outcome))
    assert (drain.moved, drain.failed, leader.drains.blocked(drain)) == (0, 1, {"t/1": why})
    assert leader.drains.state(drain, 1) == "blocked"
    assert leader.look() == [GiveAway((A.broker,), 4, frozenset({"t/1"}))]
    leader.step(Planned(plan()))
    assert leader.look(REST_S) == [GiveAway((A.broker,), 4, frozenset())]
    assert leader.drains.blocked(drain) == {"t/1": why}, "for all that is known"
    leader.step(Planned(plan(away("t/1"))))
    leader.step(MoveEnded("t/1", MOVED))
    assert (drain.moved, drain.failed, leader.drains.blocked(drain)) == (1, 1, {})


def test_a_bundle_that_no_other_broker_may_own_is_given_a_rest_and_says_why(leader: Leader) -> None:
    leader.controls = drained(A)
    leader.owners = {"t/1": A, "t/2": C}
    leader.look()
    leader.step(Planned(plan(staying=["t/1", "t/2", "t/gone"])))
    drain = leader.drains.find(A.broker)
    assert drain is not None
    assert leader.drains.blocked(drain) == {"t/1": Verdict("t/1", STAYS, acted=False).sentence()}
    assert leader.look() == [GiveAway((A.broker,), 4, frozenset({"t/1", "t/2", "t/gone"}))]


def test_a_bundle_that_leaves_after_all_has_no_rest_where_it_is_then(leader: Leader) -> None:
    drain = leader.draining("t/1")
    leader.step(MoveEnded("t/1", CalledOff("cancelled")))
    leader.look()
    leader.step(Planned(plan(away("t/1"))))
    leader.step(MoveEnded("t/1", MOVED))
    assert leader.drains.blocked(drain) == {}
    assert leader.look() == [GiveAway((A.broker,), 4, frozenset())]


def test_a_rest_that_is_over_is_not_kept(leader: Leader) -> None:
    drain = leader.draining()
    leader.owners["t/1"] = A
    leader.look()
    leader.step(Planned(plan(staying=["t/1"])))
    assert leader.look(REST_S) == [GiveAway((A.broker,), 4, frozenset())]
    leader.step(Planned(plan()))
    assert leader.drains.blocked(drain) == {}


def test_a_stale_step_is_planned_again_but_not_at_once(leader: Leader) -> None:
    drain = leader.draining("t/1")
    leader.step(MoveEnded("t/1", STALE))
    assert (drain.moved, drain.failed, leader.drains.blocked(drain)) == (0, 0, {})
    assert leader.drains.wake_s == leader.now_s + PAUSE_S
    assert leader.look() == [GiveAway((A.broker,), 4, frozenset())]


def test_a_drain_that_is_wished_no_more_withdraws_its_moves_and_leaves_no_rest(leader: Leader) -> None:
    drain = leader.draining("t/1", "t/2")
    leader.step(MoveEnded("t/1", CalledOff("cancelled")))
    leader.controls = Controls()
    assert leader.drains.wake_s is not None
    assert leader.look() == [WithdrawMove("t/2")]
    assert leader.drains.find(A.broker) is None
    leader.step(MoveEnded("t/2", CalledOff("cancelled")))
    assert drain.failed == 2
    leader.controls = drained(A, since_s=60.0)
    assert leader.look() == [GiveAway((A.broker,), 4, frozenset())]
    anew = leader.drains.find(A.broker)
    assert anew is not None
    assert (anew.since_s, anew.failed) == (60.0, 0)


def test_a_drain_that_is_lifted_while_it_is_decided_on_begins_nothing(leader: Leader) -> None:
    leader.controls = drained(A)
    leader.look()
    leader.controls = Controls()
    assert leader.step(Planned(plan(away("t/1")))) == []


def test_of_two_drains_only_the_one_that_is_lifted_withdraws_its_moves_and_begins_none(leader: Leader) -> None:
    leader.draining("t/1")
    leader.controls = drained(A, B)
    (asked,) = leader.look()
    assert asked == GiveAway((A.broker, B.broker), 3, frozenset({"t/1"}))
    leader.controls = drained(B)
    begun = leader.step(Planned(plan(away("t/2"), away("t/3", B))))
    assert [each.step.bundle for each in begun if isinstance(each, BeginMove)] == ["t/3"]
    assert [each for each in leader.look() if isinstance(each, WithdrawMove)] == [WithdrawMove("t/1")]


def test_a_drain_begins_also_behind_one_that_ends(leader: Leader) -> None:
    leader.controls = drained(A)
    del leader.registrations[A.broker]
    assert leader.look() == [EndDrain(A.broker, 50.0)]
    leader.controls = drained(A, B)
    assert leader.look() == [GiveAway((B.broker,), 4, frozenset())]


def test_a_wish_that_was_taken_back_and_made_again_between_two_looks_is_another_drain(leader: Leader) -> None:
    drain = leader.draining("t/1")
    leader.controls = drained(A, since_s=60.0)
    assert leader.look() == [WithdrawMove("t/1"), GiveAway((A.broker,), 3, frozenset({"t/1"}))]
    assert leader.drains.find(A.broker) is not drain


@pytest.mark.parametrize("is_back", [False, True])
def test_a_drain_ends_with_the_life_of_its_broker(leader: Leader, is_back: bool) -> None:  # noqa: FBT001 - a case
    leader.draining("t/1", broker=B)
    leader.controls = drained(A, B)
    if is_back:
        leader.registrations[B.broker] = replace(B, incarnation=9)
    else:
        del leader.registrations[B.broker]
    end = EndDrain(B.broker, 50.0)
    asked = GiveAway((A.broker,), 3, frozenset({"t/1"}))
    assert leader.look() == [end, asked], "nothing more of it is given away"
    leader.step(Planned(None))
    assert leader.look() == [asked], "nor is its end tried twice at once"
    leader.step(Planned(None))
    leader.step(TriedToEnd(B.broker))
    assert leader.look() == [end, asked], "but again if it failed"
    leader.step(Planned(None))
    leader.step(TriedToEnd(B.broker))
    leader.controls = drained(A)
    assert leader.look() == [WithdrawMove("t/1"), asked]


def test_a_wish_for_a_broker_that_is_gone_is_taken_back_by_whoever_leads(leader: Leader) -> None:
    leader.controls = drained(A)
    del leader.registrations[A.broker]
    assert leader.look() == [EndDrain(A.broker, 50.0)]
    leader.registrations[A.broker] = A
    assert leader.look() == [], "its next life is not drained meanwhile"


def test_what_was_decided_for_a_life_that_is_over_moves_nothing_of_the_next_one(leader: Leader) -> None:
    leader.controls = drained(A)
    leader.look()
    back = replace(A, incarnation=9)
    assert leader.step(Planned(plan(away("t/1", back), away("t/2", C)))) == []


def test_pinned_bundles_are_brought_home_after_what_drains_need(leader: Leader) -> None:
    leader.controls = replace(drained(A), pinned={"t/1": A.broker, "t/2": C.broker})
    leader.owners = {"t/1": A, "t/2": B}
    leader.look()
    (begun, asked) = leader.step(Planned(plan(away("t/3"))))
    assert isinstance(begun, BeginMove)
    assert asked == BringHome(4, frozenset({"t/3"}))
    (begun,) = leader.step(Planned(plan(home("t/2"))))
    assert begun == BeginMove(home("t/2"), []), "nobody has to say why"
    drain = leader.drains.find(A.broker)
    assert drain is not None
    leader.step(MoveEnded("t/2", MOVED))
    assert drain.moved == 0


def test_pinned_bundles_are_looked_after_though_a_drain_could_not_be_decided_on(leader: Leader) -> None:
    leader.controls = replace(drained(A), pinned={"t/2": C.broker})
    leader.owners = {"t/2": B}
    leader.look()
    assert leader.step(Planned(None)) == [BringHome(4, frozenset())]
    assert leader.step(Planned(None)) == []
    assert leader.drains.wake_s == leader.now_s + PAUSE_S


@pytest.mark.parametrize("pinned", [{"t/1": A.broker}, {"t/free": A.broker}, {"t/1": BrokerId("gone:1")}])
def test_a_pinned_bundle_that_is_at_home_or_free_or_whose_home_is_not_there_stays(
    leader: Leader, pinned: dict[str, BrokerId]
) -> None:
    leader.controls = Controls(pinned=pinned)
    leader.owners = {"t/1": A}
    assert leader.look() == []
    assert leader.drains.wake_s == leader.now_s + PAUSE_S, "it is looked at again"


def test_a_pinned_bundle_that_stays_is_given_a_rest_and_blocks_no_drain(leader: Leader) -> None:
    leader.controls = replace(drained(A), pinned={"t/1": B.broker})
    leader.owners = {"t/1": A}
    leader.look()
    assert leader.step(Planned(plan())) == [BringHome(4, frozenset())]
    leader.step(Planned(plan(staying=["t/1"])))
    drain = leader.drains.find(A.broker)
    assert drain is not None
    assert leader.drains.blocked(drain) == {}
    leader.controls = replace(leader.controls, draining={})
    assert leader.look() == []
    assert leader.look(REST_S) == [BringHome(4, frozenset())]


BUNDLES = [f"t/{number}" for number in range(8)]


class AnyOrder(RuleBasedStateMachine):
    """Operators who change their minds, brokers that come and go, and moves that end as they please."""

    @initialize(at_a_time=st.integers(1, 3), owners=st.lists(st.sampled_from([A, B, C]), min_size=8, max_size=8))
    def begin(self, at_a_time: int, owners: list[Registration]) -> None:
        self.leader = Leader(at_a_time=at_a_time, owners=dict(zip(BUNDLES, owners, strict=True)))
        self.moving: dict[str, Unload] = {}
        self.asked: list[GiveAway | BringHome] = []
        self.ending: list[EndDrain] = []

    def step(self, event: Event) -> None:
        for told in self.leader.step(event):
            match told:
                case GiveAway() | BringHome():
                    assert not self.asked, "one decision at a time"
                    assert told.most >= self.leader.at_a_time
                    assert told.leave >= self.moving.keys()
                    self.asked.append(told)
                case BeginMove(step):
                    assert step.bundle not in self.moving, "once at a time"
                    self.moving[step.bundle] = step
                    drain = self.leader.drains.find(step.source.broker)
                    assert step.reason is not OwnershipReason.DRAIN or (drain and drain.registration == step.source)
                case WithdrawMove(bundle):
                    assert bundle in self.moving
                case EndDrain(broker):
                    assert broker not in [each.broker for each in self.ending], "once at a time"
                    self.ending.append(told)

    @rule(after_s=st.sampled_from([0.0, 1.0, 6.0]))
    def look(self, after_s: float) -> None:
        self.leader.now_s += after_s
        self.step(Signal.TIME)

    @precondition(lambda self: self.asked)
    @rule(staying=st.sets(st.sampled_from(BUNDLES)), is_broken=st.sampled_from([False, False, False, True]))
    def decide(self, staying: set[str], *, is_broken: bool) -> None:
        """As a planner would: some of what may be moved goes, and some stays."""
        asked, owners = self.asked.pop(), self.leader.owners
        meant = [bundle for bundle in owners if self.is_meant(bundle, asked) and bundle not in asked.leave]
        way = away if isinstance(asked, GiveAway) else home
        steps = [way(bundle, owners[bundle]) for bundle in meant if bundle not in staying]
        self.step(Planned(None if is_broken else plan(*steps, staying=[each for each in meant if each in staying])))

    def is_meant(self, bundle: str, asked: GiveAway | BringHome) -> bool:
        owner = self.leader.owners[bundle]
        if self.leader.registrations.get(owner.broker) != owner:
            return False
        if isinstance(asked, GiveAway):
            return owner.broker in asked.brokers
        to = self.leader.controls.pinned.get(bundle, owner.broker)
        return to != owner.broker and to not in self.leader.controls.draining

    @precondition(lambda self: self.moving)
    @rule(
        which=st.integers(0, 99), outcome=st.sampled_from([MOVED, MOVED, STALE, CalledOff("so"), Failed(OSError("no"))])
    )
    def move_ends(self, which: int, outcome: Outcome) -> None:
        bundle = sorted(self.moving)[which % len(self.moving)]
        destination = self.moving.pop(bundle).destination
        if outcome is MOVED and destination is not None:
            self.leader.owners[bundle] = destination
        self.step(MoveEnded(bundle, outcome))

    @rule(brokers=st.sets(st.sampled_from([A.broker, B.broker])), since_s=st.sampled_from([10.0, 20.0]))
    def wish(self, brokers: set[BrokerId], since_s: float) -> None:
        draining = dict.fromkeys(sorted(brokers), since_s)
        self.leader.controls = replace(self.leader.controls, draining=draining)
        self.step(Signal.CHANGED)

    @rule(pinned=st.dictionaries(st.sampled_from(BUNDLES), st.sampled_from([B.broker, C.broker])))
    def pin(self, pinned: dict[str, BrokerId]) -> None:
        self.leader.controls = replace(self.leader.controls, pinned=pinned)

    @rule(broker=st.sampled_from([A.broker, B.broker]), incarnation=st.integers(0, 9))
    def come_or_go(self, broker: BrokerId, incarnation: int) -> None:
        if incarnation:
            self.leader.registrations[broker] = Registration(broker, incarnation)
        else:
            self.leader.registrations.pop(broker, None)

    @precondition(lambda self: self.ending)
    @rule(is_written=st.booleans())
    def end(self, *, is_written: bool) -> None:
        wish = self.ending.pop()
        if is_written:
            self.leader.controls = self.leader.controls.without_drain(wish.broker, wish.since_s)
        self.step(TriedToEnd(wish.broker))

    @invariant()
    def windows_hold(self) -> None:
        drains = self.leader.drains
        assert len(drains._moving) == len(self.moving) <= 4 * self.leader.at_a_time
        assert not self.asked or drains.wake_s is None
        under_way = [drain for drain in map(drains.find, (A.broker, B.broker)) if drain is not None]
        assert not any(drains.blocked(drain).keys() & self.moving.keys() for drain in under_way)

    def teardown(self) -> None:
        """Once everything goes well, nothing is left that a drain of a registered broker should have given away."""
        for _ in range(20):
            self.look(6.0)
            while self.asked or self.ending or self.moving:
                if self.asked:
                    self.decide(set(), is_broken=False)
                elif self.ending:
                    self.end(is_written=True)
                else:
                    self.move_ends(0, MOVED)
        drained = [self.leader.registrations[broker] for broker in self.leader.controls.draining]
        assert not [owner for owner in self.leader.owners.values() if owner in drained]


TestAnyOrder = AnyOrder.TestCase
