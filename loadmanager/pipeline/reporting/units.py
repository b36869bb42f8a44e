"""Numbers, times and rates as the report prints them: three significant digits, times in UTC."""

from __future__ import annotations

import math
from datetime import UTC, datetime

_MINUTE_S, _HOUR_S, _DAY_S = 60.0, 3_600.0, 86_400.0
_RATES = ("B/s", "kB/s", "MB/s", "GB/s", "TB/s")
_STEP = 1000.0
_TINY = 0.001


def number(figure: float) -> str:
    """Format a number; whole numbers keep all digits."""
    if not math.isfinite(figure):
        return ""
    if figure == round(figure) or abs(figure) >= _STEP:
        return f"{round(figure):,}"
    return f"{float(f'{figure:.3g}'):,}"


def count(items: float, noun: str) -> str:
    """Format a count with its noun: 1 day, 2 days."""
    return f"{number(items)} {noun}{'' if items == 1 else 's'}"


def share(part: float) -> str:
    """Format a fraction as a percentage: 12.3 %."""
    return "< 0.1 %" if 0 < abs(part) < _TINY else f"{float(f'{part * 100:.1f}'):g} %"


def times(ratio: float) -> str:
    """Format a ratio: 1.25 times."""
    return f"{ratio:.2f}\N{MULTIPLICATION SIGN}"


def rate(bytes_per_s: float) -> str:
    """Format a throughput: 12.3 MB/s."""
    figure, unit = bytes_per_s, 0
    while abs(figure) >= _STEP and unit < len(_RATES) - 1:
        figure, unit = figure / _STEP, unit + 1
    return f"{number(float(f'{figure:.3g}'))} {_RATES[unit]}"


def span(seconds: float) -> str:
    """Format a duration: 45 s, 12 min, 3.5 h, 12 days."""
    if seconds < 2 * _MINUTE_S:
        return f"{round(seconds)} s"
    if seconds < 2 * _HOUR_S:
        return f"{round(seconds / _MINUTE_S)} min"
    if seconds < 2 * _DAY_S:
        return f"{number(round(seconds / _HOUR_S, 1))} h"
    return f"{number(round(seconds / _DAY_S, 1))} days"


def moment(at_ms: float) -> str:
    """Format a time, without seconds where they are zero."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return f"{at:%Y-%m-%d %H:%M:%S}" if at.second else f"{at:%Y-%m-%d %H:%M}"


def between(start_ms: float, end_ms: float) -> str:
    """Format a range of time; the date appears once within a day."""
    start, end = moment(start_ms), moment(end_ms)
    return f"{start} to {end[11:] if start[:10] == end[:10] else end}"
