"""How late the event loop itself was: what a test that bounds a time has to allow for on a machine that is busy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

_TICK_S = 0.01


@dataclass(slots=True)
class Lag:
    """By how many seconds the loop was late so far, all delays together."""

    total_s: float = 0.0


@asynccontextmanager
async def measured_lag() -> AsyncIterator[Lag]:
    """Meanwhile sum up by how much each short sleep was too long."""
    lag = Lag()

    async def tick() -> None:
        while True:
            before_s = time.monotonic()
            await asyncio.sleep(_TICK_S)
            lag.total_s += max(0.0, time.monotonic() - before_s - 2 * _TICK_S)

    ticking = asyncio.create_task(tick())
    try:
        yield lag
    finally:
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)
