"""Forecast models for many series at once: three that repeat what was, and a seasonal one.

A panel has hourly values (series, hours), NaN where unknown. A baseline repeats the last window, the same hour of the
last day, or the same hour of the last week, with the quantiles of its own past errors around it. The season is a
median for each hour of the week, plus what the latest hour is above or below it (damped with the hours ahead, and what
is unusually far off by itself), with the quantiles of the errors of both. An hour of the week with few values is
shrunk to the same hour of working days or of weekends, that one to the same hour of all days, that one to all hours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pandas as pd
from scipy import stats

from loadmanager.core.model.load import BoolArray, FloatArray, IntArray

QUANTILES = (0.1, 0.5, 0.9)
LEVELS = np.array(QUANTILES)
MEDIAN = 1
WEEK, DAY = 168, 24
_THURSDAY = 3 * DAY
"""1970 began on a Thursday, a week begins on Monday."""
_SHRINKAGE = 4.0
"""Number of values at which the mean of an hour and the value that it is shrunk to weigh the same."""
SEASONAL = "seasonal"
BASELINES = {"last_window": 1, "same_hour_last_day": 24, "same_hour_last_week": 168}
"""Baselines by the period in hours after which a value is taken to return."""
MODELS = (SEASONAL, *BASELINES)
_DAYS, _WORKING_DAYS = 7, 5
_FAR = 0.8
"""The quantile of the distances from the season above which one is far."""
_Hours = TypeVar("_Hours", int, IntArray)


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """Hourly series: `load` (series, hours), NaN where unknown; `first_hour` is counted from 1970, in UTC."""

    load: FloatArray
    first_hour: int

    @property
    def hours(self) -> int:
        return int(self.load.shape[1])

    def hour_of_week(self, index: IntArray) -> IntArray:
        """Return 0 for Monday 00:00 to 01:00 UTC, up to 167; an index may be past the end."""
        return (index + self.first_hour + _THURSDAY) % WEEK


def quantiles_of(values: FloatArray, levels: FloatArray = LEVELS) -> tuple[FloatArray, IntArray]:
    """Return quantiles (levels, ...) over the last axis without NaN, by linear interpolation, and the counts.

    NaN where there was none.
    """
    asked = levels.reshape(-1, *(1,) * values.ndim)
    found = stats.quantile(values[np.newaxis], asked, axis=-1, nan_policy="omit", keepdims=True)[..., 0]
    return found, np.sum(~np.isnan(values), axis=-1)


def shrink(own: FloatArray, count: IntArray, towards: FloatArray) -> FloatArray:
    weight = count / (count + _SHRINKAGE)
    return np.where(count > 0, weight * np.nan_to_num(own) + (1 - weight) * towards, towards)


def forward_fill(values: FloatArray, period: int) -> FloatArray:
    """Fill unknown values with the latest known one a whole number of periods earlier."""
    phase = np.arange(values.shape[1]) % period
    return np.asarray(pd.DataFrame(values.T).groupby(phase).ffill().to_numpy().T)


def columns_at(values: FloatArray, index: IntArray) -> FloatArray:
    """Return the columns at these indices, NaN before the first."""
    return np.where(index >= 0, values[:, np.maximum(index, 0)], np.nan)


@dataclass(frozen=True, slots=True, eq=False)
class ForecastHours:
    """Hours to forecast, by their indices, each from the hour `origins` on, the last one that is known then; with
    the errors that forecasts `ahead` hours ahead had.
    """

    targets: IntArray
    origins: IntArray
    ahead: int


@dataclass(frozen=True, slots=True, eq=False)
class Baseline:
    """Persistence: the value one or more whole periods before. `filled` is the panel with its gaps filled by it."""

    panel: Panel
    period: int
    filled: FloatArray

    @classmethod
    def of(cls, panel: Panel, period: int) -> Baseline:
        return cls(panel, period, forward_fill(panel.load, period))

    def forecast(self, fit_until: int, asked: ForecastHours) -> FloatArray:
        """Return (3, series, targets), with the quantiles of the errors before `fit_until`."""
        lag = self._periods(asked.ahead)
        errors = self.panel.load[:, lag:fit_until] - self.filled[:, : max(fit_until - lag, 0)]
        spread, _ = quantiles_of(errors) if errors.shape[1] else (np.full((3, len(errors)), np.nan), None)
        point = columns_at(self.filled, asked.targets - self._periods(asked.targets - asked.origins))
        around = np.stack([np.minimum(spread[0], 0), 0 * spread[MEDIAN], np.maximum(spread[2], 0)])
        return np.asarray(np.maximum(point + around[..., np.newaxis], 0))

    def _periods(self, hours: _Hours) -> _Hours:
        """Round up to whole periods."""
        return -(-hours // self.period) * self.period


@dataclass(frozen=True, slots=True, eq=False)
class Season:
    """The season: `median` (series, 168) and the distance `off` (series, hours) of each hour from it.

    `filled` is the last known distance. From `far` (series, 1) on a distance is unusually far.
    """

    panel: Panel
    fit_until: int
    median: FloatArray
    off: FloatArray
    filled: FloatArray
    far: FloatArray

    @classmethod
    def fit(cls, panel: Panel, fit_until: int) -> Season:
        """Fit to the hours before `fit_until`."""
        median = seasonal_quantiles(Panel(panel.load[:, :fit_until], panel.first_hour))[MEDIAN]
        off = panel.load - median[:, panel.hour_of_week(np.arange(panel.hours))]
        far, _ = quantiles_of(np.abs(off[:, :fit_until]), np.array([_FAR]))
        return cls(panel, fit_until, median, off, forward_fill(off, 1), far[0][:, np.newaxis])

    def forecast(self, asked: ForecastHours) -> FloatArray:
        """Return (3, series, targets), from the season and the distance of the latest known hour from it."""
        until, ahead = self.fit_until, asked.ahead
        then, now = self.off[:, : until - ahead], self.off[:, ahead:until]
        near, far = _kept(then, now, self._is_far(then))
        errors = np.full((len(then), until), np.nan)
        errors[:, ahead:] = now - np.where(self._is_far(then), far, near) * then
        spread = seasonal_quantiles(Panel(errors, self.panel.first_hour))
        usual = spread[MEDIAN].mean(axis=1, keepdims=True)
        hours = self.panel.hour_of_week(asked.targets)
        latest = columns_at(self.filled, asked.origins)
        point = self.median[:, hours] + np.where(self._is_far(latest), far, near) * latest + usual
        around = spread - spread[MEDIAN]
        return np.asarray(np.maximum(point + around[:, :, hours], 0))

    def _is_far(self, off: FloatArray) -> BoolArray:
        return np.asarray(np.abs(off) > self.far)


def _kept(then: FloatArray, now: FloatArray, is_far: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Return the part (series, 1), 0 to 1, of near and of far distances from the season that is still there later.

    By least absolute errors, which is the median of what is left of each, weighted by the distance.
    """
    both = ~np.isnan(then) & ~np.isnan(now) & (then != 0)
    left = np.divide(now, then, out=np.full_like(then, np.inf), where=both)
    order = np.argsort(left, axis=1)
    weight = np.take_along_axis(np.where(both, np.abs(then), 0), order, axis=1)
    ascending, is_far = np.take_along_axis(left, order, axis=1), np.take_along_axis(is_far, order, axis=1)
    near = _weighted_median(ascending, np.where(is_far, 0, weight), np.zeros((len(then), 1)))
    return near, _weighted_median(ascending, np.where(is_far, weight, 0), near)


