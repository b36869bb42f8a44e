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
        [*_counters(node, intake), *counters],
        [*_gauges(node), *_churn_gauges(node), *_recording_gauges(node), *gauges],
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
    silent = "Silent leaders that this node was to replace early."
    violated = "Writes refused because they would break an invariant."
    counters = _without_labels(
        ("loadmanager_assignments", "Bundles given an owner.", assigner.assignments),
        ("loadmanager_leaders_found_silent", silent, watch.found_silent),
        ("loadmanager_invariants_violated", violated, ledger.invariants_violated),
        (
            "loadmanager_writes_fenced",
            "Writes that the fencing epoch refused: another node leads.",
            ledger.writes_fenced,
        ),
    )
    gauges = _without_labels(
        ("loadmanager_leader_heard", "1 while the leader, another node, answers.", watch.hears),
        (
            "loadmanager_namespaces_available",
            "Namespaces whose topics may have two owners (availableNamespaces).",
            len(node.live.current.available_namespaces),
        ),
    )
    samples = collect_samples(node, intake, [*counters, *split_counters(reshaper, reshaping)], gauges)
    merges = {reason.value: reshaper.merges[reason] for reason in _MERGE_REASONS}
    return replace(samples, splits=count_splits(reshaper), merges=merges)


def split_counters(reshaper: SplitCounters, reshaping: ReshapeLoop) -> list[Sample]:
    """Return the counters of splits and merges by rounds."""
    done = reshaper.splits.total() - reshaper.splits[SplitReason.ADMIN_SPLIT]
    failed = "Rounds of splits and merges that failed."
    return [
        ("pulsar_lb_bundles_split", "Bundles that the leader has split by itself.", {"metric": "bundlesSplit"}, done),
        *_without_labels(
            ("loadmanager_reshaping_rounds", "Rounds of splits and merges.", reshaping.rounds),
            ("loadmanager_reshaping_rounds_failed", failed, reshaping.rounds_failed),
        ),
    ]


def count_splits(reshaper: SplitCounters) -> dict[tuple[str, str], int]:
    """Return the number of splits by result and reason, under Pulsar's names."""
    done = {("Success", label): reshaper.splits[reason] for reason, label in _SPLIT_REASONS.items()}
    return {**done, ("Failure", "Unknown"): reshaper.splits_failed}


def _counters(node: Candidate, intake: ReportIntake) -> list[Sample]:
    unloading, shedding, recorded = {"metric": "bundleUnloading"}, node.shedding, node.recorder.figures
    unknown = "Bundles in reports that the record of their namespace does not have."
    given_up = "Sessions that ZooKeeper did not take back."
    kept = "Unloads given up; the owner kept the bundle."
    return [
        ("pulsar_lb_unload_broker", "Brokers shed from, summed over rounds.", unloading, shedding.brokers_shed),
        ("pulsar_lb_unload_bundle", "Bundles unloaded.", unloading, node.executor.unloads_completed),
        *_without_labels(
            ("loadmanager_unloads_failed", kept, node.executor.unloads_failed),
            ("loadmanager_stale_steps", "Steps of plans refused as out of date.", node.executor.stale_steps),
            ("loadmanager_bundles_ignored", unknown, node.mirror.model.bundles_ignored),
            ("loadmanager_shedding_cycles", "Rounds of shedding planned.", shedding.rounds),
            ("loadmanager_shedding_cycles_failed", "Rounds that ended in an error.", shedding.rounds_failed),
            ("loadmanager_sessions_given_up", given_up, node.store.sessions_given_up),
            ("loadmanager_terms_won", "Elections won by this node.", node.election.terms_won),
            ("loadmanager_reports_applied", "Load reports taken in.", intake.reports_applied),
            ("loadmanager_records_rejected", "Records that could not be used.", intake.records_rejected),
            ("loadmanager_recorded_rows", "Rows written into the recorded history.", recorded.rows_written),
            ("loadmanager_recorded_rows_lost", "Rows that could not be kept or written.", recorded.rows_lost),
        ),
    ]


