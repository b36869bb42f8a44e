"""LeastResourceUsageWithWeightExtensible: a random broker among those with published load well below the average.

Source: Pulsar's LeastResourceUsageWithWeight of the extensible load manager. A broker's load is the moving average that
it publishes itself. The candidates at or below the mean of the published ones, minus the difference threshold, are
drawn from; if there is none, all candidates, also those without a load. It is stateless.

Differs from Pulsar: random numbers come from the generator passed in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmanager.core.constraints.projection import Projection
from loadmanager.core.domain.reasons import PlacementReason
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.snapshot import get_broker_load
from loadmanager.core.strategies.placement.least_resource_usage import choose
from loadmanager.core.strategies.placement.placement_strategy import Placement, Rows, State


@dataclass(frozen=True, slots=True)
class LeastResourceUsageWithWeightExtensible:
    settings: PlannerSettings

    def place(
        self, candidates: Rows, bundle: int | None, projection: Projection, state: State, rng: np.random.Generator
    ) -> Placement:
        del bundle  # only the brokers' usage is compared
        if not len(candidates):
            return Placement(None, candidates, PlacementReason.NO_BROKER_AVAILABLE, {}, state)
        load = get_broker_load(projection.snapshot, self.settings)
        known = candidates[load.known[candidates]]
        usage = load.weighted_max_ema[known]
        return choose(known, usage, candidates, self.settings, state, rng)
