"""Clocks: wall time in milliseconds, and seconds since boot for promises that expire (leases, sessions).

`time.monotonic()` stops while a machine is suspended, so after a resume an expired lease would look valid.
CLOCK_BOOTTIME (Linux) and CLOCK_MONOTONIC (macOS) continue. If neither exists, `time.monotonic()` is used. Timers of
asyncio and kazoo use `time.monotonic()` anyway, so check an expiry against this clock when it matters.
"""

from __future__ import annotations

import sys
import time

_NAME = "CLOCK_MONOTONIC" if sys.platform == "darwin" else "CLOCK_BOOTTIME"


def _is_available() -> bool:
    try:
        time.clock_gettime(getattr(time, _NAME))
    except (AttributeError, OSError):
        return False
    return True


COUNTS_SUSPENSION = _is_available()


def now_ms() -> int:
    """Return the wall time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def now_s() -> float:
    """Return the seconds since boot; comparable within one machine only."""
    return time.clock_gettime(getattr(time, _NAME)) if COUNTS_SUSPENSION else time.monotonic()
