"""After a reconnection the view counts as current only once the watch is in force and everything was read again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from support.delays import a_memory_cluster
from support.lm_node import a_local_node
from support.memory_store import MemoryStore
from support.waiting import eventually, patience

from loadmanager.store import paths
from loadmanager.store.metadata_store import MetadataStore, Unsubscribe


class LateWatchStore:
    """A session whose server takes its time to arm a watch: until `may_arm`, nothing is heard of."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.may_arm = asyncio.Event()
        self.may_arm.set()

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def watch(self, path: str, on_change: Callable[[str], None]) -> Unsubscribe:
        async def later(changed: str) -> None:
            await self.may_arm.wait()
            on_change(changed)

        waiting: set[asyncio.Task[None]] = set()

        def heard(changed: str) -> None:
            waiting.add(task := asyncio.ensure_future(later(changed)))
            task.add_done_callback(waiting.discard)

        return self._store.watch(path, heard)


async def test_a_node_that_reads_everything_before_its_watch_is_in_force_is_not_ready() -> None:
    cluster = a_memory_cluster()
    beneath = MemoryStore(cluster)
    await beneath.start()
    store = LateWatchStore(beneath)
    async with (
        a_local_node(store) as local,  # type: ignore[arg-type]  # it delegates
        asyncio.timeout(patience()),
    ):
        assert local.node.mirror.is_fresh
        store.may_arm.clear()
        cluster.partition(beneath, noticed=True)
        await eventually(lambda: not local.node.mirror.is_fresh)
        cluster.heal(beneath)
        local.node.intake.mark_dirty(paths.ROOT)
        await local.node.intake.settled()
        assert not local.node.mirror.is_fresh, "what changed between the reading and the watch would go unnoticed"
        store.may_arm.set()
        await eventually(lambda: local.node.mirror.is_fresh)
    await beneath.close()
