"""State machine for operator-approved plans: stored by hash, and executed exactly as shown.

The hash covers the preconditions of each step: the bundle's version, and the registrations of its source and
destination. So a plan runs as it was shown, or stops where the cluster has changed.

    a plan      event               if                                      then
    ------      -----               --                                      ----
    computed,   Execute             frozen and not even_if_frozen, or a
    executed,                       step does not fit                       PlanEnded                   ─▶ stopped
    stopped                         else                                    BeginStep for the first     ─▶ executing
    executing   a step is done                                              BeginStep for the next, if
                                                                            it fits
                a step is not                                               WithdrawMove for those under
                                                                            way, begin no further
                its last step ended                                         PlanEnded                   ─▶ executed
                                                                                                        or stopped
    a step
    ------
    planned     it may begin        it fits                                 BeginStep                   ─▶ in_progress
                                    it does not, or the plan has stopped                                ─▶ not_begun
    in_progress its turn comes      frozen, stopped, or other than planned  (its `check` refuses it)
                StepEnded: moved                                                                        ─▶ done
                StepEnded: kept     its turn had come                                                   ─▶ failed
                StepEnded: refused  its turn had come, and its bundle is
                                    at another version                                                  ─▶ unknown
                either              else                                                                ─▶ not_begun
                StepEnded: lost                                                                         ─▶ unknown

An unknown step may have begun; the leader completes it. Preconditions are checked three times: for all steps before the
first begins, for each step when it begins, and for each step before its release is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from loadmanager.core.domain.ownership import Ownership, Registration
from loadmanager.core.domain.plan import DependsOn, Verdict, hash_plan
from loadmanager.core.domain.reasons import Reason
from loadmanager.core.planning.certificate.plan_certificate import CertificateSummary
from loadmanager.core.planning.plan_effect import Effect
from loadmanager.core.protocol.move_machine import Expected, StaleStepError, WithdrawMove

PlanState = Literal["computed", "executing", "executed", "stopped"]
StepState = Literal["planned", "in_progress", "done", "failed", "not_begun", "unknown"]


@dataclass(slots=True, eq=False)
class TrackedStep:
    """A step with its preconditions, reasons, state and error."""

    bundle: str
    version: int
    source: Registration
    destination: Registration
    reason: Reason
    because: Sequence[Verdict] = ()
    state: StepState = "planned"
    error: str | None = None
    had_its_turn: bool = False

    @property
    def depends_on(self) -> DependsOn:
        """Return the preconditions of the step, as hashed in the plan."""
        return {
            "bundle": self.bundle,
            "version": self.version,
            "source": [self.source.broker, self.source.incarnation],
            "destination": [self.destination.broker, self.destination.incarnation],
        }


@dataclass(slots=True, eq=False)
class KeptPlan:
    """A stored plan. `stopped_by` is the reason why its execution stopped; `even_if_frozen` lets it run while frozen.

    `certificate` compares it with the best possible plan.
    """

    kind: str
    at_ms: int
    epoch: int
    steps: tuple[TrackedStep, ...]
    verdicts: Sequence[Verdict]
    effect: Effect
    certificate: CertificateSummary
    cluster: str = ""
    state: PlanState = "computed"
    stopped_by: str | None = None
    even_if_frozen: bool = False
    begun: int = 0
    in_progress: int = 0
    hash: str = field(init=False)

    def __post_init__(self) -> None:
        self.hash = hash_plan(self.cluster, self.kind, [step.depends_on for step in self.steps])

    @property
    def done(self) -> int:
        """Return the number of completed steps."""
        return sum(step.state == "done" for step in self.steps)


End = Literal["moved", "kept", "refused", "lost"]
"""End of a step: the owner released or kept the bundle, nothing was written, or the outcome is unknown."""

# Events


@dataclass(frozen=True, slots=True)
class Execute:
    plan: KeptPlan
    even_if_frozen: bool


@dataclass(frozen=True, slots=True)
class StepEnded:
    """A step ended; `why` is the error or refusal if it was not completed."""

    plan: KeptPlan
    step: TrackedStep
    end: End
    why: str = ""


Event = Execute | StepEnded

# Actions


@dataclass(frozen=True, slots=True)
class BeginStep:
    """Move the bundle; `check` raises `StaleStepError` if it is stale before its release. Answered by StepEnded."""

    plan: KeptPlan
    step: TrackedStep
    check: Callable[[Ownership], None]


@dataclass(frozen=True, slots=True)
class PlanEnded:
    plan: KeptPlan


Action = BeginStep | WithdrawMove | PlanEnded


@dataclass(slots=True)
class PlanMachine:
    """State machine for the plans of one leader. Callables return current values: the freeze reason (empty if not
    frozen); the difference between a step's preconditions and the cluster; a bundle's version; the limit of concurrent
    steps per plan; the limit of stored plans.
    """

    frozen: Callable[[], str]
    find_drift: Callable[[KeptPlan, TrackedStep], str | None]
    version_of: Callable[[str], int | None]
    at_a_time: Callable[[], int]
    most_kept: int
    _kept: dict[str, KeptPlan] = field(default_factory=dict)
    _actions: list[Action] = field(default_factory=list)

    @property
    def kept(self) -> list[KeptPlan]:
        """Return all stored plans, newest first."""
        return [*reversed(self._kept.values())]

    def find(self, plan_hash: str) -> KeptPlan | None:
        return self._kept.get(plan_hash)

    def keep(self, plan: KeptPlan) -> KeptPlan:
        """Store a plan in place of an equal one, and return it; an equal plan that is executing is returned instead."""
        known = self._kept.pop(plan.hash, plan)
        kept = self._kept[plan.hash] = known if known.state == "executing" else plan
        idle = [each.hash for each in self._kept.values() if each.state != "executing" and each is not kept]
        for oldest in idle[: max(0, len(self._kept) - self.most_kept)]:
            del self._kept[oldest]
        return kept

    def step(self, event: Event) -> list[Action]:
        """Process an event and return the actions that follow."""
        if isinstance(event, Execute):
            self._execute(event.plan, even_if_frozen=event.even_if_frozen)
        else:
            self._step_ended(event.plan, event.step, event.end, event.why)
            self._go_on(event.plan)
        actions, self._actions = self._actions, []
        return actions

    def _execute(self, plan: KeptPlan, *, even_if_frozen: bool) -> None:
        if plan.state == "executing":
            return
        plan.even_if_frozen = even_if_frozen
        obstacle = self._find_obstacle(plan)
        if obstacle is not None:
            plan.stopped_by = f"nothing was done: {obstacle}"
            self._end(plan)
            return
        plan.state, plan.stopped_by, plan.begun = "executing", None, 0
        for step in plan.steps:
            step.state, step.error, step.had_its_turn = "planned", None, False
        self._go_on(plan)

    def _go_on(self, plan: KeptPlan) -> None:
        """Begin as many steps as the limit allows, or end the plan."""
        while plan.stopped_by is None and plan.begun < len(plan.steps) and plan.in_progress < self.at_a_time():
            step = plan.steps[plan.begun]
            plan.begun += 1
            drift = self.find_drift(plan, step)
            if drift is None:
                step.state = "in_progress"
                plan.in_progress += 1
                self._actions.append(BeginStep(plan, step, self._check(plan, step)))
            else:
                self._stop(plan, step, "not_begun", drift)
        if not plan.in_progress:
            self._end(plan)

    def _end(self, plan: KeptPlan) -> None:
        plan.state = "executed" if plan.stopped_by is None else "stopped"
        self._actions.append(PlanEnded(plan))

    def _check(self, plan: KeptPlan, step: TrackedStep) -> Callable[[Ownership], None]:
        def check(current: Ownership) -> None:
            stop = plan.stopped_by or self._find_freeze(plan)
            if stop is not None:
                raise StaleStepError(stop)
            Expected(step.source, step.version).check(current)
            step.had_its_turn = True

        return check

    def _step_ended(self, plan: KeptPlan, step: TrackedStep, end: End, why: str) -> None:
        plan.in_progress -= 1
        if end == "moved":
            step.state = "done"
        elif end == "lost":
            self._stop(plan, step, "unknown", why)
        elif end == "kept":
            self._stop(plan, step, "failed" if step.had_its_turn else "not_begun", why)
        else:
            was_begun = step.had_its_turn and self.version_of(step.bundle) != step.version
            self._stop(plan, step, "unknown" if was_begun else "not_begun", why)

    def _stop(self, plan: KeptPlan, step: TrackedStep, state: StepState, why: str) -> None:
        step.state, step.error = state, why
        if plan.stopped_by is not None:
            return
        plan.stopped_by = f"stopped at {step.bundle}: {why}"
        for other in plan.steps:
            if other.state == "in_progress":
                self._actions.append(WithdrawMove(other.bundle))
            elif other.state == "planned":
                other.state = "not_begun"

    def _find_obstacle(self, plan: KeptPlan) -> str | None:
        frozen = self._find_freeze(plan)
        if frozen is not None:
            return frozen
        drifts = ((step, self.find_drift(plan, step)) for step in plan.steps)
        return next((f"{step.bundle}: {drift}" for step, drift in drifts if drift is not None), None)

    def _find_freeze(self, plan: KeptPlan) -> str | None:
        frozen = self.frozen()
        if not frozen or plan.even_if_frozen:
            return None
        return (
            f"the balancer is frozen ({frozen}), so that nothing moves: unfreeze it, or execute the plan with"
            " evenIfFrozen=true"
        )
