"""Waiting for a condition instead of for a time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

_POLL_S = 0.02
_PATIENCE_S = 30.0
"""Nothing here takes that long by itself: what takes longer on a machine that is busy does not fail for it."""


async def eventually(
    predicate: Callable[[], object | Awaitable[object]], timeout_s: float = _PATIENCE_S, what: str = ""
) -> None:
    """Return once `predicate()` is truthy; fail after `timeout_s` and say what never came true."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        outcome = predicate()
        if inspect.isawaitable(outcome):
            outcome = await outcome
        if outcome:
            return
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {timeout_s} s: {what or inspect.getsource(predicate).strip()}")
        await asyncio.sleep(_POLL_S)


def eventually_sync(
    predicate: Callable[[], object], timeout_s: float = _PATIENCE_S, what: str = "", poll_s: float = _POLL_S
) -> None:
    """`eventually` for tests without an event loop."""
    deadline_s = time.monotonic() + timeout_s
    while not predicate():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {timeout_s} s: {what or inspect.getsource(predicate).strip()}")
        time.sleep(poll_s)
