"""Drains with their inputs, and a state machine that applies events in any order and checks invariants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.fake_mirror import FakeMirror

from loadmanager.core.domain.controls import Controls, DrainOrder, ReturnOrder
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Ownership, OwnershipState, Registration
from loadmanager.core.domain.plan import Plan, Unload, Verdict
from loadmanager.core.domain.reasons import OwnershipReason, PlacementReason, Reason
from loadmanager.core.protocol.drain_machine import (
    PAUSE_S,
    Action,
    BeginMove,
    BringHome,
    Drain,
    DrainMachine,
    DrainPlanned,
    EndDrain,
    EndReturn,
    Event,
    GiveAway,
    MoveEnded,
    TriedToEnd,
)
from loadmanager.core.protocol.move_machine import Cancelled, Failed, Moved, Outcome, StaleStepError, WithdrawMove
from loadmanager.core.protocol.state_machine import Signal

A, B, C = (Registration(BrokerId(f"{letter}:1"), number) for number, letter in enumerate("abc", 1))
MOVED = Moved(Ownership())
STALE = Failed(StaleStepError("it is another"))
PROCESS = 7
"""The process of each broker at first."""
STAYS = PlacementReason.NO_OTHER_BROKER


def drained(*brokers: Registration, since_s: float = 50.0) -> Controls:
    return Controls(draining={each.broker: DrainOrder(since_s, PROCESS) for each in brokers})


def away(bundle: str, source: Registration = A, reason: Reason = OwnershipReason.DRAIN) -> Unload:
    return Unload(bundle, source, C if source != C else B, reason)


def home(bundle: str, source: Registration = B) -> Unload:
    return away(bundle, source, PlacementReason.PINNED_TO_BROKER)


def plan(*steps: Unload, staying: Sequence[str] = ()) -> Plan:
    """With a verdict for each but those that go home."""
    acted = [Verdict(s.bundle, s.reason, acted=True) for s in steps if s.reason is OwnershipReason.DRAIN]
    return Plan(1, 0.0, steps, (*acted, *(Verdict(each, STAYS, acted=False) for each in staying)))


@dataclass(slots=True)
class DrainsHarness(FakeMirror):
    """Drains with their inputs, and a driver that acts only on request."""

    at_a_time: int = 2
    controls: Controls = field(default_factory=Controls)
    registrations: dict[BrokerId, Registration] = field(
        default_factory=lambda: {each.broker: each for each in (A, B, C)}
    )
    processes: dict[BrokerId, int] = field(default_factory=lambda: {each.broker: PROCESS for each in (A, B, C)})
    owners: dict[str, Registration] = field(default_factory=dict)
    now_s: float = 100.0
    drains: DrainMachine = field(init=False)

    def __post_init__(self) -> None:
        self.drains = DrainMachine(
            lambda: self.controls,
            self,
            self.processes.__getitem__,
            lambda: self.at_a_time,
        )

    def find_ownership(self, bundle: str) -> Ownership | None:
        owner = self.owners.get(bundle)
        return None if owner is None else Ownership(OwnershipState.OWNED, owner)

    def step(self, event: Event) -> list[Action]:
        return self.drains.step(event, self.now_s)

    def look(self, after_s: float = PAUSE_S) -> list[Action]:
        self.now_s += after_s
        return self.step(Signal.TIME)

    def draining(self, *bundles: str, broker: Registration = A) -> Drain:
        """A drain with moves of these bundles under way."""
        self.controls = drained(broker)
        self.owners |= dict.fromkeys(bundles, broker)
        (asked,) = self.look()
        assert isinstance(asked, GiveAway)
        assert [type(told) for told in self.step(DrainPlanned(plan(*(away(each, broker) for each in bundles))))] == [
            BeginMove
        ] * len(bundles)
        drain = self.drains.find(broker.broker)
        assert drain is not None
        return drain


BUNDLES = [f"t/{number}" for number in range(8)]


class AnyOrder(RuleBasedStateMachine):
    """Operators who change their minds, brokers that come and go, and moves that end as they please."""

    @initialize(at_a_time=st.integers(1, 3), owners=st.lists(st.sampled_from([A, B, C]), min_size=8, max_size=8))
    def begin(self, at_a_time: int, owners: list[Registration]) -> None:
        self.leader = DrainsHarness(at_a_time=at_a_time, owners=dict(zip(BUNDLES, owners, strict=True)))
        self.moving: dict[str, Unload] = {}
        self.asked: list[GiveAway | BringHome] = []
        self.ending: list[EndDrain | EndReturn] = []

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
                    order, process = self.leader.controls.draining[broker], self.leader.processes[broker]
                    assert broker in self.leader.registrations, "a lost session ends no drain"
                    assert order.process != process, "only another process does"
                    assert broker not in [each.broker for each in self.ending], "once at a time"
                    self.ending.append(told)
                case EndReturn(broker, bundles):
                    assert broker not in self.leader.controls.draining, "a drain comes first"
                    assert broker not in [each.broker for each in self.ending], "once at a time"
                    owners = [self.leader.owners[bundle].broker for bundle in bundles]
                    assert owners == [broker] * len(bundles), "only what is at home"
                    self.ending.append(told)

    @rule(after_s=st.sampled_from([0.0, 1.0, 6.0]))
    def look(self, after_s: float) -> None:
        self.leader.now_s += after_s
        self.step(Signal.TIME)

    @precondition(lambda self: self.asked)
    @rule(staying=st.sets(st.sampled_from(BUNDLES)), is_broken=st.sampled_from([False, False, False, True]))
    def decide(self, staying: set[str], *, is_broken: bool) -> None:
        """Decide as a planner: some movable bundles move, and some stay."""
        asked, owners = self.asked.pop(), self.leader.owners
        meant = [bundle for bundle in owners if self.is_meant(bundle, asked) and bundle not in asked.leave]
        steps = [self.planned(bundle, asked) for bundle in meant if bundle not in staying]
        self.step(
            DrainPlanned(None if is_broken else plan(*steps, staying=[each for each in meant if each in staying]))
        )

    def is_meant(self, bundle: str, asked: GiveAway | BringHome) -> bool:
        owner = self.leader.owners[bundle]
        if self.leader.registrations.get(owner.broker) != owner:
            return False
        if isinstance(asked, GiveAway):
            return owner.broker in asked.brokers
        to = self.home_of(bundle)
        return to not in (None, owner) and to.broker not in self.leader.controls.draining

    def home_of(self, bundle: str) -> Registration | None:
        """Return the broker that the bundle is pinned or returns to; None if there is none, or it is not registered."""
        home = self.leader.controls.homes.get(bundle)
        return None if home is None else self.leader.registrations.get(home)

    def planned(self, bundle: str, asked: GiveAway | BringHome) -> Unload:
        step = away(bundle, self.leader.owners[bundle])
        if isinstance(asked, GiveAway):
            return step
        return replace(step, destination=self.home_of(bundle), reason=PlacementReason.PINNED_TO_BROKER)

    @precondition(lambda self: self.moving)
    @rule(
        which=st.integers(0, 99), outcome=st.sampled_from([MOVED, MOVED, STALE, Cancelled("so"), Failed(OSError("no"))])
    )
    def move_ends(self, which: int, outcome: Outcome) -> None:
        bundle = sorted(self.moving)[which % len(self.moving)]
        destination = self.moving.pop(bundle).destination
        if outcome is MOVED and destination is not None:
            self.leader.owners[bundle] = destination
        self.step(MoveEnded(bundle, outcome))

    @rule(brokers=st.sets(st.sampled_from([A.broker, B.broker])), since_s=st.sampled_from([10.0, 20.0]))
    def wish(self, brokers: set[BrokerId], since_s: float) -> None:
        draining = {each: DrainOrder(since_s, self.leader.processes[each]) for each in sorted(brokers)}
        self.leader.controls = replace(self.leader.controls, draining=draining)
        self.step(Signal.CHANGED)

    @rule(broker=st.sampled_from([A.broker, B.broker]), bundles=st.sets(st.sampled_from(BUNDLES), min_size=1))
    def wish_return(self, broker: BrokerId, bundles: set[str]) -> None:
        order = ReturnOrder(10.0, (*sorted(bundles),))
        self.leader.controls = replace(self.leader.controls, returning={broker: order})

    @rule(pinned=st.dictionaries(st.sampled_from(BUNDLES), st.sampled_from([B.broker, C.broker])))
    def pin(self, pinned: dict[str, BrokerId]) -> None:
        self.leader.controls = replace(self.leader.controls, pinned=pinned)

    @rule(broker=st.sampled_from([A.broker, B.broker]), incarnation=st.integers(0, 9), restarts=st.booleans())
    def come_or_go(self, broker: BrokerId, incarnation: int, *, restarts: bool) -> None:
        if incarnation:
            self.leader.registrations[broker] = Registration(broker, incarnation)
            self.leader.processes[broker] += restarts
        else:
            self.leader.registrations.pop(broker, None)

    @precondition(lambda self: self.ending)
    @rule(is_written=st.booleans())
    def end(self, *, is_written: bool) -> None:
        wish = self.ending.pop()
        if is_written and isinstance(wish, EndDrain):
            self.leader.controls = self.leader.controls.without_drain(wish.broker, wish.since_s)
        elif is_written and isinstance(wish, EndReturn):
            self.leader.controls = self.leader.controls.without_returned(wish.broker, wish.bundles)
        self.step(TriedToEnd(wish.broker))

    @invariant()
    def windows_hold(self) -> None:
        drains = self.leader.drains
        assert len(drains._moving) == len(self.moving) <= 4 * self.leader.at_a_time
        assert not self.asked or drains.wake_s is None
        in_progress = [drain for drain in map(drains.find, (A.broker, B.broker)) if drain is not None]
        assert not any(drains.blocked(drain).keys() & self.moving.keys() for drain in in_progress)

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
        drained = [self.leader.registrations.get(broker) for broker in self.leader.controls.draining]
        assert not [owner for owner in self.leader.owners.values() if owner in drained]
