"""What really happened in a recorded range, in the figures in which a world says it: see `sim.result.Series`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmanager.core.load import CPU, FloatArray, IntArray
from loadmanager.core.settings import PlannerSettings
from loadmanager.sim.cost import CostModel
from loadmanager.sim.recorded import HOLD_S, BrokerRows
from loadmanager.sim.recorder import counted_resources

_GONE_S = 2 * HOLD_S


@dataclass(frozen=True, slots=True, eq=False)
class BrokerLoads:
    """What the brokers' reports say besides: loads (n, 4), topics (n,) and usage of each resource (n, 5)."""

    load: FloatArray
    topics: IntArray
    used: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Happened:
    """At each step: how the busiest broker compares with the level of all, by its load; what the worst one used (a
    fraction), and that beside the mean of what all used, each of its most used resource.
    """

    t_s: FloatArray
    imbalance: FloatArray
    worst_usage: FloatArray
    max_over_mean: FloatArray

    @property
    def mean_imbalance(self) -> float:
        return _mean(self.imbalance)

    @property
    def mean_max_over_mean(self) -> float:
        return _mean(self.max_over_mean)


def what_happened(
    rows: BrokerRows,
    loads: BrokerLoads,
    settings: PlannerSettings,
    cost: CostModel,
    duration_s: float,
    step_s: float,
) -> Happened:
    """A report holds until the broker's next one, or until the broker has been silent for twice `HOLD_S`.

    Who first reports within `HOLD_S` was there from the beginning.
    """
    counted = counted_resources(settings)
    demand = cost.demand(loads.load, loads.topics)
    usage = np.where(rows.capacity > 0, loads.used / np.where(rows.capacity > 0, rows.capacity, 1.0), 0.0)
    names = {name: number for number, name in enumerate(dict.fromkeys(rows.broker.tolist()))}
    broker = np.array([names[name] for name in rows.broker.tolist()], dtype=np.int64)
    first = np.unique(broker, return_index=True)[1]
    last = np.where(rows.at_s[first] <= HOLD_S, first, -1)
    steps = np.arange(int(np.ceil(duration_s / step_s)), dtype=np.float64) * step_s
    found = np.full((len(steps), 3), np.nan)
    done = 0
    for number, t_s in enumerate(steps.tolist()):
        end = int(np.searchsorted(rows.at_s, t_s, side="right"))
        last[broker[done:end]] = np.arange(done, end)  # of several reports of a broker the last one holds
        done = end
        up = last[(last >= 0) & (rows.at_s[last] > t_s - _GONE_S)]
        if len(up):
            highest = usage[up][:, counted].max(axis=1, initial=0.0)
            mean = highest.mean()
            ratio = highest.max() / mean if mean > 0 else 1.0
            found[number] = _imbalance(demand[up], rows.capacity[up], counted), highest.max(), ratio
    return Happened(steps, *found.T)


def _mean(values: FloatArray) -> float:
    """Of those that are known; 1 for none."""
    known = values[~np.isnan(values)]
    return float(np.cumsum(known)[-1]) / len(known) if len(known) else 1.0


def _imbalance(demand: FloatArray, capacity: FloatArray, counted: list[int]) -> float:
    """As a world counts it; a resource whose limit is not known anywhere does not count."""
    limits = np.where(capacity > 0, capacity, np.inf)
    total = np.where(np.isfinite(limits), limits, 0.0).sum(axis=0)
    levels = np.divide(demand.sum(axis=0), total, out=np.zeros(len(total)), where=total > 0)
    level = float(levels[counted].max(initial=0.0)) if len(counted) else float(levels[CPU])
    return float((demand / limits)[:, counted].max()) / level if level > 0 else 1.0
