"""Bundles in columns (`BundleColumns`), the row of each bundle by name, and the bundles of each namespace.

Rows are allocated as names appear and reused when nothing names the bundle any more, so their order has no meaning. A
snapshot needs sorted names: that order is cached and updated incrementally. Sorting 100,000 names each time would cost
more than the rest of a snapshot.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from weakref import ref

import numpy as np
import numpy.typing as npt

from loadmanager.core.domain.names import namespace_of
from loadmanager.core.domain.ownership import OwnershipState
from loadmanager.core.model.learned_loads import NOTHING_LEARNED, LearnedLoads
from loadmanager.core.model.load import DEFAULT_LOAD, METRICS, Float32Array, FloatArray, RowArray
from loadmanager.core.model.snapshot import NOBODY, Bundles
from loadmanager.core.model.time_means import SecondsArray, TimeMeans

Rows = npt.NDArray[np.intp]
"""Rows of bundles."""


class RecordedState(enum.IntEnum):
    """Ownership state of a bundle in its namespace record; `NO` if it is only known from a report."""

    NO = 0
    FREE = 1
    OWNED = 2
    RELEASING = 3


RECORDED_STATE = {state: RecordedState[state.name] for state in OwnershipState}


@dataclass(slots=True, eq=False)
class BundleColumns:
    """Columns by bundle row. `reporter` and `owner` are registration rows, `namespace` namespace rows; `mean`, `last`,
    `reported_s` and `sigma` are the columns of `TimeMeans`.
    """

    short: FloatArray
    long: FloatArray
    short_samples: npt.NDArray[np.int8]
    long_samples: npt.NDArray[np.int16]
    mean: Float32Array
    last: Float32Array
    reported_s: SecondsArray
    sigma: Float32Array
    topics: RowArray
    reporter: RowArray
    owner: RowArray
    namespace: RowArray
    recorded: npt.NDArray[np.int8]

    @classmethod
    def empty(cls) -> BundleColumns:
        return cls(
            short=np.empty((0, METRICS)),
            long=np.empty((0, METRICS)),
            short_samples=np.empty(0, np.int8),
            long_samples=np.empty(0, np.int16),
            mean=np.empty((0, METRICS), np.float32),
            last=np.empty((0, METRICS), np.float32),
            reported_s=np.empty(0, np.uint32),
            sigma=np.empty(0, np.float32),
            topics=np.empty(0, np.int32),
            reporter=np.empty(0, np.int32),
            owner=np.empty(0, np.int32),
            namespace=np.empty(0, np.int32),
            recorded=np.empty(0, np.int8),
        )

    def grow(self, rows: int) -> None:
        """Grow the columns: large ones by remapping pages, without a copy. Shared columns are left to their readers."""
        for column in fields(self):
            shape = (rows, *getattr(self, column.name).shape[1:])
            try:
                getattr(self, column.name).resize(shape)
            except ValueError:
                old = getattr(self, column.name)
                new = np.zeros(shape, dtype=old.dtype)
                new[: len(old)] = old
                setattr(self, column.name, new)

    def clear(self, rows: Rows, namespace: RowArray) -> None:
        """Reset the rows to bundles without data."""
        self.expect(rows, DEFAULT_LOAD)
        self.reporter[rows] = self.owner[rows] = NOBODY
        for column in (self.short_samples, self.long_samples, self.topics, self.recorded, self.reported_s, self.sigma):
            column[rows] = 0
        self.namespace[rows] = namespace

    def expect(self, rows: Rows, load: FloatArray) -> None:
        """Set the expected load of bundles without history."""
        self.short[rows] = self.long[rows] = self.mean[rows] = self.last[rows] = load

    def time_means(self, rows: Rows | RowArray) -> TimeMeans:
        """Copy the time means of these rows."""
        return TimeMeans(
            self.mean.take(rows, axis=0),
            self.last.take(rows, axis=0),
            self.reported_s.take(rows),
            self.sigma.take(rows),
        )

    def put_time_means(self, rows: Rows, means: TimeMeans) -> None:
        self.mean[rows], self.last[rows] = means.mean, means.last
        self.reported_s[rows], self.sigma[rows] = means.reported_s, means.sigma


_GROWTH = 64
"""Inverse growth factor of the columns: little slack, and small columns are copied each time."""
_FEWEST_ROWS = 64


@dataclass(slots=True, eq=False)
class _KnownNamespace:
    """State of a namespace; `changed_at` is the revision of the last change to its bundles' averages."""

    row: int
    bundles: int = 0
    changed_at: int = 0
    has_record: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class NameOrder:
    """Bundles sorted by name: rows and columns for snapshots. Valid until a name appears or disappears."""

    names: tuple[str, ...]
    rows: RowArray
    namespaces: tuple[str, ...]


