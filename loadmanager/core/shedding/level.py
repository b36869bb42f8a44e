"""Level: bring brokers that are hot down to the level at which all load could stand, with as few moves as that takes.

Not one of Pulsar's. What a bundle needs of each resource is its short-term load at prices that are fitted over all
brokers; usage is what brokers' bundles need by what they have, of what is assigned, so that what is on its way counts
at its destination (`level/load.py`). A broker is hot whose most used resource is more than the evenness above the
level; it is relieved when it has been hot for its calm, at once when it is much too hot (`level/calm.py`), down to a
target that is nearer to the level. Moves are searched for that lower a convex score of all resources together, at the
least load moved (`level/search.py`). Destinations are fixed with the decision, and put through the filters by the
planner. Placement has to be Level too (`placement/level.py`).

The state is that of `level/calm.py`. A broker is left alone while a bundle is leaving it or has left it since its
report.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmanager.core.effect import carried_load, total_load
from loadmanager.core.filters import (
    FilterRules,
    PlacementQuestion,
    allowed_brokers,
    find_anti_affinity_refusal,
    rules_of,
)
from loadmanager.core.level.calm import Bands, Memory
from loadmanager.core.level.load import Loads, find_deviation, heat_of, level_of
from loadmanager.core.level.search import Found, Move, Task, find_moves
from loadmanager.core.load import BoolArray
from loadmanager.core.names import namespace_of
from loadmanager.core.placement.base import Projection
from loadmanager.core.plan import Figure, Verdict
from loadmanager.core.reasons import Reason, entry
from loadmanager.core.settings import PlannerSettings
from loadmanager.core.shedding.base import Pick, Shed, State, eligible, find_refusal, least_points
from loadmanager.core.snapshot import Snapshot, usage_per_broker

NAME = "Level"


class LevelReason(Reason):
    ABOVE_LEVEL = entry(
        "above_level",
        (
            "Shed {bundles_taken} of {bundles} bundles because usage {usage_percent} % ({resource}) is {over_percent} %"
            " above level {level_percent} % ({=level_evenness_percentage}): {over_after_percent} % after it"
        ),
    )
    NEAR_LEVEL = entry(
        "near_level",
        (
            "No move because usage {usage_percent} % ({resource}) is {over_percent} % above level {level_percent} %,"
            " not more than {=level_evenness_percentage} %"
        ),
    )
    BELOW_LEVEL = entry(
        "below_level", "No move because usage {usage_percent} % ({resource}) is not above level {level_percent} %"
    )
    HOT_TOO_SHORTLY = entry(
        "hot_too_shortly",
        (
            "No move because usage {usage_percent} % ({resource}) has been {over_percent} % above level"
            " {level_percent} % for {seconds} s, less than {wait_seconds} s ({=level_calm_minutes})"
        ),
        remedy="wait, or lower {#level_calm_minutes}",
    )
    NO_LEVELLING_MOVE = entry(
        "no_levelling_move",
        (
            "No move because none of its {bundles} bundles may go where it makes load lie more evenly: usage"
            " {usage_percent} % ({resource}) is {over_percent} % above level {level_percent} %"
        ),
        remedy="split its bundles, or wait for the end of grace periods",
    )
    BUDGET_SPENT = entry(
        "budget_spent",
        (
            "No move because a round may move {budget_percent} % of all load now: usage {usage_percent} % ({resource})"
            " is {over_percent} % above level {level_percent} %"
        ),
        remedy="wait for the next rounds",
    )


@dataclass(frozen=True, slots=True)
class Level:
    settings: PlannerSettings
    bands: Bands

    @classmethod
    def of(cls, settings: PlannerSettings) -> Level:
        return cls(settings, Bands.of(settings))

    def find_bundles_for_unloading(self, snapshot: Snapshot, state: State) -> Shed:
        if not len(snapshot.brokers):
            return Shed((), (), state)
        with np.errstate(all="ignore"):
            return _Look(self.settings, self.bands, snapshot, state).run()

    def find_margin(self, snapshot: Snapshot, state: State, broker: int) -> dict[str, Figure]:
        """Points of its most used resource, until it is hot."""
        loads = Loads.of(snapshot, self.settings)
        hottest = int(np.argmax(loads.usage[broker]))

        def is_reached(points: float) -> bool:
            if not loads.per_need[broker].any():
                return False
            usage = loads.usage.copy()
            usage[broker, hottest] += points / 100
            needs = np.divide(usage, loads.per_need, out=np.zeros_like(usage), where=loads.per_need > 0)
            heat = heat_of(usage, level_of(needs.sum(axis=0), loads.per_need))
            return bool(heat[broker] > self.bands.trigger)

        return least_points(is_reached)


class _Look:
    """One look at the cluster."""

    def __init__(self, settings: PlannerSettings, bands: Bands, snapshot: Snapshot, state: State) -> None:
        self._settings = settings
        self._bands = bands
        self._snapshot = snapshot
        self._loads = Loads.of(snapshot, settings)
        self._heat = self._loads.heat()
        self._used = np.nan_to_num(usage_per_broker(snapshot, settings.resource_weights), nan=0.0, neginf=0.0)
        registrations, now_s = snapshot.brokers.registrations, snapshot.taken_at_s
        is_hot = bands.is_hot(self._heat, self._used)
        deviation = find_deviation(snapshot)
        self._memory = Memory.of(state).after_look(registrations, is_hot, deviation, bands.calm_s, now_s)
        self._hot_for_s = self._memory.hot_for_s(registrations, now_s)
        self._wait_s = [bands.wait_s(heat) for heat in self._heat.tolist()]
        self._limits = _Limits(snapshot, settings)

    def run(self) -> Shed:
        urgent = self._bands.is_urgent(self._heat, self._used)
        due = urgent | (self._hot_for_s >= np.array(self._wait_s))
        givers = due & self._snapshot.brokers.settled
        budget = self._memory.budget(in_need=bool((givers & urgent).any()))
        found = find_moves(self._task(givers, budget))
        picks = _picks(found.moves)
        taken = np.bincount([move.source for move in found.moves], minlength=len(due)).tolist()
        verdicts = [self._judge(row, taken[row], due, budget, found) for row in range(len(due))]
        memory = self._memory.with_moved(found.share, self._snapshot.taken_at_s)
        heat = float(self._heat.max(initial=0.0)), float(found.heat.max(initial=0.0))
        return Shed(tuple(picks), tuple(verdicts), memory.as_state(), {"heat": heat[0], "heatAfter": heat[1]})

    def _task(self, givers: BoolArray, budget: float) -> Task:
        snapshot = self._snapshot
        total = total_load(snapshot)
        carried = carried_load(snapshot)
        return Task(
            loads=self._loads,
            assigned=snapshot.bundles.assigned,
            movable=eligible(snapshot) & self._limits.may_be_shed(),
            givers=givers,
            takers=~self._memory.resting(snapshot.brokers.registrations, snapshot.taken_at_s),
            share=carried / total if total > 0 else np.zeros(len(carried)),
            target=self._bands.target,
            budget=budget,
            may_own=self._limits.may_own,
            may_move=self._limits.may_move,
            made=self._limits.made,
        )

    def _judge(self, broker: int, taken: int, due: BoolArray, budget: float, found: Found) -> Verdict:
        name = self._snapshot.brokers.ids[broker]
        why = self._why(broker)
        reason: Reason
        if taken:
            reason = LevelReason.ABOVE_LEVEL
            why |= {"bundles_taken": taken, "over_after_percent": 100 * (float(found.heat[broker]) - 1)}
        elif np.isnan(self._hot_for_s[broker]):
            reason = LevelReason.NEAR_LEVEL if self._heat[broker] > 1 else LevelReason.BELOW_LEVEL
        elif not due[broker]:
            reason = LevelReason.HOT_TOO_SHORTLY
            why |= {"seconds": round(float(self._hot_for_s[broker])), "wait_seconds": round(self._wait_s[broker])}
            why |= self._settings.said("level_calm_minutes")
        else:
            reason = find_refusal(self._snapshot, broker) or LevelReason.NO_LEVELLING_MOVE
            if reason is LevelReason.NO_LEVELLING_MOVE and found.spent:
                reason = LevelReason.BUDGET_SPENT
                why["budget_percent"] = 100 * budget
        return Verdict(name, reason, acted=taken > 0, why=why)

    def _why(self, broker: int) -> dict[str, Figure]:
        return {
            "usage_percent": 100 * float(self._loads.usage[broker].max(initial=0.0)),
            "resource": self._loads.hottest_resource(broker),
            "level_percent": 100 * self._loads.level,
            "over_percent": 100 * (float(self._heat[broker]) - 1),
            "bundles": int(self._snapshot.brokers.bundle_count[broker]),
            **self._settings.said("level_evenness_percentage"),
        }


def _picks(moves: list[Move]) -> list[Pick]:
    """The moves in their order, those side by side of one broker to another together."""
    picks: list[Pick] = []
    for move in moves:
        last = picks[-1] if picks else None
        if last is not None and (last.broker, last.destination) == (move.source, move.destination):
            picks[-1] = Pick(move.source, (*last.bundles, move.bundle), LevelReason.ABOVE_LEVEL, move.destination)
        else:
            picks.append(Pick(move.source, (move.bundle,), LevelReason.ABOVE_LEVEL, move.destination))
    return picks


class _Limits:
    """What filters and policies say of moves, after those that were made."""

    def __init__(self, snapshot: Snapshot, settings: PlannerSettings) -> None:
        self._snapshot = snapshot
        self._settings = settings
        self._rules: FilterRules = rules_of(settings, NAME)
        self._projection = Projection(snapshot)
        self._may_own: dict[int, BoolArray] = {}
        self._same: dict[bytes, BoolArray] = {}

    def may_be_shed(self) -> BoolArray:
        """(N,): the bundles whose namespace is not excluded."""
        bundles = self._snapshot.bundles
        excluded = [name in self._settings.shedding_excluded_namespaces for name in bundles.namespaces]
        return ~np.array(excluded, dtype=bool)[bundles.namespace]

    def may_own(self, bundle: int) -> BoolArray:
        """The brokers that may own the bundle before any move is made."""
        namespace = int(self._snapshot.bundles.namespace[bundle])
        if namespace not in self._may_own:
            question = self._ask(self._snapshot.bundles.namespaces[namespace], None)
            allowed = allowed_brokers(self._rules, question)[0]
            self._may_own[namespace] = self._same.setdefault(allowed.tobytes(), allowed)
        return self._may_own[namespace]

    def may_move(self, moves: tuple[Move, ...]) -> bool:
        """Whether each of the moves may be made, after those before it."""
        for move in moves:
            question = self._ask(namespace_of(self._snapshot.bundles.names[move.bundle]), move.source)
            if self._rules.policies and find_anti_affinity_refusal(self._rules, question) is not None:
                return False
            if not allowed_brokers(self._rules, question)[0][move.destination]:
                return False
        return True

    def made(self, move: Move) -> None:
        name = namespace_of(self._snapshot.bundles.names[move.bundle])
        self._projection.move(name, move.bundle, move.source, move.destination)

    def _ask(self, namespace: str, excluded: int | None) -> PlacementQuestion:
        return PlacementQuestion(
            namespace,
            non_persistent=False,
            snapshot=self._snapshot,
            projection=self._projection,
            settings=self._settings,
            excluded=excluded,
        )
