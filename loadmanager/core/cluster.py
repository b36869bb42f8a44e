"""The cluster as it is known now: mutable columns that reports and ownership records are written into.

There is one writer, the driver's event loop; everything else reads the snapshots it takes. A bundle is a row in a
table of columns, found by its name; a broker's registration is a row in a second table, so that a bundle's owner and
reporter are numbers, and those of a registration that has ended match no broker.

What the bundles of a namespace are is said by its record, where there is one. New ones inherit the history of those
whose place they take: by the share of the hash range when a bundle is split, the sum when bundles are merged. A report
may still name the former bundles, or already those of a record that is not read yet: what it says of them is kept aside
until a record has them.

Differs from Pulsar: a bundle gets one sample per report of its broker, where Pulsar samples all bundles at any
notification; and its history is kept as long as a namespace record or a report has the bundle, where Pulsar deletes
it as soon as no report does, so that a bundle whose topics are idle for a minute starts again from the default.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import compress

import numpy as np
import numpy.typing as npt

from loadmanager.core.controls import NO_CONTROLS, Controls
from loadmanager.core.extensible import (
    BrokerLoad,
    LoadAverage,
    ReportRules,
    TopBundles,
    find_top_bundles,
    throughput_of,
)
from loadmanager.core.image import BrokerImage, ClusterImage
from loadmanager.core.inheritance import Overlaps, PartLoad, divide_by_topics
from loadmanager.core.learned import NOTHING_LEARNED, Learned
from loadmanager.core.load import (
    DEFAULT_LOAD,
    LONG_WINDOW,
    METRICS,
    SHORT_WINDOW,
    BoolArray,
    BrokerReport,
    BundleAverages,
    FloatArray,
    RowArray,
    next_average,
)
from loadmanager.core.names import BrokerId, namespace_of
from loadmanager.core.ownership import Ownership, OwnershipState, Registration
from loadmanager.core.policies import NO_POLICIES, Policies
from loadmanager.core.quality import NO_DOUBTS, Doubts
from loadmanager.core.snapshot import NOBODY, Bundles, Snapshot, brokers_of, find_row

_GROWTH = 64
"""Columns grow by one part in so many: little slack, and a copy of 64 rows for each row added."""
_FEWEST_ROWS = 64
_SPARE_REGISTRATIONS = 1024
"""Rows of ended registrations are looked for once the table exceeds twice the brokers by so many."""

_NO_ROWS: RowArray = np.empty(0, dtype=np.int32)

_Rows = npt.NDArray[np.intp]


class _Recorded(enum.IntEnum):
    """What the namespace record says of a bundle; `NO` when it is only known from a report."""

    NO = 0
    FREE = 1
    OWNED = 2
    RELEASING = 3


_RECORDED = {
    OwnershipState.FREE: _Recorded.FREE,
    OwnershipState.OWNED: _Recorded.OWNED,
    OwnershipState.RELEASING: _Recorded.RELEASING,
}


@dataclass(slots=True, eq=False)
class _Columns:
    """The hot state of all bundles. `reporter` and `owner` are rows of registrations, `namespace` of namespaces."""

    short: FloatArray
    long: FloatArray
    short_samples: npt.NDArray[np.int8]
    long_samples: npt.NDArray[np.int16]
    topics: RowArray
    reporter: RowArray
    owner: RowArray
    namespace: RowArray
    recorded: npt.NDArray[np.int8]

    @classmethod
    def empty(cls) -> _Columns:
        return cls(
            short=np.empty((0, METRICS)),
            long=np.empty((0, METRICS)),
            short_samples=np.empty(0, np.int8),
            long_samples=np.empty(0, np.int16),
            topics=np.empty(0, np.int32),
            reporter=np.empty(0, np.int32),
            owner=np.empty(0, np.int32),
            namespace=np.empty(0, np.int32),
            recorded=np.empty(0, np.int8),
        )

    def grow(self, rows: int) -> None:
        for column in fields(self):
            old = getattr(self, column.name)
            new = np.empty((rows, *old.shape[1:]), dtype=old.dtype)
            new[: len(old)] = old
            setattr(self, column.name, new)

    def clear(self, rows: _Rows, namespace: RowArray) -> None:
        """Make the rows bundles that nothing is known of yet."""
        self.short[rows] = self.long[rows] = DEFAULT_LOAD
        self.reporter[rows] = self.owner[rows] = NOBODY
        for column in (self.short_samples, self.long_samples, self.topics, self.recorded):
            column[rows] = 0
        self.namespace[rows] = namespace

    def nbytes(self) -> int:
        return sum(getattr(self, column.name).nbytes for column in fields(self))


@dataclass(slots=True, eq=False)
class _Broker:
    """A registered broker: its registration's row, its last report without the bundles, and the rows of those.

    `top` are the rows of the busiest of them, the least busy first, and `top_throughput` their bytes/s. `overtaken`:
    another broker has since reported one of those bundles. `unknown` is the part of the report about bundles that the
    record of their namespace does not have.
    """

    registration: Registration
    row: int
    report: BrokerReport
    rows: RowArray
    top: RowArray
    top_throughput: FloatArray
    average: LoadAverage = field(default_factory=LoadAverage)
    overtaken: bool = False
    unknown: BrokerReport | None = None


@dataclass(slots=True, eq=False)
class _Namespace:
    row: int
    bundles: int = 0
    changed_at: int = 0
    has_record: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Order:
    """The bundles sorted by name: their rows, and what a snapshot says of the names. Good until one comes or goes."""

    names: tuple[str, ...]
    rows: RowArray
    namespaces: tuple[str, ...]


@dataclass(slots=True, eq=False)
class _RegistrationTable:
    """Rows for registrations, current ones and those that records still name."""

    rows: dict[Registration, int] = field(default_factory=dict)
    unused: list[int] = field(default_factory=list)
    size: int = 0

    def row(self, registration: Registration) -> int:
        row = self.rows.get(registration)
        if row is None:
            row = self.unused.pop() if self.unused else self.size
            self.size = max(self.size, row + 1)
            self.rows[registration] = row
        return row

    def keep(self, used: set[int]) -> None:
        for registration in [registration for registration, row in self.rows.items() if row not in used]:
            self.unused.append(self.rows.pop(registration))


class ClusterModel:
    """All brokers and bundles, their load and their owners; `revision` grows with each change.

    By the `rules` each report goes into the broker's averages, and the busiest bundles in it are kept.
    """

    def __init__(self, rules: ReportRules | None = None) -> None:
        self.revision = 0
        self.bundles_ignored = 0
        """How often a report named a bundle that the record of its namespace does not have."""
        self._rules = rules or ReportRules()
        self._columns = _Columns.empty()
        self._rows: dict[str, int] = {}
        self._names: list[str] = []
        self._free_rows: list[int] = []
        self._destinations: dict[int, int] = {}
        self._brokers: dict[BrokerId, _Broker] = {}
        self._registrations = _RegistrationTable()
        self._namespaces: dict[str, _Namespace] = {}
        self._namespace_at: list[_Namespace] = []
        self._free_namespace_rows: list[int] = []
        self._divided_by_range: set[str] = set()
        self._unloaded: dict[str, float] = {}
        self._unloaded_from: dict[BrokerId, float] = {}
        self._policies = NO_POLICIES
        self._controls = NO_CONTROLS
        self._doubts = NO_DOUBTS
        self._learned = NOTHING_LEARNED
        self._order = _Order((), np.empty(0, np.int32), ())
        self._renamed: set[str] = set()
        """Names that have come or gone since the order was worked out."""

    @property
    def known_bundles(self) -> Container[str]:
        """The names of all bundles that have a row."""
        return self._rows

    def apply_report(self, registration: Registration, report: BrokerReport) -> None:
        """Take in one report: one sample for each bundle in it.

        A broker that has registered again starts without its old heat. A bundle that another broker reports and owns
        is left to that one: this report is from before it moved.
        """
        self.revision += 1
        broker = self._registered(registration, report)
        broker.unknown = None
        try:
            rows = self._known_rows(report.bundle_names)
        except KeyError:
            report = self._of_current_bundles(broker, report)
            rows = self._rows_of(report.bundle_names)
        reporters = self._columns.reporter[rows]
        foreign = (reporters != NOBODY) & (reporters != broker.row)
        broker.overtaken = False
        if foreign.any():
            mine = self._settle_dispute(broker, rows, foreign)
            self._sample(rows[mine], report.bundle_load[mine], report.bundle_topics[mine])
            self._columns.reporter[rows[mine]] = broker.row
        else:
            self._sample(rows, report.bundle_load, report.bundle_topics)
            self._columns.reporter[rows] = broker.row
        top = find_top_bundles(report, self._rules, self._policies.has_policy)
        broker.top, broker.top_throughput = rows[top].astype(np.int32), throughput_of(report.bundle_load[top])
        broker.average = self._rules.average_after(report, broker.average)
        previous, broker.rows, broker.report = broker.rows, rows.astype(np.int32), report.without_bundles()
        if not np.array_equal(previous, broker.rows):
            self._drop_reported(broker, previous[~np.isin(previous, rows)])

    def remove_broker(self, broker_id: BrokerId) -> None:
        """Forget a broker that is gone, and its load; the history of its bundles stays."""
        broker = self._brokers.pop(broker_id, None)
        if broker is not None:
            self.revision += 1
            self._drop_reported(broker, broker.rows)

    def set_namespace(self, namespace: str, bundle_names: Sequence[str], ownerships: Sequence[Ownership]) -> None:
        """Take in a namespace record: its bundles and, in the same order, who owns them."""
        assert all(namespace_of(name) == namespace for name in bundle_names), f"bundles of {namespace} only"
        self.revision += 1
        self._sweep_registrations()
        columns = self._columns
        previous = self._rows_of_namespace(namespace)
        former = previous[columns.recorded[previous] != _Recorded.NO]
        columns.recorded[previous] = _Recorded.NO
        columns.owner[previous] = NOBODY
        for row in previous.tolist() if self._destinations else ():
            self._destinations.pop(row, None)
        rows = self._rows_of(bundle_names)
        if len(rows):
            self._reshape(namespace, previous, former, rows)
        columns.recorded[rows] = [_RECORDED[ownership.state] for ownership in ownerships]
        row_of = self._registrations.row
        columns.owner[rows] = [
            NOBODY if ownership.owner is None else row_of(ownership.owner) for ownership in ownerships
        ]
        for row, ownership in zip(rows.tolist(), ownerships, strict=True):
            if ownership.destination is not None:
                self._destinations[row] = row_of(ownership.destination)
        self._forget(previous)

    def remove_namespace(self, namespace: str) -> None:
        self.set_namespace(namespace, (), ())
        if namespace in self._namespaces:
            self._namespaces[namespace].has_record = False

    def redistribute(self, parts: Mapping[str, PartLoad]) -> None:
        """Divide the history of these bundles, the parts of a split one, by what is known of their topics.

        Their sum stays. Ignored where one of them has no history, and without any topic.
        """
        shares = divide_by_topics(list(parts.values()))
        rows = np.array([self._rows.get(name, NOBODY) for name in parts], dtype=np.intp)
        columns = self._columns
        if shares is None or (rows == NOBODY).any() or not columns.long_samples[rows].all():
            return
        self.revision += 1
        for history in (columns.short, columns.long):
            history[rows] = shares * history[rows].sum(axis=0)
        columns.topics[rows] = [part.topics for part in parts.values()]
        self._divided_by_range -= parts.keys()
        self._changed(rows)

    def awaits_division(self, namespace: str) -> bool:
        """Whether a bundle of the namespace inherited by its share of the hash range, for want of anything better."""
        return any(namespace_of(name) == namespace for name in self._divided_by_range)

    def unknown_bundles(self) -> dict[BrokerId, set[str]]:
        """The brokers whose last report names bundles that are none, and the namespaces in which."""
        return {
            broker_id: {namespace_of(name) for name in broker.unknown.bundle_names}
            for broker_id, broker in self._brokers.items()
            if broker.unknown is not None
        }

    def set_rules(self, rules: ReportRules) -> None:
        """Take later reports in by these rules."""
        self._rules = rules

    def set_policies(self, policies: Policies) -> None:
        """Take in what operators have laid down about who may own what, in place of what held before."""
        self.revision += 1
        self._policies = policies

    def set_controls(self, controls: Controls) -> None:
        """Take in what operators told the balancer, in place of what held before."""
        self.revision += 1
        self._controls = controls

    def set_doubts(self, doubts: Doubts) -> None:
        """Take in what is wrong with brokers' reports, in place of what was before."""
        if doubts is not self._doubts:
            self.revision += 1
            self._doubts = doubts

    def set_learned(self, learned: Learned) -> None:
        """Take in what bundles without any history are taken to carry, in place of what held before."""
        self.revision += 1
        self._learned = learned
        rows = np.fromiter(self._rows.values(), dtype=np.intp, count=len(self._rows))
        self._expect(rows[self._columns.long_samples[rows] == 0])

    def is_laid_down_in(self, snapshot: Snapshot) -> bool:
        """Whether the snapshot has the policies and controls of now."""
        return snapshot.policies is self._policies and snapshot.controls is self._controls

    def seed_bundle(self, name: str, averages: BundleAverages) -> None:
        """Take persisted history for a bundle that has less of its own, or only what it inherited by its share of the
        hash range: the leader may know better. Ignored for one in no record and no report.
        """
        row = self._rows.get(name)
        has_more = row is not None and self._columns.long_samples[row] >= averages.long_samples
        if row is None or (has_more and name not in self._divided_by_range):
            return
        self.revision += 1
        self._divided_by_range.discard(name)
        columns = self._columns
        columns.short[row], columns.long[row] = averages.short, averages.long
        columns.short_samples[row] = min(averages.short_samples, SHORT_WINDOW)
        columns.long_samples[row] = min(averages.long_samples, LONG_WINDOW)
        columns.topics[row] = averages.topics

    def mark_unloaded(self, name: str, at_s: float, source: BrokerId | None = None) -> None:
        """Note that a bundle was taken from `source` just now: it stays where it is for the grace period."""
        self.revision += 1
        self._unloaded[name] = at_s
        if source is not None:
            self._unloaded_from[source] = at_s

    def recently_unloaded(self) -> dict[str, float]:
        """When each bundle was last unloaded, seconds since 1970; entries past the grace period go at a snapshot."""
        return dict(self._unloaded)

    def last_unloaded(self) -> dict[BrokerId, float]:
        """When a bundle was last taken from each broker, seconds since 1970.

        Of brokers that are not registered the entries past the grace period go at a snapshot.
        """
        return dict(self._unloaded_from)

    def restore_unloaded(self, unloaded: Mapping[str, float], sources: Mapping[BrokerId, float] | None = None) -> None:
        """Add what a former leader noted, of bundles and of brokers, where nothing later is known."""
        self.revision += 1
        for name, at_s in unloaded.items():
            self._unloaded[name] = max(at_s, self._unloaded.get(name, at_s))
        for source, at_s in (sources or {}).items():
            self._unloaded_from[source] = max(at_s, self._unloaded_from.get(source, at_s))

    def registrations(self) -> dict[BrokerId, Registration]:
        """The registration of each broker that has reported."""
        return {broker_id: broker.registration for broker_id, broker in self._brokers.items()}

    def count_bundles_of(self, registration: Registration) -> int:
        """How many bundles that life of a broker owns by the records, those that it is to release included."""
        row = self._registrations.rows.get(registration)
        return 0 if row is None else int(np.count_nonzero(self._columns.owner[: len(self._names)] == row))

    def bundle_averages(self, namespace: str) -> dict[str, BundleAverages]:
        """The history of the namespace's bundles that have any."""
        columns = self._columns
        return {
            self._names[row]: BundleAverages(
                columns.short[row].copy(),
                columns.long[row].copy(),
                int(columns.short_samples[row]),
                int(columns.long_samples[row]),
                int(columns.topics[row]),
            )
            for row in self._rows_of_namespace(namespace).tolist()
            if columns.long_samples[row] > 0
        }

    def samples_of(self, bundle: str) -> tuple[int, int]:
        """How many samples are in the short-term and the long-term average of a bundle; none in those of an unknown."""
        row = self._rows.get(bundle)
        return (0, 0) if row is None else (int(self._columns.short_samples[row]), int(self._columns.long_samples[row]))

    def broker_time_averages(self) -> dict[BrokerId, FloatArray]:
        """Per broker the sums (2, 4) of the short-term and long-term averages of the bundles it owns and reports."""
        brokers = self.snapshot(0.0, np.inf).brokers
        return dict(zip(brokers.ids, brokers.time_average, strict=True))

    def namespaces_changed_since(self, revision: int) -> set[str]:
        """The namespaces in which averages were sampled, or a bundle's were forgotten, after `revision`."""
        return {name for name, namespace in self._namespaces.items() if namespace.changed_at > revision}

    def hot_bytes(self) -> int:
        """The memory of all bundles' columns, of their order and of who reports them, without their names."""
        reported = sum(
            broker.rows.nbytes + broker.top.nbytes + broker.top_throughput.nbytes for broker in self._brokers.values()
        )
        return self._columns.nbytes() + self._order.rows.nbytes + reported

    def image(self) -> ClusterImage:
        """Everything that is known now, to be written down; what is done here later does not change it."""
        order, columns = self._current_order(), self._columns
        rows, registrations = order.rows, self._registrations
        position = np.full(registrations.size + 1, NOBODY, dtype=np.int32)
        position[list(registrations.rows.values())] = np.arange(len(registrations.rows))
        destination = np.full(len(columns.owner), NOBODY, dtype=np.int32)
        destination[list(self._destinations)] = position[list(self._destinations.values())]
        places = np.full(len(columns.owner), NOBODY, dtype=np.int32)
        places[rows] = np.arange(len(rows))
        by_range = np.zeros(len(columns.owner), dtype=bool)
        by_range[[self._rows[name] for name in self._divided_by_range]] = True
        return ClusterImage(
            revision=self.revision,
            names=order.names,
            registrations=tuple(registrations.rows),
            short=columns.short.take(rows, axis=0),
            long=columns.long.take(rows, axis=0),
            short_samples=columns.short_samples.take(rows),
            long_samples=columns.long_samples.take(rows),
            topics=columns.topics.take(rows),
            reporter=position.take(columns.reporter.take(rows)),
            owner=position.take(columns.owner.take(rows)),
            destination=destination.take(rows),
            recorded=columns.recorded.take(rows),
            by_range=by_range.take(rows),
            brokers=tuple(_image_of(broker, places) for broker in self._brokers.values()),
            with_record=tuple(sorted(name for name, namespace in self._namespaces.items() if namespace.has_record)),
            unloaded=dict(self._unloaded),
            unloaded_from=dict(self._unloaded_from),
        )

    def restore(self, image: ClusterImage) -> None:
        """Make an empty model the equal of the one that the image was taken of, but for what is set besides."""
        assert not self._names, "only an empty model is made into another"
        rows = self._rows_of(image.names)
        columns, row_of = self._columns, self._registrations.row
        registered = np.array([*map(row_of, image.registrations), NOBODY], dtype=np.int32)
        for name in ("short", "long", "short_samples", "long_samples", "topics", "recorded"):
            getattr(columns, name)[rows] = getattr(image, name)
        columns.reporter[rows], columns.owner[rows] = registered[image.reporter], registered[image.owner]
        for at in np.flatnonzero(image.destination >= 0).tolist():
            self._destinations[int(rows[at])] = int(registered[image.destination[at]])
        self._divided_by_range = {image.names[at] for at in np.flatnonzero(image.by_range).tolist()}
        for broker in image.brokers:
            self._brokers[broker.registration.broker] = _Broker(
                broker.registration,
                row_of(broker.registration),
                broker.report,
                rows=rows[broker.bundles].astype(np.int32),
                top=rows[broker.top].astype(np.int32),
                top_throughput=broker.top_throughput,
                average=broker.average,
                overtaken=broker.overtaken,
                unknown=broker.unknown,
            )
        for name in image.with_record:
            self._namespaces[name].has_record = True
        self._unloaded, self._unloaded_from = dict(image.unloaded), dict(image.unloaded_from)
        self.revision = image.revision

    def snapshot(self, taken_at_s: float, grace_period_s: float) -> Snapshot:
        """The cluster as it is now. A bundle unloaded less than the grace period ago counts as recently unloaded."""
        oldest_s = taken_at_s - grace_period_s
        self._unloaded = {name: at_s for name, at_s in self._unloaded.items() if at_s >= oldest_s}
        self._unloaded_from = {
            broker: at_s for broker, at_s in self._unloaded_from.items() if at_s >= oldest_s or broker in self._brokers
        }
        brokers = [self._brokers[broker_id] for broker_id in sorted(self._brokers)]
        bundles, settled = self._sorted_columns(brokers)
        registrations = [broker.registration for broker in brokers]
        reports = [broker.report for broker in brokers]
        columns = brokers_of(registrations, reports, bundles, settled, self._unloaded_from)
        now_ms = round(taken_at_s * 1000)
        averages = [broker.average for broker in brokers]
        return Snapshot(
            taken_at_s,
            self.revision,
            columns,
            bundles,
            policies=self._policies,
            controls=self._controls,
            doubts=self._doubts,
            learned=self._learned,
            broker_load=BrokerLoad.of_averages(averages, columns.load, now_ms, self._rules.history),
            top_bundles=self._top_bundles(brokers),
        )

    def _top_bundles(self, brokers: Sequence[_Broker]) -> TopBundles:
        """The busiest bundles of each broker, as rows of a snapshot."""
        rows = self._current_order().rows
        positions = np.full(len(self._columns.owner), NOBODY, dtype=np.int32)
        positions[rows] = np.arange(len(rows))
        return TopBundles.of([(positions[broker.top], broker.top_throughput) for broker in brokers])

    def _sorted_columns(self, brokers: Sequence[_Broker]) -> tuple[Bundles, BoolArray]:
        """The bundles in name order with broker positions for registrations, and which brokers are settled."""
        order, columns = self._current_order(), self._columns
        rows = order.rows
        position = np.full(self._registrations.size + 1, NOBODY, dtype=np.int32)
        position[[broker.row for broker in brokers]] = np.arange(len(brokers))
        reporter, owner = position.take(columns.reporter.take(rows)), position.take(columns.owner.take(rows))
        recorded = columns.recorded.take(rows)
        owned = (recorded == _Recorded.OWNED) & (owner >= 0)
        reported = (reporter >= 0) & (reporter == owner)
        assigned = np.where(owned, owner, np.int32(NOBODY))
        if self._destinations:
            destination = np.full(len(columns.owner), NOBODY, dtype=np.int32)
            destination[list(self._destinations)] = position[list(self._destinations.values())]
            assigned = np.maximum(assigned, destination.take(rows))
        unloaded = np.zeros(len(columns.owner), dtype=bool)
        unloaded[[self._rows[name] for name in self._unloaded if name in self._rows]] = True
        settled = np.array([not broker.overtaken for broker in brokers], dtype=bool)
        leaving = (reporter >= 0) & (recorded != _Recorded.NO) & ~(owned & reported)
        settled[reporter[leaving]] = False
        bundles = Bundles(
            names=order.names,
            namespaces=order.namespaces,
            namespace=self._positions_of(order.namespaces)[columns.namespace.take(rows)],
            broker=np.where(reported, owner, np.int32(NOBODY)),
            assigned=assigned,
            free=(owner < 0) & (assigned < 0),
            movable=owned & reported,
            recently_unloaded=unloaded.take(rows),
            short=columns.short.take(rows, axis=0),
            long=columns.long.take(rows, axis=0),
            topics=columns.topics.take(rows),
        )
        return bundles, settled

    def _current_order(self) -> _Order:
        """The order, with the names that have come or gone since."""
        if self._renamed:
            former, renamed = self._order, sorted(self._renamed)
            stays = np.ones(len(former.names), dtype=bool)
            stays[[row for row in (find_row(former.names, name) for name in renamed) if row is not None]] = False
            kept, new = list(compress(former.names, stays.tolist())), [name for name in renamed if name in self._rows]
            places = np.array([bisect_left(kept, name) for name in new], dtype=np.intp)
            new_rows = np.array([self._rows[name] for name in new], dtype=np.int32)
            namespaces = sorted(self._namespaces, key=lambda name: f"{name}/")  # as their bundles' names are sorted
            rows = np.insert(former.rows[stays], places, new_rows)
            self._order = _Order(tuple(sorted(kept + new)), rows, tuple(namespaces))
            self._renamed.clear()
        return self._order

    def _positions_of(self, namespaces: Sequence[str]) -> RowArray:
        """The position of each namespace, by its row."""
        positions = np.full(len(self._namespace_at), NOBODY, dtype=np.int32)
        positions[[self._namespaces[name].row for name in namespaces]] = np.arange(len(namespaces))
        return positions

    def _registered(self, registration: Registration, report: BrokerReport) -> _Broker:
        broker = self._brokers.get(registration.broker)
        if broker is not None and broker.registration == registration:
            return broker
        self.remove_broker(registration.broker)
        self._sweep_registrations()
        row = self._registrations.row(registration)
        broker = self._brokers[registration.broker] = _Broker(
            registration, row, report, rows=_NO_ROWS, top=_NO_ROWS, top_throughput=np.empty(0)
        )
        return broker

    def _settle_dispute(self, broker: _Broker, rows: _Rows, foreign: BoolArray) -> BoolArray:
        """Which of `rows` are this broker's to report, when others report some of them (`foreign`) too.

        A bundle stays with a reporter that is also its owner. Whoever loses one carries load in its figures that is
        no longer its own, until it reports without it.
        """
        kept = foreign & (self._columns.owner[rows] == self._columns.reporter[rows])
        broker.overtaken = bool(kept.any())
        losers = set(self._columns.reporter[rows[foreign & ~kept]].tolist())
        for other in self._brokers.values() if losers else ():
            other.overtaken |= other.row in losers
        return np.asarray(~kept)

    def _sample(self, rows: _Rows, load: FloatArray, topics: npt.NDArray[np.int64]) -> None:
        columns = self._columns
        columns.short[rows], columns.short_samples[rows] = next_average(
            columns.short[rows], columns.short_samples[rows], load, SHORT_WINDOW
        )
        columns.long[rows], columns.long_samples[rows] = next_average(
            columns.long[rows], columns.long_samples[rows], load, LONG_WINDOW
        )
        columns.topics[rows] = topics
        self._changed(rows)

    def _changed(self, rows: _Rows) -> None:
        """Note that the averages of these bundles are others than before."""
        for namespace in set(self._columns.namespace[rows].tolist()):
            self._namespace_at[namespace].changed_at = self.revision

    def _of_current_bundles(self, broker: _Broker, report: BrokerReport) -> BrokerReport:
        """The report without bundles that the record of their namespace does not have: those are kept aside."""
        new = [name for name in report.bundle_names if name not in self._rows]
        unknown = {name for name in new if self._has_record(namespace_of(name))}
        if not unknown:
            return report
        self.bundles_ignored += len(unknown)
        current = np.array([name not in unknown for name in report.bundle_names])
        broker.unknown = report.only(~current)
        return report.only(current)

    def _has_record(self, namespace: str) -> bool:
        known = self._namespaces.get(namespace)
        return known is not None and known.has_record

    def _reshape(self, namespace: str, previous: _Rows, former: _Rows, rows: _Rows) -> None:
        """Take in that the record's bundles are these `rows`: before, `former` ones were, and `previous` ones known."""
        self._namespaces[namespace].has_record = True
        if len(former) == len(previous) and np.array_equal(former, np.sort(rows)):
            return
        gone, heirs = previous[~np.isin(previous, rows)], rows[~np.isin(rows, former)]
        replaced = former[~np.isin(former, rows)]
        if len(heirs) and len(replaced):
            self._inherit(heirs, replaced)
        if len(gone):
            self._columns.reporter[gone] = NOBODY
            stays = np.ones(len(self._columns.owner), dtype=bool)
            stays[gone] = False
            for broker in self._brokers.values():
                if not stays[broker.rows].all():
                    broker.rows, kept = broker.rows[stays[broker.rows]], stays[broker.top]
                    broker.top, broker.top_throughput = broker.top[kept], broker.top_throughput[kept]
        for broker in self._brokers.values() if len(heirs) else ():
            if broker.unknown is not None:
                self._take_in_unknown(broker, broker.unknown)

    def _inherit(self, heirs: _Rows, former: _Rows) -> None:
        """Give new bundles the history, and the marks, of those whose place they take."""
        columns = self._columns
        overlaps = Overlaps.of([self._names[row] for row in heirs], [self._names[row] for row in former])
        for heir, row in zip(heirs[overlaps.heir].tolist(), former[overlaps.former].tolist(), strict=True):
            marked_s = self._unloaded.get(self._names[row])
            if marked_s is not None:
                self._unloaded[self._names[heir]] = max(marked_s, self._unloaded.get(self._names[heir], marked_s))
        for row in former.tolist():
            self._unloaded.pop(self._names[row], None)
        known = columns.long_samples[former] > 0
        for history, samples in ((columns.short, columns.short_samples), (columns.long, columns.long_samples)):
            counts = np.zeros(len(heirs), dtype=np.int64)
            np.maximum.at(counts, overlaps.heir, samples[former[overlaps.former]].astype(np.int64))
            filled = (samples[heirs] == 0) & (counts > 0)
            inherited = overlaps.sums(np.where(known[:, None], history[former], 0.0), len(heirs))
            history[heirs[filled]], samples[heirs[filled]] = inherited[filled], counts[filled]
        in_part = heirs[overlaps.heir[(overlaps.share < 1) & known[overlaps.former]]]
        self._divided_by_range.update(self._names[row] for row in in_part.tolist())
        untold = columns.reporter[heirs] == NOBODY
        topics = overlaps.sums(columns.topics[former].astype(np.float64)[:, None], len(heirs))[:, 0]
        columns.topics[heirs[untold]] = np.rint(topics[untold]).astype(np.int32)
        self._changed(heirs)

    def _take_in_unknown(self, broker: _Broker, unknown: BrokerReport) -> None:
        """A report was quicker than the record: what it said of bundles that are current by now counts after all."""
        current = np.array([name in self._rows for name in unknown.bundle_names])
        report = unknown.only(current)
        rows = self._rows_of(report.bundle_names)
        self._sample(rows, report.bundle_load, report.bundle_topics)
        self._columns.reporter[rows] = broker.row
        broker.rows = np.concatenate([broker.rows, rows.astype(np.int32)])
        broker.unknown = None if current.all() else unknown.only(~current)

    def _drop_reported(self, broker: _Broker, rows: _Rows | RowArray) -> None:
        """The broker's report has these bundles no more."""
        rows = rows[self._columns.reporter[rows] == broker.row]
        self._columns.reporter[rows] = NOBODY
        self._forget(rows)

    def _rows_of_namespace(self, namespace: str) -> _Rows:
        known = self._namespaces.get(namespace)
        return (
            np.flatnonzero(self._columns.namespace[: len(self._names)] == known.row) if known else np.empty(0, np.intp)
        )

    def _rows_of(self, names: Sequence[str]) -> _Rows:
        """The rows of bundles, new rows for new bundles."""
        try:
            return self._known_rows(names)
        except KeyError:
            self._add([name for name in names if name not in self._rows])
            return self._known_rows(names)

    def _known_rows(self, names: Sequence[str]) -> _Rows:
        return np.fromiter(map(self._rows.__getitem__, names), dtype=np.intp, count=len(names))

    def _add(self, names: Sequence[str]) -> None:
        self._renamed.update(names)
        added = []
        for name in names:
            if self._free_rows:
                row = self._free_rows.pop()
                self._names[row] = name
            else:
                row = len(self._names)
                self._names.append(name)
            self._rows[name] = row
            added.append(row)
        if len(self._names) > len(self._columns.owner):
            self._columns.grow(max(_FEWEST_ROWS, len(self._names) + len(self._names) // _GROWTH))
        rows = np.array(added, dtype=np.intp)
        self._columns.clear(rows, np.array([self._count_in_namespace(name) for name in names], dtype=np.int32))
        if self._learned.loads:
            self._expect(rows)

    def _expect(self, rows: _Rows) -> None:
        """These bundles have no history: they are taken to carry what was learned of their namespace."""
        loads = [self._learned.load_of(namespace_of(self._names[row])) for row in rows.tolist()]
        self._columns.short[rows] = self._columns.long[rows] = np.array(loads).reshape(-1, METRICS)

    def _count_in_namespace(self, bundle: str) -> int:
        """Count the bundle to its namespace, and return the namespace's row."""
        name = namespace_of(bundle)
        namespace = self._namespaces.get(name)
        if namespace is None:
            namespace = self._namespaces[name] = self._add_namespace()
        namespace.bundles += 1
        return namespace.row

    def _add_namespace(self) -> _Namespace:
        if self._free_namespace_rows:
            namespace = _Namespace(self._free_namespace_rows.pop())
            self._namespace_at[namespace.row] = namespace
        else:
            namespace = _Namespace(len(self._namespace_at))
            self._namespace_at.append(namespace)
        return namespace

    def _forget(self, rows: _Rows | RowArray) -> None:
        """Forget those bundles that neither a namespace record nor a report has any more; their rows are used again."""
        columns = self._columns
        gone = rows[(columns.recorded[rows] == _Recorded.NO) & (columns.reporter[rows] == NOBODY)]
        if not len(gone):
            return
        columns.namespace[gone] = NOBODY
        for row in gone.tolist():
            name = self._names[row]
            self._renamed.add(name)
            self._divided_by_range.discard(name)
            del self._rows[name]
            self._free_rows.append(row)
            namespace = self._namespaces[namespace_of(name)]
            namespace.bundles -= 1
            namespace.changed_at = self.revision
            if not namespace.bundles:
                self._free_namespace_rows.append(self._namespaces.pop(namespace_of(name)).row)

    def _sweep_registrations(self) -> None:
        """Use rows of ended registrations again, once there are many that nothing refers to."""
        if len(self._registrations.rows) > 2 * len(self._brokers) + _SPARE_REGISTRATIONS:
            used = set(np.unique(self._columns.owner[: len(self._names)]).tolist())
            used |= {broker.row for broker in self._brokers.values()} | set(self._destinations.values())
            self._registrations.keep(used)


def _image_of(broker: _Broker, places: RowArray) -> BrokerImage:
    """The broker, with the bundles' positions by their rows in `places`; those that are no more are left out."""
    bundles, top = places[broker.rows], places[broker.top]
    return BrokerImage(
        registration=broker.registration,
        report=broker.report,
        bundles=bundles[bundles >= 0],
        top=top[top >= 0],
        top_throughput=broker.top_throughput[top >= 0],
        average=broker.average,
        overtaken=broker.overtaken,
        unknown=broker.unknown,
    )
