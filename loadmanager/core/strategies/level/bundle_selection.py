"""Selection of the bundles that leave hot brokers, all brokers at once: a cheap set that covers the excess.

The value of a bundle is its use of the hot resources, each weighted by its squared excess, divided by the cost of the
move. Bundles are taken by value as long as they do not exceed the excess. Then single bundles, which may exceed it, are
added to a broker if the gain of all its moves together justifies their cost. **Large bundles** that fit nowhere stay:
light ones leave instead, and the single-move search handles the rest.
"""

from __future__ import annotations

import numpy as np

from loadmanager.core.model.load import BoolArray, FloatArray
from loadmanager.core.strategies.level.imbalance_score import USUAL, penalty
from loadmanager.core.strategies.level.search_task import ROUNDING, Draft, Rows

_PASSES, _EXCESS_PART = 4, 0.9
"""Number of passes, and the maximum part of the remaining excess that each covers."""
_FINAL_PASSES = 6
"""Number of bundles per broker that may exceed the excess."""
_FIXED_COST = 0.5
"""Fixed cost of any move, relative to the mean cost of a move."""


def select_bundles(draft: Draft, goal: float, may_leave: BoolArray) -> Rows:
    """Return the bundles (rows) that leave givers above the goal, a heat, in the order of selection."""
    return _Selection(draft, goal, may_leave).run()


class _Selection:
    """`rows` (n,) are the candidates, `of` (n,) their brokers, numbered from 0, `size` (R, n) their heat there.
    `excess` (R, m) is the remaining heat above the goal. Resources come first, as sums over a short last axis are slow.
    """

    def __init__(self, draft: Draft, goal: float, may_leave: BoolArray) -> None:
        task = draft.task
        hot = np.flatnonzero(task.givers & (draft.hottest() > goal + ROUNDING))
        number = np.full(len(draft.heat), -1, dtype=np.intp)
        number[hot] = np.arange(len(hot))
        fits = np.less_equal(task.loads.need.T, _room(draft)[:, None], order="C").all(axis=0)
        rows = np.flatnonzero(may_leave & fits & (number[draft.at] >= 0) & (draft.at >= 0))
        self.rows, self.of = rows, number[draft.at[rows]]
        self.size = (task.loads.need[rows] * draft.per_need[hot][self.of]).T.copy()
        self.cost = task.share[rows]
        self.cost_of_any = _FIXED_COST * float(task.share[task.movable].mean()) if len(rows) else 0.0
        self.heat, self.part = draft.heat[hot], draft.part[hot]
        self.excess = np.maximum(self.heat - goal, 0.0).T.copy()
        self.target = draft.target
        self.least = USUAL.least_gain(draft.heat)
        self.taken: list[Rows] = []
        self.left = np.arange(len(rows))

    def run(self) -> Rows:
        for _ in range(_PASSES):
            self._take(self._cheapest())
        for _ in range(_FINAL_PASSES):
            self._take(self._final())
        return np.asarray(self.rows[np.concatenate(self.taken)])

    def _take(self, those: Rows) -> None:
        self.taken.append(those)
        off = [np.bincount(self.of[those], size, len(self.heat)) for size in self.size[:, those]]
        self.excess = np.maximum(self.excess - off, 0.0)
        is_left = np.zeros(len(self.rows), dtype=bool)
        is_left[self.left] = True
        is_left[those] = False
        self.left = np.flatnonzero(is_left & (self.excess.max(axis=0, initial=0.0) > ROUNDING)[self.of])

    def _cheapest(self) -> Rows:
        """Return the most valuable bundles that do not exceed the excess."""
        weight = self.excess * self.excess
        of, size = self.of[self.left], self.size[:, self.left]
        full = (weight[:, of] * size).sum(axis=0)
        most = _EXCESS_PART * (weight * self.excess).sum(axis=0)
        is_small = (size <= self.excess[:, of] + (weight[:, of] == 0) * size).all(axis=0)
        fits = is_small & (full > 0) & (full <= most[of])
        those, of, full = self.left[fits], of[fits], full[fits]
        order = np.lexsort((-full / (self.cost[those] + self.cost_of_any + ROUNDING), of))
        of, full = of[order], full[order]
        sums = np.cumsum(full)
        before = np.concatenate(([0.0], sums))[np.searchsorted(of, of)]
        return np.asarray(those[order][sums - before <= most[of]])

    def _final(self) -> Rows:
        """Return the most valuable bundle of each broker with excess left, if all its moves together are worth it."""
        weight = self.excess * self.excess
        of, size = self.of[self.left], self.size[:, self.left]
        worth = (weight[:, of] * np.minimum(size, self.excess[:, of])).sum(axis=0)
        order = np.lexsort((-worth / (self.cost[self.left] + self.cost_of_any + ROUNDING), of))
        first = order[np.searchsorted(of[order], np.unique(of))]
        those = self.left[first[worth[first] > 0]]
        return np.asarray(those[self._pays(those)])

    def _pays(self, those: Rows) -> BoolArray:
        """Return a mask of the bundles with which all moves from their broker together gain enough for their cost."""
        taken = np.concatenate([*self.taken, those])
        brokers = len(self.heat)
        off = np.stack([np.bincount(self.of[taken], size, brokers) for size in self.size[:, taken]], axis=1)
        gain = penalty(self.heat, self.target) - penalty(self.heat - off, self.target)
        cost = np.bincount(self.of[taken], self.cost[taken], brokers)
        return np.asarray(((self.part * gain).sum(axis=1) >= self.least * cost)[self.of[those]])


def _room(draft: Draft) -> FloatArray:
    """Return the largest need (R,) for which some receiver has room below the target."""
    room = np.divide(
        draft.target - draft.heat, draft.per_need, out=np.full_like(draft.heat, np.inf), where=draft.per_need > 0
    )
    return np.asarray(room[draft.task.receivers].max(axis=0, initial=0.0))
