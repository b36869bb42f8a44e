"""Forced moves of misplaced bundles: heaviest first, each to the broker that is least hot with it.

A bundle is misplaced if the isolation policies do not allow its owner. Misplaced bundles move first, within the budget
of the round; the search for other moves starts from the result.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from loadmanager.core.strategies.level.search_task import SearchMove, Task


def find_forced(task: Task) -> tuple[list[SearchMove], Task]:
    """Find the forced moves of a task, and return the remaining task."""
    loads = task.loads
    heat, per_need = loads.usage / loads.level, loads.per_need / loads.level
    assigned, movable, budget = task.assigned.copy(), task.movable.copy(), task.budget
    moves: list[SearchMove] = []
    rows = np.flatnonzero(task.movable)
    for row in rows[np.argsort(-task.share[rows], kind="stable")].tolist():
        if (moves and task.share[row] > budget) or budget <= 0:
            continue
        source = int(assigned[row])
        with_it = (heat + loads.need[row] * per_need).max(axis=1, initial=0.0)
        receivers = np.flatnonzero(task.receivers & task.may_own(row) & (np.arange(len(heat)) != source))
        for destination in receivers[np.argsort(with_it[receivers], kind="stable")].tolist():
            move = SearchMove(row, source, destination)
            if task.may_move((move,)):
                task.made(move)
                moves.append(move)
                assigned[row], movable[row] = destination, False
                heat[destination] += loads.need[row] * per_need[destination]
                heat[source] -= loads.need[row] * per_need[source]
                budget -= float(task.share[row])
                break
    after = replace(loads, usage=heat * loads.level)
    return moves, replace(task, loads=after, assigned=assigned, movable=movable, budget=max(budget, 0.0))
