"""Fill-up placement: the best broker that has bundles, and an idle one only when that one is loaded enough.

Source: Pulsar's SimpleLoadManagerImpl (findLeastLoadedBroker), for leastLoadedServer and leastMsgPerSecond. The best
broker is chosen among those with bundles. An idle broker is chosen instead if the load of the best one is above the
underloaded threshold, or all are idle. With leastLoadedServer, if even the best one is overloaded, the broker with the
most free capacity is chosen; if that is full, all take turns. The state holds the memory of
`core/strategies/ranked_brokers.py`, and the turn: `{"model": ..., "cursor": n}`.

As in Pulsar: candidates are visited in the order of their total load at the snapshot, equals by name.

Differs from Pulsar: earlier choices for a bundle do not bind, since ownership is recorded. Bundles count for the even
distribution of their namespace from their assignment on; Pulsar misses them for one pass.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from loadmanager.core.constraints.projection import Projection
from loadmanager.core.domain.plan import Figure
from loadmanager.core.domain.reasons import PlacementReason, Reason, entry
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import BoolArray, FloatArray
from loadmanager.core.strategies.placement.placement_strategy import Placement, Rows, State
from loadmanager.core.strategies.ranked_brokers import Ranking, rank_brokers, whole

_CURSOR_END = 1_000_000
_ALLOCATED = tuple(f"allocated_{name}_percent" for name in ("cpu", "memory", "bandwidth_in", "bandwidth_out"))
"""Figures that Pulsar shows as quota shares; for display only."""


class FillUpReason(Reason):
    IDLE_BROKER_OPENED = entry(
        (
            "Placed because {broker} has no bundles, and the best of {candidates} candidates that has some is above"
            " {=broker_underloaded_threshold_percentage} %: {best_usage_percent} %"
        ),
        "Placed because {broker} is the first of {candidates} candidates without any bundles",
    )
    LEAST_LOADED = entry(
        "Placed because {broker} at expected usage {usage_percent} % is the best of {candidates} candidates, of"
        " which {idle} are idle, and no idle one is opened up to"
        " {=broker_underloaded_threshold_percentage} %"
    )
    ALL_BROKERS_FULL = entry(
        "Placed on {broker}, next in round-robin order: the best of {candidates} candidates is full"
    )
    MOST_FREE_CAPACITY = entry(
        "Placed because {broker} has room for the most bundles, {free_bundles}, and the best of {candidates}"
        " candidates is above {=broker_overloaded_threshold_percentage} %: {best_usage_percent} %"
    )


@dataclass(frozen=True, slots=True, eq=False)
class Visited:
    """Candidates in visiting order: rows, load in percent (k,), its parts (k, 5), expected messages/s (k,), number of
    default bundles that still fit (k,), and idleness.
    """

    rows: Rows
    load: FloatArray
    percent: FloatArray
    messages_per_s: FloatArray
    free: FloatArray
    idle: BoolArray


@dataclass(frozen=True, slots=True)
class FillUp(ABC):
    """Fill-up placement; a subclass defines the best broker."""

    settings: PlannerSettings
    best_reason: ClassVar[Reason]

    @abstractmethod
    def rank(self, ranking: Ranking) -> FloatArray:
        """Return the figure (M,), truncated to an integer, by which the candidates are visited."""

    @abstractmethod
    def find_best(self, visited: Visited, positions: Rows) -> int:
        """Return the best of these positions, which are not empty and ascend."""

    def place(
        self, candidates: Rows, bundle: int | None, projection: Projection, state: State, rng: np.random.Generator
    ) -> Placement:
        del rng  # nothing is left to chance
        if not len(candidates):
            return Placement(None, candidates, PlacementReason.NO_BROKER_AVAILABLE, {}, state)
        ranking = rank_brokers(projection.snapshot, state, self.settings)
        ranks = projection.snapshot.derive((self.best_reason, id(ranking.model)), lambda: whole(self.rank(ranking)))
        visited = _visit(candidates[np.lexsort((candidates, ranks[candidates]))], bundle, projection, ranking)
        cursor = state.get("cursor", 0)
        position, reason, best_load = self._choose(visited, cursor % len(candidates))
        broker = int(visited.rows[position])
        why: dict[str, Figure] = {
            "usage_percent": float(visited.load[position]),
            "msg_rate_per_s": float(visited.messages_per_s[position]),
            "free_bundles": float(visited.free[position]),
            "candidates": len(candidates),
            "idle": int(np.count_nonzero(visited.idle)),
            **self.settings.as_figures(
                "broker_underloaded_threshold_percentage", "broker_overloaded_threshold_percentage"
            ),
        }
        why |= dict(zip(_ALLOCATED, ranking.allocated_percent(broker).tolist(), strict=True))
        if best_load is not None:
            why["best_usage_percent"] = best_load
        following = {"model": ranking.model, "cursor": (cursor + 1) % _CURSOR_END}
        return Placement(broker, np.array([broker]), reason, why, following)

    def _choose(self, visited: Visited, turn: int) -> tuple[int, Reason, float | None]:
        """Return the position of the choice, the reason, and the load of the best broker that is not idle, if any."""
        busy = np.flatnonzero(~visited.idle)
        if not len(busy):
            return 0, FillUpReason.IDLE_BROKER_OPENED, None
        best = self.find_best(visited, busy)
        load = float(visited.load[best])
        if load > math.trunc(self.settings.broker_underloaded_threshold_percentage) and visited.idle.any():
            return int(np.argmax(visited.idle)), FillUpReason.IDLE_BROKER_OPENED, load
        return *self.choose_loaded(visited, best, turn), load

    def choose_loaded(self, visited: Visited, best: int, turn: int) -> tuple[int, Reason]:  # noqa: ARG002 - overridden
        """Return the position of the choice and the reason, if no idle broker is opened."""
        return best, self.best_reason


def _visit(rows: Rows, bundle: int | None, projection: Projection, ranking: Ranking) -> Visited:
    added, removed = projection.tally("quota", ranking.quota_of)
    loaded, given = ranking.loaded - removed, ranking.given + added
    owner = -1 if bundle is None else int(projection.snapshot.bundles.broker[bundle])
    if owner >= 0:
        loaded[owner] -= ranking.quota_of(bundle)
    percent = ranking.percent(loaded, given)[rows]
    load = percent.max(axis=1)
    return Visited(
        rows,
        load,
        percent,
        ranking.messages_per_s(loaded, given)[rows],
        whole(ranking.capacity[rows] * np.maximum(0, (100 - load) / 100)),
        loaded[rows, -1] + given[rows, -1] == 0,
    )
