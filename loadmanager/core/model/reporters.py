"""Reports of brokers: the reporter of each bundle, and each broker's last report.

A report may name bundles that no longer exist or are not yet known, because the last record read is newer or older than
the report. Their part of the report is kept until a record has them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from loadmanager.core.domain.names import BrokerId, namespace_of
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.policies import Policies
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.bundle_averages import AverageColumns
from loadmanager.core.model.bundle_rows import NamedRows, Rows
from loadmanager.core.model.extensible_load import Listed, LoadAverage, average_after, find_busiest, throughput_of
from loadmanager.core.model.load import BoolArray, BrokerReport, RowArray
from loadmanager.core.model.owner_columns import RecordedOwners
from loadmanager.core.model.snapshot import NOBODY

FindBusiest = Callable[[], Listed]
"""Returns the busiest bundles of a broker, by row."""


def _busiest_of(report: BrokerReport, rows: RowArray, settings: PlannerSettings, policies: Policies) -> FindBusiest:
    """Return the busiest bundles of a report; found on first use, since few callers need them.

    Two concurrent callers may both find them; they get equal values.
    """

    @cache
    def find() -> Listed:
        top = find_busiest(report, settings, policies)
        return rows[top], throughput_of(report.bundle_load[top])

    return find


def _no_rows() -> RowArray:
    return np.empty(0, dtype=np.int32)


@dataclass(slots=True, eq=False)
class ReportingBroker:
    """A registered broker: its registration's row, its last report, and the rows of the report's bundles.

    The report is without bundles until the first one after a restore. `overtaken`: another broker has reported one of
    those bundles since. `unknown` is the part of the report about bundles that the record of their namespace does not
    have. In a checkpoint `row` is -1, and `rows` are positions in its names.
    """

    registration: Registration
    row: int
    report: BrokerReport
    rows: RowArray = field(default_factory=_no_rows)
    busiest: FindBusiest = lambda: (_no_rows(), np.empty(0))
    average: LoadAverage = field(default_factory=LoadAverage)
    overtaken: bool = False
    unknown: BrokerReport | None = None

    @property
    def has_bundles(self) -> bool:
        """Return True if the report has its bundles: not after a restore."""
        return len(self.report.bundle_names) == len(self.rows)

    def keep(self, stays: BoolArray) -> None:
        """Drop all bundles except these, by row."""
        kept = stays[self.rows]
        if kept.all():
            return
        top, throughput = self.busiest()
        left = top[stays[top]], throughput[stays[top]]
        self.busiest = lambda: left
        if self.has_bundles:
            self.report = self.report.only(kept)
        self.rows = self.rows[kept]


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

    def in_order(self) -> list[ReportingBroker]:
        """Return brokers sorted by name, as in a snapshot."""
        return [self.brokers[broker_id] for broker_id in sorted(self.brokers)]

    def take_in(self, registration: Registration, report: BrokerReport, policies: Policies) -> None:
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
        own_names = tuple([self._rows.names[row] for row in rows.tolist()])  # so that the report's can be freed
        previous, broker.rows = broker.rows, rows.astype(np.int32)
        broker.report = replace(report, bundle_names=own_names)
        broker.busiest = _busiest_of(broker.report, broker.rows, self.settings, policies)
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
            broker.keep(self._all_but(gone))

    def release(self, gone: Rows) -> None:
        """Drop bundles that a record no longer has from their reporters."""
        self._rows.columns.reporter[gone] = NOBODY
        stays = self._all_but(gone)
        for broker in self.brokers.values():
            broker.keep(stays)

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
            if broker.has_bundles:
                broker.report = broker.report.with_bundles_of(report)
            broker.rows = np.concatenate([broker.rows, rows.astype(np.int32)])
            broker.unknown = None if current.all() else unknown.only(~current)

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
