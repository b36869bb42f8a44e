"""Load model of Level: needs of bundles and usage of brokers, per resource, by assignment.

The need of a bundle is its current load (`core/model/time_means.py`). With a learned profile of its namespace
(`core/model/learned_loads.py`) it is the expected mean of the next hours, so that growing load is relieved early, and
shrinking load stays. A moving bundle counts at its destination. A broker's usage is the need of its bundles over its
capacity. The CPU capacity of a broker that uses more, or less, than expected for its load is scaled accordingly. Idle
usage is not counted, since no move changes it. The **level** is the usage of the scarcest resource if all load were
divisible. Heat is usage over the level.

If brokers of one host all report the CPU of the whole host, it is divided in proportion to their load. If no limit is
known at all, needs are the load of the bundles, and all brokers are equal.
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
    CPU,
    METRICS,
    MSG_RATE_IN,
    MSG_RATE_OUT,
    RATED,
    THROUGHPUT_IN,
    THROUGHPUT_OUT,
    BoolArray,
    FloatArray,
    RowArray,
    rated_weights,
)
from loadmanager.core.model.snapshot import Snapshot, sum_by_broker
from loadmanager.core.strategies.level.cost_fit import Price, fit_price

LEAST_LEVEL = 1e-4
"""Minimum level: a fleet that uses less needs no moves."""
_BLIND_LEVEL = 0.5
"""Level of a blind fleet, where no limit is known or usage does not follow from load. The value does not matter, since
only heat counts then.
"""
_CARRIED = -1
_NAMES = {**RATED, _CARRIED: "what it carries, as usage or limits do not show it"}
"""Names of resources, including the substitute of a blind fleet."""
_LEAST_LOAD = 1.0
"""Minimum load of a blind fleet, in bytes/s or messages/s."""
_MOST = 1e18
"""Upper limit of a plausible load."""
_SATURATED = 0.95
"""Usage above which a broker may need more CPU than it gets, and does not count as fast."""
_SLOW_FROM, _SLOWEST = 1.15, 4.0
"""Ratio of used to expected CPU from which a broker counts as slow, and the limit of the ratio both ways."""
_REFITS = 3
_FORGIVEN = 0.05
"""Part of its CPU that a broker may use for other purposes without counting as slow."""
FORECAST_HOURS = 2.0
"""Forecast horizon of learned profiles, in hours: long enough to relieve a broker before the load rises, and shorter
than the rest of a moved bundle.
"""
_ALIKE = 0.2
"""Tolerance within which CPU usages of brokers on one host count as that of the host, sampled at different times."""


@dataclass(frozen=True, slots=True, eq=False)
class LevelLoads:
    """`need` (N, R): need of each bundle per resource. `per_need` (M, R): usage per unit of need; estimated where the
    limit is unknown, 0 if no broker has one. `usage` (M, R) as fractions, weighted. `resources` are their report
    columns, `prices` (R, 4) the need per unit of load.
    """

    resources: tuple[int, ...]
    prices: FloatArray
    need: FloatArray
    per_need: FloatArray
    usage: FloatArray
    level: float

    @classmethod
    def of(cls, snapshot: Snapshot, settings: PlannerSettings, hours: float = FORECAST_HOURS) -> LevelLoads:
        """Return the expected loads of the next hours; with 0 hours, the current ones."""
        weights = settings.resource_weights
        return snapshot.derive(("level loads", weights, hours), lambda: _loads_of(snapshot, weights, hours))

    def heat(self) -> FloatArray:
        """Return the usage of each broker's most used resource over the level (M,)."""
        return compute_heat(self.usage, self.level)

    def level_without(self, resting: BoolArray) -> float:
        """Return the level if resting brokers (M,) keep their bundles; at least the level of all."""
        needs = np.divide(self.usage, self.per_need, out=np.zeros_like(self.usage), where=self.per_need > 0)
        return max(compute_level(needs[~resting].sum(axis=0), self.per_need[~resting]), self.level)

    def usage_of_indivisible(self, assigned: RowArray) -> FloatArray:
        """Return the usage (M,) that each broker's largest bundle causes even on the most suitable broker; 0 if that is
        not above the level.
        """
        least = np.multiply(self.need.T, self.per_need.min(axis=0)[:, None], order="C").max(axis=0, initial=0.0)
        large = np.flatnonzero((least > self.level) & (assigned >= 0))
        alone = (self.need[large][:, None, :] * self.per_need).max(axis=2).min(axis=1)
        highest = np.zeros(len(self.per_need))
        np.maximum.at(highest, assigned[large], alone)
        return highest

    def need_of(self, load: FloatArray) -> FloatArray:
        """Return the need (R,) of a load (4,)."""
        return np.asarray((self.prices * as_amounts(load)).sum(axis=1))

    def names(self) -> list[str]:
        return [_NAMES[resource] for resource in self.resources]

    def hottest_resources(self) -> list[str]:
        """Return the name of each broker's most used resource."""
        names = self.names()
        return [names[column] for column in self.usage.argmax(axis=1).tolist()]


def compute_heat(usage: FloatArray, level: float) -> FloatArray:
    """Return the maximum of each row of usages (M, R) over the level (M,)."""
    return np.asarray(usage.max(axis=-1, initial=0.0) / level)


def compute_level(used: FloatArray, per_need: FloatArray, least: float = LEAST_LEVEL) -> float:
    """Return the level of brokers with these figures (M, R) and total need (R,), at least `least`."""
    having = np.divide(1.0, per_need, out=np.zeros_like(per_need), where=per_need > 0).sum(axis=0)
    levels = np.divide(used, having, out=np.zeros_like(used), where=having > 0)
    return max(float(levels.max(initial=0.0)), least)


