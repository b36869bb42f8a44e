"""A cluster on an event loop in another thread, for clients that are not asynchronous."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from support.nodes import Cluster

START_TIMEOUT_S = 90.0


@contextmanager
def a_cluster_in_another_thread(prepare: Callable[[Cluster], Awaitable[None]]) -> Iterator[Cluster]:
    """A cluster in memory, prepared; it ends with the block."""
    cluster = Cluster()
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    done = asyncio.Event()
    failure: list[BaseException] = []

    async def run() -> None:
        async with cluster:
            await prepare(cluster)
            ready.set()
            await done.wait()

    def work() -> None:
        try:
            loop.run_until_complete(run())
        except BaseException as error:  # noqa: BLE001 - told to the thread that waits
            failure.append(error)
        finally:
            ready.set()
            loop.close()

    thread = threading.Thread(target=work, name="cluster")
    thread.start()
    assert ready.wait(START_TIMEOUT_S)
    try:
        if not failure:
            yield cluster
    finally:
        if not loop.is_closed():
            loop.call_soon_threadsafe(done.set)
        thread.join(START_TIMEOUT_S)
    assert not failure, failure
