"""A shedding round: the strategy's proposal, then the limits on churn.

It has two parts because the first may take long, and moves completed in the meantime count for the limits.

`plan_as_pulsar` emulates a round of Pulsar's leader on the same cluster. Strategies and filters are ours, which decide
as Pulsar's do. Our additions are left out: operator controls, report validation, waiting for a report after a move,
resets of averages, limits on churn. The owner is also a candidate for a shed bundle; if it is chosen, the bundle stays.
The memory of Pulsar's leader is not observable. So averages of usage start with the first emulated round and converge
to Pulsar's, at a rate given by `historyResourcePercentage`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadmanager.core.domain.controls import NO_CONTROLS
from loadmanager.core.domain.plan import Plan, Unload, Verdict
from loadmanager.core.domain.reasons import SheddingReason
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.fleet_load import share_of
from loadmanager.core.model.report_validation import NO_FAULTS
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning import churn
from loadmanager.core.planning.planner import State, plan_shedding
from loadmanager.core.strategies.shedding.shedding_strategy import find_hold
from loadmanager.core.strategies.shedding.threshold_shedder import after_round, before_round


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

    def within_limits(self, churn_state: churn.State, in_progress: float = 0.0) -> Round:
        """Apply the limits on churn, given completed moves and the share of unfinished ones."""
        plan, churn_state = churn.limit(self.plan, self.snapshot, self.settings, churn_state, in_progress)
        return Round(plan, after_round(self.state, plan, self.snapshot), churn_state)


def propose(snapshot: Snapshot, settings: PlannerSettings, state: State, rng: np.random.Generator) -> Proposal:
    """Plan a round after resetting misleading averages. Raises `UnknownStrategyError`."""
    plan, state = plan_shedding(snapshot, settings, before_round(state, snapshot, settings), rng)
    return Proposal(snapshot, settings, plan, state)


def shed(
    snapshot: Snapshot,
    settings: PlannerSettings,
    state: State,
    churn_state: churn.State,
    rng: np.random.Generator,
    in_progress: float = 0.0,
) -> Round:
    """Propose a round and apply the limits. Raises `UnknownStrategyError`."""
    return propose(snapshot, settings, state, rng).within_limits(churn_state, in_progress)


_MOST_ROUTES = 5


def summarize_round(number: int, snapshot: Snapshot, steps: Sequence[Unload], *, acted: bool) -> Verdict:
    """Summarize the moves of a round: bundles, percent of all traffic, and the routes with the most bundles first."""
    routes = Counter(map(_format_route, steps))
    shown = [f"{route} ({bundles})" for route, bundles in routes.most_common(_MOST_ROUTES)]
    if len(routes) > _MOST_ROUTES:
        shown.append(f"{len(routes) - _MOST_ROUTES} more routes")
    why = {
        "round": number,
        "bundles": len(steps),
        "bundles_in_all": len(snapshot.bundles),
        "share_percent": 100 * sum(share_of(snapshot, step.bundle) for step in steps),
        "routes": ", ".join(shown),
    }
    return Verdict("cluster", SheddingReason.ROUND_MOVES, acted, why)


def _format_route(step: Unload) -> str:
    destination = "any broker" if step.destination is None else step.destination.broker
    return f"{step.source.broker} -> {destination}"


# Pulsar's round: without our limits, resets of averages and summaries


def plan_as_pulsar(
    snapshot: Snapshot,
    settings: PlannerSettings,
    state: State,
    rng: np.random.Generator,
    wanted: Iterable[str] = (),
) -> tuple[Plan, State]:
    """Plan a round as Pulsar would with its own settings, with verdicts on `wanted` bundles too.

    Raises `UnknownStrategyError`.
    """
    seen = _narrow_to_pulsars_view(snapshot)
    plan, state = plan_shedding(seen, settings, state, rng, offers_source=True)
    judged = {verdict.subject for verdict in plan.verdicts}
    holds = _find_holds(seen, (name for name in wanted if name not in judged))
    return replace(plan, verdicts=(*plan.verdicts, *holds)), state


def _narrow_to_pulsars_view(snapshot: Snapshot) -> Snapshot:
    """Return the cluster as Pulsar's leader sees it."""
    settled = np.ones(len(snapshot.brokers), dtype=bool)
    brokers = snapshot.brokers.with_bundles(snapshot.bundles, settled)
    return replace(snapshot, brokers=brokers, controls=NO_CONTROLS, faults=NO_FAULTS, _derived={})


def _find_holds(snapshot: Snapshot, names: Iterable[str]) -> Iterator[Verdict]:
    for name in names:
        row = snapshot.bundles.find_row(name)
        hold = None if row is None else find_hold(snapshot, row)
        if hold is not None:
            yield hold
