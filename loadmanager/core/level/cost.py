"""What load costs brokers of each resource: fitted over all brokers, from what each reports of both at one moment.

Bandwidth goes by the bytes/s of its direction, CPU and direct memory by a price for each of the four metrics and by
what an idle broker uses: least squares, none negative, drawn towards equal shares where brokers are too alike to tell
the metrics apart. Only shares of sums are fitted, so the unit of a load does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmanager.core.load import (
    BANDWIDTH_IN,
    BANDWIDTH_OUT,
    METRICS,
    THROUGHPUT_IN,
    THROUGHPUT_OUT,
    FloatArray,
)

_METRICS_OF = {BANDWIDTH_IN: (THROUGHPUT_IN,), BANDWIDTH_OUT: (THROUGHPUT_OUT,)}
"""Of the other resources: all."""
_DRAWN, _DRAWN_TO_NO_IDLE = 1e-3, 0.1
"""How much equal shares weigh beside what the brokers say; and that idle brokers use nothing, as all usage would look
like that of idle brokers once they are level.
"""
_SWEEPS = 200
_SETTLED = 1e-9
"""Rounds of coordinate descent at the most, and the change of shares below which they end."""


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
    square = ((parts[:, :, None] * parts[:, None, :]).sum(axis=0) + np.diag(weight)).tolist()
    right = ((parts * wanted[:, None]).sum(axis=0) + weight * drawn_to).tolist()
    shares: list[float] = drawn_to.tolist()
    for _ in range(_SWEEPS):
        before = shares.copy()
        for k, row in enumerate(square):
            others = sum(each * share for each, share in zip(row, shares, strict=True)) - row[k] * shares[k]
            shares[k] = max(0.0, (right[k] - others) / row[k])
        if max(abs(new - old) for new, old in zip(shares, before, strict=True)) < _SETTLED:
            break
    return np.array(shares)
