"""A round of shedding as the leader of a Pulsar makes it, worked out beside it on the same cluster.

The strategies and the filters are ours, which decide as Pulsar's do. What ours adds is left out: what operators told
us, doubts about reports, waiting for the next report of a broker that gave something away, averages that begin anew,
limits on churn. A bundle is offered to its owner too; if that one is chosen, it stays.

What Pulsar's leader remembers cannot be seen. So averages of usage begin with the first round that is worked out here,
and approach Pulsar's as those of usage do: `historyResourcePercentage` says how fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from loadmanager.core.domain.controls import NO_CONTROLS
from loadmanager.core.domain.plan import Plan, Verdict
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.report_validation import NO_DOUBTS
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.planner import State, plan_shedding
from loadmanager.core.strategies.shedding.shedding_strategy import find_hold


def plan_as_pulsar(
    snapshot: Snapshot,
    settings: PlannerSettings,
    state: State,
    rng: np.random.Generator,
    wanted: Iterable[str] = (),
) -> tuple[Plan, State]:
    """What Pulsar would do with its own settings; a verdict says of `wanted` bundles too why none of them may be moved.

    Raises `UnknownStrategyError`.
    """
    seen = _as_seen(snapshot)
    plan, state = plan_shedding(seen, settings, state, rng, offers_source=True)
    judged = {verdict.subject for verdict in plan.verdicts}
    holds = _find_holds(seen, (name for name in wanted if name not in judged))
    return replace(plan, verdicts=(*plan.verdicts, *holds)), state


def _as_seen(snapshot: Snapshot) -> Snapshot:
    """The cluster as Pulsar's leader sees it."""
    settled = np.ones(len(snapshot.brokers), dtype=bool)
    brokers = snapshot.brokers.with_bundles(snapshot.bundles, settled)
    return replace(snapshot, brokers=brokers, controls=NO_CONTROLS, doubts=NO_DOUBTS, _derived={})


def _find_holds(snapshot: Snapshot, names: Iterable[str]) -> Iterator[Verdict]:
    for name in names:
        row = snapshot.bundles.find_row(name)
        hold = None if row is None else find_hold(snapshot, row)
        if hold is not None:
            yield hold
