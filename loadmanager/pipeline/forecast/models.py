"""What the hours to come may be like: three baselines that repeat what was, and the season.

A baseline repeats the last window, the same hour of the last day, or the same hour of the last week, with the quantiles
of its own past errors around it. The season is a median for each hour of the week, what the latest hour is above or
below it (damped the more the further ahead, and what is unusually far off by itself), and the quantiles of the errors
of the two. An hour of the week with few values is drawn to the same hour of working days or of weekends, that one to
the same hour of all days, and that one to all hours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from loadmanager.core.load import BoolArray, FloatArray, IntArray
from loadmanager.pipeline.forecast.series import (
    DAY,
    MEDIAN,
    WEEK,
    Panel,
    carried_on,
    columns_at,
    drawn_towards,
    quantiles_of,
)

SEASONAL = "seasonal"
BASELINES = {"last_window": 1, "same_hour_last_day": 24, "same_hour_last_week": 168}
"""Baselines by the period in hours after which a value is taken to return."""
MODELS = (SEASONAL, *BASELINES)
_DAYS, _WORKING_DAYS = 7, 5
_FAR = 0.8
"""The quantile of the distances from the season above which one is far."""


_Hours = TypeVar("_Hours", int, IntArray)


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
    """What was there one or more whole periods before. `carried` is the panel with what is missing taken from one
    period earlier.
    """

    panel: Panel
    period: int
    carried: FloatArray

    @classmethod
    def of(cls, panel: Panel, period: int) -> Baseline:
        return cls(panel, period, carried_on(panel.load, period))

    def forecast(self, fit_until: int, asked: ForecastHours) -> FloatArray:
        """(3, series, targets), with the quantiles of the errors that this had before `fit_until`."""
        lag = self._periods(asked.ahead)
        errors = self.panel.load[:, lag:fit_until] - self.carried[:, : max(fit_until - lag, 0)]
        spread, _ = quantiles_of(errors) if errors.shape[1] else (np.full((3, len(errors)), np.nan), None)
        point = columns_at(self.carried, asked.targets - self._periods(asked.targets - asked.origins))
        around = np.stack([np.minimum(spread[0], 0), 0 * spread[MEDIAN], np.maximum(spread[2], 0)])
        return np.asarray(np.maximum(point + around[..., np.newaxis], 0))

    def _periods(self, hours: _Hours) -> _Hours:
        """As many whole periods as it takes to go so far back."""
        return -(-hours // self.period) * self.period


@dataclass(frozen=True, slots=True, eq=False)
class Season:
    """What is known of the season at an hour: `median` (series, 168), and for every hour, also later ones, how far its
    value is `off` from that, (series, hours); `carried`: or its last known value was. From `far` (series, 1) on that is
    unusually far.
    """

    panel: Panel
    fit_until: int
    median: FloatArray
    off: FloatArray
    carried: FloatArray
    far: FloatArray

    @classmethod
    def fit(cls, panel: Panel, fit_until: int) -> Season:
        """By the hours before `fit_until`."""
        median = seasonal_quantiles(Panel(panel.load[:, :fit_until], panel.first_hour))[MEDIAN]
        off = panel.load - median[:, panel.hour_of_week(np.arange(panel.hours))]
        far, _ = quantiles_of(np.abs(off[:, :fit_until]), np.array([_FAR]))
        return cls(panel, fit_until, median, off, carried_on(off, 1), far[0][:, np.newaxis])

    def forecast(self, asked: ForecastHours) -> FloatArray:
        """(3, series, targets) by the season and by how far the latest known hour was from it."""
        until, ahead = self.fit_until, asked.ahead
        then, now = self.off[:, : until - ahead], self.off[:, ahead:until]
        near, far = _kept(then, now, self._is_far(then))
        errors = np.full((len(then), until), np.nan)
        errors[:, ahead:] = now - np.where(self._is_far(then), far, near) * then
        spread = seasonal_quantiles(Panel(errors, self.panel.first_hour))
        usual = spread[MEDIAN].mean(axis=1, keepdims=True)
        hours = self.panel.hour_of_week(asked.targets)
        latest = columns_at(self.carried, asked.origins)
        point = self.median[:, hours] + np.where(self._is_far(latest), far, near) * latest + usual
        around = spread - spread[MEDIAN]
        return np.asarray(np.maximum(point + around[:, :, hours], 0))

    def _is_far(self, off: FloatArray) -> BoolArray:
        return np.asarray(np.abs(off) > self.far)


def _kept(then: FloatArray, now: FloatArray, is_far: BoolArray) -> tuple[FloatArray, FloatArray]:
    """(series, 1) twice: the part, 0 to 1, of a distance from the season that is still there later, of near and of far
    ones, by least absolute errors: what is left of each, and the median of that where each counts by its distance.
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
    """(3, series, 168): the quantiles of each hour of the week, drawn to those of the hour on such days (working days,
    or Saturday and Sunday), these to those of the hour on all days, and these to those of all hours.
    """
    before = int(panel.hour_of_week(np.zeros(1, dtype=np.int64))[0])
    weeks = -(-(before + panel.hours) // WEEK)
    series = len(panel.load)
    padded = np.full((series, weeks * WEEK), np.nan)
    padded[:, before : before + panel.hours] = panel.load
    by_day = padded.reshape(series, weeks, _DAYS, DAY)
    everything, _ = quantiles_of(padded)
    all_days = drawn_towards(*_of_hours(by_day), everything[..., np.newaxis])
    working = drawn_towards(*_of_hours(by_day[:, :, :_WORKING_DAYS]), all_days)
    free = drawn_towards(*_of_hours(by_day[:, :, _WORKING_DAYS:]), all_days)
    such_days = np.concatenate([np.tile(working, _WORKING_DAYS), np.tile(free, _DAYS - _WORKING_DAYS)], axis=-1)
    by_week = np.swapaxes(padded.reshape(series, weeks, WEEK), 1, 2)
    return drawn_towards(*quantiles_of(by_week), such_days)


def _of_hours(by_day: FloatArray) -> tuple[FloatArray, IntArray]:
    """(3, series, 24) and (series, 24): the quantiles of each hour over (series, weeks, days, 24), and the counts."""
    return quantiles_of(np.swapaxes(by_day.reshape(len(by_day), -1, DAY), 1, 2))
