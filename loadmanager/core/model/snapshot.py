"""Snapshot of the cluster: read-only columns, the only input of decisions.

Brokers and bundles are row numbers: broker row `i` is `brokers.ids[i]`, bundle row `j` is `bundles.names[j]`. Both are
sorted by name, so that ties are broken by name everywhere.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from loadmanager.core.domain.controls import NO_CONTROLS, Controls
from loadmanager.core.domain.names import BrokerId, namespace_of
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.policies import NO_POLICIES, Policies
from loadmanager.core.domain.resources import ResourceWeights
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.extensible_load import (
    BrokerLoad,
    Listed,
    Published,
    TopBundles,
    find_busiest,
    throughput_of,
)
from loadmanager.core.model.learned_loads import NOTHING_LEARNED, LearnedLoads
from loadmanager.core.model.load import (
    METRICS,
    RESOURCES,
    BoolArray,
    BrokerReport,
    BundleAverages,
    Float32Array,
    FloatArray,
    IntArray,
    RowArray,
    percent_usage,
    read_only,
    weighted_max_usage,
)
from loadmanager.core.model.report_validation import NO_FAULTS, ReportFaults
from loadmanager.core.model.time_means import TimeMeans, as_amounts, seconds_of

SHORT_TERM, LONG_TERM = range(2)
"""Indices of a broker's time average."""

NOBODY = -1
"""Broker row of an unowned bundle."""

_NO_BROKER = BrokerId("")

_Derived = TypeVar("_Derived")


@dataclass(frozen=True, eq=False)
class Bundles:
    """All bundles, sorted by name, so that those of one namespace are adjacent.

    `namespace` (N,) is the position in `namespaces`. `broker` (N,) is the broker that owns the bundle and reports it,
    -1 otherwise. `assigned` (N,) is the broker that owns it once pending moves are done: the destination of a release,
    else its owner, -1 for none. `free` (N,): unowned and assignable. `movable` (N,): owned, reported by its owner, and
    not moving. `short` and `long` (N, 4) are averages over reports, `time_means` those over time.
    """

    names: tuple[str, ...]
    namespaces: tuple[str, ...]
    namespace: RowArray
    broker: RowArray
    assigned: RowArray
    free: BoolArray
    movable: BoolArray
    recently_unloaded: BoolArray
    short: FloatArray
    long: FloatArray
    time_means: TimeMeans
    taken_at_s: float
    topics: RowArray

    def __post_init__(self) -> None:
        bundles = len(self.names)
        assert len(self.time_means.sigma) == bundles
        for column in (self.namespace, self.broker, self.assigned, self.topics):
            read_only(column, bundles)
        for flags in (self.free, self.movable, self.recently_unloaded):
            read_only(flags, bundles)
        read_only(self.short, bundles, METRICS)
        read_only(self.long, bundles, METRICS)

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def present(self) -> FloatArray:
        """Return the current load (N, 4) by time means: see `TimeMeans`."""
        return read_only(self.time_means.present(self.taken_at_s), len(self), METRICS)

    @property
    def sigma(self) -> Float32Array:
        """Return the usual relative deviation of bytes/s from `present` (N,)."""
        return self.time_means.sigma

    def find_row(self, bundle: str) -> int | None:
        return find_row(self.names, bundle)

    def rows_of_namespace(self, namespace: int) -> slice:
        """Return the rows of the namespace at this position of `namespaces`."""
        ends = np.array((namespace, namespace + 1), dtype=self.namespace.dtype)  # else the whole column is converted
        first, last = np.searchsorted(self.namespace, ends)
        return slice(int(first), int(last))


def _keeper(bundles: Bundles) -> RowArray:
    """Return the broker (N,) that reports and keeps each bundle; `NOBODY` for a bundle that is leaving."""
    keeper = bundles.broker.copy()
    keeper[keeper != bundles.assigned] = NOBODY
    return keeper


