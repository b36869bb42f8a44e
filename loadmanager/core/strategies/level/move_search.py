"""Local search for moves that level the load: batch moves first (`batch_moves.py`), then single ones.

A step takes the hottest broker above the target that may give. It tries a bounded number of its bundles, nearest in
size to the excess, on a bounded number of brokers, those that are least hot with one of them. It makes the allowed move
with the best gain of score per cost; cost is the moved load plus a fixed disturbance. If no move helps, it tries
exchanges with bundles of the least hot brokers, then to move a large bundle to a broker that small ones leave to make
room. A broker that cannot be relieved is skipped. Skipped brokers are tried again on scales where excess counts for
more (`imbalance_score.py`). A bundle may be moved by several steps and counts as one move. At the end, needless moves
and changes below the noise are undone. Work is bounded by counts, never by a clock.
"""

from __future__ import annotations

import numpy as np

from loadmanager.core.model.load import BoolArray, FloatArray
from loadmanager.core.model.snapshot import NOBODY, order_by_broker
from loadmanager.core.strategies.level.batch_moves import move_many
from loadmanager.core.strategies.level.imbalance_score import LEFT_OVER, USUAL, penalty, score
from loadmanager.core.strategies.level.search_task import (
    ROUNDING,
    Draft,
    Rows,
    SearchMove,
    SearchResult,
    Task,
)

MOST_STEPS = 2_000
_BUNDLES, _BROKERS = 48, 12
"""Bundles and brokers tried per step."""
_EXCHANGED, _EXCHANGED_OF_EACH = 48, 24
"""Bundles of the hot broker, and of each other broker, tried for an exchange."""
_MOST_ASKED = 64
"""Maximum number of moves per step that are checked against the limits."""
_LARGE, _ROOMS, _LEAVE = 3, 3, 16
"""Making room: number of large bundles tried, of brokers per bundle, and of bundles that may leave a broker."""
_MOST_ROOMS = 100
"""Maximum attempts to make room."""
_COST_POWER = 0.75
"""Exponent of the cost; below 1, so that large bundles move first, while there is room for them."""
_LEAST_GAIN = 1e-9
_LEAST_CHANGE = 0.01
"""Minimum relative change of heat that does not count as noise, however steady the load."""


def find_moves(task: Task) -> SearchResult:
    return _Search(task).run()


