"""Batch moves: select bundles that leave hot brokers, then choose their destinations, all brokers at once.

Hot brokers are relieved to the lowest heat that the budget allows. No destination exceeds the target. The target is
relaxed if bundles are too large, or their needs too different, to fit. A bundle without a destination stays, and others
leave in its place. The single-move search handles bundles with limits per move, and brokers that need an exchange.
"""

from __future__ import annotations

import numpy as np

from loadmanager.core.model.load import BoolArray
from loadmanager.core.strategies.level.bundle_selection import select_bundles
from loadmanager.core.strategies.level.destination_choice import choose_destinations
from loadmanager.core.strategies.level.search_task import ROUNDING, Draft, Rows

_TRIES = 3
"""Attempts to find a goal that the budget allows; also attempts to replace bundles without a destination."""
_MANY_BROKERS = 200
_FEW, _FEW_OF_ALL = 256, 0.05
_HIGHER = (0.01, 0.02, 0.04, 0.0)
"""Relaxation of the target. With `_MANY_BROKERS` or more, single moves cannot place the rest. The target is then raised
by `_HIGHER`, one per attempt, while more than `_FEW` bundles and more than `_FEW_OF_ALL` of them have no destination.
"""
_BISECTIONS = 20
_SPENT = 0.98
"""Part of a too small budget to plan for. The margin avoids cutting off the last bundles of a hot broker."""


def move_many(draft: Draft) -> float:
    """Make the moves and return the goal, a heat. Brokers that need single moves are left unchanged."""
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
        destinations = choose_destinations(draft, rows, len(rows))
    return goal


def _within_reach(draft: Draft, may_leave: BoolArray) -> tuple[float, Rows, Rows]:
    """Return the goal, the selected bundles and their destinations; relax the target if it is out of reach."""
    for higher in _HIGHER:
        goal, rows = _affordable(draft, draft.target, may_leave)
        few = len(rows) if len(draft.heat) < _MANY_BROKERS else max(_FEW, int(_FEW_OF_ALL * len(rows)))
        destinations = choose_destinations(draft, rows, few + 1)
        if np.count_nonzero(destinations < 0) <= few:
            break
        draft.target += higher
    return goal, rows, destinations


def _affordable(draft: Draft, goal: float, may_leave: BoolArray) -> tuple[float, Rows]:
    """Return the lowest heat, at least `goal`, that the budget allows, and the bundles to move for it."""
    left = draft.task.budget - draft.moved
    rows = select_bundles(draft, goal, may_leave)
    for _ in range(_TRIES):
        share = float(draft.task.share[rows].sum())
        if share <= left + ROUNDING:
            break
        goal = _goal_for(draft, _above(draft, goal) * _SPENT * left / share)
        rows = select_bundles(draft, goal, may_leave)
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
