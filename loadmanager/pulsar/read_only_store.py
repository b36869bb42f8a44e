"""A session with a Pulsar's metadata store of which nothing but reading can be had: not by mistake, and not by type."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loadmanager.store.metadata_store import MetadataStore, SessionState, Unsubscribe, Znode


class ReadOnlyStore:
    """What a `MetadataStore` answers; each method is that one's. Who made the session starts and closes it."""

    __slots__ = ("_store",)

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    @property
    def state(self) -> SessionState:
        return self._store.state

    async def get(self, path: str) -> Znode | None:
        return await self._store.get(path)

    async def get_many(self, paths: Sequence[str]) -> list[Znode | None]:
        return await self._store.get_many(paths)

    async def children(self, path: str) -> list[str]:
        return await self._store.children(path)

    async def children_many(self, paths: Sequence[str]) -> list[list[str]]:
        return await self._store.children_many(paths)

    def watch(self, path: str, on_change: Callable[[str], None]) -> Unsubscribe:
        return self._store.watch(path, on_change)

    def on_session(self, callback: Callable[[SessionState], None]) -> Unsubscribe:
        return self._store.on_session(callback)
