"""Recorder of a simulation's time series."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import CPU, MEMORY, FloatArray, IntArray, rated_weights
from loadmanager.core.planning.certificate.bounds import find_pigeonhole
from loadmanager.core.strategies.level.level_load import bound_level
from loadmanager.lab.simulate.sim_brokers import Carried
from loadmanager.lab.simulate.sim_result import CompletedMove, StepSeries
from loadmanager.lab.simulate.world_state import WorldState

_COUNTS = frozenset({"brokers", "moves", "unowned", "reports"})
"""Columns of a `StepSeries` with integers."""


class StepRecorder:
    """Recorder of one row per step."""

    def __init__(self, state: WorldState) -> None:
        self._state = state
        self._counted = counted_resources(state.settings)
        self._rows: list[dict[str, float]] = []
        self._moves = 0

    def step(self, carried: Carried, moves: list[CompletedMove], reports: int) -> None:
        """Record a step; `reports` is the number of reports since the last step."""
        state, loads = self._state, self._state.loads
        new, self._moves = moves[self._moves :], len(moves)
        served = state.table.serving >= 0
        load = loads.throughput()
        judged = self._measure_balance(carried, loads.load[served], loads.topics[served])
        self._rows.append(
            {
                "t_s": state.agenda.now_s,
                **judged,
                "load": loads.total_throughput,
                "moves": len(new),
                "moved_load": sum((move.load for move in new), 0.0),
                "unowned": state.unowned,
                "unowned_load": float(load[~served].sum()),
                "backlog": state.backlog(),
                "reports": reports,
            }
        )

    def last(self) -> dict[str, float]:
        return self._rows[-1]

    def series(self) -> StepSeries:
        def column(name: str) -> npt.NDArray[Any]:
            return np.array([row[name] for row in self._rows], np.int64 if name in _COUNTS else np.float64)

        return StepSeries(**{name: column(name) for name in self._rows[0]})

    def _measure_balance(self, carried: Carried, load: FloatArray, topics: IntArray) -> dict[str, float]:
        """Return the imbalance of the served load, and the usage of the busiest broker."""
        fleet, cost = self._state.fleet, self._state.cost
        up = np.flatnonzero(fleet.up())
        nothing = {"imbalance": np.nan, "lower_bound": np.nan, "level": np.nan, "worst_usage": 0.0, "brokers": 0}
        if not len(up):
            return nothing
        capacity = fleet.capacity[up].copy()
        worst = float((carried.usage[up] / capacity)[:, self._counted].max())
        capacity[:, CPU] *= fleet.speed[up]
        demand = cost.demand(carried.load[up], carried.topics[up])
        levels = np.cumsum(demand, axis=0)[-1] / np.cumsum(capacity, axis=0)[-1]
        resource = self._counted[int(np.argmax(levels[self._counted]))]
        level = float(levels[resource])
        found = {"level": level, "worst_usage": worst, "brokers": len(up), "imbalance": 1.0, "lower_bound": 1.0}
        if level > 0:
            found["imbalance"] = float((demand / capacity)[:, self._counted].max()) / level
            needs = {each: cost.demand_of(each, load, topics) for each in self._counted}
            found["lower_bound"] = max(level, _bound(needs, resource, capacity)) / level
        return found


def counted_resources(settings: PlannerSettings) -> list[int]:
    """Return the resources with a weight."""
    weights = {**rated_weights(settings.resource_weights), MEMORY: settings.memory_resource_weight}
    return sorted(resource for resource, weight in weights.items() if weight > 0) or [CPU]


def _bound(needs: Mapping[int, FloatArray], scarcest: int, capacity: FloatArray) -> float:
    """Return a lower bound of the busiest broker's usage if bundles with these needs could be placed anywhere.

    `needs` has those of each bundle by resource; `capacity` is (M, 5).
    """
    _, least_need = find_pigeonhole(np.sort(needs[scarcest])[::-1], len(capacity))
    indivisible = least_need / float(capacity[:, scarcest].max())
    return max(indivisible, bound_level(np.stack(list(needs.values()), axis=1), 1 / capacity[:, list(needs)]))
