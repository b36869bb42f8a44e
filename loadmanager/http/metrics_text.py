"""Metrics in the Prometheus format: Pulsar's names where it has them, `loadmanager_` for the rest.

Differences from Pulsar: this service reports all brokers, so the `broker` label is the whole broker id. Values that
only grow are counters.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from loadmanager.core.planning.certificate.plan_certificate import DecidedRound
from loadmanager.leader.candidate import MetricSamples
from loadmanager.util.process_metrics import counter, gauge

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
        labels, own = ["cluster"], [self._cluster]
        yield gauge("loadmanager_watchers", "Open watch streams of owners.", labels, [(own, self.watchers)])
        for name, text, value in (
            ("loadmanager_watch_events", "Events handed to watchers.", self.events),
            ("loadmanager_watch_compacted", "Events that stand for several changes.", self.compacted),
            ("loadmanager_watchers_cut_off", "Watchers that took nothing for too long.", self.cut_off),
        ):
            yield counter(name, text, labels, [(own, value)])


class NodeCollector(Collector):
    """Renders one scrape."""

    def __init__(self, scrape: MetricSamples, cluster: str) -> None:
        self._scrape = scrape
        self._cluster = cluster

    def collect(self) -> Iterable[Metric]:
        yield from self._usage()
        for name, text, labels, value in self._scrape.counters:
            yield counter(name, text, ["cluster", *labels], [([self._cluster, *labels.values()], value)])
        for name, text, labels, value in self._scrape.gauges:
            yield self._gauge(name, text, labels, value)
        yield from self._by_reason()
        drains = [([self._cluster, broker], bundles) for broker, bundles in self._scrape.drains.items()]
        text = "Bundles that a draining broker still owns."
        yield gauge("loadmanager_drain_bundles_left", text, ["cluster", "broker"], drains)
        yield from self._strategy()
        if self._scrape.last_round is not None:
            yield from self._certificate_metrics(self._scrape.last_round)

    def _by_reason(self) -> Iterator[Metric]:
        """Decisions, splits with Pulsar's names of results and reasons, and merges with our own."""
        scrape = self._scrape
        decisions = [
            ([self._cluster, kind, reason, str(acted).lower()], count)
            for (kind, reason, acted), count in scrape.decisions.items()
        ]
        labels = ["cluster", "kind", "reason", "acted"]
        yield counter("loadmanager_decisions", "Decisions and non-decisions.", labels, decisions)
        splits = [([self._cluster, "bundlesSplit", *names], count) for names, count in scrape.splits.items()]
        text = "Splits by what came of them and why, those of operators included."
        yield counter("pulsar_lb_bundles_split_breakdown", text, ["cluster", "metric", "result", "reason"], splits)
        merges = [([self._cluster, reason], count) for reason, count in scrape.merges.items()]
        yield counter("loadmanager_bundle_merges", "Merges of bundles.", ["cluster", "reason"], merges)

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
        return gauge(name, text, ["cluster", *labels], [([self._cluster, *labels.values()], value)])

    def _strategy(self) -> Iterator[Metric]:
        """TransferShedder's figures with Pulsar's names: `avg` and `std`, and counters named `Result/Reason`."""
        figures = self._scrape.strategy
        stats = [([self._cluster, "max_ema", name], figures[name]) for name in ("avg", "std") if name in figures]
        text = "Average and standard deviation of the brokers' averaged usage, as fractions."
        yield gauge("pulsar_lb_resource_usage_stats", text, ["cluster", "feature", "stat"], stats)
        rounds = [([self._cluster, *name.split("/", 1)], value) for name, value in figures.items() if "/" in name]
        text = "Rounds of shedding by what came of them."
        yield counter("pulsar_lb_unload_broker_breakdown", text, ["cluster", "result", "reason"], rounds)

    def _usage(self) -> Iterator[Metric]:
        brokers, labels = self._scrape.snapshot.brokers, ["cluster", "broker", "metric"]
        names = [[self._cluster, broker_id, "loadBalancing"] for broker_id in brokers.ids]
        for resource, name in enumerate(_USAGE):
            usage = brokers.usage_percent[:, resource].tolist()
            yield gauge(name, "Usage in per cent of the limit.", labels, zip(names, usage, strict=True))


def render(
    scrape: MetricSamples, cluster: str, lookups: CollectorRegistry, encode: Callable[[Collector], bytes]
) -> bytes:
    """Return the text of a scrape. It is slow with many brokers, so call it in a thread."""
    registry = CollectorRegistry()
    registry.register(lookups)
    registry.register(NodeCollector(scrape, cluster))
    return encode(registry)
