"""What a namespace's record does to all the rest: which bundles there are, and who owns them.

bundles                             with the record
-------                             ---------------
the same as before                  owners are written anew, history stays
new ones, in others' place          inherit what those carried, and that they were unloaded
new ones, already reported          what was kept aside of the report counts
gone, and still reported            the report is of nothing any more
gone, and not reported              are forgotten, with their history
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
    """Takes records in."""

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
        """Take in a record: its bundles and, in the same order, who owns them."""
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
        """Take in what is new of records that have the same bundles as before: the owners of these."""
        self._rows.revision += 1
        self._reporters.sweep_registrations()
        rows = self._rows.known(list(ownerships))
        self._owners.strike(rows)
        self._owners.write(rows, list(ownerships.values()))

    def remove(self, namespace: str) -> None:
        """The record is gone: its bundles are those that brokers report, whatever they are."""
        self.put(namespace, (), ())
        self._rows.set_record(namespace, there=False)

    def _reshape(self, previous: Rows, former: Rows, rows: Rows) -> None:
        """The record's bundles are these `rows`: before, `former` ones were, and `previous` ones known."""
        # Nearly every record has the bundles that it had, and nothing but those was known.
        if len(former) == len(previous) and np.array_equal(former, np.sort(rows)):
            return
        gone, heirs = previous[~np.isin(previous, rows)], rows[~np.isin(rows, former)]
        replaced = former[~np.isin(former, rows)]
        # They inherit before what brokers say of them is let go of, and before a report that was quicker counts: that
        # report is a sample after what was inherited.
        if len(heirs) and len(replaced):
            self._inherit(heirs, replaced)
        if len(gone):
            self._reporters.release(gone)
        if len(heirs):
            self._reporters.take_in_unknown()

    def _inherit(self, heirs: Rows, former: Rows) -> None:
        """Give new bundles the history, and the marks, of those whose place they take."""
        names = self._rows.names
        overlaps = Overlaps.of([names[row] for row in heirs], [names[row] for row in former])
        pairs = zip(heirs[overlaps.heir].tolist(), former[overlaps.former].tolist(), strict=True)
        self._unloads.inherit(((names[heir], names[row]) for heir, row in pairs), [names[row] for row in former])
        self._averages.inherit(heirs, former, overlaps)
