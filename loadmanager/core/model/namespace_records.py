"""Processing of namespace records: the existing bundles and their owners.

bundles                             with the record
-------                             ---------------
unchanged                           owners are updated, history stays
new, replacing others               inherit their load and unload times
new, already reported               are sampled from the part of the report kept aside
gone, still reported                are dropped from the report
gone, not reported                  are forgotten, with their history
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from loadmanager.core.domain.names import namespace_of
from loadmanager.core.domain.ownership import Ownership
from loadmanager.core.model.bundle_averages import AverageColumns
from loadmanager.core.model.bundle_columns import Rows
from loadmanager.core.model.bundle_rows import NamedRows
from loadmanager.core.model.inheritance import Overlaps
from loadmanager.core.model.owner_columns import RecordedOwners
from loadmanager.core.model.recent_unloads import UnloadTimes
from loadmanager.core.model.reporters import Reporters


class NamespaceRecords:
    """Applies records to the model."""

    def __init__(
        self,
        rows: NamedRows,
        owners: RecordedOwners,
        averages: AverageColumns,
        reporters: Reporters,
        unloads: UnloadTimes,
    ) -> None:
        self._rows = rows
        self._owners = owners
        self._averages = averages
        self._reporters = reporters
        self._unloads = unloads

    def put(self, namespace: str, bundle_names: Sequence[str], ownerships: Sequence[Ownership]) -> None:
        """Apply a record: its bundles and, in the same order, their ownerships."""
        assert all(namespace_of(name) == namespace for name in bundle_names), f"bundles of {namespace} only"
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

    def change_owners(self, ownerships: Mapping[str, Ownership]) -> None:
        """Apply changed ownerships of records with unchanged bundles."""
        self._rows.revision += 1
        self._reporters.sweep_registrations()
        rows = self._rows.known(list(ownerships))
        self._owners.strike(rows)
        self._owners.write(rows, list(ownerships.values()))

    def remove(self, namespace: str) -> None:
        """Remove a record: the namespace's bundles are those that brokers report."""
        self.put(namespace, (), ())
        self._rows.set_record(namespace, there=False)

    def _reshape(self, previous: Rows, former: Rows, rows: Rows) -> None:
        """Replace the `former` bundles of the record by `rows`; `previous` are all bundles known before."""
        # Nearly every record has the bundles that it had, and nothing but those was known.
        if len(former) == len(previous) and np.array_equal(former, np.sort(rows)):
            return
        gone, heirs = previous[~np.isin(previous, rows)], rows[~np.isin(rows, former)]
        replaced = former[~np.isin(former, rows)]
        # Inherit before the reports of former bundles are dropped, and before an earlier report is sampled: that
        # sample comes after the inherited history.
        if len(heirs) and len(replaced):
            self._inherit(heirs, replaced)
        if len(gone):
            self._reporters.release(gone)
        if len(heirs):
            self._reporters.take_in_unknown()

    def _inherit(self, heirs: Rows, former: Rows) -> None:
        """Pass the history and unload times of replaced bundles on to the new ones."""
        names = self._rows.names
        overlaps = Overlaps.of([names[row] for row in heirs], [names[row] for row in former])
        pairs = zip(heirs[overlaps.heir].tolist(), former[overlaps.former].tolist(), strict=True)
        self._unloads.inherit(((names[heir], names[row]) for heir, row in pairs), [names[row] for row in former])
        self._averages.inherit(heirs, former, overlaps)
