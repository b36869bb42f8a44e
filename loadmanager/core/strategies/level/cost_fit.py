"""What load costs brokers of each resource: fitted over all brokers, from what each reports of both at one moment.

Bandwidth goes by the bytes/s of its direction, CPU and direct memory by a price for each of the four metrics and by
what an idle broker uses: least squares, none negative, drawn towards equal shares where brokers are too alike to tell
the metrics apart. Only shares of sums are fitted, so the unit of a load does not matter.
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
"""Of the other resources: all."""
_DRAWN, _DRAWN_TO_NO_IDLE = 1e-3, 0.1
"""How much equal shares weigh beside what the brokers say; and that idle brokers use nothing, as all usage would look
like that of idle brokers once they are level.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Price:
    """What one unit of each metric (4,) takes of a resource, and what an idle broker uses of it."""

    per_unit: FloatArray
    idle: float


def fit_price(resource: int, load: FloatArray, used: FloatArray) -> Price:
    """The price of a resource, of which brokers with these loads (M, 4) use so much (M,); nothing when none is used."""
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
    """The shares (k,), none negative, with which the columns of `parts` (M, k) come nearest to what is wanted (M,)."""
    weight = np.full(len(drawn_to), _DRAWN * len(parts))
    weight[-1] = _DRAWN_TO_NO_IDLE * len(parts)
    square = (parts[:, :, None] * parts[:, None, :]).sum(axis=0) + np.diag(weight)
    return best_of_none_negative(square, (parts * wanted[:, None]).sum(axis=0) + weight * drawn_to)


def best_of_none_negative(square: FloatArray, right: FloatArray) -> FloatArray:
    """The x (k,), none of it negative, with the least `x @ square @ x / 2 - right @ x`. `square` (k, k) is positive
    definite, and k is small.

    Where some of x are 0, the others are best where they solve their own equations, and it comes to `-right @ x / 2`
    then. So it is the highest `right @ x` of all choices of those that are 0 whose solution has nothing negative.
    """
    found = _solved(square, right)
    height = np.where((found >= 0).all(axis=0), (found * right[:, None]).sum(axis=0), -np.inf)
    return np.asarray(found[:, np.argmax(height)])


def _solved(square: FloatArray, right: FloatArray) -> FloatArray:
    """(k, 2**k): the solutions of the equations for each choice of the unknowns, where others are 0; by elimination,
    which gives the same bits on every machine, and needs no search for pivots where `square` is positive definite.
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
    """(k, 2**k): which of so many are chosen, in every way."""
    return (np.arange(1 << count) >> np.arange(count)[:, None] & 1).astype(np.bool_)
