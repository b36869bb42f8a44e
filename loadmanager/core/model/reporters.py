"""Reports of brokers: the reporter of each bundle, and each broker's last report.

A report may name bundles that are gone or not yet known, because the record read last is newer or older. Their part of
the report is kept aside until a record has them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from loadmanager.core.domain.names import BrokerId, namespace_of
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.model.broker_report import Busiest, LatestReport, ReportedLoad, ReportingBroker
from loadmanager.core.model.bundle_averages import AverageColumns
from loadmanager.core.model.bundle_rows import NamedRows, Rows
from loadmanager.core.model.extensible_load import Listable, ReportRules
from loadmanager.core.model.load import BoolArray, BrokerReport, RowArray
from loadmanager.core.model.owner_columns import RecordedOwners
from loadmanager.core.model.snapshot import NOBODY


class Reporters:
    """Brokers with their last reports; `ignored` counts reported bundles that do not exist.

    The `rules` define the broker averages and the busiest bundles.
    """

    def __init__(self, rows: NamedRows, owners: RecordedOwners, averages: AverageColumns, rules: ReportRules) -> None:
        self._rows = rows
        self._owners = owners
        self._averages = averages
        self.rules = rules
        self.brokers: dict[BrokerId, ReportingBroker] = {}
        self.ignored = 0
        self._listable = Listable(rules, lambda _: False)

    def in_order(self) -> list[ReportingBroker]:
        """Return brokers sorted by name, as in a snapshot."""
        return [self.brokers[broker_id] for broker_id in sorted(self.brokers)]

    def take_in(self, registration: Registration, report: BrokerReport, has_policy: Callable[[str], bool]) -> None:
        """Sample each bundle of the report, except those left to another broker."""
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
        broker.average = self.rules.average_after(report, broker.average)
        previous, broker.rows, broker.report = broker.rows, rows.astype(np.int32), report.without_bundles()
        broker.latest = ReportedLoad.of(report, broker.rows)
        if not self._listable.is_of(self.rules, has_policy):
            self._listable = Listable(self.rules, has_policy)
        broker.busiest = Busiest.of_report(broker.latest, self._listable)
        if not np.array_equal(previous, broker.rows):
            self._drop(broker, previous[~np.isin(previous, rows)])

    def remove(self, broker_id: BrokerId) -> None:
        """Remove a broker that has left, and its load; its bundles keep their history."""
        broker = self.brokers.pop(broker_id, None)
        if broker is not None:
            self._rows.revision += 1
            self._drop(broker, broker.rows)

    def forget_unnamed(self, rows: Rows | RowArray) -> None:
        """Forget bundles that neither a namespace record nor a report names."""
        gone = self._rows.forget_unnamed(rows)
        # They have no reporter. But the last report of a broker that lost a dispute names them, and their rows will
        # be reused.
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

    def unknown_bundles(self) -> dict[BrokerId, set[str]]:
        """Return, by broker, the namespaces in which its last report names nonexistent bundles."""
        return {
            broker_id: {namespace_of(name) for name in broker.unknown.bundle_names}
            for broker_id, broker in self.brokers.items()
            if broker.unknown is not None
        }

    def latest(self) -> dict[Registration, LatestReport]:
        """Return the bundle columns of each broker's last report, sorted by broker name."""
        names, places = self._rows.order().names, self._rows.places()
        return {broker.registration: broker.latest.named(names, places) for broker in self.in_order()}

    def nbytes(self) -> int:
        return sum(broker.rows.nbytes for broker in self.brokers.values())

    def sweep_registrations(self) -> None:
        """Collect rows of ended registrations."""
        self._owners.sweep((broker.row for broker in self.brokers.values()), len(self.brokers))

    def _register(self, registration: Registration, report: BrokerReport) -> ReportingBroker:
        """Add a new or re-registered broker; a former registration of it is dropped."""
        self.remove(registration.broker)
        self.sweep_registrations()
        broker = ReportingBroker(registration, self._owners.registrations.of(registration), report)
        self.brokers[registration.broker] = broker
        return broker

    def _drop(self, broker: ReportingBroker, rows: Rows | RowArray) -> None:
        """Drop these bundles from the broker's report."""
        rows = rows[self._rows.columns.reporter[rows] == broker.row]
        self._rows.columns.reporter[rows] = NOBODY
        self.forget_unnamed(rows)

    def _all_but(self, gone: Rows | RowArray) -> BoolArray:
        stays = np.ones(len(self._rows.columns.owner), dtype=bool)
        stays[gone] = False
        return stays

    def _sample(self, broker: ReportingBroker, rows: Rows, report: BrokerReport) -> None:
        """Add samples for the bundles that this broker reports."""
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
        """Return a mask of the `rows` that this broker reports, when others report some of them (`foreign`) too.

        A bundle stays with a reporter that is also its owner. The loser's figures still include its load, until it
        reports without it.
        """
        columns = self._rows.columns
        kept = foreign & (columns.owner[rows] == columns.reporter[rows])
        broker.overtaken = bool(kept.any())
        losers = set(columns.reporter[rows[foreign & ~kept]].tolist())
        for other in self.brokers.values() if losers else ():
            other.overtaken |= other.row in losers
        return np.asarray(~kept)

    def _of_current_bundles(self, broker: ReportingBroker, report: BrokerReport) -> BrokerReport:
        """Return the report without bundles that the record of their namespace lacks; those are kept aside."""
        new = [name for name in report.bundle_names if name not in self._rows.by_name]
        unknown = {name for name in new if self._rows.has_record(namespace_of(name))}
        if not unknown:
            return report
        self.ignored += len(unknown)
        current = np.array([name not in unknown for name in report.bundle_names])
        broker.unknown = report.only(~current)
        return report.only(current)
