"""Load-manager node: a mirror of the cluster that answers lookups, and the leader's work while it leads."""

from __future__ import annotations

import asyncio

import structlog

from loadmanager.config.node_settings import AUTO_HISTORY, Settings
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.protocol.leadership import Term
from loadmanager.leader.audit.audit_log import AuditTrail
from loadmanager.leader.audit.decision_log import DecisionLog
from loadmanager.leader.audit.history_recorder import LineageReader
from loadmanager.leader.audit.recorded_model import open_mirror
from loadmanager.leader.candidate import Candidate, MetricSamples
from loadmanager.leader.election.config_writer import ConfigWriter
from loadmanager.leader.election.ownership_ledger import OwnershipLedger
from loadmanager.leader.execution.agent_calls import AgentCalls
from loadmanager.leader.execution.assignment_driver import AssignmentDriver, OwnerLookups
from loadmanager.leader.execution.executor import Executor
from loadmanager.leader.execution.reconciler_driver import ReconcilerDriver
from loadmanager.leader.execution.reshape_driver import ReshapeDriver
from loadmanager.leader.fleet_status import FleetStatus
from loadmanager.leader.loops.drain_loop import DrainLoop
from loadmanager.leader.loops.plan_driver import PlanDriver
from loadmanager.leader.loops.reshape_loop import ReshapeLoop
from loadmanager.leader.loops.shedding_loop import SheddingLoop
from loadmanager.leader.metric_samples import collect_node_samples
from loadmanager.leader.mirror.broker_records import RawReports
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.leader.mirror.mirror_intake import MirrorIntake
from loadmanager.leader.operator_commands import BundleCommands, NamespaceDeletion
from loadmanager.leader.persistence import Persistence
from loadmanager.leader.planning.explanation_service import ExplanationService
from loadmanager.leader.planning.planner_pool import PROCESS_BUNDLES, PlannerPool
from loadmanager.leader.planning.planner_service import PlannerService, TermHistory
from loadmanager.leader.planning.stuck_monitor import StuckMonitor
from loadmanager.leader.timeline_memory import TimelineMemory
from loadmanager.net.http_client import Caller
from loadmanager.net.liveness import Life
from loadmanager.net.tracing import tracing_of
from loadmanager.store.metadata_store import MetadataStore

log = structlog.get_logger(__name__)

SERVICE = "loadmanager"
"""Service name in traces."""


