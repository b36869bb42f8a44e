"""Trial of one configuration on a recorded range, and the figures that compare configurations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from loadmanager.core.domain.resources import HOT
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.lab.simulate.broker_cost import CostModel
from loadmanager.lab.simulate.recorded_world import FleetChange, RecordedRange, recorded_world
from loadmanager.lab.simulate.run_rules import WorldRules
from loadmanager.lab.simulate.sim_result import Result, mean_known
from loadmanager.lab.simulate.world import Progress, World

FULL = 1.0
"""Usage, a fraction, above which a broker is overloaded."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Configuration of a simulated recorded range."""

    settings: PlannerSettings
    rules: WorldRules
    cost: CostModel
    change: FleetChange
    seed: int
    step_s: float

    def run(self, recorded: RecordedRange, observe: Callable[[Progress], None] | None = None) -> Result:
        """Run the simulation. Raises `ValueError`, which names the fault."""
        return self.world(recorded).run(float(recorded.duration_s), float(self.step_s), observe)

    def world(self, recorded: RecordedRange) -> World:
        """Build the simulation. Raises `ValueError`, which names the fault."""
        return recorded_world(
            recorded, self.settings, rules=self.rules, cost=self.cost, change=self.change, seed=self.seed
        )


def figures(result: Result, band: float) -> dict[str, float | int | str]:
    """Return the figures and the digest of a run.

    Times are in seconds: those with some broker's usage above `FULL`, above `HOT`, and with the imbalance above the
    `band`. `load_moved` is the sum over moves in bytes/s. `regret` is the mean over time of the imbalance above its
    lower bound, which is for an optimizer that knows all loads and moves bundles for free.
    """
    series = result.series
    known = ~np.isnan(series.imbalance) & ~np.isnan(series.lower_bound)
    imbalance, bound = series.imbalance[known], series.lower_bound[known]
    return {
        "duration_s": result.duration_s,
        "time_full_s": float(result.time_overloaded(FULL)),
        "time_hot_s": float(result.time_overloaded(HOT)),
        "time_above_s": float(result.time_above(band)),
        "worst_usage": result.worst_usage,
        "mean_imbalance": mean_known(imbalance),
        "regret": mean_known(imbalance - bound, nothing=0.0),
        "moved_share": result.moved_share,
        "moved_again": result.moved_again,
        "load_moved": sum((move.load for move in result.moves), 0.0),
        "moves": len(result.moves),
        "returns": result.returns,
        "thrash": result.thrash,
        "clients_disturbed": result.clients_disturbed,
        "splits": len(result.splits),
        "unowned_bundle_s": result.unowned_bundle_s,
        "digest": result.digest(),
    }