def bound_level(need: FloatArray, per_need: FloatArray) -> float:
    """Return a lower bound of the highest usage in any assignment of bundles (N, R) to brokers (M, R).

    By weak duality: each broker has a price only for its scarcest resource under the total need, scaled so that the
    total need costs the same everywhere; each bundle pays its lowest price. The bound is exact if all bundles need
    resources in the same proportion. The level of a single resource is lower if the scarcest resources differ.
    """
    total = need.sum(axis=0)
    alone = (total * per_need).max(axis=1, initial=0.0)
    if not alone.all() or not len(alone):
        return 0.0
    scarce = np.unique((total * per_need).argmax(axis=1))
    cheapest = (need[:, scarce] / total[scarce]).min(axis=1)
    return float(cheapest.sum() * alone.min() / (alone.min() / alone).sum())


def as_amounts(figures: FloatArray) -> FloatArray:
    """Clamp figures to valid amounts."""
    return np.nan_to_num(figures, nan=0.0, posinf=0.0, neginf=0.0).clip(0.0, _MOST)


def _loads_of(snapshot: Snapshot, weights: ResourceWeights, hours: float) -> LevelLoads:
    bundles, brokers = snapshot.bundles, snapshot.brokers
    weight_of = rated_weights(weights)
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
    is_blind = not per_need[:, prices.any(axis=1)].any()
    if is_blind and any(weight_of.values()) and load.sum() >= _LEAST_LOAD:
        resources, prices, per_need = _blind(load, len(brokers))
    metrics = load.T.copy()  # sums of contiguous columns are fast
    need = np.stack([(metrics * price[:, None]).sum(axis=0) for price in prices], axis=1)
    amount = sum_by_broker(bundles.assigned, need.T, len(brokers))
    bound = max(LEAST_LEVEL, bound_level(need[bundles.assigned >= 0], per_need))
    level = compute_level(amount.sum(axis=0), per_need, bound)
    return LevelLoads(resources, prices, need, per_need, amount * per_need, level)


def _own_cpu(ids: Sequence[BrokerId], used: FloatArray, limit: FloatArray, carried: FloatArray) -> FloatArray:
    """Return the CPU usage (M,) of each broker. If all brokers of a host report the same usage despite different loads
    in bytes/s (M,), it is that of the host, and is divided in proportion to their load.
    """
    own = used.copy()
    for rows in _on_one_host(ids):
        alike = np.ptp(used[rows]) <= _ALIKE * used[rows].max() and not np.ptp(limit[rows])
        if alike and carried[rows].sum() > 0:
            own[rows] = used[rows].mean() * carried[rows] / carried[rows].mean()
    return own


def _on_one_host(ids: Sequence[BrokerId]) -> Iterator[list[int]]:
    """Yield the broker rows of each host with several brokers."""
    rows: dict[str, list[int]] = defaultdict(list)
    for row, broker in enumerate(ids):
        rows[broker_host(broker)].append(row)
    return (each for each in rows.values() if len(each) > 1)


def _blind(load: FloatArray, brokers: int) -> tuple[tuple[int, ...], FloatArray, FloatArray]:
    """Return the substitute resource, its prices (1, 4), and usage per unit of need (M, 1), of a blind fleet:
    bytes/s, or messages/s without any bytes, scaled so that all of it is the level.
    """
    metrics = [THROUGHPUT_IN, THROUGHPUT_OUT] if throughput_of(load).any() else [MSG_RATE_IN, MSG_RATE_OUT]
    prices = np.zeros((1, METRICS))
    prices[0, metrics] = 1.0
    total = max(float(load[:, metrics].sum()), _LEAST_LOAD)
    return (_CARRIED,), prices, np.full((brokers, 1), brokers * _BLIND_LEVEL / total)


def _expected_load(snapshot: Snapshot, hours: float) -> FloatArray:
    """Return the current load of bundles (N, 4), or the expected mean of the next hours where known."""
    bundles, learned = snapshot.bundles, snapshot.learned
    if not learned.profiles:
        return bundles.present
    changes = [learned.change(name, snapshot.taken_at_s, hours) for name in bundles.namespaces]
    return np.asarray(bundles.present * np.array(changes)[bundles.namespace][:, None])


def _without_slow(price: Price, load: FloatArray, used: FloatArray, limit: FloatArray) -> tuple[Price, FloatArray]:
    """Fit the CPU price without slow brokers, and return each broker's slowness."""
    slowness = _slowness(price, load, used, limit)
    for _ in range(_REFITS if (slowness != 1).any() else 0):
        price = fit_price(CPU, load, used / slowness)
        slowness = _slowness(price, load, used, limit)
    return price, slowness


def _slowness(price: Price, load: FloatArray, used: FloatArray, limit: FloatArray) -> FloatArray:
    """Return the ratio (k,) of each broker's CPU usage to the typical one for its load."""
    expected = price.idle + (load * price.per_unit).sum(axis=1)
    ratio = (used + _FORGIVEN * limit) / (expected + _FORGIVEN * limit)
    ratio /= np.median(ratio)
    ratio = np.where(used >= _SATURATED * limit, np.maximum(ratio, 1.0), ratio).clip(1 / _SLOWEST, _SLOWEST)
    return np.where((ratio < _SLOW_FROM) & (ratio > 1 / _SLOW_FROM), 1.0, ratio)
