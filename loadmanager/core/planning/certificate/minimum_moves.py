"""Lower bounds on moves: the least load and the fewest bundles to move for a peak, and the lowest peak of a budget.

For a peak x, broker b has to lose at least `excess` = L_br - x C_br of each resource r, by moving its own bundles away.
Consider one resource per broker, with a price y_b per unit: a bundle that leaves is worth y_b w_ir and costs c_i.
Whatever leaves, the total cost is at least

    sum over brokers of  y_b excess_br - (sum over its bundles of max(0, y_b w_ir - c_i))

for any prices (weak duality of the fractional covering problem). With the best prices this equals the cost of the
cheapest parts of bundles that cover the excess. The cost of bundles that cannot stay is added. With a cost of 1 each,
the result is a number of bundles per broker, and is rounded up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmanager.core.model.load import BoolArray, FloatArray
from loadmanager.core.planning.certificate.balancing_problem import BalancingProblem, Rows
from loadmanager.core.planning.certificate.bounds import SAFE, counted

_HALVINGS = 40
_ROUNDING = 1e-7
_CANCELLED = 1e-10
"""Rounding error of a difference, relative to the operands."""


@dataclass(frozen=True, slots=True, eq=False)
class Relief:
    """Dual solution for a target `peak`: the binding `resource` (M,) of each broker, and its `price` (M,)."""

    peak: float
    resource: Rows
    price: FloatArray

    def least_load(self, problem: BalancingProblem) -> float:
        """Return the minimum share of all load that moves."""
        forced = _find_forced(problem)
        return SAFE * (float(self._costs(problem, problem.cost).sum()) + float(problem.cost[forced].sum()))

    def least_moves(self, problem: BalancingProblem) -> int:
        """Return the minimum number of bundles that move."""
        costs = self._costs(problem, np.ones(len(problem.cost)))
        return int(np.ceil(costs * SAFE - (1 - SAFE)).sum()) + int(_find_forced(problem).sum())

    def _costs(self, problem: BalancingProblem, cost: FloatArray) -> FloatArray:
        """Return the minimum cost (M,) of relieving each broker."""
        brokers = np.arange(len(self.price))
        price = np.maximum(self.price, 0.0)
        excess = _excess(problem, _staying(problem), self.peak)[brokers, self.resource]
        rows = np.flatnonzero(_leaving(problem) & (price > 0)[problem.owner])
        owner = problem.owner[rows]
        worth = price[owner] * problem.need[rows, self.resource[owner]]
        pays, count = worth > cost[rows], len(price)
        saved = np.bincount(owner, np.where(pays, worth - cost[rows], 0.0), count)
        in_all = price * excess + np.bincount(owner, np.where(pays, worth, 0.0), count)
        return np.maximum(price * excess - saved - _CANCELLED * in_all, 0.0)


def _excess(problem: BalancingProblem, staying: FloatArray, peak: float) -> FloatArray:
    """Return the excess (M, R) of the loads `staying` (M, R) above the peak; rounding errors do not count as excess."""
    grows = problem.per_need > 0
    room = np.multiply(peak * (2 - SAFE), problem.capacity, out=np.full_like(staying, np.inf), where=grows)
    return np.maximum(staying - room, 0.0)


def _staying(problem: BalancingProblem) -> FloatArray:
    """Return the load (M, R) of bundles that can stay at each broker."""
    return problem.load(np.where(_find_forced(problem), -1, problem.owner))


def _find_forced(problem: BalancingProblem) -> BoolArray:
    """Return a mask (N,) of the bundles that cannot stay."""
    return np.asarray(counted(problem) & ~problem.may_own[problem.classes, problem.owner])


def _leaving(problem: BalancingProblem) -> BoolArray:
    """Return a mask (N,) of the bundles that may stay or leave."""
    choices = problem.may_own.sum(axis=1)[problem.classes]
    return np.asarray(counted(problem) & problem.may_own[problem.classes, problem.owner] & (choices > 1))


class Reliefs:
    """Minimum moves for any peak from `lowest` on. Bundles that can leave are sorted once."""

    def __init__(self, problem: BalancingProblem, lowest: float, *, in_moves: bool = False) -> None:
        """Prepare; `in_moves` minimizes the number of moves in place of their load."""
        self._instance = problem
        self._staying = _staying(problem)
        cost = np.ones(len(problem.cost)) if in_moves else problem.cost
        self._forced = float(cost[_find_forced(problem)].sum())
        is_hot = _excess(problem, self._staying, lowest) > 0
        leaving = _leaving(problem)
        self._covers = [
            _Cover.of(problem, resource, cost, np.flatnonzero(leaving & is_hot[problem.owner, resource]))
            for resource in range(is_hot.shape[1])
        ]

    def relief(self, peak: float) -> Relief:
        """Return the dual solution with the highest bound for this peak."""
        cost, price = self._find(peak)
        resource = cost.argmax(axis=1)
        return Relief(peak, resource, price[np.arange(len(price)), resource])

    def cost(self, peak: float) -> float:
        """Return the minimum cost to reach this peak, up to rounding."""
        return self._forced + float(self._find(peak)[0].max(axis=1).sum())

    def _find(self, peak: float) -> tuple[FloatArray, FloatArray]:
        """Return the cost (M, R) of relieving each broker, and the price of the last unit."""
        excess = _excess(self._instance, self._staying, peak)
        found = [cover.find(excess[:, resource]) for resource, cover in enumerate(self._covers)]
        return np.stack([cost for cost, _ in found], axis=1), np.stack([price for _, price in found], axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class _Cover:
    """Bundles of each broker, sorted by cost per need of one resource.

    `need` and `cost` (n,) add up from the first row on; `first` and `end` (M,) are where those of a broker are, `ratio`
    (n,) is cost by need.
    """

    need: FloatArray
    cost: FloatArray
    ratio: FloatArray
    first: Rows
    end: Rows

    @classmethod
    def of(cls, problem: BalancingProblem, resource: int, cost: FloatArray, rows: Rows) -> _Cover:
        rows = rows[problem.need[rows, resource] > 0]
        ratio = cost[rows] / problem.need[rows, resource]
        order = np.argsort(ratio)
        order = order[np.argsort(problem.owner[rows[order]].astype(np.int32), kind="stable")]
        rows, ratio = rows[order], ratio[order]
        brokers = np.arange(len(problem.per_need))
        first, end = (np.searchsorted(problem.owner[rows], brokers, side) for side in ("left", "right"))
        sums = (np.concatenate([[0.0], np.cumsum(each[rows])]) for each in (problem.need[:, resource], cost))
        need, total = sums
        return cls(need, total, ratio, first, end)

    def find(self, excess: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the minimum cost (M,) of taking an excess (M,) from each broker, and the price of the last unit."""
        asked = (excess > 0) & (self.end > self.first)
        last = np.searchsorted(self.need, self.need[self.first] + excess, side="left") - 1
        last = np.clip(last, self.first, np.maximum(self.end - 1, self.first))
        last = np.minimum(last, len(self.ratio) - 1)
        price = np.where(asked, self.ratio[last], 0.0) if len(self.ratio) else np.zeros(len(excess))
        before = self.need[self.first], self.cost[self.first]
        cost = self.cost[last] - before[1] + price * (excess - (self.need[last] - before[0]))
        return np.where(asked, cost, 0.0), price


def find_least_peak(problem: BalancingProblem, lowest: float, load: float) -> Relief:
    """Find the highest peak below which no plan with this budget of load can get, with its proof.

    See `Relief.least_load`. Peaks below `lowest` are not searched.
    """
    reliefs = Reliefs(problem, lowest)
    low, high = lowest, max(lowest, problem.peak(problem.owner))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if reliefs.cost(middle) > load else (low, middle)
    return reliefs.relief(low - (high - lowest) * _ROUNDING)
