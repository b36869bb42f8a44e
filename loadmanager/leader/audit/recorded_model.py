"""Cluster model of a node: it records every input after it was applied, and measures moves.

`open_mirror` builds a node's mirror with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadmanager.core.domain.controls import Controls
from loadmanager.core.domain.names import BrokerId, namespace_of
from loadmanager.core.domain.ownership import Ownership, Registration
from loadmanager.core.domain.policies import Policies
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.bundle_averages import PartLoad
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.model.learned_loads import LearnedLoads
from loadmanager.core.model.load import BrokerReport, BundleAverages
from loadmanager.core.model.report_validation import ReportFaults
from loadmanager.history.compaction import Compaction, Retention
from loadmanager.history.entry_rows import HistoryEvent, Report
from loadmanager.history.files import Directory
from loadmanager.history.writer import HistoryWriter, WriterLimits
from loadmanager.leader.audit.history_recorder import HistoryRecorder
from loadmanager.leader.audit.move_records import MoveRecorder
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror, OperatorConfig
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.wire.checkpoint_codec import Later, Record, faults_as_json, owned_as_json, record_as_json


@dataclass(frozen=True, slots=True)
class _RecordChange:
    """A changed namespace record, written as the difference to the one before."""

    before: Record | None
    after: Record

    def as_json(self) -> dict[str, Any]:
        if self.before is None or list(self.before[0]) != list(self.after[0]):
            return record_as_json(self.after)
        pairs = zip(self.before[1], self.after[1], strict=True)
        return {
            "changed": {
                str(index): owned_as_json(after)
                for index, (before, after) in enumerate(pairs)
                if before is not after and before != after
            }
        }


class RecordedModel(ClusterModel):
    """Cluster model that records each input with `recorder`, and passes reports and departures of brokers on to
    `moves`. Inputs must not call each other, or they are recorded twice.
    """

    def __init__(self, settings: PlannerSettings, recorder: HistoryRecorder, moves: MoveRecorder) -> None:
        super().__init__(settings)
        self._recorder = recorder
        self._moves = moves
        self._records: dict[str, Record] = {}
        self._known: dict[BrokerId, Registration] = {}

    def records(self) -> dict[str, Record]:
        """Return the last record of each namespace."""
        return dict(self._records)

    def apply_report(self, registration: Registration, report: BrokerReport) -> None:
        if self._known.get(registration.broker) != registration:
            self._known[registration.broker] = registration
            body = {"incarnation": registration.incarnation, "version": report.version}
            self._recorder.put(HistoryEvent("broker_registered", registration.broker, body))
        super().apply_report(registration, report)
        self._recorder.put(Report(registration, report))
        self._moves.reported(registration, report)

    def remove_broker(self, broker_id: BrokerId) -> None:
        super().remove_broker(broker_id)
        self._known.pop(broker_id, None)
        self._recorder.put(HistoryEvent("broker_gone", broker_id))
        self._moves.broker_gone(broker_id)

    def set_namespace(self, namespace: str, bundle_names: Sequence[str], ownerships: Sequence[Ownership]) -> None:
        super().set_namespace(namespace, bundle_names, ownerships)
        if not self._recorder.is_on:
            return
        self._record_change(namespace, (self.own_names(bundle_names), ownerships))

    def set_owners(self, ownerships: Mapping[str, Ownership]) -> None:
        """Apply owners, and record the namespaces that changed as differences."""
        super().set_owners(ownerships)
        if not self._recorder.is_on:
            return
        for namespace in dict.fromkeys(map(namespace_of, ownerships)):
            names, before = self._records[namespace]
            self._record_change(
                namespace,
                (names, [ownerships.get(name, owned) for name, owned in zip(names, before, strict=True)]),
            )

    def _record_change(self, namespace: str, after: Record) -> None:
        before, self._records[namespace] = self._records.get(namespace), after
        self._recorder.put(HistoryEvent("namespace", namespace, _RecordChange(before, after)))

    def remove_namespace(self, namespace: str) -> None:
        super().remove_namespace(namespace)
        self._records.pop(namespace, None)
        self._recorder.put(HistoryEvent("namespace_gone", namespace))

    def redistribute(self, parts: Mapping[str, PartLoad]) -> None:
        super().redistribute(parts)
        body = {name: [part.load.tolist(), part.topics] for name, part in parts.items()}
        self._recorder.put(HistoryEvent("redistributed", "", body))

    def set_settings(self, settings: PlannerSettings) -> None:
        super().set_settings(settings)
        self._recorder.configured()

    def set_policies(self, policies: Policies) -> None:
        super().set_policies(policies)
        self._recorder.config_changed("policies")

    def set_controls(self, controls: Controls) -> None:
        super().set_controls(controls)
        self._recorder.config_changed("controls")

    def set_learned(self, learned: LearnedLoads) -> None:
        super().set_learned(learned)
        self._recorder.config_changed("learned")

    def set_faults(self, faults: ReportFaults) -> None:
        is_other = faults is not self._faults
        super().set_faults(faults)
        if is_other:
            self._recorder.put(HistoryEvent("faults", "", Later(lambda: faults_as_json(faults))))

    def seed_bundle(self, name: str, averages: BundleAverages) -> None:
        super().seed_bundle(name, averages)
        body = [averages.short, averages.long, averages.short_samples, averages.long_samples, averages.topics]
        if averages.time_mean is not None:
            body += [averages.time_mean.load, averages.time_mean.sigma]
        self._recorder.put(HistoryEvent("seeded", name, body))

    def mark_unloaded(self, name: str, at_s: float, source: BrokerId | None = None) -> None:
        super().mark_unloaded(name, at_s, source)
        self._recorder.put(HistoryEvent("unloaded", name, {"atS": at_s, "source": source}))

    def restore_unloaded(self, unloaded: Mapping[str, float], sources: Mapping[BrokerId, float] | None = None) -> None:
        super().restore_unloaded(unloaded, sources)
        self._recorder.put(HistoryEvent("restored", "", {"unloaded": unloaded, "unloadedFrom": sources or {}}))


_HOUR_S = 3_600.0


def open_mirror(live: LiveSettings, node_id: str) -> tuple[ClusterMirror, HistoryRecorder, MoveRecorder]:
    """Return an empty mirror, the recorder for the history in the settings, if any, and the move recorder."""
    settings, operator_config, writer = live.base, OperatorConfig(), None
    if settings.history_url:
        limits = WriterLimits(flush_interval_s=settings.history_flush_interval_s)
        retention = Retention(settings.history_retention_hours * _HOUR_S or None, settings.history_max_bytes or None)
        writer = HistoryWriter(Directory.of(settings.history_url), node_id, limits, retention, Compaction())
    recorder = HistoryRecorder(live, operator_config, writer)
    moves = MoveRecorder(recorder)
    model = RecordedModel(live.planner, recorder, moves)
    return ClusterMirror(model, operator_config=operator_config), recorder, moves
