"""Level: bring hot brokers down to the level, the balanced usage, with as few moves as possible.

Pulsar does not have this strategy. A bundle's need of each resource is its current load at prices fitted over all
brokers. Usage is need over capacity, by assignment, so moving bundles count at their destination
(`core/strategies/level/level_load.py`). A broker is hot if its most used resource is above the level by more than the
evenness and its noise (`core/strategies/level/load_noise.py`). `core/strategies/level/hysteresis.py` decides when it is
relieved, and when a cold one is filled. Then all brokers above the target, which is nearer to the level, give.

A broker that is not due gives only if its heat is above the level by more than half of its noise. The level rises to
the need of the largest bundle, to 75 % usage at most. Searches without result back off, for urgent brokers too.

The search lowers a convex score over all resources while moving as little load as possible
(`core/strategies/level/move_search.py`). Destinations are fixed with the decision; the planner checks them against the
filters. Placement has to be Level too (`core/strategies/placement/level_placement.py`).

Bundles on a broker that their isolation policy does not allow move first (`core/strategies/level/forced_moves.py`). The
state is that of `core/strategies/level/hysteresis.py`. A broker is skipped while a bundle is leaving it or has left it
since its report.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.plan import Figure, Verdict
from loadmanager.core.domain.reasons import Reason, entry
from loadmanager.core.domain.settings import KEYS, PlannerSettings
from loadmanager.core.model.fleet_load import carried_load, total_load
from loadmanager.core.model.load import BoolArray, FloatArray
from loadmanager.core.model.snapshot import Snapshot, usage_per_broker
from loadmanager.core.strategies.level.forced_moves import find_forced
from loadmanager.core.strategies.level.hysteresis import (
    CALM_S,
    COLD,
    EVENNESS,
    REST_EXCESS_S,
    REST_S,
    TARGET_HEAT,
    BrokerMemory,
    BrokerObservation,
    LevelMemory,
    find_budget,
    is_urgent,
    lacks_headroom,
    margin_of,
    relief_threshold_s,
)
from loadmanager.core.strategies.level.level_load import LevelLoads, compute_heat
from loadmanager.core.strategies.level.load_noise import find_deviation, noise_of_bundles
from loadmanager.core.strategies.level.move_search import find_moves
from loadmanager.core.strategies.level.search_task import SearchMove, SearchResult, Task
from loadmanager.core.strategies.shedding.level_eligibility import MoveEligibility
from loadmanager.core.strategies.shedding.shedding_strategy import (
    Pick,
    Shed,
    State,
    eligible,
    find_refusal,
    least_points,
)

NAME = "Level"
_LEAST_EXPLAINED = 0.75
"""Minimum part of a broker's usage that its bundles have to explain; idle usage is the rest."""

_NOISE_LEFT = 0.5
"""Heat above the level, as a part of the noise, from which a broker that is not due gives together with others."""
_MOST_RAISED = 0.75
"""Maximum usage to which a single large bundle raises the level: the other brokers keep headroom."""

_IS_HOT = "usage {usage_percent} % ({resource}) is {over_percent} % above level {level_percent} %"
_NO_BETTER_PLACE = (
    "No move because none of its {bundles} bundles can move to make the load more even; {resting} of them moved"
    " recently and stay"
)