class NamedRows:
    """Bundles named by a record or a report; `revision` is the model's. `last_taken` are the bundles of the last
    snapshot, while it is in use and no load was written since.

    A new bundle has the expected load that was `learned` for its namespace. `divided_by_range` are bundles that
    inherited load by their share of the hash range only.
    """

    def __init__(self) -> None:
        self.revision = 0
        self.last_taken: ref[Bundles] | None = None
        self.columns = BundleColumns.empty()
        self.by_name: dict[str, int] = {}
        self.names: list[str] = []
        self.learned = NOTHING_LEARNED
        self.divided_by_range: set[str] = set()
        self._free: list[int] = []
        self._namespaces: dict[str, _KnownNamespace] = {}
        self._namespace_at: list[_KnownNamespace] = []
        self._free_namespace_rows: list[int] = []
        self._order = NameOrder((), np.empty(0, np.int32), ())
        self._renamed: set[str] = set()
        """Names that appeared or disappeared since the order was computed."""

    def of(self, names: Sequence[str]) -> Rows:
        """Return the rows of bundles, allocating rows for new ones."""
        self._add([name for name in names if name not in self.by_name])
        return self.known(names)

    def known(self, names: Sequence[str]) -> Rows:
        """Return the rows of bundles; raises `KeyError` for an unknown one."""
        return np.fromiter(map(self.by_name.__getitem__, names), dtype=np.intp, count=len(names))

    def of_namespace(self, namespace: str) -> Rows:
        known = self._namespaces.get(namespace)
        return np.flatnonzero(self.columns.namespace[: len(self.names)] == known.row) if known else np.empty(0, np.intp)

    def forget_unnamed(self, rows: Rows | RowArray) -> Rows | RowArray:
        """Free the rows of bundles that neither a namespace record nor a report names, and return them.

        The rows keep their values until reuse: all references must be dropped by then.
        """
        columns = self.columns
        gone: Rows | RowArray = rows[(columns.recorded[rows] == RecordedState.NO) & (columns.reporter[rows] == NOBODY)]
        columns.namespace[gone] = NOBODY
        for row in gone.tolist():
            name = self.names[row]
            self._renamed.add(name)
            self.divided_by_range.discard(name)
            del self.by_name[name]
            self._free.append(row)
            namespace = self._namespaces[namespace_of(name)]
            namespace.bundles -= 1
            namespace.changed_at = self.revision
            if not namespace.bundles:
                self._free_namespace_rows.append(self._namespaces.pop(namespace_of(name)).row)
        return gone

    def learn(self, learned: LearnedLoads) -> None:
        """Set the expected loads of bundles without history."""
        self.learned = learned
        self.last_taken = None
        rows = np.fromiter(self.by_name.values(), dtype=np.intp, count=len(self.by_name))
        self._expect(rows[self.columns.long_samples[rows] == 0])

    def note_changed(self, rows: Rows) -> None:
        """Mark the averages of these bundles as changed."""
        self.last_taken = None
        for namespace in set(self.columns.namespace[rows].tolist()):
            self._namespace_at[namespace].changed_at = self.revision

    def changed_since(self, revision: int) -> set[str]:
        return {name for name, namespace in self._namespaces.items() if namespace.changed_at > revision}

    def has_record(self, namespace: str) -> bool:
        known = self._namespaces.get(namespace)
        return known is not None and known.has_record

    def set_record(self, namespace: str, *, there: bool) -> None:
        """Set if the namespace has a record; forget a namespace without record and bundles."""
        if namespace in self._namespaces:
            self._namespaces[namespace].has_record = there

    def with_record(self) -> list[str]:
        return sorted(name for name, namespace in self._namespaces.items() if namespace.has_record)

    def order(self) -> NameOrder:
        """Return the name order, updated with recent changes."""
        if self._renamed:
            namespaces = sorted(self._namespaces, key=lambda name: f"{name}/")  # as their bundles' names are sorted
            self._order = NameOrder(*self._update_order(self._order), tuple(namespaces))
            self._renamed.clear()
        return self._order

    def places(self) -> RowArray:
        """Return the position of each row in the order, -1 for an unused row."""
        rows = self.order().rows
        places = np.full(len(self.columns.owner), NOBODY, dtype=np.int32)
        places[rows] = np.arange(len(rows))
        return places

    def namespace_places(self) -> RowArray:
        """Return the position of each namespace row in the order."""
        namespaces = self.order().namespaces
        places = np.full(len(self._namespace_at), NOBODY, dtype=np.int32)
        places[[self._namespaces[name].row for name in namespaces]] = np.arange(len(namespaces))
        return places

    def _update_order(self, former: NameOrder) -> tuple[tuple[str, ...], RowArray]:
        """Update the sorted names and rows. Stretches between changed names are copied without comparisons."""
        if len(self._renamed) > len(former.names):  # names appeared by namespace, nearly sorted: faster than copying
            all_names = sorted(self.by_name)
            return tuple(all_names), self.known(all_names).astype(np.int32)
        names: list[str] = []
        stays, places, new = np.ones(len(former.names), dtype=bool), list[int](), list[int]()
        copied = gone = 0
        for name in sorted(self._renamed):
            place = bisect_left(former.names, name, copied)
            names += former.names[copied:place]
            if name in self.by_name:
                names.append(name)
                places.append(place - gone)
                new.append(self.by_name[name])
            is_former = former.names[place : place + 1] == (name,)
            stays[place : place + is_former] = False
            gone += is_former
            copied = place + is_former
        names += former.names[copied:]
        return tuple(names), np.insert(former.rows[stays], places, np.array(new, dtype=np.int32))

    def _add(self, names: Sequence[str]) -> None:
        self._renamed.update(names)
        reused = self._free[: len(names)]
        del self._free[: len(names)]
        for row, name in zip(reused, names, strict=False):
            self.names[row] = name
        added = [*reused, *range(len(self.names), len(self.names) + len(names) - len(reused))]
        self.names += names[len(reused) :]
        self.by_name.update(zip(names, added, strict=True))
        if len(self.names) > len(self.columns.owner):
            self.columns.grow(max(_FEWEST_ROWS, len(self.names) + len(self.names) // _GROWTH))
        rows = np.array(added, dtype=np.intp)
        namespaces = [*map(namespace_of, names)]
        for namespace, bundles in Counter(namespaces).items():
            if namespace not in self._namespaces:
                self._namespaces[namespace] = self._add_namespace()
            self._namespaces[namespace].bundles += bundles
        self.columns.clear(rows, np.array([self._namespaces[each].row for each in namespaces], dtype=np.int32))
        if self.learned.loads:
            self._expect(rows)

    def _expect(self, rows: Rows) -> None:
        """Set the expected load of new bundles from the learned loads."""
        loads = [self.learned.load_of(namespace_of(self.names[row])) for row in rows.tolist()]
        self.columns.expect(rows, np.array(loads).reshape(-1, METRICS))

    def _add_namespace(self) -> _KnownNamespace:
        if self._free_namespace_rows:
            namespace = _KnownNamespace(self._free_namespace_rows.pop())
            self._namespace_at[namespace.row] = namespace
        else:
            namespace = _KnownNamespace(len(self._namespace_at))
            self._namespace_at.append(namespace)
        return namespace