def sum_by_broker(broker: RowArray, columns: Iterable[FloatArray], brokers: int) -> FloatArray:
    """Sum k columns (n,) by broker row (n,) to (brokers, k), in row order; unowned rows do not count."""
    bins = np.add(broker, 1, dtype=np.intp)
    sums = []
    for column in columns:
        by_bin = np.zeros(brokers + 1)
        np.add.at(by_bin, bins, column)
        sums.append(by_bin[1:])
    return np.stack(sums, axis=1)


def order_by_broker(broker: npt.NDArray[np.integer], brokers: int) -> npt.NDArray[np.intp]:
    """Return the order of rows by their broker row (n,), stable. Two-byte keys sort much faster."""
    return np.argsort(broker.astype(np.uint16) if brokers <= np.iinfo(np.uint16).max else broker, kind="stable")


@dataclass(frozen=True, eq=False)
class Brokers:
    """Registered brokers that have reported, sorted by id.

    `usage` (M, 5, 2), used and limit, `usage_percent` (M, 5) and `load` (M, 4) are as reported, as are `topics`,
    `bundle_count` and `last_update_ms`, milliseconds since 1970 by the broker's clock. `settled` is False if a bundle
    of its last report has left since, or is leaving: its load is then stale. `last_unloaded_s` (M,) is the last time a
    bundle was taken from it, seconds since 1970, NaN for never.
    """

    ids: tuple[BrokerId, ...]
    registrations: tuple[Registration, ...]
    usage: FloatArray
    usage_percent: Float32Array
    load: FloatArray
    topics: IntArray
    bundle_count: IntArray
    last_update_ms: IntArray
    versions: tuple[str, ...]
    load_manager_classes: tuple[str, ...]
    persistent_enabled: BoolArray
    non_persistent_enabled: BoolArray
    settled: BoolArray
    last_unloaded_s: FloatArray
    bundles: Bundles

    def __post_init__(self) -> None:
        brokers = len(self.ids)
        assert len(self.registrations) == len(self.versions) == len(self.load_manager_classes) == brokers
        assert all(a < b for a, b in zip(self.ids, self.ids[1:], strict=False)), "broker ids must ascend"
        read_only(self.usage, brokers, RESOURCES, 2)
        read_only(self.usage_percent, brokers, RESOURCES)
        read_only(self.load, brokers, METRICS)
        for column in (self.topics, self.bundle_count, self.last_update_ms):
            read_only(column, brokers)
        for flags in (self.persistent_enabled, self.non_persistent_enabled, self.settled):
            read_only(flags, brokers)
        read_only(self.last_unloaded_s, brokers)

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def time_average(self) -> FloatArray:
        """Return sums (M, 2, 4) of short-term and long-term averages of the bundles each owns and reports.

        Computed on first use by the caller, not by the event loop that takes the snapshot.
        """
        keeper, brokers = _keeper(self.bundles), len(self)
        sums = [sum_by_broker(keeper, averages.T, brokers) for averages in (self.bundles.short, self.bundles.long)]
        return read_only(np.stack(sums, axis=1), brokers, 2, METRICS)

    def long_term(self, metrics: Sequence[int]) -> FloatArray:
        """Return these columns (M, k) of the long-term `time_average`, without summing the others."""
        if "time_average" in vars(self):
            return self.time_average[:, LONG_TERM, list(metrics)]
        columns = [self.bundles.long[:, metric] for metric in metrics]
        return read_only(sum_by_broker(_keeper(self.bundles), columns, len(self)), len(self), len(metrics))

    @property
    def preallocated(self) -> FloatArray:
        """Return sums (M, 4) of long-term averages of the bundles assigned to each since its report."""
        return self._preallocated[0]

    @property
    def preallocated_topics(self) -> IntArray:
        """Return the topics (M,) of the bundles assigned to each since its report."""
        return self._preallocated[1]

    def with_bundles(self, bundles: Bundles, settled: BoolArray) -> Brokers:
        return replace(self, bundles=bundles, settled=settled)

    def only(self, rows: IntArray, bundles: Bundles) -> Brokers:
        """Select broker rows; `bundles` numbers them from 0."""
        kept: dict[str, Any] = {}
        for name in (each.name for each in fields(self) if each.name != "bundles"):
            column = getattr(self, name)
            kept[name] = tuple(column[row] for row in rows.tolist()) if isinstance(column, tuple) else column[rows]
        return Brokers(**kept, bundles=bundles).with_time_average(self.time_average[rows])

    def with_time_average(self, time_average: FloatArray) -> Brokers:
        """Replace the sums (M, 2, 4) of the bundles."""
        brokers = replace(self)
        vars(brokers)["time_average"] = read_only(time_average, len(self), 2, METRICS)
        return brokers

    @cached_property
    def _preallocated(self) -> tuple[FloatArray, IntArray]:
        bundles, brokers = self.bundles, len(self)
        expected = np.flatnonzero((bundles.assigned >= 0) & (bundles.broker != bundles.assigned))
        destination = bundles.assigned[expected]
        topics = np.bincount(destination, weights=bundles.topics[expected], minlength=brokers)
        return (
            read_only(sum_by_broker(destination, bundles.long[expected].T, brokers), brokers, METRICS),
            read_only(topics.astype(np.int64), brokers),
        )

    def find_row(self, broker: BrokerId) -> int | None:
        return find_row(self.ids, broker)


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The cluster at `taken_at_s` (seconds since 1970); `revision` is that of the model.

    `policies` and `controls` are the operator config; `faults` are faults of brokers and reports; `learned` are
    expected loads of bundles without history. `broker_load` and `top_bundles` are published by brokers in the
    extensible load manager, None if not given: use `get_broker_load` and `get_top_bundles`, which compute them from
    `reports`, those of the brokers with their bundles.
    """

    taken_at_s: float
    revision: int
    brokers: Brokers
    bundles: Bundles
    policies: Policies = NO_POLICIES
    controls: Controls = NO_CONTROLS
    faults: ReportFaults = NO_FAULTS
    learned: LearnedLoads = NOTHING_LEARNED
    broker_load: BrokerLoad | None = None
    top_bundles: TopBundles | None = None
    reports: tuple[BrokerReport, ...] = ()
    _derived: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    def derive(self, key: Hashable, compute: Callable[[], _Derived]) -> _Derived:
        """Return `compute()`, cached under `key` for this snapshot.

        Two concurrent callers may both compute it; they get equal values.
        """
        try:
            found: _Derived = self._derived[key]
        except KeyError:
            found = self._derived.setdefault(key, compute())
        return found

    def afresh(self) -> Snapshot:
        """Return the same snapshot with an empty cache, which may hold columns of all bundles."""
        bundles = replace(self.bundles)
        return replace(self, bundles=bundles, brokers=replace(self.brokers, bundles=bundles), _derived={})

    def find_namespace(self, namespace: str) -> int | None:
        positions = self.derive("namespaces", lambda: {name: i for i, name in enumerate(self.bundles.namespaces)})
        return positions.get(namespace)

    def bundles_per_broker(self, namespace: int) -> IntArray:
        """Count the namespace's bundles that are assigned to each broker: (M,)."""
        assigned = self.bundles.assigned[self.bundles.rows_of_namespace(namespace)]
        return np.bincount(assigned[assigned >= 0], minlength=len(self.brokers)).astype(np.int64)


