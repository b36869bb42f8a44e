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


class MinimumMoves:
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

    def least_load(self, peak: float) -> float:
        """Return the minimum share of all load that moves to reach this peak."""
        return SAFE * (float(self._find_costs(peak).sum()) + self._forced)

    def least_moves(self, peak: float) -> int:
        """Return the minimum number of bundles that move to reach this peak."""
        return int(np.ceil(self._find_costs(peak) * SAFE - (1 - SAFE)).sum() + self._forced)

    def least_peak(self, load: float) -> float:
        """Find the highest peak that no plan with this budget of load can reach; 0 if it can reach `lowest`."""
        low, high = self._lowest, max(self._lowest, self._problem.peak_before)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.least_load(middle) > load else (low, middle)
        peak = low - (high - self._lowest) * _ROUNDING
        return peak if self.least_load(peak) > load else 0.0

    def _find_costs(self, peak: float) -> FloatArray:
        """Return the minimum cost (M,) of relieving each broker."""
        excess = _excess(self._problem, peak)
        costs = [cover.find_cost(excess[:, resource]) for resource, cover in enumerate(self._covers)]
        return np.asarray(np.stack(costs, axis=1).max(axis=1))


def _excess(problem: BalancingProblem, peak: float) -> FloatArray:
    """Return the load (M, R) above the peak of bundles that can stay; rounding errors do not count as excess."""
    grows = problem.per_need > 0
    room = np.multiply(peak * (2 - SAFE), problem.capacity, out=np.full_like(problem.staying, np.inf), where=grows)
    return np.maximum(problem.staying - room, 0.0)


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

    def find_cost(self, excess: FloatArray) -> FloatArray:
        """Return the minimum cost (M,) of taking an excess (M,) from each broker, lowered by rounding errors.

        Its price is the ratio of the last bundle that is needed; those before it are worth more than they cost.
        """
        asked = np.flatnonzero((excess > 0) & (self.end > self.first))
        first, excess, cost = self.first[asked], excess[asked], np.zeros(len(self.first))
        last = np.searchsorted(self.need, self.need[first] + excess, side="left") - 1
        last = np.clip(last, first, self.end[asked] - 1)
        price, taken = self.ratio[last], self.need[last] - self.need[first]
        errors = _CANCELLED * (price * (self.need[-1] + excess) + self.cost[-1])
        cost[asked] = np.maximum(self.cost[last] - self.cost[first] + price * (excess - taken) - errors, 0.0)
        return cost
