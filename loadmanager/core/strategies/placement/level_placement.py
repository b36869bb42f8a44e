"""Level as placement: the broker whose most used resource is least used with the bundle. Ties are broken at random.

Needs and usage are those of shedding (`core/strategies/level/level_load.py`); a bundle without history needs its
expected load. Moving bundles and earlier steps of the plan count. Namespaces are not distributed evenly in addition,
which could exclude the least used broker.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmanager.core.constraints.projection import Projection
from loadmanager.core.domain.reasons import PlacementReason, Reason, entry
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import FloatArray
from loadmanager.core.strategies.level.level_load import LevelLoads
from loadmanager.core.strategies.placement.placement_strategy import Placement, Rows, State, draw


class LevelPlacementReason(Reason):
    LEAST_USED_WITH_IT = entry(
        "Placed because {broker} would be used least with it, {usage_percent} %, of {candidates} candidates"
    )


@dataclass(frozen=True, slots=True)
class LevelPlacement:
    settings: PlannerSettings

    def place(
        self, candidates: Rows, bundle: int | None, projection: Projection, state: State, rng: np.random.Generator
    ) -> Placement:
        if not len(candidates):
            return Placement(None, candidates, PlacementReason.NO_BROKER_AVAILABLE, {}, state)
        with np.errstate(all="ignore"):
            loads = LevelLoads.of(projection.snapshot, self.settings)
            usage = _usage_with(loads, candidates, bundle, projection)
        best = candidates[usage == usage.min()]
        why = {"usage_percent": 100 * float(usage.min()), "candidates": len(candidates), "equals": len(best)}
        return Placement(draw(best, rng), best, LevelPlacementReason.LEAST_USED_WITH_IT, why, state)


def _usage_with(loads: LevelLoads, candidates: Rows, bundle: int | None, projection: Projection) -> FloatArray:
    """Return the usage (k,) of each candidate with the bundle, as a fraction."""

    def need_of(row: int | None) -> FloatArray:
        return loads.need_of(projection.snapshot.learned.load_of("")) if row is None else np.asarray(loads.need[row])

    added, removed = projection.tally("level", need_of)
    more = need_of(bundle) + (added - removed)[candidates]
    usage = loads.usage[candidates] + more * loads.per_need[candidates]
    return np.asarray(usage.max(axis=1, initial=0.0))