def build_snapshot(
    taken_at_s: float,
    reports: Mapping[Registration, BrokerReport],
    averages: Mapping[str, BundleAverages],
    recently_unloaded: frozenset[str] = frozenset(),
    policies: Policies = NO_POLICIES,
    preallocated: Mapping[str, BrokerId] | None = None,
    published: Published | None = None,
    learned: LearnedLoads = NOTHING_LEARNED,
) -> Snapshot:
    """Build a snapshot from reports alone, without ownership records: a bundle belongs to its latest reporter. A bundle
    without averages has its reported load.

    `preallocated` are bundles assigned to a broker that does not report them yet. `published` is the other data that
    brokers published; a bundle in no report belongs to the broker that lists it among its busiest.
    """
    published = published or Published()
    reports = published.completed(reports)
    order = sorted(reports, key=lambda registration: registration.broker)
    bundles = _bundles_of_reports(taken_at_s, order, reports, averages, recently_unloaded, preallocated or {}, learned)
    ordered = [reports[registration] for registration in order]
    settled = np.ones(len(order), dtype=bool)
    brokers = build_brokers(order, ordered, bundles, settled, last_unloaded_s=published.last_unloaded_s)
    return Snapshot(
        taken_at_s,
        0,
        brokers,
        bundles,
        policies=policies,
        learned=learned,
        broker_load=published.find_broker_load(brokers.ids),
        top_bundles=published.find_top_bundles(brokers.ids, bundles.find_row),
        reports=tuple(ordered),
    )


