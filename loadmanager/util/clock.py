"""Clocks: wall time in milliseconds, and seconds since boot for promises that expire (leases, sessions).

`time.monotonic()` stands still while a machine is suspended, so a process that wakes up would take an expired lease for
a valid one. CLOCK_BOOTTIME (Linux) and CLOCK_MONOTONIC (macOS) go on. Where neither exists, `time.monotonic()` is used.
Timers of asyncio and of kazoo use `time.monotonic()` all the same: whoever relies on a promise compares it with this
clock at that moment.
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
