"""Metadata stores for tests, and the means to break their connections, the same for memory and for a real ZooKeeper."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar
from unittest.mock import patch

from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.serialization import ReplyHeader
from kazoo.security import ACL, Id, Permissions
from support.clock import ManualClock
from support.delays import a_memory_cluster
from support.memory_store import MemoryCluster, MemoryStore
from support.waiting import eventually, patience
from support.zookeeper_ensemble import EmbeddedEnsemble

from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.store import _kazoo_requests as requests
from loadmanager.store.metadata_store import MetadataStore, SessionState, Znode
from loadmanager.store.zookeeper_acl import ANYBODY, Access
from loadmanager.store.zookeeper_store import ZooKeeperStore

_Store = TypeVar("_Store", MemoryStore, ZooKeeperStore)


@asynccontextmanager
async def started(store: _Store) -> AsyncIterator[_Store]:
    """Start a store, and close it at the end."""
    await store.start()
    try:
        yield store
    finally:
        await store.close()


class StoreWorld(Protocol):
    """A place where several stores see the same znodes. A new store's tree is empty but for the root."""

    async def connect(self) -> MetadataStore:
        """A started store with a session of its own; closed with the world."""

    async def expire(self, store: MetadataStore) -> None:
        """Let the servers end the store's session; returns once the store has a new one."""

    async def reconnect(self, store: MetadataStore) -> None:
        """Interrupt the store's connection; returns once it is connected again, on the same session."""

    def leave_out_answer(self, store: MetadataStore) -> None:
        """Have the store's next request done and its answer left out, with which the connection ends."""

    async def shut(self, path: str) -> None:
        """Deny all access to the znode from now on."""

    async def close(self) -> None: ...


class MemoryWorld:
    """`cluster` is by default one that takes its time, on a clock that stands still."""

    def __init__(self, cluster: MemoryCluster | None = None) -> None:
        self.cluster = cluster or a_memory_cluster(ManualClock())
        self._stores: list[MemoryStore] = []

    async def connect(self) -> MemoryStore:
        store = MemoryStore(self.cluster)
        self._stores.append(store)
        await store.start()
        return store

    async def expire(self, store: MetadataStore) -> None:
        self.cluster.expire(in_memory(store))

    async def reconnect(self, store: MetadataStore) -> None:
        self.cluster.partition(in_memory(store), noticed=True)
        self.cluster.heal(in_memory(store))

    def leave_out_answer(self, store: MetadataStore) -> None:
        self.cluster.leave_out_answer(in_memory(store))

    async def shut(self, path: str) -> None:
        self.cluster.shut[path] = f"{path} is shut"

    async def close(self) -> None:
        for store in self._stores:
            await store.close()


class ZooKeeperWorld:
    def __init__(
        self,
        server: EmbeddedZooKeeper | EmbeddedEnsemble,
        chroot: str,
        session_timeout_s: float = 60.0,
        access: Access = ANYBODY,
    ) -> None:
        self._server = server
        self._chroot = chroot
        self._session_timeout_s = session_timeout_s
        self._access = access
        self._stores: list[ZooKeeperStore] = []

    async def connect(self) -> ZooKeeperStore:
        store = ZooKeeperStore(
            self._server.connect_string,
            session_timeout_s=self._session_timeout_s,
            chroot=self._chroot,
            access=self._access,
        )
        self._stores.append(store)
        await store.start()
        return store

    async def expire(self, store: MetadataStore) -> None:
        await expire_session(_on_zookeeper(store), self._server.connect_string)

    async def reconnect(self, store: MetadataStore) -> None:
        await drop_connection(_on_zookeeper(store))

    def leave_out_answer(self, store: MetadataStore) -> None:
        leave_out_answer(_on_zookeeper(store))

    async def shut(self, path: str) -> None:
        await _on_zookeeper(self._stores[0]).set_acl(path, [ACL(Permissions.ALL, Id("digest", f"nobody:{28 * 'x'}"))])

    async def close(self) -> None:
        await asyncio.gather(*(store.close() for store in self._stores))


async def expire_session(store: ZooKeeperStore, connect_string: str) -> None:
    """End the session on the server by closing it from another connection; returns once the store has a new one."""
    assert store._client is not None
    expired = store.session_id
    await asyncio.to_thread(close_session, connect_string, store._client.client_id)
    await eventually(lambda: store.session_id not in {0, expired} and store.state is SessionState.CONNECTED)


async def drop_connection(store: ZooKeeperStore) -> None:
    """Cut the TCP connection; returns once the store is connected again."""
    assert store._client is not None
    states: list[SessionState] = []
    unsubscribe = store.on_session(states.append)
    store._client.drop()
    await eventually(lambda: states == [SessionState.SUSPENDED, SessionState.CONNECTED])
    unsubscribe()


def leave_out_answer(store: ZooKeeperStore) -> None:
    """Have kazoo take the answer to the next request for that to the one after: "xids do not match"."""
    answer_with(store, xid=-99)


def answer_with(store: ZooKeeperStore, **header: int) -> None:
    """Have kazoo read that in the header of the next answer, but of those to heartbeats."""
    client = store._client
    assert client is not None
    read = client._wire._read_response

    def read_as_another(received: ReplyHeader, buffer: bytes, offset: int) -> object:
        if client._pending[0][0].type == requests.SYNC:
            return read(received, buffer, offset)
        patched.stop()
        return read(received._replace(**header), buffer, offset)

    patched = patch.object(client._wire, "_read_response", read_as_another)
    patched.start()


def close_session(connect_string: str, client_id: tuple[int, bytes] | None) -> None:
    """End a session that another connection holds, for which it is as if it had expired. Blocks.

    Whoever holds it may take it back before the word to close it is sent: it is said until the server has forgotten it.
    """
    is_known = True
    while is_known:
        client = KazooClient(connect_string, timeout=6.0, client_id=client_id)
        try:
            client.start(timeout=patience())
        except KazooTimeoutError:  # its holder took it back in the same moment
            continue
        is_known = client.client_id == client_id
        client.stop()
        client.close()


def in_memory(store: MetadataStore) -> MemoryStore:
    assert isinstance(store, MemoryStore)
    return store


def _on_zookeeper(store: MetadataStore) -> ZooKeeperStore:
    assert isinstance(store, ZooKeeperStore)
    return store


async def read_all_znodes(store: MetadataStore, path: str = "/") -> dict[str, Znode]:
    """Return all znodes below a path, with their versions; nobody may change them meanwhile."""
    found: dict[str, Znode] = {}
    for name in await store.children(path):
        each = f"{path.rstrip('/')}/{name}"
        znode = await store.get(each)
        assert znode is not None, f"{each} was deleted meanwhile"
        found |= {each: znode, **await read_all_znodes(store, each)}
    return found
