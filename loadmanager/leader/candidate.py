"""Candidate in leader elections: session, registration, terms, and the tasks of the process."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from loadmanager import __version__
from loadmanager.config.node_settings import Settings
from loadmanager.config.pulsar_service_settings import PulsarServiceSettings
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.certificate.plan_certificate import DecidedRound
from loadmanager.core.protocol.leadership import StepDownReason, Term
from loadmanager.errors import (
    NoLeaderError,
    NotLeaderError,
    OutcomeUnknownError,
    OutdatedMirrorError,
    StoreError,
    StoreUnavailableError,
)
from loadmanager.leader.audit.audit_log import AuditTrail
from loadmanager.leader.audit.decision_log import DecisionLog
from loadmanager.leader.audit.history_recorder import HistoryRecorder, LineageReader
from loadmanager.leader.election.campaign import Election
from loadmanager.leader.election.config_writer import ConfigWriter
from loadmanager.leader.election.leader_watch import LeaderWatch
from loadmanager.leader.execution.executor import Executor
from loadmanager.leader.loops.drain_loop import DrainLoop
from loadmanager.leader.loops.plan_driver import PlanDriver
from loadmanager.leader.loops.shedding_loop import SheddingLoop
from loadmanager.leader.mirror.broker_records import RawReports
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.leader.persistence import Persistence
from loadmanager.leader.planning.explanation_service import ExplanationService
from loadmanager.leader.planning.planner_service import PlannerService
from loadmanager.leader.planning.stuck_monitor import StuckMonitor
from loadmanager.leader.timeline_memory import TimelineMemory
from loadmanager.net.http_client import Caller
from loadmanager.net.liveness import Life
from loadmanager.store import paths
from loadmanager.store.metadata_store import Create, Delete, MetadataStore, SessionState
from loadmanager.util import clock
from loadmanager.wire.store_records import LeaderRecord, NodeRecord

log = structlog.get_logger(__name__)

_TRY_AGAIN_S = 0.5


Sample = tuple[str, str, dict[str, str], float]
"""A metric's name and meaning, its labels, and its value."""


@dataclass(frozen=True, slots=True)
class MetricSamples:
    """Metric samples of a node, copied on the event loop so that another thread can render them.

    `decisions` by kind, reason and whether something was done; `splits` by result and reason; `drains`: the bundles
    that a draining broker still owns; `strategy`: the figures of the shedding strategy under its own names.
    `last_round` is that of a node that leads; its figures take their time.
    """

    snapshot: Snapshot
    counters: Sequence[Sample]
    gauges: Sequence[Sample]
    decisions: Mapping[tuple[str, str, bool], int]
    strategy: Mapping[str, float]
    splits: Mapping[tuple[str, str], int]
    merges: Mapping[str, int]
    drains: Mapping[BrokerId, int]
    last_round: DecidedRound | None


