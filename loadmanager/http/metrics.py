"""Metrics in the Prometheus format: Pulsar's names where it has them, `loadmanager_` for the rest.

Differs from Pulsar: this service speaks for all brokers, so the `broker` label is the whole broker id, and what only
grows is exposed as a counter.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from loadmanager.core.names import BrokerId
from loadmanager.core.reasons import MergeReason, SplitReason
from loadmanager.core.snapshot import Snapshot
from loadmanager.core.splitting import PULSAR_REASONS
from loadmanager.leader.service import Node

_USAGE = (
    "pulsar_lb_cpu_usage",
    "pulsar_lb_memory_usage",
    "pulsar_lb_directMemory_usage",
    "pulsar_lb_bandwidth_in_usage",
    "pulsar_lb_bandwidth_out_usage",
)
_SPLIT_REASONS = {**PULSAR_REASONS, SplitReason.ADMIN_SPLIT: "Admin"}
_MERGE_REASONS = (MergeReason.COLD_NEIGHBOURS, MergeReason.ADMIN_MERGE)
_BUCKETS_S = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)


class LookupMetrics(Collector):
    """What lookups count: the client library's own histogram would cost three times as much on the hot path."""

    def __init__(self, registry: CollectorRegistry, cluster: str) -> None:
        self.failures = Counter(
            "pulsar_broker_lookup_failures", "Lookups that failed.", ["cluster"], registry=registry
        ).labels(cluster)
        self._cluster = cluster
        self._answers = [0] * (len(_BUCKETS_S) + 1)
        self._sum_s = 0.0
        registry.register(self)

    def answered(self, took_s: float) -> None:
        self._answers[bisect_left(_BUCKETS_S, took_s)] += 1
        self._sum_s += took_s

    def collect(self) -> Iterable[Metric]:
        bounds = [*map(str, _BUCKETS_S), "+Inf"]
        seconds = HistogramMetricFamily(
            "loadmanager_lookup_seconds",
            "Time to answer a lookup; its count is the number of answers.",
            labels=["cluster"],
        )
        answers = list(zip(bounds, map(float, accumulate(self._answers)), strict=True))
        seconds.add_metric([self._cluster], answers, self._sum_s)
        yield seconds


_Sample = tuple[str, str, dict[str, str], float]
"""A metric's name and meaning, its labels, and its value."""


@dataclass(frozen=True, slots=True)
class _Figures:
    """What a scrape shows, copied on the event loop so that another thread can render it."""

    snapshot: Snapshot
    counters: list[_Sample]
    gauges: list[_Sample]
    decisions: dict[tuple[str, str, bool], int]
    strategy: Mapping[str, float]
    splits: Mapping[tuple[str, str], int]
    merges: Mapping[str, int]
    drains: Mapping[BrokerId, int]


