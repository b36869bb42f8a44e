"""Numbers, times and durations for people, and their parsing in options. All times are UTC.

Three significant digits, units, relative times; `--json` keeps full precision.
"""

from __future__ import annotations

import math
import re
import time
from datetime import UTC, datetime
from typing import Annotated

import typer

from loadmanager.cli.exit_codes import EXIT_CONFIGURATION, fail

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3_600, 86_400
_NOW_S = 2
_DATE_FROM_S = 14 * _DAY_S
"""Distance from now at which a time is shown as a date."""

_DIGITS = 3
_THOUSAND = 1000.0
_BYTES = 1024.0
MIB = 1024**2
_COUNTS = ("", "k", "M", "G")
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")


def format_number(figure: float) -> str:
    """Format a number with three significant digits; whole numbers keep all digits."""
    if not math.isfinite(figure):
        return str(figure)
    if figure == round(figure) or abs(figure) >= 10**_DIGITS:
        return f"{round(figure)}"
    return f"{float(f'{figure:.{_DIGITS}g}'):.10f}".rstrip("0").rstrip(".")


def format_quantity(number: int, noun: str) -> str:
    """Format a number with its noun: 1 bundle, 2 bundles."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def format_count(figure: float) -> str:
    """Format a number in short form: 12.3k."""
    return _scale(figure, _THOUSAND, _COUNTS, "")


def format_size(figure: float) -> str:
    """Format bytes: 12.3 MiB."""
    return _scale(figure, _BYTES, _SIZES, " ")


def _scale(figure: float, step: float, units: tuple[str, ...], space: str) -> str:
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
    """Format a time as `3 min ago` or `in 3 min`, or as a date if it is far away."""
    seconds = (now_ms - at_ms) / 1000
    if abs(seconds) < _NOW_S:
        return "now"
    if abs(seconds) > _DATE_FROM_S:
        return f"{_utc(at_ms):%Y-%m-%d %H:%MZ}"
    return f"{format_duration(seconds)} ago" if seconds > 0 else f"in {format_duration(-seconds)}"


def format_clock(at_ms: float) -> str:
    """Format the time of day in UTC."""
    return f"{_utc(at_ms):%H:%M:%S}Z"


def _utc(at_ms: float) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


_UNITS_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:min|[smhdw]))+", re.ASCII)
_PART = re.compile(r"([\d.]+)(min|[smhdw])", re.ASCII)


def read_moment(option: str, text: str | None) -> int | None:
    """Parse a time to ms since 1970; `12h` means 12 hours ago. An invalid time ends the process; the error names the
    option.
    """
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    if (ago_s := _duration_s(text)) is not None:
        return round((time.time() - ago_s) * 1000)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        fail(
            f"{option} {text!r}: expected a time such as 2026-01-31T12:00:00, how long ago it was such as 30m, 12h or"
            " 2d, or milliseconds since 1970",
            EXIT_CONFIGURATION,
        )
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def read_duration(option: str, text: str) -> float:
    """Parse `90`, `90s`, `30m`, `12h`, `2d` or `1h30m` to seconds. Anything else ends the process; the error names the
    option.
    """
    try:
        seconds = float(text) if text.replace(".", "", 1).isdigit() else _duration_s(text)
    except ValueError:
        seconds = None
    if seconds is None:
        fail(f"{option} {text!r}: expected seconds, or a duration such as 90s, 30m, 12h, 2d", EXIT_CONFIGURATION)
    return seconds


def format_moment(at_ms: int | None) -> str:
    return "" if at_ms is None else f"{_utc(at_ms):%Y-%m-%d %H:%M:%S}"


def _duration_s(text: str) -> float | None:
    if not _DURATION.fullmatch(text):
        return None
    return sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(text))


From = Annotated[str | None, typer.Option("--from", metavar="TIME", help="Start: ISO 8601 (UTC), or ms since 1970.")]
To = Annotated[str | None, typer.Option("--to", metavar="TIME", help="End (exclusive), in the same form.")]


def read_range(from_: str | None, to: str | None) -> tuple[int | None, int | None]:
    """Return the range in ms since 1970. An invalid or empty one ends the process and names the option."""
    from_ms, to_ms = read_moment("--from", from_), read_moment("--to", to)
    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        fail(f"--to {to}: expected a moment after --from", EXIT_CONFIGURATION)
    return from_ms, to_ms
