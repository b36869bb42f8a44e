"""Lower bounds of the peak of any assignment, each with a proof that can be checked from the columns.

A bound is what it is made of, and `peak` says what follows from that. It holds whatever it is made of, so a bad choice
makes a low bound and never a wrong one; `core.planning.certificate.bound_search` looks for good ones. Rounding is on
the safe side.

    Volume      what only these brokers may own cannot be spread thinner than over all that they have
    Heaviest    one bundle uses so much even where it uses the least
    Pigeonhole  of k * m + 1 bundles that only m brokers may own, one of them gets k + 1
    Prices      let brokers take a price for each resource, all that they have being worth 1: the peak is no less than
                what it costs to put each bundle where that is cheapest, whatever the prices are (weak duality)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from loadmanager.core.model.load import BoolArray, FloatArray
from loadmanager.core.planning.certificate.balancing_problem import BalancingProblem

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


def counted(problem: BalancingProblem) -> BoolArray:
    """Return a mask (N,) of the owned bundles."""
    return np.asarray(problem.owner >= 0)


def confined(problem: BalancingProblem, brokers: BoolArray) -> BoolArray:
    """Return a mask (N,) of the bundles that only these brokers (M,) may own."""
    classes: BoolArray = ~np.asarray((problem.may_own & ~brokers).any(axis=1))
    return np.asarray(classes[problem.classes] & counted(problem))


def least_use(problem: BalancingProblem, bundle: int) -> float:
    """Return the lowest usage that this bundle alone can cause at any broker; 0 for an unowned one."""
    allowed = problem.may_own[problem.classes[bundle]]
    use = float((problem.need[bundle] * problem.per_need[allowed]).max(axis=1).min())
    return use if problem.owner[bundle] >= 0 else 0.0


def _cheapest(problem: BalancingProblem, prices: FloatArray) -> float:
    """Return the total cost with each bundle at its cheapest eligible broker. Brokers of equal prices count as one."""
    distinct, which = np.unique(prices, axis=0, return_inverse=True)
    offers: BoolArray = np.zeros((len(problem.may_own), len(distinct)), dtype=np.bool_)
    for group in range(len(distinct)):
        offers[:, group] = problem.may_own[:, which.ravel() == group].any(axis=1)
    offered, kind = np.unique(offers, axis=0, return_inverse=True)
    kind_of = np.where(counted(problem), kind.ravel()[problem.classes], -1)
    total = 0.0
    for each, columns in enumerate(offered):
        total += _sum_of_least(problem.need[kind_of == each], distinct[columns])
    return total


def _sum_of_least(need: FloatArray, prices: FloatArray) -> float:
    """Return the sum over needs (n, R) of the cheapest cost at these prices (t, R)."""
    at_once = max(1, _PRODUCTS // len(prices))
    chunks = (need[first : first + at_once] for first in range(0, len(need), at_once))
    return sum(float((prices @ chunk.T).min(axis=0).sum()) for chunk in chunks)
