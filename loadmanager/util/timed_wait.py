"""A wait for an event with a timeout. Apart from `clock`, so that commands start without asyncio."""

from __future__ import annotations

import asyncio
import contextlib


async def wait_at_most(event: asyncio.Event, timeout_s: float | None) -> None:
    """Wait until the event is set or the timeout has passed; None: no timeout.

    Not `asyncio.wait_for`: in Python 3.11 it swallows a cancellation that arrives together with the event.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
