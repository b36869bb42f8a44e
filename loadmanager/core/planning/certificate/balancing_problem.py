"""The cluster as columns, to which bounds apply: what bundles need, what brokers have, and who may own what.

N bundles, M brokers, R resources, K classes of eligibility. The usage of a broker is what its bundles need of a
resource times `per_need`, which is one divided by what it has. The **peak** of an assignment is the highest usage of
any resource of any broker, and heat is the peak over the level (`core.strategies.level.level_load`).

A bundle may always stay where it is, unless its owner gives all away (`emptied`): so what is bounded holds for every
plan, also for one that leaves a bundle where no rule would put it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadmanager.core.model.load import BoolArray, FloatArray

Rows = npt.NDArray[np.integer]

LEAST_LEVEL = 0.02
"""A level below this counts as this, whatever Level is told to mind: heat is a figure of the plan's file."""


@dataclass(frozen=True, slots=True, eq=False)
class BalancingProblem:
    """`need` (N, R) and `per_need` (M, R), neither negative; 0 of a broker whose usage does not grow.

    `owner` (N,) is a broker's row, -1 for a bundle of nobody, which does not count. `classes` (N,) is a row of
    `may_own` (K, M): which brokers may own the bundle, one at least. `cost` (N,) is its share of all load, what
    moving it counts for.
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
        """(M, R): what each broker has; infinite where its usage does not grow."""
        return np.divide(1.0, self.per_need, out=np.full_like(self.per_need, np.inf), where=self.per_need > 0)

    @property
    def level(self) -> float:
        """Where the peak would stand if all load could be poured over the brokers; not below a floor."""
        used, having = self.need[self.owner >= 0].sum(axis=0), self.capacity.sum(axis=0)
        levels = np.divide(used, having, out=np.zeros_like(used), where=having > 0)
        return max(float(levels.max(initial=0.0)), LEAST_LEVEL)

    @property
    def size(self) -> FloatArray:
        """(N,): what each bundle needs, of all resources together, beside what all need; 0 for one of nobody."""
        need = np.where((self.owner >= 0)[:, None], self.need, 0.0)
        total = need.sum(axis=0)
        return np.asarray(np.divide(need, total, out=np.zeros_like(need), where=total > 0).sum(axis=1))

    def load(self, owner: Rows) -> FloatArray:
        """(M, R): what the bundles of each broker need, if they were with these owners (N,)."""
        brokers = len(self.per_need)
        sums = [np.bincount(owner + 1, weights=each, minlength=brokers + 1)[1:] for each in self.need.T]
        return np.stack(sums, axis=1).astype(np.float64)

    def peak(self, owner: Rows) -> float:
        """The highest usage of any broker, if the bundles were with these owners (N,)."""
        return float((self.load(owner) * self.per_need).max(initial=0.0))
