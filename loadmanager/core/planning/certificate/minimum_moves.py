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

from loadmanager.core.model.load import FloatArray
from loadmanager.core.model.snapshot import order_by_broker
from loadmanager.core.planning.certificate.balancing_problem import BalancingProblem, Rows
from loadmanager.core.planning.certificate.bounds import SAFE

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
        forced = float(problem.cost[problem.must_leave].sum())
        return SAFE * (float(self._costs(problem, problem.cost).sum()) + forced)

    def least_moves(self, problem: BalancingProblem) -> int:
        """Return the minimum number of bundles that move."""
        costs = self._costs(problem, np.ones(len(problem.cost)))
        return int(np.ceil(costs * SAFE - (1 - SAFE)).sum()) + int(problem.must_leave.sum())

    def _costs(self, problem: BalancingProblem, cost: FloatArray) -> FloatArray:
        """Return the minimum cost (M,) of relieving each broker."""
        brokers = np.arange(len(self.price))
        price = np.maximum(self.price, 0.0)
        excess = _excess(problem, self.peak)[brokers, self.resource]
        rows = np.flatnonzero(problem.may_leave & (price > 0)[problem.owner])
        owner = problem.owner[rows]
        worth = price[owner] * problem.need[rows, self.resource[owner]]
        pays, count = worth > cost[rows], len(price)
        saved = np.bincount(owner, np.where(pays, worth - cost[rows], 0.0), count)
        in_all = price * excess + np.bincount(owner, np.where(pays, worth, 0.0), count)
        return np.maximum(price * excess - saved - _CANCELLED * in_all, 0.0)


def _excess(problem: BalancingProblem, peak: float) -> FloatArray:
    """Return the load (M, R) above the peak of bundles that can stay; rounding errors do not count as excess."""
    grows = problem.per_need > 0
    room = np.multiply(peak * (2 - SAFE), problem.capacity, out=np.full_like(problem.staying, np.inf), where=grows)
    return np.maximum(problem.staying - room, 0.0)


class Reliefs:
    """Minimum moves for any peak from `lowest` on. Bundles that can leave are sorted once."""

    def __init__(self, problem: BalancingProblem, lowest: float, *, in_moves: bool = False) -> None:
        """Prepare; `in_moves` minimizes the number of moves in place of their load."""
        self._problem = problem
        self._lowest = lowest
        cost = np.ones(len(problem.cost)) if in_moves else problem.cost
        self._forced = float(cost[problem.must_leave].sum())
        is_hot = _excess(problem, lowest) > 0
        self._covers = [
            _Cover.of(problem, resource, cost, np.flatnonzero(problem.may_leave & is_hot[problem.owner, resource]))
            for resource in range(is_hot.shape[1])
        ]

    def relief(self, peak: float) -> Relief:
        """Return the dual solution with the highest bound for this peak."""
        cost, price = self._find(peak)
        resource = cost.argmax(axis=1)
        return Relief(peak, resource, price[np.arange(len(price)), resource])

    def least_peak(self, load: float) -> Relief:
        """Find the highest peak below which no plan with this budget of load can get, with its proof.

        See `Relief.least_load`. Peaks below `lowest` are not searched.
        """
        low, high = self._lowest, max(self._lowest, self._problem.peak_before)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._cost(middle) > load else (low, middle)
        return self.relief(low - (high - self._lowest) * _ROUNDING)

    def _cost(self, peak: float) -> float:
        """Return the minimum cost to reach this peak, up to rounding."""
        return self._forced + float(self._find(peak)[0].max(axis=1).sum())

    def _find(self, peak: float) -> tuple[FloatArray, FloatArray]:
        """Return the cost (M, R) of relieving each broker, and the price of the last unit."""
        excess = _excess(self._problem, peak)
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
        order = order[order_by_broker(problem.owner[rows[order]], len(problem.per_need))]
        rows, ratio = rows[order], ratio[order]
        brokers = np.arange(len(problem.per_need))
        first, end = (np.searchsorted(problem.owner[rows], brokers, side) for side in ("left", "right"))
        sums = (np.concatenate([[0.0], np.cumsum(each[rows])]) for each in (problem.need[:, resource], cost))
        need, total = sums
        return cls(need, total, ratio, first, end)

    def find(self, excess: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the minimum cost (M,) of taking an excess (M,) from each broker, and the price of the last unit."""
        asked = np.flatnonzero((excess > 0) & (self.end > self.first))
        first, excess = self.first[asked], excess[asked]
        cost, price = np.zeros(len(self.first)), np.zeros(len(self.first))
        last = np.searchsorted(self.need, self.need[first] + excess, side="left") - 1
        last = np.clip(last, first, self.end[asked] - 1)
        price[asked] = self.ratio[last]
        taken = self.need[last] - self.need[first]
        cost[asked] = self.cost[last] - self.cost[first] + price[asked] * (excess - taken)
        return cost, price
