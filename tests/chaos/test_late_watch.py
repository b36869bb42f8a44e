"""After a reconnection the mirror is fresh only when the watch is armed and all records were read."""

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
    """A session whose server arms watches late: until `may_arm` no event is delivered."""

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


async def test_node_is_not_ready_before_its_watch_is_armed() -> None:
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
        assert not local.node.mirror.is_fresh, "changes between the read and the watch would be missed"
        store.may_arm.set()
        await eventually(lambda: local.node.mirror.is_fresh)
    await beneath.close()
