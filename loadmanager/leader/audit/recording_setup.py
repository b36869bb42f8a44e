"""Construction of a node's mirror with its history recorder."""

from __future__ import annotations

from loadmanager.core.model.extensible_load import ReportRules
from loadmanager.history.compaction import Compaction
from loadmanager.history.files import Directory
from loadmanager.history.retention import Retention
from loadmanager.history.writer import HistoryWriter, WriterLimits
from loadmanager.leader.audit.history_recorder import HistoryRecorder
from loadmanager.leader.audit.move_records import MoveRecorder
from loadmanager.leader.audit.recorded_model import MeasuredModel, RecordedModel
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror, OperatorConfig
from loadmanager.leader.mirror.live_settings import LiveSettings

_HOUR_S = 3_600.0


def open_mirror(live: LiveSettings, node_id: str) -> tuple[ClusterMirror, HistoryRecorder, MoveRecorder]:
    """Return an empty mirror, the recorder for the history in the settings, and the move recorder."""
    settings, rules, operator_config = live.base, ReportRules.of(live.planner), OperatorConfig()
    if not settings.history_url:
        recorder = HistoryRecorder()
        moves = MoveRecorder(recorder)
        return ClusterMirror(MeasuredModel(rules, moves), operator_config=operator_config), recorder, moves
    limits = WriterLimits(flush_interval_s=settings.history_flush_interval_s)
    retention = Retention(settings.history_retention_hours * _HOUR_S or None, settings.history_max_bytes or None)
    writer = HistoryWriter(Directory.of(settings.history_url), node_id, limits, retention, Compaction())
    recorder = HistoryRecorder(live, operator_config, writer)
    moves = MoveRecorder(recorder)
    return (
        ClusterMirror(RecordedModel(rules, operator_config, recorder, moves), operator_config=operator_config),
        recorder,
        moves,
    )
