"""Queue of reads from the recorded history: one at a time, in a thread of its own, with a bounded number of waiting
callers.

A read may cover hours of files. Repeated reads must not occupy the default executor, which resolves host names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from loadmanager.errors import HistoryError

_Found = TypeVar("_Found")

MOST_WAITING = 32


class HistoryQueries:
    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "history")
        self._asked = 0

    async def run(self, read: Callable[..., _Found], *given: object) -> _Found:
        """Return what `read` returns, or raise what it raises; `HistoryError` when too many callers wait already."""
        if self._asked > MOST_WAITING:
            raise HistoryError(f"{MOST_WAITING} reads of the history are waiting already; try again later")
        self._asked += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, read, *given)
        finally:
            self._asked -= 1
