"""Plans that operators ask for, and the check of their steps for drift before execution."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from loadmanager.core.domain.names import BrokerId, BundleName
from loadmanager.core.domain.ownership import IllegalTransitionError, OwnershipState
from loadmanager.core.domain.plan import Plan, Unload, Verdict
from loadmanager.core.domain.reasons import OwnershipReason
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.certificate.certificate_text import CertificateSummary
from loadmanager.core.planning.movable_bundles import explain_pin, restrain
from loadmanager.core.planning.plan_effect import compute_effect
from loadmanager.core.protocol.move_machine import Expected, StaleStepError
from loadmanager.core.protocol.plan_machine import KeptPlan, TrackedStep
from loadmanager.errors import BadRequestError, DestinationInactiveError, LoadManagerError
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.planning.planner_service import PlannerService
from loadmanager.util import clock
from loadmanager.wire.plan_bodies import PlannedMove, PlanRequest
from loadmanager.wire.plan_file import PackedCertificate


class RequestedPlans:
    def __init__(self, mirror: ClusterMirror, planner: PlannerService, cluster: str = "") -> None:
        self._mirror = mirror
        self._planner = planner
        self._cluster = cluster

    async def compute(self, request: PlanRequest) -> tuple[KeptPlan, PackedCertificate]:
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
        certified = await self._planner.certify(seen, [each for each, _ in made], emptied)
        certificate = CertificateSummary.of(certified)
        kept = KeptPlan(request.kind, at_ms, epoch, steps, plan.verdicts, effect, certificate, self._cluster)
        return kept, await asyncio.to_thread(PackedCertificate.of, certified)

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
        found = {
            each.bundle: reports[each.source].find_sessions(each.bundle) for each in steps if each.source in reports
        }
        return {bundle: clients for bundle, clients in found.items() if clients is not None}

    def version_of(self, bundle: str) -> int | None:
        """Return the version of a bundle's ownership; None if there is no such bundle any more."""
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
        """Return the verdict that keeps the bundle from the destination; an operator's own moves obey pins as well."""
        pinned = self._mirror.operator_config.controls.pinned.get(bundle)
        if kind == "moves" and pinned is not None and pinned != destination:
            return explain_pin(bundle, pinned)
        return self._planner.find_move_refusal(bundle, destination)
