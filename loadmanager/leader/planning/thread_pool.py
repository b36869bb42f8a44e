"""Worker threads of their own for decisions and previews, so that neither waits for the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

from loadmanager.errors import TooManyPreviewsError

_Found = TypeVar("_Found")

MOST_WAITING = 32
"""Waiting previews at most: each takes a second or two on a large cluster, and callers time out."""


class Worker:
    """One thread, which runs its jobs in order."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, name)

    async def run(self, work: Callable[..., _Found], *given: object) -> _Found:
        """Run `work` in the thread and return its result. It runs to its end even when nobody waits any more."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *given)


class Previews:
    """Queue of computations for display only: one at a time, open to any caller, and never in the way of a decision.

    Other jobs of `worker` wait for at most one of them.
    """

    def __init__(self, worker: Worker | None = None) -> None:
        self._worker = worker or Worker("previews")
        self._lock = asyncio.Lock()
        self._asked = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Worker]:
        """Wait for a turn, and yield the thread; raises `TooManyPreviewsError` when too many callers wait already."""
        if self._asked > MOST_WAITING:
            raise TooManyPreviewsError(f"{MOST_WAITING} previews are waiting already; try again later")
        self._asked += 1
        try:
            async with self._lock:
                yield self._worker
        finally:
            self._asked -= 1
