"""Metrics in the Prometheus format: Pulsar's names where it has them, `loadmanager_` for the rest.

Differences from Pulsar: this service reports all brokers, so the `broker` label is the whole broker id. Values that
only grow are counters.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from loadmanager.core.planning.certificate.plan_certificate import DecidedRound
from loadmanager.leader.candidate import MetricSamples

_USAGE = (
    "pulsar_lb_cpu_usage",
    "pulsar_lb_memory_usage",
    "pulsar_lb_directMemory_usage",
    "pulsar_lb_bandwidth_in_usage",
    "pulsar_lb_bandwidth_out_usage",
)
_BUCKETS_S = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)


class LookupMetrics(Collector):
    """Counters of lookups. The client library's own histogram would cost three times as much on the hot path."""

    def __init__(self, registry: CollectorRegistry, cluster: str) -> None:
        self.failures = Counter(
            "pulsar_broker_lookup_failures", "Lookups that failed.", ["cluster"], registry=registry
        ).labels(cluster)
        self._cluster = cluster
        self._answers = [0] * (len(_BUCKETS_S) + 1)
        self._sum_s = 0.0
        registry.register(self)

    def answered(self, took_s: float, topics: int = 1) -> None:
        self._answers[bisect_left(_BUCKETS_S, took_s)] += topics
        self._sum_s += took_s * topics

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


class WatchMetrics(Collector):
    """Counters of watchers: plain numbers, since each change is pushed to thousands."""

    def __init__(self, registry: CollectorRegistry, cluster: str) -> None:
        self.watchers = 0
        self.events = 0
        self.compacted = 0
        self.cut_off = 0
        self.lag = Histogram(
            "loadmanager_watch_lag_seconds",
            "Time from when this node knew of a change until it was handed to all watchers that keep up.",
            ["cluster"],
            buckets=_BUCKETS_S,
            registry=registry,
        ).labels(cluster)
        self._cluster = cluster
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        watchers = GaugeMetricFamily("loadmanager_watchers", "Open watch streams of owners.", labels=["cluster"])
        watchers.add_metric([self._cluster], self.watchers)
        yield watchers
        for name, text, value in (
            ("loadmanager_watch_events", "Events handed to watchers.", self.events),
            ("loadmanager_watch_compacted", "Events that stand for several changes.", self.compacted),
            ("loadmanager_watchers_cut_off", "Watchers that took nothing for too long.", self.cut_off),
        ):
            counter = CounterMetricFamily(name, text, labels=["cluster"])
            counter.add_metric([self._cluster], value)
            yield counter


class NodeCollector(Collector):
    """Renders one scrape."""

    def __init__(self, scrape: MetricSamples, cluster: str) -> None:
        self._scrape = scrape
        self._cluster = cluster

    def collect(self) -> Iterable[Metric]:
        yield from self._usage()
        for name, text, labels, value in self._scrape.counters:
            counter = CounterMetricFamily(name, text, labels=["cluster", *labels])
            counter.add_metric([self._cluster, *labels.values()], value)
            yield counter
        for name, text, labels, value in self._scrape.gauges:
            yield self._gauge(name, text, labels, value)
        decisions = CounterMetricFamily(
            "loadmanager_decisions", "Decisions and non-decisions.", labels=["cluster", "kind", "reason", "acted"]
        )
        for (kind, reason, acted), count in self._scrape.decisions.items():
            decisions.add_metric([self._cluster, kind, reason, str(acted).lower()], count)
        yield decisions
        yield from self._reshaping()
        yield self._drains()
        yield from self._strategy()
        if self._scrape.last_round is not None:
            yield from self._certificate_metrics(self._scrape.last_round)

    def _reshaping(self) -> Iterator[Metric]:
        """Splits with Pulsar's names of results and reasons, and merges with our own."""
        splits = CounterMetricFamily(
            "pulsar_lb_bundles_split_breakdown",
            "Splits by what came of them and why, those of operators included.",
            labels=["cluster", "metric", "result", "reason"],
        )
        for (result, reason), count in self._scrape.splits.items():
            splits.add_metric([self._cluster, "bundlesSplit", result, reason], count)
        yield splits
        merges = CounterMetricFamily("loadmanager_bundle_merges", "Merges of bundles.", labels=["cluster", "reason"])
        for reason, count in self._scrape.merges.items():
            merges.add_metric([self._cluster, reason], count)
        yield merges

    def _drains(self) -> Metric:
        left = GaugeMetricFamily(
            "loadmanager_drain_bundles_left",
            "Bundles that a draining broker still owns.",
            labels=["cluster", "broker"],
        )
        for broker, bundles in self._scrape.drains.items():
            left.add_metric([self._cluster, broker], bundles)
        return left

    def _certificate_metrics(self, last: DecidedRound) -> Iterator[Metric]:
        """Return the imbalance of the last round with its lower bound, and the usage after the worst losses."""
        certified, reserve = last.certified(), last.reserve()
        figures = certified.figures
        for name, text, value in (
            ("heat_before", "Usage of the hottest broker over the level, before the last round.", figures.heat_before),
            ("heat_after", "The same once its moves are made.", figures.heat_after),
            ("bound", "Heat that no assignment is below.", figures.bound),
            ("load_moved_ratio", "Part of all load that it moves.", figures.load_moved),
            ("least_load_ratio", "Part of all load that has to move for its heat.", figures.least_load),
        ):
            yield self._gauge(f"loadmanager_plan_{name}", text, {}, value)
        yield self._gauge("loadmanager_plan_bound_info", "1 for the bound that binds.", {"by": certified.bound_by}, 1.0)
        for what, loss in (("broker", reserve.broker), ("domain", reserve.domain)):
            if loss is not None:
                text = f"Usage of the most used broker if the worst {what} were lost, as a fraction."
                yield self._gauge(f"loadmanager_usage_after_loss_of_{what}", text, {"lost": loss.lost}, loss.placed)
                text = f"Bundles that nobody could own if the worst {what} were lost."
                yield self._gauge(f"loadmanager_stranded_by_loss_of_{what}", text, {"lost": loss.lost}, loss.stranded)

    def _gauge(self, name: str, text: str, labels: dict[str, str], value: float) -> Metric:
        gauge = GaugeMetricFamily(name, text, labels=["cluster", *labels])
        gauge.add_metric([self._cluster, *labels.values()], value)
        return gauge

    def _strategy(self) -> Iterator[Metric]:
        """TransferShedder's figures with Pulsar's names: `avg` and `std`, and counters named `Result/Reason`."""
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
        for name, value in self._scrape.strategy.items():
            result, separator, reason = name.partition("/")
            if separator:
                rounds.add_metric([self._cluster, result, reason], value)
            elif name in ("avg", "std"):
                stats.add_metric([self._cluster, "max_ema", name], value)
        yield stats
        yield rounds

    def _usage(self) -> Iterator[Metric]:
        brokers = self._scrape.snapshot.brokers
        for resource, name in enumerate(_USAGE):
            family = GaugeMetricFamily(name, "Usage in per cent of the limit.", labels=["cluster", "broker", "metric"])
            for row, broker_id in enumerate(brokers.ids):
                usage = float(brokers.usage_percent[row, resource])
                family.add_metric([self._cluster, broker_id, "loadBalancing"], usage)
            yield family


def render(
    scrape: MetricSamples, cluster: str, lookups: CollectorRegistry, encode: Callable[[Collector], bytes]
) -> bytes:
    """Return the text of a scrape. It is slow with many brokers, so call it in a thread."""
    registry = CollectorRegistry()
    registry.register(lookups)
    registry.register(NodeCollector(scrape, cluster))
    return encode(registry)
