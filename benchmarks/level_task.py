"""Task of the benchmarks of Level's search: level all bundles over all brokers, without any limit."""

from __future__ import annotations

import numpy as np

from loadmanager.core.model.load import METRICS, FloatArray, RowArray
from loadmanager.core.strategies.level.level_load import LevelLoads, compute_level
from loadmanager.core.strategies.level.search_task import SearchResult, Task


def a_task(need: FloatArray, per_need: FloatArray, owner: RowArray, target: float) -> Task:
    """Return a task: brokers with `per_need` (M, 4), bundles with `need` (N, 4) and `owner` (N,), and the target."""
    bundles, brokers = len(need), len(per_need)
    used = np.stack([np.bincount(owner, each, brokers) for each in need.T], axis=1)
    level = compute_level(used.sum(axis=0), per_need)
    loads = LevelLoads(tuple(range(METRICS)), np.eye(METRICS), need, per_need, used * per_need, level)
    share = need.sum(axis=1) / need.sum()
    everybody = np.ones(brokers, dtype=bool)
    return Task(
        loads=loads,
        assigned=owner,
        movable=np.ones(bundles, dtype=bool),
        givers=everybody,
        receivers=everybody,
        share=share,
        noise=np.zeros(brokers),
        target=target,
        fills=False,
        budget=1.0,
        classes=np.zeros(bundles, dtype=np.int64),
        owners=everybody[None, :],
        limited=np.zeros(bundles, dtype=bool),
        topics=np.ones(bundles, dtype=np.int64),
        topics_left=np.full(brokers, bundles),
        may_move=lambda _: True,
        made=lambda _: None,
    )


def after(task: Task, found: SearchResult) -> RowArray:
    """Return the owners (N,) afterwards."""
    owner = task.assigned.copy()
    owner[[move.bundle for move in found.moves]] = [move.destination for move in found.moves]
    return owner
