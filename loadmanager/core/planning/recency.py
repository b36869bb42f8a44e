"""Where the past misleads: which averages of usage a round of shedding begins anew.

A slow average keeps a broker that is overloaded now from being relieved for several rounds, and has one that was
relieved already relieved again and again. So it begins anew, with what the broker uses now, for a broker that is above
`loadBalancerBrokerOverloadedThresholdPercentage`, for those from or to which a round moves something, and for those
that have not reported since.

Differs from Pulsar, where averages go on. A decision on a dump takes the averages as the dump has them; a dump of a
cluster of ours leaves out those that the next round begins anew.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

from loadmanager.core.domain.plan import Plan, Unload
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import BoolArray, FloatArray
from loadmanager.core.model.snapshot import Snapshot, usage_per_broker
from loadmanager.core.strategies.shedding.threshold_shedder import ThresholdShedder

State = dict[str, Any]

_NAME = ThresholdShedder.__name__


def before_round(state: State, snapshot: Snapshot, settings: PlannerSettings) -> State:
    """What strategies remember when a round begins: not what a broker used before it was overloaded."""
    if _NAME not in state:
        return state
    overloaded = are_overloaded(usage_per_broker(snapshot, settings.resource_weights), settings)
    return begin_anew(state, {snapshot.brokers.ids[row] for row in np.flatnonzero(overloaded).tolist()})


def are_overloaded(usage: FloatArray, settings: PlannerSettings) -> BoolArray:
    """Which of these usages, as fractions, are too high to wait for an average."""
    return usage * 100 > settings.broker_overloaded_threshold_percentage


def after_round(state: State, plan: Plan, snapshot: Snapshot) -> State:
    """What strategies remember when a round is carried out: not what brokers used before load came or went."""
    if _NAME not in state:
        return state
    brokers = snapshot.brokers
    waiting = ~brokers.settled | (brokers.preallocated != 0).any(axis=1)
    moving = {brokers.ids[row] for row in np.flatnonzero(waiting).tolist()}
    for step in plan.steps:
        if isinstance(step, Unload):
            moving.add(step.source.broker)
        if step.destination is not None:
            moving.add(step.destination.broker)
    return begin_anew(state, moving)


def begin_anew(state: State, brokers: AbstractSet[str]) -> State:
    """What strategies remember without the averages of these brokers."""
    usage = state.get(_NAME, {}).get("usage", {})
    if brokers.isdisjoint(usage):
        return state
    return {**state, _NAME: {"usage": {broker: entry for broker, entry in usage.items() if broker not in brokers}}}
