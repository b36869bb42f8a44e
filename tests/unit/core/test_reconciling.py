"""Reconciling: each line of the tables, and what holds whatever happens in whatever order."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pictures import A_BACK, LOST, STAMP, A, APicture, B

from loadmanager.core.leading.reconciling import (
    Event,
    Freed,
    Instruction,
    Look,
    Looked,
    Place,
    Reconciling,
    SeeThrough,
)
from loadmanager.core.leading.signal import Signal
from loadmanager.core.leading.writing import Write, WriteEnded
from loadmanager.core.names import BrokerId
from loadmanager.core.ownership import (
    FREE,
    Ownership,
    OwnershipState,
    Registration,
    assign,
    owner_gone,
    release,
)
from loadmanager.core.reasons import OwnershipReason

GONE = Registration(BrokerId("gone:1"), 3)


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

    def looked(self) -> Looked:
        return Looked([each for each in self.records.items() if self.machine.is_unfinished(each[1])])

    def do_write(self) -> list[Instruction]:
        """Do the only write that is to be done; what is to be done then."""
        (write,) = self.to_do
        assert isinstance(write, Write)
        self.to_do.clear()
        return self.step(WriteEnded(write, self.write(write)))


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
    assert leader.step(Looked([])) == []
    assert leader.machine.wake_s == 130.0
    leader.now_s = 129.0
    assert leader.step(Signal.TIME) == []
    leader.now_s = 130.0
    assert leader.step(Signal.TIME) == [Look()]


def test_the_end_of_a_hold_is_looked_for_and_a_change_of_membership_at_once(leader: Leader) -> None:
    leader.held = {A.broker: 7.0, B.broker: 90.0}
    leader.look()
    assert leader.machine.wake_s == pytest.approx(107.05)
    assert leader.step(Signal.MEMBERSHIP) == []
    assert leader.machine.wake_s == 100.0


def test_what_changes_while_a_look_is_under_way_has_another_one_follow(leader: Leader) -> None:
    leader.records["t/ns/b"] = owned(GONE)
    leader.step(Signal.TIME)
    leader.step(Signal.MEMBERSHIP)
    assert leader.machine.wake_s is None
    leader.to_do = leader.step(leader.looked())
    assert leader.machine.wake_s is None, "nor before what was found is written"
    leader.do_write()
    assert leader.machine.wake_s == 100.0


def test_a_release_is_seen_through_whoever_owned_the_bundle(leader: Leader) -> None:
    leader.records = {"t/ns/a": release(owned(A), B, STAMP), "t/ns/b": release(owned(GONE), B, STAMP)}
    assert leader.look() == [SeeThrough("t/ns/a"), SeeThrough("t/ns/b")]


def test_bundles_of_a_broker_that_has_gone_are_freed_and_those_of_others_are_not(leader: Leader) -> None:
    leader.records = {
        "t/1/a": owned(GONE),
        "t/1/b": owned(A),
        "t/2/a": owned(GONE),
        "t/2/b": owned(Registration(A.broker, 0)),
    }
    writes = leader.look()
    assert [list(write.transitions) for write in writes if isinstance(write, Write)] == [["t/1/a"], ["t/2/a", "t/2/b"]]
    assert {write.reason for write in writes if isinstance(write, Write)} == {OwnershipReason.OWNER_GONE.value}
    leader.to_do = writes[:1]
    assert leader.do_write() == [Freed("t/1/a", GONE, leader.records["t/1/a"])]
    assert leader.machine.wake_s is None, "the other one is not done"
    leader.to_do = writes[1:]
    assert [type(each) for each in leader.do_write()] == [Freed, Freed]
    assert leader.machine.wake_s == 130.0
    states = {bundle: str(each.state) for bundle, each in leader.records.items()}
    assert states == {"t/1/a": "Free", "t/1/b": "Owned", "t/2/a": "Free", "t/2/b": "Free"}


@pytest.mark.parametrize("current", [owned(B), owned(A_BACK), release(owned(GONE), B, STAMP), FREE])
def test_a_bundle_that_has_moved_on_when_it_would_be_freed_is_left_alone(leader: Leader, current: Ownership) -> None:
    leader.records["t/ns/b"] = owned(GONE)
    leader.look()
    leader.records["t/ns/b"] = current
    (freed,) = leader.do_write()
    assert isinstance(freed, Freed)
    assert "t/ns/b has moved on" in str(freed.outcome)
    assert leader.records["t/ns/b"] == current


def test_a_bundle_whose_owner_is_there_when_it_would_be_freed_stays_with_it(leader: Leader) -> None:
    leader.records["t/ns/b"] = owned(GONE)
    leader.look()
    leader.registrations[GONE.broker] = GONE
    (freed,) = leader.do_write()
    assert isinstance(freed, Freed)
    assert "has moved on" in str(freed.outcome)


def test_bundles_wait_for_a_broker_that_is_held_off_and_go_back_to_it(leader: Leader) -> None:
    leader.records["t/ns/b"] = owned(GONE)
    leader.held = {GONE.broker: 20.0}
    assert leader.look() == []
    leader.registrations[GONE.broker] = Registration(GONE.broker, 12)
    leader.step(Signal.MEMBERSHIP)
    assert leader.look() == [Place(["t/ns/b"])]
    leader.held = {}
    leader.step(Signal.MEMBERSHIP)
    (write,) = leader.look()
    assert isinstance(write, Write), "the time is over: it is another registration"


def test_bundles_of_brokers_that_have_gone_are_placed_if_that_is_wanted_once_there_is_a_broker(leader: Leader) -> None:
    leader.places_at_once = True
    leader.records = {"t/ns/a": owned(GONE), "t/ns/b": owned(GONE), "t/ns/c": FREE}
    leader.registrations = {}
    leader.look()
    assert [type(each) for each in leader.do_write()] == [Freed, Freed], "there is nobody"
    leader.registrations = {B.broker: B}
    leader.step(Signal.MEMBERSHIP)
    assert leader.look() == [Place(["t/ns/a", "t/ns/b"])], "and not what nobody ever owned"
    leader.places_at_once = False
    leader.step(Signal.MEMBERSHIP)
    assert leader.look() == []


def test_what_was_freed_is_placed_at_once_if_that_is_wanted_and_nothing_else(leader: Leader) -> None:
    leader.places_at_once = True
    leader.records = {"t/ns/a": owned(GONE), "t/ns/b": owned(GONE)}
    leader.look()
    leader.records["t/ns/b"] = owned(B)
    assert leader.do_write()[-1] == Place(["t/ns/a"])


def test_a_write_of_which_nobody_knows_what_became_is_looked_at_again(leader: Leader) -> None:
    leader.places_at_once = True
    leader.records["t/ns/b"] = owned(GONE)
    (write,) = leader.look()
    assert isinstance(write, Write)
    assert leader.step(WriteEnded(write, {"t/ns/b": LOST})) == [Freed("t/ns/b", GONE, LOST)]
    assert leader.step(WriteEnded(write, {"t/ns/b": LOST})) == [], "once"
    assert leader.machine.wake_s == 130.0


def test_a_bundle_that_is_served_is_never_freed_even_if_it_is_said_to_be_unfinished(leader: Leader) -> None:
    leader.step(Signal.TIME)
    assert leader.step(Looked([("t/ns/a", owned(A)), ("t/ns/b", FREE)])) == []


def test_after_a_term_the_next_one_begins_with_a_look(leader: Leader) -> None:
    leader.records["t/ns/b"] = owned(GONE)
    (former,) = leader.look()
    assert isinstance(former, Write)
    leader.machine.forget()
    assert leader.step(WriteEnded(former, {"t/ns/b": LOST})) == []
    assert leader.step(leader.looked()) == []
    assert [type(each) for each in leader.look()] == [Write]
    leader.machine.forget()
    leader.records.clear()
    assert leader.look() == [], "what the former one was freeing is its own"


@given(st.data())
def test_whatever_happens_nobody_loses_what_it_serves_and_in_the_end_nothing_is_unfinished(data: st.DataObject) -> None:
    """A driver that does what it is told in any order, brokers that come and go, and writes that fail."""
    leader = Leader(places_at_once=data.draw(st.booleans()))
    names = [f"t/{namespace}/{number}" for namespace in (1, 2) for number in range(3)]
    for _ in range(data.draw(st.integers(1, 40))):
        bundle = data.draw(st.sampled_from(names))
        match data.draw(st.sampled_from(["record", "record", "do", "do", "do", "brokers", "brokers", "time", "end"])):
            case "record":
                owner = data.draw(st.sampled_from([A, A_BACK, B, GONE]))
                leader.records[bundle] = data.draw(
                    st.sampled_from(
                        [FREE, owned(owner), release(owned(owner), B, STAMP), owner_gone(owned(owner), STAMP)]
                    )
                )
            case "do" if leader.to_do:
                _do(leader, data)
            case "brokers":
                there = data.draw(st.sampled_from([(A, B), (B,), (A_BACK, B), (A_BACK,), ()]))
                leader.registrations = {each.broker: each for each in there}
                leader.held = data.draw(st.sampled_from([{}, {A.broker: 60.0}]))
                leader.step(Signal.MEMBERSHIP)
            case "end":
                leader.machine.forget()
                leader.to_do.clear()
            case _:
                leader.now_s += data.draw(st.sampled_from([0.0, 10.0, 60.0]))
                leader.step(Signal.TIME)
        assert sum(isinstance(each, Look) for each in leader.to_do) <= 1
    leader.held = {}
    leader.step(Signal.MEMBERSHIP)
    while leader.to_do or (leader.machine.wake_s or 0.0) <= leader.now_s:
        if leader.to_do:
            _do(leader, data, may_fail=False)
        else:
            leader.step(Signal.TIME)
    owners = [each.owner for each in leader.records.values() if each.state is OwnershipState.OWNED]
    assert all(leader.is_registered(owner) for owner in owners)
    assert leader.machine.wake_s == leader.now_s + 30.0


def _do(leader: Leader, data: st.DataObject, *, may_fail: bool = True) -> None:
    """One of the instructions, whichever."""
    instruction = leader.to_do.pop(data.draw(st.integers(0, len(leader.to_do) - 1)))
    match instruction:
        case Look():
            leader.step(leader.looked())
        case Write():
            made = leader.write(instruction)
            fails = may_fail and data.draw(st.booleans())
            leader.step(WriteEnded(instruction, dict.fromkeys(made, LOST) if fails else made))
        case SeeThrough(bundle):
            assert bundle in leader.records
        case Place(bundles):
            assert bundles
            assert len(set(bundles)) == len(bundles)
