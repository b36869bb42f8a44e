"""Queue of paths to read again: marked on a change, read and applied in batches.

Level-triggered: a notification only marks a path, so a burst of changes costs one read. A batch that fails stays
marked, and is read again after a pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from loadmanager.errors import StoreError

log = structlog.get_logger(__name__)

_RETRY_S = 0.2
_DEBOUNCE_S = 0.002


class RereadQueue:
    """Level-triggered queue. `read_and_apply` gets the paths of a batch, and raises `StoreError` to have them read
    again.
    """

    def __init__(self, read_and_apply: Callable[[set[str]], Awaitable[None]]) -> None:
        self._read_and_apply = read_and_apply
        self._marked: set[str] = set()
        self._wake = asyncio.Event()
        self._marks = 1  # the first read of everything, once watches are set
        self._marks_applied = 0
        self._waits_for_store = False
        self._settled = asyncio.Condition()

    def mark(self, path: str) -> None:
        """Have `path` read again soon."""
        self._marks += 1
        self._marked.add(path)
        self._wake.set()

    def is_marked(self, path: str) -> bool:
        """Return True if the path was marked since the current batch began."""
        return path in self._marked

    async def settled(self) -> None:
        """Wait until everything that was marked at the call is read and applied."""
        marks = self._marks
        async with self._settled:
            await self._settled.wait_for(lambda: self._marks_applied >= marks)

    async def run(self) -> None:
        """Read and apply for as long as the process lives."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(_DEBOUNCE_S)
            await self._read_batch()

    async def _read_batch(self) -> None:
        self._wake.clear()
        batch, self._marked = self._marked, set()
        marks = self._marks
        try:
            await self._read_and_apply(batch)
        except StoreError as error:
            if not self._waits_for_store:
                log.warning("intake_waits_for_store", error=str(error))
            self._waits_for_store = True
            self._marked |= batch
            await asyncio.sleep(_RETRY_S)
            self._wake.set()
            return
        self._waits_for_store = False
        self._marks_applied = marks
        async with self._settled:
            self._settled.notify_all()
