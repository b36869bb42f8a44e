"""As many bins as a screen can show: of each the lowest, the median and the highest value, if any is known.

A line through more values than there are pixels is a solid band, and thinning them out hides what was highest.
"""

from __future__ import annotations

import pandas as pd

from loadmanager.history.files import DAY_MS, HOUR_MS

MOST_BINS = 160
"""Over the time of a picture: six pixels each on a screen, and two on a phone."""

_MINUTE_MS = 60_000
_LENGTHS_MS = (
    *(minutes * _MINUTE_MS for minutes in (5, 10, 15, 20, 30)),
    *(hours * HOUR_MS for hours in (1, 2, 3, 4, 6, 8, 12)),
    *(days * DAY_MS for days in (1, 2, 7, 14, 28)),
)


def bin_length_ms(span_ms: int, most: int = MOST_BINS) -> int:
    """The shortest length that people count in of which so many are enough."""
    return next((length for length in _LENGTHS_MS if span_ms <= most * length), -(-span_ms // most))


def binned(rows: pd.DataFrame, value: str, most: int = MOST_BINS) -> pd.DataFrame:
    """`start`, `end` (ms), `low`, `middle`, `high` and `values` (how many) by bin; NaN where nothing is known.

    `rows` have `start_ms`, which stands for five minutes, and the value.
    """
    first_ms, last_ms = int(rows["start_ms"].min()), int(rows["start_ms"].max())
    length = bin_length_ms(last_ms - first_ms + _LENGTHS_MS[0], most)
    start = rows["start_ms"] // length * length
    found = rows[value].groupby(start).agg(low="min", middle="median", high="max", values="count")
    every = pd.RangeIndex(int(start.min()), int(start.max()) + 1, length, name="start")
    found = found.reindex(every).reset_index()
    return found.assign(end=found["start"] + length, values=found["values"].fillna(0).astype(int))
