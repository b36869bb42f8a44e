"""In-memory metadata store with ZooKeeper's semantics and faults on demand: deterministic, without threads.

Nothing happens by itself. A connected client's heartbeat counts as answered at every moment; what time alone brings
about (a lease that lapses, a session that expires) takes effect when `MemoryCluster.tick` is called, and `tick` is the
first thing each request does.

Requests are done, or fail, without waiting, unless the cluster is given `turns`: then each request and each answer is
under way for so many turns of the event loop, and what belongs to another session, or happens to the link, comes in
between. One session's requests are done in the order in which they were sent, and its events and answers arrive in the
order of what they tell, an event before the answer that shows the change. Callbacks are scheduled on the event loop
(`call_soon`) in the order of the events, and so run once the running coroutine waits for something.

Transaction ids are ZooKeeper's: one per transaction done, and one for each session that begins or ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from loadmanager.errors import (
    AccessDeniedError,
    OutcomeUnknownError,
    StoreError,
    StoreUnavailableError,
    TransactionFailedError,
)
from loadmanager.store._subscriptions import Subscriptions
from loadmanager.store.local_store import ROOT, StagedTransaction, children_of
from loadmanager.store.metadata_store import (
    Create,
    Op,
    SessionState,
    Unsubscribe,
    Znode,
    check_path,
    check_sizes,
)
from loadmanager.store.store_session import (
    Announce,
    Arm,
    Connected,
    Event,
    GivenUp,
    OfSession,
    RequestAnswered,
    Session,
    SessionSignal,
)

T = TypeVar("T")


class Link(enum.Enum):
    """State of the network link between a client and the cluster."""

    UP = enum.auto()
    ANSWERS_LOST = enum.auto()
    """The next transaction is done but its answer never arrives; from then on the link is `SILENT`."""
    SILENT = enum.auto()
    """Nothing gets through, and the client does not notice before its lease lapses."""
    DOWN = enum.auto()
    """Nothing gets through, and the client knows."""


class MemoryCluster:
    """Tree and sessions that several `MemoryStore`s share, with fault injection between them.

    `clock` is monotonic, in seconds, shared by the cluster and its clients. `turns` says of each message how many turns
    of the event loop it is under way.
    """

    def __init__(self, clock: Callable[[], float], turns: Callable[[], int] = lambda: 0) -> None:
        self.clock = clock
        self.turns = turns
        self.zxid = 0
        self.shut: dict[str, str] = {}
        """Paths that nobody may read or write, and what they are told, as by access lists."""
        self._znodes: dict[str, Znode] = {"/": ROOT}
        self._sessions: dict[int, _Session] = {}
        self._stores: list[MemoryStore] = []
        self._last_session_id = 0

    def partition(self, store: MemoryStore, *, noticed: bool = False) -> None:
        """Cut the client off. Unless `noticed`, it stays CONNECTED until its lease expires, as with lost packets."""
        self.tick()
        store.link_changed(Link.DOWN if noticed else Link.SILENT)

    def lose_answer(self, store: MemoryStore) -> None:
        """Apply the client's next transaction without an answer, and partition the client after it."""
        self.tick()
        if store.link is not Link.UP:
            raise ValueError("the client is cut off already")
        store.link_changed(Link.ANSWERS_LOST)

    def leave_out_answer(self, store: MemoryStore) -> None:
        """Apply the client's next request without an answer: the connection breaks, and is back at once."""
        store.leaves_out_answer = True

    def heal(self, store: MemoryStore) -> None:
        """Reconnect the client: on its session if that is alive, else on a new one."""
        self.tick()
        store.link_changed(Link.UP)

    def expire(self, store: MemoryStore) -> None:
        """Expire the client's session, connected (it hears of it at once) or not."""
        self.tick()
        self.end_session(store.session_id)
        store.heard_from_cluster()

    def save(self) -> SavedTree:
        """Save the tree for `set_back`."""
        return SavedTree(self.zxid, dict(self._znodes))

    def set_back(self, saved: SavedTree) -> None:
        """Roll the store back to a saved tree, transaction ids included; every client gets a new session."""
        self.zxid = saved.zxid + 1
        self._znodes = {path: znode for path, znode in saved.znodes.items() if not znode.ephemeral_owner}
        self._sessions.clear()
        for store in self._stores:
            store.set_back()

    def tick(self) -> None:
        """Apply everything that is due by the clock: sessions expire, and clients notice that their lease has
        expired.
        """
        now_s = self.clock()
        for session in list(self._sessions.values()):
            if session.store.is_heard:
                session.heard_at_s = now_s
            elif now_s >= session.heard_at_s + session.store.session_timeout_s:
                self.end_session(session.session_id)
        for store in self._stores:
            store.time_passed()

    def join(self, store: MemoryStore) -> None:
        """Add a client, which is notified when time passes."""
        self._stores.append(store)

    def begin_session(self, store: MemoryStore) -> int:
        self._last_session_id += 1
        self.zxid += 1
        self._sessions[self._last_session_id] = _Session(self._last_session_id, store, self.clock())
        return self._last_session_id

    def end_session(self, session_id: int) -> None:
        """End the session and delete its ephemeral znodes; do nothing if it has ended before."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        self.zxid += 1
        held = [path for path, znode in self._znodes.items() if znode.ephemeral_owner == session_id]
        for path in held:
            del self._znodes[path]
        self._announce(held)

    def has_session(self, session_id: int) -> bool:
        return session_id in self._sessions

    def find(self, path: str) -> Znode | None:
        self._let_through(path)
        return self._znodes.get(path)

    def children(self, path: str) -> list[str]:
        self._let_through(path)
        return children_of(self._znodes, path)

    def apply(self, ops: Sequence[Op], session_id: int) -> list[int]:
        """Apply all operations or, with `TransactionFailedError`, none."""
        for index, op in enumerate(ops):
            if op.path in self.shut:
                raise TransactionFailedError(index, op.path, "no_access")
        staged = StagedTransaction(self._znodes, self.zxid + 1, session_id)
        versions = [staged.apply(index, op) for index, op in enumerate(ops)]
        self.zxid += 1
        staged.write(self._znodes)
        self._announce(list(staged.changes))
        return versions

    def _let_through(self, path: str) -> None:
        if path in self.shut:
            raise AccessDeniedError(self.shut[path])

    def _announce(self, paths: Sequence[str]) -> None:
        for session in self._sessions.values():
            session.store.changed(paths)


class MemoryStore(OfSession):
    """A `MetadataStore` on a `MemoryCluster`.

    Differs from the one on ZooKeeper in time only: what is under way when the connection dies fails at once (a write
    with `OutcomeUnknownError`) instead of after a while, and reconnecting takes none.
    """

    def __init__(self, cluster: MemoryCluster, *, session_timeout_s: float = 10.0) -> None:
        super().__init__(Session(session_timeout_s))
        self._cluster = cluster
        self._subscriptions = Subscriptions()
        self._requests = _Line(cluster.turns)
        self._answers = _Line(cluster.turns)
        self._unanswered: dict[asyncio.Future[Any], StoreError] = {}
        self._link = Link.UP
        self.leaves_out_answer = False
        self._is_running = False
        self._was_started = False

    @property
    def denied(self) -> Mapping[str, str]:
        return self._cluster.shut

    @property
    def link(self) -> Link:
        return self._link

    @property
    def is_heard(self) -> bool:
        """True if the cluster receives this client's heartbeats."""
        return self._is_running and self._is_linked

    @property
    def _is_linked(self) -> bool:
        return self._link in {Link.UP, Link.ANSWERS_LOST}

    @property
    def lease_valid_until_s(self) -> float:
        self._beat()
        return self._session.lease_valid_until_s

    async def start(self) -> None:
        if self._was_started:
            raise RuntimeError("a store is started once")
        if self._link is not Link.UP:
            raise StoreUnavailableError("the cluster in memory is cut off")
        self._subscriptions.bind(asyncio.get_running_loop())
        self._was_started = self._is_running = True
        self._cluster.join(self)
        self._step(SessionSignal.OPEN)
        self.heard_from_cluster()

    async def close(self) -> None:
        if not self._is_running:
            return
        self._cluster.tick()
        session_id = self.session_id
        self._hang_up()
        self._step(SessionSignal.CLOSE)
        self._is_running = False
        with contextlib.suppress(StoreUnavailableError):
            await self._send(partial(self._cluster.end_session, session_id), StoreUnavailableError("cut off"))

    async def get(self, path: str) -> Znode | None:
        return await self._read(partial(self._cluster.find, check_path(path)))

    async def get_many(self, paths: Sequence[str]) -> list[Znode | None]:
        reads = [partial(self._cluster.find, check_path(path)) for path in paths]
        return [await self._read(read) for read in reads]

    async def children(self, path: str) -> list[str]:
        return await self._read(partial(self._cluster.children, check_path(path)))

    async def children_many(self, paths: Sequence[str]) -> list[list[str]]:
        reads = [partial(self._cluster.children, check_path(path)) for path in paths]
        return [await self._read(read) for read in reads]

    async def commit(self, ops: Sequence[Op], *, session_id: int | None = None) -> list[int]:
        for op in ops:
            check_path(op.path)
        check_sizes(ops)
        if not ops:
            return []
        unanswered = OutcomeUnknownError(f"no answer to a transaction of {len(ops)} operations from {ops[0].path} on")
        return await self._ask(partial(self._apply, ops), unanswered, session_id)

    async def ensure_path(self, path: str) -> None:
        names = check_path(path).strip("/").split("/")
        for depth in range(1, len(names) + 1):
            parent = "/" + "/".join(names[:depth])
            if await self.get(parent) is None:
                await self._create(parent)

    async def sync(self) -> None:
        await self._read(lambda: None)

    def watch(self, path: str, on_change: Callable[[str], None]) -> Unsubscribe:
        unsubscribe = self._subscriptions.watch(check_path(path), on_change)
        if self.state is SessionState.CONNECTED:
            self._arm(path)
        return unsubscribe

    def on_session(self, callback: Callable[[SessionState], None]) -> Unsubscribe:
        return self._subscriptions.on_session(callback)

    # What the cluster tells its clients

    def link_changed(self, link: Link) -> None:
        self._beat()
        self._link = link
        if not self._is_linked:
            self._hang_up()
        self.heard_from_cluster()
        if link is Link.DOWN:
            self._step(SessionSignal.DISCONNECTED)

    def heard_from_cluster(self) -> None:
        """Resume the session, or begin a new one if it has ended; do nothing without a connection.

        Events may have been missed, even if the client never noticed that it was cut off: every watch is armed anew.
        """
        if not self._is_running or self._link is not Link.UP:
            return
        session_id = self.session_id
        if not self._cluster.has_session(session_id):
            if session_id:
                self._hang_up()
                self._step(SessionSignal.EXPIRED)
            session_id = self._cluster.begin_session(self)
        self._step(Connected(session_id, self.session_timeout_s, self._cluster.clock()))

    def set_back(self) -> None:
        """Give up the session after a store rollback: the cluster does not know it."""
        if self._link is Link.UP:
            self._hang_up()
            self._step(GivenUp("the cluster in memory"))
            self.heard_from_cluster()

    def time_passed(self) -> None:
        """Notice an expired lease."""
        self._beat()
        self._step(SessionSignal.TIME)

    def changed(self, paths: Sequence[str]) -> None:
        if self.is_heard:
            for path in paths:
                self._answers.put(partial(self._subscriptions.changed, path))

    # What goes over the link

    async def _read(self, read: Callable[[], T]) -> T:
        return await self._ask(read, StoreUnavailableError("no answer to a read"))

    async def _ask(self, do: Callable[[], T], unanswered: StoreError, session_id: int | None = None) -> T:
        self._check_connected(session_id)
        return await self._send(do, unanswered)

    async def _send(self, do: Callable[[], T], unanswered: StoreError) -> T:
        """Return what `do` returns once the request has reached the cluster; raise `unanswered` if no answer comes."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._unanswered[answer] = unanswered
        try:
            self._requests.put(partial(self._arrived, do, answer))
            return await answer
        finally:
            self._unanswered.pop(answer, None)

    def _arrived(self, do: Callable[[], T], answer: asyncio.Future[T]) -> None:
        self._cluster.tick()
        if not self._is_linked:
            self._hang_up()
            return
        try:
            settle = partial(answer.set_result, do())
        except StoreError as error:
            settle = partial(answer.set_exception, error)
        if self.leaves_out_answer:
            self.leaves_out_answer = False
            self.link_changed(Link.DOWN)
            self.link_changed(Link.UP)
            return
        self._answers.put(lambda: None if answer.done() else settle())

    def _apply(self, ops: Sequence[Op]) -> list[int]:
        versions = self._cluster.apply(ops, self.session_id)
        if self._link is Link.ANSWERS_LOST:
            self.link_changed(Link.SILENT)
        return versions

    async def _create(self, path: str) -> None:
        try:
            await self.commit([Create(path, b"")])
        except TransactionFailedError as error:
            if error.cause != "node_exists":
                raise

    def _arm(self, path: str) -> None:
        armed = partial(self._subscriptions.armed, path)
        self._requests.put(lambda: self._answers.put(armed))

    def _hang_up(self) -> None:
        """Drop everything in flight."""
        self._requests.cut()
        self._answers.cut()
        for answer, error in self._unanswered.items():
            if not answer.done():
                answer.set_exception(error)

    def _check_connected(self, session_id: int | None) -> None:
        self._cluster.tick()
        why_not = self._session.why_not(self._cluster.clock(), session_id)
        if why_not is not None:
            raise StoreUnavailableError(f"the cluster in memory: {why_not}")

    # The session

    def _step(self, event: Event) -> None:
        for action in self._session.step(event, self._cluster.clock()):
            match action:
                case Announce(state):
                    self._subscriptions.state_changed(state)
                case Arm():
                    self._subscriptions.disarmed()
                    for path in self._subscriptions.paths:
                        self._arm(path)

    def _beat(self) -> None:
        """Renew the lease: while the cluster receives it, every moment counts as a heartbeat."""
        if self.is_heard:
            self._step(RequestAnswered(self.session_id, self._cluster.clock()))


class _Line:
    """One direction of a connection: FIFO, each message delayed by some turns of the event loop."""

    def __init__(self, turns: Callable[[], int]) -> None:
        self._turns = turns
        self._in_progress: deque[Callable[[], object]] = deque()
        self._is_moving = False
        self._next: asyncio.Handle | None = None

    def put(self, message: Callable[[], object]) -> None:
        """Deliver `message` behind all earlier ones."""
        self._in_progress.append(message)
        if not self._is_moving:
            self._is_moving = True
            self._move(self._turns())

    def cut(self) -> None:
        """Drop everything in flight."""
        self._in_progress.clear()
        self._is_moving = False
        if self._next is not None:
            self._next.cancel()

    def _move(self, turns: int) -> None:
        while self._in_progress and turns <= 0:
            self._in_progress.popleft()()
            turns = self._turns()
        self._is_moving = bool(self._in_progress)
        if self._is_moving:
            self._next = asyncio.get_running_loop().call_soon(self._move, turns - 1)


@dataclass(frozen=True, slots=True)
class SavedTree:
    """Tree as of a transaction."""

    zxid: int
    znodes: Mapping[str, Znode]


@dataclass(slots=True)
class _Session:
    session_id: int
    store: MemoryStore
    heard_at_s: float