class NodeCollector(Collector):
    """Renders the figures of one scrape."""

    def __init__(self, figures: _Figures, cluster: str) -> None:
        self._figures = figures
        self._cluster = cluster

    def collect(self) -> Iterable[Metric]:
        yield from self._usage()
        for name, text, labels, value in self._figures.counters:
            counter = CounterMetricFamily(name, text, labels=["cluster", *labels])
            counter.add_metric([self._cluster, *labels.values()], value)
            yield counter
        for name, text, labels, value in self._figures.gauges:
            gauge = GaugeMetricFamily(name, text, labels=["cluster", *labels])
            gauge.add_metric([self._cluster, *labels.values()], value)
            yield gauge
        decisions = CounterMetricFamily(
            "loadmanager_decisions", "Decisions and non-decisions.", labels=["cluster", "kind", "reason", "acted"]
        )
        for (kind, reason, acted), count in self._figures.decisions.items():
            decisions.add_metric([self._cluster, kind, reason, str(acted).lower()], count)
        yield decisions
        yield from self._reshaping()
        yield self._drains()
        yield from self._strategy()

    def _reshaping(self) -> Iterator[Metric]:
        """Splits under Pulsar's names of results and reasons, and merges under ours."""
        splits = CounterMetricFamily(
            "pulsar_lb_bundles_split_breakdown",
            "Splits by what came of them and why, those of operators included.",
            labels=["cluster", "metric", "result", "reason"],
        )
        for (result, reason), count in self._figures.splits.items():
            splits.add_metric([self._cluster, "bundlesSplit", result, reason], count)
        yield splits
        merges = CounterMetricFamily("loadmanager_bundle_merges", "Merges of bundles.", labels=["cluster", "reason"])
        for reason, count in self._figures.merges.items():
            merges.add_metric([self._cluster, reason], count)
        yield merges

    def _drains(self) -> Metric:
        left = GaugeMetricFamily(
            "loadmanager_drain_bundles_left",
            "Bundles that a draining broker still owns.",
            labels=["cluster", "broker"],
        )
        for broker, bundles in self._figures.drains.items():
            left.add_metric([self._cluster, broker], bundles)
        return left

    def _strategy(self) -> Iterator[Metric]:
        """TransferShedder's figures under Pulsar's names: `avg` and `std`, and counters named `Result/Reason`."""
        stats = GaugeMetricFamily(
            "pulsar_lb_resource_usage_stats",
            "Average and standard deviation of the brokers' averaged usage, as fractions.",
            labels=["cluster", "feature", "stat"],
        )
        rounds = CounterMetricFamily(
            "pulsar_lb_unload_broker_breakdown",
            "Rounds of shedding by what came of them.",
            labels=["cluster", "result", "reason"],
        )
        for name, value in self._figures.strategy.items():
            result, separator, reason = name.partition("/")
            if separator:
                rounds.add_metric([self._cluster, result, reason], value)
            elif name in ("avg", "std"):
                stats.add_metric([self._cluster, "max_ema", name], value)
        yield stats
        yield rounds

    def _usage(self) -> Iterator[Metric]:
        brokers = self._figures.snapshot.brokers
        for resource, name in enumerate(_USAGE):
            family = GaugeMetricFamily(name, "Usage in per cent of the limit.", labels=["cluster", "broker", "metric"])
            for row, broker_id in enumerate(brokers.ids):
                usage = float(brokers.usage_percent[row, resource])
                family.add_metric([self._cluster, broker_id, "loadBalancing"], usage)
            yield family


def figures_of(node: Node) -> _Figures:
    """The node's figures at this moment; called on the event loop."""
    return _Figures(
        node.desk.snapshot(),
        _as_floats(_counters(node), _churn_counters(node), _recording_counters(node)),
        _as_floats(_gauges(node), _churn_gauges(node), _recording_gauges(node)),
        dict(node.journal.counts),
        dict(node.shedding.strategy_metrics),
        _splits(node),
        {reason.value: node.reshaper.merges[reason] for reason in _MERGE_REASONS},
        node.drains.bundles_left(),
    )


def _counters(node: Node) -> list[_Sample]:
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
            "pulsar_lb_bundles_split",
            "Bundles that the leader has split by itself.",
            {"metric": "bundlesSplit"},
            node.reshaper.automatic_splits,
        ),
        (
            "loadmanager_bundles_ignored",
            "Bundles in reports that the record of their namespace does not have.",
            none,
            node.view.model.bundles_ignored,
        ),
        ("loadmanager_reshaping_rounds", "Looks for bundles to split or merge.", none, node.reshaping.rounds),
        ("loadmanager_reshaping_rounds_failed", "Looks that ended in an error.", none, node.reshaping.rounds_failed),
        ("loadmanager_assignments", "Bundles given an owner.", none, node.assigner.assignments),
        ("loadmanager_shedding_cycles", "Rounds of shedding planned.", none, node.shedding.cycles),
        ("loadmanager_shedding_cycles_failed", "Rounds that ended in an error.", none, node.shedding.cycles_failed),
        (
            "loadmanager_invariants_violated",
            "Writes not made because of what they would have said.",
            none,
            node.ledger.invariants_violated,
        ),
        ("loadmanager_writes_fenced", "Writes refused because another leads.", none, node.ledger.writes_fenced),
        (
            "loadmanager_sessions_given_up",
            "Sessions that ZooKeeper did not take back.",
            none,
            node.store.sessions_given_up,
        ),
        ("loadmanager_terms_won", "Elections won by this node.", none, node.election.terms_won),
        ("loadmanager_reports_applied", "Load reports taken in.", none, node.intake.reports_applied),
        ("loadmanager_records_rejected", "Records that could not be used.", none, node.intake.records_rejected),
        ("loadmanager_history_records_written", "Records of history written.", none, node.persistence.records_written),
    ]


