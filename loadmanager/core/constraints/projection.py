"""Projection: the load moved by earlier steps of a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from loadmanager.core.model.load import METRICS, FloatArray, IntArray
from loadmanager.core.model.snapshot import Snapshot, bundle_load


@dataclass(frozen=True, slots=True, eq=False)
class GroupCounts:
    """Anti-affinity group per broker: (M,) distinct namespaces, and (M,) bundles of them."""

    namespaces: IntArray
    bundles: IntArray

    @classmethod
    def of(cls, snapshot: Snapshot, group: str) -> GroupCounts:
        """Count each bundle at the broker that has it or is about to."""
        bundles, brokers = snapshot.bundles, len(snapshot.brokers)
        positions = [snapshot.find_namespace(namespace) for namespace in snapshot.policies.members(group)]
        in_group = np.zeros(len(bundles.namespaces), dtype=bool)
        in_group[[position for position in positions if position is not None]] = True
        rows = np.flatnonzero(in_group[bundles.namespace] & (bundles.assigned >= 0))
        assigned = bundles.assigned[rows].astype(np.int64)
        pairs = np.unique(bundles.namespace[rows] * brokers + assigned)
        count = partial(np.bincount, minlength=brokers)
        return cls(count(pairs % max(brokers, 1)), count(assigned))

    def copy(self) -> GroupCounts:
        return GroupCounts(self.namespaces.copy(), self.bundles.copy())


@dataclass(frozen=True, slots=True, eq=False)
class _Tally:
    """Measures of moved bundles, added to and removed from each broker: (M, k) each."""

    measure: Callable[[int | None], FloatArray]
    added: FloatArray
    removed: FloatArray

    def count(self, bundle: int | None, source: int | None, destination: int) -> None:
        amount = self.measure(bundle)
        self.added[destination] += amount
        if source is not None:
            self.removed[source] += amount


class Projection:
    """Changes that earlier steps of a plan make to each broker, so that a burst of lookups, or a broker's shed bundles,
    do not end up in one place. `topics` is (M,); `topics_moved` is the total. Counts by namespace are computed lazily.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        brokers = len(snapshot.brokers)
        self._load = np.zeros((brokers, METRICS))
        self._not_in_load: list[tuple[str, int | None, int | None, int]] = []
        self.topics = np.zeros(brokers, dtype=np.int64)
        self.topics_moved = 0
        self.snapshot = snapshot
        self._bundles: dict[str, IntArray] = {}
        self._groups: dict[str, GroupCounts] = {}
        self._moves: list[tuple[int | None, int | None, int]] = []
        self._uncounted: dict[str, list[tuple[int | None, int]]] = {}
        """Uncounted moves by namespace, as (source, destination)."""
        self._tallies: dict[str, _Tally] = {}

    @property
    def load(self) -> FloatArray:
        """Return long-term averages (M, 4), summed lazily: not all strategies need them."""
        for namespace, bundle, source, destination in self._not_in_load:
            load = bundle_load(self.snapshot, bundle, namespace)
            self._load[destination] += load
            if source is not None:
                self._load[source] -= load
        self._not_in_load.clear()
        return self._load

    def bundles_per_broker(self, namespace: str) -> IntArray:
        """Return the bundles of the namespace on each broker (M,), earlier steps included."""
        counts = self._bundles.get(namespace)
        if counts is None:
            known = self.snapshot.find_namespace(namespace)
            none = np.zeros(len(self.snapshot.brokers), dtype=np.int64)
            counts = self._bundles[namespace] = none if known is None else self.snapshot.bundles_per_broker(known)
        for source, destination in self._uncounted.pop(namespace, ()):
            self._count(namespace, destination, 1)
            if source is not None:
                self._count(namespace, source, -1)
        return counts

    def group_counts(self, group: str) -> GroupCounts:
        """Return the counts of the anti-affinity group, earlier steps included."""
        counts = self._groups.get(group)
        if counts is None:
            known = self.snapshot.derive(("group", group), lambda: GroupCounts.of(self.snapshot, group))
            counts = self._groups[group] = known.copy()
        for namespace in self.snapshot.policies.members(group):
            if namespace in self._uncounted:
                self.bundles_per_broker(namespace)
        return counts

    def tally(self, name: str, measure: Callable[[int | None], FloatArray]) -> tuple[FloatArray, FloatArray]:
        """Return the sums of a measure over the bundles that earlier steps add to each broker, and remove from it.

        Both are (M, k) and read-only. `measure` maps a bundle row, None for an unknown one, to (k,); a later call with
        the same name ignores it.
        """
        tally = self._tallies.get(name)
        if tally is None:
            shape = (len(self.snapshot.brokers), len(measure(None)))
            tally = self._tallies[name] = _Tally(measure, np.zeros(shape), np.zeros(shape))
            for move in self._moves:
                tally.count(*move)
        return tally.added, tally.removed

    def move(self, namespace: str, bundle: int | None, source: int | None, destination: int) -> None:
        """Move the bundle (a row, None for an unknown one) from `source` to `destination`."""
        topics = 0 if bundle is None else int(self.snapshot.bundles.topics[bundle])
        self._not_in_load.append((namespace, bundle, source, destination))
        self.topics[destination] += topics
        self.topics_moved += topics
        self._moves.append((bundle, source, destination))
        for tally in self._tallies.values():
            tally.count(bundle, source, destination)
        self._uncounted.setdefault(namespace, []).append((source, destination))
        if source is not None:
            self.topics[source] -= topics

    def _count(self, namespace: str, broker: int, change: int) -> None:
        """Change the count of the namespace, and of its anti-affinity group, at the broker."""
        group = self.snapshot.policies.find_group(namespace)
        grouped = None if group is None else self.group_counts(group)
        counts = self._bundles[namespace]
        had_some = counts[broker] > 0
        counts[broker] += change
        if grouped is not None:
            grouped.bundles[broker] += change
            grouped.namespaces[broker] += int(counts[broker] > 0) - int(had_some)
