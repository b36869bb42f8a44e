from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_mirror import A_BACK, LOST, STAMP, A, B, FakeMirror

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import (
    FREE,
    Ownership,
    OwnershipState,
    Registration,
    assign,
    owner_gone,
    release,
)
from loadmanager.core.domain.reasons import OwnershipReason
from loadmanager.core.protocol.reconciler import (
    FREED_AFTER_S,
    Action,
    AssignBundles,
    Event,
    Freed,
    NotFreed,
    ReconcilerMachine,
    RecordsScanned,
    ResumeRelease,
    ScanRecords,
)
from loadmanager.core.protocol.state_machine import Signal, Write, WriteEnded

GONE = Registration(BrokerId("gone:1"), 3)
A_BEFORE = Registration(A.broker, 0)
FREED = owner_gone(assign(FREE, GONE, STAMP), STAMP)


@dataclass(slots=True)
class ReconcilingHarness(FakeMirror):
    """A reconciler with its records, and a driver that executes each action on request."""

    is_assigning: bool = False
    now_s: float = 100.0
    to_do: list[Action] = field(default_factory=list)
    machine: ReconcilerMachine = field(init=False)

    def __post_init__(self) -> None:
        self.machine = ReconcilerMachine(self, self.bundles_of, lambda _: self.is_assigning)

    def bundles_of(self, owners: Iterable[Registration | None]) -> list[str]:
        owned = [(bundle, each) for bundle, each in self.records.items() if each.state is OwnershipState.OWNED]
        return [bundle for bundle, each in owned if each.owner in owners]

    def step(self, event: Event) -> list[Action]:
        """Apply the event; returns the new actions, which also become pending."""
        told = self.machine.step(event, self.now_s)
        self.to_do += told
        return told

    def look(self) -> list[Action]:
        """Execute the due scan; return the actions that follow."""
        assert self.step(Signal.TIME) == [ScanRecords()]
        self.to_do.clear()
        return self.step(self.scanned())

    def scan_after_change(self) -> list[Action]:
        """Scan after a change of membership."""
        self.now_s += 1.0
        self.step(Signal.MEMBERSHIP)
        return self.look()

    def scanned(self) -> RecordsScanned:
        releasing = [bundle for bundle, each in self.records.items() if each.state is OwnershipState.RELEASING]
        gone = list(dict.fromkeys(each.owner for each in self.orphans() if each.owner))
        return RecordsScanned(releasing, gone)

    def advance(self, until_s: float) -> list[Action]:
        """Execute the scans due until then; return the first actions that follow."""
        told: list[Action] = []
        while not told and self.machine.wake_s is not None and self.machine.wake_s <= until_s:
            self.now_s = max(self.now_s, self.machine.wake_s)
            told = self.look()
        return told

    def do_write(self, write: Action) -> list[Action]:
        assert isinstance(write, Write)
        return self.step(WriteEnded(write, self.write(write)))

    def orphans(self) -> list[Ownership]:
        owned = [each for each in self.records.values() if each.state is OwnershipState.OWNED]
        return [each for each in owned if not self.is_registered(each.owner)]


@pytest.fixture
def leader() -> ReconcilingHarness:
    return ReconcilingHarness()


def owned(owner: Registration) -> Ownership:
    return assign(FREE, owner, STAMP)


def test_first_scan_is_due_at_once_and_the_next_after_a_pause(leader: ReconcilingHarness) -> None:
    wake_s = leader.machine.wake_s
    assert wake_s is not None
    assert wake_s <= leader.now_s
    assert leader.step(Signal.TIME) == [ScanRecords()]
    assert leader.machine.wake_s is None, "until it was done"
    assert leader.step(Signal.TIME) == []
    assert leader.step(RecordsScanned([], [])) == []
    assert leader.machine.wake_s == 130.0
    leader.now_s = 129.0
    assert leader.step(Signal.TIME) == []
    leader.now_s = 130.0
    assert leader.step(Signal.TIME) == [ScanRecords()]


def test_scan_is_due_at_the_end_of_a_hold_and_on_membership_changes(leader: ReconcilingHarness) -> None:
    leader.held = {A.broker: 7.0, B.broker: 90.0}
    leader.look()
    assert leader.machine.wake_s == pytest.approx(107.05)
    leader.now_s = 101.0
    assert leader.step(Signal.MEMBERSHIP) == []
    assert leader.machine.wake_s == 101.0


def test_change_during_a_scan_causes_another_scan(leader: ReconcilingHarness) -> None:
    leader.step(Signal.TIME)
    leader.step(Signal.MEMBERSHIP)
    assert leader.machine.wake_s is None
    leader.step(leader.scanned())
    assert leader.machine.wake_s == pytest.approx(100.05)


def test_membership_changes_in_quick_succession_share_scans(leader: ReconcilingHarness) -> None:
    leader.look()
    looks = 0
    for _ in range(100):
        leader.now_s += 0.001
        leader.step(Signal.MEMBERSHIP)
        if leader.machine.wake_s is not None and leader.machine.wake_s <= leader.now_s:
            looks += 1
            leader.look()
    assert looks == 2


