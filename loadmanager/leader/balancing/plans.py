"""Plans that an operator looks at before they are executed: kept by their hash, in the memory of their leader.

The hash is over everything that a step depends on: the bundle at its version, the life of the broker that owns it, and
that of the broker that gets it. So a plan is executed as it was shown, or stops where the cluster is another by now.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import structlog

from loadmanager.core.effect import Effect, effect_of
from loadmanager.core.leading.moves import Expected, StaleStepError
from loadmanager.core.names import BrokerId, BundleName
from loadmanager.core.ownership import IllegalTransitionError, Ownership, OwnershipState, Registration
from loadmanager.core.plan import Plan, Unload, Verdict
from loadmanager.core.reasons import OwnershipReason, Reason
from loadmanager.core.restraint import pin_of
from loadmanager.core.snapshot import Snapshot
from loadmanager.errors import (
    BadRequestError,
    DestinationInactiveError,
    LoadManagerError,
    NotLeaderError,
    OutcomeUnknownError,
    PlanBusyError,
    PlanDriftedError,
    PlanNotFoundError,
    UnloadFailedError,
)
from loadmanager.leader.carrying_out.executor import Executor
from loadmanager.leader.deciding.desk import Desk
from loadmanager.leader.picture.live_settings import LiveSettings
from loadmanager.leader.picture.view import ClusterView
from loadmanager.wire.plans import (
    ExecutionAnswer,
    PlanAnswer,
    PlanEffect,
    PlannedMove,
    PlanRequest,
    PlanStep,
    PlanVerdict,
)

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Step:
    """A step, what it was planned on, and what became of it."""

    bundle: str
    version: int
    source: Registration
    destination: Registration
    reason: Reason
    outcome: str = "planned"
    error: str | None = None

    def shown(self) -> PlanStep:
        return PlanStep(
            bundle=self.bundle,
            version=self.version,
            source=self.source.broker,
            destination=self.destination.broker,
            reason=self.reason.value,
            outcome=self.outcome,
            error=self.error,
        )


@dataclass(slots=True, eq=False)
class _Kept:
    """A plan as it is kept; `stopped_by` is why its execution goes no further, `even_if_frozen` how it is executed."""

    hash: str
    kind: str
    at_ms: int
    epoch: int
    steps: tuple[_Step, ...]
    verdicts: Sequence[Verdict]
    effect: Effect
    state: str = "computed"
    stopped_by: str | None = None
    even_if_frozen: bool = False
    because: dict[str, list[Verdict]] = field(default_factory=dict)

    def shown(self) -> PlanAnswer:
        effect = self.effect
        return PlanAnswer(
            hash=self.hash,
            kind=self.kind,
            state=self.state,
            at=self.at_ms,
            epoch=self.epoch,
            steps=[step.shown() for step in self.steps],
            verdicts=[
                PlanVerdict(subject=v.subject, reason=v.verdict.value, acted=v.acted, sentence=v.sentence())
                for v in self.verdicts
            ],
            effect=PlanEffect(
                imbalance_before=effect.imbalance_before,
                imbalance_after=effect.imbalance_after,
                imbalance_lower_bound=effect.lower_bound,
                load_moved_bytes_per_s=effect.load_moved,
                load_moved_percent=100 * effect.share_moved,
                bundles_moved=effect.bundles_moved,
                clients_disturbed=effect.clients_disturbed,
            ),
        )

    def report(self) -> ExecutionAnswer:
        done = sum(step.outcome == "done" for step in self.steps)
        steps = [step.shown() for step in self.steps]
        return ExecutionAnswer(hash=self.hash, executed=done, steps=steps, reason=self.stopped_by)


class Plans:
    """`executed` counts plans that were executed to the end, `stopped` those that were not."""

    def __init__(self, view: ClusterView, desk: Desk, executor: Executor, live: LiveSettings) -> None:
        self._view = view
        self._desk = desk
        self._executor = executor
        self._live = live
        self._plans: OrderedDict[str, _Kept] = OrderedDict()
        self.executed = 0
        self.stopped = 0

    def forget(self) -> None:
        """A new term: plans of an earlier one are worth nothing."""
        self._plans.clear()

    async def compute(self, request: PlanRequest) -> PlanAnswer:
        """Make a plan and keep it; nothing is carried out.

        Raises `BrokerNotFoundError` for the broker of a drain; for moves `BundleNotFoundError`,
        `NamespaceNotFoundError`, `IllegalTransitionError` when a bundle is not owned, `DestinationInactiveError` when
        the destination is not registered or may not own the bundle, `BadRequestError` when it owns it already.
        """
        emptied: tuple[BrokerId, ...] = ()
        if request.kind == "shed":
            plan, snapshot = await self._desk.preview_shed()
        elif request.kind == "drain":
            emptied = (self._view.get_registration(BrokerId(request.broker or "")).broker,)
            plan, snapshot = await self._desk.preview_drain(emptied[0])
        else:
            snapshot = self._desk.snapshot()
            plan = self._plan_moves(request.moves or [], snapshot)
        steps = tuple(step for step in map(self._step, plan.steps) if step is not None)
        effect = effect_of(snapshot, plan.steps, self._clients(steps), emptied)
        kept = _Kept(
            _hash(request.kind, steps), request.kind, _now_ms(), self._view.epoch, steps, plan.verdicts, effect
        )
        for verdict in plan.verdicts:
            kept.because.setdefault(verdict.subject, []).append(verdict)
        self._keep(kept)
        return self._plans[kept.hash].shown()

    def _keep(self, kept: _Kept) -> None:
        """Keep the plan in place of an equal one, unless that one is being executed."""
        known = self._plans.get(kept.hash)
        if known is None or known.state != "executing":
            self._plans[kept.hash] = kept
        self._plans.move_to_end(kept.hash)
        idle = [plan.hash for plan in self._plans.values() if plan.state != "executing"]
        for oldest in idle[: max(0, len(self._plans) - self._live.current.plans_kept)]:
            del self._plans[oldest]

    def _plan_moves(self, moves: Sequence[PlannedMove], snapshot: Snapshot) -> Plan:
        steps = []
        for move in moves:
            entry, index = self._view.bundle(BundleName.parse(move.bundle))
            ownership = entry.state.ownerships[index]
            owner, destination = ownership.owner, self._view.registrations.get(BrokerId(move.destination))
            if ownership.state is not OwnershipState.OWNED or owner is None or not self._view.is_registered(owner):
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

    def _find_refusal(self, kind: str, bundle: str, destination: BrokerId) -> Verdict | None:
        """Why the destination may not be given the bundle; an operator's own moves keep to the pins as well."""
        pinned = self._view.laid_down.controls.pinned.get(bundle)
        if kind == "moves" and pinned is not None and pinned != destination:
            return pin_of(bundle, pinned)
        return self._desk.find_move_refusal(bundle, destination)

    def _step(self, step: object) -> _Step | None:
        """The step with the version of its bundle; None when the bundle has another owner since the snapshot."""
        if not isinstance(step, Unload) or step.destination is None:
            return None
        try:
            entry, index = self._view.bundle(BundleName.parse(step.bundle))
            current = entry.state.ownerships[index]
            Expected(step.source).check(current)
        except (LoadManagerError, IllegalTransitionError):
            return None
        return _Step(step.bundle, current.version, step.source, step.destination, step.reason)

    def _clients(self, steps: Sequence[_Step]) -> dict[str, int]:
        """The producers and consumers of the bundles, as their owners last reported."""
        reports = self._view.model.latest_reports()
        found = {
            each.bundle: reports[each.source].find_sessions(each.bundle) for each in steps if each.source in reports
        }
        return {bundle: clients for bundle, clients in found.items() if clients is not None}

    def get(self, plan_hash: str) -> PlanAnswer:
        """A plan that is kept; `PlanNotFoundError` otherwise."""
        return self._get(plan_hash).shown()

    def _get(self, plan_hash: str) -> _Kept:
        kept = self._plans.get(plan_hash)
        if kept is None:
            raise PlanNotFoundError(
                f"no plan {plan_hash[:80]}: the leader, of epoch {self._view.epoch}, keeps the last"
                f" {self._live.current.plans_kept} plans that it computed itself; compute it anew"
            )
        return kept

    async def execute(self, plan_hash: str, *, even_if_frozen: bool = False) -> ExecutionAnswer:
        """Carry out exactly this plan, while the balancer is frozen only if somebody insists.

        Raises `PlanNotFoundError`, `PlanBusyError` while it is being executed, and `PlanDriftedError` when a step no
        longer fits: before the first step if one is known not to fit by then, later if its turn comes too late.
        """
        kept = self._get(plan_hash)
        if kept.state == "executing":
            raise PlanBusyError(f"plan {plan_hash} is being executed")
        kept.even_if_frozen = even_if_frozen
        obstacle = self._find_obstacle(kept)
        if obstacle is not None:
            self.stopped += 1
            kept.state, kept.stopped_by = "stopped", f"nothing was done: {obstacle}"
            raise PlanDriftedError(kept.stopped_by, _shown(kept.report()))
        kept.state, kept.stopped_by = "executing", None
        recorder = self._desk.recorder
        steps = [Unload(step.bundle, step.source, step.destination, step.reason) for step in kept.steps]
        recorder.decided(recorder.ask("plan"), steps, kept.verdicts, plan=plan_hash, of=kept.kind)
        # Whoever asked may go away; the plan is carried out all the same.
        await asyncio.shield(asyncio.create_task(self._carry_out_all(kept), name=f"plan {plan_hash}"))
        if kept.stopped_by is not None:
            raise PlanDriftedError(kept.stopped_by, _shown(kept.report()))
        return kept.report()

    def _find_obstacle(self, kept: _Kept) -> str | None:
        """Why the plan is not begun, None if it may be."""
        frozen = self._find_freeze(kept)
        if frozen is not None:
            return frozen
        drifts = ((step, self._find_drift(kept, step)) for step in kept.steps)
        return next((f"{step.bundle}: {drift}" for step, drift in drifts if drift is not None), None)

    def _find_freeze(self, kept: _Kept) -> str | None:
        frozen = self._view.laid_down.controls.frozen
        if not frozen or kept.even_if_frozen:
            return None
        return (
            f"the balancer is frozen ({frozen}), so that nothing moves: unfreeze it, or execute the plan with"
            " evenIfFrozen=true"
        )

    async def _carry_out_all(self, kept: _Kept) -> None:
        remaining = iter(kept.steps)

        async def work() -> None:
            for step in remaining:
                if kept.stopped_by is not None:
                    step.outcome = "not_begun"
                else:
                    await self._carry_out(kept, step)

        try:
            await asyncio.gather(*(work() for _ in range(self._live.current.max_concurrent_unloads)))
        finally:
            kept.state = "executed" if kept.stopped_by is None else "stopped"
        done = sum(step.outcome == "done" for step in kept.steps)
        if kept.stopped_by is None:
            self.executed += 1
        else:
            self.stopped += 1
        log.info("plan_executed", hash=kept.hash, done=done, steps=len(kept.steps), stopped_by=kept.stopped_by)

    async def _carry_out(self, kept: _Kept, step: _Step) -> None:
        drift = self._find_drift(kept, step)
        if drift is not None:
            self._stop(kept, step, "not_begun", drift)
            return
        step.outcome = "under_way"
        had_its_turn = False

        def check(current: Ownership) -> None:
            nonlocal had_its_turn
            stop = kept.stopped_by or self._find_freeze(kept)
            if stop is not None:
                raise StaleStepError(stop)
            Expected(step.source, step.version).check(current)
            had_its_turn = True

        try:
            await self._executor.unload(
                BundleName.parse(step.bundle),
                step.destination,
                OwnershipReason.PLAN_EXECUTED,
                kept.because.get(step.bundle, ()),
                check,
            )
        except UnloadFailedError as error:
            self._stop(kept, step, "failed" if had_its_turn else "not_begun", str(error))
        except (NotLeaderError, OutcomeUnknownError) as error:
            self._stop(kept, step, "unknown", str(error))
        except (LoadManagerError, IllegalTransitionError) as error:
            was_begun = had_its_turn and self._has_changed(step)
            self._stop(kept, step, "unknown" if was_begun else "not_begun", str(error))
        else:
            step.outcome = "done"

    def _has_changed(self, step: _Step) -> bool:
        """Whether the bundle's record is another than the step was planned on."""
        with contextlib.suppress(LoadManagerError):
            entry, index = self._view.bundle(BundleName.parse(step.bundle))
            return entry.state.ownerships[index].version != step.version
        return True

    def _stop(self, kept: _Kept, step: _Step, outcome: str, why: str) -> None:
        """Begin no further step, also none that waits for its turn."""
        step.outcome, step.error = outcome, why
        if kept.stopped_by is not None:
            return
        kept.stopped_by = f"stopped at {step.bundle}: {why}"
        for other in kept.steps:
            if other.outcome == "under_way":
                self._executor.withdraw(other.bundle)

    def _find_drift(self, kept: _Kept, step: _Step) -> str | None:
        """What is different from what the step was planned on."""
        try:
            entry, index = self._view.bundle(BundleName.parse(step.bundle))
            Expected(step.source, step.version).check(entry.state.ownerships[index])
        except (LoadManagerError, StaleStepError) as error:
            return str(error)
        if not self._view.is_registered(step.source):
            return f"its owner {step.source} is gone"
        if not self._view.is_registered(step.destination):
            return f"destination {step.destination} is not registered any more"
        refusal = self._find_refusal(kept.kind, step.bundle, step.destination.broker)
        return None if refusal is None else refusal.sentence()


def _hash(kind: str, steps: Sequence[_Step]) -> str:
    content = {
        "kind": kind,
        "steps": [
            {
                "bundle": step.bundle,
                "version": step.version,
                "source": [step.source.broker, step.source.incarnation],
                "destination": [step.destination.broker, step.destination.incarnation],
            }
            for step in steps
        ],
    }
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _shown(report: ExecutionAnswer) -> dict[str, Any]:
    return report.model_dump(by_alias=True)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
