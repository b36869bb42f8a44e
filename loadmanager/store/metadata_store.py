"""Port to the metadata store: the operations on ZooKeeper that the rest of the package may use.

`loadmanager.store.zookeeper_store.ZooKeeperStore` and the tests' in-memory store pass the same tests
(`tests/contract`). `loadmanager.store.local_store.LocalStore` serves a single process. Watches are level-triggered:
they say "read again", never which change to apply.
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
"""Maximum data of one znode. ZooKeeper limits a whole packet to 1 MiB and closes the connection above it. So the limit
is enforced here, with space for the path and the rest of the request."""

MAX_TRANSACTION_BYTES = 1_040_000
"""Maximum size of a transaction with all data, paths and framing: it is sent as one packet."""

_FRAMING_BYTES_PER_OP = 64
"""Upper bound of the encoded header, lengths, version and open ACL of one operation."""

_FORBIDDEN_IN_PATHS = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")


@dataclass(frozen=True, slots=True)
class Znode:
    """A znode as read.

    `version` counts the changes of the data. `czxid` and `mzxid` are the transaction ids of its creation and its last
    change; transaction ids only grow over the whole store. `ephemeral_owner` is the session id, 0 if persistent.
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
    """Create `path`; fails with `node_exists`, or `no_node` if the parent is missing."""

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
    """Delete `path` if it is at `version`; fails with `not_empty` if it has children."""

    path: str
    version: int = ANY_VERSION


Op = Check | Create | Put | Delete


def check_path(path: str) -> str:
    """Return the path if ZooKeeper accepts it; raises `ValueError`, because a malformed path is a bug of the caller."""
    names = path.split("/")[1:]
    well_formed = path == "/" or (path.startswith("/") and not {"", ".", ".."}.intersection(names))
    if not well_formed or _FORBIDDEN_IN_PATHS.search(path):
        raise ValueError(f"not a path of a znode: {path!r}")
    return path


def check_sizes(ops: Sequence[Op], *, extra_bytes: int = 0) -> None:
    """Raise `ZnodeTooLargeError` if a znode or the whole transaction exceeds the store's limit. `extra_bytes` per
    operation are for the chroot and ACLs.
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
    """An asynchronous session with the metadata store. Call every method on the event loop that started it.

    Without a connection, requests are refused with `StoreUnavailableError`; they never queue. Every request ends within
    the session timeout: a read with `StoreUnavailableError`, a write with `OutcomeUnknownError`.

    A denial by an ACL raises `AccessDeniedError`; in a transaction its cause is `no_access`. Any other refusal by the
    server is a `StoreError`, and a malformed path a `ValueError`.
    """

    @property
    def session_id(self) -> int:
        """Id of the current session; 0 without one (before the first one, after a loss, after `close`)."""

    @property
    def session_timeout_s(self) -> float:
        """Session timeout granted by the server, in seconds (it may be longer than requested)."""

    @property
    def state(self) -> SessionState: ...

    @property
    def lease_valid_until_s(self) -> float:
        """End of the lease on the injected monotonic clock: until then the session certainly has not expired.

        It is the time at which the newest *answered* heartbeat was sent, plus two thirds of the session timeout. The
        server restarts its timer later than that; the remaining third covers clock drift and the duration of a
        step-down. With a dead connection it passes, even if nothing else has noticed.
        """

    @property
    def obstacle(self) -> str | None:
        """Reason why the store cannot connect, if known; None while it is connected."""

    @property
    def denied(self) -> Mapping[str, str]:
        """Access denied by ACLs, one sentence per path, until it is granted."""

    @property
    def sessions_given_up(self) -> int:
        """Number of sessions given up because the servers, after a data loss or rollback, did not take them back."""

    async def start(self) -> None:
        """Open the session; `StoreUnavailableError` if no server answers within the connect timeout."""

    async def close(self) -> None:
        """End the session. Its ephemeral znodes vanish at once or, without a connection, after the session timeout.

        Idempotent; never raises for the state of the connection. Session callbacks receive `LOST`.
        """

    async def get(self, path: str) -> Znode | None: ...

    async def get_many(self, paths: Sequence[str]) -> list[Znode | None]:
        """Read many znodes with few requests, in the given order; None for a missing znode.

        The result is not one consistent state: each request sees one state, and later requests see later ones.
        """

    async def children(self, path: str) -> list[str]:
        """Return the names of the children, sorted; empty if `path` does not exist."""

    async def children_many(self, paths: Sequence[str]) -> list[list[str]]:
        """List the children of many znodes with few requests, in the given order; each request sees one state."""

    async def commit(self, ops: Sequence[Op], *, session_id: int | None = None) -> list[int]:
        """Commit all operations or none; return the new version per operation (Create: 0, Check: as given, Delete:
        -1).

        With `session_id` the transaction is refused (`StoreUnavailableError`) unless that is the current session.
        Raises `TransactionFailedError` if the store refuses it, and `ZnodeTooLargeError` before sending.
        """

    async def ensure_path(self, path: str) -> None:
        """Create missing znodes of `path` and its parents, persistent and empty."""

    async def sync(self) -> None:
        """Wait until reads of this session see every write committed before this call."""

    def watch(self, path: str, on_change: Callable[[str], None]) -> Unsubscribe:
        """Call `on_change(changed_path)` on the event loop after any change of `path` or of anything below it.

        It is also called with `path` each time the watch is armed: after this call, and after every reconnection. Read
        again then, because anything below may have changed. `path` need not exist. Several changes may cause one call.

        While the watch is armed, the call for a change is scheduled before an answer that shows the change, or that of
        a later transaction, is delivered. It runs at the latest when the receiver of the answer waits.
        """

    def on_session(self, callback: Callable[[SessionState], None]) -> Unsubscribe:
        """Call `callback(state)` on the event loop after every change of the session's state."""
