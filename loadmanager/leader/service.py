"""One load-manager node: a mirror of the cluster that answers lookups, and the leader's work while it leads."""

from __future__ import annotations

import asyncio

import structlog

from loadmanager.calling import Caller
from loadmanager.config import Settings
from loadmanager.config.node import AUTO_HISTORY
from loadmanager.core.leadership import Term
from loadmanager.core.ownership import Registration
from loadmanager.leader.balancing.draining import Drainer
from loadmanager.leader.balancing.plans import PlanKeeper
from loadmanager.leader.balancing.rounds import ReshapingLoop
from loadmanager.leader.balancing.shedding import SheddingLoop
from loadmanager.leader.candidate import Candidate
from loadmanager.leader.carrying_out.agents import Agents
from loadmanager.leader.carrying_out.assigning import Assigner
from loadmanager.leader.carrying_out.executor import Executor, ExecutorSettings
from loadmanager.leader.carrying_out.owners import AgentOwners
from loadmanager.leader.carrying_out.preparing import Destinations
from loadmanager.leader.carrying_out.reconciling import Reconciler
from loadmanager.leader.carrying_out.reshaping import Reshaper
from loadmanager.leader.chronicle import Chronicle
from loadmanager.leader.commands import BundleCommands
from loadmanager.leader.deciding.desk import Desk
from loadmanager.leader.deciding.explaining import Explainer
from loadmanager.leader.deciding.planning import Planning
from loadmanager.leader.deciding.standstill import StandstillWatch
from loadmanager.leader.deciding.terms import Terms
from loadmanager.leader.deleting import NamespaceDeletion
from loadmanager.leader.lookups import OwnerLookups
from loadmanager.leader.persistence import Persistence
from loadmanager.leader.picture.intake import Intake
from loadmanager.leader.picture.live_settings import LiveSettings
from loadmanager.leader.picture.written_reports import WrittenReports
from loadmanager.leader.port import Scrape
from loadmanager.leader.recording.audit import AuditTrail
from loadmanager.leader.recording.journal import Journal
from loadmanager.leader.recording.lives import Lives
from loadmanager.leader.recording.opening import open_view
from loadmanager.leader.scraping import scrape_of
from loadmanager.leader.showing import Showing
from loadmanager.leader.term.ledger import Ledger
from loadmanager.leader.term.operators import Operators
from loadmanager.liveness import Life
from loadmanager.store.base import MetadataStore
from loadmanager.tracing import tracing_of

log = structlog.get_logger(__name__)

SERVICE = "loadmanager"
"""As traces name it."""


