"""Waiting for a condition instead of for a time, for as long as a busy machine needs."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from functools import lru_cache

_POLL_S = 0.02
_LEAST_S = 60.0
_MEASURED_EVERY_S = 30.0
_MOST_SLOWNESS = 10.0
"""Highest slowness that is taken into account: pytest's own timeout is longer, so a wait says what it waited for."""


def patience(least_s: float = _LEAST_S) -> float:
    """Return how many seconds to wait for what has to happen: more while the machine is busy."""
    return least_s * _slowness(int(time.monotonic() / _MEASURED_EVERY_S))


@lru_cache(maxsize=1)
def _slowness(_period: int) -> float:
    """Measure wall time by CPU time of a fixed piece of work: 1 on an idle machine, 5 where five share a core."""
    began_s, cpu_s = time.monotonic(), time.thread_time()
    sum(range(3_000_000))
    ratio = (time.monotonic() - began_s) / (time.thread_time() - cpu_s)
    return min(max(ratio, 1.0), _MOST_SLOWNESS)


async def eventually(
    predicate: Callable[[], object | Awaitable[object]], what: str = "", *, least_s: float = _LEAST_S
) -> None:
    """Return once `predicate()` is truthy; fail when `patience` is over and say what never came true."""
    began_s = time.monotonic()
    while True:
        outcome = predicate()
        if inspect.isawaitable(outcome):
            outcome = await outcome
        if outcome:
            return
        _fail_if_over(began_s, least_s, predicate, what)
        await asyncio.sleep(_POLL_S)


def eventually_sync(
    predicate: Callable[[], object], what: str = "", *, least_s: float = _LEAST_S, poll_s: float = _POLL_S
) -> None:
    """`eventually` for tests without an event loop."""
    began_s = time.monotonic()
    while not predicate():
        _fail_if_over(began_s, least_s, predicate, what)
        time.sleep(poll_s)


def _fail_if_over(began_s: float, least_s: float, predicate: Callable[[], object], what: str) -> None:
    waited_s = time.monotonic() - began_s
    if waited_s > least_s and waited_s > patience(least_s):
        raise AssertionError(f"not within {waited_s:.0f} s: {what or inspect.getsource(predicate).strip()}")
