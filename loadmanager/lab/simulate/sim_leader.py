"""Decisions of the simulated leader, with the functions of the core that the live one calls, in the same order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.plan import Plan, Unload, Verdict
from loadmanager.core.model.fleet_load import share_of
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning import churn, planner
from loadmanager.core.planning.certificate.plan_certificate import DecidedRound
from loadmanager.core.planning.churn import OPERATOR_REASONS, MoveMemory
from loadmanager.core.planning.decision_kinds import DECISIONS
from loadmanager.core.planning.repeated_moves import PastMove
from loadmanager.core.planning.shedding_round import shed
from loadmanager.lab.simulate.world_state import WorldState


class Leader:
    """Planner of the simulated leader, with the states of strategies, splitting and churn limits, and the last
    snapshot.
    """

    def __init__(self, state: WorldState, rng: np.random.Generator) -> None:
        self.strategy_states: planner.State = {}
        self.split_state: planner.State = {}
        self.churn_state: churn.State = {}
        self.on_round: Callable[[DecidedRound], None] = lambda _: None
        """Called with each shedding round."""
        self._state = state
        self._rng = rng
        self._snapshot: Snapshot | None = None

    def shed(self) -> Plan:
        """Plan a shedding round, within the limits on churn."""
        snapshot, settings = self._new_snapshot(), self._state.settings
        done = shed(snapshot, settings, self.strategy_states, self.churn_state, self._rng)
        self.strategy_states, self.churn_state = done.state, done.churn_state
        self.on_round(DecidedRound(snapshot, settings, done.plan.steps))
        return done.plan

    def decide(self, kind: str, **request: object) -> Plan:
        """Make one of `DECISIONS` on the cluster now."""
        plan, self.strategy_states = DECISIONS[kind](
            self.snapshot(), self._state.settings, self.strategy_states, self._rng, request
        )
        return plan

    def find_excess(self, step: Unload) -> Verdict | None:
        """Return the churn limit that forbids a move outside of rounds now, if any."""
        return churn.find_excess(step, self.snapshot(), self._state.settings, self.churn_state)

    def moved(self, step: Unload, destination: Registration | None) -> PastMove:
        """Record a completed unload in the churn memory, and return its entry."""
        state = self._state
        self.churn_state, tripped = churn.noted(
            self.churn_state,
            step.bundle,
            step.source,
            destination,
            share_of(self._snapshot or self.snapshot(), step.bundle),
            state.settings,
            at_s=state.now_s,
            is_own=step.reason not in OPERATOR_REASONS,
        )
        state.count_verdicts("breaker", tripped)
        return MoveMemory.of(self.churn_state).moves[-1]

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the cluster; a new one is taken only after a change."""
        state = self._state
        if self._snapshot is None or self._snapshot.revision != state.model.revision:
            self._snapshot = state.model.snapshot(state.now_s, state.rules.grace_period_s)
        return self._snapshot

    def _new_snapshot(self) -> Snapshot:
        """Take a new snapshot also without a change: recently moved bundles depend on the time."""
        state, settings = self._state, self._state.settings
        age_s, weights = settings.broker_load_data_ttl_in_seconds, settings.resource_weights
        sick_after_s = settings.sick_after_s
        state.model.set_faults(state.report_validator.faults(state.now_s, age_s, weights, sick_after_s))
        self._snapshot = None
        return self.snapshot()
