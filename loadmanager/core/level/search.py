"""Which moves make load lie more evenly: from the hottest broker on, until all are at the target or nothing is left.

A step takes the hottest broker that may give and is above the target. A bounded number of its bundles, those nearest in
size to what is too much, is weighed against a bounded number of brokers, those that would be least hot with one of
them. The move with the greatest gain in score for what it costs is made, if it may be: the load that it takes along,
and the disturbance that every move is. Where no move helps, exchanges are weighed, with bundles of the least hot
brokers. A broker without either is left, and the next one is looked at. A bundle that a step has put somewhere may be
put elsewhere by a later one, and moves once all the same. It ends, too, when the budget is spent. Work is bounded by
counts, never by a clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadmanager.core.level.calm import MUCH
from loadmanager.core.level.load import Loads
from loadmanager.core.level.score import badness, part_of, score
from loadmanager.core.load import BoolArray, FloatArray, RowArray
from loadmanager.core.snapshot import NOBODY

Rows = npt.NDArray[np.intp]

MOST_STEPS = 10_000
_BUNDLES, _BROKERS = 48, 12
"""How many are weighed against each other in a step."""
_EXCHANGED, _EXCHANGED_OF_EACH = 48, 24
"""How many bundles of the hot broker, and of each of the others, are weighed for an exchange."""
_MOST_ASKED = 64
"""How many moves of a step are asked for whether they may be made."""
_LARGE, _ROOMS, _LEAVE = 3, 3, 16
"""To make room: how many large bundles are tried, at how many brokers each, and how many may leave for one of them."""
_MOST_ROOMS = 100
"""How often that is tried in all."""
_COST_POWER = 0.75
"""Below 1, so that large bundles move while there is room for them."""
_PAYS, _PAYS_IN_NEED = 0.5, 0.25
"""What part of the load that moves has to be a gain, and what part while some broker is much too hot. All is, when it
leaves a broker that stays above the target for one that stays below.
"""
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
    bundle which brokers (M,) may own it, `may_move` whether moves may be made after those that were `made`.
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
    may_move: Callable[[tuple[Move, ...]], bool]
    made: Callable[[Move], None]


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """The moves, those of one broker to another side by side, what share of all load they take along, and the score
    before and after them.

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


