"""Minimum history of hourly windows for statements about future days."""

from __future__ import annotations

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loadmanager.core.model.load import IntArray
from loadmanager.history.files import HOUR_MS

KNOWN_HOUR_S = 1800
"""Least coverage of an hour that counts."""
WHOLE_DAY_HOURS = 18
"""Least number of such hours in a whole day."""
FEWEST_DAYS = 3
"""Whole days that forecasts, capacity and advice need."""


def hourly(windows: DataFrame) -> DataFrame:
    """Return the windows of an hour."""
    return windows.where(f.col("window_s") == HOUR_MS // 1000)


def known_hours(windows: DataFrame) -> DataFrame:
    """Return the windows of an hour that are covered for half of it."""
    return hourly(windows).where(f.col("covered_s") >= KNOWN_HOUR_S)


def hours_known(windows: DataFrame) -> IntArray:
    """Return the hours since 1970 that any of the windows covers."""
    starts = known_hours(windows).select("start_ms").distinct().collect()
    return np.array([row["start_ms"] // HOUR_MS for row in starts], dtype=np.int64)


def whole_days(hours: IntArray) -> IntArray:
    """Return the whole days since 1970 in these known hours."""
    days, known = np.unique(np.unique(hours) // 24, return_counts=True)
    return np.asarray(days[known >= WHOLE_DAY_HOURS], dtype=np.int64)


def missing_history(hours: IntArray) -> str | None:
    """Return how much history is missing, in a sentence; None when the known hours since 1970 are enough."""
    whole = len(whole_days(hours))
    if whole >= FEWEST_DAYS:
        return None
    return (
        f"not enough history: needs {FEWEST_DAYS} days of hourly windows, has {len(np.unique(hours)) / 24:.1f}"
        f" ({whole} of them whole, with at least {WHOLE_DAY_HOURS} hours)"
    )
