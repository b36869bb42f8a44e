"""The client's face for programs without an event loop: a thread of its own has one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from loadmanager.client.lookup_client import LOOKUP_TIMEOUT_S, LookupClient
from loadmanager.client.owner import Owner

_Result = TypeVar("_Result")


class BlockingLookupClient:
    """A client that no loop has begun to use, for any number of threads. Use it with `with`."""

    def __init__(self, client: LookupClient) -> None:
        self._client = client
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lookup client", daemon=True)
        self.resolve = client.resolve
        self.refused = client.refused

    def __enter__(self) -> Self:
        """Raises as `LookupClient` does when it is entered."""
        self._thread.start()
        try:
            self._run(self._client.__aenter__())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._client.__aexit__())
        self._end()

    def lookup(self, topic: str, timeout_s: float = LOOKUP_TIMEOUT_S) -> Owner:
        """Do `LookupClient.lookup` in the calling thread, which blocks."""
        owner = self.resolve(topic)
        return owner if owner is not None else self._run(self._client.lookup(topic, timeout_s))

    def _run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result()
        except BaseException:  # also what interrupts the thread that waits
            running.cancel()
            raise

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
