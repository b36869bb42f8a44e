from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_mirror import A_BACK, LOST, STAMP, A, B, FakeMirror

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import FREE, IllegalTransitionError, Registration, assign, release
from loadmanager.core.domain.plan import Assign, Plan, Verdict
from loadmanager.core.domain.reasons import OwnershipReason, PlacementReason
from loadmanager.core.protocol import assignment_machine
from loadmanager.core.protocol.assignment_machine import (
    Action,
    AnswerWaiters,
    AssignmentMachine,
    AssignmentMade,
    AssignmentsDecided,
    AssignmentWanted,
    BackgroundAssignmentsWanted,
    DecideAssignments,
    Event,
    HeldForBroker,
    NotDecided,
    Outcome,
)
from loadmanager.core.protocol.state_machine import Signal, Write, WriteEnded

BUNDLE = "t/ns/b"


@dataclass(slots=True)
class AssignmentsHarness(FakeMirror):
    """Assignments with their records, and a driver that executes each action on request."""

    to_do: list[Action] = field(default_factory=list)
    machine: AssignmentMachine = field(init=False)

    def __post_init__(self) -> None:
        self.machine = AssignmentMachine(self)

    def step(self, *events: Event) -> list[Action]:
        """Apply the events; returns the new actions, which also become pending."""
        added = [each for event in events for each in self.machine.step(event, 100.0)]
        self.to_do += added
        return added

    def take(self) -> Action:
        """The next action, if it is the only one."""
        assert len(self.to_do) == 1, self.to_do
        return self.to_do.pop()

    def decide(self, destinations: Mapping[str, Registration]) -> None:
        """Execute the pending decision with these destinations; other bundles get none."""
        decide = self.take()
        assert isinstance(decide, DecideAssignments), decide
        self.step(AssignmentsDecided(decide, plan_of(decide.bundles, destinations)))

    def do_write(self) -> None:
        """Execute the pending write."""
        write = self.take()
        assert isinstance(write, Write), write
        self.step(WriteEnded(write, self.write(write)))

    def answer(self, bundle: str = BUNDLE) -> Outcome:
        answer = self.take()
        assert isinstance(answer, AnswerWaiters), answer
        assert answer.bundle == bundle
        return answer.outcome

    def deregister(self, broker: Registration) -> None:
        del self.registrations[broker.broker]


def plan_of(bundles: list[str], destinations: Mapping[str, Registration]) -> Plan:
    verdicts = [
        Verdict(bundle, PlacementReason.ROUND_ROBIN, acted=True)
        if bundle in destinations
        else Verdict(bundle, PlacementReason.NO_BROKER_AVAILABLE, acted=False)
        for bundle in bundles
    ]
    steps = [
        Assign(bundle, destinations[bundle], PlacementReason.ROUND_ROBIN)
        for bundle in bundles
        if bundle in destinations
    ]
    return Plan(1, 0.0, tuple(steps), tuple(verdicts))


@pytest.fixture
def leader() -> AssignmentsHarness:
    return AssignmentsHarness()


def request_bundle(leader: AssignmentsHarness) -> None:
    """Request a bundle and start its decision."""
    leader.step(AssignmentWanted(BUNDLE), Signal.TIME)


def test_requested_bundle_is_decided_written_and_answered(leader: AssignmentsHarness) -> None:
    assert (leader.machine.wake_s, leader.machine.is_assigning(100.0)) == (None, False)
    assert leader.step(AssignmentWanted(BUNDLE)) == []
    assert (leader.machine.wake_s, leader.machine.is_assigning(100.0)) == (100.0, True), "at once"
    leader.step(Signal.TIME)
    assert (leader.machine.wake_s, leader.machine.is_assigning(100.0)) == (None, True), "until the answer comes"
    leader.decide({BUNDLE: A})
    leader.do_write()
    assert not leader.machine.is_assigning(100.0)
    outcome = leader.answer()
    assert isinstance(outcome, AssignmentMade)
    assert (outcome.stored, outcome.stored.owner) == (leader.records[BUNDLE], A)
    assert (outcome.step.reason, outcome.because.verdict) == (PlacementReason.ROUND_ROBIN, PlacementReason.ROUND_ROBIN)
    assert leader.machine.wake_s is None
    leader.step(AssignmentWanted(BUNDLE))
    assert leader.machine.wake_s is not None, "a later request starts another batch"


