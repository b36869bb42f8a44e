"""Simulated bundles: load, recorded owner, and the broker that actually serves each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from loadmanager.core.domain.bundles import NamespaceBundles, TopicLoad
from loadmanager.core.domain.names import BrokerId, BundleRange, NamespaceName
from loadmanager.core.domain.ownership import (
    FREE,
    NamespaceState,
    Ownership,
    OwnershipState,
    Registration,
    Stamp,
)
from loadmanager.core.model.bundle_averages import PartLoad
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.model.extensible_load import throughput_of
from loadmanager.core.model.load import FloatArray, IntArray, RowArray
from loadmanager.core.model.snapshot import NOBODY
from loadmanager.lab.simulate.fleet_events import NamespaceSpec
from loadmanager.lab.simulate.workload import Workload

EPOCH = 1
"""Epoch of the only leader."""


@dataclass(slots=True, eq=False)
class SimLoads:
    """Loads of bundles at one moment: load (N, 4), topics (N,), sessions (N,), and the `total_throughput`."""

    load: FloatArray
    topics: IntArray
    sessions: IntArray
    total_throughput: float = field(init=False)

    def __post_init__(self) -> None:
        throughput = self.throughput()
        self.total_throughput = float(np.cumsum(throughput)[-1]) if len(throughput) else 0.0

    def throughput(self) -> FloatArray:
        """Return bytes/s (N,), in and out together."""
        return throughput_of(self.load)


@dataclass(frozen=True, slots=True)
class _Place:
    """Position of a bundle in its namespace, and in the bundle of the workload from which it was split.

    `part` has fractions of that bundle: the share of the load, and the start and end of its topics and sessions.
    """

    namespace: str
    range: BundleRange
    source: int
    part: tuple[float, float, float] = (1.0, 0.0, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class _Order:
    """Mapping of rows to bundles of the workload (N,), with the part of each, and the rows by name (N,).

    `share` (N,) is the share of the load, `first` and `last` (N,) are the start and end of the topics and sessions.
    All are fractions.
    """

    source: IntArray
    share: FloatArray
    first: FloatArray
    last: FloatArray
    by_name: RowArray

    @classmethod
    def of(cls, places: Sequence[_Place], names: Sequence[str]) -> _Order:
        source = np.array([place.source for place in places], dtype=np.int64)
        share, first, last = np.array([place.part for place in places], dtype=np.float64).reshape(-1, 3).T.copy()
        by_name = np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.int32)
        return cls(source, share, first, last, by_name)


class BundleTable:
    """All current bundles, one row each. After a split, the row of a bundle becomes that of its lowest part.

    `serving` (N,) is the number of the broker that actually serves a bundle, -1 for none. `commit` writes records, also
    into the `model`.
    """

    def __init__(self, workload: Workload, model: ClusterModel) -> None:
        self.names: list[str] = []
        self.serving: RowArray = np.empty(0, dtype=np.int32)
        self.version = 0
        """Incremented when a bundle gets another serving broker, or is created or split."""
        self._workload = workload
        self._model = model
        self._row_of: dict[str, int] = {}
        self._places: list[_Place] = []
        self._states: dict[str, NamespaceState] = {}
        self._rows: dict[str, list[int]] = {}
        self._owner: RowArray = np.empty(0, dtype=np.int32)
        self._registrations: dict[Registration, int] = {}
        self._source_of: dict[str, int] = {}
        self._hot: list[tuple[IntArray, float]] = []
        self._factors: FloatArray | None = None
        self._order: _Order | None = None
        self._created = 0

    def __len__(self) -> int:
        return len(self.names)

    def row_of(self, bundle: str) -> int | None:
        return self._row_of.get(bundle)

    def ownership(self, row: int) -> Ownership:
        place = self._places[row]
        return self._states[place.namespace].ownerships[self._index(place)]

    def namespace_sizes(self) -> dict[str, int]:
        """Return the number of bundles of each namespace."""
        return {name: len(rows) for name, rows in self._rows.items()}

    def states(self) -> Mapping[str, NamespaceState]:
        """Return the records of all namespaces."""
        return self._states

    def rows_owned_by(self, registration: Registration) -> list[int]:
        """Return the bundles that this registration owns in the records, including those it is to release."""
        number = self._registrations.get(registration)
        return [] if number is None else np.flatnonzero(self._owner == number).tolist()

    def create(self, spec: NamespaceSpec, owners: Mapping[BrokerId, Registration], stamp: Stamp) -> list[int]:
        """Create a namespace with the next bundles of the workload; return its rows."""
        bundles = NamespaceBundles(spec.boundaries)
        given = spec.owners or (None,) * len(spec)
        ownerships = tuple(
            FREE
            if owner is None
            else Ownership(OwnershipState.OWNED, owners[owner], None, 1, stamp.epoch, stamp.now_ms, stamp.reason)
            for owner in given
        )
        places = [_Place(spec.name, each, self._created + i) for i, each in enumerate(spec.ranges())]
        self._source_of.update(zip(spec.bundle_names(), range(self._created, self._created + len(spec)), strict=True))
        self._created += len(spec)
        rows = self._add(places)
        self._states[spec.name] = NamespaceState(NamespaceName.parse_any(spec.name), bundles, ownerships)
        self._rows[spec.name] = rows
        self._write(spec.name)
        return rows

    def heat(self, bundles: Sequence[str], factor: float) -> Callable[[], None]:
        """Multiply the load of these bundles of the workload by a factor, until the returned function is called.

        The factor also applies to the parts of a bundle that is split.
        """
        hot = np.array([self._source_of[name] for name in bundles], dtype=np.int64), factor
        self._hot.append(hot)
        self._update_factors()

        def cool() -> None:
            self._hot = [each for each in self._hot if each is not hot]
            self._update_factors()

        return cool

    def _update_factors(self) -> None:
        factors = np.ones(len(self._workload))
        for sources, factor in self._hot:
            factors[sources] *= factor
        self._factors = factors if self._hot else None

    def loads_at(self, t_s: float) -> SimLoads:
        """Return the loads of all bundles at that time."""
        load = self._workload.load_at(t_s)
        topics, sessions = self._workload.topics_at(t_s), self._workload.sessions_at(t_s)
        if self._factors is not None:
            load = load * self._factors[:, np.newaxis]
        order = self._current_order()
        load = load[order.source] * order.share[:, np.newaxis]
        return SimLoads(load, self._divide_counts(topics), self._divide_counts(sessions))

    def find_topics(self, row: int, load: FloatArray) -> list[TopicLoad] | None:
        """Return the topics of a bundle with the current `load` (4,); None if they are unknown."""
        place = self._places[row]
        topics = self._workload.find_topics(place.source)
        if topics is None:
            return None
        inside = slice(*np.searchsorted(topics.hashes, [place.range.lower, _end(place.range)]).tolist())
        share = place.part[0]
        parts = topics.share[inside] / share if share > 0 else topics.share[inside]
        rates, throughputs = parts * (load[0] + load[1]), parts * (load[2] + load[3])
        name = self.names[row]
        return [
            TopicLoad(topic, rate, throughput, f"{name}#{number}")
            for number, (topic, rate, throughput) in enumerate(
                zip(topics.hashes[inside].tolist(), rates.tolist(), throughputs.tolist(), strict=True)
            )
        ]

    def commit(self, changes: Mapping[int, Ownership]) -> None:
        """Write the ownership of these bundles, one record per namespace."""
        if not changes:
            return
        by_namespace: dict[str, dict[int, Ownership]] = {}
        for row, ownership in changes.items():
            place = self._places[row]
            by_namespace.setdefault(place.namespace, {})[self._index(place)] = ownership
        for namespace, entries in by_namespace.items():
            self._states[namespace] = self._states[namespace].with_ownerships(entries)
        self._owner[list(changes)] = [self._number_of(ownership) for ownership in changes.values()]
        self._model.set_owners({self.names[row]: ownership for row, ownership in changes.items()})

    def serve(self, rows: Sequence[int] | RowArray | IntArray, broker: int) -> None:
        """Set the broker, by number, that serves these bundles; -1 for none."""
        self.serving[rows] = broker
        self.version += 1

    def split(self, row: int, boundaries: Sequence[int], stamp: Stamp, load: FloatArray) -> list[int]:
        """Split a bundle with the current `load` (4,); return the rows of its parts."""
        parent = self._places[row]
        state = self._states[parent.namespace]
        index = self._index(parent)
        self._states[parent.namespace] = state.split(index, boundaries, stamp)
        parts = self._parts_of(parent, boundaries)
        known = self._known_loads(parent, parts, load)
        del self._row_of[self.names[row]]
        self._places[row] = parts[0]
        self.names[row] = f"{parent.namespace}/{parts[0].range}"
        self._row_of[self.names[row]] = row
        rows = [row, *self._add(parts[1:])]
        self.serve(rows, int(self.serving[row]))
        self._rows[parent.namespace][index : index + 1] = rows
        self._write(parent.namespace)
        if known is not None:
            self._model.redistribute(dict(zip((self.names[each] for each in rows), known, strict=True)))
        return rows

    def rows_by_broker(self, brokers: int) -> list[RowArray]:
        """Return the rows that each broker serves, in the order of the names."""
        by_name = self._current_order().by_name
        serving = self.serving[by_name]
        order = np.argsort(serving, kind="stable")
        rows = by_name[order]
        ends = np.searchsorted(serving[order], np.arange(brokers + 1))
        return [rows[first:last] for first, last in pairwise(ends.tolist())]

    def _add(self, places: Sequence[_Place]) -> list[int]:
        rows = list(range(len(self.names), len(self.names) + len(places)))
        self._places += places
        for row, place in zip(rows, places, strict=True):
            name = f"{place.namespace}/{place.range}"
            self.names.append(name)
            self._row_of[name] = row
        nobody = np.full(len(places), NOBODY, dtype=np.int32)
        self.serving, self._owner = np.append(self.serving, nobody), np.append(self._owner, nobody)
        self._order = None
        self.version += 1
        return rows

    def _current_order(self) -> _Order:
        if self._order is None:
            self._order = _Order.of(self._places, self.names)
        return self._order

    def _index(self, place: _Place) -> int:
        return self._states[place.namespace].bundles.index_of_hash(place.range.lower)

    def _write(self, namespace: str) -> None:
        """Write the record of a namespace into the owner column and the model."""
        state, rows = self._states[namespace], self._rows[namespace]
        self._owner[rows] = [self._number_of(ownership) for ownership in state.ownerships]
        self._model.set_namespace(namespace, [self.names[row] for row in rows], state.ownerships)

    def _number_of(self, ownership: Ownership) -> int:
        """Return the number of the owner's registration."""
        owner = ownership.owner
        return NOBODY if owner is None else self._registrations.setdefault(owner, len(self._registrations))

    def _divide_counts(self, counts: IntArray) -> IntArray:
        """Convert counts of the workload's bundles to counts of the current bundles; parts add up to the whole."""
        order = self._current_order()
        whole = counts[order.source]
        return (np.rint(order.last * whole) - np.rint(order.first * whole)).astype(np.int64)

    def _parts_of(self, parent: _Place, boundaries: Sequence[int]) -> list[_Place]:
        """Return the parts of a bundle, with shares by topics if known, else by the widths of their ranges."""
        topics = self._workload.find_topics(parent.source)
        whole, begin, end = parent.part
        width = parent.range.upper - parent.range.lower
        parts = []
        for ends in pairwise((parent.range.lower, *boundaries, parent.range.upper)):
            own = BundleRange(*ends)
            if topics is None:
                share = whole * ((own.upper - own.lower) / width)
                first, last = (begin + (end - begin) * ((each - parent.range.lower) / width) for each in ends)
            else:
                inside = np.searchsorted(topics.hashes, [own.lower, _end(own)])
                below = np.cumsum(np.append(0.0, topics.share))[inside]
                share = float(below[1] - below[0])
                first, last = (inside / len(topics)).tolist()
            parts.append(_Place(parent.namespace, own, parent.source, (share, first, last)))
        return parts

    def _known_loads(self, parent: _Place, parts: Sequence[_Place], load: FloatArray) -> list[PartLoad] | None:
        """Return the loads of the parts by their topics, None if the topics are unknown."""
        topics = self._workload.find_topics(parent.source)
        whole, _, _ = parent.part
        if topics is None or not whole > 0:
            return None
        return [
            PartLoad(load * (share / whole), round((last - first) * len(topics)))
            for share, first, last in (part.part for part in parts)
        ]


def _end(own: BundleRange) -> int:
    """Return the first hash behind the range."""
    return own.upper + (own.upper in own)