def _gauges(node: Candidate) -> list[Sample]:
    mirror, faults = node.mirror, node.planner.snapshot().faults
    lease_s = max(0.0, node.store.lease_valid_until_s - clock.now_s())
    faulty = len(mirror.faults.keys() | node.store.denied.keys())
    unserved = sum(each["bundles"] for each in unserved_bundles(mirror)) + len(mirror.ownerless)
    unplaceable = sum(len(each.namespaces) for each in mirror.unplaceable())
    fresh_meaning = "1 while the mirror is fresh: read since the last reconnection."
    faulty_meaning = "Znodes that cannot be read at the moment, or that access lists keep from this node."
    rejected_meaning = "Brokers with rejected reports, which shedding leaves alone."
    sick_meaning = "Brokers far off their peers by their own figures, which are given less, or nothing."
    unserved_meaning = (
        "Bundles that no client can use: their broker serves nothing (broker_stuck), or a Pulsar has no owner."
    )
    cannot_move_meaning = "Reasons for which nothing can be moved; the leader's /readyz names them."
    unplaceable_meaning = "Namespaces that no broker may own by the isolation policies; /readyz names them."
    needed_meaning = "Least number of brokers that carry the current peak after a loss."
    size = node.stuck_monitor.size  # unknown on a node that does not lead: an autoscaler must not act on a guess
    return _without_labels(
        ("loadmanager_leader", "1 while this node leads.", node.election.term is not None),
        ("loadmanager_epoch", "The current epoch.", mirror.epoch),
        ("loadmanager_lease_seconds", "Time for which the session is certain to live.", lease_s),
        ("loadmanager_view_fresh", fresh_meaning, mirror.is_fresh),
        ("loadmanager_faulty_znodes", faulty_meaning, faulty),
        ("loadmanager_brokers", "Registered brokers.", len(mirror.registrations)),
        *(() if size is None else [("loadmanager_brokers_needed", needed_meaning, size.needed)]),
        ("loadmanager_brokers_rejected", rejected_meaning, len(faults.rejected)),
        ("loadmanager_brokers_sick", sick_meaning, len(faults.unwell)),
        ("loadmanager_bundles_unserved", unserved_meaning, unserved),
        ("loadmanager_cannot_move", cannot_move_meaning, len(node.stuck_monitor.found)),
        ("loadmanager_namespaces_unplaceable", unplaceable_meaning, unplaceable),
        ("loadmanager_shedding_cycle_seconds", "Planning time of the last round.", node.shedding.last_round_s),
    )


def _churn_gauges(node: Candidate) -> list[Sample]:
    """Return the inputs of the churn limits, and what the breaker has stopped; all 0 on a node that does not lead."""
    figures, leads = node.planner.churn.figures(), node.is_leading
    again = "Part of all load that shedding moved in the last two hours, and had moved within two hours before."
    back = "Part of all load that shedding moved in the last four hours to where it had been within four hours."
    hour = "Part of all load that shedding moved within the hour."
    stopped, frozen = figures.shedding_stopped_for_s > 0, len(figures.frozen_for_s)
    return _without_labels(
        ("loadmanager_moved_per_hour_ratio", hour, leads * figures.moved_within_hour),
        ("loadmanager_moved_again_ratio", again, leads * figures.moved_again),
        ("loadmanager_moved_back_ratio", back, leads * figures.moved_back),
        ("loadmanager_shedding_stopped", "1 while the breaker has stopped shedding.", leads * stopped),
        ("loadmanager_bundles_frozen_by_breaker", "Bundles not shed as they kept returning.", leads * frozen),
    )


def _recording_gauges(node: Candidate) -> list[Sample]:
    """Return the state of the history recorder; all 0 on a node that records nothing."""
    figures, failing = node.recorder.figures, "1 while nothing can be written into the recorded history."
    return _without_labels(
        ("loadmanager_recording_queue_rows", "Recorded rows that are not written yet.", figures.queue_rows),
        ("loadmanager_recording", "1 while this node leads and records.", node.recorder.is_recording),
        ("loadmanager_recording_failing", failing, figures.is_failing),
    )


def _without_labels(*samples: tuple[str, str, float]) -> list[Sample]:
    return [(name, text, {}, float(value)) for name, text, value in samples]
