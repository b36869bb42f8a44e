"""Process that polls the brokers of a Pulsar, and plans, compares and moves bundles while it leads.

The processes elect a leader, which plans, through a store of their own. It also holds the operator controls, which are
copied into the mirror of the Pulsar.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import structlog

from loadmanager.config.dynamic_settings import settings_of
from loadmanager.config.pulsar_service_settings import PulsarServiceSettings
from loadmanager.core.diagnosis.pulsar_comparison import Sighted
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.plan import Verdict
from loadmanager.core.protocol.guardrails import check_controls
from loadmanager.core.protocol.leadership import Term
from loadmanager.errors import LoadManagerError
from loadmanager.lab.whatif import score_worker
from loadmanager.leader.audit.audit_log import AuditTrail
from loadmanager.leader.audit.decision_log import DecisionLog
from loadmanager.leader.audit.history_recorder import LineageReader
from loadmanager.leader.audit.recorded_model import open_mirror
from loadmanager.leader.candidate import Candidate, MetricSamples
from loadmanager.leader.election.config_writer import ConfigWriter
from loadmanager.leader.fleet_status import FleetStatus
from loadmanager.leader.metric_samples import collect_samples, count_splits, split_counters
from loadmanager.leader.mirror.broker_records import RawReports
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.leader.mirror.mirror_intake import MirrorIntake
from loadmanager.leader.persistence import Persistence
from loadmanager.leader.planning.explanation_service import ExplanationService
from loadmanager.leader.planning.planner_service import PlannerService, TermHistory
from loadmanager.leader.planning.stuck_monitor import StuckMonitor
from loadmanager.leader.timeline_memory import TimelineMemory
from loadmanager.net.http_client import Caller
from loadmanager.net.tracing import tracing_of
from loadmanager.pulsar.activity_log import ActivityLog, BoundedFile
from loadmanager.pulsar.actuator import Actuator
from loadmanager.pulsar.broker_settings import BrokerSettingsPoll, PulsarSettings
from loadmanager.pulsar.comparison_driver import ComparisonDriver, log_scores
from loadmanager.pulsar.fenced_znode import FencedRecord
from loadmanager.pulsar.pulsar_admin import PulsarAdmin
from loadmanager.pulsar.pulsar_intake import PulsarIntake
from loadmanager.pulsar.scores import Scores
from loadmanager.pulsar.take_over import TakeOver
from loadmanager.pulsar.verdict import ServiceLocation
from loadmanager.store import paths
from loadmanager.store.metadata_store import MetadataStore, SessionState
from loadmanager.util import clock
from loadmanager.wire.pulsar_records import PulsarServiceStatus

log = structlog.get_logger(__name__)

SERVICE = "loadmanager-pulsar"
"""Service name in traces."""

_RESTORE_S = 5.0
_SHOWN_UNSERVED = 20


class PulsarService(Candidate):
    """Observes or balances a Pulsar. `start` returns after everything is read; `stop` hands over to the next leader."""

    settings: PulsarServiceSettings
    live: PulsarSettings

    def __init__(
        self,
        settings: PulsarServiceSettings,
        live: PulsarSettings,
        store: MetadataStore,
        admin: PulsarAdmin,
        node_id: str,
        service_url: str,
        seed: int,
    ) -> None:
        self.settings = settings
        self.caller = Caller.of(settings, tracing_of(SERVICE, node_id))
        self.live = live
        self.mirror, self.recorder, self.moves = open_mirror(live, node_id)
        self.audit = AuditTrail(node_id, settings, self.recorder, live.base.history_url)
        self.lineage = LineageReader(live.base.history_url, self.recorder)
        self._own_mirror = ClusterMirror()
        silence_s = live.current.leader_silence_ms / 1000
        super().__init__(store, self._own_mirror, node_id, service_url, silence_s, self.caller)
        self.decision_log = DecisionLog()
        self.moves.on_measured = self.decision_log.measured
        self._own_intake = MirrorIntake(store, self._own_mirror, LiveSettings(settings_of({}, "")), self._on_own_change)
        self.brokers = BrokerSettingsPoll(admin)
        interval_s = settings.poll_interval_seconds
        self.intake = PulsarIntake(admin, self.brokers, self.mirror, live, interval_s, self._on_poll, self._on_moved)
        self.reports = RawReports(self.intake.find_report, self.mirror)
        self.operators = ConfigWriter(store, self._own_intake, self.election)
        self.planner = PlannerService(self.mirror, live, self.decision_log, seed, self.recorder, self.moves)
        self.terms = TermHistory(node_id, self.mirror, self.planner, self.moves)
        self.explainer = ExplanationService(self.mirror, self.planner, self.decision_log)
        self.diary = ActivityLog(settings.folder)
        self.scores = self._make_scores()
        self.comparison = self._make_comparison(seed)
        self.actuator = Actuator(
            settings,
            live,
            self.mirror,
            self.intake,
            admin,
            self.brokers,
            store,
            self.election,
            self.planner,
            self.operators,
            self.decision_log,
            lambda plan: self.comparison.add_round(plan, self.planner.snapshot()),
            self.caller.tracing,
        )
        self.stuck_monitor = StuckMonitor(self.planner, live, self.actuator.guardrails.limits)
        self.executor, self.shedding = self.actuator.executor, self.actuator.shedding
        self.drains, self.plans = self.actuator.drains, self.actuator.plans
        self.take_over = TakeOver(admin, FencedRecord(store, self.election, paths.TAKEN_OVER), settings)
        self.fleet_status = FleetStatus(self, only_shows=settings.mode == "observe")
        self.timeline_memory = TimelineMemory(self.mirror, self.live, lambda: self.leader_changed)
        self.persistence = Persistence(store, self.mirror, self.election, self.planner, self._own_intake.reject, live)
        self._swept = 0
        self._registered: frozenset[Registration] = frozenset()

    def _make_scores(self) -> Scores:
        file = BoundedFile(self.settings.folder / "scores.jsonl")
        on_score = log_scores(self.diary)
        return Scores(lambda: self.live.current, self.settings.strategies, score_worker.ask, on_score, file)

    def _make_comparison(self, seed: int) -> ComparisonDriver:
        where = ServiceLocation(self.settings.folder, self.service_url)
        return ComparisonDriver(
            self.live,
            self.diary,
            self.scores,
            where,
            seed,
            is_acting=self.settings.mode == "act",
            is_bundle=self.intake.owners.__contains__,
            take_snapshot=self.planner.snapshot,
        )

    async def start(self) -> None:
        """Read Pulsar's cluster and the operators' records, and join the election. Retries until the stores answer.

        Raises a `StoreError` if a store refuses a request.
        """
        self._follow_session()
        self.recorder.start()
        self.audit.start()
        self._spawn(self._own_intake.run(), "own store")
        self._spawn(self.intake.run(), "intake")
        await self._patiently(self._make_folders)
        await self._own_intake.settled()
        await self.intake.settled()
        self._spawn(self.comparison.run(), "comparison")
        self._spawn(self.timeline_memory.run(), "timeline")
        self._stand()

    async def stop(self) -> None:
        """Hand over and stop; the next leader ends the in-flight moves."""
        await self._restore_switches()
        await self._leave()
        await self.executor.abort()
        await asyncio.to_thread(self.recorder.close)
        await asyncio.to_thread(self.audit.close)
        await asyncio.to_thread(self.caller.tracing.close)

    def why_not_ready(self) -> str | None:
        """Return the reason why this process is not ready, None if it is."""
        if not self.mirror.is_fresh:
            return self.intake.fault
        why_not = super().why_not_ready()
        return f"stateStoreUrl: {why_not}" if why_not and self.store.state is not SessionState.CONNECTED else why_not

    def status(self) -> PulsarServiceStatus:
        """Return the state of this process, and the reasons why it does not act."""
        controls, stopped_s = self.mirror.operator_config.controls, self.planner.churn.figures().shedding_stopped_for_s
        by_operators = check_controls(controls, self.mirror.registrations, stopped_s)
        obstacles = [*map(_with_remedy, [*self.actuator.guardrails.check_round(), *by_operators])]
        reported_s = [at_s for broker in self.mirror.registrations if (at_s := self.intake.reports_at_s(broker))]
        history = self.actuator.move_log.history
        return PulsarServiceStatus(
            mode=self.settings.mode,
            cluster=self.live.current.cluster_name,
            leading=self.is_leading,
            acting=not obstacles,
            obstacles=obstacles,
            stopped=history.is_stopped,
            failures=history.failures,
            misses=self.actuator.move_log.misses,
            brokers=len(self.mirror.registrations),
            bundles=len(self.intake.owners),
            pulsars_leader=self.intake.pulsars_leader,
            pulsar_sheds=bool(self.brokers.shedding()),
            oldest_report_s=round(time.time() - min(reported_s), 3) if reported_s else None,
            unserved=self.mirror.ownerless[:_SHOWN_UNSERVED],
            faults={**self._own_mirror.faults, **self.mirror.faults},
        )

    async def resume(self) -> None:
        """Act again after repeated failed moves. Raises `NotLeaderError` or a `StoreError`."""
        await self.actuator.move_log.resume()

    def scrape(self) -> MetricSamples:
        """Return the metric samples. Must be called on the event loop."""
        reshaper, reshaping = self.actuator.reshaper, self.actuator.reshaping
        counters = [*self.comparison.counters(), *split_counters(reshaper, reshaping)]
        samples = collect_samples(self, self.intake, counters, self.comparison.gauges())
        return replace(samples, splits=count_splits(reshaper))

    async def _restore_switches(self) -> None:
        """Restore Pulsar's own balancing. On failure log the commands that do so, as there may be no next leader."""
        try:
            async with asyncio.timeout(_RESTORE_S):
                if self.is_leading:
                    await self.take_over.restore_switches()
                    return
                if self.leader_url not in (None, self.service_url) or not await self.take_over.read_undo_commands():
                    return
            why = "this process does not lead, and no other does"
        except (LoadManagerError, TimeoutError) as error:
            why = str(error) or f"no answer within {_RESTORE_S:g} s"
        if undo_commands := self.take_over.undo_commands():
            log.error("pulsar_balancing_not_restored", error=why, undo_commands=undo_commands)

    # Changes

    def _on_own_change(self) -> None:
        """Copy the leader and the operators' controls from our own store into the mirror."""
        own = self._own_mirror
        self.mirror.leader, self.mirror.epoch, self.mirror.nodes = own.leader, own.epoch, own.nodes
        controls = own.operator_config.controls
        if controls != self.mirror.operator_config.controls:
            self.mirror.operator_config.controls = controls
            self.mirror.model.set_controls(controls)
        self._store_changed()

    def _on_poll(self) -> None:
        """Handle an applied poll."""
        registered = frozenset(self.mirror.registrations.values())
        for each in self._registered - registered:
            self.comparison.note_departure(each, clock.now_ms())
        self._registered = registered
        self.live.exclude(self.actuator.guardrails.find_excluded(self.mirror.namespaces))
        if self.mirror.unsettled != self._swept:
            self._swept = self.mirror.unsettled
            self.executor.membership_changed()

    def _on_moved(self, seen: Sighted) -> None:
        """Handle a change of owner."""
        self.comparison.note_move(seen)
        if seen.before is not None and not seen.by_us and self.mirror.is_registered(seen.before):
            self.mirror.model.mark_unloaded(seen.bundle, seen.at_ms / 1000, seen.before.broker)

    # The work of a term

    async def _prepare(self, term: Term) -> None:
        await self.intake.settled()
        await self.actuator.take_over()
        await self.persistence.take_over()
        self.terms.begin(term.epoch)

    def _begin_work(self, group: asyncio.TaskGroup) -> None:
        log.info("leading", namespaces=len(self.mirror.namespaces), brokers=len(self.mirror.brokers))
        group.create_task(self.terms.keep_checkpoints())
        group.create_task(self.stuck_monitor.run())
        group.create_task(self.take_over.run(self.brokers.switched_on))
        group.create_task(self._balance(group))

    async def _balance(self, group: asyncio.TaskGroup) -> None:
        await self.persistence.taken_over()
        await self.actuator.recovery.run(self.mirror.epoch)
        group.create_task(self.persistence.run_memory())
        group.create_task(self.shedding.run(at_once=True))  # an operator may have just started this process
        if self.settings.splits_enabled:
            group.create_task(self.actuator.reshaping.run())
        if self.settings.mode == "act":
            group.create_task(self.drains.run())

    def _note_end(self, reason: str) -> None:
        self.recorder.end_term(reason)
        self.comparison.end_term()

    async def _put_down(self, error: Exception) -> None:
        del error
        await self.actuator.put_down()


def _with_remedy(stop: Verdict) -> str:
    return f"{stop.sentence()}; to change it: {stop.remedy()}"
