"""Which moves make load lie more evenly: from the hottest broker on, until all are at the target or nothing is left.

A step takes the hottest broker that may give and is above the target. A bounded number of its bundles, those nearest in
size to what is too much, is weighed against a bounded number of brokers, those that would be least hot with one of
them. The move with the greatest gain in score for what it costs is made, if it may be: the load that it takes along,
and the disturbance that every move is. A broker without such a move is left, and the next one is looked at. It ends,
too, when the budget is spent. No bundle moves twice. Work is bounded by counts, never by a clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from loadmanager.core.level.load import Loads
from loadmanager.core.level.score import badness, part_of, score
from loadmanager.core.load import BoolArray, FloatArray, RowArray

Rows = npt.NDArray[np.intp]

MOST_MOVES = 10_000
_BUNDLES, _BROKERS = 48, 12
"""How many are weighed against each other in a step."""
_MOST_ASKED = 64
"""How many moves of a step are asked for whether they may be made."""
_LEAST_GAIN = 1e-9
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Move:
    """Rows."""

    bundle: int
    source: int
    destination: int


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Which bundles (N,) may move, which brokers (M,) may give and take; `share` (N,) of all load. `may_own` says for a
    bundle which brokers (M,) may own it, `may_move` whether a move may be made after those before it, which counts it.
    """

    loads: Loads
    assigned: RowArray
    movable: BoolArray
    givers: BoolArray
    takers: BoolArray
    share: FloatArray
    target: float
    budget: float
    may_own: Callable[[int], BoolArray]
    may_move: Callable[[Move], bool]


@dataclass(slots=True, eq=False)
class Found:
    """The moves in their order, what share of all load they take along, and the score before and after them.

    `heat` (M,) is that after them; `stuck` are the brokers that stay too hot for want of a move, `spent` whether the
    budget was in the way of one.
    """

    moves: list[Move]
    share: float
    before: float
    after: float
    heat: FloatArray
    stuck: BoolArray
    spent: bool


def find_moves(task: Task) -> Found:
    return _Search(task).run()


@dataclass(slots=True, eq=False)
class _Search:
    task: Task
    heat: FloatArray = field(init=False)
    """(M, R) of each resource."""
    per_need: FloatArray = field(init=False)
    """(M, R): what a unit of need adds to that."""
    part: FloatArray = field(init=False)
    takers: BoolArray = field(init=False)
    stuck: BoolArray = field(init=False)
    moves: list[Move] = field(default_factory=list)
    moved: float = 0.0
    spent: bool = False
    by_broker: tuple[Rows, Rows] = field(init=False)
    gone: set[int] = field(default_factory=set)
    cost_of_any: float = field(init=False)

    def __post_init__(self) -> None:
        task, loads = self.task, self.task.loads
        self.heat, self.per_need = loads.usage / loads.level, loads.per_need / loads.level
        self.part = part_of(loads.per_need)
        self.takers = task.takers.copy()
        self.stuck = np.zeros(len(self.heat), dtype=bool)
        rows = np.flatnonzero(task.movable)
        rows = rows[np.argsort(task.assigned[rows], kind="stable")]
        self.by_broker = rows, np.searchsorted(task.assigned[rows], np.arange(len(self.heat) + 1))
        self.cost_of_any = float(task.share[rows].mean()) if len(rows) else 0.0

    def run(self) -> Found:
        task = self.task
        before = score(self.heat, self.part, task.target)
        while len(self.moves) < MOST_MOVES:
            hottest = np.where(task.givers & ~self.stuck, self.heat.max(axis=1, initial=0.0), 0.0)
            source = int(np.argmax(hottest))
            if hottest[source] <= task.target:
                break
            move = self._find_move(source)
            if move is None:
                self.stuck[source] = True
            else:
                self._make(move)
        after = score(self.heat, self.part, task.target)
        heat = self.heat.max(axis=1, initial=0.0)
        return Found(self.moves, self.moved, before, after, heat, self.stuck, self.spent)

    def _find_move(self, source: int) -> Move | None:
        """The best move from a broker that may be made, None if there is none."""
        bundles = self._bundles_to_weigh(source)
        if not len(bundles):
            return None
        brokers, may_own = self._brokers_to_weigh(source, bundles)
        gain = np.where(may_own, self._gains(source, bundles, brokers), 0.0)
        gain_by_cost = gain / (self.task.share[bundles] + self.cost_of_any + _ROUNDING)[:, None]
        for place in np.argsort(-gain_by_cost, axis=None, kind="stable")[:_MOST_ASKED].tolist():
            i, j = divmod(place, len(brokers))
            move = Move(int(bundles[i]), source, int(brokers[j]))
            if gain[i, j] <= _LEAST_GAIN:
                break
            if self.task.may_move(move):
                return move
        return None

    def _bundles_to_weigh(self, source: int) -> Rows:
        """Bundles of the broker that have to do with its most used resource, and that the budget allows."""
        task, (rows, first) = self.task, self.by_broker
        rows = rows[first[source] : first[source + 1]]
        rows = rows[[row not in self.gone for row in rows.tolist()]]
        hottest = int(np.argmax(self.heat[source]))
        size = task.loads.need[rows, hottest] * self.per_need[source, hottest]
        affordable = task.share[rows] <= task.budget - self.moved + _ROUNDING
        if not self.moves:
            affordable[:] = True  # one that is heavier than the budget could never move otherwise
        self.spent |= bool(np.any(~affordable & (size > 0)))
        rows, size = rows[affordable & (size > 0)], size[affordable & (size > 0)]
        excess = self.heat[source, hottest] - task.target
        return np.asarray(rows[np.argsort(np.abs(size - excess), kind="stable")[:_BUNDLES]])

    def _brokers_to_weigh(self, source: int, bundles: Rows) -> tuple[Rows, BoolArray]:
        """The brokers that would be least hot with a middling one of the bundles; who may own which (k, j)."""
        task = self.task
        may_own = np.stack([task.may_own(row) for row in bundles.tolist()])
        takers = task.takers & may_own.any(axis=0)
        takers[source] = False
        middling = task.loads.need[bundles].mean(axis=0)
        after = (self.heat + middling * self.per_need).max(axis=1)
        brokers = np.flatnonzero(takers)
        brokers = brokers[np.argsort(after[brokers], kind="stable")]
        if may_own[:, brokers].all():
            brokers = brokers[:_BROKERS]
        return brokers, may_own[:, brokers]

    def _gains(self, source: int, bundles: Rows, brokers: Rows) -> FloatArray:
        """(k, j): how much less the score is with each bundle at each broker; not more than 0 where that one would be
        as hot as the source is now.
        """
        target, need = self.task.target, self.task.loads.need[bundles]
        here, there = self.heat[source], self.heat[brokers]
        left = here - need * self.per_need[source]
        relieved = (self.part[source] * (badness(here, target) - badness(left, target))).sum(axis=1)
        with_it = there + need[:, None, :] * self.per_need[brokers]
        burdened = (self.part[brokers] * (badness(with_it, target) - badness(there, target))).sum(axis=2)
        is_cooler = with_it.max(axis=2) < here.max()
        return np.where(is_cooler, relieved[:, None] - burdened, 0.0)

    def _make(self, move: Move) -> None:
        need = self.task.loads.need[move.bundle]
        self.heat[move.source] -= need * self.per_need[move.source]
        self.heat[move.destination] += need * self.per_need[move.destination]
        self.moved += float(self.task.share[move.bundle])
        self.gone.add(move.bundle)
        self.moves.append(move)
