"""Search for high lower bounds of a problem, one per kind, in time linear in the number of bundles."""

from __future__ import annotations

import numpy as np

from loadmanager.core.model.load import BoolArray, FloatArray
from loadmanager.core.planning.certificate.balancing_problem import BalancingProblem, Rows
from loadmanager.core.planning.certificate.bound_prices import find_prices
from loadmanager.core.planning.certificate.bounds import (
    Bound,
    Heaviest,
    Pigeonhole,
    Prices,
    Volume,
    confined,
    counted,
    least_use,
)

_PLACES = 1024
"""Maximum sets of brokers whose volume is computed; the highest of them are tried as pigeonholes."""
_PIGEONHOLES = 3
_AT_ONCE, _LOOKS = 64, 8
"""Bundles evaluated exactly per pass to find the one that uses most, and maximum passes."""


def find_bounds(problem: BalancingProblem) -> list[tuple[float, Bound]]:
    """Find bounds of all kinds with their values, highest first, simplest first among equals; none without owned
    bundles.
    """
    if not counted(problem).any():
        return []
    places = _places(problem)
    volumes = _volumes(problem, places)
    best = np.unravel_index(int(np.argmax(volumes)), volumes.shape)
    highest = np.argsort(-volumes.max(axis=1), kind="stable")[:_PIGEONHOLES]
    everybody = np.ones((1, len(problem.per_need)), dtype=bool)
    volume = Volume(int(best[1]), places[best[0]])
    found: list[Bound] = [
        volume,
        Heaviest(_heaviest(problem)),
        _pigeonhole(problem, np.unique(np.concatenate([everybody, places[highest]]), axis=0)),
    ]
    prices = find_prices(problem, volume)
    found += [] if prices is None else [Prices(prices)]
    by_peak = [(bound.peak(problem), bound) for bound in found]
    return sorted(by_peak, key=lambda each: -float(f"{each[0]:.9g}"))


def _places(problem: BalancingProblem) -> BoolArray:
    """Return sets of brokers (K', M): all brokers, and those to which bundles are confined; the most loaded ones of
    many.
    """
    used = np.bincount(problem.classes[counted(problem)], minlength=len(problem.may_own)) > 0
    everybody = np.ones((1, len(problem.per_need)), dtype=bool)
    places = np.unique(np.concatenate([everybody, problem.may_own[used]]), axis=0)
    if len(places) <= _PLACES:
        return places
    needed = np.bincount(problem.classes, weights=problem.size, minlength=len(problem.may_own))[used]
    kept = np.argsort(-needed / np.maximum(problem.may_own[used].sum(axis=1), 1), kind="stable")[: _PLACES - 1]
    return np.concatenate([everybody, problem.may_own[used][kept]])


def _volumes(problem: BalancingProblem, places: BoolArray) -> FloatArray:
    """Return the usage (K', R) if the load confined to each set were spread evenly over it."""
    sums = [
        np.bincount(problem.classes, weights=np.where(counted(problem), each, 0.0), minlength=len(problem.may_own))
        for each in problem.need.T
    ]
    reaches_out = problem.may_own @ (~places).T
    used = (~reaches_out).T.astype(np.float64) @ np.stack(sums, axis=1)
    having = np.where(places[:, :, None], problem.capacity, 0.0).sum(axis=1)
    return np.asarray(np.divide(used, having, out=np.zeros_like(used), where=having > 0))


def _heaviest(problem: BalancingProblem) -> int:
    """Find the bundle with the highest minimum usage, among the candidates for it."""
    least, most = _use_between(problem)
    found = int(np.argmax(least))
    best = least_use(problem, found)
    order = np.argsort(-most, kind="stable")
    for look in range(_LOOKS):
        rows = order[look * _AT_ONCE : (look + 1) * _AT_ONCE]
        rows = rows[most[rows] > best]
        uses = [least_use(problem, row) for row in rows.tolist()]
        if uses and max(uses) > best:
            best, found = max(uses), int(rows[int(np.argmax(uses))])
        if len(rows) < _AT_ONCE:
            break
    return found


def _use_between(problem: BalancingProblem) -> tuple[FloatArray, FloatArray]:
    """Return the lowest and the highest estimate (N,) of each bundle's minimum usage."""
    least, most = np.zeros(len(problem.need)), np.zeros(len(problem.need))
    rows_of = _rows_of(problem)
    for rows, allowed in zip(rows_of, problem.may_own, strict=True):
        if not len(rows):
            continue
        per_need, need = problem.per_need[allowed], problem.need[rows]
        least[rows] = (need * per_need.min(axis=0)).max(axis=1)
        large = per_need[np.unique(per_need.argmin(axis=0))]
        most[rows] = np.min([(need * each).max(axis=1) for each in large], axis=0)
    return least, most


def _rows_of(problem: BalancingProblem) -> list[Rows]:
    """Return the owned bundles of each class."""
    rows = np.flatnonzero(counted(problem))
    rows = rows[np.argsort(problem.classes[rows], kind="stable")]
    return np.split(rows, np.searchsorted(problem.classes[rows], np.arange(1, len(problem.may_own))))


def _pigeonhole(problem: BalancingProblem, places: BoolArray) -> Pigeonhole:
    """Find the best pigeonhole bound for any of these sets (k, M)."""
    best, highest = Pigeonhole(0, places[0], 0), -1.0
    for brokers in places:
        need = problem.need[confined(problem, brokers)]
        for resource in range(need.shape[1]):
            each, least = _shared(np.sort(need[:, resource])[::-1], int(brokers.sum()))
            peak = least * float(problem.per_need[brokers, resource].min(initial=np.inf))
            if peak > highest:
                best, highest = Pigeonhole(resource, brokers, each), peak
    return best


def _shared(largest_first: FloatArray, brokers: int) -> tuple[int, float]:
    """Find the k for which the k + 1 smallest of the k * m + 1 largest bundles sum to most, and that sum."""
    sums = np.concatenate([[0.0], np.cumsum(largest_first)])
    each = np.arange((len(largest_first) - 1) // brokers + 1)
    last = each * brokers + 1
    together = sums[last] - sums[last - each - 1]
    return int(np.argmax(together)), float(together.max())
