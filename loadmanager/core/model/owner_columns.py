"""Ownership by the namespace records: the owner of each bundle, and the destination of a moving one.

Owners are row numbers of registrations; the row of an ended registration matches no broker. `UnloadTimes` has the last
unloads, for the grace period after them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Ownership, Registration
from loadmanager.core.model.bundle_rows import RECORDED_STATE, NamedRows, RecordedState, Rows
from loadmanager.core.model.load import BoolArray, RowArray
from loadmanager.core.model.snapshot import NOBODY

_SPARE_REGISTRATIONS = 1024
"""Slack before rows of ended registrations are garbage collected, since each collection scans all bundles.

The table must exceed twice the number of brokers by this, and have grown by this since the last collection.
"""


@dataclass(slots=True, eq=False)
class RegistrationRows:
    """Rows of registrations: current ones, and ended ones that records still name."""

    by_registration: dict[Registration, int] = field(default_factory=dict)
    unused: list[int] = field(default_factory=list)
    size: int = 0

    def of(self, registration: Registration) -> int:
        row = self.by_registration.get(registration)
        if row is None:
            row = self.unused.pop() if self.unused else self.size
            self.size = max(self.size, row + 1)
            self.by_registration[registration] = row
        return row

    def keep(self, used: set[int]) -> None:
        for registration in [each for each, row in self.by_registration.items() if row not in used]:
            self.unused.append(self.by_registration.pop(registration))

    def places(self, rows: Iterable[int]) -> RowArray:
        """Return by row the position in `rows`, -1 for others; index -1 (`NOBODY`) maps to -1 too."""
        places = np.full(self.size + 1, NOBODY, dtype=np.int32)
        own = list(rows)
        places[own] = np.arange(len(own))
        return places


class RecordedOwners:
    """Owners of all bundles; `destinations`, by row, are those of moving bundles."""

    def __init__(self, rows: NamedRows) -> None:
        self._rows = rows
        self.registrations = RegistrationRows()
        self._swept = 0
        self.destinations: dict[int, int] = {}

    def strike(self, rows: Rows) -> Rows:
        """Clear the recorded state of these rows before a record is read again; return those that had one."""
        columns = self._rows.columns
        former: Rows = rows[columns.recorded[rows] != RecordedState.NO]
        columns.recorded[rows] = RecordedState.NO
        columns.owner[rows] = NOBODY
        for row in rows.tolist() if self.destinations else ():
            self.destinations.pop(row, None)
        return former

    def write(self, rows: Rows, ownerships: Sequence[Ownership]) -> None:
        columns, row_of = self._rows.columns, self.registrations.of
        columns.recorded[rows] = [RECORDED_STATE[each.state] for each in ownerships]
        columns.owner[rows] = [
            NOBODY if ownership.owner is None else row_of(ownership.owner) for ownership in ownerships
        ]
        for row, ownership in zip(rows.tolist(), ownerships, strict=True):
            if ownership.destination is not None:
                self.destinations[row] = row_of(ownership.destination)

    def all(self) -> set[Registration]:
        is_one = np.zeros(self.registrations.size + 1, dtype=bool)
        is_one[self._rows.columns.owner[: len(self._rows.names)]] = True  # the last entry is for unowned bundles
        return {owner for owner, row in self.registrations.by_registration.items() if is_one[row]}

    def list_owned(self, registration: Registration) -> list[str]:
        row = self.registrations.by_registration.get(registration, self.registrations.size)  # a row of no bundle
        return self._names_where(self._rows.columns.owner[: len(self._rows.names)] == row)

    def releasing(self) -> list[str]:
        return self._names_where(self._is_recorded(RecordedState.RELEASING))

    def owned_by(self, registrations: Iterable[Registration]) -> list[str]:
        wanted, known = np.zeros(self.registrations.size + 1, dtype=bool), self.registrations.by_registration
        wanted[[known[each] for each in registrations if each in known]] = True
        is_one = wanted[self._rows.columns.owner[: len(self._rows.names)]]
        return self._names_where(is_one & self._is_recorded(RecordedState.OWNED))

    def _is_recorded(self, state: RecordedState) -> BoolArray:
        return np.asarray(self._rows.columns.recorded[: len(self._rows.names)] == state)

    def _names_where(self, which: BoolArray) -> list[str]:
        return [self._rows.names[row] for row in np.flatnonzero(which).tolist()]

    def destination_places(self, places: RowArray) -> RowArray:
        """Return by bundle row the position of the destination in `places`, -1 for none."""
        destination = np.full(len(self._rows.columns.owner), NOBODY, dtype=np.int32)
        destination[list(self.destinations)] = places[list(self.destinations.values())]
        return destination

    def sweep(self, reporting: Iterable[int], brokers: int) -> None:
        """Garbage collect the rows of ended registrations, once there are many without references."""
        known = self.registrations.by_registration
        if len(known) > max(2 * brokers, self._swept) + _SPARE_REGISTRATIONS:
            used = set(np.unique(self._rows.columns.owner[: len(self._rows.names)]).tolist())
            self.registrations.keep(used | set(reporting) | set(self.destinations.values()))
            self._swept = len(known)


class UnloadTimes:
    """Last unload times in seconds since 1970, of bundles and of source brokers. A snapshot drops expired ones."""

    def __init__(self) -> None:
        self.of_bundles: dict[str, float] = {}
        self.from_brokers: dict[BrokerId, float] = {}

    def mark(self, bundle: str, at_s: float, source: BrokerId | None) -> None:
        self.of_bundles[bundle] = at_s
        if source is not None:
            self.from_brokers[source] = at_s

    def add(self, bundles: Mapping[str, float], sources: Mapping[BrokerId, float]) -> None:
        """Add a former leader's times, where nothing later is known."""
        for name, at_s in bundles.items():
            self.of_bundles[name] = max(at_s, self.of_bundles.get(name, at_s))
        for source, at_s in sources.items():
            self.from_brokers[source] = max(at_s, self.from_brokers.get(source, at_s))

    def forget_before(self, oldest_s: float, registered: Container[BrokerId]) -> None:
        """Drop older entries, except of registered brokers."""
        self.of_bundles = {name: at_s for name, at_s in self.of_bundles.items() if at_s >= oldest_s}
        self.from_brokers = {
            broker: at_s for broker, at_s in self.from_brokers.items() if at_s >= oldest_s or broker in registered
        }

    def inherit(self, pairs: Iterable[tuple[str, str]], former: Iterable[str]) -> None:
        """Pass times on in each pair (new bundle, one of the `former` bundles), and drop those of the former."""
        for heir, name in pairs:
            at_s = self.of_bundles.get(name)
            if at_s is not None:
                self.of_bundles[heir] = max(at_s, self.of_bundles.get(heir, at_s))
        for name in former:
            self.of_bundles.pop(name, None)