def test_concurrent_requests_are_decided_and_written_together(leader: AssignmentsHarness) -> None:
    leader.step(
        AssignmentWanted("t/1/a"),
        AssignmentWanted("t/1/b", non_persistent=True),
        AssignmentWanted("t/2/a"),
        AssignmentWanted("t/1/a", non_persistent=True),
    )
    leader.step(AssignmentWanted("t/1/b"))
    decide = leader.step(Signal.TIME)[0]
    assert isinstance(decide, DecideAssignments)
    assert decide.bundles == ["t/1/a", "t/1/b", "t/2/a"]
    assert decide.non_persistent == {"t/1/a", "t/1/b"}, "one non-persistent request is enough"
    leader.decide({"t/1/a": A, "t/1/b": B, "t/2/a": A})
    writes = [each for each in leader.to_do if isinstance(each, Write)]
    assert [(write.namespace, list(write.transitions)) for write in writes] == [
        ("t/1", ["t/1/a", "t/1/b"]),
        ("t/2", ["t/2/a"]),
    ]
    assert {write.reason for write in writes} == {OwnershipReason.LOOKUP.value}


def test_requests_for_a_bundle_in_the_running_batch_share_its_answer(leader: AssignmentsHarness) -> None:
    request_bundle(leader)
    assert (
        leader.step(
            AssignmentWanted(BUNDLE), BackgroundAssignmentsWanted([BUNDLE]), AssignmentWanted("t/ns/c"), Signal.TIME
        )
        == []
    )
    assert leader.machine.wake_s is None
    leader.decide({BUNDLE: A})
    assert [type(each) for each in leader.to_do] == [Write]
    assert leader.step(Signal.TIME) == [], "not before it is written"
    leader.do_write()
    assert isinstance(leader.answer(), AssignmentMade)
    assert leader.machine.wake_s is not None
    (decide,) = leader.step(Signal.TIME)
    assert isinstance(decide, DecideAssignments)
    assert decide.bundles == ["t/ns/c"]


def test_lookups_come_first(leader: AssignmentsHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment_machine, "_BATCH", 3)
    leader.step(
        BackgroundAssignmentsWanted(["t/ns/1", "t/ns/2", "t/ns/3"]),
        AssignmentWanted("t/ns/3"),
        AssignmentWanted("t/ns/4"),
        BackgroundAssignmentsWanted(["t/ns/4"]),
    )
    batches = []
    while leader.machine.wake_s is not None:
        (decide,) = leader.step(Signal.TIME)
        assert isinstance(decide, DecideAssignments)
        batches.append(decide.bundles)
        leader.decide({})
        leader.to_do.clear()
    assert batches == [["t/ns/3", "t/ns/4", "t/ns/1"], ["t/ns/2"]]


def test_batches_are_fair_to_namespaces(leader: AssignmentsHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment_machine, "_BATCH", 3)
    leader.step(
        *(AssignmentWanted(f"t/{namespace}/{bundle}") for bundle in "abcd" for namespace in (1, 2)), Signal.TIME
    )
    batches = []
    for _ in range(4):
        decide = leader.to_do[0]
        assert isinstance(decide, DecideAssignments)
        batches.append(decide.bundles)
        leader.decide({})
        leader.to_do.clear()
        leader.step(*[AssignmentWanted(each) for each in decide.bundles if each.startswith("t/1")], Signal.TIME)
    assert batches == [
        ["t/1/a", "t/1/b", "t/1/c"],
        ["t/2/a", "t/2/b", "t/2/c"],
        ["t/1/d", "t/1/a", "t/1/b"],
        ["t/2/d", "t/1/c", "t/1/d"],
    ]


def test_request_without_an_eligible_broker_gets_the_verdict(leader: AssignmentsHarness) -> None:
    request_bundle(leader)
    leader.decide({})
    outcome = leader.answer()
    assert isinstance(outcome, Verdict)
    assert outcome.verdict is PlacementReason.NO_BROKER_AVAILABLE


@pytest.mark.parametrize("state", ["owned", "owned by one who has gone", "released"])
def test_bundle_owned_meanwhile_is_not_assigned(leader: AssignmentsHarness, state: str) -> None:
    request_bundle(leader)
    owned = leader.records[BUNDLE] = assign(FREE, B, STAMP)
    if state == "released":
        leader.records[BUNDLE] = release(owned, None, STAMP)
    if state == "owned by one who has gone":
        leader.deregister(B)
    leader.decide({})
    outcome = leader.answer()
    assert outcome == owned if state == "owned" else isinstance(outcome, Verdict)


