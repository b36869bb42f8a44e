"""Plans: each line of the table, and what holds whatever happens in whatever order."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

import orjson
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from loadmanager.core.effect import Effect
from loadmanager.core.leading.moves import StaleStepError
from loadmanager.core.leading.plans import (
    BeginStep,
    End,
    Event,
    Execute,
    Instruction,
    KeptPlan,
    PlanEnded,
    Plans,
    Step,
    StepEnded,
    WithdrawStep,
)
from loadmanager.core.names import BrokerId
from loadmanager.core.ownership import Ownership, OwnershipState, Registration
from loadmanager.core.reasons import OwnershipReason

A, B = (Registration(BrokerId(f"{letter}:1"), number) for number, letter in enumerate("ab", 1))
OWNED = Ownership(OwnershipState.OWNED, A, None, 1)
FROZEN = (
    "the balancer is frozen (night), so that nothing moves: unfreeze it, or execute the plan with evenIfFrozen=true"
)


def step(number: int, version: int = 1, destination: Registration = B) -> Step:
    return Step(f"t/{number}", version, A, destination, OwnershipReason.PLAN_EXECUTED)


def plan(steps: int = 3, kind: str = "moves", version: int = 1) -> KeptPlan:
    effect = Effect(1.0, 1.0, 1.0, 0.0, 0.0, steps, 0)
    return KeptPlan(kind, 1_000, 7, tuple(step(number, version) for number in range(steps)), (), effect)


@dataclass(slots=True)
class Leader:
    """Plans with what they are compared with, and a driver that does nothing until it is told to."""

    at_a_time: int = 2
    most_kept: int = 20
    frozen: str = ""
    drifts: dict[str, str] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    compared: set[KeptPlan] = field(default_factory=set)
    plans: Plans = field(init=False)

    def __post_init__(self) -> None:
        self.plans = Plans(
            lambda: self.frozen,
            self._find_drift,
            lambda bundle: self.versions.get(bundle, 1),
            lambda: self.at_a_time,
            lambda: self.most_kept,
        )

    def _find_drift(self, executed: KeptPlan, step: Step) -> str | None:
        self.compared.add(executed)
        return self.drifts.get(step.bundle)

    def step(self, event: Event) -> list[Instruction]:
        return self.plans.step(event)

    def execute(self, executed: KeptPlan, *, even_if_frozen: bool = False) -> list[BeginStep]:
        """The steps that begin first."""
        begun = self.step(Execute(executed, even_if_frozen))
        assert all(isinstance(told, BeginStep) for told in begun), begun
        return [told for told in begun if isinstance(told, BeginStep)]

    def end(self, begun: BeginStep, end: End = "moved", why: str = "") -> list[Instruction]:
        """The step's turn comes, and it ends so."""
        begun.check(OWNED)
        return self.step(StepEnded(begun.plan, begun.step, end, why))

    def refuse(self, begun: BeginStep, current: Ownership = OWNED) -> list[Instruction]:
        """The step's turn comes, and it is refused."""
        with pytest.raises(StaleStepError) as refused:
            begun.check(current)
        return self.step(StepEnded(begun.plan, begun.step, "refused", str(refused.value)))


@pytest.fixture
def leader() -> Leader:
    return Leader()


def states(executed: KeptPlan) -> list[str]:
    return [each.state for each in executed.steps]


def test_a_plan_is_executed_in_its_order_and_so_many_steps_at_a_time(leader: Leader) -> None:
    kept = plan()
    first, second = leader.execute(kept)
    assert ([first.step, second.step], states(kept)) == (list(kept.steps[:2]), ["under_way", "under_way", "planned"])
    assert leader.step(Execute(kept, even_if_frozen=False)) == [], "once at a time"
    (third,) = leader.end(first)
    assert isinstance(third, BeginStep)
    assert leader.end(second) == []
    assert (kept.state, kept.done) == ("executing", 2)
    assert leader.end(third) == [PlanEnded(kept)]
    assert (kept.state, kept.done, kept.stopped_by) == ("executed", 3, None)
    assert leader.compared == {kept}


def test_of_a_plan_that_is_kept_nothing_is_done_yet() -> None:
    kept = plan()
    assert (kept.state, kept.stopped_by, kept.even_if_frozen) == ("computed", None, False)
    assert (kept.begun, kept.under_way, kept.done) == (0, 0, 0)
    assert (states(kept), [each.had_its_turn for each in kept.steps]) == (["planned"] * 3, [False] * 3)


def test_a_plan_of_nothing_has_ended_at_once(leader: Leader) -> None:
    kept = plan(0)
    assert leader.step(Execute(kept, even_if_frozen=False)) == [PlanEnded(kept)]
    assert kept.state == "executed"


