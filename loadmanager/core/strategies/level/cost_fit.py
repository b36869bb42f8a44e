"""Cost model: resource usage per unit of load, fitted over all brokers by non-negative least squares.

Bandwidth is proportional to the bytes/s of its direction. CPU and direct memory have a price for each of the four
metrics, and an idle usage. Ridge regression pulls the prices towards equal shares, in case brokers are too similar to
separate the metrics. Only shares of sums are fitted, so the units of the load do not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from loadmanager.core.model.load import (
    BANDWIDTH_IN,
    BANDWIDTH_OUT,
    METRICS,
    THROUGHPUT_IN,
    THROUGHPUT_OUT,
    BoolArray,
    FloatArray,
)

_METRICS_OF = {BANDWIDTH_IN: (THROUGHPUT_IN,), BANDWIDTH_OUT: (THROUGHPUT_OUT,)}
"""Metrics per resource; other resources use all metrics."""
_DRAWN, _DRAWN_TO_NO_IDLE = 1e-3, 0.1
"""Regularization: weights of equal shares, and of zero idle usage, because all usage looks idle once brokers are level.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Price:
    """Price of a resource: usage per unit of each metric (4,), and the usage of an idle broker."""

    per_unit: FloatArray
    idle: float


def fit_price(resource: int, load: FloatArray, used: FloatArray) -> Price:
    """Fit the price of a resource to brokers with these loads (M, 4) and usages (M,); zero if it is unused."""
    metrics = [each for each in _METRICS_OF.get(resource, range(METRICS)) if load[:, each].sum() > 0]
    per_unit, total = np.zeros(METRICS), float(used.sum())
    if not metrics or not total > 0:
        return Price(per_unit, total / max(len(used), 1))
    sums = load[:, metrics].sum(axis=0)
    parts = np.column_stack([load[:, metrics] / sums, np.full(len(used), 1 / len(used))])
    drawn_to = np.append(np.full(len(metrics), 1 / len(metrics)), 0.0)
    shares = _fit(parts * len(used), used / total * len(used), drawn_to)
    per_unit[metrics] = shares[:-1] * total / sums
    return Price(per_unit, float(shares[-1]) * total / len(used))


def _fit(parts: FloatArray, wanted: FloatArray, drawn_to: FloatArray) -> FloatArray:
    """Fit the non-negative weights (k,) of the columns of `parts` (M, k) that approximate `wanted` (M,)."""
    weight = np.full(len(drawn_to), _DRAWN * len(parts))
    weight[-1] = _DRAWN_TO_NO_IDLE * len(parts)
    square = (parts[:, :, None] * parts[:, None, :]).sum(axis=0) + np.diag(weight)
    return best_of_none_negative(square, (parts * wanted[:, None]).sum(axis=0) + weight * drawn_to)


def best_of_none_negative(square: FloatArray, right: FloatArray) -> FloatArray:
    """Return the non-negative x (k,) that minimizes `x @ square @ x / 2 - right @ x`. `square` (k, k) is positive
    definite, and k is small.

    For a given set of zeros, the other unknowns solve their own equations, with value `-right @ x / 2`. So the answer
    is the highest `right @ x` over all sets of zeros whose solution is non-negative.
    """
    found = _solved(square, right)
    height = np.where((found >= 0).all(axis=0), (found * right[:, None]).sum(axis=0), -np.inf)
    return np.asarray(found[:, np.argmax(height)])


def _solved(square: FloatArray, right: FloatArray) -> FloatArray:
    """Solve the equations for each subset of unknowns (k, 2**k), the others 0; by elimination, which is bitwise equal
    on every machine and needs no pivoting as `square` is positive definite.
    """
    count = len(right)
    is_chosen = _choices(count)
    both = np.where(is_chosen[:, None] & is_chosen[None, :], square[:, :, None], np.eye(count)[:, :, None])
    rows = np.concatenate([both, np.where(is_chosen, right[:, None], 0.0)[:, None]], axis=1)
    for pivot in range(count):
        row = rows[pivot] / rows[pivot, pivot]
        rows -= rows[:, pivot, None] * row
        rows[pivot] = row
    return rows[:, -1]


@cache
def _choices(count: int) -> BoolArray:
    """Return all subsets of `count` elements as masks (k, 2**k)."""
    return (np.arange(1 << count) >> np.arange(count)[:, None] & 1).astype(np.bool_)
