"""Metadata store in the memory of one process, with ZooKeeper's versions and errors.

No other process can connect to it, so it is connected from `start` to `close`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from loadmanager.errors import StoreUnavailableError, TransactionFailedError
from loadmanager.store._subscriptions import Subscriptions
from loadmanager.store.metadata_store import (
    ANY_VERSION,
    Check,
    Create,
    Op,
    Put,
    SessionState,
    Unsubscribe,
    Znode,
    check_path,
    check_sizes,
)
from loadmanager.util import clock

ROOT = Znode("/", b"", 0, 0, 0, 0)


class LocalStore:
    """A `MetadataStore` with these initial znodes."""

    obstacle: str | None = None
    denied: Mapping[str, str] = {}
    sessions_given_up = 0

    def __init__(self, znodes: Sequence[Znode] = (), *, session_timeout_s: float = 10.0) -> None:
        self.session_id = 0
        self.session_timeout_s = session_timeout_s
        self.state = SessionState.LOST
        self._znodes = {znode.path: znode for znode in (ROOT, *znodes)}
        self._zxid = 0
        self._subscriptions = Subscriptions()

    @property
    def lease_valid_until_s(self) -> float:
        return clock.now_s() + self.session_timeout_s if self.session_id else 0.0

    async def start(self) -> None:
        self._subscriptions.bind(asyncio.get_running_loop())
        self._enter(SessionState.CONNECTED, session_id=1)

    async def close(self) -> None:
        if self.session_id:
            self._enter(SessionState.LOST, session_id=0)

    def _enter(self, state: SessionState, session_id: int) -> None:
        self.state, self.session_id = state, session_id
        self._subscriptions.state_changed(state)

    async def get(self, path: str) -> Znode | None:
        self._check_open()
        return self._znodes.get(check_path(path))

    async def get_many(self, paths: Sequence[str]) -> list[Znode | None]:
        return [await self.get(path) for path in paths]

    async def children(self, path: str) -> list[str]:
        self._check_open()
        return children_of(self._znodes, check_path(path))

    async def children_many(self, paths: Sequence[str]) -> list[list[str]]:
        return [await self.children(path) for path in paths]

    async def commit(self, ops: Sequence[Op], *, session_id: int | None = None) -> list[int]:
        for op in ops:
            check_path(op.path)
        check_sizes(ops)
        self._check_open()
        if session_id not in {None, self.session_id}:
            raise StoreUnavailableError(f"session {session_id} is not the current one any more")
        staged = StagedTransaction(self._znodes, self._zxid + 1, self.session_id)
        versions = [staged.apply(index, op) for index, op in enumerate(ops)]
        self._zxid += 1
        staged.write(self._znodes)
        for path in staged.changes:
            self._subscriptions.changed(path)
        return versions

    async def ensure_path(self, path: str) -> None:
        names = check_path(path).strip("/").split("/")
        for depth in range(1, len(names) + 1):
            parent = "/" + "/".join(names[:depth])
            if parent not in self._znodes:
                await self.commit([Create(parent, b"")])

    async def sync(self) -> None:
        self._check_open()

    def watch(self, path: str, on_change: Callable[[str], None]) -> Unsubscribe:
        unsubscribe = self._subscriptions.watch(check_path(path), on_change)
        if self.session_id:
            self._subscriptions.armed(path)
        return unsubscribe

    def on_session(self, callback: Callable[[SessionState], None]) -> Unsubscribe:
        return self._subscriptions.on_session(callback)

    def _check_open(self) -> None:
        if not self.session_id:
            raise StoreUnavailableError("the store in memory is closed")


class StagedTransaction:
    """A transaction in progress: each operation sees the effects of earlier ones. In `changes`, None means deleted."""

    def __init__(self, znodes: Mapping[str, Znode], zxid: int, session_id: int) -> None:
        self.changes: dict[str, Znode | None] = {}
        self._znodes = znodes
        self._zxid = zxid
        self._session_id = session_id

    def apply(self, index: int, op: Op) -> int:
        """Stage one operation and return the resulting version; the order of the checks is ZooKeeper's."""
        if isinstance(op, Create):
            return self._create(index, op)
        znode = self._find(op.path)
        if znode is None:
            raise TransactionFailedError(index, op.path, "no_node")
        if op.version not in {ANY_VERSION, znode.version}:
            raise TransactionFailedError(index, op.path, "bad_version")
        if isinstance(op, Check):
            return op.version
        if isinstance(op, Put):
            self.changes[op.path] = replace(znode, data=op.data, version=znode.version + 1, mzxid=self._zxid)
            return znode.version + 1
        if self._has_children(op.path):
            raise TransactionFailedError(index, op.path, "not_empty")
        self.changes[op.path] = None
        return -1

    def _create(self, index: int, op: Create) -> int:
        parent = self._find(op.path.rpartition("/")[0] or "/")
        if parent is None:
            raise TransactionFailedError(index, op.path, "no_node")
        if self._find(op.path) is not None:
            raise TransactionFailedError(index, op.path, "node_exists")
        if parent.ephemeral_owner:
            raise TransactionFailedError(index, op.path, "other")
        owner = self._session_id if op.ephemeral else 0
        self.changes[op.path] = Znode(op.path, op.data, 0, self._zxid, self._zxid, owner)
        return 0

    def _find(self, path: str) -> Znode | None:
        return self.changes[path] if path in self.changes else self._znodes.get(path)

    def _has_children(self, path: str) -> bool:
        present = [other for other in self._znodes if other not in self.changes]
        present += [other for other, znode in self.changes.items() if znode is not None]
        return any(_is_child(other, path) for other in present)

    def write(self, znodes: dict[str, Znode]) -> None:
        """Apply the changes to the tree."""
        for path, znode in self.changes.items():
            if znode is None:
                znodes.pop(path, None)
            else:
                znodes[path] = znode


def children_of(znodes: Iterable[str], parent: str) -> list[str]:
    """Return the names of the children, sorted."""
    return sorted(path.rpartition("/")[2] for path in znodes if _is_child(path, parent))


def _is_child(path: str, parent: str) -> bool:
    return path != "/" and (path.rpartition("/")[0] or "/") == parent