@pytest.mark.parametrize("is_frozen", [True, False])
def test_a_plan_with_an_obstacle_is_not_begun_until_it_is_gone(leader: Leader, is_frozen: bool) -> None:  # noqa: FBT001 - a case
    kept = plan()
    leader.frozen = "night" if is_frozen else ""
    leader.drifts = {} if is_frozen else {"t/2": "its owner is gone"}
    assert leader.step(Execute(kept, even_if_frozen=False)) == [PlanEnded(kept)]
    assert kept.state == "stopped"
    assert kept.stopped_by == f"nothing was done: {FROZEN if is_frozen else 't/2: its owner is gone'}"
    assert states(kept) == ["planned"] * 3
    leader.frozen, leader.drifts = "", {}
    assert len(leader.execute(kept)) == 2
    assert kept.stopped_by is None


def test_a_step_that_no_longer_fits_when_it_may_begin_stops_the_plan(leader: Leader) -> None:
    kept = plan(4)
    first, second = leader.execute(kept)
    leader.drifts = {"t/2": "its destination is gone"}
    assert leader.end(first) == [WithdrawStep("t/1")]
    assert (kept.state, states(kept)) == ("executing", ["done", "under_way", "not_begun", "not_begun"])
    assert (kept.steps[2].error, kept.steps[3].error) == ("its destination is gone", None)
    assert leader.refuse(second) == [PlanEnded(kept)]
    assert (kept.state, kept.stopped_by) == ("stopped", "stopped at t/2: its destination is gone")


@pytest.mark.parametrize(
    ("end", "had_its_turn", "version", "state"),
    [
        ("kept", True, 3, "failed"),
        ("kept", False, 1, "not_begun"),
        ("lost", True, 1, "unknown"),
        ("lost", False, 1, "unknown"),
        ("refused", True, 1, "not_begun"),
        ("refused", True, 2, "unknown"),
        ("refused", False, 2, "not_begun"),
    ],
)
def test_a_step_that_was_not_made_is_said_to_be_what_it_is_and_stops_the_plan(
    leader: Leader, end: End, *, had_its_turn: bool, version: int, state: str
) -> None:
    leader.at_a_time = 1
    kept = plan()
    (begun,) = leader.execute(kept)
    leader.versions = {"t/0": version}
    if had_its_turn:
        begun.check(OWNED)
    assert leader.step(StepEnded(kept, begun.step, end, "so it was")) == [PlanEnded(kept)]
    assert (kept.state, kept.stopped_by) == ("stopped", "stopped at t/0: so it was")
    assert (states(kept), kept.steps[0].error) == ([state, "not_begun", "not_begun"], "so it was")


def test_what_waits_for_its_turn_is_withdrawn_and_refused_once_a_plan_has_stopped(leader: Leader) -> None:
    kept = plan()
    first, second = leader.execute(kept)
    assert leader.end(first, "kept", "503") == [WithdrawStep("t/1")]
    assert leader.refuse(second) == [PlanEnded(kept)]
    assert kept.steps[1].error == kept.stopped_by == "stopped at t/0: 503"


def test_a_step_is_refused_in_its_turn_when_its_bundle_is_another_by_then(leader: Leader) -> None:
    leader.at_a_time = 1
    kept = plan()
    (begun,) = leader.execute(kept)
    assert leader.refuse(begun, replace(OWNED, version=3)) == [PlanEnded(kept)]
    assert (states(kept)[0], kept.steps[0].error) == ("not_begun", "it is at version 3, and not at 1")


def test_a_freeze_refuses_what_waits_for_its_turn_unless_somebody_insisted(leader: Leader) -> None:
    kept, insisted = plan(1), plan(1, "drain")
    (begun,) = leader.execute(kept)
    leader.frozen = "night"
    assert leader.refuse(begun) == [PlanEnded(kept)]
    assert kept.steps[0].error == FROZEN
    (begun,) = leader.execute(insisted, even_if_frozen=True)
    assert leader.end(begun) == [PlanEnded(insisted)]
    assert leader.step(Execute(kept, even_if_frozen=False)) == [PlanEnded(kept)], "who insisted did so for one plan"


def test_what_was_said_of_an_execution_is_forgotten_with_the_next_one(leader: Leader) -> None:
    leader.at_a_time = 1
    kept = plan(2)
    (begun,) = leader.execute(kept)
    leader.end(begun, "kept", "cancelled")
    (begun,) = leader.execute(kept)
    assert (states(kept), kept.steps[0].error, kept.stopped_by) == (["under_way", "planned"], None, None)
    assert leader.step(StepEnded(kept, begun.step, "kept", "cancelled")) == [PlanEnded(kept)]
    assert states(kept) == ["not_begun", "not_begun"], "its turn has not come this time"


