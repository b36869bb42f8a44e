"""The cluster as it is known now: mutable columns that reports and ownership records are written into.

There is one writer, the driver's event loop; everything else reads the snapshots it takes. A bundle is a row in a
table of columns, found by its name; a broker's registration is a row in a second table, so that a bundle's owner and
reporter are numbers, and those of a registration that has ended match no broker.

What the bundles of a namespace are is said by its record, where there is one. New ones inherit the history of those
whose place they take: by the share of the hash range when a bundle is split, the sum when bundles are merged.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

import numpy as np

from loadmanager.core.domain.controls import NO_CONTROLS, Controls
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Ownership, Registration
from loadmanager.core.domain.policies import NO_POLICIES, Policies
from loadmanager.core.model.bundle_averages import AverageColumns
from loadmanager.core.model.bundle_rows import NamedRows
from loadmanager.core.model.checkpoint import ModelCheckpoint
from loadmanager.core.model.cluster_summary import ClusterSummary, glance_at
from loadmanager.core.model.extensible_load import BrokerLoad, ReportRules, throughput_of
from loadmanager.core.model.inheritance import PartLoad
from loadmanager.core.model.latest_reports import LatestReport
from loadmanager.core.model.learned_loads import Learned
from loadmanager.core.model.load import BrokerReport, BundleAverages, FloatArray
from loadmanager.core.model.model_checkpoint import image_of, restore
from loadmanager.core.model.namespace_records import NamespaceRecords
from loadmanager.core.model.owner_columns import RecordedOwners
from loadmanager.core.model.recent_unloads import UnloadTimes
from loadmanager.core.model.report_validation import NO_DOUBTS, Doubts
from loadmanager.core.model.reporters import Reporters
from loadmanager.core.model.snapshot import Snapshot, brokers_of
from loadmanager.core.model.snapshot_builder import Last, sorted_bundles, top_bundles


class ClusterModel:
    """All brokers and bundles, their load and their owners; `rules` say how reports are taken in."""

    def __init__(self, rules: ReportRules | None = None) -> None:
        self._rows = NamedRows()
        self._owners = RecordedOwners(self._rows)
        self._averages = AverageColumns(self._rows)
        self._reporters = Reporters(self._rows, self._owners, self._averages, rules or ReportRules())
        self._unloads = UnloadTimes()
        self._namespaces = NamespaceRecords(self._rows, self._owners, self._averages, self._reporters, self._unloads)
        self._last = Last()
        self._policies = NO_POLICIES
        self._controls = NO_CONTROLS
        self._doubts = NO_DOUBTS

    @property
    def revision(self) -> int:
        """It grows with each change."""
        return self._rows.revision

    @property
    def bundles_ignored(self) -> int:
        """How often a report named a bundle that the record of its namespace does not have."""
        return self._reporters.ignored

    @property
    def known_bundles(self) -> Container[str]:
        """The names of all bundles that have a row."""
        return self._rows.by_name

    def own_names(self, names: Sequence[str]) -> list[str]:
        """The names of bundles that have a row, as the objects by which they are known here anyway."""
        return [self._rows.names[row] for row in self._rows.known(names).tolist()]

    # What reports and records say

    def apply_report(self, registration: Registration, report: BrokerReport) -> None:
        """Take in one report: one sample for each bundle in it.

        A broker that has registered again starts without its old heat. A bundle that another broker reports and owns
        is left to that one: this report is from before it moved.
        """
        self._rows.revision += 1
        self._reporters.take_in(registration, report, self._policies.has_policy)

    def remove_broker(self, broker_id: BrokerId) -> None:
        """Forget a broker that is gone, and its load; the history of its bundles stays."""
        self._reporters.remove(broker_id)

    def set_namespace(self, namespace: str, bundle_names: Sequence[str], ownerships: Sequence[Ownership]) -> None:
        """Take in a namespace record: its bundles and, in the same order, who owns them."""
        self._namespaces.put(namespace, bundle_names, ownerships)

    def set_owners(self, ownerships: Mapping[str, Ownership]) -> None:
        """Take in who owns these bundles, all of them of records that are otherwise as they were."""
        self._namespaces.change_owners(ownerships)

    def remove_namespace(self, namespace: str) -> None:
        """Its record is gone."""
        self._namespaces.remove(namespace)

    def redistribute(self, parts: Mapping[str, PartLoad]) -> None:
        """Divide the history of these bundles, the parts of a split one, by what is known of their topics.

        Their sum stays. Ignored where one of them has no history, and without any topic.
        """
        self._averages.divide(parts)

    def awaits_division(self, namespace: str) -> bool:
        """Whether a bundle of the namespace inherited by its share of the hash range, for want of anything better."""
        return self._averages.awaits_division(namespace)

    def unknown_bundles(self) -> dict[BrokerId, set[str]]:
        """The brokers whose last report names bundles that are none, and the namespaces in which."""
        return self._reporters.unknown_bundles()

    def latest_reports(self) -> dict[Registration, LatestReport]:
        """What each broker's last report that was believed says of its bundles, in the order of the brokers' names."""
        return self._reporters.latest()

    def registrations(self) -> dict[BrokerId, Registration]:
        """The registration of each broker that has reported."""
        return {broker_id: broker.registration for broker_id, broker in self._reporters.brokers.items()}

    def owners(self) -> set[Registration]:
        """All that own a bundle by the records."""
        return self._owners.all()

    def count_bundles_of(self, registration: Registration) -> int:
        """How many bundles that life of a broker owns by the records, those that it is to release included."""
        return self._owners.count_of(registration)

    def bundles_of(self, registration: Registration) -> list[str]:
        """The bundles that life of a broker owns by the records, those that it is to release included."""
        return self._owners.names_of(registration)

    def releasing(self) -> list[str]:
        """The bundles that are on their way, by the records."""
        return self._owners.releasing()

    def freed(self) -> list[str]:
        """The bundles that are free since their owner has gone, by the records."""
        return self._owners.freed()

    def bundles_owned_by(self, registrations: Iterable[Registration]) -> list[str]:
        """The bundles that any of these lives of brokers owns by the records, without those that it is to release."""
        return self._owners.owned_by(registrations)

    # What is set besides

    def set_rules(self, rules: ReportRules) -> None:
        """Take later reports in by these rules."""
        self._reporters.rules = rules

    @property
    def policies(self) -> Policies:
        return self._policies

    def set_policies(self, policies: Policies) -> None:
        """Take in what operators have laid down about who may own what, in place of what held before."""
        self._rows.revision += 1
        self._policies = policies

    def set_controls(self, controls: Controls) -> None:
        """Take in what operators told the balancer, in place of what held before."""
        self._rows.revision += 1
        self._controls = controls

    def doubts(self) -> Doubts:
        """What is wrong with brokers and bundles, as it was taken in."""
        return self._doubts

    def set_doubts(self, doubts: Doubts) -> None:
        """Take in what is wrong with brokers and bundles, in place of what was before."""
        if doubts is not self._doubts:
            self._rows.revision += 1
            self._doubts = doubts

    def set_learned(self, learned: Learned) -> None:
        """Take in what bundles without any history are taken to carry, in place of what held before."""
        self._rows.revision += 1
        self._rows.learn(learned)

    def is_laid_down_in(self, snapshot: Snapshot) -> bool:
        """Whether the snapshot has the policies and controls of now."""
        return snapshot.policies is self._policies and snapshot.controls is self._controls

    # History

    def seed_bundle(self, name: str, averages: BundleAverages) -> None:
        """Take persisted history for a bundle that has less of its own, or only what it inherited by its share of the
        hash range: the leader may know better. Ignored for one in no record and no report.
        """
        self._averages.seed(name, averages)

    def bundle_averages(self, namespace: str) -> dict[str, BundleAverages]:
        """The history of the namespace's bundles that have any."""
        return self._averages.of_namespace(namespace)

    def samples_of(self, bundle: str) -> tuple[int, int]:
        """How many samples are in the short-term and the long-term average of a bundle; none in those of an unknown."""
        return self._averages.samples_of(bundle)

    def broker_time_averages(self) -> dict[BrokerId, FloatArray]:
        """Per broker the sums (2, 4) of the short-term and long-term averages of the bundles it owns and reports."""
        brokers = self._snapshot(0.0, np.inf).brokers
        return dict(zip(brokers.ids, brokers.time_average, strict=True))

    def namespaces_changed_since(self, revision: int) -> set[str]:
        """The namespaces in which averages were sampled, or a bundle's were forgotten, after `revision`."""
        return self._rows.changed_since(revision)

    def mark_unloaded(self, name: str, at_s: float, source: BrokerId | None = None) -> None:
        """Note that a bundle was taken from `source` just now: it stays where it is for the grace period."""
        self._rows.revision += 1
        self._unloads.mark(name, at_s, source)

    def recently_unloaded(self) -> dict[str, float]:
        """When each bundle was last unloaded, seconds since 1970; entries past the grace period go at a snapshot."""
        return dict(self._unloads.of_bundles)

    def last_unloaded(self) -> dict[BrokerId, float]:
        """When a bundle was last taken from each broker, seconds since 1970.

        Of brokers that are not registered the entries past the grace period go at a snapshot.
        """
        return dict(self._unloads.from_brokers)

    def restore_unloaded(self, unloaded: Mapping[str, float], sources: Mapping[BrokerId, float] | None = None) -> None:
        """Add what a former leader noted, of bundles and of brokers, where nothing later is known."""
        self._rows.revision += 1
        self._unloads.add(unloaded, sources or {})

    # The whole

    def snapshot(self, taken_at_s: float, grace_period_s: float) -> Snapshot:
        """The cluster as it is now. A bundle unloaded less than the grace period ago counts as recently unloaded."""
        found = self._snapshot(taken_at_s, grace_period_s)
        return found.averaged_by_time() if self._reporters.rules.averages_by_time else found

    def glance(self) -> ClusterSummary:
        """What is shown of it again and again; nothing is averaged or sorted for it."""
        return glance_at(self._rows, self._owners, self._reporters.in_order())

    def throughput(self) -> tuple[tuple[str, ...], FloatArray]:
        """All bundles by name, the same tuple while none comes or goes, and their bytes/s by short-term averages.

        One of which nothing was ever reported has 0, and not what it is taken to carry until then.
        """
        order, columns = self._rows.order(), self._rows.columns
        throughput = throughput_of(columns.short.take(order.rows, axis=0))
        return order.names, np.where(columns.short_samples.take(order.rows) > 0, throughput, 0.0)

    def image(self) -> ModelCheckpoint:
        """Everything that is known now, to be written down; what is done here later does not change it."""
        return image_of(self._rows, self._owners, self._reporters, self._unloads)

    def restore(self, image: ModelCheckpoint) -> None:
        """Make an empty model the equal of the one that the image was taken of, but for what is set besides."""
        restore(image, self._rows, self._owners, self._reporters, self._unloads)

    def hot_bytes(self) -> int:
        """The memory of all bundles' columns, of their order and of who reports them, without their names, and without
        what last reports say of them, 56 bytes each, which no snapshot has.
        """
        return self._rows.nbytes() + self._reporters.nbytes()

    def _snapshot(self, taken_at_s: float, grace_period_s: float) -> Snapshot:
        """With averages over reports."""
        reporters, unloads = self._reporters, self._unloads
        unloads.forget_before(taken_at_s - grace_period_s, reporters.brokers)
        brokers = reporters.in_order()
        bundles, settled = sorted_bundles(self._rows, self._owners, brokers, unloads, taken_at_s, self._last)
        registrations = [broker.registration for broker in brokers]
        reports = [broker.report for broker in brokers]
        columns = brokers_of(registrations, reports, bundles, settled, unloads.from_brokers)
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
            learned=self._rows.learned,
            broker_load=BrokerLoad.of_averages(averages, columns.load, now_ms, reporters.rules.history),
            top_bundles=top_bundles(self._rows, brokers),
        )
