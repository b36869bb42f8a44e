from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import structlog
from support.delays import a_memory_cluster
from support.memory_store import MemoryCluster, MemoryStore
from support.nodes import Cluster, in_memory
from support.waiting import eventually

from loadmanager.errors import StoreError
from loadmanager.store.metadata_store import MetadataStore, Op

_REQUESTS = ("get", "get_many", "children", "commit")


class Hiccups:
    """Breaks the connection at the n-th request for a while, before it is sent or before it is answered."""

    def __init__(self, cluster: MemoryCluster, store: MemoryStore, number: int, for_s: float) -> None:
        self.requests = 0
        self._cluster = cluster
        self._store = store
        self._number = number
        self._for_s = for_s
        for name in _REQUESTS:
            setattr(store, name, self._counting(name, getattr(store, name)))

    def _counting(self, name: str, request: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def count(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - whatever the request takes and gives
            self.requests += 1
            if self.requests == self._number:
                if name == "commit":
                    self._cluster.lose_answer(self._store)
                else:
                    self._cluster.partition(self._store, noticed=True)
                asyncio.get_running_loop().call_later(self._for_s, self._cluster.heal, self._store)
            return await request(*args, **options)

        return count


@pytest.mark.parametrize(("number", "for_s"), [*((number, 0.01) for number in range(1, 41)), (1, 1.5), (25, 1.5)])
async def test_node_starts_despite_a_hiccup_at_any_request(number: int, for_s: float) -> None:
    """Each waiting component logs once, regardless of the duration."""
    memory = a_memory_cluster()
    hiccups = []

    async def connect() -> MetadataStore:
        store = MemoryStore(memory)
        await store.start()
        if memory.zxid > 1:  # the first session is the test's own
            hiccups.append(Hiccups(memory, store, number, for_s))
        return store

    async with Cluster(connect) as cluster:
        with structlog.testing.capture_logs() as logs:
            node = await cluster.start_node()
            await eventually(lambda: node.leads and node.node.mirror.nodes)
        assert not node.node.failure.done()
        assert hiccups[0].requests >= min(number, 20)
    waits = [entry["event"] for entry in logs if entry["event"].endswith("_waits_for_store")]
    assert len(waits) == len(set(waits))


async def test_refusal_by_the_store_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry would not help, for example with wrong access rights."""

    async def refuse(_: MemoryStore, _ops: list[Op], **_options: object) -> list[int]:
        raise StoreError("not allowed")

    async with Cluster(in_memory()) as cluster:
        monkeypatch.setattr(MemoryStore, "commit", refuse)
        with pytest.raises(StoreError, match="not allowed"):
            await cluster.start_node()
        monkeypatch.undo()
