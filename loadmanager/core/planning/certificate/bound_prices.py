"""Search for prices that make a high bound: multiplicative weights on a sample of bundles.

Similar brokers take the same prices without loss. If all are similar, prices give no better bound than volumes, and
none are searched.
"""

from __future__ import annotations

import numpy as np

from loadmanager.core.model.load import BoolArray, FloatArray
from loadmanager.core.planning.certificate.balancing_problem import BalancingProblem, Rows
from loadmanager.core.planning.certificate.bounds import Volume

_SAMPLE = 1500
_STEP_SIZES, _STEPS = (0.5, 0.15, 0.05, 0.015), 40
"""Exponential step sizes by which the most used resource gets dearer; `_STEPS` steps of each, from the best so far."""
_TINY = 1e-300
_OTHERS = 0.5
_GROUPS = 48
_FINEST = 8
"""Brokers are similar if their capacities differ by less than this root of two, or a coarser one if there would be more
groups.
"""


def find_prices(problem: BalancingProblem, volume: Volume) -> FloatArray | None:
    """Find prices (M, R); None if all brokers are similar."""
    group = _groups(problem)
    groups = int(group.max(initial=-1)) + 1
    if groups <= 1:
        return None
    sums = [np.bincount(group, weights=each, minlength=groups) for each in _finite(problem).T]
    capacity: FloatArray = np.stack(sums, axis=1)
    offers = np.zeros((len(problem.may_own), groups), dtype=bool)
    for each in range(groups):
        offers[:, each] = problem.may_own[:, group == each].any(axis=1)
    begin: FloatArray = np.zeros(capacity.shape)
    begin[np.unique(group[volume.brokers]), volume.resource] = 1.0
    rows, weight = _sample(problem)
    prices = _ascend(problem.need[rows] * weight[:, None], offers[problem.classes[rows]], capacity, begin)
    return np.asarray(prices[group])


def _finite(problem: BalancingProblem) -> FloatArray:
    """Return capacities (M, R); 0 where they do not count."""
    return np.where(np.isfinite(problem.capacity), problem.capacity, 0.0)


def _groups(problem: BalancingProblem) -> Rows:
    """Group brokers of similar capacity and equal eligibility (M,)."""
    capacity = _finite(problem)
    size = np.log2(capacity, out=np.zeros_like(capacity), where=capacity > 0)
    classes = np.unique(problem.may_own, axis=1, return_inverse=True)[1]
    for finest in (_FINEST, 2, 1, 0):
        alike = np.concatenate([np.round(size * finest), classes.reshape(-1, 1)], axis=1)
        distinct, group = np.unique(alike, axis=0, return_inverse=True)
        if len(distinct) <= _GROUPS:
            break
    return np.asarray(np.minimum(group.ravel(), _GROUPS - 1))


def _sample(problem: BalancingProblem) -> tuple[Rows, FloatArray]:
    """Sample owned bundles by size, with the number of bundles that each represents."""
    size = problem.size
    rows = np.flatnonzero(size)
    if len(rows) <= _SAMPLE:
        return rows, np.ones(len(rows))
    part = np.cumsum(size[rows]) / size[rows].sum()
    rows = rows[np.searchsorted(part, (np.arange(_SAMPLE) + 0.5) / _SAMPLE).clip(0, len(rows) - 1)]
    return rows, float(size.sum()) / _SAMPLE / size[rows]


def _ascend(need: FloatArray, offered: BoolArray, capacity: FloatArray, begin: FloatArray) -> FloatArray:
    """Return the best prices (T, R) found for needs (n, R) of bundles that may go to groups (n, T) of brokers."""
    per_need = np.divide(1.0, capacity, out=np.zeros_like(capacity), where=capacity > 0)
    even = _normal(capacity / np.maximum(capacity.sum(axis=0), _TINY))
    best = share = _OTHERS * even + (1 - _OTHERS) * _normal(begin * capacity)
    highest = -1.0
    for size in _STEP_SIZES:
        share = best
        for _ in range(_STEPS):
            costs = np.where(offered, need @ (share * per_need).T, np.inf)
            cheapest = costs.argmin(axis=1)
            value = float(costs[np.arange(len(costs)), cheapest].sum())
            if value > highest:
                best, highest = share, value
            taken = [np.bincount(cheapest, weights=each, minlength=len(capacity)) for each in need.T]
            usage = np.stack(taken, axis=1) * per_need
            share = _normal(share * np.exp(size * usage / max(float(usage.max()), _TINY)))
    return best * per_need


def _normal(share: FloatArray) -> FloatArray:
    return share / max(float(share.sum()), _TINY)
