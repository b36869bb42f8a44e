"""The many moves that need no care, made together: peel what is too much off hot brokers, and refill the others.

Hot brokers are brought down to the lowest heat for which the budget is enough; nobody is brought above the target,
which is higher if bundles are too large, or what they need is too different, to be packed so tightly. A bundle that
nobody takes within it stays, and others leave in its place. What is limited one by one is left to the
careful search, and so are brokers that only an exchange helps.
"""

from __future__ import annotations

import numpy as np

from loadmanager.core.model.load import BoolArray
from loadmanager.core.strategies.level.peel import peel
from loadmanager.core.strategies.level.refill import refill
from loadmanager.core.strategies.level.search_task import ROUNDING, Draft, Rows

_TRIES = 3
"""How often bundles are peeled off: for a goal that the budget allows; and in all, where some are not taken."""
_MANY_BROKERS = 200
_FEW, _FEW_OF_ALL = 256, 0.05
_HIGHER = (0.01, 0.02, 0.04, 0.0)
"""With so many brokers, single moves could not do for all of them what moves together could not: if more bundles than
these, or than such a part of them, find no broker within the target, it is out of reach, and higher by so much, each
time.
"""
_BISECTIONS = 20
_SPENT = 0.98
"""What part of the budget is aimed at, where it is not enough: a broker that is peeled half is not relieved."""


def move_many(draft: Draft) -> float:
    """Make the moves; the goal, a heat. Those that none is made for are left as they are."""
    task = draft.task
    may_leave = task.movable & ~task.limited
    goal, rows, destinations = _within_reach(draft, may_leave)
    for _ in range(_TRIES):
        taken = (destinations >= 0) & (destinations != draft.at[rows])
        draft.move_all(rows[taken], destinations[taken])
        may_leave[rows] = False
        if taken.all() or 2 * np.count_nonzero(taken) < len(taken):
            break
        goal, rows = _affordable(draft, goal, may_leave)
        destinations = refill(draft, rows, len(rows))
    return goal


def _within_reach(draft: Draft, may_leave: BoolArray) -> tuple[float, Rows, Rows]:
    """The goal, what is peeled off for it, and where that goes. The target is higher after it if it is out of reach."""
    for higher in _HIGHER:
        goal, rows = _affordable(draft, draft.target, may_leave)
        few = len(rows) if len(draft.heat) < _MANY_BROKERS else max(_FEW, int(_FEW_OF_ALL * len(rows)))
        destinations = refill(draft, rows, few + 1)
        if np.count_nonzero(destinations < 0) <= few:
            break
        draft.target += higher
    return goal, rows, destinations


def _affordable(draft: Draft, goal: float, may_leave: BoolArray) -> tuple[float, Rows]:
    """The bundles to peel off, and down to which heat, at least this one, so that the budget is enough."""
    left = draft.task.budget - draft.moved
    rows = peel(draft, goal, may_leave)
    for _ in range(_TRIES):
        share = float(draft.task.share[rows].sum())
        if share <= left + ROUNDING:
            break
        goal = _goal_for(draft, _above(draft, goal) * _SPENT * left / share)
        rows = peel(draft, goal, may_leave)
    return goal, rows[np.cumsum(draft.task.share[rows]) <= left + ROUNDING]


def _above(draft: Draft, goal: float) -> float:
    """What share of the load of one resource, the highest of all, is above the goal at givers."""
    above = np.maximum(draft.heat[draft.task.givers] - goal, 0.0) * draft.part[draft.task.givers]
    return float(above.sum(axis=0).max(initial=0.0))


def _goal_for(draft: Draft, above: float) -> float:
    """The lowest heat above which is no more than this."""
    low, high = draft.target, float(draft.hottest().max(initial=draft.target))
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if _above(draft, middle) <= above else (middle, high)
    return high
