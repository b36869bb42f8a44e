"""A shedding round: the strategy's proposal, then the limits on churn.

It has two parts because the first may take long: moves completed meanwhile count for the limits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmanager.core.domain.plan import Plan
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning import churn, recency
from loadmanager.core.planning.planner import State, plan_shedding


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """Plan to execute, and the memory of strategies and churn after it."""

    plan: Plan
    state: State
    churn_state: churn.State


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """Plan of the strategies and their memory after it, with the snapshot and settings of the decision."""

    snapshot: Snapshot
    settings: PlannerSettings
    plan: Plan
    state: State

    def within_limits(self, churn_state: churn.State, under_way: float = 0.0) -> Round:
        """Apply the limits on churn, given completed moves and the share of unfinished ones."""
        plan, churn_state = churn.limit(self.plan, self.snapshot, self.settings, churn_state, under_way)
        return Round(plan, recency.after_round(self.state, plan, self.snapshot), churn_state)


def propose(snapshot: Snapshot, settings: PlannerSettings, state: State, rng: np.random.Generator) -> Proposal:
    """Plan a round after resetting misleading averages. Raises `UnknownStrategyError`."""
    plan, state = plan_shedding(snapshot, settings, recency.before_round(state, snapshot, settings), rng)
    return Proposal(snapshot, settings, plan, state)


def shed(
    snapshot: Snapshot,
    settings: PlannerSettings,
    state: State,
    churn_state: churn.State,
    rng: np.random.Generator,
    under_way: float = 0.0,
) -> Round:
    """Propose a round and apply the limits. Raises `UnknownStrategyError`."""
    return propose(snapshot, settings, state, rng).within_limits(churn_state, under_way)
