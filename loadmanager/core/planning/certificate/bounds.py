"""Lower bounds of the peak of any assignment, each with a proof that can be checked from the columns.

`peak` is the value of a bound. It is valid for any choice of the bound's parameters: a bad choice gives a low bound,
never a wrong one. Rounding errors only lower it.

    Volume      bundles that only these brokers may own, spread evenly over the total capacity of these brokers
    Heaviest    the usage of one bundle on the broker where it is lowest
    Pigeonhole  of k * m + 1 bundles that only m brokers may own, one broker gets at least k + 1
    Prices      each broker has a price per unit of each resource, such that the capacity of all brokers costs 1; the
                peak is at least the cost of all bundles, each at its cheapest broker, for any prices (weak duality)

`find_bounds` searches for high bounds, one per kind, in time linear in the number of bundles. Prices are found with
multiplicative weights on a sample of bundles. Similar brokers have the same prices, which loses nothing. If all brokers
are similar, prices give no better bound than volumes and are not searched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from loadmanager.core.model.load import BoolArray, FloatArray
from loadmanager.core.planning.certificate.balancing_problem import BalancingProblem, Rows

SAFE = 1 - 1e-9
"""Safety factor for rounding: sums of a million floats are more exact than this."""
_PRODUCTS = 1 << 20
"""Bundle prices computed at a time."""


class Bound(Protocol):
    """Lower bound of the peak of every assignment, with its proof."""

    def peak(self, problem: BalancingProblem) -> float: ...


@dataclass(frozen=True, slots=True, eq=False)
class Volume:
    """Volume bound of a resource over these `brokers` (M,)."""

    resource: int
    brokers: BoolArray

    def peak(self, problem: BalancingProblem) -> float:
        used = float(problem.need[confined(problem, self.brokers), self.resource].sum())
        having = float(problem.capacity[self.brokers, self.resource].sum())
        return SAFE * used / having if having > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Heaviest:
    """Bound of a single bundle."""

    bundle: int

    def peak(self, problem: BalancingProblem) -> float:
        return SAFE * least_use(problem, self.bundle)


@dataclass(frozen=True, slots=True, eq=False)
class Pigeonhole:
    """Pigeonhole bound of a resource over these `brokers` (M,): one of them gets `each` + 1 of the largest bundles."""

    resource: int
    brokers: BoolArray
    each: int

    def peak(self, problem: BalancingProblem) -> float:
        sizes = np.sort(problem.need[confined(problem, self.brokers), self.resource])[::-1]
        together = self.each * int(self.brokers.sum()) + 1
        if not self.brokers.any() or not 0 < together <= len(sizes):
            return 0.0
        least = float(sizes[together - 1 - self.each : together].sum())
        return SAFE * least * float(problem.per_need[self.brokers, self.resource].min())


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """Weak duality bound. `per_need` (M, R) is the price of a unit of need at each broker; only ratios matter."""

    per_need: FloatArray

    def peak(self, problem: BalancingProblem) -> float:
        prices = np.maximum(self.per_need, 0.0)
        worth = float((prices * np.where(prices > 0, problem.capacity, 0.0)).sum())
        if not 0 < worth < np.inf:
            return 0.0
        return SAFE * _cheapest(problem, prices) / worth


def confined(problem: BalancingProblem, brokers: BoolArray) -> BoolArray:
    """Return a mask (N,) of the bundles that only these brokers (M,) may own."""
    classes: BoolArray = ~np.asarray((problem.may_own & ~brokers).any(axis=1))
    return np.asarray(classes[problem.classes] & problem.owned)


def least_use(problem: BalancingProblem, bundle: int) -> float:
    """Return the lowest usage that this bundle alone can cause at any broker; 0 for an unowned one."""
    allowed = problem.may_own[problem.classes[bundle]]
    use = float((problem.need[bundle] * problem.per_need[allowed]).max(axis=1).min())
    return use if problem.owned[bundle] else 0.0


def _cheapest(problem: BalancingProblem, prices: FloatArray) -> float:
    """Return the total cost with each bundle at its cheapest eligible broker. Brokers of equal prices count as one."""
    distinct, which = np.unique(prices, axis=0, return_inverse=True)
    offers: BoolArray = np.zeros((len(problem.may_own), len(distinct)), dtype=np.bool_)
    for group in range(len(distinct)):
        offers[:, group] = problem.may_own[:, which.ravel() == group].any(axis=1)
    offered, kind = np.unique(offers, axis=0, return_inverse=True)
    kind_of = np.where(problem.owned, kind.ravel()[problem.classes], -1)
    total = 0.0
    for each, columns in enumerate(offered):
        total += _sum_of_least(problem.need[kind_of == each], distinct[columns])
    return total


def _sum_of_least(need: FloatArray, prices: FloatArray) -> float:
    """Return the sum over needs (n, R) of the cheapest cost at these prices (t, R)."""
    at_once = max(1, _PRODUCTS // len(prices))
    chunks = (need[first : first + at_once] for first in range(0, len(need), at_once))
    return sum(float((prices @ chunk.T).min(axis=0).sum()) for chunk in chunks)


_SAMPLE = 1500
_STEP_SIZES, _STEPS = (0.5, 0.15, 0.05, 0.015), 40
"""Exponential step sizes for the price of the most used resource; `_STEPS` steps of each size, from the best so far."""
_TINY = 1e-300
_OTHERS = 0.5
_GROUPS = 48
_FINEST = 8
"""Brokers are similar if their capacities differ by less than this root of two, or by a coarser one if there would be
too many groups.
"""


def find_prices(problem: BalancingProblem, volume: Volume) -> FloatArray | None:
    """Find prices (M, R); None if all brokers are similar."""
    group = _groups(problem)
    groups = int(group.max(initial=-1)) + 1
    if groups <= 1:
        return None
    sums = [np.bincount(group, weights=each, minlength=groups) for each in _finite(problem).T]
    capacity: FloatArray = np.stack(sums, axis=1)
    offers = np.zeros((len(problem.may_own), groups), dtype=bool)
    for each in range(groups):
        offers[:, each] = problem.may_own[:, group == each].any(axis=1)
    begin: FloatArray = np.zeros(capacity.shape)
    begin[np.unique(group[volume.brokers]), volume.resource] = 1.0
    rows, weight = _sample(problem)
    prices = _ascend(problem.need[rows] * weight[:, None], offers[problem.classes[rows]], capacity, begin)
    return np.asarray(prices[group])


def _finite(problem: BalancingProblem) -> FloatArray:
    """Return capacities (M, R); 0 where they do not count."""
    return np.where(np.isfinite(problem.capacity), problem.capacity, 0.0)


def _groups(problem: BalancingProblem) -> Rows:
    """Group brokers of similar capacity and equal eligibility (M,)."""
    capacity = _finite(problem)
    size = np.log2(capacity, out=np.zeros_like(capacity), where=capacity > 0)
    classes = np.unique(problem.may_own, axis=1, return_inverse=True)[1]
    for finest in (_FINEST, 2, 1, 0):
        alike = np.concatenate([np.round(size * finest), classes.reshape(-1, 1)], axis=1)
        distinct, group = np.unique(alike, axis=0, return_inverse=True)
        if len(distinct) <= _GROUPS:
            break
    return np.asarray(np.minimum(group.ravel(), _GROUPS - 1))


def _sample(problem: BalancingProblem) -> tuple[Rows, FloatArray]:
    """Sample owned bundles by size, with the number of bundles that each represents."""
    size = problem.size
    rows = np.flatnonzero(size)
    if len(rows) <= _SAMPLE:
        return rows, np.ones(len(rows))
    part = np.cumsum(size[rows]) / size[rows].sum()
    rows = rows[np.searchsorted(part, (np.arange(_SAMPLE) + 0.5) / _SAMPLE).clip(0, len(rows) - 1)]
    return rows, float(size.sum()) / _SAMPLE / size[rows]


def _ascend(need: FloatArray, offered: BoolArray, capacity: FloatArray, begin: FloatArray) -> FloatArray:
    """Return the best prices (T, R) found for needs (n, R) of bundles that may go to groups (n, T) of brokers."""
    per_need = np.divide(1.0, capacity, out=np.zeros_like(capacity), where=capacity > 0)
    even = _normal(capacity / np.maximum(capacity.sum(axis=0), _TINY))
    best = share = _OTHERS * even + (1 - _OTHERS) * _normal(begin * capacity)
    highest = -1.0
    for size in _STEP_SIZES:
        share = best
        for _ in range(_STEPS):
            costs = np.where(offered, need @ (share * per_need).T, np.inf)
            cheapest = costs.argmin(axis=1)
            value = float(costs[np.arange(len(costs)), cheapest].sum())
            if value > highest:
                best, highest = share, value
            taken = [np.bincount(cheapest, weights=each, minlength=len(capacity)) for each in need.T]
            usage = np.stack(taken, axis=1) * per_need
            share = _normal(share * np.exp(size * usage / max(float(usage.max()), _TINY)))
    return best * per_need


def _normal(share: FloatArray) -> FloatArray:
    return share / max(float(share.sum()), _TINY)


_PLACES = 1024
"""Maximum number of broker sets whose volume is computed; those with the highest volumes are tried as pigeonholes."""
_PIGEONHOLES = 3
_AT_ONCE, _LOOKS = 64, 8
"""Number of bundles evaluated exactly per pass to find the heaviest, and maximum number of passes."""


def find_bounds(problem: BalancingProblem) -> list[tuple[float, Bound]]:
    """Find bounds of all kinds with their values, highest first, simplest first among equals; none without owned
    bundles.
    """
    if not problem.owned.any():
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
    """Return sets of brokers (K', M): all brokers, and the sets to which bundles are confined; if there are many, the
    most loaded ones.
    """
    used = np.bincount(problem.classes[problem.owned], minlength=len(problem.may_own)) > 0
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
        np.bincount(problem.classes, weights=np.where(problem.owned, each, 0.0), minlength=len(problem.may_own))
        for each in problem.need.T
    ]
    reaches_out = problem.may_own @ (~places).T
    used = (~reaches_out).T.astype(np.float64) @ np.stack(sums, axis=1)
    having = np.where(places[:, :, None], problem.capacity, 0.0).sum(axis=1)
    return np.asarray(np.divide(used, having, out=np.zeros_like(used), where=having > 0))


def _heaviest(problem: BalancingProblem) -> int:
    """Find the bundle with the highest minimum usage; only those that may be it are evaluated exactly."""
    least, most = _use_between(problem)
    found = int(np.argmax(least))
    best = least_use(problem, found)
    order = np.flatnonzero(most > best)
    order = order[np.argsort(-most[order], kind="stable")]
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
        per_need, need = problem.per_need[allowed], problem.need[rows].T.copy()  # maxima of contiguous columns are fast
        least[rows] = (need * per_need.min(axis=0)[:, None]).max(axis=0)
        large = per_need[np.unique(per_need.argmin(axis=0))]
        most[rows] = np.min([(need * each[:, None]).max(axis=0) for each in large], axis=0)
    return least, most


def _rows_of(problem: BalancingProblem) -> list[Rows]:
    """Return the owned bundles of each class."""
    rows = np.flatnonzero(problem.owned)
    rows = rows[np.argsort(problem.classes[rows], kind="stable")]
    return np.split(rows, np.searchsorted(problem.classes[rows], np.arange(1, len(problem.may_own))))


def _pigeonhole(problem: BalancingProblem, places: BoolArray) -> Pigeonhole:
    """Find the best pigeonhole bound for any of these sets (k, M)."""
    best, highest = Pigeonhole(0, places[0], 0), -1.0
    for brokers in places:
        need = problem.need[confined(problem, brokers)]
        for resource in range(need.shape[1]):
            each, least = find_pigeonhole(np.sort(need[:, resource])[::-1], int(brokers.sum()))
            peak = least * float(problem.per_need[brokers, resource].min(initial=np.inf))
            if peak > highest:
                best, highest = Pigeonhole(resource, brokers, each), peak
    return best


def find_pigeonhole(largest_first: FloatArray, brokers: int) -> tuple[int, float]:
    """Find the k for which the k + 1 smallest of the k * m + 1 largest bundles sum to most, and that sum."""
    sums = np.concatenate([[0.0], np.cumsum(largest_first)])
    each = np.arange((len(largest_first) - 1) // brokers + 1)
    last = each * brokers + 1
    together = sums[last] - sums[last - each - 1]
    return int(np.argmax(together)), float(together.max())