class Candidate(ABC):
    """Base of processes that can lead; subclasses define the leader's work.

    `mirror` copies the store of the election. A leader that does not answer `caller` for `leader_silence_s` is replaced
    early; 0 disables that. `life` identifies this process. Subclasses create the attributes declared here.
    """

    settings: Settings | PulsarServiceSettings
    live: LiveSettings
    caller: Caller
    mirror: ClusterMirror
    reports: RawReports
    operators: ConfigWriter
    planner: PlannerService
    explainer: ExplanationService
    executor: Executor
    shedding: SheddingLoop
    drains: DrainLoop
    plans: PlanDriver
    persistence: Persistence
    stuck_monitor: StuckMonitor
    decision_log: DecisionLog
    audit: AuditTrail
    lineage: LineageReader
    recorder: HistoryRecorder
    timeline_memory: TimelineMemory

    def __init__(
        self,
        store: MetadataStore,
        mirror: ClusterMirror,
        node_id: str,
        service_url: str,
        leader_silence_s: float,
        caller: Caller,
        life: Life | None = None,
    ) -> None:
        self.store = store
        self.node_id = node_id
        self.service_url = service_url
        self._life = life or Life(kind="node")
        record = LeaderRecord(broker_id=node_id, service_url=service_url, epoch=0, life=self._life.name)
        self.election = Election(store, mirror, record, self._on_elected, self._on_deposed)
        self.leader_watch = LeaderWatch(store, mirror, self.election, caller, leader_silence_s, self._life)
        self.leading = asyncio.Event()
        self.leader_changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Completes when the leader changes or this node begins to lead; a new future then replaces it."""
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._elected_in = mirror
        self._announced_url: str | None = None
        self._waits_for_store = False
        self._tasks: list[asyncio.Task[None]] = []
        self._term_task: asyncio.Task[None] | None = None
        self._end_of_term: asyncio.Task[None] | None = None
        self._epoch_asked: asyncio.Task[int] | None = None
        now_ms = clock.now_ms()
        self._record = NodeRecord(node_id=node_id, service_url=service_url, version=__version__, start_timestamp=now_ms)

    @abstractmethod
    def scrape(self) -> MetricSamples:
        """Collect the metric samples; called on the event loop."""

    @abstractmethod
    async def _prepare(self, term: Term) -> None:
        """Read everything that former leaders wrote, before the work of a term begins."""

    @abstractmethod
    def _begin_work(self, group: asyncio.TaskGroup) -> None:
        """Begin the leader's work, in tasks that end with the term."""

    @abstractmethod
    def _note_end(self, reason: str) -> None:
        """Note that the term is over."""

    @abstractmethod
    async def _put_down(self, error: Exception) -> None:
        """Drop the work of an ended term; callers that wait for it get `error`."""

    @property
    def leader_url(self) -> str | None:
        """URL of the leader, None when there is none."""
        leader = self._elected_in.leader
        return leader.service_url or None if leader else None

    def get_term(self) -> Term:
        """Return the term of this node; raises `NotLeaderError` when it does not lead."""
        return self.election.get_term()

    async def prove_term(self) -> Term:
        """Return the term once the store has confirmed its epoch. Concurrent callers share one read.

        Raises `NotLeaderError`, or the `StoreError` of a store that does not answer.
        """
        if self._epoch_asked is None or self._epoch_asked.done():
            self.get_term()
            self._epoch_asked = asyncio.create_task(self._ask_epoch())
            # All callers may be cancelled before it fails: then nobody else retrieves the error.
            self._epoch_asked.add_done_callback(lambda asked: asked.cancelled() or asked.exception())
        asked = self._epoch_asked
        await asyncio.wait([asked])  # unlike shield, reports no error that nobody waits for
        epoch = asked.result()
        term = self.get_term()
        if epoch > term.epoch:
            self.election.deposed()
        if epoch != term.epoch:
            raise NotLeaderError(f"the store says that the epoch is {epoch}")
        return term

    async def _ask_epoch(self) -> int:
        znode = await self.store.get(paths.EPOCH)
        return -1 if znode is None else znode.version

    def must_lead(self) -> None:
        """Raise `NotLeaderError` on a node that does not lead, `NoLeaderError` on one that is about to."""
        self.get_term()
        if not self.is_leading:
            raise NoLeaderError("the new leader is still reading the cluster")

    def must_be_current(self) -> None:
        """Raise `OutdatedMirrorError` when the session in which the mirror was read may be over.

        After a store rollback ZooKeeper may reuse the incarnations in the mirror. An agent would then accept a claim
        about another process.
        """
        if self.may_be_outdated:
            raise OutdatedMirrorError(self.why_not_ready() or "the session with ZooKeeper may be over")

    @property
    def may_be_outdated(self) -> bool:
        """True when the session in which the mirror was read may be over: another node may lead."""
        return self._elected_in.is_of_former_session or clock.now_s() >= self.store.lease_valid_until_s

    @property
    def is_leading(self) -> bool:
        """True once this node leads and has read everything that former leaders wrote."""
        return self.leading.is_set()

    @property
    def denied(self) -> Mapping[str, str]:
        """Access that the store's ACLs deny to this node, by znode."""
        return self.store.denied

    def why_not_ready(self) -> str | None:
        """Return the reason why this node is not ready to answer; None when it is ready."""
        state = self.store.state
        if state is not SessionState.CONNECTED:
            obstacle = self.store.obstacle
            return f"the session with ZooKeeper is {state}" + (f": {obstacle}" if obstacle else "")
        if not self._elected_in.is_fresh:
            return "; ".join(["the cluster is being read again after a reconnection", *self.denied.values()])
        return self.election.why_nobody_leads()

    def _follow_session(self) -> None:
        self._unsubscribe = self.store.on_session(self._on_session)

    def _stand(self) -> None:
        self._spawn(self._register(), "register")
        self._spawn(self.election.run(), "election")
        self._spawn(self.leader_watch.run(), "leader watch")

    async def _make_folders(self) -> None:
        for path in paths.PERSISTENT_PARENTS:
            await self.store.ensure_path(path)

    async def _register(self) -> None:
        """Register this node in the current session. Retry while a former process's registration or a lost connection
        prevents it.
        """
        while True:
            try:
                await self._try_to_register()
            except StoreError as error:
                log.info("not_registered_yet", error=str(error))
                await asyncio.sleep(_TRY_AGAIN_S)
            else:
                return

    async def _try_to_register(self) -> None:
        path = paths.node(self.node_id)
        known = await self.store.get(path)
        if known is not None and known.ephemeral_owner == self.store.session_id:
            return
        await self._make_folders()
        left_over = [Delete(path)] if known is not None else []
        await self.store.commit([*left_over, Create(path, self._record.to_json(), ephemeral=True)])

    async def _leave(self) -> None:
        """Resign and end every task; the next leader finishes moves in flight."""
        await self.election.resign()
        self.leading.clear()
        self._note_end("this node is stopping")
        await self._end_term(self._term_task, NotLeaderError("this node is stopping"))
        self._unsubscribe()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._life.close()

    def _store_changed(self) -> None:
        self.election.wake()
        self._keep_watch()
        if self.leader_url != self._announced_url:
            self._announce_leader()

    def _keep_watch(self) -> None:
        self.leader_watch.look()

    def _announce_leader(self) -> None:
        self._announced_url = self.leader_url
        self.leader_changed.set_result(None)
        self.leader_changed = asyncio.get_running_loop().create_future()

    def _on_session(self, state: SessionState) -> None:
        self.election.link_changed()
        self._keep_watch()
        if state is SessionState.CONNECTED:
            self._spawn(self._register(), "register")

    def _on_elected(self, term: Term) -> None:
        self._keep_watch()
        self._term_task = self._spawn(self._lead(term, self._end_of_term), f"term {term.epoch}")

    def _on_deposed(self, reason: StepDownReason) -> None:
        self.leading.clear()
        self._keep_watch()
        self._note_end(str(reason))
        error = NotLeaderError(f"this node has just stepped down: {reason}")
        self._end_of_term = self._spawn(self._end_term(self._term_task, error), "end of term")

    async def _end_term(self, term_task: asyncio.Task[None] | None, error: Exception) -> None:
        if term_task is None:
            return
        term_task.cancel()
        await asyncio.gather(term_task, return_exceptions=True)
        await self._put_down(error)
        log.info("term_ended", reason=str(error))

    async def _lead(self, term: Term, end_of_last_term: asyncio.Task[None] | None) -> None:
        with structlog.contextvars.bound_contextvars(epoch=term.epoch):
            if end_of_last_term is not None:
                await end_of_last_term
            await self._prepare(term)
            self.leading.set()
            self._announce_leader()
            try:
                async with asyncio.TaskGroup() as group:
                    self._begin_work(group)
            except* NotLeaderError as over:
                log.info("term_ended_early", epoch=term.epoch, error=str(over.exceptions[0]))

    async def _patiently(self, step: Callable[[], Awaitable[None]]) -> None:
        """Run a startup step, and retry while the store does not answer."""
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
