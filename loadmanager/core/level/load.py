"""What each bundle needs and each broker uses, as Level sees it: of every resource that counts, by what is assigned.

A bundle needs what it carries at present, by time (`core/time_means.py`), or on the mean of the next hours where it was
learned how the load of its namespace goes (`core/learned.py`): what is about to grow is relieved before, and what is
about to shrink is let be. One that is on its way counts at its destination. A broker's usage is what its bundles need,
divided by what it has; one whose CPU does more, or less, than it should for its load has so much less of it, or more.
What a broker uses when idle is left out: no move changes it. The **level** is where usage would stand if all load
could be poured over the brokers, of the resource that runs out first. Heat is usage over the level.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmanager.core.level.cost import Price, fit_price
from loadmanager.core.load import BANDWIDTH_IN, BANDWIDTH_OUT, CPU, DIRECT_MEMORY, METRICS, RATED, BoolArray, FloatArray
from loadmanager.core.resources import ResourceWeights
from loadmanager.core.settings import PlannerSettings
from loadmanager.core.snapshot import Snapshot, sum_by_broker

LEAST_LEVEL = 0.02
"""A level below this counts as this: what is uneven about an idle cluster is not worth a move."""
_MOST = 1e18
"""What is more than this, or not a number, is no load."""
_SATURATED = 0.95
"""A broker that uses so much may need more than it shows: it is not taken for a fast one."""
_SLOW_FROM, _SLOWEST = 1.15, 4.0
"""From which ratio of used to expected CPU on a broker counts as slow, and how slow or fast at the most."""
_REFITS = 3
_FORGIVEN = 0.05
"""The part of its CPU that a broker may use for other things without being taken for a slow one."""


@dataclass(frozen=True, slots=True, eq=False)
class Loads:
    """`need` (N, R): what each bundle takes of each resource that counts. `per_need` (M, R): what one unit of that adds
    to a broker's usage: where its limit is not known as for the others, and 0 if none is. `usage` (M, R) as fractions,
    weighted. `resources` are their columns in a report, `prices` (R, 4) what a unit of load takes of each.
    """

    resources: tuple[int, ...]
    prices: FloatArray
    need: FloatArray
    per_need: FloatArray
    usage: FloatArray
    level: float

    @classmethod
    def of(cls, snapshot: Snapshot, settings: PlannerSettings) -> Loads:
        weights, hours = settings.resource_weights, settings.level_forecast_hours
        return snapshot.derive(("level loads", weights, hours), lambda: _loads_of(snapshot, weights, hours))

    def heat(self) -> FloatArray:
        """(M,): how many times the level the most used resource of each broker is."""
        return heat_of(self.usage, self.level)

    def level_without(self, resting: BoolArray) -> float:
        """The level when the brokers (M,) that rest keep what they have; at least that of all."""
        needs = np.divide(self.usage, self.per_need, out=np.zeros_like(self.usage), where=self.per_need > 0)
        return max(level_of(needs[~resting].sum(axis=0), self.per_need[~resting]), self.level)

    def need_of(self, load: FloatArray) -> FloatArray:
        """(R,): what a load (4,) takes of each resource."""
        return np.asarray((self.prices * as_amounts(load)).sum(axis=1))

    def hottest_resources(self) -> list[str]:
        """The name of the most used resource of each broker."""
        return [RATED[self.resources[column]] for column in self.usage.argmax(axis=1).tolist()]


def heat_of(usage: FloatArray, level: float) -> FloatArray:
    """(M,): how many times the level the highest of each row of usages (M, R) is."""
    return np.asarray(usage.max(axis=-1, initial=0.0) / level)


def level_of(used: FloatArray, per_need: FloatArray) -> float:
    """The level when brokers with these figures (M, R) use so much in all (R,), at least `LEAST_LEVEL`."""
    having = np.divide(1.0, per_need, out=np.zeros_like(per_need), where=per_need > 0).sum(axis=0)
    levels = np.divide(used, having, out=np.zeros_like(used), where=having > 0)
    return max(float(levels.max(initial=0.0)), LEAST_LEVEL)


def as_amounts(figures: FloatArray) -> FloatArray:
    """The figures without what is no amount of anything."""
    return np.nan_to_num(figures, nan=0.0, posinf=0.0, neginf=0.0).clip(0.0, _MOST)


def _loads_of(snapshot: Snapshot, weights: ResourceWeights, hours: float) -> Loads:
    bundles, brokers = snapshot.bundles, snapshot.brokers
    weight_of = {
        CPU: weights.cpu,
        DIRECT_MEMORY: weights.direct_memory,
        BANDWIDTH_IN: weights.bandwidth_in,
        BANDWIDTH_OUT: weights.bandwidth_out,
    }
    resources = tuple(resource for resource, weight in weight_of.items() if weight > 0) or (CPU,)
    reported, usage = as_amounts(brokers.load), as_amounts(brokers.usage)
    used, limit = usage[..., 0], usage[..., 1]
    prices, per_need = np.zeros((len(resources), METRICS)), np.zeros((len(brokers), len(resources)))
    for column, resource in enumerate(resources):
        known = limit[:, resource] > 0
        price = fit_price(resource, reported[known], used[known, resource])
        slowness = np.ones(len(brokers))
        if resource == CPU and known.any():
            price, slowness[known] = _without_slow(price, reported[known], used[known, CPU], limit[known, CPU])
        prices[column] = price.per_unit
        per_need[known, column] = weight_of[resource] * slowness[known] / limit[known, resource]
        per_need[~known, column] = per_need[known, column].mean() if known.any() else 0.0
    load = _expected_load(snapshot, hours)
    need = np.stack([(load * price).sum(axis=1) for price in prices], axis=1)
    amount = sum_by_broker(bundles.assigned, need.T, len(brokers))
    level = level_of(amount.sum(axis=0), per_need)
    return Loads(resources, prices, need, per_need, amount * per_need, level)


def _expected_load(snapshot: Snapshot, hours: float) -> FloatArray:
    """(N, 4): what bundles carry at present, or on the mean of the next hours where it is known how that goes."""
    bundles, learned = snapshot.bundles, snapshot.learned
    if not learned.profiles:
        return bundles.present
    changes = [learned.change(name, snapshot.taken_at_s, hours) for name in bundles.namespaces]
    return np.asarray(bundles.present * np.array(changes)[bundles.namespace][:, None])


def _without_slow(price: Price, load: FloatArray, used: FloatArray, limit: FloatArray) -> tuple[Price, FloatArray]:
    """The price of CPU as if no broker were slow, and how slow each is; few slow ones do not make it dearer for all."""
    slowness = _slowness(price, load, used, limit)
    for _ in range(_REFITS if (slowness != 1).any() else 0):
        price = fit_price(CPU, load, used / slowness)
        slowness = _slowness(price, load, used, limit)
    return price, slowness


def _slowness(price: Price, load: FloatArray, used: FloatArray, limit: FloatArray) -> FloatArray:
    """How many times the CPU each broker (k,) uses that most brokers use for such a load."""
    expected = price.idle + (load * price.per_unit).sum(axis=1)
    ratio = (used + _FORGIVEN * limit) / (expected + _FORGIVEN * limit)
    ratio /= np.median(ratio)
    ratio = np.where(used >= _SATURATED * limit, np.maximum(ratio, 1.0), ratio).clip(1 / _SLOWEST, _SLOWEST)
    return np.where((ratio < _SLOW_FROM) & (ratio > 1 / _SLOW_FROM), 1.0, ratio)