def test_failed_decision_is_reported_to_its_batch_and_the_next_one_runs(leader: AssignmentsHarness) -> None:
    leader.step(AssignmentWanted("t/ns/1"), AssignmentWanted("t/ns/2"), Signal.TIME, AssignmentWanted("t/ns/3"))
    decide = leader.take()
    assert isinstance(decide, DecideAssignments)
    assert leader.step(NotDecided(decide, LOST)) == [AnswerWaiters("t/ns/1", LOST), AnswerWaiters("t/ns/2", LOST)]
    assert leader.step(NotDecided(decide, LOST)) == [], "once"
    leader.to_do.clear()
    leader.step(Signal.TIME)
    leader.decide({"t/ns/3": A})


def test_broker_that_left_before_the_write_gets_no_bundle(leader: AssignmentsHarness) -> None:
    request_bundle(leader)
    leader.decide({BUNDLE: A})
    leader.deregister(A)
    leader.do_write()
    assert "left while t/ns/b was being placed" in str(leader.answer())
    assert BUNDLE not in leader.records


def test_only_a_bundle_of_a_lost_owner_changes_owner_in_one_write(leader: AssignmentsHarness) -> None:
    for bundle, owner in (("t/ns/1", A), ("t/ns/2", B)):
        leader.records[bundle] = assign(FREE, owner, STAMP)
    leader.deregister(A)
    leader.step(AssignmentWanted("t/ns/1"), AssignmentWanted("t/ns/2"), Signal.TIME)
    leader.decide({"t/ns/1": B, "t/ns/2": B})
    leader.do_write()
    given, refused = (each.outcome for each in leader.to_do if isinstance(each, AnswerWaiters))
    assert isinstance(given, AssignmentMade)
    assert (given.stored.owner, given.stored.version, given.former) == (B, 2, A)
    assert leader.machine.is_assigning(100.9), "clients are coming back for more"
    assert not leader.machine.is_assigning(101.0)
    assert isinstance(refused, IllegalTransitionError)
    assert leader.records["t/ns/2"].version == 1


def test_failed_write_is_reported_once(leader: AssignmentsHarness) -> None:
    request_bundle(leader)
    leader.decide({BUNDLE: A})
    write = leader.take()
    assert isinstance(write, Write)
    assert leader.step(WriteEnded(write, {BUNDLE: LOST})) == [AnswerWaiters(BUNDLE, LOST)]
    assert leader.step(WriteEnded(write, {BUNDLE: LOST})) == [], "once"


def test_held_bundles_return_to_their_broker_first(leader: AssignmentsHarness) -> None:
    away = Registration(BrokerId("c:1"), 3)
    for bundle, owner in (("t/ns/1", A), ("t/ns/2", away), ("t/ns/3", B)):
        leader.records[bundle] = assign(FREE, owner, STAMP)
    leader.registrations = {A.broker: A_BACK, B.broker: B}
    leader.records["t/ns/5"] = assign(FREE, Registration(BrokerId("d:1"), 4), STAMP)
    leader.held = {A.broker: 60.0, away.broker: 30.0, B.broker: 90.0}
    answer, write = leader.step(*(AssignmentWanted(f"t/ns/{number}") for number in (1, 2, 3, 4, 5)), Signal.TIME)
    assert answer == AnswerWaiters("t/ns/2", HeldForBroker(away.broker, 30.0))
    assert isinstance(write, Write)
    assert leader.step(Signal.TIME) == [], "a held bundle does not return twice"
    leader.to_do = [write]
    leader.do_write()
    outcome = leader.answer("t/ns/1")
    assert isinstance(outcome, AssignmentMade)
    assert (outcome.stored.owner, outcome.stored.version) == (A_BACK, 2)
    assert outcome.step == Assign("t/ns/1", A_BACK, PlacementReason.HELD_FOR_OWNER)
    assert (outcome.because.subject, outcome.because.acted) == ("t/ns/1", True)
    assert outcome.because.sentence() == "Placed on a:1 because it was held for that broker during its absence"
    leader.step(Signal.TIME)
    decide = leader.to_do[0]
    assert isinstance(decide, DecideAssignments)
    assert decide.bundles == ["t/ns/3", "t/ns/4", "t/ns/5"], "one that serves, or is not held off, is not waited for"


