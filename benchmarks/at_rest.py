"""Imbalance of a scenario if bundles are spread once, by their loads over the whole run, and never moved.

A reference for strategies: it shows the effect of noise, and the cost of not moving. Strategies cannot know future
loads, but they may move bundles.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadmanager.core.model.load import CPU, FloatArray, IntArray
from loadmanager.history.synthetic_fleet import Series
from loadmanager.lab.simulate.fleet_events import ReportsGoBad
from loadmanager.lab.simulate.scenario import Scenario, numbered
from loadmanager.lab.simulate.scenario_run import settings_for
from loadmanager.lab.simulate.sim_result import counted_resources
from loadmanager.lab.simulate.world_builder import broker_spec, world_of

MOMENTS = 500
"""Number of steps that are evaluated."""


def imbalance_at_rest(scenario: Scenario, recorded: Sequence[Series] = ()) -> float:
    """Return the mean imbalance over time; NaN if brokers join, leave or change, or if loads jump."""
    if not all(isinstance(event, ReportsGoBad) for event in scenario.events):
        return float("nan")
    settings, cost = settings_for(scenario, "", {}), scenario.costs
    workload = world_of(scenario, settings, recorded).workload
    counted = counted_resources(settings.planner_settings())
    capacity = _capacity(scenario)[:, counted]
    steps = int(scenario.duration_s / scenario.step_s)
    moments = np.unique(np.linspace(0, steps - 1, MOMENTS).astype(int)) * scenario.step_s
    needs = [cost.demand(workload.load_at(t_s), workload.topics_at(t_s))[:, counted] for t_s in moments.tolist()]
    owner = _spread(np.mean(needs, axis=0), capacity)
    return float(np.mean([_imbalance(need, owner, capacity) for need in needs]))


def _capacity(scenario: Scenario) -> FloatArray:
    """Return the capacity of the brokers (M, 5); a faster CPU counts as a larger one."""
    specs = [broker_spec(name, kind) for name, kind in numbered(scenario.brokers, 0)]
    capacity = np.array([spec.capacity for spec in specs])
    capacity[:, CPU] *= [spec.speed for spec in specs]
    return capacity


def _spread(need: FloatArray, capacity: FloatArray) -> IntArray:
    """Assign bundles greedily, the largest first, each to the broker whose highest usage is then lowest."""
    owner = np.zeros(len(need), dtype=np.int64)
    used = np.zeros_like(capacity)
    for row in np.argsort(-(need / capacity.sum(axis=0)).max(axis=1), kind="stable").tolist():
        owner[row] = int(np.argmin(((used + need[row]) / capacity).max(axis=1)))
        used[owner[row]] += need[row]
    return owner


def _imbalance(need: FloatArray, owner: IntArray, capacity: FloatArray) -> float:
    level = float((need.sum(axis=0) / capacity.sum(axis=0)).max())
    used = np.stack([np.bincount(owner, weights=column, minlength=len(capacity)) for column in need.T], axis=1)
    return float((used / capacity).max()) / level if level > 0 else 1.0
