"""Many series at once, hour by hour: arrays (series, hours) with NaN for an hour that nobody reported."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmanager.core.load import FloatArray, IntArray

QUANTILES = (0.1, 0.5, 0.9)
LEVELS = np.array(QUANTILES)
MEDIAN = 1
WEEK, DAY = 168, 24
_THURSDAY = 3 * DAY
"""1970 began on a Thursday, a week begins on Monday."""
_SHRINKAGE = 4.0
"""So many values of its own count as much as what an hour is drawn to."""


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """Series at equal hours: `load` (series, hours), NaN where unknown; `first_hour` is counted from 1970, in UTC."""

    load: FloatArray
    first_hour: int

    @property
    def hours(self) -> int:
        return int(self.load.shape[1])

    def hour_of_week(self, index: IntArray) -> IntArray:
        """0 is Monday 00:00 to 01:00 UTC; an index may be past the end."""
        return (index + self.first_hour + _THURSDAY) % WEEK


def quantiles_of(values: FloatArray, levels: FloatArray = LEVELS) -> tuple[FloatArray, IntArray]:
    """(levels, ...) quantiles over the last axis without NaN, by linear interpolation; and how many values there were.

    NaN where there was none.
    """
    ascending = np.sort(values, axis=-1)  # NaN last
    count = np.sum(~np.isnan(values), axis=-1)
    position = np.multiply.outer(levels, np.maximum(count - 1, 0))
    below = np.floor(position).astype(np.int64)
    above = np.minimum(below + 1, np.maximum(count - 1, 0))
    low, high = (np.take_along_axis(ascending, np.moveaxis(each, 0, -1), axis=-1) for each in (below, above))
    found = np.moveaxis(low, -1, 0) + (position - below) * np.moveaxis(high - low, -1, 0)
    return found, count


def drawn_towards(own: FloatArray, count: IntArray, towards: FloatArray) -> FloatArray:
    weight = count / (count + _SHRINKAGE)
    return np.where(count > 0, weight * np.nan_to_num(own) + (1 - weight) * towards, towards)


def carried_on(values: FloatArray, period: int) -> FloatArray:
    """The same with what is unknown taken from the latest known value a whole number of periods earlier."""
    series, hours = values.shape
    periods = -(-hours // period)
    padded = np.full((series, periods * period), np.nan)
    padded[:, :hours] = values
    by_phase = padded.reshape(series, periods, period)
    position = np.where(np.isnan(by_phase), 0, np.arange(periods)[:, np.newaxis])
    latest = np.maximum.accumulate(position, axis=1)
    return np.take_along_axis(by_phase, latest, axis=1).reshape(series, -1)[:, :hours]


def columns_at(values: FloatArray, index: IntArray) -> FloatArray:
    """The columns at these indices, NaN before the first."""
    return np.where(index >= 0, values[:, np.maximum(index, 0)], np.nan)
