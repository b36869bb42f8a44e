"""Driver of `loadmanager.core.protocol.plan_machine`: keeps plans in memory, and executes their steps."""

from __future__ import annotations

import asyncio
import contextvars
import time

import structlog

from loadmanager.core.domain.names import BundleName
from loadmanager.core.domain.ownership import IllegalTransitionError
from loadmanager.core.domain.plan import Unload
from loadmanager.core.domain.reasons import OwnershipReason
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
    WithdrawStep,
)
from loadmanager.core.protocol.state_machine import do_all
from loadmanager.errors import (
    LoadManagerError,
    NotLeaderError,
    OutcomeUnknownError,
    PlanBusyError,
    PlanDriftedError,
    PlanNotFoundError,
    UnloadFailedError,
)
from loadmanager.leader.audit.step_recorder import RecordedAnswers, RecordedMachine
from loadmanager.leader.execution.executor import Executor
from loadmanager.leader.loops.requested_plans import RequestedPlans
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.leader.planning.planner_service import PlannerService
from loadmanager.wire.machines.plan_codec import PlansForm
from loadmanager.wire.plan_bodies import ExecutionAnswer, ListedPlan, PlanAnswer, PlanRequest, PlansAnswer
from loadmanager.wire.plan_file import PackedCertificate, encode

log = structlog.get_logger(__name__)

_PLANS_KEPT = 20
"""Operators execute one of their last plans; older ones would fail, as the cluster has changed since."""
_PROVED = 3
"""Plans whose certificates are kept: each holds the columns of the whole cluster."""


class PlanDriver:
    """Keeps and executes the plans of operators; `executed` counts plans that ran to the end, `stopped` the others."""

    def __init__(self, mirror: ClusterMirror, planner: PlannerService, executor: Executor, live: LiveSettings) -> None:
        self._mirror = mirror
        self._recorder = planner.recorder
        self._executor = executor
        self._live = live
        self._requested = RequestedPlans(mirror, planner, live.base.cluster_name)
        self._ends: dict[KeptPlan, asyncio.Future[ExecutionAnswer]] = {}
        self._contexts: dict[KeptPlan, contextvars.Context] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._proved: dict[str, PackedCertificate] = {}
        self.forget()
        self.executed = 0
        self.stopped = 0

    def forget(self) -> None:
        """Begin a new term: plans of an earlier one are dropped."""
        self._proved.clear()
        answers = RecordedAnswers(self._recorder)
        self._plans = PlanMachine(
            answers.noting("frozen", lambda: self._mirror.operator_config.controls.frozen),
            answers.noting("find_drift", self._requested.find_drift),
            answers.noting("version_of", self._requested.version_of),
            answers.noting("at_a_time", lambda: self._live.current.max_concurrent_unloads),
            _PLANS_KEPT,
        )
        self._recorded = RecordedMachine("plans", PlansForm(self._plans), answers, self._recorder)

    async def compute(self, request: PlanRequest) -> PlanAnswer:
        """Compute a plan and keep it; nothing is executed. Raises as `RequestedPlans.compute` does."""
        plan, packed = await self._requested.compute(request)
        self._proved.pop(plan.hash, None)
        self._proved[plan.hash] = packed
        for oldest in list(self._proved)[:-_PROVED]:
            del self._proved[oldest]
        return PlanAnswer.of(self._plans.keep(plan))

    def all(self) -> PlansAnswer:
        """Return all plans that are kept, newest first."""
        return PlansAnswer(plans=[ListedPlan.of(plan) for plan in self._plans.kept])

    def get(self, plan_hash: str) -> PlanAnswer:
        """Return a plan that is kept; raises `PlanNotFoundError` otherwise."""
        return PlanAnswer.of(self._get(plan_hash))

    async def file(self, plan_hash: str) -> bytes:
        """Return a plan that is kept as a file with its certificate (`wire.plan_file`); raises as `get`."""
        plan, packed = self._get(plan_hash), self._proved.get(plan_hash)
        if packed is None:
            raise PlanNotFoundError(
                f"the certificate of plan {plan_hash} is gone, only the last {_PROVED} are kept: compute the plan anew"
            )
        return await asyncio.to_thread(encode, plan, packed)

    def _get(self, plan_hash: str) -> KeptPlan:
        plan = self._plans.find(plan_hash)
        if plan is None:
            raise PlanNotFoundError(
                f"no plan {plan_hash[:80]}: the leader, of epoch {self._mirror.epoch}, keeps the last"
                f" {_PLANS_KEPT} plans that it computed itself; compute it anew"
            )
        return plan

    async def execute(self, plan_hash: str, *, even_if_frozen: bool = False) -> ExecutionAnswer:
        """Execute exactly this plan; while the balancer is frozen only with `even_if_frozen`.

        Raises `PlanNotFoundError`, `PlanBusyError` while it is executing, and `PlanDriftedError` when a step no longer
        fits: before the first step if that is known by then, otherwise when the turn of that step comes.
        """
        plan = self._get(plan_hash)
        if plan.state == "executing":
            raise PlanBusyError(f"plan {plan_hash} is being executed")
        end = self._ends[plan] = asyncio.Future()
        self._contexts[plan] = contextvars.copy_context()
        self._tell(Execute(plan, even_if_frozen))
        if plan.stopped_by is None:
            steps = [Unload(step.bundle, step.source, step.destination, step.reason) for step in plan.steps]
            self._recorder.decided(self._recorder.ask("plan"), steps, plan.verdicts, plan=plan_hash, of=plan.kind)
        # The plan is executed to its end even if the request is cancelled.
        report = await asyncio.shield(end)
        if report.reason is not None:
            raise PlanDriftedError(report.reason, report.model_dump(by_alias=True))
        return report

    def _tell(self, event: Event) -> None:
        do_all(self._recorded.step(event, time.monotonic()), self._do)

    def _do(self, action: Action) -> None:
        match action:
            case BeginStep():
                context = self._contexts[action.plan].copy()  # of the request that executes it
                name = f"plan {action.plan.hash}"
                task = asyncio.create_task(self._carry_out(action), name=name, context=context)
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case WithdrawStep(bundle):
                self._executor.withdraw(bundle)
            case PlanEnded(plan):
                self._ended(plan)

    def _ended(self, plan: KeptPlan) -> None:
        if plan.stopped_by is None:
            self.executed += 1
        else:
            self.stopped += 1
        log.info("plan_executed", hash=plan.hash, done=plan.done, steps=len(plan.steps), stopped_by=plan.stopped_by)
        self._contexts.pop(plan)
        self._ends.pop(plan).set_result(ExecutionAnswer.of(plan))

    async def _carry_out(self, begun: BeginStep) -> None:
        step, name, reason = begun.step, BundleName.parse_any(begun.step.bundle), OwnershipReason.PLAN_EXECUTED
        end: End = "moved"
        why = ""
        try:
            await self._executor.unload(name, step.destination, reason, step.because, begun.check)
        except UnloadFailedError as error:
            end, why = "kept", str(error)
        except (NotLeaderError, OutcomeUnknownError) as error:
            end, why = "lost", str(error)
        except (LoadManagerError, IllegalTransitionError) as error:
            end, why = "refused", str(error)
        except Exception as error:
            log.exception("planned_step_failed", bundle=step.bundle)
            end, why = "refused", str(error)
        self._tell(StepEnded(begun.plan, step, end, why))
