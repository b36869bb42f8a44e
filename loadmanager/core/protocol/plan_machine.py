"""Plans that an operator looks at before they are executed: kept by their hash, and executed as they were shown.

A passive machine: `step(event)` takes what has happened and gives what is to be done; of time it knows nothing. The
hash is over everything that a step depends on: the bundle at its version, the life of the broker that owns it, and that
of the broker that gets it. So a plan is executed as it was shown, or stops where the cluster is another by now.

    a plan      event               if                                      then
    ------      -----               --                                      ----
    computed,   Execute             frozen, and nobody insists, or a step
    executed,                       does not fit                            PlanEnded                   ─▶ stopped
    stopped                         else                                    BeginStep for the first     ─▶ executing
    executing   a step is done                                              BeginStep for the next, if
                                                                            it fits
                a step is not                                               WithdrawStep for those under
                                                                            way, begin no further
                its last step ended                                         PlanEnded                   ─▶ executed
                                                                                                        or stopped
    a step
    ------
    planned     it may begin        it fits                                 BeginStep                   ─▶ under_way
                                    it does not, or the plan has stopped                                ─▶ not_begun
    under_way   its turn comes      frozen, stopped, or other than planned  (its `check` refuses it)
                StepEnded: moved                                                                        ─▶ done
                StepEnded: kept     its turn had come                                                   ─▶ failed
                StepEnded: refused  its turn had come, and its bundle is
                                    at another version                                                  ─▶ unknown
                either              else                                                                ─▶ not_begun
                StepEnded: lost                                                                         ─▶ unknown

A step that is unknown was begun, or may have been, and is for the leader to finish. What it depends on is compared
three times: of all steps before the first, of each as it begins, and of each as its release is about to be written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from loadmanager.core.domain.ownership import Ownership, Registration
from loadmanager.core.domain.plan import DependsOn, Verdict, hash_of
from loadmanager.core.domain.reasons import Reason
from loadmanager.core.planning.certificate.certificate_text import CertificateSummary
from loadmanager.core.planning.plan_effect import Effect
from loadmanager.core.protocol.move_machine import Expected, StaleStepError

PlanState = Literal["computed", "executing", "executed", "stopped"]
StepState = Literal["planned", "under_way", "done", "failed", "not_begun", "unknown"]


@dataclass(slots=True, eq=False)
class TrackedStep:
    """A step, what it was planned on and because of what, and what became of it."""

    bundle: str
    version: int
    source: Registration
    destination: Registration
    reason: Reason
    because: Sequence[Verdict] = ()
    state: StepState = "planned"
    error: str | None = None
    had_its_turn: bool = False

    def __str__(self) -> str:
        return self.bundle

    @property
    def depends_on(self) -> DependsOn:
        """What its being made depends on, as the hash of a plan has it."""
        return {
            "bundle": self.bundle,
            "version": self.version,
            "source": [self.source.broker, self.source.incarnation],
            "destination": [self.destination.broker, self.destination.incarnation],
        }


@dataclass(slots=True, eq=False)
class KeptPlan:
    """A plan as it is kept; `stopped_by` is why its execution goes no further, `even_if_frozen` how it is executed.

    `certificate` says how near it comes to what no plan can beat; None of a plan that was read from a history.
    """

    kind: str
    at_ms: int
    epoch: int
    steps: tuple[TrackedStep, ...]
    verdicts: Sequence[Verdict]
    effect: Effect
    certificate: CertificateSummary | None = None
    cluster: str = ""
    state: PlanState = "computed"
    stopped_by: str | None = None
    even_if_frozen: bool = False
    begun: int = 0
    under_way: int = 0
    hash: str = field(init=False)

    def __post_init__(self) -> None:
        self.hash = hash_of(self.cluster, self.kind, [step.depends_on for step in self.steps])

    def __str__(self) -> str:
        return self.hash

    @property
    def done(self) -> int:
        """How many of its steps were made."""
        return sum(step.state == "done" for step in self.steps)


End = Literal["moved", "kept", "refused", "lost"]
"""How a step ends: its owner has let go, or keeps the bundle; nothing was written; or nobody knows."""

# Events


@dataclass(frozen=True, slots=True)
class Execute:
    plan: KeptPlan
    even_if_frozen: bool


@dataclass(frozen=True, slots=True)
class StepEnded:
    """With what was said if it was not made."""

    plan: KeptPlan
    step: TrackedStep
    end: End
    why: str = ""


Event = Execute | StepEnded

# Instructions


@dataclass(frozen=True, slots=True)
class BeginStep:
    """Have the bundle moved, unless `check` raises `StaleStepError` as its release is about to be written; come back
    with StepEnded.
    """

    plan: KeptPlan
    step: TrackedStep
    check: Callable[[Ownership], None]


@dataclass(frozen=True, slots=True)
class WithdrawStep:
    """Call the move of the bundle off if it still waits for its turn."""

    bundle: str


@dataclass(frozen=True, slots=True)
class PlanEnded:
    plan: KeptPlan


Instruction = BeginStep | WithdrawStep | PlanEnded


@dataclass(slots=True)
class PlanMachine:
    """The plans of one leader. All that it is given is of this moment: why everything is `frozen`, if it is; what is
    different from what a step of a plan was planned on; the version of a bundle; how many steps of a plan are under way
    `at_a_time`; and how many plans are kept at most.
    """

    frozen: Callable[[], str]
    find_drift: Callable[[KeptPlan, TrackedStep], str | None]
    version_of: Callable[[str], int | None]
    at_a_time: Callable[[], int]
    most_kept: Callable[[], int]
    _kept: dict[str, KeptPlan] = field(default_factory=dict)
    _to_do: list[Instruction] = field(default_factory=list)

    @property
    def executing(self) -> list[KeptPlan]:
        return [plan for plan in self._kept.values() if plan.state == "executing"]

    @property
    def kept(self) -> list[KeptPlan]:
        """All that are kept, those that were computed last first."""
        return [*reversed(self._kept.values())]

    def find(self, plan_hash: str) -> KeptPlan | None:
        return self._kept.get(plan_hash)

    def keep(self, plan: KeptPlan) -> KeptPlan:
        """The plan, which is kept in place of an equal one; or that one if it is being executed."""
        known = self._kept.pop(plan.hash, plan)
        kept = self._kept[plan.hash] = known if known.state == "executing" else plan
        idle = [each.hash for each in self._kept.values() if each.state != "executing" and each is not kept]
        for oldest in idle[: max(0, len(self._kept) - self.most_kept())]:
            del self._kept[oldest]
        return kept

    def step(self, event: Event) -> list[Instruction]:
        """What there is to do now that this has happened."""
        if isinstance(event, Execute):
            self._execute(event.plan, even_if_frozen=event.even_if_frozen)
        else:
            self._step_ended(event.plan, event.step, event.end, event.why)
            self._go_on(event.plan)
        to_do, self._to_do = self._to_do, []
        return to_do

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
        """Begin as many steps as may be, or end."""
        while plan.stopped_by is None and plan.begun < len(plan.steps) and plan.under_way < self.at_a_time():
            step = plan.steps[plan.begun]
            plan.begun += 1
            drift = self.find_drift(plan, step)
            if drift is None:
                step.state = "under_way"
                plan.under_way += 1
                self._to_do.append(BeginStep(plan, step, self._check(plan, step)))
            else:
                self._stop(plan, step, "not_begun", drift)
        if not plan.under_way:
            self._end(plan)

    def _end(self, plan: KeptPlan) -> None:
        plan.state = "executed" if plan.stopped_by is None else "stopped"
        self._to_do.append(PlanEnded(plan))

    def _check(self, plan: KeptPlan, step: TrackedStep) -> Callable[[Ownership], None]:
        def check(current: Ownership) -> None:
            stop = plan.stopped_by or self._find_freeze(plan)
            if stop is not None:
                raise StaleStepError(stop)
            Expected(step.source, step.version).check(current)
            step.had_its_turn = True

        return check

    def _step_ended(self, plan: KeptPlan, step: TrackedStep, end: End, why: str) -> None:
        plan.under_way -= 1
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
        """Begin no further step, also none that waits for its turn."""
        step.state, step.error = state, why
        if plan.stopped_by is not None:
            return
        plan.stopped_by = f"stopped at {step.bundle}: {why}"
        for other in plan.steps:
            if other.state == "under_way":
                self._to_do.append(WithdrawStep(other.bundle))
            elif other.state == "planned":
                other.state = "not_begun"

    def _find_obstacle(self, plan: KeptPlan) -> str | None:
        """Why the plan is not begun, None if it may be."""
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
