"""Parsing of moments and durations in options; all times are UTC."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

from loadmanager.cli.exit_codes import EXIT_CONFIGURATION, fail

_UNITS_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:min|[smhdw]))+", re.ASCII)
_PART = re.compile(r"([\d.]+)(min|[smhdw])", re.ASCII)


def read_moment(option: str, text: str | None) -> int | None:
    """Return ms since 1970; `12h` is that long ago. An invalid time ends the process and names the option."""
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
    """Seconds, of `90`, `90s`, `30m`, `12h`, `2d` or `1h30m`; the process ends, naming the option, otherwise."""
    try:
        seconds = float(text) if text.replace(".", "", 1).isdigit() else _duration_s(text)
    except ValueError:
        seconds = None
    if seconds is None:
        fail(f"{option} {text!r}: expected seconds, or a duration such as 90s, 30m, 12h, 2d", EXIT_CONFIGURATION)
    return seconds


def format_moment(at_ms: int | None) -> str:
    return "" if at_ms is None else f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def _duration_s(text: str) -> float | None:
    if not _DURATION.fullmatch(text):
        return None
    return sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(text))
