"""One load-manager node: a mirror of the cluster that answers lookups, and the leader's work while it leads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog

from loadmanager import __version__
from loadmanager.config import Settings
from loadmanager.core.cluster import ClusterModel
from loadmanager.core.extensible import ReportRules
from loadmanager.core.leadership import StepDownReason, Term
from loadmanager.core.ownership import Registration
from loadmanager.errors import (
    NoLeaderError,
    NotLeaderError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from loadmanager.history.files import Directory
from loadmanager.history.retention import Retention
from loadmanager.history.writer import HistoryWriter, WriterLimits
from loadmanager.leader.balancing.draining import Drainer
from loadmanager.leader.balancing.plans import PlanKeeper
from loadmanager.leader.balancing.rounds import ReshapingLoop
from loadmanager.leader.balancing.shedding import SheddingLoop
from loadmanager.leader.carrying_out.agents import Agents
from loadmanager.leader.carrying_out.assigning import Assigner
from loadmanager.leader.carrying_out.executor import Executor, ExecutorSettings
from loadmanager.leader.carrying_out.owners import AgentOwners
from loadmanager.leader.carrying_out.reconciling import Reconciler
from loadmanager.leader.carrying_out.reshaping import Reshaper
from loadmanager.leader.commands import BundleCommands
from loadmanager.leader.deciding.desk import MINUTE_S, Desk
from loadmanager.leader.deciding.explaining import Explainer
from loadmanager.leader.lookups import OwnerLookups
from loadmanager.leader.persistence import Persistence
from loadmanager.leader.picture.intake import Intake
from loadmanager.leader.picture.live_settings import LiveSettings
from loadmanager.leader.picture.view import ClusterView, LaidDown
from loadmanager.leader.port import Scrape
from loadmanager.leader.recording.journal import Journal
from loadmanager.leader.recording.moving import MoveRecorder
from loadmanager.leader.recording.recorded_model import RecordedModel
from loadmanager.leader.recording.recorder import Recorder
from loadmanager.leader.registering import NodeRegistrar
from loadmanager.leader.scraping import scrape_of
from loadmanager.leader.term.election import Election
from loadmanager.leader.term.ledger import Ledger
from loadmanager.leader.term.operators import Operators
from loadmanager.store.base import MetadataStore, SessionState
from loadmanager.wire.records import LeaderRecord, NodeRecord

log = structlog.get_logger(__name__)

_HOUR_S = 3_600.0
_TRY_AGAIN_S = 0.5


class Node:
    """A node of the load-manager service. `start` returns once the view is fresh; `stop` hands leadership over.

    To HTTP it is a `port.NodePort`.
    """

    def __init__(self, settings: Settings, store: MetadataStore, node_id: str, service_url: str, seed: int) -> None:
        self.settings = settings
        self.node_id = node_id
        self.service_url = service_url
        self.live = LiveSettings(settings)
        self.view, self.recorder, self.moves = _recorded(self.live, node_id)
        self.journal = Journal(settings.decisions_kept)
        self.store = store
        self.intake = Intake(store, self.view, self.live, self._on_change)
        self.election = self._make_election()
        self.ledger = Ledger(store, self.view, self.intake, self.election)
        self.operators = Operators(store, self.intake, self.election)
        self.desk = Desk(self.view, self.live, self.journal, seed, self.recorder, self.moves)
        self.explainer = Explainer(self.view, self.desk, self.journal)
        self.executor = self._make_executor()
        self.assigner = Assigner(self.desk, self.view, self.ledger, self.journal)
        self.shedding = SheddingLoop(self.desk, self.executor, self.election, self.journal, self.view, self.live)
        self.reconciler = Reconciler(
            self.view, self.ledger, self.executor, self.journal, self.live, self.assigner.place_soon
        )
        self.drains = Drainer(self.view, self.desk, self.executor, self.operators, self.journal, self.live)
        self.plans = PlanKeeper(self.view, self.desk, self.executor, self.live)
        self.persistence = Persistence(store, self.view, self.election, self.desk, self.intake.reject, self.live)
        self.agents = Agents(self.view)
        self.reshaper = self._make_reshaper()
        self.bundles = BundleCommands(
            self.view, self.ledger, self.executor, self.reshaper, self.agents, self.must_lead, self.get_term
        )
        self.lookups = OwnerLookups(
            self.view,
            self.assigner,
            self.executor,
            lambda: self.is_leading and self.election.term is not None,
            settings.lookup_timeout_ms / 1000,
        )
        self.reshaping = ReshapingLoop(self.view, self.desk, self.reshaper, self.election, self.journal, self.live)
        self.leading = asyncio.Event()
        self.leader_changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the leader changes, or this node begins to lead; then there is another one for the next time."""
        self._announced_url: str | None = None
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._swept = 0
        self._waits_for_store = False
        self._tasks: list[asyncio.Task[None]] = []
        self._term_task: asyncio.Task[None] | None = None
        self._end_of_term: asyncio.Task[None] | None = None
        now_ms = time.time_ns() // 1_000_000
        record = NodeRecord(node_id=node_id, service_url=service_url, version=__version__, start_timestamp=now_ms)
        self._registrar = NodeRegistrar(store, record)

    def _make_election(self) -> Election:
        return Election(
            self.store,
            self.view,
            LeaderRecord(broker_id=self.node_id, service_url=self.service_url, epoch=0),
            self.settings.leader_probe_interval_ms / 1000,
            self._on_elected,
            self._on_deposed,
        )

    def _make_executor(self) -> Executor:
        return Executor(
            self.view,
            self.ledger,
            AgentOwners(self.view, self.election, lambda: self.live.current.unload_attempt_timeout_ms / 1000),
            self.journal,
            lambda: _executor_settings(self.live.current),
            self.desk.churn,
            self.recorder,
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
        self._unsubscribe = self.store.on_session(self._on_session)
        self.recorder.start()
        await self.executor.start()
        await self.agents.start()
        self._spawn(self.intake.run(), "intake")
        await self._patiently(self._registrar.make_folders)
        await self.intake.settled()
        await self._patiently(self.intake.load_history)
        self._spawn(self._registrar.run(), "register")
        self._spawn(self.ledger.run(), "ledger")
        self._spawn(self.election.run(), "election")

    async def stop(self) -> None:
        """Hand leadership over and end; what is under way is finished by the next leader."""
        await self.election.resign()
        self.leading.clear()
        self.recorder.end_term("this node is stopping")
        await self._end_term(self._term_task, NotLeaderError("this node is stopping"))
        self._unsubscribe()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.executor.close()
        await self.agents.close()
        await asyncio.to_thread(self.recorder.close)

    @property
    def leader_url(self) -> str | None:
        """Where the leader answers, None when there is none."""
        return self.view.leader.service_url or None if self.view.leader else None

    def _on_reshaped(self, namespace: str, owner: Registration | None) -> None:
        self.persistence.reshaped(namespace)
        if owner is not None and not self.view.is_registered(owner):
            self.reconciler.wake()  # it may have gone at that moment: its bundles were sought by their former names

    def get_term(self) -> Term:
        """The term that this node has won; `NotLeaderError` when it has not."""
        return self.election.get_term()

    def must_lead(self) -> None:
        """Raise `NotLeaderError` on a node that does not lead, `NoLeaderError` on one that is about to."""
        self.get_term()
        if not self.is_leading:
            raise NoLeaderError("the new leader is still reading the cluster")

    @property
    def is_leading(self) -> bool:
        """Whether this node leads, and has read all that its predecessors wrote."""
        return self.leading.is_set()

    def why_not_ready(self) -> str | None:
        """Why this node's answers cannot be relied on at the moment; None when they can."""
        state = self.store.state
        if state is not SessionState.CONNECTED:
            obstacle = self.store.obstacle
            return f"the session with ZooKeeper is {state}" + (f": {obstacle}" if obstacle else "")
        if not self.view.is_fresh:
            return "the cluster is being read again after a reconnection"
        return self.election.why_nobody_leads()

    def scrape(self) -> Scrape:
        """What this node counts at this moment; called on the event loop."""
        return scrape_of(self)

    def _on_change(self) -> None:
        self.election.wake()
        if self.leader_url != self._announced_url:
            self._announce_leader()
        if self.view.unsettled != self._swept:
            self._swept = self.view.unsettled
            self.executor.membership_changed()
            self.reconciler.wake()

    def _announce_leader(self) -> None:
        self._announced_url = self.leader_url
        self.leader_changed.set_result(None)
        self.leader_changed = asyncio.get_running_loop().create_future()

    def _on_session(self, state: SessionState) -> None:
        self.election.link_changed()
        if state is SessionState.CONNECTED:
            self._spawn(self._registrar.run(), "register")

    def _on_elected(self, term: Term) -> None:
        self._term_task = self._spawn(self._lead(term, self._end_of_term), f"term {term.epoch}")

    def _on_deposed(self, reason: StepDownReason) -> None:
        self.leading.clear()
        self.recorder.end_term(str(reason))
        error = NotLeaderError(f"this node has just stepped down: {reason}")
        self._end_of_term = self._spawn(self._end_term(self._term_task, error), "end of term")

    async def _end_term(self, term_task: asyncio.Task[None] | None, error: Exception) -> None:
        if term_task is None:
            return
        term_task.cancel()
        await asyncio.gather(term_task, return_exceptions=True)
        self.ledger.fail_pending(error)
        self.assigner.fail_waiting(error)
        await self.reshaper.abort()
        await self.executor.abort()
        log.info("term_over", reason=str(error))

    async def _lead(self, term: Term, end_of_last_term: asyncio.Task[None] | None) -> None:
        """The leader's work, from the moment it has seen everything its predecessors wrote."""
        with structlog.contextvars.bound_contextvars(epoch=term.epoch):
            if end_of_last_term is not None:
                await end_of_last_term
            await self.intake.settle_registrations()
            await self.persistence.take_over()
            self.drains.forget()
            self.plans.forget()
            self._begin_to_record(term)
            self.leading.set()
            self._announce_leader()
            log.info("leading", namespaces=len(self.view.namespaces), brokers=len(self.view.brokers))
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self.assigner.run())
                    group.create_task(self.reconciler.run())
                    group.create_task(self.drains.run())
                    group.create_task(self._keep_checkpoints())
                    if self.settings.load_balancer_enabled:
                        group.create_task(self._balance(group))
            except* NotLeaderError as over:
                log.info("term_ended_under_way", epoch=term.epoch, error=str(over.exceptions[0]))

    async def _balance(self, group: asyncio.TaskGroup) -> None:
        """What goes by what the last leader remembered, or writes over it, once that is known."""
        await self.persistence.taken_over()
        group.create_task(self.shedding.run())
        group.create_task(self.persistence.run())
        group.create_task(self.persistence.run_memory())
        group.create_task(self.persistence.run_reshaped())
        group.create_task(self.reshaping.run())

    def _begin_to_record(self, term: Term) -> None:
        """Begin the term's part of the history, with what this node knows and remembers before it decides anything."""
        self.moves.forget()
        self.desk.begin_term()
        model = self.view.model
        if isinstance(model, RecordedModel):
            self.recorder.begin_term(term.epoch, self.node_id, model, self.desk)

    async def _keep_checkpoints(self) -> None:
        """Record everything again now and then: where a replay may begin."""
        model = self.view.model
        while isinstance(model, RecordedModel):
            await asyncio.sleep(self.settings.history_checkpoint_interval_minutes * MINUTE_S)
            await self.desk.checkpoint(model)

    async def _patiently(self, step: Callable[[], Awaitable[None]]) -> None:
        """Do a step of the start, again and again while the store does not answer."""
        while True:
            try:
                await step()
            except (StoreUnavailableError, OutcomeUnknownError) as error:
                if not self._waits_for_store:
                    log.warning("start_waits_for_store", error=str(error))
                self._waits_for_store = True
                await asyncio.sleep(_TRY_AGAIN_S)
            else:
                return

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.append(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if task in self._tasks:
            self._tasks.remove(task)
        if task.cancelled() or self.failure.done():
            return
        error = task.exception()
        if error is not None:
            log.error("task_failed", task=task.get_name(), exc_info=error)
            self.failure.set_exception(error)


def _recorded(live: LiveSettings, node_id: str) -> tuple[ClusterView, Recorder, MoveRecorder]:
    """The view of a node, and what records what happens to it: nothing does without a history."""
    settings, rules, laid_down = live.base, ReportRules.of(live.planner), LaidDown()
    if not settings.history_url:
        recorder = Recorder()
        return ClusterView(ClusterModel(rules), laid_down=laid_down), recorder, MoveRecorder(recorder)
    limits = WriterLimits(
        queue_rows=settings.history_queue_rows,
        rows_per_file=settings.history_rows_per_file,
        flush_interval_s=settings.history_flush_interval_s,
    )
    retention = Retention(settings.history_retention_hours * _HOUR_S or None, settings.history_max_bytes or None)
    writer = HistoryWriter(Directory.of(settings.history_url), node_id, limits, retention)
    recorder = Recorder(live, laid_down, writer)
    moves = MoveRecorder(recorder)
    return ClusterView(RecordedModel(rules, laid_down, recorder, moves), laid_down=laid_down), recorder, moves


def _executor_settings(settings: Settings) -> ExecutorSettings:
    return ExecutorSettings(
        deadline_s=settings.namespace_bundle_unloading_timeout_ms / 1000,
        concurrency=settings.max_concurrent_unloads,
        concurrency_per_broker=settings.max_concurrent_unloads_per_broker,
    )
