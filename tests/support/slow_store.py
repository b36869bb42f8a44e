"""A session with the metadata store on a slow line: between a request and its answer other things happen.

The store in memory answers at once. Here a request takes a while to arrive and its answer a while to come back, as long
as chance has it; the order of requests, and that of answers and watches, is that of ZooKeeper: first sent, first come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from support.steps import MortalStore, Steps

from loadmanager.store.metadata_store import MetadataStore, Op, Unsubscribe, Znode

_Result = TypeVar("_Result")
_APART_S = 1e-6


class SlowStore(MortalStore):
    """`delay_s` is asked for each message, either way."""

    def __init__(self, store: MetadataStore, delay_s: Callable[[], float]) -> None:
        super().__init__(store, Steps())
        self._there = _Line(delay_s)
        self._back = _Line(delay_s)

    async def get(self, path: str) -> Znode | None:
        return await self._ask(lambda: self.inner.get(path))

    async def get_many(self, paths: Sequence[str]) -> list[Znode | None]:
        return await self._ask(lambda: self.inner.get_many(paths))

    async def children(self, path: str) -> list[str]:
        return await self._ask(lambda: self.inner.children(path))

    async def children_many(self, paths: Sequence[str]) -> list[list[str]]:
        return await self._ask(lambda: self.inner.children_many(paths))

    async def sync(self) -> None:
        await self._ask(self.inner.sync)

    async def ensure_path(self, path: str) -> None:
        await self._ask(lambda: self.inner.ensure_path(path))

    async def commit(self, ops: Sequence[Op], *, session_id: int | None = None) -> list[int]:
        return await self._ask(lambda: self._commit(ops, session_id))

    def watch(self, path: str, on_change: Callable[[str], None]) -> Unsubscribe:
        return self.inner.watch(path, lambda changed: self._back.call(lambda: on_change(changed)))

    async def _ask(self, request: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
        """Deliver the request even if nobody waits for its answer any more."""

        async def travel() -> _Result:
            await self._there.pass_through()
            try:
                return await request()
            finally:
                await self._back.pass_through()

        travelling = asyncio.ensure_future(travel())
        travelling.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(travelling)


class _Line:
    """One direction: nothing overtakes."""

    def __init__(self, delay_s: Callable[[], float]) -> None:
        self._delay_s = delay_s
        self._last_s = 0.0

    def call(self, work: Callable[[], object]) -> None:
        loop = asyncio.get_running_loop()
        self._last_s = max(self._last_s + _APART_S, loop.time() + self._delay_s())
        loop.call_at(self._last_s, work)

    async def pass_through(self) -> None:
        through = asyncio.Event()
        self.call(through.set)
        await through.wait()