class LevelReason(Reason):
    ABOVE_LEVEL = entry(
        f"Shed {{bundles_taken}} of {{bundles}} bundles because {_IS_HOT}, then {{over_after_percent}} % above it"
    )
    FILLS_COLD_BROKER = entry(
        "Shed {bundles_taken} of {bundles} bundles because {cold} brokers are far below level {level_percent} %"
        " and this one, {usage_percent} % ({resource}), is above it"
    )
    MISPLACED = entry("Shed {bundles_taken} of {bundles} bundles because isolation policies do not allow them here")
    NEAR_LEVEL = entry(
        f"No move because {_IS_HOT}, not more than {100 * EVENNESS:.0f} % or its noise {{noise_percent}} %"
    )
    BELOW_LEVEL = entry("No move because usage {usage_percent} % ({resource}) is not above level {level_percent} %")
    INDIVISIBLE = entry(
        (
            "No move because one bundle needs {largest_percent} % of any broker, and all of this one is {usage_percent}"
            " % ({resource})"
        ),
        remedy="split the bundle, or partition its topics",
    )
    COLD_TOO_SHORTLY = entry(
        (
            "Given nothing because usage {usage_percent} % ({resource}) has been far below level {level_percent} % for"
            f" {{seconds}} s, less than {CALM_S:.0f} s"
        ),
        remedy="wait",
    )
    RESTS_AFTER_RESTART = entry(
        (
            "Given nothing for {seconds_left} s more because it re-registered {comebacks} times within an hour:"
            " usage {usage_percent} % ({resource}), level {level_percent} %"
        ),
        remedy="wait",
    )
    HOT_TOO_SHORTLY = entry(
        (
            f"No move because {_IS_HOT}, for {{seconds}} s: with its noise {{noise_percent}} % it is relieved in"
            " {seconds_left} s if that goes on"
        ),
        remedy="wait",
    )
    NO_LEVELLING_MOVE = entry(
        _NO_BETTER_PLACE + f", the first for {{seconds_left}} s: {_IS_HOT}",
        _NO_BETTER_PLACE + f": {_IS_HOT}",
        remedy="split its bundles, or wait for the end of cool-downs and grace periods",
    )
    BUDGET_SPENT = entry(
        (f"No move because only {{budget_percent}} % of all load may move in the next {{seconds_left}} s: {_IS_HOT}"),
        f"No move because a round may move {{budget_percent}} % of all load: {_IS_HOT}",
        remedy=("wait for the next rounds, or raise {key}", "wait for the next rounds"),
    )


@dataclass(frozen=True, slots=True)
class Level:
    settings: PlannerSettings

    def find_bundles_for_unloading(self, snapshot: Snapshot, state: State) -> Shed:
        if not len(snapshot.brokers):
            return Shed((), (), state)
        with np.errstate(all="ignore"):
            return _Round(self.settings, snapshot, state).run()

    def find_margin(self, snapshot: Snapshot, state: State, broker: int) -> dict[str, Figure]:
        """Return the usage points by which the broker's most used resource is below the trigger."""
        memory = LevelMemory.of(state)
        resting = memory.resting(snapshot.brokers.registrations, snapshot.taken_at_s)
        mean = _reachable(LevelLoads.of(snapshot, self.settings), resting)
        loads, indivisible = _with_indivisible(mean, snapshot)
        hottest = int(np.argmax(loads.usage[broker]))
        margin = margin_of(_noise(snapshot, loads, memory))
        trigger = float((np.maximum(indivisible / loads.level, 1.0) + margin)[broker])

        def is_reached(points: float) -> bool:
            if not loads.per_need[broker].any():
                return False
            usage = loads.usage.copy()
            usage[broker, hottest] += points / 100
            heat = compute_heat(usage, replace(loads, usage=usage).level_without(resting))
            return bool(heat[broker] > trigger)

        return least_points(is_reached)


def _noise(snapshot: Snapshot, loads: LevelLoads, memory: LevelMemory) -> FloatArray:
    """Return the noise (M,) of each broker."""
    return np.maximum(memory.noise(snapshot.brokers.ids), noise_of_bundles(snapshot, loads))


def _explained(used: FloatArray, loads: LevelLoads) -> FloatArray:
    """Return the reported usage (M,), 0 where bundles explain less than `_LEAST_EXPLAINED`. So there is no reaction to
    a sudden rise until its bundles are known.
    """
    used = np.nan_to_num(used, nan=0.0, neginf=0.0)
    return np.where(loads.usage.max(axis=1, initial=0.0) >= _LEAST_EXPLAINED * used, used, 0.0)


def _reachable(loads: LevelLoads, resting: BoolArray) -> LevelLoads:
    """Return the loads relative to the level that is reachable while resting brokers (M,) receive nothing."""
    return replace(loads, level=loads.level_without(resting)) if resting.any() and not resting.all() else loads


def _with_indivisible(loads: LevelLoads, snapshot: Snapshot) -> tuple[LevelLoads, FloatArray]:
    """Return the loads relative to the level that the largest bundle allows, and the usage (M,) that each broker's
    largest bundle causes on any broker, 0 if that is not above the level.

    Relieving brokers with less usage than that of the largest bundle would not lower the highest usage.
    """
    indivisible = loads.usage_of_indivisible(snapshot.bundles.assigned)
    level = max(loads.level, min(float(indivisible.max(initial=0.0)), _MOST_RAISED))
    return replace(loads, level=level), indivisible