def test_batch_of_held_bundles_blocks_no_other(leader: AssignmentsHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment_machine, "_BATCH", 1)
    leader.records[BUNDLE] = assign(FREE, A, STAMP)
    leader.deregister(A)
    leader.held = {A.broker: 60.0}
    answer, decide = leader.step(AssignmentWanted(BUNDLE), AssignmentWanted("t/ns/c"), Signal.TIME)
    assert answer == AnswerWaiters(BUNDLE, HeldForBroker(A.broker, 60.0))
    assert isinstance(decide, DecideAssignments)


def test_late_decision_of_a_former_term_is_ignored(leader: AssignmentsHarness) -> None:
    leader.step(
        AssignmentWanted(BUNDLE), Signal.TIME, AssignmentWanted("t/ns/c"), BackgroundAssignmentsWanted(["t/ns/d"])
    )
    former = leader.take()
    assert isinstance(former, DecideAssignments)
    leader.machine.forget()
    assert leader.machine.wake_s is None
    request_bundle(leader)
    assert leader.step(AssignmentsDecided(former, plan_of(former.bundles, {BUNDLE: B})), NotDecided(former, LOST)) == []
    leader.decide({BUNDLE: A})
    leader.do_write()
    outcome = leader.answer()
    assert isinstance(outcome, AssignmentMade)
    assert outcome.stored.owner == A


@given(st.data())
def test_every_request_is_answered_once_in_any_order_of_events(data: st.DataObject) -> None:
    """Covers actions in any order, brokers that join and leave, and failed decisions and writes."""
    leader, waited_for = AssignmentsHarness(), set[str]()
    names = [f"t/{namespace}/{number}" for namespace in (1, 2) for number in range(3)]
    for _ in range(data.draw(st.integers(1, 40))):
        bundle = data.draw(st.sampled_from(names))
        match data.draw(st.sampled_from(["ask", "place", "do", "do", "do", "brokers", "brokers", "time", "end"])):
            case "ask":
                waited_for.add(bundle)
                leader.step(AssignmentWanted(bundle, non_persistent=data.draw(st.booleans())))
            case "place":
                waited_for.add(bundle)
                leader.step(BackgroundAssignmentsWanted([bundle]))
            case "do" if leader.to_do:
                _do_any_action(leader, data)
            case "brokers":
                registered = data.draw(st.sampled_from([(A, B), (B,), (A_BACK, B), (A_BACK,), ()]))
                leader.registrations = {each.broker: each for each in registered}
                leader.held = data.draw(st.sampled_from([{}, {A.broker: 60.0}]))
            case "end":
                leader.machine.forget()
                waited_for.clear()
                leader.to_do.clear()
            case _:
                leader.step(Signal.TIME)
        _take_answers(leader, waited_for)
        assert sum(isinstance(each, DecideAssignments) for each in leader.to_do) <= 1, "one batch at a time"
    while leader.to_do or leader.machine.wake_s is not None:
        if leader.to_do:
            _do_any_action(leader, data)
        else:
            leader.step(Signal.TIME)
        _take_answers(leader, waited_for)
    assert waited_for == set()


def _take_answers(leader: AssignmentsHarness, waited_for: set[str]) -> None:
    """Check that each answer is for a waiting request, and remove both."""
    for answer in [each for each in leader.to_do if isinstance(each, AnswerWaiters)]:
        waited_for.remove(answer.bundle)
        leader.to_do.remove(answer)


def _do_any_action(leader: AssignmentsHarness, data: st.DataObject) -> None:
    """Execute one drawn action; it may fail."""
    action = leader.to_do.pop(data.draw(st.integers(0, len(leader.to_do) - 1)))
    fails = data.draw(st.sampled_from([False, False, True]))
    if isinstance(action, DecideAssignments):
        bundles = action.bundles
        assert len(set(bundles)) == len(bundles)
        destinations = {each: data.draw(st.sampled_from([A, A_BACK, B, None])) for each in bundles}
        plan = plan_of(bundles, {bundle: to for bundle, to in destinations.items() if to is not None})
        leader.step(NotDecided(action, LOST) if fails else AssignmentsDecided(action, plan))
    elif isinstance(action, Write):
        made = leader.write(action)
        leader.step(WriteEnded(action, dict.fromkeys(made, LOST) if fails else made))
