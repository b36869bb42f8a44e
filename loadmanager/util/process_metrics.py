"""Metrics of every process: `process_*`, the build info, metric families, and the text format of a scrape."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from loadmanager import __version__

Samples = Iterable[tuple[Sequence[str], float]]
"""Values of the labels, and the value of the metric."""

_WEIGHT = re.compile(r";\s*q=([01](?:\.\d*)?)\s*$")


def add_process_metrics(registry: CollectorRegistry) -> CollectorRegistry:
    """Add memory, CPU time, open files and start of this process, and `loadmanager_build_info`; return `registry`."""
    ProcessCollector(registry=registry)
    built = Gauge("loadmanager_build_info", "1 for the version that runs.", ["version", "python"], registry=registry)
    built.labels(__version__, platform.python_version()).set(1)
    return registry


def gauge(name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
    return _fill(GaugeMetricFamily(name, text, labels=labels), samples)


def counter(name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
    return _fill(CounterMetricFamily(name, text, labels=labels), samples)


def _fill(family: CounterMetricFamily | GaugeMetricFamily, samples: Samples) -> Metric:
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def choose_format(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """Return the encoder and the content type of a scrape for this `Accept` header: OpenMetrics or Prometheus text.

    Formats rank by their weights. If the header accepts neither, the text format 0.0.4 is used.
    """
    weights = {each: float(found[1]) if (found := _WEIGHT.search(each)) else 1.0 for each in accept.split(",")}
    for each in sorted(filter(weights.__getitem__, weights), key=weights.__getitem__, reverse=True):
        with suppress(TypeError, ValueError):  # an invalid version
            encode, content_type = choose_encoder(_WEIGHT.sub("", each))
            if content_type.partition(";")[0] == each.partition(";")[0].strip():
                return encode, content_type
    return choose_encoder("")
