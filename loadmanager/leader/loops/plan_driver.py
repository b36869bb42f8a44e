"""Driver of `loadmanager.core.protocol.plan_machine`: keeps requested plans in memory, and executes their steps.

A step is checked for drift before it is executed.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Mapping, Sequence

import structlog

from loadmanager.core.domain.names import BrokerId, BundleName
from loadmanager.core.domain.ownership import IllegalTransitionError, OwnershipState
from loadmanager.core.domain.plan import Plan, Unload, Verdict
from loadmanager.core.domain.reasons import OwnershipReason
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.movable_bundles import explain_pin, restrain
from loadmanager.core.planning.plan_effect import compute_effect
from loadmanager.core.protocol.move_machine import Expected, StaleStepError, WithdrawMove
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
from loadmanager.core.protocol.state_machine import do_all
from loadmanager.errors import (
    BadRequestError,
    ConflictError,
    DestinationInactiveError,
    LoadManagerError,
    NotLeaderError,
    OutcomeUnknownError,
    PlanBusyError,
    PlanDriftedError,
    PlanNotFoundError,
    UnloadFailedError,
)
from loadmanager.leader.execution.executor import Executor
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.leader.planning.planner_service import PlannerService
from loadmanager.util import clock
from loadmanager.wire.plan_bodies import ExecutionAnswer, ListedPlan, PlanAnswer, PlannedMove, PlanRequest, PlansAnswer

log = structlog.get_logger(__name__)

_PLANS_KEPT = 20
"""Plans kept; older ones would fail the drift check, since the cluster has changed."""


class PlanDriver:
    """Keeps and executes the plans of operators. `refusal`, unless empty, is the reason to execute no plan."""

    def __init__(
        self,
        mirror: ClusterMirror,
        planner: PlannerService,
        executor: Executor,
        live: LiveSettings,
        refusal: str = "",
    ) -> None:
        self._refusal = refusal
        self._mirror = mirror
        self._recorder = planner.recorder
        self._executor = executor
        self._live = live
        self._requested = RequestedPlans(mirror, planner, live.base.cluster_name)
        self._ends: dict[KeptPlan, asyncio.Future[ExecutionAnswer]] = {}
        self._contexts: dict[KeptPlan, contextvars.Context] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.forget()

    def forget(self) -> None:
        """Begin a new term: plans of an earlier one are dropped."""
        self._plans = PlanMachine(
            lambda: self._mirror.operator_config.controls.frozen,
            self._requested.find_drift,
            self._requested.version_of,
            lambda: self._live.current.max_concurrent_unloads,
            _PLANS_KEPT,
        )

    async def compute(self, request: PlanRequest) -> PlanAnswer:
        """Compute a plan and keep it; nothing is executed. Raises as `RequestedPlans.compute` does."""
        return PlanAnswer.of(self._plans.keep(await self._requested.compute(request)))

    def all(self) -> PlansAnswer:
        """Return all plans that are kept, newest first."""
        return PlansAnswer(plans=[ListedPlan.of(plan) for plan in self._plans.kept])

    def get(self, plan_hash: str) -> PlanAnswer:
        """Return a plan that is kept; raises `PlanNotFoundError` otherwise."""
        return PlanAnswer.of(self._get(plan_hash))

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
        fits: before the first step if the drift exists by then, otherwise when that step is due. `ConflictError` with a
        `refusal`.
        """
        plan = self._get(plan_hash)
        if self._refusal:
            raise ConflictError(f"plan {plan_hash} cannot be executed: {self._refusal}")
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
        do_all(self._plans.step(event), self._do)

    def _do(self, action: Action) -> None:
        match action:
            case BeginStep():
                context = self._contexts[action.plan].copy()  # of the request that executes it
                name = f"plan {action.plan.hash}"
                task = asyncio.create_task(self._carry_out(action), name=name, context=context)
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case WithdrawMove(bundle):
                self._executor.withdraw(bundle)
            case PlanEnded(plan):
                self._on_plan_ended(plan)

    def _on_plan_ended(self, plan: KeptPlan) -> None:
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


