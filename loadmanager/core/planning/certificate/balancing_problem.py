"""Load balancing problem in columns, the input of the bounds: bundle needs, broker capacities, eligibility.

N bundles, M brokers, R resources, K classes of eligibility. The usage of a broker is what its bundles need of a
resource times `per_need`, the inverse of its capacity. The **peak** of an assignment is the highest usage of any
resource of any broker, and heat is the peak over the level (`core.strategies.level.level_load`).

A bundle may always stay where it is, unless its owner is to be `emptied`: so bounds hold for every plan, also for one
that leaves a bundle where no rule would put it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadmanager.core.model.load import BoolArray, FloatArray

Rows = npt.NDArray[np.integer]

LEAST_LEVEL = 0.02
"""Lower limit of the level, independent of Level's settings: heat is a figure of the plan file."""


@dataclass(frozen=True, slots=True, eq=False)
class BalancingProblem:
    """`need` (N, R) and `per_need` (M, R), neither negative; 0 for a broker whose usage does not grow.

    `owner` (N,) is a broker's row, -1 for an unowned bundle, which does not count. `classes` (N,) is a row of `may_own`
    (K, M): the brokers that may own the bundle, at least one. `cost` (N,) is its share of all load, the price of moving
    it.
    """

    need: FloatArray
    per_need: FloatArray
    owner: Rows
    classes: Rows
    may_own: BoolArray
    cost: FloatArray

    def __post_init__(self) -> None:
        bundles, resources = self.need.shape
        brokers = len(self.per_need)
        assert self.per_need.shape == (brokers, resources)
        assert self.owner.shape == self.classes.shape == self.cost.shape == (bundles,)
        assert self.may_own.shape[1:] == (brokers,)
        assert self.may_own.any(axis=1).all()

    @property
    def capacity(self) -> FloatArray:
        """Return capacities (M, R); infinite where usage does not grow."""
        return np.divide(1.0, self.per_need, out=np.full_like(self.per_need, np.inf), where=self.per_need > 0)

    @property
    def level(self) -> float:
        """Return the peak if all load were divisible and spread evenly over the brokers; at least `LEAST_LEVEL`."""
        used, having = self.need[self.owner >= 0].sum(axis=0), self.capacity.sum(axis=0)
        levels = np.divide(used, having, out=np.zeros_like(used), where=having > 0)
        return max(float(levels.max(initial=0.0)), LEAST_LEVEL)

    @property
    def size(self) -> FloatArray:
        """Return the need of each bundle over all resources, relative to the total (N,); 0 for an unowned one."""
        need = np.where((self.owner >= 0)[:, None], self.need, 0.0)
        total = need.sum(axis=0)
        return np.asarray(np.divide(need, total, out=np.zeros_like(need), where=total > 0).sum(axis=1))

    def load(self, owner: Rows) -> FloatArray:
        """Return the load of each broker (M, R) with these owners (N,)."""
        brokers = len(self.per_need)
        sums = [np.bincount(owner + 1, weights=each, minlength=brokers + 1)[1:] for each in self.need.T]
        return np.stack(sums, axis=1).astype(np.float64)

    def peak(self, owner: Rows) -> float:
        """Return the highest usage of any broker with these owners (N,)."""
        return float((self.load(owner) * self.per_need).max(initial=0.0))
