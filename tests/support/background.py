"""An event loop in another thread, for tests with synchronous clients."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import TypeVar

from support.nodes import Cluster
from support.waiting import patience

T = TypeVar("T")


def a_cluster_in_another_thread(prepare: Callable[[Cluster], Awaitable[None]]) -> AbstractContextManager[Cluster]:
    """A cluster in memory, prepared; it ends with the block."""

    @asynccontextmanager
    async def prepared() -> AsyncIterator[Cluster]:
        async with Cluster() as cluster:
            await prepare(cluster)
            yield cluster

    return in_another_thread(prepared)


@contextmanager
def in_another_thread(make: Callable[[], AbstractAsyncContextManager[T]]) -> Iterator[T]:
    """Run what `make` creates on an event loop of its own, until the block ends."""
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    done = asyncio.Event()
    made: list[T] = []
    failure: list[BaseException] = []

    async def run() -> None:
        async with make() as each:
            made.append(each)
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

    thread = threading.Thread(target=work, name="background")
    thread.start()
    assert ready.wait(patience())
    try:
        if not failure:
            yield made[0]
    finally:
        if not loop.is_closed():
            loop.call_soon_threadsafe(done.set)
        thread.join(patience())
    assert not failure, failure
