"""Plans with their inputs, and a state machine that applies events in any order and checks invariants."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Ownership, OwnershipState, Registration
from loadmanager.core.domain.plan import Verdict
from loadmanager.core.domain.reasons import CertificateReason, OwnershipReason
from loadmanager.core.planning.certificate.plan_certificate import CertificateFigures, CertificateSummary
from loadmanager.core.planning.plan_effect import Effect
from loadmanager.core.protocol.move_machine import StaleStepError, WithdrawMove
from loadmanager.core.protocol.plan_machine import (
    Action,
    BeginStep,
    End,
    Event,
    Execute,
    KeptPlan,
    PlanEnded,
    PlanMachine,
    StepEnded,
    TrackedStep,
)

A, B = (Registration(BrokerId(f"{letter}:1"), number) for number, letter in enumerate("ab", 1))
CERTIFICATE = CertificateSummary(
    CertificateFigures(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0, 0),
    "",
    Verdict("cluster", CertificateReason.NOTHING_MOVES, acted=False),
)
OWNED = Ownership(OwnershipState.OWNED, A, None, 1)
FROZEN = (
    "the balancer is frozen (night), so that nothing moves: unfreeze it, or execute the plan with evenIfFrozen=true"
)


def step(number: int, version: int = 1, destination: Registration = B) -> TrackedStep:
    return TrackedStep(f"t/{number}", version, A, destination, OwnershipReason.PLAN_EXECUTED)


def plan(steps: int = 3, kind: str = "moves", version: int = 1) -> KeptPlan:
    effect = Effect(1.0, 1.0, 0.0, 0.0, steps, 0)
    return KeptPlan(kind, 1_000, 7, tuple(step(number, version) for number in range(steps)), (), effect, CERTIFICATE)


@dataclass(slots=True)
class PlansHarness:
    """Plans with their inputs, and a driver that acts only on request."""

    at_a_time: int = 2
    frozen: str = ""
    drifts: dict[str, str] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    compared: set[KeptPlan] = field(default_factory=set)
    plans: PlanMachine = field(init=False)

    def __post_init__(self) -> None:
        self.plans = PlanMachine(
            lambda: self.frozen,
            self._find_drift,
            lambda bundle: self.versions.get(bundle, 1),
            lambda: self.at_a_time,
            20,
        )

    def _find_drift(self, executed: KeptPlan, step: TrackedStep) -> str | None:
        self.compared.add(executed)
        return self.drifts.get(step.bundle)

    def step(self, event: Event) -> list[Action]:
        return self.plans.step(event)

    def execute(self, executed: KeptPlan, *, even_if_frozen: bool = False) -> list[BeginStep]:
        """Execute the plan; return the steps that begin first."""
        begun = self.step(Execute(executed, even_if_frozen))
        assert all(isinstance(told, BeginStep) for told in begun), begun
        return [told for told in begun if isinstance(told, BeginStep)]

    def end(self, begun: BeginStep, end: End = "moved", why: str = "") -> list[Action]:
        """Check that the step may begin, and end it with this outcome."""
        begun.check(OWNED)
        return self.step(StepEnded(begun.plan, begun.step, end, why))

    def refuse(self, begun: BeginStep, current: Ownership = OWNED) -> list[Action]:
        """Check that the step is stale, and refuse it."""
        with pytest.raises(StaleStepError) as refused:
            begun.check(current)
        return self.step(StepEnded(begun.plan, begun.step, "refused", str(refused.value)))


def states(executed: KeptPlan) -> list[str]:
    return [each.state for each in executed.steps]


class AnyOrder(RuleBasedStateMachine):
    """A plan that is executed again and again while steps end as they please, and the cluster changes."""

    @initialize(steps=st.integers(0, 6), at_a_time=st.integers(1, 3))
    def begin(self, steps: int, at_a_time: int) -> None:
        self.leader = PlansHarness(at_a_time=at_a_time)
        self.plan = self.leader.plans.keep(plan(steps))
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
                case WithdrawMove(bundle):
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
        assert count("in_progress") == len(self.begun) == self.plan.in_progress <= self.leader.at_a_time
        assert (self.plan.state == "executing") == bool(self.begun)
        assert self.plan.state != "executed" or count("done") == len(self.plan.steps)
        assert self.plan.state != "stopped" or self.plan.stopped_by is not None
        assert all((each.error is None) or each.state in {"failed", "not_begun", "unknown"} for each in self.plan.steps)
