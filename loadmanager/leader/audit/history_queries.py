"""What is read of the history because somebody asks: one after the other, in a thread of its own, and few wait.

It may be hours of files. Whoever asks for it again and again keeps no thread busy that anything else waits for, as
names of hosts are looked up in.
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
        """What `read` returns or raises; `HistoryError` when too many wait already."""
        if self._asked > MOST_WAITING:
            raise HistoryError(f"{MOST_WAITING} readings of the history are waited for already; ask again later")
        self._asked += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, read, *given)
        finally:
            self._asked -= 1