class _Round:
    """One pass over the cluster, and the moves that follow from it."""

    def __init__(self, settings: PlannerSettings, snapshot: Snapshot, state: State) -> None:
        self._settings = settings
        self._snapshot = snapshot
        self._now_s = snapshot.taken_at_s
        memory, registrations = LevelMemory.of(state), snapshot.brokers.registrations
        self._mean = _reachable(LevelLoads.of(snapshot, settings), memory.resting(registrations, self._now_s))
        self._loads, self._indivisible = _with_indivisible(self._mean, snapshot)
        self._heat = self._loads.heat()
        self._noise = _noise(snapshot, self._loads, memory)
        self._trigger = np.maximum(self._indivisible / self._loads.level, 1.0) + margin_of(self._noise)
        self._excess = self._heat - self._trigger
        used = _explained(usage_per_broker(snapshot, settings.resource_weights), self._loads)
        self._urgent = is_urgent(self._excess, self._heat, used)
        self._lacks_headroom = lacks_headroom(self._excess, used)
        self._memory = self._memory_after_pass(memory)
        self._seen = self._memory.seen(registrations)
        self._relief_threshold_s = relief_threshold_s(self._noise)
        has_waited = np.array([seen.excess_s for seen in self._seen]) >= self._relief_threshold_s
        self._due = self._urgent | (self._excess > 0) & has_waited
        self._searched = self._due & np.array([seen.skips == 0 for seen in self._seen])
        self._receivers = np.array([seen.rests_until_s <= self._now_s for seen in self._seen], dtype=bool)
        self._cold = self._receivers & np.array([self._cold_for_s(seen) >= CALM_S for seen in self._seen])
        carried, total = carried_load(snapshot), total_load(snapshot)
        self._share = carried / total if total > 0 else np.zeros(len(carried))
        self._placed_s = self._placement_times()
        self._rests = (self._placed_s > -math.inf) & ~self._on_crowded_broker()
        self._eligibility = MoveEligibility(snapshot, settings)
        in_need = bool((self._urgent & snapshot.brokers.settled).any())
        self._budget = find_budget(settings, self._moved_shares(), self._now_s, in_need=in_need)

    def run(self) -> Shed:
        task = self._task()
        forced, left = find_forced(replace(task, movable=task.movable & self._eligibility.misplaced()))
        found, reason = self._search(replace(left, movable=task.movable), forced)
        moves = [(move, LevelReason.MISPLACED) for move in forced] + [(move, reason) for move in found.moves]
        given: dict[int, list[LevelReason]] = {}
        for move, why in moves:
            given.setdefault(move.source, []).append(why)
        figures = enumerate(self._broker_figures())
        verdicts = tuple(self._verdict(row, why, given.get(row, []), found) for row, why in figures)
        memory = self._memory_after_moves([move for move, _ in moves], task, found)
        heat = float(self._heat.max(initial=0.0)), float(found.heat.max(initial=0.0))
        picks = tuple(Pick(move.source, (move.bundle,), why, move.destination) for move, why in moves)
        return Shed(picks, verdicts, memory.as_state(), {"heat": heat[0], "heatAfter": heat[1]})

    def _memory_after_pass(self, memory: LevelMemory) -> LevelMemory:
        columns = self._excess, self._mean.heat() < COLD, find_deviation(self._snapshot)
        rows = zip(self._snapshot.brokers.registrations, *(each.tolist() for each in columns), strict=True)
        return memory.after_pass((BrokerObservation(*row) for row in rows), self._now_s)

    def _cold_for_s(self, seen: BrokerMemory) -> float:
        return -1.0 if seen.cold_since_s is None else self._now_s - seen.cold_since_s

    def _placement_times(self) -> FloatArray:
        """Return the time (N,) at which Level put each bundle on its broker; minus infinity for all others."""
        bundles, brokers = self._snapshot.bundles, self._snapshot.brokers
        put_s = np.full(len(bundles), -math.inf)
        for broker, put in self._memory.put.items():
            at = brokers.find_row(BrokerId(broker))
            if at is None:
                continue
            for name, at_s in put.items():
                row = bundles.find_row(name)
                if row is not None and bundles.assigned[row] == at:
                    put_s[row] = at_s
        return put_s

    def _on_crowded_broker(self) -> BoolArray:
        """Return a mask (N,) of bundles on brokers that lack headroom or have a large excess."""
        is_crowded = self._lacks_headroom | np.array([seen.excess_s >= REST_EXCESS_S for seen in self._seen])
        assigned = self._snapshot.bundles.assigned
        return np.asarray((assigned >= 0) & is_crowded[assigned])

    def _moved_shares(self) -> dict[float, float]:
        """Return the shares of all load that Level has moved, by time: those of bundles that are where it put them."""
        rows, moved = np.flatnonzero(self._placed_s > -math.inf), dict[float, float]()
        for at_s, share in zip(self._placed_s[rows].tolist(), self._share[rows].tolist(), strict=True):
            moved[at_s] = moved.get(at_s, 0.0) + share
        return moved

    def _search(self, task: Task, forced: list[SearchMove]) -> tuple[SearchResult, LevelReason]:
        """Search for moves after the forced ones; return them with their reason.

        Moves go from due hot brokers, else to cold ones. If filling finds no move, the latest cold broker may get
        bundles that rest since before it joined.
        """
        task.movable[[move.bundle for move in forced]] = False
        rested = replace(task, movable=task.movable & ~self._rests)
        if (self._searched & task.givers).any():
            is_above_noise = self._due | (self._heat > 1 + _NOISE_LEFT * self._noise)
            found, reason = find_moves(replace(rested, givers=task.givers & is_above_noise)), LevelReason.ABOVE_LEVEL
        elif self._cold.any():
            found, reason = self._fill(rested, self._cold), LevelReason.FILLS_COLD_BROKER
        else:
            return find_moves(replace(rested, givers=np.zeros_like(task.givers))), LevelReason.ABOVE_LEVEL
        came_s = np.where(self._cold, [seen.came_s for seen in self._seen], -math.inf)
        newest_s = came_s.max()
        unrested = task.movable & (~self._rests | (self._placed_s < newest_s))
        if found.moves or not (unrested & self._rests).any():
            return found, reason
        return self._fill(replace(task, movable=unrested), came_s == newest_s), LevelReason.FILLS_COLD_BROKER

    def _fill(self, task: Task, cold: BoolArray) -> SearchResult:
        """Fill cold brokers to the level of divisible load."""
        found = find_moves(replace(task, loads=self._mean, receivers=cold, target=1.0, fills=True))
        return replace(found, heat=found.heat * self._mean.level / self._loads.level)

    def _task(self) -> Task:
        """Build the search that brings all brokers to the target. Brokers awaiting a report give nothing, not even in
        an exchange.
        """
        snapshot, settled = self._snapshot, self._snapshot.brokers.settled
        eligibility = self._eligibility
        return Task(
            loads=self._loads,
            assigned=snapshot.bundles.assigned,
            movable=eligible(snapshot) & eligibility.may_be_shed() & settled[snapshot.bundles.assigned],
            givers=settled,
            receivers=self._receivers,
            share=self._share,
            noise=self._noise,
            target=TARGET_HEAT,
            fills=False,
            budget=self._budget.share,
            classes=eligibility.classes,
            owners=eligibility.owners,
            limited=eligibility.limited,
            topics=eligibility.topics,
            topics_left=eligibility.topics_left,
            may_move=eligibility.may_move,
            made=eligibility.made,
        )

    def _memory_after_moves(self, moves: list[SearchMove], task: Task, found: SearchResult) -> LevelMemory:
        ids, names = self._snapshot.brokers.ids, self._snapshot.bundles.names
        put: dict[str, list[str]] = {}
        for move in moves:
            put.setdefault(ids[move.destination], []).append(names[move.bundle])
        sources = {move.source for move in moves}
        failed = () if found.spent else np.flatnonzero(self._searched & task.givers).tolist()
        is_calm = found.heat <= self._trigger
        relieved = {ids[move.source] for move in moves if is_calm[move.source]}
        memory = self._memory.after_moves(put, relieved, self._now_s)
        return memory.after_failures(ids[broker] for broker in failed if broker not in sources)

    def _broker_figures(self) -> Iterator[dict[str, Figure]]:
        """Yield the figures of each broker's verdict."""
        usage, over = self._loads.usage.max(axis=1, initial=0.0), self._heat - 1
        columns = 100 * usage, 100 * over, 100 * self._noise, self._snapshot.brokers.bundle_count
        rows = zip(self._loads.hottest_resources(), *(each.tolist() for each in columns), strict=True)
        level = 100 * self._loads.level
        for resource, used, above, noise, bundles in rows:
            yield {
                "usage_percent": used,
                "resource": resource,
                "level_percent": level,
                "over_percent": above,
                "noise_percent": noise,
                "bundles": bundles,
            }

    def _verdict(self, broker: int, why: dict[str, Figure], given: list[LevelReason], found: SearchResult) -> Verdict:
        """Build the verdict; `given` are the reasons of the bundles that leave the broker."""
        name = self._snapshot.brokers.ids[broker]
        if given:
            why |= {"bundles_taken": len(given), "over_after_percent": 100 * (float(found.heat[broker]) - 1)}
            why["cold"] = int(np.count_nonzero(self._cold))
            return Verdict(name, given[-1], acted=True, why=why)
        reason, more = self._why_nothing(broker, found)
        return Verdict(name, reason, acted=False, why={**why, **more})

    def _why_nothing(self, broker: int, found: SearchResult) -> tuple[Reason, dict[str, Figure]]:
        if self._due[broker]:
            return self._why_stuck(broker, found)
        if self._excess[broker] > 0:
            return self._why_later(broker)
        return self._why_calm(broker)

    def _why_stuck(self, broker: int, found: SearchResult) -> tuple[Reason, dict[str, Figure]]:
        """Return the reason why a broker that is due gives nothing."""
        refusal = find_refusal(self._snapshot, broker)
        if refusal is not None:
            return refusal, {}
        if found.spent:
            budget, why = self._budget, dict[str, Figure]()
            if budget.seconds_left is not None:
                why["seconds_left"] = round(budget.seconds_left)
            if budget.setting is not None:
                why["key"] = KEYS[budget.setting]
            return LevelReason.BUDGET_SPENT, {**why, "budget_percent": 100 * budget.share}
        own = self._rests & (self._snapshot.bundles.assigned == broker)
        if not own.any():
            return LevelReason.NO_LEVELLING_MOVE, {"resting": 0}
        left_s = min(float(self._placed_s[own].min()) + REST_S - self._now_s, self._left_s(broker, REST_EXCESS_S))
        return LevelReason.NO_LEVELLING_MOVE, {"resting": int(own.sum()), "seconds_left": round(left_s)}

    def _left_s(self, broker: int, threshold_s: float) -> float:
        """Return the time until the excess of a hot broker reaches a threshold if it stays as hot."""
        return float((threshold_s - self._seen[broker].excess_s) / self._excess[broker])

    def _why_later(self, broker: int) -> tuple[Reason, dict[str, Figure]]:
        """Return the reason why a hot broker is not relieved yet."""
        seen = self._seen[broker]
        left_s = self._left_s(broker, float(self._relief_threshold_s[broker]))
        hot_s = self._now_s - (self._now_s if seen.hot_since_s is None else seen.hot_since_s)
        return LevelReason.HOT_TOO_SHORTLY, {"seconds": round(hot_s), "seconds_left": round(left_s)}

    def _why_calm(self, broker: int) -> tuple[Reason, dict[str, Figure]]:
        """Return the reason why a broker that is not hot gives nothing or, if it is cold, gets nothing."""
        seen = self._seen[broker]
        if self._indivisible[broker] > 0:
            largest: dict[str, Figure] = {"largest_percent": 100 * float(self._indivisible[broker])}
            return find_refusal(self._snapshot, broker) or LevelReason.INDIVISIBLE, largest
        if self._heat[broker] > 1:
            return LevelReason.NEAR_LEVEL, {}
        if not self._receivers[broker]:
            left_s = round(seen.rests_until_s - self._now_s)
            return LevelReason.RESTS_AFTER_RESTART, {"seconds_left": left_s, "comebacks": seen.comebacks}
        if seen.cold_since_s is not None and not self._cold[broker]:
            cold_s = round(self._now_s - seen.cold_since_s)
            return LevelReason.COLD_TOO_SHORTLY, {"seconds": cold_s}
        return LevelReason.BELOW_LEVEL, {}
