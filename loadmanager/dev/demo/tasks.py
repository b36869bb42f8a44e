"""Running several tasks as one."""

from __future__ import annotations

import asyncio
from typing import Any


async def first_of(awaited: asyncio.Task[Any], *others: asyncio.Task[Any]) -> None:
    """Return when `awaited` has ended, or raise the error of whichever task failed before."""
    done, _ = await asyncio.wait((awaited, *others), return_when=asyncio.FIRST_COMPLETED)
    awaited.cancel()
    for task in done:
        task.result()
