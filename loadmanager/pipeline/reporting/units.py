"""Figures as the report says them: three digits that count, in units that people read. Times are UTC."""

from __future__ import annotations

import math
from datetime import UTC, datetime

_MINUTE_S, _HOUR_S, _DAY_S = 60.0, 3_600.0, 86_400.0
_RATES = ("B/s", "kB/s", "MB/s", "GB/s", "TB/s")
_STEP = 1000.0
_TINY = 0.001
_TIMES = "\N{MULTIPLICATION SIGN}"


def number(figure: float) -> str:
    """Three digits; whole numbers have all of theirs."""
    if not math.isfinite(figure):
        return ""
    if figure == round(figure) or abs(figure) >= _STEP:
        return f"{round(figure):,}"
    return f"{float(f'{figure:.3g}'):,}"


def share(part: float) -> str:
    """A part of one: 12.3 %."""
    if 0 < abs(part) < _TINY:
        return "< 0.1 %"
    return f"{float(f'{part * 100:.1f}'):g} %"


def times(ratio: float) -> str:
    """How many times as much, to the hundredth."""
    return f"{ratio:.2f}{_TIMES}"


def rate(bytes_per_s: float) -> str:
    figure, unit = bytes_per_s, 0
    while abs(figure) >= _STEP and unit < len(_RATES) - 1:
        figure, unit = figure / _STEP, unit + 1
    return f"{number(float(f'{figure:.3g}'))} {_RATES[unit]}"


def span(seconds: float) -> str:
    """How long: 45 s, 12 min, 3.5 h, 12 days."""
    if seconds < 2 * _MINUTE_S:
        return f"{number(round(seconds))} s"
    if seconds < 2 * _HOUR_S:
        return f"{round(seconds / _MINUTE_S)} min"
    if seconds < 2 * _DAY_S:
        return f"{number(round(seconds / _HOUR_S, 1))} h"
    return f"{number(round(seconds / _DAY_S, 1))} days"


def moment(at_ms: float) -> str:
    """To the second, or without seconds where there are none."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return f"{at:%Y-%m-%d %H:%M:%S}" if at.second else f"{at:%Y-%m-%d %H:%M}"


def between(start_ms: float, end_ms: float) -> str:
    """A stretch of time; the day is said once where it is one."""
    start, end = (datetime.fromtimestamp(at_ms / 1000, UTC) for at_ms in (start_ms, end_ms))
    return (
        f"{start:%Y-%m-%d %H:%M} to {end:%H:%M}"
        if start.date() == end.date()
        else f"{moment(start_ms)} to {moment(end_ms)}"
    )