def test_the_last_plans_are_kept_and_those_that_are_being_executed(leader: Leader) -> None:
    leader.most_kept = 2
    plans = [plan(steps) for steps in (1, 2, 3, 4)]
    for kept in plans[:3]:
        assert leader.plans.keep(kept) is kept
    assert [leader.plans.find(kept.hash) for kept in plans[:3]] == [None, plans[1], plans[2]]
    leader.execute(plans[1])
    leader.plans.keep(plans[3])
    assert [leader.plans.find(kept.hash) for kept in plans] == [None, plans[1], None, plans[3]]


def test_an_equal_plan_takes_the_place_of_an_older_one_unless_that_is_being_executed(leader: Leader) -> None:
    leader.most_kept = 2
    first, again, other = plan(1), plan(1), plan(2)
    leader.plans.keep(first)
    leader.plans.keep(other)
    assert leader.plans.keep(again) is again
    leader.plans.keep(plan(3))
    assert leader.plans.find(other.hash) is None, "the oldest by now"
    leader.execute(again)
    assert leader.plans.keep(plan(1)) is again


def test_a_hash_is_of_all_that_a_step_depends_on_and_the_same_as_ever() -> None:
    steps = [{"bundle": f"t/{n}", "version": 1, "source": ["a:1", 1], "destination": ["b:1", 2]} for n in range(3)]
    content = orjson.dumps({"kind": "moves", "steps": steps}, option=orjson.OPT_SORT_KEYS)
    assert plan().hash == hashlib.sha256(content).hexdigest()
    other_life = replace(plan(1), steps=(step(0, destination=replace(B, incarnation=9)),))
    assert len({plan(1).hash, plan(2).hash, plan(1, "drain").hash, plan(1, version=2).hash, other_life.hash}) == 5


class AnyOrder(RuleBasedStateMachine):
    """A plan that is executed again and again while steps end as they please, and the cluster changes."""

    @initialize(steps=st.integers(0, 6), at_a_time=st.integers(1, 3))
    def begin(self, steps: int, at_a_time: int) -> None:
        self.leader = Leader(at_a_time=at_a_time)
        self.plan = plan(steps)
        self.begun: list[BeginStep] = []

    def step(self, event: Event) -> None:
        was_executing = self.plan.state == "executing"
        for told in self.leader.step(event):
            match told:
                case BeginStep():
                    assert self.plan.stopped_by is None
                    assert not self.leader.drifts.get(told.step.bundle)
                    assert told.step not in [each.step for each in self.begun], "once"
                    self.begun.append(told)
                case WithdrawStep(bundle):
                    assert self.plan.stopped_by is not None
                    assert bundle in [each.step.bundle for each in self.begun]
                case PlanEnded():
                    assert not self.begun, "not before its last step"
                    assert was_executing or isinstance(event, Execute)

    @rule(even_if_frozen=st.booleans())
    def execute(self, *, even_if_frozen: bool) -> None:
        self.step(Execute(self.plan, even_if_frozen))

    @precondition(lambda self: self.begun)
    @rule(
        which=st.integers(0, 9),
        end=st.sampled_from(["moved", "moved", "moved", "kept", "refused", "lost"]),
        version=st.integers(1, 2),
    )
    def end(self, which: int, end: End, version: int) -> None:
        begun = self.begun.pop(which % len(self.begun))
        is_frozen = self.leader.frozen and not self.plan.even_if_frozen
        try:
            begun.check(OWNED)
        except StaleStepError as error:
            assert self.plan.stopped_by is not None or is_frozen
            self.step(StepEnded(self.plan, begun.step, "refused", str(error)))
        else:
            assert self.plan.stopped_by is None
            assert not is_frozen
            self.leader.versions[begun.step.bundle] = version
            self.step(StepEnded(self.plan, begun.step, end, "" if end == "moved" else "so it was"))

    @rule(reason=st.sampled_from(["", "night"]))
    def freeze(self, reason: str) -> None:
        self.leader.frozen = reason

    @rule(drifts=st.dictionaries(st.sampled_from(["t/0", "t/3"]), st.just("it has moved on"), max_size=1))
    def drift(self, drifts: dict[str, str]) -> None:
        self.leader.drifts = drifts

    @invariant()
    def it_is_what_it_says(self) -> None:
        count = states(self.plan).count
        assert count("under_way") == len(self.begun) == self.plan.under_way <= self.leader.at_a_time
        assert (self.plan.state == "executing") == bool(self.begun)
        assert self.plan.state != "executed" or count("done") == len(self.plan.steps)
        assert self.plan.state != "stopped" or self.plan.stopped_by is not None
        assert all((each.error is None) or each.state in {"failed", "not_begun", "unknown"} for each in self.plan.steps)


TestAnyOrder = AnyOrder.TestCase
