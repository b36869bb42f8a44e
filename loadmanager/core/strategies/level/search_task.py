"""What the search is asked, what it answers, and the draft of it that its parts work on in turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadmanager.core.model.load import BoolArray, FloatArray, IntArray, RowArray
from loadmanager.core.strategies.level.imbalance_score import part_of
from loadmanager.core.strategies.level.level_load import LevelLoads

Rows = npt.NDArray[np.intp]

ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class SearchMove:
    """Rows."""

    bundle: int
    source: int
    destination: int


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Which bundles (N,) may move, which brokers (M,) may give and take. `share` (N,) of all load is what the budget
    goes by, `cost` (N,), in the same unit, what a gain is weighed against. `noise` (M,) is a part of each broker's
    load. `fills`: moves are to fill brokers that take, and not to relieve those that give.

    Bundles of one of the `classes` (N,) may be owned by the same brokers, `owners` (K, M), before any move is made. For
    one that is `limited` (N,), `may_move` has to be asked before each move, and for all where topics run out: the
    brokers may be given `topics_left` (M,) more, each bundle has `topics` (N,). It answers for the moves that were
    `made`, of which it is told.
    """

    loads: LevelLoads
    assigned: RowArray
    movable: BoolArray
    givers: BoolArray
    takers: BoolArray
    share: FloatArray
    cost: FloatArray
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
        """The brokers (M,) that may own the bundle before any move is made."""
        return np.asarray(self.owners[self.classes[bundle]])


@dataclass(frozen=True, slots=True, eq=False)
class SearchResult:
    """The moves, those of one broker to another side by side, what share of all load they take along, and the score
    before and after them.

    `heat` (M,) is that after them; `stuck` are the brokers that stay too hot for want of a move, `spent` whether the
    budget was in the way of one.
    """

    moves: list[SearchMove]
    share: float
    before: float
    after: float
    heat: FloatArray
    stuck: BoolArray
    spent: bool


class Draft:
    """`heat` (M, R) is that of each resource, `per_need` (M, R) what a unit of need adds to it, `part` (M, R) how large
    brokers are; `target` is that of the task, or above it where that cannot be reached. `at` (N,) is where each bundle
    is by the moves so far, which take along `moved` of all load, a share.
    """

    def __init__(self, task: Task) -> None:
        loads = task.loads
        self.task = task
        self.heat, self.per_need = loads.usage / loads.level, loads.per_need / loads.level
        self.part = part_of(loads.per_need)
        self.target = task.target
        self.at: Rows = task.assigned.astype(np.intp)
        self.topics_left = task.topics_left.copy()
        self.moved = 0.0

    def hottest(self) -> FloatArray:
        """(M,): the heat of the most used resource of each broker."""
        return np.asarray(self.heat.max(axis=1, initial=0.0))

    def move_all(self, rows: Rows, destinations: Rows) -> None:
        """Move bundles that have not moved so far."""
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