class Node(Candidate):
    """A node of the load-manager service. `start` returns once the view is fresh; `stop` hands leadership over.

    To HTTP it is a `port.NodePort`. Raises `ConfigurationError` for what it is to show of itself and cannot be used.
    """

    def __init__(
        self,
        settings: Settings,
        store: MetadataStore,
        node_id: str,
        service_url: str,
        seed: int,
        life: Life | None = None,
    ) -> None:
        if settings.history_url == AUTO_HISTORY:  # whoever starts a process finds a place before
            settings = settings.model_copy(update={"history_url": ""})
        self.settings = settings
        self.caller = Caller.of(settings, tracing_of(settings, SERVICE, node_id))
        self.live = LiveSettings(settings)
        self.view, self.recorder, self.moves = open_view(self.live, node_id)
        silence_s = settings.leader_silence_ms / 1000
        super().__init__(store, self.view, node_id, service_url, silence_s, self.caller, life)
        self.journal = Journal(settings.decisions_kept)
        self.audit = AuditTrail(node_id, settings, self.recorder, settings.history_url)
        self.lives = Lives(settings.history_url, self.recorder)
        self.moves.on_measured = self.journal.measured
        self.intake = Intake(store, self.view, self.live, self._on_change)
        self.reports = WrittenReports(store.get, self.view)
        self.ledger = Ledger(store, self.view, self.intake, self.election)
        self.operators = Operators(store, self.intake, self.election)
        planning = Planning(lambda: self.live.current.planning_process_bundles)
        self.desk = Desk(self.view, self.live, self.journal, seed, self.recorder, self.moves, planning)
        self.terms = Terms(node_id, self.view, self.desk, self.moves, self.live)
        self.explainer = Explainer(self.view, self.desk, self.journal)
        self.standstill = StandstillWatch(self.desk, self.live)
        self.agents = Agents(self.view, self.caller)
        self.executor = self._make_executor()
        self.assigner = Assigner(self.desk, self.view, self.ledger, self.journal, self.caller.tracing)
        self.shedding = SheddingLoop(
            self.desk, self.executor, self.election, self.journal, self.view, self.live, tracing=self.caller.tracing
        )
        self.reconciler = Reconciler(self.view, self.ledger, self.executor, self.assigner, self.journal, self.live)
        self.drains = Drainer(self.view, self.desk, self.executor, self.operators, self.journal, self.live)
        self.plans = PlanKeeper(self.view, self.desk, self.executor, self.live)
        self.showing = Showing(self)
        self.chronicle = Chronicle(self.view, self.live, lambda: self.leader_changed)
        self.persistence = Persistence(store, self.view, self.election, self.desk, self.intake.reject, self.live)
        self.reshaper = self._make_reshaper()
        self.bundles = BundleCommands(
            self.view,
            self.ledger,
            self.executor,
            self.assigner,
            self.reshaper,
            self.agents,
            self.must_lead,
            self.get_term,
        )
        self.deletion = NamespaceDeletion(self.view, self.ledger, self.operators, self.bundles, self.persistence)
        self.lookups = OwnerLookups(
            self.view,
            self.assigner,
            self.executor,
            lambda: self.is_leading and self.election.term is not None,
            settings.lookup_timeout_ms / 1000,
        )
        self.reshaping = ReshapingLoop(self.view, self.desk, self.reshaper, self.election, self.journal, self.live)
        self._swept = 0

    def _make_executor(self) -> Executor:
        return Executor(
            self.view,
            self.ledger,
            AgentOwners(
                self.view, self.election, self.caller, lambda: self.live.current.unload_attempt_timeout_ms / 1000
            ),
            self.journal,
            lambda: ExecutorSettings.of(self.live.current),
            self.desk.churn,
            self.recorder,
            self.caller.tracing,
            Destinations(self.agents),
        )

    def _make_reshaper(self) -> Reshaper:
        return Reshaper(
            self.view,
            self.desk,
            self.ledger,
            self.assigner,
            self.executor,
            self.agents,
            self.journal,
            self.live,
            self._on_reshaped,
        )

    async def start(self) -> None:
        """Read the cluster, register this node and take part in elections; wait while the store does not answer.

        Raises the `StoreError` with which the store refuses what it is asked.
        """
        self._follow_session()
        self.recorder.start()
        self.audit.start()
        await self.executor.start()
        await self.agents.start()
        self._spawn(self.intake.run(), "intake")
        await self._patiently(self._registrar.make_folders)
        await self.intake.settled()
        await self._patiently(self.intake.load_history)
        self._spawn(self.ledger.run(), "ledger")
        self._spawn(self.chronicle.run(), "timeline")
        self._stand()

    async def stop(self) -> None:
        """Hand leadership over and end; what is under way is finished by the next leader."""
        await self._leave()
        await self.executor.close()
        await self.agents.close()
        await asyncio.to_thread(self.recorder.close)
        await asyncio.to_thread(self.audit.close)
        await asyncio.to_thread(self.caller.tracing.close)

    def _on_reshaped(self, namespace: str, owner: Registration | None) -> None:
        self.persistence.reshaped(namespace)
        if owner is not None and not self.view.is_registered(owner):
            self.reconciler.wake()  # it may have gone at that moment: its bundles were sought by their former names

    def scrape(self) -> Scrape:
        """What this node counts at this moment; called on the event loop."""
        return scrape_of(self)

    def _on_change(self) -> None:
        self._store_changed()
        if self.view.unsettled != self._swept:
            self._swept = self.view.unsettled
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
        log.info("leading", namespaces=len(self.view.namespaces), brokers=len(self.view.brokers))
        group.create_task(self.assigner.run())
        group.create_task(self.reconciler.run())
        group.create_task(self.drains.run())
        group.create_task(self.terms.keep_checkpoints())
        group.create_task(self.standstill.run())
        if self.settings.load_balancer_enabled:
            group.create_task(self._balance(group))

    def _note_end(self, reason: str) -> None:
        self.recorder.end_term(reason)

    async def _put_down(self, error: Exception) -> None:
        self.ledger.fail_pending(error)
        self.assigner.fail_waiting(error)
        await self.reshaper.abort()
        await self.executor.abort()
        await self.desk.end_term()

    async def _balance(self, group: asyncio.TaskGroup) -> None:
        """What goes by what the last leader remembered, or writes over it, once that is known."""
        await self.persistence.taken_over()
        group.create_task(self.shedding.run())
        group.create_task(self.persistence.run())
        group.create_task(self.persistence.run_memory())
        group.create_task(self.persistence.run_reshaped())
        group.create_task(self.reshaping.run())