class _Search:
    """State of the search: `heat` (M, R) and `at` (N,) are those of the draft; `owned` are the movable bundles of each
    broker, set by the first step.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.draft = Draft(task)
        self.heat, self.at = self.draft.heat, self.draft.at
        self.per_need, self.part = self.draft.per_need, self.draft.part
        self.scale = USUAL
        self.stuck = np.zeros(len(self.heat), dtype=bool)
        self.spent = False
        self.rooms_tried = self.steps = 0
        self.cost_of_any = float(task.share[task.movable].mean()) if task.movable.any() else 0.0
        self.owned: list[Rows] = []

    def run(self) -> SearchResult:
        heat_before = self.heat.copy()
        goal = move_many(self.draft)
        before = score(heat_before, self.part, self.draft.target)
        self._level()
        at, moved, heat = self.at.copy(), self.draft.moved, self.heat.copy()
        for scale in () if self.spent else LEFT_OVER:
            self.scale = scale
            self._level()
        self.scale = USUAL
        if self._score() > before:
            self.at[:], self.draft.moved, self.heat[:] = at, moved, heat
        self._trim(goal)
        self._drop_noise(heat_before)
        heat = self.draft.hottest()
        return SearchResult(self._moves(), self.draft.moved, before, self._score(), heat, self.spent)

    def _level(self) -> None:
        """Relieve the hottest broker repeatedly, until all are at the target or no step helps."""
        self.stuck[:] = False
        while self.steps < MOST_STEPS:
            self.steps += 1
            hottest = np.where(self.task.givers & ~self.stuck, self.draft.hottest(), 0.0)
            source = int(np.argmax(hottest))
            if hottest[source] <= self.draft.target:
                break
            self.owned = self.owned or _by_broker(np.flatnonzero(self.task.movable), self.at, len(self.heat))
            found = self._find_move(source) or self._find_exchange(source)
            for move in found:
                self._make(move)
            self.stuck[source] = not (found or self._make_room(source))

    def _score(self) -> float:
        return score(self.heat, self.part, self.draft.target, self.scale)

    def _moves(self) -> list[SearchMove]:
        origin = self.task.assigned
        rows = np.flatnonzero(self.at != origin)
        rows = rows[np.lexsort((rows, self.at[rows], origin[rows]))]
        return [SearchMove(row, int(origin[row]), int(self.at[row])) for row in rows.tolist()]

    def _find_move(self, source: int, stays: int = NOBODY) -> tuple[SearchMove, ...]:
        """Find the best allowed move from a broker; `stays` is a bundle to leave there."""
        bundles = self._bundles_to_weigh(source)
        bundles = bundles[bundles != stays]
        if not len(bundles):
            return ()
        brokers, may_own = self._brokers_to_weigh(source, bundles)
        need = self.task.loads.need[bundles]
        gain = self._gains(source, brokers, -need[:, None, :], need[:, None, :])
        gain = np.where(may_own & (gain >= self.scale.least_gain(self.heat) * self._cost(bundles)[:, None]), gain, 0.0)
        gain_by_cost = gain / ((self._cost(bundles) + self.cost_of_any + ROUNDING) ** _COST_POWER)[:, None]
        for place in np.argsort(-gain_by_cost, axis=None, kind="stable")[:_MOST_ASKED].tolist():
            i, j = divmod(place, len(brokers))
            if gain[i, j] <= _LEAST_GAIN:
                break
            move = SearchMove(int(bundles[i]), source, int(brokers[j]))
            if self.task.may_move((move,)):
                return (move,)
        return ()

    def _find_exchange(self, source: int) -> tuple[SearchMove, ...]:
        """Find the best exchange of two bundles."""
        hottest, worth = int(np.argmax(self.heat[source])), self._worth(source)
        given = self._spread(self._affordable(source, worth), hottest, _EXCHANGED)
        if not len(given):
            return ()
        receivers = np.flatnonzero(self.task.receivers & (np.arange(len(self.heat)) != source))
        receivers = receivers[np.argsort(self.heat[receivers, hottest], kind="stable")[:_BROKERS]]
        affordable = [self._affordable(broker, worth) for broker in receivers.tolist()]
        taken = [self._spread(each, hottest, _EXCHANGED_OF_EACH) for each in affordable]
        others = np.repeat(receivers, [len(each) for each in taken])
        if not len(others):
            return ()
        returned = np.concatenate(taken)
        need = self.task.loads.need
        more = need[given][:, None, :] - need[returned]
        gain = self._gains(source, others, -more, more)
        cost = self._cost(given)[:, None] + self._cost(returned)
        is_within = self.draft.moved + cost <= self.task.budget + ROUNDING
        gain = np.where(is_within & (gain >= self.scale.least_gain(self.heat) * cost), gain, 0.0)
        gain_by_cost = gain / (cost + 2 * self.cost_of_any + ROUNDING)
        for place in np.argsort(-gain_by_cost, axis=None, kind="stable")[:_MOST_ASKED].tolist():
            i, j = divmod(place, len(others))
            if gain[i, j] <= _LEAST_GAIN:
                break
            out = SearchMove(int(given[i]), source, int(others[j]))
            back = SearchMove(int(returned[j]), int(others[j]), source)
            owners = self.task.may_own(out.bundle), self.task.may_own(back.bundle)
            if owners[0][out.destination] and owners[1][source] and self.task.may_move((out, back)):
                return (out, back)
        return ()

    def _make_room(self, source: int) -> bool:
        """Move a large bundle and make room for it at its destination; return True if the score improved."""
        hottest = int(np.argmax(self.heat[source]))
        rows = self._affordable(source, np.inf)
        rows = rows[np.argsort(-self.task.loads.need[rows, hottest], kind="stable")][:_LARGE]
        for bundle in rows.tolist():
            alone = (self.task.loads.need[bundle] * self.per_need).max(axis=1)
            is_better = self.task.receivers & self.task.may_own(bundle) & (alone < self.heat[source].max())
            is_better[source] = False
            rooms = np.flatnonzero(is_better)
            with_it = alone + self.heat.max(axis=1)
            for broker in rooms[np.lexsort((with_it[rooms], alone[rooms]))][:_ROOMS].tolist():
                if self.rooms_tried < _MOST_ROOMS and self._try_room(SearchMove(bundle, source, broker)):
                    return True
        return False

    def _try_room(self, move: SearchMove) -> bool:
        """Make the move and those that then relieve the destination; undo all if the score does not improve."""
        if self._cost(np.array([move.bundle])) > self._worth(move.source) + self._worth(move.destination):
            return False
        self.rooms_tried += 1
        if not self.task.may_move((move,)):
            return False
        heat, moved, spent, made = self.heat.copy(), self.draft.moved, self.spent, [move]
        cost = self._cost_of_all()
        self._make(move)
        while len(made) <= _LEAVE and self.heat[move.destination].max() > self.draft.target:
            found = self._find_move(move.destination, stays=move.bundle)
            if not found:
                break
            self._make(found[0])
            made.append(found[0])
        gain = score(heat, self.part, self.draft.target, self.scale) - self._score()
        is_cooler = self.heat.max() <= heat.max()
        if is_cooler and gain > _LEAST_GAIN and gain >= self.scale.least_gain(heat) * (self._cost_of_all() - cost):
            return True
        for each in reversed(made):
            self._make(SearchMove(each.bundle, each.destination, each.source))
        self.heat[:], self.draft.moved, self.spent = heat, moved, spent
        return False

    def _trim(self, goal: float) -> None:
        """Undo moves that keep their broker within the goal, most expensive first."""
        task = self.task
        rows = np.flatnonzero(self.at != task.assigned)
        origins = task.assigned[rows]
        with_it = self.heat[origins] + task.loads.need[rows] * self.per_need[origins]
        rows = rows[(with_it <= goal).all(axis=1)]
        for row in rows[np.argsort(-task.share[rows], kind="stable")].tolist():
            origin = int(task.assigned[row])
            if (self.heat[origin] + task.loads.need[row] * self.per_need[origin]).max() <= goal:
                self._put(SearchMove(row, int(self.at[row]), origin))

    def _drop_noise(self, before: FloatArray) -> None:
        """Undo all moves of brokers that change their heat by at most their noise, unless they reach the target.

        When filling, receivers count instead of givers. `before` (M, R) is the initial heat.
        """
        task = self.task
        rows = np.flatnonzero(self.at != task.assigned)
        helped = self.at[rows] if task.fills else task.assigned[rows]
        change = np.zeros_like(before)
        np.add.at(change, helped, task.loads.need[rows] * self.per_need[helped])
        least = np.maximum(task.noise, _LEAST_CHANGE)[:, None] * np.maximum(before, 1.0)
        hottest, target = before.max(axis=1, initial=0.0), self.draft.target
        is_relieved = (hottest > target) & (self.draft.hottest() <= target)
        is_noise = ~(is_relieved | (change > least).any(axis=1))[helped]
        for row in rows[is_noise].tolist():
            self._put(SearchMove(row, int(self.at[row]), int(task.assigned[row])))
        if len(rows) and is_noise.all():
            self.heat[:], self.spent = before, False

    def _worth(self, broker: int) -> float:
        """Return the maximum cost of bringing the broker to the target."""
        bad = self.part[broker] * penalty(self.heat[broker], self.draft.target, self.scale)
        return float(bad.sum()) / self.scale.least_gain(self.heat)

    def _affordable(self, broker: int, worth: float) -> Rows:
        """Return movable bundles of a broker within this cost and the rest of the budget. One may always move."""
        rows = self.owned[broker]
        rows = rows[self._cost(rows) <= worth]
        if self.draft.moved == 0 and self.task.budget > 0:
            return rows
        within = self._cost(rows) <= self.task.budget - self.draft.moved + ROUNDING
        self.spent |= not within.all()
        return np.asarray(rows[within])

    def _bundles_to_weigh(self, source: int) -> Rows:
        """Return bundles of the broker that use its hottest resource, nearest in size to the excess."""
        rows, hottest = self._affordable(source, self._worth(source)), int(np.argmax(self.heat[source]))
        size = self.task.loads.need[rows, hottest] * self.per_need[source, hottest]
        rows, size = rows[size > 0], size[size > 0]
        excess = self.heat[source, hottest] - self.draft.target
        return np.asarray(rows[np.argsort(np.abs(size - excess), kind="stable")[:_BUNDLES]])

    def _spread(self, rows: Rows, resource: int, most: int) -> Rows:
        """Return at most `most` of the bundles, of all sizes."""
        rows = rows[np.argsort(-self.task.loads.need[rows, resource], kind="stable")]
        return np.asarray(rows if len(rows) <= most else rows[np.linspace(0, len(rows) - 1, most).astype(np.intp)])

    def _brokers_to_weigh(self, source: int, bundles: Rows) -> tuple[Rows, BoolArray]:
        """Return brokers that are least hot with a median bundle, and their eligibility (k, j)."""
        task = self.task
        may_own = task.owners[task.classes[bundles]]
        receivers = task.receivers & may_own.any(axis=0)
        receivers[source] = False
        middling = task.loads.need[bundles].mean(axis=0)
        after = (self.heat + middling * self.per_need).max(axis=1)
        brokers = np.flatnonzero(receivers)
        brokers = brokers[np.argsort(after[brokers], kind="stable")]
        if may_own[:, brokers].all():
            brokers = brokers[:_BROKERS]
        return brokers, may_own[:, brokers]

    def _gains(self, source: int, brokers: Rows, here: FloatArray, there: FloatArray) -> FloatArray:
        """Return the gain of score (k, j) if needs change by `here` at the source and by `there` at each broker, (k, j,
        R) or a shape that broadcasts; at most 0 where the broker would be as hot as the source is now.
        """
        target, scale = self.draft.target, self.scale
        now, with_it = self.heat[brokers], self.heat[brokers] + there * self.per_need[brokers]
        left = self.heat[source] + here * self.per_need[source]
        relieved = penalty(self.heat[source], target, scale) - penalty(left, target, scale)
        burdened = penalty(with_it, target, scale) - penalty(now, target, scale)
        gain = (self.part[source] * relieved).sum(axis=2) - (self.part[brokers] * burdened).sum(axis=2)
        is_cooler = np.maximum(with_it.max(axis=2), left.max(axis=2)) < self.heat[source].max()
        return np.where(is_cooler, gain, 0.0)

    def _cost(self, rows: Rows) -> FloatArray:
        """Return the share of all load (k,) that the bundles' moves add; 0 for moved ones."""
        return np.where(self.at[rows] == self.task.assigned[rows], self.task.share[rows], 0.0)

    def _cost_of_all(self) -> float:
        return float(self.task.share[self.at != self.task.assigned].sum())

    def _make(self, move: SearchMove) -> None:
        self._put(move)
        row = move.bundle
        self.owned[move.source] = self.owned[move.source][self.owned[move.source] != row]
        rows = self.owned[move.destination]
        self.owned[move.destination] = np.insert(rows, int(np.searchsorted(rows, row)), row)
        self.stuck[move.destination] = False
        self.task.made(move)

    def _put(self, move: SearchMove) -> None:
        task, row = self.task, move.bundle
        need = task.loads.need[row]
        for broker, sign in ((move.source, -1.0), (move.destination, 1.0)):
            self.heat[broker] += sign * need * self.per_need[broker]
        self.draft.moved += float(self._cost(np.array([row])).sum())
        self.at[row] = move.destination
        self.draft.moved -= float(task.share[row]) if move.destination == task.assigned[row] else 0.0


def _by_broker(rows: Rows, at: Rows, brokers: int) -> list[Rows]:
    """Group bundles by broker, in order."""
    rows = rows[at[rows] >= 0]
    rows = rows[order_by_broker(at[rows], brokers)]
    return np.split(rows, np.searchsorted(at[rows], np.arange(1, brokers)))
