"""Observed course of a recorded range, in the figures of a simulated one (`lab.simulate.sim_result.StepSeries`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import CPU, FloatArray
from loadmanager.lab.simulate.broker_cost import CostModel
from loadmanager.lab.simulate.calibration import ReportSeries
from loadmanager.lab.simulate.recorded_world import HOLD_S
from loadmanager.lab.simulate.sim_result import mean_known
from loadmanager.lab.simulate.world_recorder import counted_resources

_GONE_S = 2 * HOLD_S


@dataclass(frozen=True, slots=True, eq=False)
class ObservedRange:
    """Imbalance and highest usage (a fraction of the most used resource) at each step."""

    t_s: FloatArray
    imbalance: FloatArray
    worst_usage: FloatArray

    @property
    def mean_imbalance(self) -> float:
        return mean_known(self.imbalance)


def observe_range(
    rows: ReportSeries,
    settings: PlannerSettings,
    cost: CostModel,
    duration_s: float,
    step_s: float,
    turns: Sequence[tuple[float, int, bool]] = (),
) -> ObservedRange:
    """Compute the observed course.

    A report is valid until the broker's next one, until the broker leaves, or until it has been silent for twice
    `HOLD_S`. `turns` are the times, in order, when brokers, by number, registered (True) or left; the last report of a
    broker ends then.

    A broker that first reports within `HOLD_S` counts as registered from the start, unless the time is known.
    """
    counted = counted_resources(settings)
    demand = cost.demand(rows.load, rows.topics)
    usage = np.where(rows.limits > 0, rows.used / np.where(rows.limits > 0, rows.limits, 1.0), 0.0)
    first = np.unique(rows.broker, return_index=True)[1]
    begins = {broker: not is_there for _, broker, is_there in reversed(turns)}
    was_there = np.array([begins.get(broker, rows.at_s[row] <= HOLD_S) for broker, row in enumerate(first.tolist())])
    last = np.where(was_there, first, -1)
    steps = np.arange(int(np.ceil(duration_s / step_s)), dtype=np.float64) * step_s
    found = np.full((len(steps), 2), np.nan)
    done = turned = 0
    for number, t_s in enumerate(steps.tolist()):
        end = int(np.searchsorted(rows.at_s, t_s, side="right"))
        last[rows.broker[done:end]] = np.arange(done, end)  # the last of several reports of a broker counts
        done = end
        while turned < len(turns) and turns[turned][0] <= t_s:
            at_s, broker, _ = turns[turned]
            if rows.at_s[last[broker]] <= at_s:
                last[broker] = -1
            turned += 1
        up = last[(last >= 0) & (rows.at_s[last] > t_s - _GONE_S)]
        if len(up):
            highest = usage[up][:, counted].max(initial=0.0)
            found[number] = _imbalance(demand[up], rows.limits[up], counted), highest
    return ObservedRange(steps, *found.T)


def _imbalance(demand: FloatArray, capacity: FloatArray, counted: list[int]) -> float:
    """Return the imbalance as the simulator computes it; a resource without any known limit is left out."""
    limits = np.where(capacity > 0, capacity, np.inf)
    total = np.where(np.isfinite(limits), limits, 0.0).sum(axis=0)
    levels = np.divide(demand.sum(axis=0), total, out=np.zeros(len(total)), where=total > 0)
    level = float(levels[counted].max(initial=0.0)) if len(counted) else float(levels[CPU])
    return float((demand / limits)[:, counted].max()) / level if level > 0 else 1.0
