"""Averaged loads and busiest bundles, which brokers of Pulsar's extensible load manager publish themselves; computed
here from reports.

Source: Pulsar's BrokerLoadData and TopKBundles. Arrays belong to the brokers of a snapshot, row by row.

Differs from Pulsar:

- A broker there advances its averages every 5 s but publishes them only with its next report, so a published average
  may be 15 minutes old. Here averages advance every 5 s as if the load had stayed as last reported.
- Averages restart when a broker registers again. Pulsar also restarts them when the broker gains or loses a bundle. The
  difference is small: three minutes later, when the broker may shed again, the past has a weight of 2 %.
- Bundles of equal load are ordered by name before the busiest are chosen.
- If the configured number of bundles is 0 or less, no bundle is published; Pulsar may fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from loadmanager.core.domain.names import SYSTEM_NAMESPACE, BrokerId, is_self_test_namespace, namespace_of
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.policies import Policies
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import (
    MEMORY,
    METRICS,
    MSG_RATE_IN,
    MSG_RATE_OUT,
    THROUGHPUT_IN,
    THROUGHPUT_OUT,
    BoolArray,
    BrokerReport,
    Float32Array,
    FloatArray,
    IntArray,
    RowArray,
    percent_usage,
    read_only,
    weighted_max_usage,
)

ADVANCE_INTERVAL_MS = 5_000
"""Interval at which Pulsar's brokers sample their own load."""

_THROUGHPUT_RESOLUTION = 1e5
_MSG_RATE_RESOLUTION = 100
_COUNT_RESOLUTION = 500
_CACHE_RESOLUTION = 100_000
"""Resolutions of comparisons: bytes/s, messages/s, topics and sessions, bytes in the cache."""

_Positions = npt.NDArray[np.intp]
_Float = TypeVar("_Float", np.float32, np.float64)


def averaged_usage(percent: Float32Array, settings: PlannerSettings) -> FloatArray:
    """Return the weighted maximum over all resources of (..., 5) percentages, heap included, as fractions."""
    with np.errstate(invalid="ignore"):
        memory = percent[..., MEMORY].astype(np.float64) * settings.memory_resource_weight / 100
    return np.asarray(np.fmax(weighted_max_usage(percent, settings.resource_weights), memory))


def average_after(report: BrokerReport, previous: LoadAverage, settings: PlannerSettings) -> LoadAverage:
    """Return the broker's averages after one more report."""
    usage = float(averaged_usage(percent_usage(report.usage[:, 0], report.usage[:, 1]), settings))
    throughput = float(report.load[THROUGHPUT_IN] + report.load[THROUGHPUT_OUT])
    return previous.updated(usage, throughput, report.last_update_ms, settings.history_resource_percentage)


