"""Model of the cluster: mutable columns, written by reports and ownership records.

There is one writer, the driver's event loop; everything else reads snapshots. A bundle is a row in one table, found by
name. A broker's registration is a row in a second table, so owners and reporters are numbers, and the row of an ended
registration matches no broker.

A namespace's record, if it exists, defines its bundles. New bundles inherit the history of the bundles they replace:
after a split by their share of the hash range, after a merge the sum.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

import numpy as np

from loadmanager.core.domain.controls import NO_CONTROLS, Controls
from loadmanager.core.domain.names import BrokerId, namespace_of
from loadmanager.core.domain.ownership import Ownership, Registration
from loadmanager.core.domain.policies import NO_POLICIES, Policies
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.bundle_averages import AverageColumns, Overlaps, PartLoad
from loadmanager.core.model.bundle_rows import NamedRows, Rows
from loadmanager.core.model.extensible_load import BrokerLoad, throughput_of
from loadmanager.core.model.learned_loads import LearnedLoads
from loadmanager.core.model.load import BrokerReport, BundleAverages, FloatArray
from loadmanager.core.model.owner_columns import RecordedOwners, UnloadTimes
from loadmanager.core.model.report_validation import NO_FAULTS, ReportFaults
from loadmanager.core.model.reporters import Reporters
from loadmanager.core.model.snapshot import Snapshot, build_brokers
from loadmanager.core.model.snapshot_builder import (
    ClusterSummary,
    ModelCheckpoint,
    restore,
    sorted_bundles,
    summarize,
    take_checkpoint,
    top_bundles,
)


class ClusterModel:
    """Brokers and bundles with loads and owners; `settings` define how reports are processed. `unloads` are to be read
    only.
    """

    def __init__(self, settings: PlannerSettings | None = None) -> None:
        self._rows = NamedRows()
        self._owners = RecordedOwners(self._rows)
        self._averages = AverageColumns(self._rows)
        self._reporters = Reporters(self._rows, self._owners, self._averages, settings or PlannerSettings())
        self.unloads = UnloadTimes()
        self._policies = NO_POLICIES
        self._controls = NO_CONTROLS
        self._faults = NO_FAULTS

    @property
    def revision(self) -> int:
        """Return a number that grows with each change."""
        return self._rows.revision

    @property
    def bundles_ignored(self) -> int:
        """Return the count of reported bundles that were not in the record of their namespace."""
        return self._reporters.ignored

    @property
    def known_bundles(self) -> Container[str]:
        """Return the names of all bundles with a row."""
        return self._rows.by_name

    def own_names(self, names: Sequence[str]) -> list[str]:
        """Return these names as the model's own string objects, for bundles with a row."""
        return [self._rows.names[row] for row in self._rows.known(names).tolist()]

    # Reports and records

    def apply_report(self, registration: Registration, report: BrokerReport) -> None:
        """Take in a report: one sample per bundle.

        A re-registered broker starts with new averages. A bundle that another broker reports and owns is ignored: this
        report predates the move.
        """
        self._rows.revision += 1
        self._reporters.take_in(registration, report, self._policies)

    def remove_broker(self, broker_id: BrokerId) -> None:
        """Remove a broker that has left, and its load; its bundles keep their history."""
        self._reporters.remove(broker_id)

    def set_namespace(self, namespace: str, bundle_names: Sequence[str], ownerships: Sequence[Ownership]) -> None:
        """Take in a namespace record: its bundles and, in the same order, their ownerships.

        bundles                             with the record
        -------                             ---------------
        unchanged                           owners are updated, history stays
        new, replacing others               inherit their load and unload times
        new, already reported               are sampled from the part of the report kept aside
        gone, still reported                are dropped from the report
        gone, not reported                  are forgotten, with their history
        """
        self._put_record(namespace, bundle_names, ownerships)

    def set_owners(self, ownerships: Mapping[str, Ownership]) -> None:
        """Take in changed ownerships of records with unchanged bundles."""
        self._rows.revision += 1
        self._reporters.sweep_registrations()
        rows = self._rows.known(list(ownerships))
        self._owners.strike(rows)
        self._owners.write(rows, list(ownerships.values()))

    def remove_namespace(self, namespace: str) -> None:
        """Remove a record: the namespace's bundles are then those that brokers report."""
        self._put_record(namespace, (), ())
        self._rows.set_record(namespace, there=False)

    def _put_record(self, namespace: str, bundle_names: Sequence[str], ownerships: Sequence[Ownership]) -> None:
        assert {*map(namespace_of, bundle_names)} <= {namespace}, f"bundles of {namespace} only"
        self._rows.revision += 1
        self._reporters.sweep_registrations()
        previous = self._rows.of_namespace(namespace)
        former = self._owners.strike(previous)
        rows = self._rows.of(bundle_names)
        if len(rows):
            self._rows.set_record(namespace, there=True)
            self._reshape(previous, former, rows)
        self._owners.write(rows, ownerships)
        self._reporters.forget_unnamed(previous)

    def _reshape(self, previous: Rows, former: Rows, rows: Rows) -> None:
        """Replace the `former` bundles of the record by `rows`; `previous` are all bundles known before."""
        # The usual case: the bundles are unchanged.
        if len(former) == len(previous) and np.array_equal(former, np.sort(rows)):
            return
        gone, heirs = previous[~np.isin(previous, rows)], rows[~np.isin(rows, former)]
        replaced = former[~np.isin(former, rows)]
        # Inherit before reports of former bundles are dropped, and before an early report of the new ones is sampled.
        if len(heirs) and len(replaced):
            self._inherit(heirs, replaced)
        if len(gone):
            self._reporters.release(gone)
        if len(heirs):
            self._reporters.take_in_unknown()

    def _inherit(self, heirs: Rows, former: Rows) -> None:
        names = self._rows.names
        overlaps = Overlaps.of([names[row] for row in heirs], [names[row] for row in former])
        pairs = zip(heirs[overlaps.heir].tolist(), former[overlaps.former].tolist(), strict=True)
        self.unloads.inherit(((names[heir], names[row]) for heir, row in pairs), [names[row] for row in former])
        self._averages.inherit(heirs, former, overlaps)

    def redistribute(self, parts: Mapping[str, PartLoad]) -> None:
        """Divide the history of a split bundle's parts by their topic loads.

        The sum is preserved. Ignored if one of them has no history, or if there is no topic.
        """
        self._averages.divide(parts)

    def awaits_division(self, namespace: str) -> bool:
        """Return True if a bundle of the namespace inherited only by its share of the hash range."""
        return any(namespace_of(name) == namespace for name in self._rows.divided_by_range)

    def unknown_bundles(self) -> dict[BrokerId, set[str]]:
        """Return, by broker, the namespaces in which its last report names nonexistent bundles."""
        return {
            broker_id: {namespace_of(name) for name in broker.unknown.bundle_names}
            for broker_id, broker in self._reporters.brokers.items()
            if broker.unknown is not None
        }

    def latest_reports(self) -> dict[Registration, BrokerReport]:
        """Return each broker's last accepted report, sorted by broker name; without bundles after a restore."""
        return {broker.registration: broker.report for broker in self._reporters.in_order()}

    def owners(self) -> set[Registration]:
        """Return all registrations that own a bundle in the records."""
        return self._owners.all()

    def bundles_of(self, registration: Registration) -> list[str]:
        """Return the bundles that this registration owns in the records, including those it is to release."""
        return self._owners.list_owned(registration)

    def releasing(self) -> list[str]:
        """Return the bundles being released, by the records."""
        return self._owners.releasing()

    def bundles_owned_by(self, registrations: Iterable[Registration]) -> list[str]:
        """Return the bundles that these registrations own in the records, without those they are to release."""
        return self._owners.owned_by(registrations)

    # Settings

    def set_settings(self, settings: PlannerSettings) -> None:
        """Set the settings for later reports."""
        self._reporters.settings = settings

    @property
    def policies(self) -> Policies:
        return self._policies

    def set_policies(self, policies: Policies) -> None:
        """Replace the operators' policies on ownership."""
        self._rows.revision += 1
        self._policies = policies

    def set_controls(self, controls: Controls) -> None:
        """Replace the operator controls."""
        self._rows.revision += 1
        self._controls = controls

    def faults(self) -> ReportFaults:
        return self._faults

    def set_faults(self, faults: ReportFaults) -> None:
        """Replace the faults of brokers and reports."""
        if faults is not self._faults:
            self._rows.revision += 1
            self._faults = faults

    def set_learned(self, learned: LearnedLoads) -> None:
        """Replace the expected loads of bundles without history."""
        self._rows.revision += 1
        self._rows.learn(learned)

    def has_config_of(self, snapshot: Snapshot) -> bool:
        """Return True if the snapshot has the current policies and controls."""
        return snapshot.policies is self._policies and snapshot.controls is self._controls

    # History

    def seed_bundle(self, name: str, averages: BundleAverages) -> None:
        """Restore persisted history for a bundle that has less of its own, or inherited only by hash range. Ignored for
        a bundle in no record and no report.
        """
        self._averages.seed(name, averages)

    def bundle_averages(self, namespace: str) -> dict[str, BundleAverages]:
        """Return the averages of the namespace's bundles that have a history."""
        return self._averages.of_namespace(namespace)

    def count_samples(self, bundle: str) -> tuple[int, int]:
        """Return the sample counts of a bundle's short-term and long-term average; 0 for an unknown bundle."""
        row, columns = self._rows.by_name.get(bundle), self._rows.columns
        return (0, 0) if row is None else (int(columns.short_samples[row]), int(columns.long_samples[row]))

    def broker_time_averages(self) -> dict[BrokerId, FloatArray]:
        """Return sums (2, 4) by broker of short-term and long-term averages of bundles that it owns and reports."""
        brokers = self.snapshot(0.0, np.inf).brokers
        return dict(zip(brokers.ids, brokers.time_average, strict=True))

    def namespaces_changed_since(self, revision: int) -> set[str]:
        """Return the namespaces with averages sampled or forgotten after `revision`."""
        return self._rows.changed_since(revision)

    def mark_unloaded(self, name: str, at_s: float, source: BrokerId | None = None) -> None:
        """Record that a bundle was taken from `source` now: it stays in place for the grace period."""
        self._rows.revision += 1
        self.unloads.mark(name, at_s, source)

    def restore_unloaded(self, unloaded: Mapping[str, float], sources: Mapping[BrokerId, float] | None = None) -> None:
        """Add a former leader's unload times, where nothing later is known."""
        self._rows.revision += 1
        self.unloads.add(unloaded, sources or {})

    # Snapshots and checkpoints

    def snapshot(self, taken_at_s: float, grace_period_s: float) -> Snapshot:
        """Take a snapshot. A bundle unloaded less than the grace period ago counts as recently unloaded."""
        reporters, unloads = self._reporters, self.unloads
        unloads.forget_before(taken_at_s - grace_period_s, reporters.brokers)
        brokers = reporters.in_order()
        bundles, settled = sorted_bundles(self._rows, self._owners, brokers, unloads, taken_at_s)
        registrations = [broker.registration for broker in brokers]
        reports = [broker.report for broker in brokers]
        columns = build_brokers(registrations, reports, bundles, settled, unloads.from_brokers)
        now_ms = round(taken_at_s * 1000)
        averages, history = [broker.average for broker in brokers], reporters.settings.history_resource_percentage
        return Snapshot(
            taken_at_s,
            self.revision,
            columns,
            bundles,
            policies=self._policies,
            controls=self._controls,
            faults=self._faults,
            learned=self._rows.learned,
            broker_load=BrokerLoad.of_averages(averages, columns.load, now_ms, history),
            top_bundles=top_bundles(self._rows, brokers),
        )

    def summary(self) -> ClusterSummary:
        """Return the summary for frequent display, without averaging or sorting."""
        return summarize(self._rows, self._owners, self._reporters.in_order())

    def throughput(self) -> tuple[tuple[str, ...], FloatArray]:
        """Return all bundle names (the same tuple object while unchanged) and their short-term bytes/s.

        A bundle that was never reported has 0, not its expected load.
        """
        order, columns = self._rows.order(), self._rows.columns
        throughput = throughput_of(columns.short.take(order.rows, axis=0))
        return order.names, np.where(columns.short_samples.take(order.rows) > 0, throughput, 0.0)

    def checkpoint(self) -> ModelCheckpoint:
        """Take a checkpoint. Later changes of the model do not affect it."""
        return take_checkpoint(self._rows, self._owners, self._reporters, self.unloads)

    def restore(self, checkpoint: ModelCheckpoint) -> None:
        """Restore an empty model from a checkpoint, except for settings, policies and controls."""
        restore(checkpoint, self._rows, self._owners, self._reporters, self.unloads)