def _weighted_median(ascending: FloatArray, weight: FloatArray, otherwise: FloatArray) -> FloatArray:
    """(series, 1), 0 to 1; `otherwise` where nothing has a weight."""
    if not ascending.shape[1]:
        return otherwise
    total = np.cumsum(weight, axis=1)
    middle = np.argmax(total >= total[:, -1:] / 2, axis=1)[:, np.newaxis]
    found = np.clip(np.take_along_axis(ascending, middle, axis=1), 0, 1)
    return np.where(total[:, -1:] > 0, found, otherwise)


def seasonal_quantiles(panel: Panel) -> FloatArray:
    """Return the quantiles (3, series, 168) of each hour of the week.

    They are shrunk to those of the hour on working days, or on Saturday and Sunday, these to those of the hour on all
    days, and these to those of all hours.
    """
    before = int(panel.hour_of_week(np.zeros(1, dtype=np.int64))[0])
    weeks = -(-(before + panel.hours) // WEEK)
    series = len(panel.load)
    padded = np.full((series, weeks * WEEK), np.nan)
    padded[:, before : before + panel.hours] = panel.load
    by_day = padded.reshape(series, weeks, _DAYS, DAY)
    everything, _ = quantiles_of(padded)
    all_days = shrink(*_of_hours(by_day), everything[..., np.newaxis])
    working = shrink(*_of_hours(by_day[:, :, :_WORKING_DAYS]), all_days)
    free = shrink(*_of_hours(by_day[:, :, _WORKING_DAYS:]), all_days)
    such_days = np.concatenate([np.tile(working, _WORKING_DAYS), np.tile(free, _DAYS - _WORKING_DAYS)], axis=-1)
    by_week = np.swapaxes(padded.reshape(series, weeks, WEEK), 1, 2)
    return shrink(*quantiles_of(by_week), such_days)


def _of_hours(by_day: FloatArray) -> tuple[FloatArray, IntArray]:
    """Return the quantiles (3, series, 24) of each hour over (series, weeks, days, 24), and the counts (series, 24)."""
    return quantiles_of(np.swapaxes(by_day.reshape(len(by_day), -1, DAY), 1, 2))