class Node(Candidate):
    """A node of the load-manager service. `start` returns once the mirror is fresh; `stop` hands leadership over.

    Raises `ConfigurationError` for invalid credentials.
    """

    settings: Settings

    def __init__(
        self,
        settings: Settings,
        store: MetadataStore,
        node_id: str,
        service_url: str,
        seed: int,
        life: Life | None = None,
    ) -> None:
        if settings.history_url == AUTO_HISTORY:  # the process entry point resolves it before
            settings = settings.model_copy(update={"history_url": ""})
        self.settings = settings
        self.caller = Caller.of(settings, tracing_of(SERVICE, node_id))
        self.live = LiveSettings(settings)
        self.mirror, self.recorder, self.moves = open_mirror(self.live, node_id)
        silence_s = settings.leader_silence_ms / 1000
        super().__init__(store, self.mirror, node_id, service_url, silence_s, self.caller, life)
        self.decision_log = DecisionLog()
        self.audit = AuditTrail(node_id, settings, self.recorder, settings.history_url)
        self.lineage = LineageReader(settings.history_url, self.recorder)
        self.moves.on_measured = self.decision_log.measured
        self.intake = MirrorIntake(store, self.mirror, self.live, self._on_change)
        self.reports = RawReports(store.get, self.mirror)
        self.ledger = OwnershipLedger(store, self.mirror, self.intake, self.election)
        self.operators = ConfigWriter(store, self.intake, self.election)
        planning = PlannerPool(PROCESS_BUNDLES)
        self.planner = PlannerService(
            self.mirror, self.live, self.decision_log, seed, self.recorder, self.moves, planning
        )
        self.terms = TermHistory(node_id, self.mirror, self.planner, self.moves)
        self.explainer = ExplanationService(self.mirror, self.planner, self.decision_log)
        self.stuck_monitor = StuckMonitor(self.planner, self.live)
        self.agents = AgentCalls(self.mirror, self.election, self.caller, self.live)
        self.executor = Executor(
            self.mirror,
            self.ledger,
            self.agents,
            self.decision_log,
            self.live,
            self.planner.churn,
            self.caller.tracing,
            self.agents,
        )
        self.assigner = AssignmentDriver(self.planner, self.mirror, self.ledger, self.decision_log, self.caller.tracing)
        self.shedding = SheddingLoop(
            self.planner,
            self.executor,
            self.election,
            self.decision_log,
            self.mirror,
            self.live,
            tracing=self.caller.tracing,
        )
        self.reconciler = ReconcilerDriver(self.mirror, self.ledger, self.executor, self.assigner, self.decision_log)
        self.drains = DrainLoop(self.mirror, self.planner, self.executor, self.operators, self.decision_log, self.live)
        self.plans = PlanDriver(self.mirror, self.planner, self.executor, self.live)
        self.fleet_status = FleetStatus(self)
        self.timeline_memory = TimelineMemory(self.mirror, self.live, lambda: self.leader_changed)
        self.persistence = Persistence(store, self.mirror, self.election, self.planner, self.intake.reject, self.live)
        self.reshaper = ReshapeDriver(
            self.mirror,
            self.planner,
            self.ledger,
            self.assigner,
            self.executor,
            self.agents,
            self.decision_log,
            self.live,
            self._on_reshaped,
        )
        self.bundles = BundleCommands(
            self.mirror,
            self.ledger,
            self.executor,
            self.assigner,
            self.reshaper,
            self.agents,
            self.must_lead,
            self.get_term,
        )
        self.deletion = NamespaceDeletion(self.mirror, self.ledger, self.operators, self.bundles, self.persistence)
        self.lookups = OwnerLookups(
            self.mirror,
            self.assigner,
            self.executor,
            lambda: self.is_leading and self.election.term is not None,
        )
        self.reshaping = ReshapeLoop(
            self.mirror, self.planner, self.reshaper, self.election, self.decision_log, self.live
        )
        self._swept = 0

    async def start(self) -> None:
        """Read the cluster, register this node and take part in elections; wait while the store does not answer.

        Raises the `StoreError` of a request that the store refuses.
        """
        self._follow_session()
        self.recorder.start()
        self.audit.start()
        self._spawn(self.intake.run(), "intake")
        await self._patiently(self._make_folders)
        await self.intake.settled()
        await self._patiently(self.intake.load_history)
        self._spawn(self.ledger.run(), "ledger")
        self._spawn(self.timeline_memory.run(), "timeline")
        self._stand()

    async def stop(self) -> None:
        """Hand leadership over and stop; the next leader finishes moves in flight."""
        await self._leave()
        await self.executor.abort()
        await self.agents.close()
        await asyncio.to_thread(self.recorder.close)
        await asyncio.to_thread(self.audit.close)
        await asyncio.to_thread(self.caller.tracing.close)

    def _on_reshaped(self, namespace: str, owner: Registration | None) -> None:
        self.persistence.reshaped(namespace)
        if owner is not None and not self.mirror.is_registered(owner):
            self.reconciler.wake()  # it may have looked for the old bundle names of a broker that has just left

    def scrape(self) -> MetricSamples:
        """Collect the metric samples; called on the event loop."""
        return collect_node_samples(self, self.intake, self.assigner, self.ledger, self.reshaper, self.reshaping)

    def _on_change(self) -> None:
        self._store_changed()
        if self.mirror.unsettled != self._swept:
            self._swept = self.mirror.unsettled
            self.executor.membership_changed()
            self.reconciler.wake()

    async def _prepare(self, term: Term) -> None:
        await self.intake.settle_registrations()
        await self.persistence.take_over()
        self.drains.forget()
        self.plans.forget()
        self.terms.begin(term.epoch)
        self.audit.begin_term()

    def _begin_work(self, group: asyncio.TaskGroup) -> None:
        log.info("leading", namespaces=len(self.mirror.namespaces), brokers=len(self.mirror.brokers))
        group.create_task(self.assigner.run())
        group.create_task(self.reconciler.run())
        group.create_task(self.drains.run())
        group.create_task(self.terms.keep_checkpoints())
        group.create_task(self.stuck_monitor.run())
        if self.settings.planner_settings().load_balancer_enabled:
            group.create_task(self._balance(group))

    def _note_end(self, reason: str) -> None:
        self.recorder.end_term(reason)

    async def _put_down(self, error: Exception) -> None:
        self.ledger.fail_pending(error)
        self.assigner.fail_waiting(error)
        await self.reshaper.abort()
        await self.executor.abort()
        await self.planner.end_term()

    async def _balance(self, group: asyncio.TaskGroup) -> None:
        """Read the last leader's memory, then start the loops that depend on it or overwrite it."""
        await self.persistence.taken_over()
        group.create_task(self.shedding.run())
        group.create_task(self.persistence.run())
        group.create_task(self.persistence.run_memory())
        group.create_task(self.persistence.run_reshaped())
        group.create_task(self.reshaping.run())