def test_releases_are_resumed_for_live_and_lost_owners(leader: ReconcilingHarness) -> None:
    leader.records = {"t/ns/a": release(owned(A), B, STAMP), "t/ns/b": release(owned(GONE), B, STAMP)}
    assert leader.look() == [ResumeRelease("t/ns/a"), ResumeRelease("t/ns/b")]


def test_bundles_of_a_lost_broker_are_freed(leader: ReconcilingHarness) -> None:
    leader.records = {
        "t/1/a": owned(GONE),
        "t/1/b": owned(A),
        "t/2/a": owned(GONE),
        "t/2/b": owned(A_BEFORE),
        "t/2/c": owned(GONE),
        "t/2/d": release(owned(A), None, STAMP),
    }
    assert leader.look() == [ResumeRelease("t/2/d")]
    leader.records.update({"t/2/c": owned(B), "t/2/d": FREE})
    assert leader.advance(until_s=104.9) == []
    writes = leader.advance(until_s=105.0)
    assert [list(write.transitions) for write in writes if isinstance(write, Write)] == [["t/1/a"], ["t/2/a", "t/2/b"]]
    assert {write.reason for write in writes if isinstance(write, Write)} == {OwnershipReason.OWNER_GONE.value}
    assert leader.do_write(writes[0]) == [Freed("t/1/a", GONE, FREED)]
    assert leader.machine.wake_s is None, "the other one is not done"
    assert leader.do_write(writes[1]) == [Freed("t/2/a", GONE, FREED), Freed("t/2/b", A_BEFORE, FREED)]
    assert leader.machine.wake_s == 135.0
    assert leader.orphans() == []


def test_delay_starts_when_the_owner_is_found_lost(leader: ReconcilingHarness) -> None:
    leader.records = {"t/1/a": owned(GONE), "t/1/b": owned(B)}
    leader.look()
    leader.now_s = 102.0
    del leader.registrations[B.broker]
    leader.step(Signal.MEMBERSHIP)
    leader.look()
    (write,) = leader.advance(until_s=106.0)
    assert leader.now_s == 105.0
    assert leader.do_write(write) == [Freed("t/1/a", GONE, FREED)]
    (write,) = leader.advance(until_s=107.0)
    assert leader.do_write(write) == [Freed("t/1/b", B, FREED)]


def test_bundle_is_freed_after_a_maximum_delay_during_assignments(leader: ReconcilingHarness) -> None:
    leader.records["t/ns/b"] = owned(GONE)
    leader.is_assigning = True
    leader.look()
    assert leader.advance(until_s=129.9) == []
    (write,) = leader.advance(until_s=130.5)
    assert leader.do_write(write) == [Freed("t/ns/b", GONE, FREED)]


def test_bundles_are_freed_soon_after_assignments_end(leader: ReconcilingHarness) -> None:
    leader.records["t/ns/b"] = owned(GONE)
    leader.is_assigning = True
    leader.look()
    assert leader.advance(until_s=120.0) == []
    leader.is_assigning = False
    (write,) = leader.advance(until_s=120.5)
    assert leader.do_write(write) == [Freed("t/ns/b", GONE, FREED)]


@pytest.mark.parametrize("current", [owned(B), owned(A_BEFORE), release(owned(GONE), B, STAMP), FREE])
def test_bundle_moved_meanwhile_is_not_freed(leader: ReconcilingHarness, current: Ownership) -> None:
    leader.records["t/ns/b"] = owned(GONE)
    leader.look()
    (write,) = leader.advance(until_s=105.0)
    leader.records["t/ns/b"] = current
    (not_freed,) = leader.do_write(write)
    assert isinstance(not_freed, NotFreed)
    assert "t/ns/b has moved on" in str(not_freed.error)
    assert leader.records["t/ns/b"] == current


def test_bundle_of_a_returned_owner_is_not_freed(leader: ReconcilingHarness) -> None:
    leader.records["t/ns/b"] = owned(GONE)
    leader.look()
    (write,) = leader.advance(until_s=105.0)
    leader.registrations[GONE.broker] = GONE
    (not_freed,) = leader.do_write(write)
    assert isinstance(not_freed, NotFreed)


def test_write_with_unknown_outcome_is_repeated_later(leader: ReconcilingHarness) -> None:
    leader.records["t/ns/b"] = owned(GONE)
    leader.look()
    (write,) = leader.advance(until_s=105.0)
    assert isinstance(write, Write)
    assert leader.step(WriteEnded(write, {"t/ns/b": LOST})) == [NotFreed("t/ns/b", LOST)]
    assert leader.step(WriteEnded(write, {"t/ns/b": LOST})) == [], "once"
    assert leader.advance(until_s=139.0) == []
    (again,) = leader.advance(until_s=140.0)
    assert leader.do_write(again) == [Freed("t/ns/b", GONE, FREED)]


