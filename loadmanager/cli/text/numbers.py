"""Numbers and times for people: three significant digits, units, relative times. `--json` keeps full precision."""

from __future__ import annotations

import math
from datetime import UTC, datetime

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3_600, 86_400
_NOW_S = 2
_DATE_FROM_S = 14 * _DAY_S
"""What is further away is said by its date."""

_DIGITS = 3
_THOUSAND = 1000.0
_BYTES = 1024.0
_COUNTS = ("", "k", "M", "G")
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")


def format_number(figure: float) -> str:
    """Three digits that count; whole numbers have all of theirs."""
    if not math.isfinite(figure):
        return str(figure)
    if figure == round(figure) or abs(figure) >= 10**_DIGITS:
        return f"{round(figure)}"
    return f"{float(f'{figure:.{_DIGITS}g}'):.10f}".rstrip("0").rstrip(".")


def format_count(figure: float) -> str:
    """A number that is only looked at: 12.3k."""
    return _scaled(figure, _THOUSAND, _COUNTS, "")


def format_size(figure: float) -> str:
    """Bytes: 12.3 MiB."""
    return _scaled(figure, _BYTES, _SIZES, " ")


def _scaled(figure: float, step: float, units: tuple[str, ...], space: str) -> str:
    unit = 0
    while abs(figure) >= step and unit < len(units) - 1:
        figure, unit = figure / step, unit + 1
    return f"{format_number(float(f'{figure:.{_DIGITS}g}'))}{space}{units[unit]}"


def format_duration(seconds: float) -> str:
    """Format a duration: its largest unit, and for hours also the minutes."""
    seconds = round(seconds)
    if seconds < 2 * _MINUTE_S:
        return f"{seconds} s"
    if seconds < 2 * _HOUR_S:
        return f"{seconds // _MINUTE_S} min"
    if seconds < 2 * _DAY_S:
        hours, minutes = seconds // _HOUR_S, seconds % _HOUR_S // _MINUTE_S
        return f"{hours} h {minutes} min" if minutes and hours < _DAY_S // _HOUR_S else f"{hours} h"
    return f"{seconds // _DAY_S} d"


def format_relative(at_ms: float, now_ms: float) -> str:
    """`3 min ago`, `in 3 min`, or the date when that is far away."""
    seconds = (now_ms - at_ms) / 1000
    if abs(seconds) < _NOW_S:
        return "now"
    if abs(seconds) > _DATE_FROM_S:
        return f"{_utc(at_ms):%Y-%m-%d %H:%MZ}"
    return f"{format_duration(seconds)} ago" if seconds > 0 else f"in {format_duration(-seconds)}"


def format_clock(at_ms: float) -> str:
    """The time of day, in UTC as everywhere."""
    return f"{_utc(at_ms):%H:%M:%S}Z"


def _utc(at_ms: float) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)
