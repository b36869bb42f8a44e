"""Benefit of Level for a cluster: one round planned on a snapshot, and the imbalance of traffic before and after."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmanager.config.node_settings import Settings
from loadmanager.core.domain.plan import Plan, Unload
from loadmanager.core.model.load import THROUGHPUT_IN, THROUGHPUT_OUT, FloatArray
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.planner import plan_shedding

CONFIGURATION = "overrides: {loadBalancerLoadSheddingStrategy: Level, loadBalancerLoadPlacementStrategy: Level}"
_STRATEGIES = ("load_balancer_load_shedding_strategy", "load_balancer_load_placement_strategy")


@dataclass(frozen=True, slots=True)
class LevelBenefit:
    """Moves of a round and their benefit. `load` is the sum over the moved bundles in bytes/s. `before` and `after`
    are the highest divided by the mean traffic of brokers.

    `idle` are brokers that own no bundle. `reason` is the verdict on the broker with the most traffic.
    """

    moves: int
    load: float
    before: float
    after: float
    idle: tuple[str, ...] = ()
    reason: str = ""

    @property
    def pays(self) -> bool:
        return self.moves > 0 and self.after < self.before


def find_benefit(snapshot: Snapshot, settings: Settings) -> LevelBenefit:
    """Plan a round of Level, whatever strategy is configured."""
    level = settings.model_copy(update=dict.fromkeys(_STRATEGIES, "Level"))
    plan, _ = plan_shedding(snapshot, level.planner_settings(), {}, np.random.default_rng(0))
    bundles, brokers = snapshot.bundles, snapshot.brokers
    loads = bundles.short[:, [THROUGHPUT_IN, THROUGHPUT_OUT]].sum(axis=1)
    rows = {broker: row for row, broker in enumerate(brokers.ids)}
    owned = bundles.broker >= 0
    before = np.bincount(bundles.broker[owned], weights=loads[owned], minlength=len(rows)).astype(np.float64)
    after, moved, moves = before.copy(), 0.0, 0
    for step in plan.steps:
        row = bundles.find_row(step.bundle)
        if isinstance(step, Unload) and step.destination is not None and row is not None:
            after[rows[step.source.broker]] -= loads[row]
            after[rows[step.destination.broker]] += loads[row]
            moved, moves = moved + float(loads[row]), moves + 1
    counts = np.bincount(bundles.broker[owned], minlength=len(rows))
    idle = tuple(broker for broker, row in rows.items() if not counts[row])
    busiest = brokers.ids[int(before.argmax())] if len(before) else ""
    reason = find_reason(plan, busiest)
    return LevelBenefit(moves, moved, _highest_over_mean(before), _highest_over_mean(after), idle, reason)


def find_reason(plan: Plan, busiest: str) -> str:
    """Return the first verdict on a broker, else on the cluster, as a sentence. The first one decides."""
    verdicts = [verdict for subject in (busiest, "cluster") for verdict in plan.verdicts if verdict.subject == subject]
    return f"Of {verdicts[0].subject}: {verdicts[0].sentence()}." if verdicts else ""


def _highest_over_mean(traffic: FloatArray) -> float:
    """Return the highest divided by the mean traffic; 1 without traffic."""
    mean = float(traffic.mean()) if len(traffic) else 0.0
    return float(traffic.max()) / mean if mean > 0 else 1.0