class _Search:
    """`heat` (M, R) is that of each resource, `per_need` (M, R) what a unit of need adds to it. `at` (N,) is where
    each bundle is by the steps so far, `owned` which movable ones are at each broker.
    """

    def __init__(self, task: Task) -> None:
        loads = task.loads
        self.task = task
        self.heat, self.per_need = loads.usage / loads.level, loads.per_need / loads.level
        self.part = part_of(loads.per_need)
        self.stuck = np.zeros(len(self.heat), dtype=bool)
        self.moved = 0.0
        self.spent = False
        self.rooms_tried = 0
        self.at = task.assigned.astype(np.intp)
        rows = np.flatnonzero(task.movable)
        rows = rows[np.argsort(self.at[rows], kind="stable")]
        self.owned = np.split(rows, np.searchsorted(self.at[rows], np.arange(1, len(self.heat))))
        self.cost_of_any = float(task.share[rows].mean()) if len(rows) else 0.0

    def run(self) -> Found:
        target = self.task.target
        before = score(self.heat, self.part, target)
        for _ in range(MOST_STEPS):
            hottest = np.where(self.task.givers & ~self.stuck, self.heat.max(axis=1, initial=0.0), 0.0)
            source = int(np.argmax(hottest))
            if hottest[source] <= target:
                break
            found = self._find_move(source) or self._find_exchange(source)
            for move in found:
                self._make(move)
            self.stuck[source] = not (found or self._make_room(source))
        self._trim()
        after = score(self.heat, self.part, target)
        heat = self.heat.max(axis=1, initial=0.0)
        return Found(self._moves(), self.moved, before, after, heat, self.stuck, self.spent)

    def _moves(self) -> list[Move]:
        origin = self.task.assigned
        rows = np.flatnonzero(self.at != origin)
        rows = rows[np.lexsort((rows, self.at[rows], origin[rows]))]
        return [Move(row, int(origin[row]), int(self.at[row])) for row in rows.tolist()]

    def _find_move(self, source: int, stays: int = NOBODY) -> tuple[Move, ...]:
        """The best move from a broker that may be made, none if there is none; `stays` is a bundle to leave there."""
        bundles = self._bundles_to_weigh(source)
        bundles = bundles[bundles != stays]
        if not len(bundles):
            return ()
        brokers, may_own = self._brokers_to_weigh(source, bundles)
        need = self.task.loads.need[bundles]
        gain = self._gains(source, brokers, -need[:, None, :], need[:, None, :])
        gain = np.where(may_own & self._pays(gain, self._cost(bundles)[:, None], self.heat), gain, 0.0)
        gain_by_cost = gain / ((self._cost(bundles) + self.cost_of_any + _ROUNDING) ** _COST_POWER)[:, None]
        for place in np.argsort(-gain_by_cost, axis=None, kind="stable")[:_MOST_ASKED].tolist():
            i, j = divmod(place, len(brokers))
            if gain[i, j] <= _LEAST_GAIN:
                break
            move = Move(int(bundles[i]), source, int(brokers[j]))
            if self.task.may_move((move,)):
                return (move,)
        return ()

    def _find_exchange(self, source: int) -> tuple[Move, ...]:
        """The best bundle to give for another one, none if there is none."""
        given = self._affordable(source)
        hottest = int(np.argmax(self.heat[source]))
        given = self._spread(given, hottest, _EXCHANGED)
        takers = np.flatnonzero(self.task.takers & (np.arange(len(self.heat)) != source))
        takers = takers[np.argsort(self.heat[takers, hottest], kind="stable")[:_BROKERS]]
        taken = [self._spread(self._affordable(broker), hottest, _EXCHANGED_OF_EACH) for broker in takers.tolist()]
        others = np.repeat(takers, [len(each) for each in taken])
        if not len(given) or not len(others):
            return ()
        returned = np.concatenate(taken)
        need = self.task.loads.need
        more = need[given][:, None, :] - need[returned]
        gain = self._gains(source, others, -more, more)
        cost = self._cost(given)[:, None] + self._cost(returned)
        is_within = self.moved + cost <= self.task.budget + _ROUNDING
        gain = np.where(is_within & self._pays(gain, cost, self.heat), gain, 0.0)
        gain_by_cost = gain / (cost + 2 * self.cost_of_any + _ROUNDING)
        for place in np.argsort(-gain_by_cost, axis=None, kind="stable")[:_MOST_ASKED].tolist():
            i, j = divmod(place, len(others))
            if gain[i, j] <= _LEAST_GAIN:
                break
            out = Move(int(given[i]), source, int(others[j]))
            back = Move(int(returned[j]), int(others[j]), source)
            owners = self.task.may_own(out.bundle), self.task.may_own(back.bundle)
            if owners[0][out.destination] and owners[1][source] and self.task.may_move((out, back)):
                return (out, back)
        return ()

    def _make_room(self, source: int) -> bool:
        """Whether a large bundle went to another broker, and small ones from there elsewhere, for a better score."""
        hottest = int(np.argmax(self.heat[source]))
        rows = self._affordable(source)
        rows = rows[np.argsort(-self.task.loads.need[rows, hottest], kind="stable")][:_LARGE]
        for bundle in rows.tolist():
            alone = (self.task.loads.need[bundle] * self.per_need).max(axis=1)
            is_better = self.task.takers & self.task.may_own(bundle) & (alone < self.heat[source].max())
            is_better[source] = False
            rooms = np.flatnonzero(is_better)
            with_it = alone + self.heat.max(axis=1)
            for broker in rooms[np.lexsort((with_it[rooms], alone[rooms]))][:_ROOMS].tolist():
                if self.rooms_tried < _MOST_ROOMS and self._try_room(Move(bundle, source, broker)):
                    return True
        return False

    def _try_room(self, move: Move) -> bool:
        """Make the move, and those that then help the broker; take all back if the score is not better for it."""
        self.rooms_tried += 1
        if not self.task.may_move((move,)):
            return False
        heat, moved, spent, made = self.heat.copy(), self.moved, self.spent, [move]
        self._make(move)
        while len(made) <= _LEAVE and self.heat[move.destination].max() > self.task.target:
            found = self._find_move(move.destination, stays=move.bundle)
            if not found:
                break
            self._make(found[0])
            made.append(found[0])
        gain = score(heat, self.part, self.task.target) - score(self.heat, self.part, self.task.target)
        if gain > _LEAST_GAIN and self._pays(np.array(gain), np.array(self.moved - moved), heat):
            return True
        for each in reversed(made):
            self._make(Move(each.bundle, each.destination, each.source))
        self.heat, self.moved, self.spent = heat, moved, spent
        return False

    def _trim(self) -> None:
        """Have what moved stay after all where that keeps its broker within the target, the heaviest first."""
        task = self.task
        rows = np.flatnonzero(self.at != task.assigned)
        for row in rows[np.argsort(-task.share[rows], kind="stable")].tolist():
            origin = int(task.assigned[row])
            if (self.heat[origin] + task.loads.need[row] * self.per_need[origin]).max() <= task.target:
                self._make(Move(row, int(self.at[row]), origin))

    def _affordable(self, broker: int) -> Rows:
        """Bundles at a broker that may move, by what is left of the budget. One may always move, however heavy."""
        rows = self.owned[broker]
        within = self._cost(rows) <= self.task.budget - self.moved + _ROUNDING
        if self.moved == 0 and self.task.budget > 0:
            return rows
        self.spent |= not within.all()
        return np.asarray(rows[within])

    def _bundles_to_weigh(self, source: int) -> Rows:
        """Bundles of the broker that have to do with its most used resource, those nearest to what is too much."""
        rows, hottest = self._affordable(source), int(np.argmax(self.heat[source]))
        size = self.task.loads.need[rows, hottest] * self.per_need[source, hottest]
        rows, size = rows[size > 0], size[size > 0]
        excess = self.heat[source, hottest] - self.task.target
        return np.asarray(rows[np.argsort(np.abs(size - excess), kind="stable")[:_BUNDLES]])

    def _spread(self, rows: Rows, resource: int, most: int) -> Rows:
        """At most so many of the bundles, of all sizes."""
        rows = rows[np.argsort(-self.task.loads.need[rows, resource], kind="stable")]
        return np.asarray(rows if len(rows) <= most else rows[np.linspace(0, len(rows) - 1, most).astype(np.intp)])

    def _brokers_to_weigh(self, source: int, bundles: Rows) -> tuple[Rows, BoolArray]:
        """The brokers that would be least hot with a middling one of the bundles; who may own which (k, j)."""
        task = self.task
        masks = [task.may_own(row) for row in bundles.tolist()]
        is_same = all(mask is masks[0] for mask in masks)
        may_own = np.broadcast_to(masks[0], (len(masks), len(masks[0]))) if is_same else np.stack(masks)
        takers = task.takers & (masks[0] if is_same else may_own.any(axis=0))
        takers[source] = False
        middling = task.loads.need[bundles].mean(axis=0)
        after = (self.heat + middling * self.per_need).max(axis=1)
        brokers = np.flatnonzero(takers)
        brokers = brokers[np.argsort(after[brokers], kind="stable")]
        if is_same or may_own[:, brokers].all():
            brokers = brokers[:_BROKERS]
        return brokers, may_own[:, brokers]

    def _gains(self, source: int, brokers: Rows, here: FloatArray, there: FloatArray) -> FloatArray:
        """(k, j): how much less the score is when the source gets so much more need, and each broker so much, (k, j, R)
        or of a shape that fits; not more than 0 where that one would be as hot as the source is now.
        """
        target = self.task.target
        now, with_it = self.heat[brokers], self.heat[brokers] + there * self.per_need[brokers]
        left = self.heat[source] + here * self.per_need[source]
        relieved = badness(self.heat[source], target) - badness(left, target)
        burdened = badness(with_it, target) - badness(now, target)
        gain = (self.part[source] * relieved).sum(axis=2) - (self.part[brokers] * burdened).sum(axis=2)
        is_cooler = np.maximum(with_it.max(axis=2), left.max(axis=2)) < self.heat[source].max()
        return np.where(is_cooler, gain, 0.0)

    def _pays(self, gain: FloatArray, cost: FloatArray, heat: FloatArray) -> BoolArray:
        """Whether so much less score is worth moving such shares of all load, when heat was such (M, R) before: the
        share of one of M brokers at the level is 1 / M, and its heat 1.
        """
        least = _PAYS_IN_NEED if heat.max() >= MUCH else _PAYS
        return np.asarray(gain >= least * len(heat) * cost)

    def _cost(self, rows: Rows) -> FloatArray:
        """(k,): what share of all load moves if the bundles do: nothing for those that move already."""
        return np.where(self.at[rows] == self.task.assigned[rows], self.task.share[rows], 0.0)

    def _make(self, move: Move) -> None:
        task, row = self.task, move.bundle
        need = task.loads.need[row]
        for broker, sign in ((move.source, -1.0), (move.destination, 1.0)):
            self.heat[broker] += sign * need * self.per_need[broker]
        self.moved += float(self._cost(np.array([row])).sum())
        self.at[row] = move.destination
        self.moved -= float(task.share[row]) if move.destination == task.assigned[row] else 0.0
        self.owned[move.source] = self.owned[move.source][self.owned[move.source] != row]
        rows = self.owned[move.destination]
        self.owned[move.destination] = np.insert(rows, int(np.searchsorted(rows, row)), row)
        self.stuck[move.destination] = False
        task.made(move)