@dataclass(frozen=True, slots=True)
class LoadAverage:
    """Moving averages of a broker's usage (a fraction) and throughput (bytes/s), and its last reported figures.

    Before the first report the broker counts as fully used; its first figures become the average.
    """

    usage_ema: float = 1.0
    msg_throughput_ema: float = 0.0
    updated_at_ms: int = 0
    usage: float = 1.0
    msg_throughput: float = 0.0

    def updated(self, usage: float, msg_throughput: float, at_ms: int, history: float) -> LoadAverage:
        """Return the averages after a report; in between, the load was as last reported."""
        if self.updated_at_ms == 0:
            return LoadAverage(usage, msg_throughput, at_ms, usage, msg_throughput)
        samples = max(0, (at_ms - self.updated_at_ms) // ADVANCE_INTERVAL_MS - 1)
        past = history**samples

        def advanced(average: float, stayed: float, value: float) -> float:
            return (average * past + stayed * (1 - past)) * history + (1 - history) * value

        return LoadAverage(
            advanced(self.usage_ema, self.usage, usage),
            advanced(self.msg_throughput_ema, self.msg_throughput, msg_throughput),
            at_ms,
            usage,
            msg_throughput,
        )


@dataclass(frozen=True, slots=True, eq=False)
class BrokerLoad:
    """Averaged load of each broker (M,); `known` is False for one that has published none.

    Usage is a fraction, throughput in bytes/s; `updated_at_ms` is the time of the report, milliseconds since 1970.
    """

    known: BoolArray
    weighted_max_ema: FloatArray
    msg_throughput_ema: FloatArray
    msg_throughput_in: FloatArray
    msg_throughput_out: FloatArray
    updated_at_ms: IntArray

    def __post_init__(self) -> None:
        for column in fields(self):
            read_only(getattr(self, column.name), len(self.known))

    @classmethod
    def of_first_reports(
        cls, usage_percent: Float32Array, load: FloatArray, at_ms: int, settings: PlannerSettings
    ) -> BrokerLoad:
        """Build from first reports made now: (M, 5) percentages and (M, 4) loads."""
        brokers = len(load)
        return cls(
            known=np.ones(brokers, dtype=bool),
            weighted_max_ema=averaged_usage(usage_percent, settings),
            msg_throughput_ema=load[:, THROUGHPUT_IN] + load[:, THROUGHPUT_OUT],
            msg_throughput_in=load[:, THROUGHPUT_IN].copy(),
            msg_throughput_out=load[:, THROUGHPUT_OUT].copy(),
            updated_at_ms=np.full(brokers, at_ms, dtype=np.int64),
        )

    @classmethod
    def of_averages(cls, averages: Sequence[LoadAverage], load: FloatArray, now_ms: int, history: float) -> BrokerLoad:
        """Build from averages, advanced to now; `load` (M, 4) is as last reported."""
        columns = np.array(
            [(each.usage_ema, each.usage, each.msg_throughput_ema, each.msg_throughput) for each in averages]
        ).reshape(-1, 4)
        updated_at_ms = np.array([each.updated_at_ms for each in averages], dtype=np.int64)
        past = history ** (np.maximum(0, now_ms - updated_at_ms) // ADVANCE_INTERVAL_MS)
        return cls(
            known=np.ones(len(averages), dtype=bool),
            weighted_max_ema=columns[:, 0] * past + columns[:, 1] * (1 - past),
            msg_throughput_ema=columns[:, 2] * past + columns[:, 3] * (1 - past),
            msg_throughput_in=load[:, THROUGHPUT_IN].copy(),
            msg_throughput_out=load[:, THROUGHPUT_OUT].copy(),
            updated_at_ms=updated_at_ms,
        )

    def only(self, rows: IntArray) -> BrokerLoad:
        return BrokerLoad(**{column.name: getattr(self, column.name)[rows] for column in fields(self)})


Listed = tuple[RowArray, FloatArray]
"""Busiest bundles of a broker, ascending: rows, and bytes/s, both ways together."""


@dataclass(frozen=True, slots=True, eq=False)
class TopBundles:
    """Busiest bundles of each broker, by broker row, found lazily, since few brokers are needed.

    Rows are those of a snapshot, -1 for a bundle that no longer exists.
    """

    find: Callable[[int], Listed]

    def only(self, brokers: IntArray) -> TopBundles:
        rows = brokers.tolist()
        return TopBundles(lambda broker: self.find(rows[broker]))

    def of_broker(self, broker: int) -> list[tuple[int, float]]:
        """Return the broker's bundle rows with their throughputs."""
        rows, throughput = self.find(broker)
        return list(zip(rows.tolist(), throughput.tolist(), strict=True))


class PublishedLoad(NamedTuple):
    """Averaged load published by one broker: see `BrokerLoad`."""

    weighted_max_ema: float
    msg_throughput_ema: float
    msg_throughput_in: float
    msg_throughput_out: float
    updated_at_ms: int


@dataclass(frozen=True, slots=True, eq=False)
class Published:
    """Data that brokers published besides their reports, and the last unload time of each.

    `top_bundles` maps a bundle to its load (4,), ascending. A field that is None was not published and is computed; a
    broker missing from a mapping has published nothing.
    """

    broker_load: Mapping[BrokerId, PublishedLoad] | None = None
    top_bundles: Mapping[BrokerId, Mapping[str, FloatArray]] | None = None
    last_unloaded_s: Mapping[BrokerId, float] = field(default_factory=dict)

    def completed(self, reports: Mapping[Registration, BrokerReport]) -> Mapping[Registration, BrokerReport]:
        """Add to the reports those busiest bundles that none of them names."""
        reported = {name for report in reports.values() for name in report.bundle_names}
        completed = dict(reports)
        for registration, report in reports.items():
            listed = (self.top_bundles or {}).get(registration.broker, {})
            missing = {name: load for name, load in listed.items() if name not in reported}
            reported |= missing.keys()
            completed[registration] = report.with_bundles(missing) if missing else report
        return completed

    def find_broker_load(self, brokers: Sequence[BrokerId]) -> BrokerLoad | None:
        if self.broker_load is None:
            return None
        nothing = PublishedLoad(LoadAverage().usage_ema, LoadAverage().msg_throughput_ema, 0.0, 0.0, 0)
        loads = [self.broker_load.get(broker, nothing) for broker in brokers]
        columns = np.array(loads, dtype=np.float64).reshape(-1, len(nothing)).T.copy()
        usage_ema, throughput_ema, throughput_in, throughput_out, updated_at_ms = columns
        known = np.array([broker in self.broker_load for broker in brokers], dtype=bool)
        return BrokerLoad(
            known, usage_ema, throughput_ema, throughput_in, throughput_out, updated_at_ms.astype(np.int64)
        )

    def find_top_bundles(self, brokers: Sequence[BrokerId], find_row: Callable[[str], int | None]) -> TopBundles | None:
        """Find the busiest bundles as rows of `find_row`, which knows all of them after `completed`."""
        if self.top_bundles is None:
            return None
        lists = []
        for broker in brokers:
            listed = self.top_bundles.get(broker, {})
            loads = np.array(list(listed.values()), dtype=np.float64).reshape(-1, METRICS)
            lists.append((np.array([find_row(name) for name in listed], dtype=np.int32), throughput_of(loads)))
        return TopBundles(lists.__getitem__)


def throughput_of(load: npt.NDArray[_Float]) -> npt.NDArray[_Float]:
    """Return bytes/s, in and out together, of (k, 4) loads."""
    return np.asarray(load[:, THROUGHPUT_IN] + load[:, THROUGHPUT_OUT])


def find_busiest(report: BrokerReport, settings: PlannerSettings, policies: Policies) -> _Positions:
    """Find the busiest bundles of a report that may be shed, without idle ones: positions, ascending."""
    names, most = report.bundle_names, max(0, settings.max_number_of_bundles_in_bundle_load_report)
    candidates = np.flatnonzero(throughput_of(report.bundle_load))
    ranks = _ranks(report, candidates)
    may_be_listed = cache(lambda namespace: _may_be_listed(namespace, settings, policies))

    def is_listed(i: int) -> bool:
        return may_be_listed(namespace_of(names[candidates[i]]))

    # Few names are looked at, unless equally busy bundles are among the busiest: then the order of all matters.
    top = list(islice(filter(is_listed, np.argsort(-ranks, kind="stable").tolist()), most + 1))
    if most and np.any(ranks[top[1:]] == ranks[top[:-1]]):
        by_name = sorted(filter(is_listed, range(len(candidates))), key=lambda i: names[candidates[i]])
        top = [by_name[i] for i in partition_sort(ranks[by_name].tolist(), min(most, len(by_name)))]
    return np.asarray(candidates[top[:most][::-1]])


def partition_sort(values: Sequence[int], most: int) -> list[int]:
    """Return the positions of the greatest values, descending: Pulsar's quick-select with a three-way partition.

    The last value of a range is its pivot; the order of equal values results from the swaps.
    """
    order = list(range(len(values)))
    start, end, target = 0, len(values) - 1, most - 1
    while start < end:
        low, mid, high, pivot = start, start, end, values[order[end]]
        while mid <= high:
            value = values[order[mid]]
            if value > pivot:
                order[low], order[mid] = order[mid], order[low]
                low += 1
                mid += 1
            elif value < pivot:
                order[mid], order[high] = order[high], order[mid]
                high -= 1
            else:
                mid += 1
        if low <= target < mid:
            end = low
            break
        if target < low:
            end = low - 1
        else:
            start = mid
    order[:end] = sorted(order[:end], key=lambda position: -values[position])
    return order[:most]


def may_be_transferred(namespace: str, settings: PlannerSettings, policies: Policies) -> bool:
    """Return True unless the settings exclude the namespace, by its name or because it has policies."""
    if namespace in settings.shedding_excluded_namespaces:
        return False
    return settings.shedding_bundles_with_policies_enabled or not policies.has_policy(namespace)


def _may_be_listed(namespace: str, settings: PlannerSettings, policies: Policies) -> bool:
    """Return True if bundles of the namespace may be shed: never those of system namespaces."""
    is_of_system = namespace == SYSTEM_NAMESPACE or is_self_test_namespace(namespace)
    return not is_of_system and may_be_transferred(namespace, settings, policies)


def _ranks(report: BrokerReport, candidates: _Positions) -> IntArray:
    """Rank candidates by busyness (n,), equal ranks for equal load: throughput in, out, messages, topics and sessions,
    cache, each rounded to its resolution.
    """
    load = report.bundle_load[candidates]
    counts = report.bundle_topics[candidates] + report.bundle_sessions[candidates]
    levels = np.empty((5, len(candidates)))
    levels[0] = report.bundle_cache_bytes[candidates] // _CACHE_RESOLUTION
    levels[1] = counts // _COUNT_RESOLUTION
    levels[2] = (load[:, MSG_RATE_IN] + load[:, MSG_RATE_OUT]) / _MSG_RATE_RESOLUTION + 0.5
    levels[3] = load[:, THROUGHPUT_OUT] / _THROUGHPUT_RESOLUTION + 0.5
    levels[4] = load[:, THROUGHPUT_IN] / _THROUGHPUT_RESOLUTION + 0.5
    np.floor(levels, out=levels)
    order = np.lexsort(levels)
    ordered = levels[:, order]
    ranks = np.zeros(len(candidates), dtype=np.int64)
    ranks[order[1:]] = np.cumsum((ordered[:, 1:] != ordered[:, :-1]).any(axis=0))
    return ranks
