"""Reconciling: each line of the tables, and what holds whatever happens in whatever order."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pictures import A_BACK, STAMP, A, APicture, B

from loadmanager.core.leading.reconciling import Event, Instruction, Look, Looked, Place, Reconciling, SeeThrough
from loadmanager.core.leading.signal import Signal
from loadmanager.core.names import BrokerId
from loadmanager.core.ownership import FREE, Ownership, OwnershipState, Registration, assign, release

GONE = Registration(BrokerId("gone:1"), 3)
A_BEFORE = Registration(A.broker, 0)


@dataclass(slots=True)
class Leader(APicture):
    """Reconciling with its records, and a driver that does nothing until it is told to."""

    places_at_once: bool = False
    now_s: float = 100.0
    to_do: list[Instruction] = field(default_factory=list)
    machine: Reconciling = field(init=False)

    def __post_init__(self) -> None:
        self.machine = Reconciling(self, lambda: self.places_at_once)

    def step(self, event: Event) -> list[Instruction]:
        """What is to be done because of this alone; it is kept to be done, too."""
        told = self.machine.step(event, self.now_s)
        self.to_do += told
        return told

    def look(self) -> list[Instruction]:
        """Do the look that is due; what is to be done then."""
        assert self.step(Signal.TIME) == [Look()]
        self.to_do.clear()
        return self.step(self.looked())

    def look_again(self) -> list[Instruction]:
        """The same after a change of membership."""
        self.now_s += 1.0
        self.step(Signal.MEMBERSHIP)
        return self.look()

    def looked(self) -> Looked:
        releasing = [bundle for bundle, each in self.records.items() if each.state is OwnershipState.RELEASING]
        return Looked(releasing, list(dict.fromkeys(each.owner for each in self.orphans() if each.owner)))

    def orphans(self) -> list[Ownership]:
        owned = [each for each in self.records.values() if each.state is OwnershipState.OWNED]
        return [each for each in owned if not self.is_registered(each.owner)]


@pytest.fixture
def leader() -> Leader:
    return Leader()


def owned(owner: Registration) -> Ownership:
    return assign(FREE, owner, STAMP)


def test_the_first_look_is_due_at_once_and_the_next_after_a_pause(leader: Leader) -> None:
    wake_s = leader.machine.wake_s
    assert wake_s is not None
    assert wake_s <= leader.now_s
    assert leader.step(Signal.TIME) == [Look()]
    assert leader.machine.wake_s is None, "until it was done"
    assert leader.step(Signal.TIME) == []
    assert leader.step(Looked([], [])) == []
    assert leader.machine.wake_s == 130.0
    leader.now_s = 129.0
    assert leader.step(Signal.TIME) == []
    leader.now_s = 130.0
    assert leader.step(Signal.TIME) == [Look()]


def test_the_end_of_a_hold_is_looked_for_and_a_change_of_membership_at_once(leader: Leader) -> None:
    leader.held = {A.broker: 7.0, B.broker: 90.0}
    leader.look()
    assert leader.machine.wake_s == pytest.approx(107.05)
    leader.now_s = 101.0
    assert leader.step(Signal.MEMBERSHIP) == []
    assert leader.machine.wake_s == 101.0


def test_what_changes_while_a_look_is_under_way_has_another_one_follow(leader: Leader) -> None:
    leader.step(Signal.TIME)
    leader.step(Signal.MEMBERSHIP)
    assert leader.machine.wake_s is None
    leader.step(leader.looked())
    assert leader.machine.wake_s == pytest.approx(100.05)


def test_brokers_that_restart_together_are_looked_at_together(leader: Leader) -> None:
    leader.look()
    looks = 0
    for _ in range(100):
        leader.now_s += 0.001
        leader.step(Signal.MEMBERSHIP)
        if leader.machine.wake_s is not None and leader.machine.wake_s <= leader.now_s:
            looks += 1
            leader.look()
    assert looks == 2


def test_a_release_is_seen_through_whoever_owned_the_bundle(leader: Leader) -> None:
    leader.records = {"t/ns/a": release(owned(A), B, STAMP), "t/ns/b": release(owned(GONE), B, STAMP)}
    assert leader.look() == [SeeThrough("t/ns/a"), SeeThrough("t/ns/b")]


def test_what_a_broker_that_has_gone_owned_waits_until_it_is_asked_for(leader: Leader) -> None:
    leader.records = {"t/1/a": owned(GONE), "t/1/b": owned(A), "t/2/b": owned(A_BEFORE)}
    assert leader.look() == []
    assert leader.machine.wake_s == 130.0


def test_bundles_wait_for_a_broker_that_is_held_off_and_go_back_to_it(leader: Leader) -> None:
    leader.records["t/ns/b"] = owned(GONE)
    leader.held = {GONE.broker: 20.0}
    leader.places_at_once = True
    assert leader.look() == []
    leader.registrations[GONE.broker] = Registration(GONE.broker, 12)
    assert leader.look_again() == [Place([GONE])]
    leader.places_at_once = False
    assert leader.look_again() == [Place([GONE])], "whoever has them placed passes over what has an owner"
    leader.held = {}
    assert leader.look_again() == [], "the time is over: it is another registration"


def test_bundles_of_brokers_that_have_gone_are_placed_if_that_is_wanted_once_there_is_a_broker(leader: Leader) -> None:
    leader.places_at_once = True
    leader.records = {"t/ns/a": owned(GONE), "t/ns/b": owned(A_BEFORE), "t/ns/c": FREE, "t/ns/d": owned(B)}
    assert leader.look() == [Place([GONE, A_BEFORE])]
    leader.registrations = {}
    assert leader.look_again() == [], "there is nobody"
    leader.registrations = {B.broker: B}
    assert leader.look_again() == [Place([GONE, A_BEFORE])]
    leader.places_at_once = False
    assert leader.look_again() == []


def test_after_a_term_the_next_one_begins_with_a_look(leader: Leader) -> None:
    leader.places_at_once = True
    leader.records["t/ns/b"] = owned(GONE)
    leader.step(Signal.TIME)
    leader.machine.forget()
    assert leader.step(leader.looked()) == [], "that was the former one's"
    assert leader.look() == [Place([GONE])]


@given(st.data())
def test_whatever_happens_nobody_loses_what_it_serves_and_in_the_end_nothing_is_unfinished(data: st.DataObject) -> None:
    """A driver that does what it is told in any order, and brokers that come and go."""
    leader = Leader(places_at_once=data.draw(st.booleans()))
    names = [f"t/{namespace}/{number}" for namespace in (1, 2) for number in range(3)]
    for _ in range(data.draw(st.integers(1, 40))):
        bundle = data.draw(st.sampled_from(names))
        match data.draw(st.sampled_from(["record", "record", "do", "do", "do", "brokers", "brokers", "time", "end"])):
            case "record":
                owner = data.draw(st.sampled_from([A, A_BACK, B, GONE]))
                leader.records[bundle] = data.draw(
                    st.sampled_from([FREE, owned(owner), release(owned(owner), B, STAMP)])
                )
            case "do" if leader.to_do:
                _do(leader, leader.to_do.pop(data.draw(st.integers(0, len(leader.to_do) - 1))))
            case "brokers":
                there = data.draw(st.sampled_from([(A, B), (B,), (A_BACK, B), (A_BACK,), ()]))
                leader.registrations = {each.broker: each for each in there}
                leader.held = data.draw(st.sampled_from([{}, {A.broker: 60.0}]))
                leader.step(Signal.MEMBERSHIP)
            case "end":
                leader.machine.forget()
                leader.to_do.clear()
            case _:
                leader.now_s += data.draw(st.sampled_from([0.0, 0.01, 10.0, 60.0]))
                leader.step(Signal.TIME)
        assert sum(isinstance(each, Look) for each in leader.to_do) <= 1
    leader.held, leader.registrations = {}, {B.broker: B}
    leader.step(Signal.MEMBERSHIP)
    while leader.to_do or (leader.machine.wake_s or 0.0) <= leader.now_s + 1.0:
        if leader.to_do:
            _do(leader, leader.to_do.pop())
        else:
            leader.now_s = max(leader.now_s, leader.machine.wake_s or 0.0)
            leader.step(Signal.TIME)
    assert not leader.places_at_once or leader.orphans() == []
    assert leader.machine.wake_s == leader.now_s + 30.0


def _do(leader: Leader, instruction: Instruction) -> None:
    match instruction:
        case Look():
            leader.step(leader.looked())
        case SeeThrough(bundle):
            assert bundle in leader.records
        case Place(owners):
            assert owners
            assert len(set(owners)) == len(owners)
            for bundle, each in leader.records.items():
                if each in leader.orphans() and each.owner in owners:
                    leader.records[bundle] = owned(next(iter(leader.registrations.values()), GONE))
