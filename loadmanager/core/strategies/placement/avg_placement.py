"""AvgShedder as placement: the destination planned by shedding, else the remembered one, else random.

Source: Pulsar's AvgShedder, with destinations kept by bundle name, and its choice among healthy brokers. A shed bundle
goes to its planned destination as long as that broker may own it. If the destination is overloaded, a healthy broker is
used if there is one. Any other bundle gets a random broker. It gets the same broker again until the next shedding
round, or until enough others were placed.

The state is shared with the shedding side, `core/strategies/shedding/avg_shedder.py`: `{"hits": ..., "planned":
{bundle: destination}, "placed": {bundle: broker}}`.

Differs from Pulsar: each new bundle gets a random broker of its own; Pulsar's map, keyed by value, sends all of them to
the same broker. An overloaded broker is drawn only when all candidates are overloaded. Without candidates there is no
result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmanager.core.constraints.projection import Projection
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.reasons import PlacementReason, Reason, entry
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.snapshot import usage_per_broker
from loadmanager.core.strategies.placement.placement_strategy import Placement, Rows, State, draw

_MOST_PLACED = 1000
"""Number of bundles whose random broker is remembered: enough for a retried lookup, and a small record."""


class AvgPlacementReason(Reason):
    DRAWN_BY_CHANCE = entry(
        "Placed on {broker} at random, one of {equals} of {candidates} candidates not above"
        " {=broker_overloaded_threshold_percentage} %"
    )


@dataclass(frozen=True, slots=True)
class AvgPlacement:
    settings: PlannerSettings

    def place(
        self, candidates: Rows, bundle: int | None, projection: Projection, state: State, rng: np.random.Generator
    ) -> Placement:
        del bundle  # chance and usage decide
        if not len(candidates):
            return Placement(None, candidates, PlacementReason.NO_BROKER_AVAILABLE, {}, state)
        limit = self.settings.as_figures("broker_overloaded_threshold_percentage")
        why = {"candidates": len(candidates), **limit}
        usage = usage_per_broker(projection.snapshot, self.settings.resource_weights)
        healthy = candidates[~(usage[candidates] > self.settings.broker_overloaded_threshold_percentage / 100)]
        if not len(healthy):
            return Placement(draw(candidates, rng), candidates, PlacementReason.ALL_BROKERS_OVERLOADED, why, state)
        return Placement(
            draw(healthy, rng), healthy, AvgPlacementReason.DRAWN_BY_CHANCE, {**why, "equals": len(healthy)}, state
        )

    def find_destination(self, bundle: str, state: State) -> BrokerId | None:
        placed: BrokerId | None = state.get("placed", {}).get(bundle) or state.get("planned", {}).get(bundle)
        return placed

    def remember(self, bundle: str, broker: BrokerId, state: State) -> State:
        others = {name: each for name, each in state.get("placed", {}).items() if name != bundle}
        if len(others) >= _MOST_PLACED:
            others.pop(next(iter(others)))
        return {**state, "placed": {**others, bundle: broker}}
