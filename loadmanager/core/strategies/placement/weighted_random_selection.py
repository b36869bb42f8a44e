"""weightedRandomSelection: random, weighted by free capacity.

Source: Pulsar's SimpleLoadManagerImpl. A broker's weight is the number of default bundles that it could carry when
empty, times the square of its free share, truncated to an integer. A broker with weight 0 gets nothing unless all are
0; then all are equal. The state holds the memory of `core/strategies/ranked_brokers.py`: `{"model": ...}`.

As in Pulsar: weights are those of the snapshot; earlier placements of the plan do not change them.

Differs from Pulsar: weights are limited to 2^31 - 1; Pulsar's may overflow, and then no broker is found.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmanager.core.constraints.projection import Projection
from loadmanager.core.domain.reasons import PlacementReason, Reason, entry
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import IntArray
from loadmanager.core.strategies.placement.placement_strategy import Placement, Rows, State, draw
from loadmanager.core.strategies.ranked_brokers import Ranking, rank_brokers, whole

_MOST = 2**31 - 1


class WeightReason(Reason):
    DRAWN_BY_WEIGHT = entry(
        "Placed on {broker} at random, with weight {weight} of {weights} of {candidates} candidates"
    )


@dataclass(frozen=True, slots=True)
class WeightedRandomSelection:
    settings: PlannerSettings

    def place(
        self, candidates: Rows, bundle: int | None, projection: Projection, state: State, rng: np.random.Generator
    ) -> Placement:
        del bundle  # weights are those of brokers
        if not len(candidates):
            return Placement(None, candidates, PlacementReason.NO_BROKER_AVAILABLE, {}, state)
        ranking = rank_brokers(projection.snapshot, state, self.settings)
        weights = projection.snapshot.derive(("weights", id(ranking.model)), lambda: compute_weights(ranking))
        visited = candidates[np.lexsort((candidates, weights[candidates]))]
        summed = np.cumsum(weights[visited])
        total = int(summed[-1])
        following = {"model": ranking.model}
        if not total:
            why = {"candidates": len(candidates), "weight": 0, "weights": 0}
            return Placement(draw(candidates, rng), candidates, WeightReason.DRAWN_BY_WEIGHT, why, following)
        broker = int(visited[np.searchsorted(summed, rng.integers(total), side="right")])
        why = {"candidates": len(candidates), "weight": int(weights[broker]), "weights": total}
        return Placement(broker, candidates[weights[candidates] > 0], WeightReason.DRAWN_BY_WEIGHT, why, following)


def compute_weights(ranking: Ranking) -> IntArray:
    """Return the weight of each broker (M,)."""
    free = (100 - ranking.percent(ranking.loaded, ranking.given).max(axis=1)) / 100
    return np.minimum(whole(ranking.capacity * free * free), _MOST).astype(np.int64)
