"""Selection of bundles that leave hot brokers, all brokers at once: a cheap set that covers the excess.

A bundle is worth what it takes off the hot resources, each weighted by its squared excess, divided by the cost of its
move. Bundles are taken in that order while they do not exceed the excess; then a broker is finished with single
bundles, partly wasted, if all that leaves it pays together. **Large bundles** that fit nowhere stay: the light ones
around them leave, and the single-move search handles the rest.
"""

from __future__ import annotations

import numpy as np

from loadmanager.core.model.load import BoolArray, FloatArray
from loadmanager.core.strategies.level.imbalance_score import USUAL, badness
from loadmanager.core.strategies.level.search_task import ROUNDING, Draft, Rows

_ROUNDS, _BITE = 4, 0.9
"""Passes, and the part of the remaining excess covered by each."""
_SINGLES = 6
"""Bundles that may finish a broker."""
_ANY = 0.5
"""Fixed cost of a move, in costs of a mean one."""


def peel(draft: Draft, goal: float, may_leave: BoolArray) -> Rows:
    """Return the bundles (rows) to take off givers above the goal, a heat, in the order taken."""
    return _Peel(draft, goal, may_leave).run()


class _Peel:
    """`rows` (n,) are the candidates, `of` (n,) their brokers, numbered from 0, `size` (n, R) the heat they take off.
    `excess` (m, R) is what is still too much.
    """

    def __init__(self, draft: Draft, goal: float, may_leave: BoolArray) -> None:
        task = draft.task
        hot = np.flatnonzero(task.givers & (draft.hottest() > goal + ROUNDING))
        number = np.full(len(draft.heat), -1, dtype=np.intp)
        number[hot] = np.arange(len(hot))
        rows = np.flatnonzero(may_leave & (number[draft.at] >= 0) & (draft.at >= 0))
        rows = rows[(task.loads.need[rows] <= _room(draft)).all(axis=1)]
        self.rows, self.of = rows, number[draft.at[rows]]
        self.size = task.loads.need[rows] * draft.per_need[hot][self.of]
        self.cost = task.cost[rows]
        self.cost_of_any = _ANY * float(task.cost[task.movable].mean()) if len(rows) else 0.0
        self.heat, self.part = draft.heat[hot], draft.part[hot]
        self.excess = np.maximum(self.heat - goal, 0.0)
        self.target = draft.target
        self.least = USUAL.least_gain(draft.heat)
        self.taken: list[Rows] = []
        self.left = np.arange(len(rows))

    def run(self) -> Rows:
        for _ in range(_ROUNDS):
            self._take(self._best())
        for _ in range(_SINGLES):
            self._take(self._finishing())
        return np.asarray(self.rows[np.concatenate(self.taken)])

    def _take(self, those: Rows) -> None:
        self.taken.append(those)
        for column, size in enumerate(self.size[those].T):
            self.excess[:, column] -= np.bincount(self.of[those], size, len(self.excess))
        self.excess = np.maximum(self.excess, 0.0)
        is_left = np.zeros(len(self.rows), dtype=bool)
        is_left[self.left] = True
        is_left[those] = False
        self.left = np.flatnonzero(is_left & (self.excess.max(axis=1, initial=0.0) > ROUNDING)[self.of])

    def _best(self) -> Rows:
        """Take the most valuable bundles that do not exceed the excess."""
        weight = self.excess * self.excess
        of, size = self.of[self.left], self.size[self.left]
        full = (weight[of] * size).sum(axis=1)
        most = _BITE * (weight * self.excess).sum(axis=1)
        fits = (full > 0) & (full <= most[of]) & (size <= self.excess[of] + (weight[of] == 0) * size).all(axis=1)
        those, of, full = self.left[fits], of[fits], full[fits]
        order = np.lexsort((-full / (self.cost[those] + self.cost_of_any + ROUNDING), of))
        of, full = of[order], full[order]
        sums = np.cumsum(full)
        before = np.concatenate(([0.0], sums))[np.searchsorted(of, of)]
        return np.asarray(those[order][sums - before <= most[of]])

    def _finishing(self) -> Rows:
        """Take the most valuable bundle for each unfinished broker, if it pays with those taken before."""
        weight = self.excess * self.excess
        of, size = self.of[self.left], self.size[self.left]
        worth = (weight[of] * np.minimum(size, self.excess[of])).sum(axis=1)
        order = np.lexsort((-worth / (self.cost[self.left] + self.cost_of_any + ROUNDING), of))
        first = order[np.searchsorted(of[order], np.unique(of))]
        those = self.left[first[worth[first] > 0]]
        return np.asarray(those[self._pays(those)])

    def _pays(self, those: Rows) -> BoolArray:
        """Return a mask of bundles with which the whole relief of their broker pays."""
        taken = np.concatenate([*self.taken, those])
        brokers = len(self.excess)
        off = np.stack([np.bincount(self.of[taken], size, brokers) for size in self.size[taken].T], axis=1)
        gain = badness(self.heat, self.target) - badness(self.heat - off, self.target)
        cost = np.bincount(self.of[taken], self.cost[taken], brokers)
        return np.asarray(((self.part * gain).sum(axis=1) >= self.least * cost)[self.of[those]])


def _room(draft: Draft) -> FloatArray:
    """Return the largest need (R,) that some broker can take within the target."""
    room = np.divide(
        draft.target - draft.heat, draft.per_need, out=np.full_like(draft.heat, np.inf), where=draft.per_need > 0
    )
    return np.asarray(room[draft.task.takers].max(axis=0, initial=0.0))