class RequestedPlans:
    def __init__(self, mirror: ClusterMirror, planner: PlannerService, cluster: str = "") -> None:
        self._mirror = mirror
        self._planner = planner
        self._cluster = cluster

    async def compute(self, request: PlanRequest) -> KeptPlan:
        """Compute a plan and its certificate; nothing is executed.

        Raises `BrokerNotFoundError` for the broker of a drain; for moves `BundleNotFoundError`,
        `NamespaceNotFoundError`, `IllegalTransitionError` when a bundle is not owned, `DestinationInactiveError` when
        the destination is not registered or may not own the bundle, `BadRequestError` when it owns it already.
        """
        emptied: tuple[BrokerId, ...] = ()
        if request.kind == "shed":
            plan, snapshot = await self._planner.preview_shed()
        elif request.kind == "drain":
            emptied = (self._mirror.get_registration(BrokerId(request.broker or "")).broker,)
            plan, snapshot = await self._planner.preview_drain(emptied[0])
        else:
            snapshot = self._planner.snapshot().afresh()
            plan = self._plan_moves(request.moves or [], snapshot)
        because: dict[str, list[Verdict]] = {}
        for verdict in plan.verdicts:
            because.setdefault(verdict.subject, []).append(verdict)
        made = [(each, step) for each in plan.steps if (step := self._step(each, because)) is not None]
        steps = tuple(step for _, step in made)
        effect = compute_effect(snapshot, plan.steps, self._clients(steps), emptied)
        at_ms, epoch = clock.now_ms(), self._mirror.epoch
        seen = restrain(snapshot) if request.kind == "shed" else snapshot
        certificate = await self._planner.certify(seen, [each for each, _ in made], emptied)
        return KeptPlan(request.kind, at_ms, epoch, steps, plan.verdicts, effect, certificate, self._cluster)

    def _plan_moves(self, moves: Sequence[PlannedMove], snapshot: Snapshot) -> Plan:
        steps = []
        for move in moves:
            ownership = self._mirror.get_ownership(BundleName.parse(move.bundle))
            owner, destination = ownership.owner, self._mirror.registrations.get(BrokerId(move.destination))
            if ownership.state is not OwnershipState.OWNED or owner is None or not self._mirror.is_registered(owner):
                raise IllegalTransitionError(f"{move.bundle} is {ownership.state}: only an owned bundle can be moved")
            if destination is None:
                raise DestinationInactiveError(f"destination {move.destination!r} of {move.bundle} is not registered")
            if owner == destination:
                raise BadRequestError(f"{move.bundle} is owned by {destination.broker} already")
            refusal = self._find_refusal("moves", move.bundle, destination.broker)
            if refusal is not None:
                raise DestinationInactiveError(f"{move.bundle}: {refusal.sentence()}")
            steps.append(Unload(move.bundle, owner, destination, OwnershipReason.PLAN_EXECUTED))
        return Plan(snapshot.revision, snapshot.taken_at_s, tuple(steps), ())

    def _step(self, step: object, because: Mapping[str, Sequence[Verdict]]) -> TrackedStep | None:
        """Return the step with its bundle's version; None when the bundle has another owner since the snapshot."""
        if not isinstance(step, Unload) or step.destination is None:
            return None
        try:
            current = self._mirror.get_ownership(BundleName.parse_any(step.bundle))
            Expected(step.source).check(current)
        except (LoadManagerError, IllegalTransitionError):
            return None
        why = because.get(step.bundle, ())
        return TrackedStep(step.bundle, current.version, step.source, step.destination, step.reason, why)

    def _clients(self, steps: Sequence[TrackedStep]) -> dict[str, int]:
        """Return the producers and consumers of the bundles, by the last valid reports of their owners."""
        reports = self._mirror.model.latest_reports()
        clients = {source: reports[source].clients() for source in {each.source for each in steps} if source in reports}
        return {
            each.bundle: clients[each.source][each.bundle]
            for each in steps
            if each.bundle in clients.get(each.source, ())
        }

    def version_of(self, bundle: str) -> int | None:
        """Return the version of a bundle's ownership; None if the bundle no longer exists."""
        current = self._mirror.find_ownership(bundle)
        return None if current is None else current.version

    def find_drift(self, plan: KeptPlan, step: TrackedStep) -> str | None:
        """Return the difference between the cluster and the step's plan, None if there is none."""
        try:
            Expected(step.source, step.version).check(self._mirror.get_ownership(BundleName.parse_any(step.bundle)))
        except (LoadManagerError, StaleStepError) as error:
            return str(error)
        if not self._mirror.is_registered(step.source):
            return f"its owner {step.source} is gone"
        if not self._mirror.is_registered(step.destination):
            return f"destination {step.destination} is not registered any more"
        refusal = self._find_refusal(plan.kind, step.bundle, step.destination.broker)
        return None if refusal is None else refusal.sentence()

    def _find_refusal(self, kind: str, bundle: str, destination: BrokerId) -> Verdict | None:
        """Return the verdict that forbids the move; moves requested by an operator must also respect pins."""
        pinned = self._mirror.operator_config.controls.pinned.get(bundle)
        if kind == "moves" and pinned is not None and pinned != destination:
            return explain_pin(bundle, pinned)
        return self._planner.find_move_refusal(bundle, destination)
