"""leastLoadedServer: fill brokers up to the underloaded threshold, then the least loaded one.

Source: Pulsar's SimpleLoadManagerImpl. Of two brokers the better one has the lower load, heap, CPU, bandwidth in or
bandwidth out: by the first of these in which they differ by more than 5 points, else by load.

As in Pulsar, this is not a total order, since small differences add up. So the result depends on the order of the
brokers, and may be the most loaded one of three.
"""

from __future__ import annotations

import math

import numpy as np

from loadmanager.core.domain.reasons import Reason
from loadmanager.core.model.load import FloatArray
from loadmanager.core.strategies.placement.fill_up import FillUp, FillUpReason, Visited
from loadmanager.core.strategies.placement.placement_strategy import Rows
from loadmanager.core.strategies.ranked_brokers import (
    EXPECTED_CPU,
    EXPECTED_IN,
    EXPECTED_MEMORY,
    EXPECTED_OUT,
    Ranking,
)

_TOLERANCE = 5.0
_FULL = 100


class LeastLoadedServer(FillUp):
    best_reason = FillUpReason.LEAST_LOADED

    def rank(self, ranking: Ranking) -> FloatArray:
        return np.asarray(ranking.percent(ranking.loaded, ranking.given).max(axis=1))

    def find_best(self, visited: Visited, positions: Rows) -> int:
        """Find the best by pairwise comparison in order; each step skips those that are not better."""
        order = [EXPECTED_MEMORY, EXPECTED_CPU, EXPECTED_IN, EXPECTED_OUT]
        keys = np.column_stack([visited.load, visited.percent[:, order]])[positions]
        best = 0
        while True:
            above = keys[best + 1 :] - keys[best]
            far = np.abs(above) > _TOLERANCE
            far[:, 0] |= ~far.any(axis=1)
            better = np.take_along_axis(above, far.argmax(axis=1)[:, np.newaxis], axis=1)[:, 0] < 0
            if not better.any():
                return int(positions[best])
            best += 1 + int(better.argmax())

    def choose_loaded(self, visited: Visited, best: int, turn: int) -> tuple[int, Reason]:
        """Return the next in turn if the best is full, and the one with the most free capacity if it is overloaded."""
        if visited.load[best] >= _FULL:
            return turn, FillUpReason.ALL_BROKERS_FULL
        if visited.load[best] > math.trunc(self.settings.broker_overloaded_threshold_percentage):
            return int(np.argmax(visited.free)), FillUpReason.MOST_FREE_CAPACITY
        return best, self.best_reason
