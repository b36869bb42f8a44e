"""Intervals that hold what they say: as wide as the errors were that forecasts made of hours they had not seen.

A model says by itself how far below and above its median it expects what comes. What came in a back-test was so many
times as far off, and the quantile of these times, to each side, is by how much its intervals have to be stretched
(split conformal prediction). A share of the mean error is added before, so that one who expected to be right to the
last bit can be stretched too.

All arrays are (quantiles or sides, series, hours), NaN where unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from loadmanager.core.load import FloatArray

_OUTSIDE = 0.1
"""The part of hours that is to be outside, to each side."""
_SHARE = 0.5
"""Of the mean error: what is added to each side before it is stretched."""


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """How many `times` (2, series) as far below and above the median the ends of an interval have to be, when so much
    (series,) is `added` to how far they are.
    """

    times: FloatArray
    added: FloatArray

    @classmethod
    def of(cls, actual: FloatArray, forecast: FloatArray) -> Calibration:
        """By what came, (series, hours), and what was forecast, (3, series, hours)."""
        off = actual - forecast[1]
        known = ~np.isnan(off)
        count = known.sum(axis=1)
        total = np.where(known, np.abs(off), 0).sum(axis=1)
        added = _SHARE * np.divide(total, count, out=np.zeros_like(total), where=count > 0)
        sides, distance = np.stack([-off, off]), _distances(forecast, added)
        times = np.divide(sides, distance, out=np.where(np.isnan(sides), np.nan, 0.0), where=distance > 0)
        return cls(_quantile(times), added)

    def applied(self, forecast: FloatArray) -> FloatArray:
        """(3, series, hours): the same with its ends where they have to be."""
        below, above = self.times[..., np.newaxis] * _distances(forecast, self.added)
        median = forecast[1]
        return np.stack([np.maximum(median - below, 0), median, np.maximum(median + above, 0)])


def calibrated_in_turn(actual: FloatArray, forecast: FloatArray, ends: Sequence[int]) -> FloatArray:
    """The forecasts from the first of the `ends` on, those up to each end stretched by what came until the one before:
    nothing is known of hours to come.
    """
    parts = [
        Calibration.of(actual[:, :begin], forecast[..., :begin]).applied(forecast[..., begin:end])
        for begin, end in pairwise(ends)
    ]
    return np.concatenate(parts, axis=-1)


def covered(actual: FloatArray, forecast: FloatArray) -> FloatArray:
    """(series, hours): 1 where it was within the interval, 0 where it was not."""
    inside = (forecast[0] <= actual) & (actual <= forecast[2])
    return np.where(np.isnan(actual) | np.isnan(forecast[0]), np.nan, inside)


def _distances(forecast: FloatArray, added: FloatArray) -> FloatArray:
    """(2, series, hours): how far below and above the median the ends are, with what is added."""
    return np.stack([forecast[1] - forecast[0], forecast[2] - forecast[1]]) + added[:, np.newaxis]


def _quantile(times: FloatArray) -> FloatArray:
    """(2, series): what the part outside exceeds at most, the one to come counted in; not below 0, and 1 where nothing
    is known.
    """
    ascending = np.sort(times, axis=-1)  # NaN last
    count = np.sum(~np.isnan(times), axis=-1)
    rank = np.minimum(np.ceil((count + 1) * (1 - _OUTSIDE)), count).astype(np.int64)
    if not times.shape[-1]:
        return np.ones(count.shape)
    found = np.take_along_axis(ascending, np.maximum(rank - 1, 0)[..., np.newaxis], axis=-1)[..., 0]
    return np.where(count > 0, np.maximum(found, 0), 1.0)
