"""Whether a history is long enough to say anything of days to come: one threshold, and one sentence, for all who do."""

from __future__ import annotations

import numpy as np

from loadmanager.core.load import IntArray

KNOWN_HOUR_S = 1800
"""An hour is known when so much of it is covered."""
WHOLE_DAY_HOURS = 18
"""A day is whole when so many of its hours are known."""
FEWEST_DAYS = 3
"""Whole days that it takes."""


def whole_days(hours: IntArray) -> IntArray:
    """The whole days, since 1970 as the known hours are."""
    days, known = np.unique(np.unique(hours) // 24, return_counts=True)
    return np.asarray(days[known >= WHOLE_DAY_HOURS], dtype=np.int64)


def not_enough_history(hours: IntArray) -> str | None:
    """Why nothing is said, in a sentence; None when the known hours, since 1970, are enough."""
    days = len(whole_days(hours))
    if days >= FEWEST_DAYS:
        return None
    known = len(np.unique(hours))
    return (
        f"not enough history: {known} known hour{'s' * (known != 1)}, {days} whole day{'s' * (days != 1)};"
        f" it takes {FEWEST_DAYS} days of which at least {WHOLE_DAY_HOURS} hours are known"
    )
