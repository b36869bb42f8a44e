"""Threads of their own: what is worked out in one does not wait for what is worked out in another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

from loadmanager.errors import TooManyPreviewsError

_Found = TypeVar("_Found")

MOST_WAITING = 32
"""Previews that wait for their turn at most: a second or two of a large cluster each, and whoever asks gives up."""


class Worker:
    """One thread; what it is given is worked out in order."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, name)

    async def run(self, work: Callable[..., _Found], *given: object) -> _Found:
        """What `work` returns or raises. It is worked out to its end even when nobody waits for it any more."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *given)


class Previews:
    """What is worked out only to be shown, one after the other: anybody may ask for it, no decision waits for it.

    What else the `worker` is given waits for one of them at most.
    """

    def __init__(self, worker: Worker | None = None) -> None:
        self._worker = worker or Worker("previews")
        self._lock = asyncio.Lock()
        self._asked = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Worker]:
        """Where to work it out once it is its turn; `TooManyPreviewsError` when too many wait already."""
        if self._asked > MOST_WAITING:
            raise TooManyPreviewsError(
                f"{MOST_WAITING} answers that take their time are waited for already; ask again later"
            )
        self._asked += 1
        try:
            async with self._lock:
                yield self._worker
        finally:
            self._asked -= 1
