"""Prediction intervals: split conformal prediction, corrected for errors that resemble each other.

A model says how far below and above its median it expects a value. The back-test says how many times as far off the
values really were, and the 90 % quantile of these ratios, to each side, stretches the intervals of the future. A share
of the mean error is added to the distances before, so that a model without any doubt can be stretched too.

Errors a week ahead overlap: after a shift of the level all of them are on one side for a week, and four weeks of hours
are about four independent errors. The quantile of so few is too low. It is therefore widened by the ratio of the
prediction interval of Student's t to that of the normal distribution, for the effective sample size (1 + 1/n included).

All arrays are (quantiles or sides, series, hours), NaN where unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy import stats

from loadmanager.core.model.load import FloatArray
from loadmanager.pipeline.forecast.models import DAY

_OUTSIDE = 0.1
"""Share of values that may be outside, to each side."""
_SHARE = 0.5
"""Share of the mean error that is added to each side before it is stretched."""
_RECENT_H, _BLOCKS = 16 * DAY, 4
"""Hours that count; a week ahead so many times as far as the forecast reaches."""
_FEWEST = 2.0
"""Least effective sample size; Student's t needs two errors."""


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """Factors (2, series) for the distances below and above the median, and what is `added` (series,) to these."""

    times: FloatArray
    added: FloatArray

    @classmethod
    def of(cls, actual: FloatArray, forecast: FloatArray, ahead: int) -> Calibration:
        """Fit to the last values (series, hours) and their forecasts (3, series, hours) of `ahead` hours before."""
        recent = max(_RECENT_H, _BLOCKS * ahead)
        actual, forecast = actual[:, -recent:], forecast[..., -recent:]
        off = actual - forecast[1]
        known = ~np.isnan(off)
        count = known.sum(axis=1)
        total = np.where(known, np.abs(off), 0).sum(axis=1)
        added = _SHARE * np.divide(total, count, out=np.zeros_like(total), where=count > 0)
        sides, distance = np.stack([-off, off]), _distances(forecast, added)
        times = np.divide(sides, distance, out=np.where(np.isnan(sides), np.nan, 0.0), where=distance > 0)
        return cls(_quantile(times) * widening(off, ahead), added)

    def applied(self, forecast: FloatArray) -> FloatArray:
        """Return the forecast (3, series, hours) with its ends stretched."""
        below, above = self.times[..., np.newaxis] * _distances(forecast, self.added)
        median = forecast[1]
        return np.stack([np.maximum(median - below, 0), median, np.maximum(median + above, 0)])


def calibrated_in_turn(actual: FloatArray, forecast: FloatArray, ends: Sequence[int], ahead: int) -> FloatArray:
    """Return the forecasts from the first of the `ends` on, each part stretched by the values before it alone."""
    parts = [
        Calibration.of(actual[:, :begin], forecast[..., :begin], ahead).applied(forecast[..., begin:end])
        for begin, end in pairwise(ends)
    ]
    return np.concatenate(parts, axis=-1)


def covered(actual: FloatArray, forecast: FloatArray) -> FloatArray:
    """Return 1 where a value is within its interval and 0 where it is not, (series, hours)."""
    inside = (forecast[0] <= actual) & (actual <= forecast[2])
    return np.where(np.isnan(actual) | np.isnan(forecast[0]), np.nan, inside)


def widening(errors: FloatArray, ahead: int) -> FloatArray:
    """Return the factor (series,), 1 or more, for the effective sample size of the errors (series, hours).

    The mean sign of b independent errors has the variance 1 / b. In blocks of `ahead` hours it is so many times as
    large, and so many times as small is the effective sample size.
    """
    hours = errors.shape[1]
    block = min(max(ahead, DAY), hours)
    if not block:
        return np.ones(len(errors))
    blocks = np.sign(errors[:, hours % block :]).reshape(len(errors), -1, block)
    known = ~np.isnan(blocks)
    mean_sign = np.where(known, blocks, 0).sum(axis=2) / np.maximum(known.sum(axis=2), 1)
    count = known.sum(axis=(1, 2))
    inflation = np.maximum(block * np.square(mean_sign).mean(axis=1), 1)
    effective = np.maximum(count / inflation, _FEWEST)
    student = stats.t.ppf(1 - _OUTSIDE, effective - 1) * np.sqrt(1 + 1 / effective)
    return np.where(count > 0, student / stats.norm.ppf(1 - _OUTSIDE), 1.0)


def _distances(forecast: FloatArray, added: FloatArray) -> FloatArray:
    """Return how far below and above the median the ends are, with what is added: (2, series, hours)."""
    return np.stack([forecast[1] - forecast[0], forecast[2] - forecast[1]]) + added[:, np.newaxis]


def _quantile(times: FloatArray) -> FloatArray:
    """Return the conformal quantile (2, series), the value to come counted in; not below 0, and 1 without errors."""
    ascending = np.sort(times, axis=-1)  # NaN last
    count = np.sum(~np.isnan(times), axis=-1)
    rank = np.minimum(np.ceil((count + 1) * (1 - _OUTSIDE)), count).astype(np.int64)
    if not times.shape[-1]:
        return np.ones(count.shape)
    found = np.take_along_axis(ascending, np.maximum(rank - 1, 0)[..., np.newaxis], axis=-1)[..., 0]
    return np.where(count > 0, np.maximum(found, 0), 1.0)