def test_bundles_of_a_held_off_broker_return_to_it(leader: ReconcilingHarness) -> None:
    leader.records["t/ns/b"] = owned(GONE)
    leader.held = {GONE.broker: 20.0}
    assert leader.look() == []
    leader.registrations[GONE.broker] = Registration(GONE.broker, 12)
    assert leader.scan_after_change() == [AssignBundles(["t/ns/b"])]
    assert leader.scan_after_change() == [AssignBundles(["t/ns/b"])], "assignment skips bundles with an owner"
    leader.held = {}
    assert leader.scan_after_change() == [], "the hold is over, and it is another registration"
    (write,) = leader.advance(until_s=leader.now_s + FREED_AFTER_S)
    assert leader.do_write(write) == [Freed("t/ns/b", GONE, FREED)]


def test_bundles_of_a_held_off_broker_are_freed_after_the_hold(leader: ReconcilingHarness) -> None:
    leader.records["t/ns/b"] = owned(GONE)
    leader.held = {GONE.broker: 20.0}
    assert leader.advance(until_s=119.0) == []
    leader.held = {}
    assert leader.advance(until_s=124.0) == []
    (write,) = leader.advance(until_s=126.0)
    assert leader.do_write(write) == [Freed("t/ns/b", GONE, FREED)]


def test_new_term_begins_with_a_scan(leader: ReconcilingHarness) -> None:
    leader.records["t/ns/b"] = release(owned(A), B, STAMP)
    leader.step(Signal.TIME)
    leader.machine.forget()
    assert leader.step(leader.scanned()) == [], "a scan of the former term"
    assert leader.look() == [ResumeRelease("t/ns/b")]


def test_pending_frees_of_a_former_term_are_dropped(leader: ReconcilingHarness) -> None:
    leader.records["t/ns/b"] = owned(GONE)
    leader.look()
    leader.machine.forget()
    leader.now_s = 105.0
    assert leader.look() == [], "found anew"
    (write,) = leader.advance(until_s=110.0)
    leader.machine.forget()
    assert leader.do_write(write) == []
    assert leader.look() == []


@given(st.data())
def test_records_converge_after_any_order_of_events(data: st.DataObject) -> None:
    """Covers actions in any order, brokers that join and leave, and failed writes."""
    leader = ReconcilingHarness()
    names = [f"t/{namespace}/{number}" for namespace in (1, 2) for number in range(3)]
    for _ in range(data.draw(st.integers(1, 40))):
        bundle = data.draw(st.sampled_from(names))
        match data.draw(st.sampled_from(["record", "record", "do", "do", "do", "brokers", "brokers", "time", "end"])):
            case "record":
                owner = data.draw(st.sampled_from([A, A_BACK, B, GONE]))
                leader.records[bundle] = data.draw(
                    st.sampled_from([FREE, FREED, owned(owner), release(owned(owner), B, STAMP)])
                )
            case "do" if leader.to_do:
                _do(leader, leader.to_do.pop(data.draw(st.integers(0, len(leader.to_do) - 1))), data)
            case "brokers":
                there = data.draw(st.sampled_from([(A, B), (B,), (A_BACK, B), (A_BACK,), ()]))
                leader.registrations = {each.broker: each for each in there}
                leader.held = data.draw(st.sampled_from([{}, {A.broker: 60.0}]))
                leader.is_assigning = data.draw(st.booleans())
                leader.step(Signal.MEMBERSHIP)
            case "end":
                leader.machine.forget()
                leader.to_do.clear()
            case _:
                leader.now_s += data.draw(st.sampled_from([0.0, 0.01, 10.0, 60.0]))
                leader.step(Signal.TIME)
        assert sum(isinstance(each, ScanRecords) for each in leader.to_do) <= 1
    leader.held, leader.registrations, leader.is_assigning = {}, {B.broker: B}, False
    leader.step(Signal.MEMBERSHIP)
    while leader.to_do or (leader.machine.wake_s or 0.0) <= leader.now_s + FREED_AFTER_S:
        if leader.to_do:
            _do(leader, leader.to_do.pop())
        else:
            leader.now_s = max(leader.now_s, leader.machine.wake_s or 0.0)
            leader.step(Signal.TIME)
    assert leader.orphans() == []
    assert leader.machine.wake_s is not None
    assert leader.machine.wake_s > leader.now_s + FREED_AFTER_S


def _do(leader: ReconcilingHarness, action: Action, data: st.DataObject | None = None) -> None:
    """Execute an action; with `data` writes may fail."""
    match action:
        case ScanRecords():
            leader.step(leader.scanned())
        case ResumeRelease(bundle):
            assert bundle in leader.records
        case Write():
            made = leader.write(action)
            fails = data is not None and data.draw(st.booleans())
            leader.step(WriteEnded(action, dict.fromkeys(made, LOST) if fails else made))
        case AssignBundles(bundles):
            assert bundles
            assert len(set(bundles)) == len(bundles)
            for bundle in bundles:
                if leader.records[bundle] in leader.orphans():
                    leader.records[bundle] = owned(next(iter(leader.registrations.values()), GONE))
