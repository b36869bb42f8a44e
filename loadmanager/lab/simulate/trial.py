"""Trial of one configuration on a recorded range, and the figures that compare configurations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.resources import HOT
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.lab.simulate.fleet_events import (
    BrokerJoins,
    BrokerSpec,
    BrokersRestart,
    BrokersStop,
    Event,
    NamespaceSpec,
)
from loadmanager.lab.simulate.recorded_world import RecordedRange
from loadmanager.lab.simulate.run_rules import CostModel, WorldRules
from loadmanager.lab.simulate.sim_result import Result, mean_known
from loadmanager.lab.simulate.world import Progress, World

FULL = 1.0
"""Usage, a fraction, above which a broker is overloaded."""


@dataclass(frozen=True, slots=True)
class FleetChange:
    """Changes to a recorded fleet: brokers removed and added, factors for CPU speeds by broker and for loads by
    namespace.
    """

    removed: frozenset[BrokerId] = frozenset()
    added: tuple[BrokerSpec, ...] = ()
    speeds: Mapping[BrokerId, float] = field(default_factory=dict)
    loads: Mapping[str, float] = field(default_factory=dict)


_NO_CHANGE = FleetChange()
_RULES = WorldRules()
_COST = CostModel()


@dataclass(frozen=True, slots=True)
class Trial:
    """Configuration of a simulated recorded range. Bundles of removed brokers are placed at the start."""

    settings: PlannerSettings
    rules: WorldRules = _RULES
    cost: CostModel = _COST
    change: FleetChange = _NO_CHANGE
    seed: int = 0
    step_s: float = 60.0

    def run(self, recorded: RecordedRange, observe: Callable[[Progress], None] | None = None) -> Result:
        """Run the simulation. Raises `ValueError`, which names the fault."""
        return self.world(recorded).run(float(recorded.duration_s), float(self.step_s), observe)

    def world(self, recorded: RecordedRange) -> World:
        """Build the simulation. Raises `ValueError`, which names the fault."""
        change = self.change
        kept = [_apply_change(spec, change) for spec in recorded.brokers if spec.id not in change.removed]
        if not (kept or change.added):
            raise ValueError("removed: no broker is left at the beginning")
        factors = [np.full(len(spec), float(change.loads.get(spec.name, 1.0))) for spec in recorded.namespace_specs()]
        return World(
            [*kept, *change.added],
            [_without_owners(spec, change.removed) for spec in recorded.namespaces],
            recorded.loads.scaled(np.concatenate(factors)),
            self.settings,
            rules=self.rules,
            cost=self.cost,
            events=list(_changed_events(recorded, change)),
            seed=self.seed,
        )


def _apply_change(spec: BrokerSpec, change: FleetChange) -> BrokerSpec:
    return replace(spec, speed=spec.speed * change.speeds.get(spec.id, 1.0))


def _changed_events(recorded: RecordedRange, change: FleetChange) -> Iterator[Event]:
    for event in recorded.events:
        if isinstance(event, BrokerJoins):
            if event.broker.id not in change.removed:
                yield replace(event, broker=_apply_change(event.broker, change))
        elif not isinstance(event, BrokersStop | BrokersRestart) or change.removed.isdisjoint(event.brokers):
            yield event


def _without_owners(spec: NamespaceSpec, removed: frozenset[BrokerId]) -> NamespaceSpec:
    owners = spec.owners or (None,) * len(spec)
    return replace(spec, owners=tuple(None if owner in removed else owner for owner in owners))


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
