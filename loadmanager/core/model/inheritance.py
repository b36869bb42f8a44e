"""Inheritance of load by bundles that replace others: arithmetic on ranges and loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadmanager.core.domain.bundles import TopicLoad
from loadmanager.core.domain.names import BundleRange
from loadmanager.core.model.load import METRICS, FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Overlaps:
    """Overlaps of two lists of ranges: (k,) positions in each, and the share (k,) of the second's range that lies in
    the first.
    """

    heir: IntArray
    former: IntArray
    share: FloatArray

    @classmethod
    def of(cls, heirs: Sequence[str], former: Sequence[str]) -> Overlaps:
        """Compute the overlaps of bundles of one namespace, by name; neither list overlaps itself."""
        new, old = _ends(heirs), _ends(former)
        order, old_order = np.argsort(new[:, 0]), np.argsort(old[:, 0])
        new, old = new[order], old[old_order]
        cuts = np.unique(np.concatenate([new.ravel(), old.ravel()]))
        lower, width = cuts[:-1], np.diff(cuts)
        in_new, in_old = _position(new, lower), _position(old, lower)
        both = (in_new >= 0) & (in_old >= 0)
        in_new, in_old = in_new[both], in_old[both]
        return cls(order[in_new], old_order[in_old], width[both] / (old[in_old, 1] - old[in_old, 0]))

    def sums(self, columns: npt.NDArray[np.float64], heirs: int) -> FloatArray:
        """Return each heir's part (heirs, n) of the columns (former, n)."""
        sums = np.zeros((heirs, columns.shape[1]))
        np.add.at(sums, self.heir, columns[self.former] * self.share[:, None])
        return sums


@dataclass(frozen=True, slots=True, eq=False)
class PartLoad:
    """Topic load of a bundle: the sum (4,) of its topics' latest loads, and the number of topics."""

    load: FloatArray
    topics: int


def loads_by_part(parts: Mapping[str, BundleRange], topics: Sequence[TopicLoad]) -> dict[str, PartLoad]:
    """Sum the topic loads of each part, by name."""
    found = {}
    for name, own in parts.items():
        loads = [each.load for each in topics if each.hash in own]
        found[name] = PartLoad(np.array(loads, dtype=np.float64).reshape(-1, METRICS).sum(axis=0), len(loads))
    return found


def divide_by_topics(parts: Sequence[PartLoad]) -> FloatArray | None:
    """Return the share (n, 4) of each part in the total: by latest load, by number of topics where a metric is 0. None
    without topics.
    """
    topics = np.array([part.topics for part in parts], dtype=np.float64)
    if not topics.sum():
        return None
    load = np.array([part.load for part in parts])
    totals = load.sum(axis=0)
    shares: FloatArray = np.repeat((topics / topics.sum())[:, None], load.shape[1], axis=1)
    np.divide(load, totals, out=shares, where=totals > 0)
    return shares


def _ends(names: Sequence[str]) -> IntArray:
    ranges = [BundleRange.parse(name.rpartition("/")[2]) for name in names]
    return np.array([(each.lower, each.upper) for each in ranges], dtype=np.int64).reshape(-1, 2)


def _position(ends: IntArray, at: IntArray) -> IntArray:
    """Return the index of the sorted range that holds each hash, -1 for none."""
    found = np.searchsorted(ends[:, 0], at, side="right") - 1
    return np.where((found >= 0) & (at < ends[found, 1]), found, -1)
