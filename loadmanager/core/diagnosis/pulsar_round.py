"""Emulation of a shedding round of Pulsar's leader on the same cluster.

Strategies and filters are ours, which decide as Pulsar's do. Our additions are left out: operator controls, report
validation, waiting for a report after a move, resets of averages, limits on churn. The owner is also a candidate for a
shed bundle; if it is chosen, the bundle stays.

The memory of Pulsar's leader is not observable. So averages of usage start with the first emulated round and converge
to Pulsar's, at a rate given by `historyResourcePercentage`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from loadmanager.core.domain.controls import NO_CONTROLS
from loadmanager.core.domain.plan import Plan, Verdict
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.report_validation import NO_FAULTS
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
