"""Metric samples of a node, under the names and labels that Prometheus scrapes.

Pulsar's names where it has them, `loadmanager_` for the rest. `Sample` is a name, its meaning, labels and the value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from loadmanager.core.domain.reasons import MergeReason, Reason, SplitReason
from loadmanager.core.strategies.splitting import PULSAR_REASONS
from loadmanager.leader.candidate import Candidate, MetricSamples, Sample
from loadmanager.leader.election.ownership_ledger import OwnershipLedger
from loadmanager.leader.execution.assignment_driver import AssignmentDriver
from loadmanager.leader.execution.reshape_driver import ReshapeDriver
from loadmanager.leader.loops.reshape_loop import ReshapeLoop
from loadmanager.leader.mirror.cluster_mirror import unserved_bundles
from loadmanager.util import clock

_SPLIT_REASONS = {**PULSAR_REASONS, SplitReason.ADMIN_SPLIT: "Admin"}
_MERGE_REASONS = (MergeReason.COLD_NEIGHBOURS, MergeReason.ADMIN_MERGE)


class ReportIntake(Protocol):
    """Intake that keeps the mirror up to date with reports."""

    @property
    def reports_applied(self) -> int: ...
    @property
    def records_rejected(self) -> int: ...


class SplitCounters(Protocol):
    """Counters of splits."""

    splits: Counter[Reason]
    splits_failed: int


def collect_samples(
    node: Candidate, intake: ReportIntake, counters: Iterable[Sample] = (), gauges: Iterable[Sample] = ()
) -> MetricSamples:
    """Collect the samples of any process that plans and moves bundles, plus the given ones; called on the event
    loop.
    """
    return MetricSamples(
        node.planner.snapshot(),
        _as_floats(_counters(node, intake), _churn_counters(node), _recording_counters(node), counters),
        _as_floats(_gauges(node), _churn_gauges(node), _recording_gauges(node), gauges),
        dict(node.decision_log.counts),
        dict(node.shedding.strategy_metrics),
        splits={},
        merges={},
        drains=node.drains.bundles_left(),
        last_round=node.planner.last_round if node.is_leading else None,
    )


def collect_node_samples(
    node: Candidate,
    intake: ReportIntake,
    assigner: AssignmentDriver,
    ledger: OwnershipLedger,
    reshaper: ReshapeDriver,
    reshaping: ReshapeLoop,
) -> MetricSamples:
    """Collect the samples of a node, with those of owners, splits and merges; called on the event loop."""
    watch = node.leader_watch
    counters: list[Sample] = [
        *split_counters(reshaper, reshaping),
        ("loadmanager_assignments", "Bundles given an owner.", {}, assigner.assignments),
        (
            "loadmanager_leaders_found_silent",
            "Silent leaders that this node was to replace early.",
            {},
            watch.found_silent,
        ),
        (
            "loadmanager_invariants_violated",
            "Writes refused because they would break an invariant.",
            {},
            ledger.invariants_violated,
        ),
        (
            "loadmanager_writes_fenced",
            "Writes that the fencing epoch refused: another node leads.",
            {},
            ledger.writes_fenced,
        ),
    ]
    heard: Sample = ("loadmanager_leader_heard", "1 while the leader, another node, answers.", {}, watch.hears)
    merges = {reason.value: reshaper.merges[reason] for reason in _MERGE_REASONS}
    samples = collect_samples(node, intake, counters, [heard])
    return replace(samples, splits=count_splits(reshaper), merges=merges)


def split_counters(reshaper: SplitCounters, reshaping: ReshapeLoop) -> list[Sample]:
    """Return the counters of splits and merges by rounds."""
    split, none = {"metric": "bundlesSplit"}, dict[str, str]()
    done = reshaper.splits.total() - reshaper.splits[SplitReason.ADMIN_SPLIT]
    return [
        ("pulsar_lb_bundles_split", "Bundles that the leader has split by itself.", split, done),
        ("loadmanager_reshaping_rounds", "Rounds of splits and merges.", none, reshaping.rounds),
        (
            "loadmanager_reshaping_rounds_failed",
            "Rounds of splits and merges that failed.",
            none,
            reshaping.rounds_failed,
        ),
    ]


def _counters(node: Candidate, intake: ReportIntake) -> list[Sample]:
    unloading, none = {"metric": "bundleUnloading"}, dict[str, str]()
    return [
        ("pulsar_lb_unload_broker", "Brokers shed from, summed over rounds.", unloading, node.shedding.brokers_shed),
        ("pulsar_lb_unload_bundle", "Bundles unloaded.", unloading, node.executor.unloads_completed),
        (
            "loadmanager_unloads_failed",
            "Unloads given up; the owner kept the bundle.",
            none,
            node.executor.unloads_failed,
        ),
        ("loadmanager_stale_steps", "Steps of plans refused as out of date.", none, node.executor.stale_steps),
        (
            "loadmanager_bundles_ignored",
            "Bundles in reports that the record of their namespace does not have.",
            none,
            node.mirror.model.bundles_ignored,
        ),
        ("loadmanager_shedding_cycles", "Rounds of shedding planned.", none, node.shedding.cycles),
        ("loadmanager_shedding_cycles_failed", "Rounds that ended in an error.", none, node.shedding.cycles_failed),
        (
            "loadmanager_sessions_given_up",
            "Sessions that ZooKeeper did not take back.",
            none,
            node.store.sessions_given_up,
        ),
        ("loadmanager_terms_won", "Elections won by this node.", none, node.election.terms_won),
        ("loadmanager_reports_applied", "Load reports taken in.", none, intake.reports_applied),
        ("loadmanager_records_rejected", "Records that could not be used.", none, intake.records_rejected),
        ("loadmanager_history_records_written", "Records of history written.", none, node.persistence.records_written),
    ]


def _size_gauges(node: Candidate) -> list[Sample]:
    """Return the fleet size, if this node leads and knows it: an autoscaler must not act on a guess."""
    size, meaning = node.stuck_monitor.size, "Least number of brokers that carry the current peak after a loss."
    return [] if size is None else [("loadmanager_brokers_needed", meaning, {}, size.needed)]


def _gauges(node: Candidate) -> list[Sample]:
    none = dict[str, str]()
    return [
        ("loadmanager_leader", "1 while this node leads.", none, node.election.term is not None),
        ("loadmanager_epoch", "The current epoch.", none, node.mirror.epoch),
        ("loadmanager_lease_seconds", "Time for which the session is certain to live.", none, _lease_s(node)),
        (
            "loadmanager_view_fresh",
            "1 while the mirror is fresh: read since the last reconnection.",
            none,
            node.mirror.is_fresh,
        ),
        (
            "loadmanager_faulty_znodes",
            "Znodes that cannot be read at the moment, or that access lists keep from this node.",
            none,
            len(node.mirror.faults.keys() | node.store.denied.keys()),
        ),
        ("loadmanager_brokers", "Registered brokers.", none, len(node.mirror.registrations)),
        *_size_gauges(node),
        (
            "loadmanager_brokers_rejected",
            "Brokers with rejected reports, which shedding leaves alone.",
            none,
            len(node.planner.snapshot().faults.rejected),
        ),
        (
            "loadmanager_brokers_sick",
            "Brokers far off their peers by their own figures, which are given less, or nothing.",
            none,
            len(node.planner.snapshot().faults.unwell),
        ),
        (
            "loadmanager_bundles_unserved",
            "Bundles that no client can use: their broker serves nothing (broker_stuck), or a Pulsar has no owner.",
            none,
            sum(each["bundles"] for each in unserved_bundles(node.mirror)) + len(node.mirror.ownerless),
        ),
        (
            "loadmanager_cannot_move",
            "Reasons for which nothing can be moved; the leader's /readyz names them.",
            none,
            len(node.stuck_monitor.found),
        ),
        (
            "loadmanager_namespaces_unplaceable",
            "Namespaces that no broker may own by the isolation policies; /readyz names them.",
            none,
            sum(len(each.namespaces) for each in node.mirror.unplaceable()),
        ),
        ("loadmanager_namespaces", "Namespaces.", none, len(node.mirror.namespaces)),
        ("loadmanager_shedding_cycle_seconds", "Planning time of the last round.", none, node.shedding.last_cycle_s),
    ]


def _as_floats(*groups: Iterable[Sample]) -> list[Sample]:
    return [(name, text, labels, float(value)) for group in groups for name, text, labels, value in group]


def _recording_counters(node: Candidate) -> list[Sample]:
    """Return the counters of the history recorder; all 0 on a node that records nothing."""
    figures, none = node.recorder.figures, dict[str, str]()
    return [
        ("loadmanager_recorded_rows", "Rows written into the recorded history.", none, figures.rows_written),
        ("loadmanager_recorded_rows_lost", "Rows that could not be kept or written.", none, figures.rows_lost),
        ("loadmanager_recorded_bytes", "Bytes written into the recorded history.", none, figures.bytes_written),
        ("loadmanager_recorded_files", "Files written into the recorded history.", none, figures.files_written),
        ("loadmanager_recording_failures", "Attempts to write that failed.", none, figures.write_failures),
    ]


def _recording_gauges(node: Candidate) -> list[Sample]:
    figures, none = node.recorder.figures, dict[str, str]()
    return [
        ("loadmanager_recording_queue_rows", "Recorded rows that are not written yet.", none, figures.queue_rows),
        ("loadmanager_recording_queue_bytes", "About what they take in memory.", none, figures.queue_bytes),
        ("loadmanager_recording", "1 while this node leads and records.", none, node.recorder.is_recording),
        (
            "loadmanager_recording_failing",
            "1 while nothing can be written into the recorded history.",
            none,
            figures.is_failing,
        ),
    ]


def _churn_counters(node: Candidate) -> list[Sample]:
    """Return the counters of moves, drains and plans, and of breaker trips."""
    churn, none = node.planner.churn, dict[str, str]()
    return [
        ("loadmanager_moves", "Unloads completed, at an operator's word too.", none, churn.moves),
        ("loadmanager_load_moved_bytes_per_second", "Load of the bundles moved, added up.", none, churn.load_moved),
        ("loadmanager_breaker_trips", "Bundles or shedding stopped for thrashing.", none, churn.trips),
        ("loadmanager_unloads_cancelled", "Unloads cancelled by operators.", none, node.executor.unloads_cancelled),
        ("loadmanager_drain_bundles_moved", "Bundles moved by drains and pins.", none, node.drains.bundles_moved),
        ("loadmanager_plans_executed", "Plans executed to the end.", none, node.plans.executed),
        ("loadmanager_plans_stopped", "Plans stopped because the cluster had drifted.", none, node.plans.stopped),
    ]


def _churn_gauges(node: Candidate) -> list[Sample]:
    """Return the figures behind the churn limits, and what the breaker has stopped; all 0 on a node that does not
    lead.
    """
    figures, none = node.planner.churn.figures(), dict[str, str]()
    leads = node.is_leading
    return [
        (
            "loadmanager_moved_per_hour_ratio",
            "Part of all load that shedding moved within the hour.",
            none,
            leads * figures.moved_within_hour,
        ),
        (
            "loadmanager_moved_again_ratio",
            "Part of all load that shedding moved in the last two hours, and had moved within two hours before.",
            none,
            leads * figures.moved_again,
        ),
        (
            "loadmanager_moved_back_ratio",
            "Part of all load that shedding moved in the last four hours to where it had been within four hours.",
            none,
            leads * figures.moved_back,
        ),
        (
            "loadmanager_shedding_stopped",
            "1 while the breaker has stopped shedding.",
            none,
            leads * (figures.shedding_stopped_for_s > 0),
        ),
        (
            "loadmanager_bundles_frozen_by_breaker",
            "Bundles that are not shed as they kept returning.",
            none,
            leads * len(figures.frozen_for_s),
        ),
        (
            "loadmanager_draining_brokers",
            "Brokers being drained.",
            none,
            len(node.mirror.operator_config.controls.draining),
        ),
    ]


def count_splits(reshaper: SplitCounters) -> dict[tuple[str, str], int]:
    """Return the number of splits by result and reason, under Pulsar's names."""
    done = {("Success", label): reshaper.splits[reason] for reason, label in _SPLIT_REASONS.items()}
    return {**done, ("Failure", "Unknown"): reshaper.splits_failed}


def _lease_s(node: Candidate) -> float:
    return max(0.0, node.store.lease_valid_until_s - clock.now_s())
