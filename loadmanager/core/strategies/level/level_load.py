"""What each bundle needs and each broker uses, as Level sees it: of every resource that counts, by what is assigned.

A bundle needs what it carries at present, by time (`core/model/time_means.py`), or on the mean of the next hours where
it was learned how the load of its namespace goes (`core/model/learned_loads.py`): what is about to grow is relieved
before, and what is about to shrink is let be. One that is on its way counts at its destination. A broker's usage is
what its bundles need, divided by what it has; one whose CPU does more, or less, than it should for its load has so much
less of it, or more. What a broker uses when idle is left out: no move changes it. The **level** is where usage would
stand if all load could be poured over the brokers, of the resource that runs out first. Heat is usage over the level.

Where brokers of one host all report the CPU of the whole host, each is taken to use of it what it carries. Where no
limit is known at all, what bundles carry is what they need, and all brokers are alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from loadmanager.core.domain.names import BrokerId, broker_host
from loadmanager.core.domain.resources import ResourceWeights
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.extensible_load import throughput_of
from loadmanager.core.model.load import (
    BANDWIDTH_IN,
    BANDWIDTH_OUT,
    CPU,
    DIRECT_MEMORY,
    METRICS,
    MSG_RATE_IN,
    MSG_RATE_OUT,
    RATED,
    THROUGHPUT_IN,
    THROUGHPUT_OUT,
    BoolArray,
    FloatArray,
)
from loadmanager.core.model.snapshot import Snapshot, sum_by_broker
from loadmanager.core.strategies.level.cost_fit import Price, fit_price

_BLIND_LEVEL = 0.5
"""The level where no limit is known: any will do, as only heat counts then."""
_CARRIED = -1
_NAMES = {**RATED, _CARRIED: "what it carries, as no limit is known"}
"""Of resources, the one for want of any other among them."""
_LEAST_LOAD = 1.0
"""Less than this, in bytes/s or messages/s, is nothing then."""
_MOST = 1e18
"""What is more than this, or not a number, is no load."""
_SATURATED = 0.95
"""A broker that uses so much may need more than it shows: it is not taken for a fast one."""
_SLOW_FROM, _SLOWEST = 1.15, 4.0
"""From which ratio of used to expected CPU on a broker counts as slow, and how slow or fast at the most."""
_REFITS = 3
_FORGIVEN = 0.05
"""The part of its CPU that a broker may use for other things without being taken for a slow one."""
_ALIKE = 0.2
"""Brokers of one host whose use of CPU differs by no more than this part of it report that of the whole host, each as
it was when it looked.
"""


@dataclass(frozen=True, slots=True, eq=False)
class LevelLoads:
    """`need` (N, R): what each bundle takes of each resource that counts. `per_need` (M, R): what one unit of that adds
    to a broker's usage: where its limit is not known as for the others, and 0 if none is. `usage` (M, R) as fractions,
    weighted. `resources` are their columns in a report, `prices` (R, 4) what a unit of load takes of each. A level
    below `least` counts as that.
    """

    resources: tuple[int, ...]
    prices: FloatArray
    need: FloatArray
    per_need: FloatArray
    usage: FloatArray
    level: float
    least: float

    @classmethod
    def of(cls, snapshot: Snapshot, settings: PlannerSettings) -> LevelLoads:
        weights, hours = settings.resource_weights, settings.level_forecast_hours
        least = settings.level_least_usage_percentage / 100
        return snapshot.derive(
            ("level loads", weights, hours, least), lambda: _loads_of(snapshot, weights, hours, least)
        )

    def heat(self) -> FloatArray:
        """(M,): how many times the level the most used resource of each broker is."""
        return heat_of(self.usage, self.level)

    def level_without(self, resting: BoolArray) -> float:
        """The level when the brokers (M,) that rest keep what they have; at least that of all."""
        needs = np.divide(self.usage, self.per_need, out=np.zeros_like(self.usage), where=self.per_need > 0)
        return max(level_of(needs[~resting].sum(axis=0), self.per_need[~resting], self.least), self.level)

    def need_of(self, load: FloatArray) -> FloatArray:
        """(R,): what a load (4,) takes of each resource."""
        return np.asarray((self.prices * as_amounts(load)).sum(axis=1))

    def names(self) -> list[str]:
        """Of the resources."""
        return [_NAMES[resource] for resource in self.resources]

    def hottest_resources(self) -> list[str]:
        """The name of the most used resource of each broker."""
        names = self.names()
        return [names[column] for column in self.usage.argmax(axis=1).tolist()]


def heat_of(usage: FloatArray, level: float) -> FloatArray:
    """(M,): how many times the level the highest of each row of usages (M, R) is."""
    return np.asarray(usage.max(axis=-1, initial=0.0) / level)


def level_of(used: FloatArray, per_need: FloatArray, least: float) -> float:
    """The level when brokers with these figures (M, R) use so much in all (R,), at least the `least`."""
    having = np.divide(1.0, per_need, out=np.zeros_like(per_need), where=per_need > 0).sum(axis=0)
    levels = np.divide(used, having, out=np.zeros_like(used), where=having > 0)
    return max(float(levels.max(initial=0.0)), least)


def as_amounts(figures: FloatArray) -> FloatArray:
    """The figures without what is no amount of anything."""
    return np.nan_to_num(figures, nan=0.0, posinf=0.0, neginf=0.0).clip(0.0, _MOST)


def _loads_of(snapshot: Snapshot, weights: ResourceWeights, hours: float, least: float) -> LevelLoads:
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
    used[:, CPU] = _own_cpu(brokers.ids, used[:, CPU], limit[:, CPU], throughput_of(reported))
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
    if not per_need.any() and any(weight_of.values()) and load.sum() >= _LEAST_LOAD:
        resources, prices, per_need = _blind(load, len(brokers))
    need = np.stack([(load * price).sum(axis=1) for price in prices], axis=1)
    amount = sum_by_broker(bundles.assigned, need.T, len(brokers))
    level = level_of(amount.sum(axis=0), per_need, least)
    return LevelLoads(resources, prices, need, per_need, amount * per_need, level, least)


def _own_cpu(ids: Sequence[BrokerId], used: FloatArray, limit: FloatArray, carried: FloatArray) -> FloatArray:
    """The CPU (M,) that each broker uses: where those of one host all report the same of it, though they carry bytes/s
    (M,), what they report is the host's, and each is taken to use so much more of it than the mean as it carries more.
    """
    own = used.copy()
    for rows in _on_one_host(ids):
        alike = np.ptp(used[rows]) <= _ALIKE * used[rows].max() and not np.ptp(limit[rows])
        if alike and carried[rows].sum() > 0:
            own[rows] = used[rows].mean() * carried[rows] / carried[rows].mean()
    return own


def _on_one_host(ids: Sequence[BrokerId]) -> Iterator[list[int]]:
    """The rows of the brokers of each host that has several."""
    rows: dict[str, list[int]] = defaultdict(list)
    for row, broker in enumerate(ids):
        rows[broker_host(broker)].append(row)
    return (each for each in rows.values() if len(each) > 1)


def _blind(load: FloatArray, brokers: int) -> tuple[tuple[int, ...], FloatArray, FloatArray]:
    """The resource, its prices (1, 4), and what a unit of need adds to each broker (M, 1), where no limit is known:
    bytes/s, or messages/s where there are no bytes, all of which together are that level.
    """
    metrics = [THROUGHPUT_IN, THROUGHPUT_OUT] if throughput_of(load).any() else [MSG_RATE_IN, MSG_RATE_OUT]
    prices = np.zeros((1, METRICS))
    prices[0, metrics] = 1.0
    total = max(float(load[:, metrics].sum()), _LEAST_LOAD)
    return (_CARRIED,), prices, np.full((brokers, 1), brokers * _BLIND_LEVEL / total)


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
