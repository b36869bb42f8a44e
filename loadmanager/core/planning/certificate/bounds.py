"""Lower bounds of the peak of any assignment.

A bound is valid for any choice of its parameters: a bad choice gives a low bound, never a wrong one. Rounding errors
only lower it.

    Volume      bundles that only these brokers may own, spread evenly over the total capacity of these brokers
    Heaviest    the usage of one bundle on the broker where it is lowest
    Pigeonhole  of k * m + 1 bundles that only m brokers may own, one broker gets at least k + 1
    Prices      each broker has a price per unit of each resource, such that the capacity of all brokers costs 1; the
                peak is at least the cost of all bundles, each at its cheapest broker, for any prices (weak duality)

`find_bounds` searches for high bounds, one per kind, in time linear in the number of bundles. Prices are those of
`bound_level`, which does not search: for its scarcest resource alone, each broker has a price. If all brokers are
alike, that is the volume.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmanager.core.model.load import BoolArray, FloatArray
from loadmanager.core.planning.certificate.balancing_problem import BalancingProblem, Rows
from loadmanager.core.strategies.level.level_load import bound_level

SAFE = 1 - 1e-9
"""Safety factor for rounding: sums of a million floats are more exact than this."""
_PLACES = 1024
"""Maximum number of broker sets whose volume is computed; those with the highest volumes are tried as pigeonholes."""
_PIGEONHOLES = 3
_LOOKS = 64
"""Maximum number of bundles of a class that are compared with each broker to find the heaviest."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Lower bound of the peak of every assignment."""

    peak: float


@dataclass(frozen=True, slots=True)
class Volume(Bound):
    """Volume bound of a resource over some brokers; `of_all` are all brokers."""

    resource: int
    brokers: int
    of_all: bool


@dataclass(frozen=True, slots=True)
class Heaviest(Bound):
    """Bound of a single bundle."""

    bundle: int


@dataclass(frozen=True, slots=True)
class Pigeonhole(Bound):
    """Pigeonhole bound of a resource over some brokers: one of them gets `each` + 1 of the largest bundles."""

    resource: int
    brokers: int
    each: int


@dataclass(frozen=True, slots=True)
class Prices(Bound):
    """Weak duality bound."""


def _confined(problem: BalancingProblem, brokers: BoolArray) -> BoolArray:
    """Return a mask (N,) of the bundles that only these brokers (M,) may own."""
    classes: BoolArray = ~np.asarray((problem.may_own & ~brokers).any(axis=1))
    return np.asarray(classes[problem.classes] & problem.owned)


def find_bounds(problem: BalancingProblem) -> list[Bound]:
    """Find bounds of all kinds, highest first, simplest first among equals; none without owned bundles."""
    if not problem.owned.any():
        return []
    places = _places(problem)
    volumes = _volumes(problem, places)
    place, resource = (int(each) for each in np.unravel_index(int(np.argmax(volumes)), volumes.shape))
    highest = np.argsort(-volumes.max(axis=1), kind="stable")[:_PIGEONHOLES]
    everybody, brokers = np.ones((1, len(problem.per_need)), dtype=bool), places[place]
    usable = problem.may_own[np.unique(problem.classes[problem.owned])].any(axis=0)
    found = [
        Volume(SAFE * float(volumes[place, resource]), resource, int(brokers.sum()), bool(brokers.all())),
        _heaviest(problem),
        _pigeonhole(problem, np.unique(np.concatenate([everybody, places[highest]]), axis=0)),
        Prices(SAFE * bound_level(problem.need[problem.owned], problem.per_need[usable])),
    ]
    return sorted(found, key=lambda bound: -float(f"{bound.peak:.9g}"))


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


def _heaviest(problem: BalancingProblem) -> Heaviest:
    """Find the bundle with the highest minimum usage, among those that look largest of each class."""
    best = Heaviest(0.0, 0)
    for rows, allowed in zip(_rows_of(problem), problem.may_own, strict=True):
        if not len(rows):
            continue
        per_need, need = problem.per_need[allowed], problem.need[rows].T.copy()  # maxima of contiguous columns are fast
        least = (need * per_need.min(axis=0)[:, None]).max(axis=0)
        largest = rows[np.argsort(-least, kind="stable")[:_LOOKS]]
        usage = (problem.need[largest][:, None, :] * per_need).max(axis=2).min(axis=1)
        peak = SAFE * float(usage.max())
        if peak > best.peak:
            best = Heaviest(peak, int(largest[usage.argmax()]))
    return best


def _rows_of(problem: BalancingProblem) -> list[Rows]:
    """Return the owned bundles of each class."""
    rows = np.flatnonzero(problem.owned)
    rows = rows[np.argsort(problem.classes[rows], kind="stable")]
    return np.split(rows, np.searchsorted(problem.classes[rows], np.arange(1, len(problem.may_own))))


def _pigeonhole(problem: BalancingProblem, places: BoolArray) -> Pigeonhole:
    """Find the best pigeonhole bound for any of these sets (k, M)."""
    best = Pigeonhole(0.0, 0, 0, 0)
    for brokers in places:
        need, count = problem.need[_confined(problem, brokers)], int(brokers.sum())
        for resource in range(need.shape[1]):
            sizes = np.sort(need[:, resource])[::-1]
            each, _ = find_pigeonhole(sizes, count)
            # the difference of two sums is not exact
            least = float(sizes[each * (count - 1) : each * count + 1].sum())
            peak = SAFE * least * float(problem.per_need[brokers, resource].min())
            if peak > best.peak:
                best = Pigeonhole(peak, resource, count, each)
    return best


def find_pigeonhole(largest_first: FloatArray, brokers: int) -> tuple[int, float]:
    """Find the k for which the k + 1 smallest of the k * m + 1 largest bundles sum to most, and that sum."""
    sums = np.concatenate([[0.0], np.cumsum(largest_first)])
    each = np.arange((len(largest_first) - 1) // brokers + 1)
    last = each * brokers + 1
    together = sums[last] - sums[last - each - 1]
    return int(np.argmax(together)), float(together.max())
