"""The windows of an hour, and which hours are known."""

from __future__ import annotations

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loadmanager.core.load import IntArray
from loadmanager.history.files import HOUR_MS
from loadmanager.pipeline.enough import KNOWN_HOUR_S


def hourly(windows: DataFrame) -> DataFrame:
    """The windows of an hour."""
    return windows.where(f.col("window_s") == HOUR_MS // 1000)


def known_hours(windows: DataFrame) -> DataFrame:
    """The windows of an hour that are known."""
    return hourly(windows).where(f.col("covered_s") >= KNOWN_HOUR_S)


def hours_known(windows: DataFrame) -> IntArray:
    """Which hours, since 1970, are known of anything."""
    starts = known_hours(windows).select("start_ms").distinct().collect()
    return np.array([row["start_ms"] // HOUR_MS for row in starts], dtype=np.int64)
