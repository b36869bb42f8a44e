"""Port to the metadata store: the operations on ZooKeeper that the rest of the package may use.

`loadmanager.store.zookeeper_store.ZooKeeperStore` and the tests' store in memory keep one contract (`tests/contract`);
`loadmanager.store.local_store.LocalStore` is that of a single process. Everything is level-triggered: a watch says
"read again", never what to apply.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from loadmanager.errors import ZnodeTooLargeError

ANY_VERSION = -1
MAX_ZNODE_BYTES = 1_000_000
"""Largest data accepted for one znode. ZooKeeper's limit is 1 MiB for a whole packet, and breaking it costs the
connection, so it is enforced on our side, with room for the path and the rest of the request."""

MAX_TRANSACTION_BYTES = 1_040_000
"""Largest transaction accepted, all its data, paths and framing together: it travels as one packet too."""

_FRAMING_BYTES_PER_OP = 64
"""More than the header, the lengths, the version and an open access list of any operation take on the wire."""

_FORBIDDEN_IN_PATHS = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")


@dataclass(frozen=True, slots=True)
class Znode:
    """A znode as read.

    `version` counts the changes of the data; `czxid` and `mzxid` are the transaction ids of its creation and of its
    last change: they only grow, over the whole store. `ephemeral_owner` is the session id, 0 for a persistent znode.
    """

    path: str
    data: bytes
    version: int
    czxid: int
    mzxid: int
    ephemeral_owner: int


@dataclass(frozen=True, slots=True)
class Check:
    """Fail the transaction unless `path` exists at `version` (`ANY_VERSION`: exists at all)."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Create:
    """Create `path`; fails with `node_exists`, or `no_node` when the parent is missing."""

    path: str
    data: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Put:
    """Replace the data of `path` if it is at `version`."""

    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete `path` if it is at `version`; fails with `not_empty` when it has children."""

    path: str
    version: int = ANY_VERSION


Op = Check | Create | Put | Delete


def check_path(path: str) -> str:
    """Return the path if ZooKeeper accepts it; raises `ValueError`: a malformed path is a bug of the caller."""
    names = path.split("/")[1:]
    well_formed = path == "/" or (path.startswith("/") and not {"", ".", ".."}.intersection(names))
    if not well_formed or _FORBIDDEN_IN_PATHS.search(path):
        raise ValueError(f"not a path of a znode: {path!r}")
    return path


def check_sizes(ops: Sequence[Op], *, extra_bytes: int = 0) -> None:
    """Raise `ZnodeTooLargeError` when a znode, or the whole transaction, exceeds the store's limit; `extra_bytes` are
    for the chroot and ACLs, per operation.
    """
    total_bytes = 0
    for op in ops:
        data_bytes = len(op.data) if isinstance(op, Create | Put) else 0
        if data_bytes > MAX_ZNODE_BYTES:
            raise ZnodeTooLargeError(f"{op.path}: {data_bytes} bytes, at most {MAX_ZNODE_BYTES} fit into a znode")
        total_bytes += data_bytes + len(op.path.encode()) + extra_bytes + _FRAMING_BYTES_PER_OP
    if total_bytes > MAX_TRANSACTION_BYTES:
        raise ZnodeTooLargeError(
            f"a transaction of {len(ops)} operations from {ops[0].path} on: {total_bytes} bytes, "
            f"at most {MAX_TRANSACTION_BYTES} fit"
        )


class SessionState(enum.StrEnum):
    """State of the session. SUSPENDED: stop writing. LOST: forget what the session held."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


Unsubscribe = Callable[[], None]


class MetadataStore(Protocol):
    """An asynchronous session with the metadata store. Every method is called on the event loop that started it.

    Requests are refused with `StoreUnavailableError` while there is no connection (they never queue up), and every
    request ends within the session timeout: a read with `StoreUnavailableError`, a write with `OutcomeUnknownError`.
    What an access list forbids is an `AccessDeniedError`, in a transaction its cause `no_access`. Any other refusal by
    the server is a `StoreError`, a malformed path a `ValueError`.
    """

    @property
    def session_id(self) -> int:
        """The id of the current session, 0 while there is none (before the first one, after a loss, after `close`)."""

    @property
    def session_timeout_s(self) -> float:
        """Session timeout granted by the server, in seconds (it may be longer than requested)."""

    @property
    def state(self) -> SessionState: ...

    @property
    def lease_valid_until_s(self) -> float:
        """End of the lease, on the injected monotonic clock: until then the session is certain to live.

        It is the moment at which the newest *answered* heartbeat was sent, plus two thirds of the session timeout:
        the server restarts its timer later than that moment, and the remaining third covers clock drift and a
        step-down that takes time. It is in the past when the connection is dead, even if nothing else noticed.
        """

    @property
    def obstacle(self) -> str | None:
        """Reason for which the store cannot connect, if known; None while it is connected."""

    @property
    def denied(self) -> Mapping[str, str]:
        """Access denied by ACLs, one sentence per path, until it is granted."""

    @property
    def sessions_given_up(self) -> int:
        """Number of sessions given up because the servers, after a data loss or a rollback, did not take them back."""

    async def start(self) -> None:
        """Open the session; `StoreUnavailableError` when no server answers within the connect timeout."""

    async def close(self) -> None:
        """End the session: its ephemeral znodes vanish at once (or, without a connection, with the session timeout).

        Idempotent, never raises for the state of the connection; the session's callbacks hear of it as `LOST`.
        """

    async def get(self, path: str) -> Znode | None: ...

    async def get_many(self, paths: Sequence[str]) -> list[Znode | None]:
        """Read many znodes with few requests, in the order asked; None where there is no such znode.

        It is not one moment's picture: each request reads one moment, a later one a later moment.
        """

    async def children(self, path: str) -> list[str]:
        """Return the names of the children, sorted; empty when `path` does not exist."""

    async def children_many(self, paths: Sequence[str]) -> list[list[str]]:
        """List the children of many znodes with few requests, in the order asked; each request sees one moment."""

    async def commit(self, ops: Sequence[Op], *, session_id: int | None = None) -> list[int]:
        """Commit all operations or none; return the new version per operation (Create: 0, Check: as given, Delete:
        -1).

        With `session_id` the transaction is refused (`StoreUnavailableError`) unless that session is the current one.
        Raises `TransactionFailedError` when the store refuses it, `ZnodeTooLargeError` before sending what cannot fit.
        """

    async def ensure_path(self, path: str) -> None:
        """Create `path` and its parents, persistent and empty, where they are missing."""

    async def sync(self) -> None:
        """Wait until this session's reads see every write committed before the call."""

    def watch(self, path: str, on_change: Callable[[str], None]) -> Unsubscribe:
        """Call `on_change(changed_path)` on the event loop after any change of `path` or of anything below it.

        It is also called with `path` itself each time the watch has been armed, that is once after this call and after
        every reconnection: everything below may have changed meanwhile, read again. `path` need not exist. Changes
        may be merged: one call stands for any number of them. While the watch is in force, whoever gets an answer that
        shows a change, or the outcome of a transaction after it, gets it after that call, or the call comes as soon as
        they wait.
        """

    def on_session(self, callback: Callable[[SessionState], None]) -> Unsubscribe:
        """Call `callback(state)` on the event loop after every change of the session's state."""
