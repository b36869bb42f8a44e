"""Reports of brokers: the reporter of each bundle, and each broker's last report.

A report may name bundles that no longer exist or are not yet known, because the last record read is newer or older than
the report. Their part of the report is kept until a record has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from loadmanager.core.domain.names import BrokerId, namespace_of
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.bundle_averages import AverageColumns
from loadmanager.core.model.bundle_rows import NamedRows, Rows
from loadmanager.core.model.extensible_load import (
    Listable,
    Listed,
    LoadAverage,
    average_after,
    find_busiest,
    throughput_of,
)
from loadmanager.core.model.load import METRICS, BoolArray, BrokerReport, FloatArray, IntArray, RowArray
from loadmanager.core.model.owner_columns import RecordedOwners
from loadmanager.core.model.snapshot import NOBODY, find_row


@dataclass(frozen=True, eq=False)
class LatestReport:
    """Bundle columns of a broker's last accepted report: see `BrokerReport`.

    `all_names` are the sorted names of all bundles, `places` (k,) the positions of the report's bundles among them. It
    is built without copying names, and immutable, so that worker threads may read it.
    """

    all_names: Sequence[str]
    places: RowArray
    bundle_topics: IntArray
    bundle_sessions: IntArray
    bundle_load: FloatArray
    bundle_cache_bytes: IntArray

    def __len__(self) -> int:
        return len(self.places)

    @cached_property
    def bundle_names(self) -> tuple[str, ...]:
        return tuple(map(self.all_names.__getitem__, self.places.tolist()))

    def find_sessions(self, bundle: str) -> int | None:
        """Find the number of consumers and producers of a bundle; None if it is not in the report."""
        place = find_row(self.all_names, bundle)
        found = () if place is None else self.bundle_sessions[self.places == place].tolist()
        return found[0] if found else None


def _no_rows() -> RowArray:
    return np.empty(0, dtype=np.int32)


@dataclass(slots=True, eq=False)
class ReportedLoad:
    """Bundle columns of a report for the bundles in `rows` (k,), read-only."""

    rows: RowArray
    topics: IntArray
    sessions: IntArray
    load: FloatArray
    cache_bytes: IntArray

    @classmethod
    def nothing(cls) -> ReportedLoad:
        none = np.empty(0, dtype=np.int64)
        return cls(_no_rows(), none, none, np.empty((0, METRICS)), none)

    @classmethod
    def of(cls, report: BrokerReport, rows: RowArray) -> ReportedLoad:
        return cls(rows, report.bundle_topics, report.bundle_sessions, report.bundle_load, report.bundle_cache_bytes)

    def named(self, all_names: Sequence[str], places: RowArray) -> LatestReport:
        """Return the report with names for the rows: those at these places, by row, in sorted names."""
        return LatestReport(all_names, places[self.rows], self.topics, self.sessions, self.load, self.cache_bytes)

    def only(self, kept: BoolArray) -> ReportedLoad:
        return ReportedLoad(
            self.rows[kept], self.topics[kept], self.sessions[kept], self.load[kept], self.cache_bytes[kept]
        )

    def and_of(self, more: ReportedLoad) -> ReportedLoad:
        return ReportedLoad(
            np.concatenate([self.rows, more.rows]),
            np.concatenate([self.topics, more.topics]),
            np.concatenate([self.sessions, more.sessions]),
            np.concatenate([self.load, more.load]),
            np.concatenate([self.cache_bytes, more.cache_bytes]),
        )


class Busiest:
    """Busiest bundles of a report, by row; found on first use, since few callers need them.

    `find` takes the names of all bundles, and by row the position of each among them. Two concurrent callers may both
    find them; they get equal values.
    """

    def __init__(self, find: Callable[[Sequence[str], RowArray], Listed]) -> None:
        self._find = find
        self._found: Listed | None = None

    @classmethod
    def of_report(cls, report: ReportedLoad, listable: Listable) -> Busiest:
        """Prepare by the settings and policies at the time of the report."""

        def find(all_names: Sequence[str], places: RowArray) -> Listed:
            top = find_busiest(report.named(all_names, places), listable)
            return report.rows[top], throughput_of(report.load[top])

        return cls(find)

    @classmethod
    def already(cls, rows: RowArray, throughput: FloatArray) -> Busiest:
        return cls(lambda *_: (rows, throughput))

    def find(self, all_names: Sequence[str], places: RowArray) -> Listed:
        if self._found is None:
            self._found = self._find(all_names, places)
        return self._found


@dataclass(slots=True, eq=False)
class ReportingBroker:
    """A registered broker: its registration's row, its last report without bundles, and the rows of those.

    `latest` holds the bundle columns; it is empty until the first report after a restore. `overtaken`: another broker
    has reported one of those bundles since. `unknown` is the part of the report about bundles that the record of their
    namespace does not have.
    """

    registration: Registration
    row: int
    report: BrokerReport
    rows: RowArray = field(default_factory=_no_rows)
    latest: ReportedLoad = field(default_factory=ReportedLoad.nothing)
    busiest: Busiest = field(default_factory=lambda: Busiest.already(_no_rows(), np.empty(0)))
    average: LoadAverage = field(default_factory=LoadAverage)
    overtaken: bool = False
    unknown: BrokerReport | None = None

    def keep(self, stays: BoolArray, names: Sequence[str]) -> None:
        """Drop all bundles except these, by row; `names` are those of all rows."""
        if stays[self.rows].all():
            return
        top, throughput = self.busiest.find(names, np.arange(len(names), dtype=np.int32))
        self.busiest = Busiest.already(top[stays[top]], throughput[stays[top]])
        self.rows, self.latest = self.rows[stays[self.rows]], self.latest.only(stays[self.latest.rows])


class Reporters:
    """Brokers with their last reports; `ignored` counts reported bundles that do not exist.

    The `settings` define the broker averages and the busiest bundles.
    """

    def __init__(
        self, rows: NamedRows, owners: RecordedOwners, averages: AverageColumns, settings: PlannerSettings
    ) -> None:
        self._rows = rows
        self._owners = owners
        self._averages = averages
        self.settings = settings
        self.brokers: dict[BrokerId, ReportingBroker] = {}
        self.ignored = 0
        self._listable = Listable(settings, lambda _: False)

    def in_order(self) -> list[ReportingBroker]:
        """Return brokers sorted by name, as in a snapshot."""
        return [self.brokers[broker_id] for broker_id in sorted(self.brokers)]

    def take_in(self, registration: Registration, report: BrokerReport, has_policy: Callable[[str], bool]) -> None:
        """Sample each bundle of the report, except those that another broker reports and owns."""
        broker = self.brokers.get(registration.broker)
        if broker is None or broker.registration != registration:
            broker = self._register(registration, report)
        broker.unknown = None
        try:
            rows = self._rows.known(report.bundle_names)
        except KeyError:
            report = self._of_current_bundles(broker, report)
            rows = self._rows.of(report.bundle_names)
        self._sample(broker, rows, report)
        broker.average = average_after(report, broker.average, self.settings)
        previous, broker.rows, broker.report = broker.rows, rows.astype(np.int32), report.without_bundles()
        broker.latest = ReportedLoad.of(report, broker.rows)
        if not self._listable.is_of(self.settings, has_policy):
            self._listable = Listable(self.settings, has_policy)
        broker.busiest = Busiest.of_report(broker.latest, self._listable)
        if not np.array_equal(previous, broker.rows):
            self._drop(broker, previous[~np.isin(previous, rows)])

    def remove(self, broker_id: BrokerId) -> None:
        broker = self.brokers.pop(broker_id, None)
        if broker is not None:
            self._rows.revision += 1
            self._drop(broker, broker.rows)

    def forget_unnamed(self, rows: Rows | RowArray) -> None:
        """Forget bundles that neither a namespace record nor a report names."""
        gone = self._rows.forget_unnamed(rows)
        # They have no reporter, but the report of a broker that is not their owner may still hold their rows, which
        # will be reused.
        overtaken = [broker for broker in self.brokers.values() if broker.overtaken] if len(gone) else []
        for broker in overtaken:
            broker.keep(self._all_but(gone), self._rows.names)

    def release(self, gone: Rows) -> None:
        """Drop bundles that a record no longer has from their reporters."""
        self._rows.columns.reporter[gone] = NOBODY
        stays = self._all_but(gone)
        for broker in self.brokers.values():
            broker.keep(stays, self._rows.names)

    def take_in_unknown(self) -> None:
        """Sample bundles that were reported before their record arrived."""
        for broker in self.brokers.values():
            unknown = broker.unknown
            if unknown is None:
                continue
            current = np.array([name in self._rows.by_name for name in unknown.bundle_names])
            report = unknown.only(current)
            rows = self._rows.of(report.bundle_names)
            self._averages.sample(rows, report.bundle_load, report.bundle_topics, report.last_update_ms)
            self._rows.columns.reporter[rows] = broker.row
            more = ReportedLoad.of(report, rows.astype(np.int32))
            broker.rows, broker.latest = np.concatenate([broker.rows, more.rows]), broker.latest.and_of(more)
            broker.unknown = None if current.all() else unknown.only(~current)

    def nbytes(self) -> int:
        return sum(broker.rows.nbytes for broker in self.brokers.values())

    def sweep_registrations(self) -> None:
        """Garbage collect the rows of ended registrations."""
        self._owners.sweep((broker.row for broker in self.brokers.values()), len(self.brokers))

    def _register(self, registration: Registration, report: BrokerReport) -> ReportingBroker:
        """Add a new or re-registered broker; a former registration of it is dropped."""
        self.remove(registration.broker)
        self.sweep_registrations()
        broker = ReportingBroker(registration, self._owners.registrations.of(registration), report)
        self.brokers[registration.broker] = broker
        return broker

    def _drop(self, broker: ReportingBroker, rows: Rows | RowArray) -> None:
        rows = rows[self._rows.columns.reporter[rows] == broker.row]
        self._rows.columns.reporter[rows] = NOBODY
        self.forget_unnamed(rows)

    def _all_but(self, gone: Rows | RowArray) -> BoolArray:
        stays = np.ones(len(self._rows.columns.owner), dtype=bool)
        stays[gone] = False
        return stays

    def _sample(self, broker: ReportingBroker, rows: Rows, report: BrokerReport) -> None:
        reporter = self._rows.columns.reporter
        reporters = reporter[rows]
        foreign = (reporters != NOBODY) & (reporters != broker.row)
        broker.overtaken = False
        if foreign.any():
            mine = self._settle_dispute(broker, rows, foreign)
            load, topics = report.bundle_load[mine], report.bundle_topics[mine]
            self._averages.sample(rows[mine], load, topics, report.last_update_ms)
            reporter[rows[mine]] = broker.row
        else:
            self._averages.sample(rows, report.bundle_load, report.bundle_topics, report.last_update_ms)
            reporter[rows] = broker.row

    def _settle_dispute(self, broker: ReportingBroker, rows: Rows, foreign: BoolArray) -> BoolArray:
        """Return a mask of the `rows` that count as reported by this broker, when others report some (`foreign`) too.

        A bundle stays with a reporter that is also its owner. The totals of the other broker include its load until its
        next report.
        """
        columns = self._rows.columns
        kept = foreign & (columns.owner[rows] == columns.reporter[rows])
        broker.overtaken = bool(kept.any())
        losers = set(columns.reporter[rows[foreign & ~kept]].tolist())
        for other in self.brokers.values() if losers else ():
            other.overtaken |= other.row in losers
        return np.asarray(~kept)

    def _of_current_bundles(self, broker: ReportingBroker, report: BrokerReport) -> BrokerReport:
        """Return the report without bundles that the record of their namespace lacks; store those in `unknown`."""
        new = [name for name in report.bundle_names if name not in self._rows.by_name]
        unknown = {name for name in new if self._rows.has_record(namespace_of(name))}
        if not unknown:
            return report
        self.ignored += len(unknown)
        current = np.array([name not in unknown for name in report.bundle_names])
        broker.unknown = report.only(~current)
        return report.only(current)
