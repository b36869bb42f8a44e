"""What namespace records say of bundles: who owns each, and where one on its way goes.

An owner is a registration, one life of a broker, and a number here: that of a life that has ended matches no broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from loadmanager.core.domain.ownership import Ownership, Registration
from loadmanager.core.model.bundle_columns import RecordedState, Rows, recorded_state
from loadmanager.core.model.bundle_rows import NamedRows
from loadmanager.core.model.load import BoolArray, RowArray
from loadmanager.core.model.snapshot import NOBODY

_SPARE_REGISTRATIONS = 1024
"""Rows of ended registrations are looked for once the table exceeds twice the brokers by so many, and again once it has
grown by so many: to look for them is to look at all bundles.
"""


@dataclass(slots=True, eq=False)
class RegistrationRows:
    """Rows for registrations, current ones and those that records still name."""

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
        """By row the position in `rows`, -1 for any other, and for nobody: the last, which -1 picks, is no row's."""
        places = np.full(self.size + 1, NOBODY, dtype=np.int32)
        own = list(rows)
        places[own] = np.arange(len(own))
        return places


class RecordedOwners:
    """The owners of all bundles; `destinations`, by row, are where those on their way go."""

    def __init__(self, rows: NamedRows) -> None:
        self._rows = rows
        self.registrations = RegistrationRows()
        self._swept = 0
        self.destinations: dict[int, int] = {}

    def strike(self, rows: Rows) -> Rows:
        """The record is about to be read anew: forget what it said of these; those that it had."""
        columns = self._rows.columns
        former: Rows = rows[columns.recorded[rows] != RecordedState.NO]
        columns.recorded[rows] = RecordedState.NO
        columns.owner[rows] = NOBODY
        for row in rows.tolist() if self.destinations else ():
            self.destinations.pop(row, None)
        return former

    def write(self, rows: Rows, ownerships: Sequence[Ownership]) -> None:
        columns, row_of = self._rows.columns, self.registrations.of
        columns.recorded[rows] = [*map(recorded_state, ownerships)]
        columns.owner[rows] = [
            NOBODY if ownership.owner is None else row_of(ownership.owner) for ownership in ownerships
        ]
        for row, ownership in zip(rows.tolist(), ownerships, strict=True):
            if ownership.destination is not None:
                self.destinations[row] = row_of(ownership.destination)

    def all(self) -> set[Registration]:
        """Who owns a bundle, those that are to release it included."""
        is_one = np.zeros(self.registrations.size + 1, dtype=bool)
        is_one[self._rows.columns.owner[: len(self._rows.names)]] = True  # nobody is the last
        return {owner for owner, row in self.registrations.by_registration.items() if is_one[row]}

    def count_of(self, registration: Registration) -> int:
        """How many bundles that life of a broker owns, those that it is to release included."""
        return len(self._rows_of(registration))

    def names_of(self, registration: Registration) -> list[str]:
        """Which those are."""
        return [self._rows.names[row] for row in self._rows_of(registration).tolist()]

    def releasing(self) -> list[str]:
        """The bundles that are on their way."""
        return self._named(self._is_recorded(RecordedState.RELEASING))

    def freed(self) -> list[str]:
        """The bundles that are free since their owner has gone."""
        return self._named(self._is_recorded(RecordedState.FREED))

    def owned_by(self, registrations: Iterable[Registration]) -> list[str]:
        """The bundles that any of these owns, without those that it is to release."""
        wanted, known = np.zeros(self.registrations.size + 1, dtype=bool), self.registrations.by_registration
        wanted[[known[each] for each in registrations if each in known]] = True
        is_one = wanted[self._rows.columns.owner[: len(self._rows.names)]]
        return self._named(is_one & self._is_recorded(RecordedState.OWNED))

    def _is_recorded(self, state: RecordedState) -> BoolArray:
        return np.asarray(self._rows.columns.recorded[: len(self._rows.names)] == state)

    def _named(self, which: BoolArray) -> list[str]:
        return [self._rows.names[row] for row in np.flatnonzero(which).tolist()]

    def _rows_of(self, registration: Registration) -> Rows:
        row = self.registrations.by_registration.get(registration, self.registrations.size)  # nobody's
        return np.flatnonzero(self._rows.columns.owner[: len(self._rows.names)] == row)

    def destination_places(self, places: RowArray) -> RowArray:
        """By row of a bundle where it goes, as the position of that registration in `places`, -1 for nowhere."""
        destination = np.full(len(self._rows.columns.owner), NOBODY, dtype=np.int32)
        destination[list(self.destinations)] = places[list(self.destinations.values())]
        return destination

    def sweep(self, reporting: Iterable[int], brokers: int) -> None:
        """Use rows of ended registrations again, once there are many that nothing refers to."""
        known = self.registrations.by_registration
        if len(known) > max(2 * brokers, self._swept) + _SPARE_REGISTRATIONS:
            used = set(np.unique(self._rows.columns.owner[: len(self._rows.names)]).tolist())
            self.registrations.keep(used | set(reporting) | set(self.destinations.values()))
            self._swept = len(known)