def _bundles_of_reports(
    taken_at_s: float,
    order: Sequence[Registration],
    reports: Mapping[Registration, BrokerReport],
    averages: Mapping[str, BundleAverages],
    recently_unloaded: frozenset[str],
    preallocated: Mapping[str, BrokerId],
    learned: LearnedLoads,
) -> Bundles:
    """Build the columns of all bundles named anywhere; `order` are the registrations by broker row."""
    rows = {registration.broker: row for row, registration in enumerate(order)}
    holders: dict[str, int] = {}
    last: dict[str, tuple[BrokerReport, int]] = {}
    for registration in sorted(order, key=lambda registration: reports[registration].last_update_ms):
        report = reports[registration]
        for index, name in enumerate(report.bundle_names):
            holders[name], last[name] = rows[registration.broker], (report, index)
    names = tuple(sorted(last.keys() | averages.keys() | preallocated.keys()))

    def as_reported(name: str) -> BundleAverages:
        return _first_sample(*last[name]) if name in last else learned.no_history(namespace_of(name))

    known = [averages.get(name) or as_reported(name) for name in names]
    held = np.array([holders.get(name, NOBODY) for name in names], dtype=np.int32)
    given = np.array([rows.get(preallocated.get(name, _NO_BROKER), NOBODY) for name in names], dtype=np.int32)
    assigned = np.where(given >= 0, given, held)
    namespaces, namespace = intern_namespaces(names)
    return Bundles(
        names=names,
        namespaces=namespaces,
        namespace=namespace,
        broker=held,
        assigned=assigned,
        free=assigned < 0,
        movable=(held >= 0) & (held == assigned),
        recently_unloaded=np.array([name in recently_unloaded for name in names], dtype=bool),
        short=np.array([known_averages.short for known_averages in known]).reshape(-1, METRICS),
        long=np.array([known_averages.long for known_averages in known]).reshape(-1, METRICS),
        time_means=_time_means(known, [last.get(name) for name in names]),
        taken_at_s=taken_at_s,
        topics=np.array([known_averages.topics for known_averages in known], dtype=np.int32),
    )


def _time_means(averages: Sequence[BundleAverages], reports: Sequence[tuple[BrokerReport, int] | None]) -> TimeMeans:
    """Build time means from averages and last reports, each with the bundle's index; None without a report."""
    means = [each.by_time() for each in averages]
    last = [
        (0.0, mean.load) if each is None else (each[0].last_update_ms / 1000, each[0].bundle_load[each[1]])
        for each, mean in zip(reports, means, strict=True)
    ]
    return TimeMeans(
        as_amounts(np.array([mean.load for mean in means]).reshape(-1, METRICS)).astype(np.float32),
        as_amounts(np.array([load for _, load in last]).reshape(-1, METRICS)).astype(np.float32),
        np.array([seconds_of(at_s) for at_s, _ in last], dtype=np.uint32),
        np.array([mean.sigma for mean in means], dtype=np.float32),
    )


