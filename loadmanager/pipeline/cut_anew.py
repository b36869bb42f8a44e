"""Bundles of namespaces that were split or merged: what is reported of one ends what was said of those before it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmanager.core.load import IntArray
from loadmanager.core.names import HASH_SPACE_END
from loadmanager.pipeline.arrays import Codes, each_of
from loadmanager.pipeline.standing import STANDS_MS


@dataclass(frozen=True, slots=True)
class Ranges:
    """Of bundles: the number of the namespace, and the bounds."""

    namespace: IntArray
    lower: IntArray
    upper: IntArray


def reports_of_others(ranges: Ranges, bundle: Codes, report: Codes, at_ms: IntArray) -> tuple[IntArray, IntArray]:
    """Bundles, and reports of others that have hashes in common with them, as long as one of their own may stand.

    `bundle` and `report` are those of rows, by numbers of `ranges` and of reports in their order, which came `at_ms`.
    """
    one, other = _pairs(ranges)
    if not len(one):
        return one, other
    reports = len(at_ms)
    is_one = np.zeros(len(ranges.lower), dtype=np.bool_)
    is_one[one] = True  # of each pair both are
    rows = np.flatnonzero(is_one[bundle])
    keys = np.sort(bundle[rows].astype(np.int64) * reports + report[rows])
    begin, end = (np.searchsorted(keys, bound * reports) for bound in (one, one + 1))
    stands = begin < end
    one, other, begin, end = (each[stands] for each in (one, other, begin, end))
    first, last = (keys[place] % reports for place in (begin, end - 1))
    until = np.searchsorted(at_ms, at_ms[last] + STANDS_MS, side="right")
    begin, end = (np.searchsorted(keys, other * reports + bound) for bound in (first, until))
    pair, place = each_of(begin, np.maximum(end - begin, 0))
    return one[pair], keys[place] % reports


def _pairs(ranges: Ranges) -> tuple[IntArray, IntArray]:
    """Bundles that have hashes in common, each pair both ways."""
    beyond = ranges.namespace.astype(np.int64) * (HASH_SPACE_END + 1)  # namespaces one behind the other
    order = np.argsort(beyond + ranges.lower, kind="stable")
    lower, upper = (beyond + ranges.lower)[order], (beyond + ranges.upper)[order]
    if not (lower[1:] < upper[:-1]).any():
        return order[:0], order[:0]
    behind = np.arange(1, len(order) + 1)
    first, second = each_of(behind, np.searchsorted(lower, upper) - behind)
    return np.concatenate([order[first], order[second]]), np.concatenate([order[second], order[first]])
