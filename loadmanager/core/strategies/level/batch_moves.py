"""Batch moves: peel excess load off hot brokers, and refill the others, all brokers at once.

Hot brokers are brought down to the lowest heat that the budget allows; no broker is raised above the target, which is
relaxed if bundles are too large, or their needs too different, to be packed so tightly. A bundle that no broker takes
within it stays, and others leave in its place. Bundles with limits per move are left to the single-move search, and so
are brokers that only an exchange helps.
"""

from __future__ import annotations

import numpy as np

from loadmanager.core.model.load import BoolArray
from loadmanager.core.strategies.level.peel import peel
from loadmanager.core.strategies.level.refill import refill
from loadmanager.core.strategies.level.search_task import ROUNDING, Draft, Rows

_TRIES = 3
"""Peel attempts: per goal that the budget allows, and in all if some bundles are not taken."""
_MANY_BROKERS = 200
_FEW, _FEW_OF_ALL = 256, 0.05
_HIGHER = (0.01, 0.02, 0.04, 0.0)
"""Relaxation of the target: if more bundles than these counts, or parts, find no broker within it, it is raised by this
much per attempt. From that many brokers on, single moves could not do the rest.
"""
_BISECTIONS = 20
_SPENT = 0.98
"""Part of the budget that is used where it is not enough: a half-peeled broker is not relieved."""


def move_many(draft: Draft) -> float:
    """Make the moves and return the goal, a heat. Brokers that need single moves are left as they are."""
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
    """Return the goal, the peeled bundles and their destinations; relax the target if it is out of reach."""
    for higher in _HIGHER:
        goal, rows = _affordable(draft, draft.target, may_leave)
        few = len(rows) if len(draft.heat) < _MANY_BROKERS else max(_FEW, int(_FEW_OF_ALL * len(rows)))
        destinations = refill(draft, rows, few + 1)
        if np.count_nonzero(destinations < 0) <= few:
            break
        draft.target += higher
    return goal, rows, destinations


def _affordable(draft: Draft, goal: float, may_leave: BoolArray) -> tuple[float, Rows]:
    """Return the lowest heat, at least this one, and the bundles to peel for it, within the budget."""
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
    """Return the share of load above the goal at givers, of the resource where it is highest."""
    above = np.maximum(draft.heat[draft.task.givers] - goal, 0.0) * draft.part[draft.task.givers]
    return float(above.sum(axis=0).max(initial=0.0))


def _goal_for(draft: Draft, above: float) -> float:
    """Return the lowest heat with at most this share above it."""
    low, high = draft.target, float(draft.hottest().max(initial=draft.target))
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if _above(draft, middle) <= above else (middle, high)
    return high