def build_brokers(
    registrations: Sequence[Registration],
    reports: Sequence[BrokerReport],
    bundles: Bundles,
    settled: BoolArray,
    last_unloaded_s: Mapping[BrokerId, float],
) -> Brokers:
    """Build the broker columns from reports; `registrations` are sorted by broker id."""
    usage = np.array([report.usage for report in reports]).reshape(-1, RESOURCES, 2)
    return Brokers(
        ids=tuple(registration.broker for registration in registrations),
        registrations=tuple(registrations),
        usage=usage,
        usage_percent=percent_usage(usage[:, :, 0], usage[:, :, 1]),
        load=np.array([report.load for report in reports]).reshape(-1, METRICS),
        topics=np.array([report.num_topics for report in reports], dtype=np.int64),
        bundle_count=np.array([report.num_bundles for report in reports], dtype=np.int64),
        last_update_ms=np.array([report.last_update_ms for report in reports], dtype=np.int64),
        versions=tuple(report.version for report in reports),
        load_manager_classes=tuple(report.load_manager_class for report in reports),
        persistent_enabled=np.array([report.persistent_enabled for report in reports], dtype=bool),
        non_persistent_enabled=np.array([report.non_persistent_enabled for report in reports], dtype=bool),
        settled=settled,
        last_unloaded_s=np.array(
            [last_unloaded_s.get(each.broker, np.nan) for each in registrations], dtype=np.float64
        ),
        bundles=bundles,
    )


def intern_namespaces(names: Sequence[str]) -> tuple[tuple[str, ...], RowArray]:
    """Return the namespaces of sorted bundle names in order, and per bundle the position of its own."""
    positions: dict[str, int] = {}
    column = np.fromiter((positions.setdefault(namespace_of(name), len(positions)) for name in names), dtype=np.int32)
    assert bool(np.all(column[1:] >= column[:-1])), "bundle names must be sorted and end in '/<range>'"
    return tuple(positions), column


def usage_per_broker(snapshot: Snapshot, weights: ResourceWeights) -> FloatArray:
    """Return the weighted maximum usage of each broker as a fraction, cached per snapshot."""
    return snapshot.derive(("usage", weights), lambda: weighted_max_usage(snapshot.brokers.usage_percent, weights))


def get_broker_load(snapshot: Snapshot, settings: PlannerSettings) -> BrokerLoad:
    """Return the averaged load of each broker: published, else computed as from a first report."""
    if snapshot.broker_load is not None:
        return snapshot.broker_load
    brokers, now_ms = snapshot.brokers, round(snapshot.taken_at_s * 1000)
    return snapshot.derive(
        ("broker load", settings),
        lambda: BrokerLoad.of_first_reports(brokers.usage_percent, brokers.load, now_ms, settings),
    )


def get_top_bundles(snapshot: Snapshot, settings: PlannerSettings) -> TopBundles:
    """Return the busiest bundles of each broker: published, else found in the reports."""
    if snapshot.top_bundles is not None:
        return snapshot.top_bundles

    def find(broker: int) -> Listed:
        report = snapshot.reports[broker]
        top = find_busiest(report, settings, snapshot.policies)
        rows = [snapshot.bundles.find_row(report.bundle_names[i]) for i in top.tolist()]
        return np.array(rows, dtype=np.int32), throughput_of(report.bundle_load[top])

    return TopBundles(lambda broker: snapshot.derive(("top bundles", settings, broker), lambda: find(broker)))


def bundle_load(snapshot: Snapshot, bundle: int | None, namespace: str) -> FloatArray:
    """Return the long-term load (4,) of a bundle row; the expected load of an unknown bundle."""
    return snapshot.learned.load_of(namespace) if bundle is None else np.asarray(snapshot.bundles.long[bundle])


def _first_sample(report: BrokerReport, index: int) -> BundleAverages:
    load = report.bundle_load[index]
    return BundleAverages(load.copy(), load.copy(), 1, 1, int(report.bundle_topics[index]))


def find_row(names: Sequence[str], name: str) -> int | None:
    """Find the index of a name in sorted names."""
    row = bisect_left(names, name)
    return row if row < len(names) and names[row] == name else None