def _gauges(node: Node) -> list[_Sample]:
    none = dict[str, str]()
    return [
        ("loadmanager_leader", "1 while this node leads.", none, node.election.term is not None),
        ("loadmanager_epoch", "The current epoch.", none, node.view.epoch),
        ("loadmanager_lease_seconds", "How long the session is certain to live.", none, _lease_s(node)),
        ("loadmanager_view_fresh", "1 while the view was read since the last reconnection.", none, node.view.is_fresh),
        ("loadmanager_faulty_znodes", "Znodes that cannot be read at the moment.", none, len(node.view.faults)),
        ("loadmanager_brokers", "Registered brokers.", none, len(node.view.registrations)),
        (
            "loadmanager_brokers_quarantined",
            "Brokers whose reports are not believed, so that shedding leaves them alone.",
            none,
            len(node.desk.snapshot().doubts.quarantined),
        ),
        ("loadmanager_namespaces", "Namespaces.", none, len(node.view.namespaces)),
        ("loadmanager_shedding_cycle_seconds", "Time the last round took to plan.", none, node.shedding.last_cycle_s),
    ]


def _as_floats(*groups: Iterable[_Sample]) -> list[_Sample]:
    return [(name, text, labels, float(value)) for group in groups for name, text, labels, value in group]


def _recording_counters(node: Node) -> list[_Sample]:
    """What was written into the recorded history, and what was lost; all 0 on a node that records nothing."""
    figures, none = node.recorder.figures, dict[str, str]()
    return [
        ("loadmanager_recorded_rows", "Rows written into the recorded history.", none, figures.rows_written),
        ("loadmanager_recorded_rows_lost", "Rows that could not be kept or written.", none, figures.rows_lost),
        ("loadmanager_recorded_bytes", "Bytes written into the recorded history.", none, figures.bytes_written),
        ("loadmanager_recorded_files", "Files written into the recorded history.", none, figures.files_written),
        ("loadmanager_recording_failures", "Attempts to write that failed.", none, figures.write_failures),
    ]


def _recording_gauges(node: Node) -> list[_Sample]:
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


def _churn_counters(node: Node) -> list[_Sample]:
    """What was moved, by whomever, and how often the breaker tripped."""
    churn, none = node.desk.churn, dict[str, str]()
    return [
        ("loadmanager_moves", "Unloads completed, at an operator's word too.", none, churn.moves),
        ("loadmanager_load_moved_bytes_per_second", "Load of the bundles moved, added up.", none, churn.load_moved),
        ("loadmanager_breaker_trips", "Bundles or shedding stopped for thrashing.", none, churn.trips),
        ("loadmanager_unloads_cancelled", "Unloads cancelled by operators.", none, node.executor.unloads_cancelled),
        ("loadmanager_drain_bundles_moved", "Bundles moved by drains and pins.", none, node.drains.bundles_moved),
        ("loadmanager_plans_executed", "Plans executed to the end.", none, node.plans.executed),
        ("loadmanager_plans_stopped", "Plans stopped because the cluster had drifted.", none, node.plans.stopped),
    ]


def _churn_gauges(node: Node) -> list[_Sample]:
    """What the limits on churn go by, and what the breaker has stopped; all 0 on a node that does not lead."""
    figures, none = node.desk.churn.figures(), dict[str, str]()
    leads = node.leading.is_set()
    return [
        (
            "loadmanager_thrash_ratio",
            "Part of all load that shedding returned within the window.",
            none,
            leads * figures.thrash,
        ),
        (
            "loadmanager_moved_per_hour_ratio",
            "Part of all load that shedding moved within the hour.",
            none,
            leads * figures.moved_within_hour,
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
        ("loadmanager_draining_brokers", "Brokers being drained.", none, len(node.view.laid_down.controls.draining)),
    ]


def _splits(node: Node) -> dict[tuple[str, str], int]:
    """By result and reason, as Pulsar names them."""
    done = {("Success", label): node.reshaper.splits[reason] for reason, label in _SPLIT_REASONS.items()}
    return {**done, ("Failure", "Unknown"): node.reshaper.splits_failed}


def render(figures: _Figures, cluster: str, lookups: CollectorRegistry) -> bytes:
    """The text of a scrape; slow with many brokers, so it runs in a thread."""
    registry = CollectorRegistry()
    registry.register(NodeCollector(figures, cluster))
    return generate_latest(lookups) + generate_latest(registry)


def _lease_s(node: Node) -> float:
    return max(0.0, node.store.lease_valid_until_s - time.monotonic())
