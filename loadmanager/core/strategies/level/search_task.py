"""Input and result of Level's search, and the draft that its steps modify."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loadmanager.core.model.load import BoolArray, FloatArray, IntArray, RowArray
from loadmanager.core.strategies.level.imbalance_score import compute_parts
from loadmanager.core.strategies.level.level_load import LevelLoads

Rows = npt.NDArray[np.intp]

ROUNDING = 1e-9


class SearchMove(NamedTuple):
    """A move, in rows."""

    bundle: int
    source: int
    destination: int


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Input of the search: masks of `movable` bundles (N,), of `givers` (M,) and `receivers` (M,). `share` (N,) of
    all load is the cost of a move: it counts towards the budget, and gains are compared with it. `noise` (M,) is a part
    of each broker's load. `fills`: moves fill receivers instead of relieving givers.

    Bundles of the same class, `classes` (N,), have the same eligible `owners` (K, M) before any move. `may_move` is
    called before each move of a `limited` (N,) bundle, and of any bundle if topics are short: brokers can take
    `topics_left` (M,) more, and each bundle has `topics` (N,). `made` is called with each move.
    """

    loads: LevelLoads
    assigned: RowArray
    movable: BoolArray
    givers: BoolArray
    receivers: BoolArray
    share: FloatArray
    noise: FloatArray
    target: float
    fills: bool
    budget: float
    classes: IntArray
    owners: BoolArray
    limited: BoolArray
    topics: IntArray
    topics_left: IntArray
    may_move: Callable[[tuple[SearchMove, ...]], bool]
    made: Callable[[SearchMove], None]

    def may_own(self, bundle: int) -> BoolArray:
        """Return the brokers (M,) that may own the bundle before any move."""
        return np.asarray(self.owners[self.classes[bundle]])


@dataclass(frozen=True, slots=True, eq=False)
class SearchResult:
    """Moves, grouped by source and destination, their share of all load, and the score before and after.

    `heat` (M,) is the heat afterwards; `spent`: the budget prevented a move.
    """

    moves: list[SearchMove]
    share: float
    before: float
    after: float
    heat: FloatArray
    spent: bool


class Draft:
    """State of the search. `heat` (M, R) per resource, `per_need` (M, R) heat per unit of need, `part` (M, R) relative
    capacity; `target` is that of the task, or higher if out of reach. `at` (N,) is the current broker of each bundle,
    `moved` the share of all load moved so far.
    """

    def __init__(self, task: Task) -> None:
        loads = task.loads
        self.task = task
        self.heat, self.per_need = loads.usage / loads.level, loads.per_need / loads.level
        self.part = compute_parts(loads.per_need)
        self.target = task.target
        self.at: Rows = task.assigned.astype(np.intp)
        self.topics_left = task.topics_left.copy()
        self.moved = 0.0

    def hottest(self) -> FloatArray:
        """Return the heat of each broker's most used resource (M,)."""
        return np.asarray(self.heat.max(axis=1, initial=0.0))

    def move_all(self, rows: Rows, destinations: Rows) -> None:
        """Move bundles that have not moved yet."""
        brokers, need = len(self.heat), self.task.loads.need[rows]
        for column, each in enumerate(need.T):
            change = np.bincount(destinations, each, brokers) - np.bincount(self.at[rows], each, brokers)
            self.heat[:, column] += change * self.per_need[:, column]
        moves = zip(rows.tolist(), self.at[rows].tolist(), destinations.tolist(), strict=True)
        self.topics_left -= np.bincount(destinations, self.task.topics[rows], brokers).astype(np.int64)
        self.moved += float(self.task.share[rows].sum())
        self.at[rows] = destinations
        for move in moves:
            self.task.made(SearchMove(*move))
