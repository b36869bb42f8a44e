"""A whole round of shedding: what strategies want to be moved, and what of it stays within the limits on churn.

In two parts, because the first may take long: moves that are completed while it lasts count for the limits.
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
    """What to carry out; and what strategies, and the limits on churn, remember if that is done."""

    plan: Plan
    state: State
    churn_state: churn.State


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """What strategies want, and what they remember of it; decided on this snapshot, with these settings."""

    snapshot: Snapshot
    settings: PlannerSettings
    plan: Plan
    state: State

    def within_limits(self, churn_state: churn.State, under_way: float = 0.0) -> Round:
        """The round, by the moves that are remembered, and the share of those that have not ended."""
        plan, churn_state = churn.limit(self.plan, self.snapshot, self.settings, churn_state, under_way)
        return Round(plan, recency.after_round(self.state, plan, self.snapshot), churn_state)


def propose(snapshot: Snapshot, settings: PlannerSettings, state: State, rng: np.random.Generator) -> Proposal:
    """What strategies want when they forget what would mislead them. Raises `UnknownStrategyError`."""
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
    """Both parts at once. Raises `UnknownStrategyError`."""
    return propose(snapshot, settings, state, rng).within_limits(churn_state, under_way)
