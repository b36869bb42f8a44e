"""The metadata store on ZooKeeper (3.6 or newer), through kazoo.

kazoo's threads carry bytes and nothing else: an answer, an event or a change of state that arrives there only wakes the
event loop, and everything is decided there.

The lease
    A kazoo client that is busy takes a dead connection for a live one, and learns that a session expired only from the
    next server it reaches. So the store keeps its own time: about six times per session timeout it sends a `sync`,
    which writes nothing and has to be answered by the leader of the ensemble, and each answer extends the lease to two
    thirds of the session timeout after that request was *sent*. When the lease lapses, the store is `SUSPENDED`
    whatever kazoo believes, refuses requests and drops the connection. The bound holds even when the server
    that we are connected to dies with what it has not yet told the leader about our session, provided that the session
    timeout is at least three of the servers' ticks.

States of the session::

    LOST --connected--> CONNECTED --connection gone, or lease lapsed--> SUSPENDED
     ^                      ^                                              |
     |                      +---------connected, same session--------------+
     +------------session expired, given up, or closed----(from any state)-+

A session is given up when a server serves and yet hangs up on it: its data were lost, or set back to an older state,
and it refuses whoever has seen more. That is not done before twice the session timeout has passed since the newest
answered heartbeat was sent, long after the lease lapsed: until then it may be a server that lags behind the others.
While no server grants any session nothing is given up: ZooKeeper that comes back goes on with the sessions it knew.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar, TypeVarTuple

import structlog
from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
    SessionMovedError,
    UnimplementedError,
    WriterNotClosedException,
    ZookeeperError,
)
from kazoo.hosts import collect_hosts

from loadmanager.errors import (
    ConfigurationError,
    OutcomeUnknownError,
    StoreError,
    StoreUnavailableError,
    TransactionFailedError,
)
from loadmanager.store import _kazoo_requests as requests
from loadmanager.store._kazoo_client import Handshake, PromptClient
from loadmanager.store._kazoo_requests import Request
from loadmanager.store._subscriptions import Subscriptions
from loadmanager.store.base import (
    LEASE_RATIO,
    Check,
    Create,
    Delete,
    Op,
    SessionState,
    Unsubscribe,
    Znode,
    check_path,
    check_sizes,
)

log = structlog.get_logger(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

HEARTBEATS_PER_SESSION_TIMEOUT = 6

GIVEN_UP_AFTER_TIMEOUTS = 2
"""After how many session timeouts without an answer a session may be given up."""

_MAX_REQUESTS_UNDER_WAY = 64
"""kazoo wakes its thread by one byte per request through a socket that holds some 270 of them, and then blocks."""

_FIRST_READ_ZNODES = 32
_MAX_READ_ZNODES = 1000
_READ_GROWTH = 4
_READ_REPLY_BYTES = 4_000_000
_READ_REQUEST_BYTES = 500_000
_POLL_S = 0.05

_CAUSES = {
    BadVersionError.code: "bad_version",
    NoNodeError.code: "no_node",
    NodeExistsError.code: "node_exists",
    NotEmptyError.code: "not_empty",
}


class _UnansweredError(Exception):
    """A request was sent, or may have been, and no answer came."""


class ZooKeeperStore:
    """A `MetadataStore` on the ZooKeeper at `hosts` (`host:port,host:port`), with all paths below `chroot`.

    The chroot is created at start where it is missing, unless `create_chroot` is off: then it is an error. `clock` is
    the monotonic clock of the lease, in seconds; it is also read in kazoo's thread. `connect_timeout_s` bounds `start`.
    """

    def __init__(
        self,
        hosts: str,
        *,
        session_timeout_s: float,
        chroot: str = "",
        connect_timeout_s: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
        create_chroot: bool = True,
    ) -> None:
        _check_address(hosts, chroot)
        self._hosts = hosts
        self._chroot = chroot
        self._create_chroot = create_chroot
        self._asked_session_timeout_s = session_timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._clock = clock
        self._subscriptions = Subscriptions()
        self._window = asyncio.Semaphore(_MAX_REQUESTS_UNDER_WAY)
        self._client: PromptClient | None = None
        self._serving = asyncio.Event()
        self._prepared = False
        self._closed = False
        self._state = SessionState.LOST
        self._session_id = 0
        self._session_timeout_s = session_timeout_s
        self._lease_valid_until_s = -math.inf
        self._hung_up_by: str | None = None
        self._sessions_given_up = 0
        self._heartbeats: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def session_timeout_s(self) -> float:
        return self._session_timeout_s

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def lease_valid_until_s(self) -> float:
        return self._lease_valid_until_s

    @property
    def obstacle(self) -> str | None:
        if self._hung_up_by is None:
            return None
        return f"{self._hung_up_by} hangs up: it does not serve, or its data were lost or set back"

    @property
    def sessions_given_up(self) -> int:
        return self._sessions_given_up

    async def start(self) -> None:
        """As the port says; `StoreError` when the server is older than 3.6. May be tried again after a failure."""
        if self._client is not None or self._closed:
            raise RuntimeError("a store is started once")
        loop = asyncio.get_running_loop()
        self._subscriptions.bind(loop)
        listener = _LoopListener(
            loop, self._on_connected, self._on_disconnected, self._on_events, self._on_hung_up, self._on_given_up
        )
        self._client = PromptClient(self._hosts, self._asked_session_timeout_s, self._clock, self._is_over, listener)
        try:
            self._client.start_async()
            async with asyncio.timeout(self._connect_timeout_s):
                await self._prepare_patiently()
        except TimeoutError as error:
            obstacle = self.obstacle
            await self._disconnect()
            raise StoreUnavailableError(
                f"no ZooKeeper answered at {self._hosts} within {self._connect_timeout_s:g} s"
                + (f": {obstacle}" if obstacle else "")
            ) from error
        except BaseException:
            await self._disconnect()
            raise
        self._arm_all()

    async def close(self) -> None:
        self._closed = True
        await self._disconnect()

    async def get(self, path: str) -> Znode | None:
        try:
            return await self._read(requests.get_data(self._full(path), path), path)
        except NoNodeError:
            return None

    async def get_many(self, paths: Sequence[str]) -> list[Znode | None]:
        """As the port says; by the sizes seen so far, each request asks for what should fit a moderate reply."""
        full_paths = [self._full(path) for path in paths]
        znodes: list[Znode | None] = []
        size = _FIRST_READ_ZNODES
        while len(znodes) < len(paths):
            begin = len(znodes)
            end = _end_of_chunk(full_paths, begin, size)
            chunk = await self._read(requests.multi_read(full_paths[begin:end], paths[begin:end]), paths[begin])
            znodes += chunk
            reply_bytes = sum(len(znode.data) for znode in chunk if znode is not None)
            mean_bytes = max(1, reply_bytes // len(chunk))
            size = max(1, min(size * _READ_GROWTH, _MAX_READ_ZNODES, _READ_REPLY_BYTES // mean_bytes))
        return znodes

    async def children(self, path: str) -> list[str]:
        try:
            names = await self._read(requests.get_children(self._full(path)), path)
        except NoNodeError:
            return []
        return sorted(names)

    async def commit(self, ops: Sequence[Op], *, session_id: int | None = None) -> list[int]:
        return await self._transact(ops, self._full, session_id)

    async def ensure_path(self, path: str) -> None:
        await self._ensure(self._full(path))

    async def sync(self) -> None:
        await self._read(requests.sync(self._full("/")), "/")

    def watch(self, path: str, on_change: Callable[[str], None]) -> Unsubscribe:
        """As the port says. Events of a path nobody watches any more are dropped here until the connection ends."""
        unsubscribe = self._subscriptions.watch(check_path(path), on_change)
        if self._prepared and self._state is SessionState.CONNECTED:
            self._spawn(self._arm(path))
        return unsubscribe

    def on_session(self, callback: Callable[[SessionState], None]) -> Unsubscribe:
        return self._subscriptions.on_session(callback)

    # What kazoo reports, on the event loop

    def _on_connected(self, handshake: Handshake) -> None:
        if self._client is None:
            return
        self._session_id = handshake.session_id
        self._session_timeout_s = handshake.session_timeout_s
        self._hung_up_by = None
        self._lease_valid_until_s = handshake.asked_at_s + LEASE_RATIO * handshake.session_timeout_s
        log.info("session_connected", session_id=hex(handshake.session_id), timeout_s=handshake.session_timeout_s)
        self._subscriptions.disarmed()
        self._set_state(SessionState.CONNECTED)
        self._serving.set()
        self._stop_heartbeats()
        self._heartbeats = asyncio.get_running_loop().create_task(self._beat())
        if self._prepared:
            self._arm_all()

    def _on_disconnected(self, session_is_lost: bool) -> None:  # noqa: FBT001 - called by position, through the loop
        if self._client is None:
            return
        self._serving.clear()
        self._stop_heartbeats()
        if session_is_lost:
            self._forget_session()
        elif self._state is SessionState.CONNECTED:
            self._set_state(SessionState.SUSPENDED)

    def _on_hung_up(self, address: str) -> None:
        if self._hung_up_by is None:
            log.warning("zookeeper_hangs_up", address=address, session_id=hex(self._session_id))
        self._hung_up_by = address

    def _on_given_up(self, address: str) -> None:
        self._sessions_given_up += 1
        why = "it grants sessions but does not take this one back: its data were lost or set back"
        log.warning("session_given_up", address=address, session_id=hex(self._session_id), why=why)

    def _on_events(self, full_paths: Sequence[str]) -> None:
        if self._client is None:
            return
        for full_path in full_paths:
            self._subscriptions.changed(full_path[len(self._chroot) :] or "/")

    # The session

    async def _beat(self) -> None:
        """Extend the lease by answered heartbeats, one at a time, until the connection ends or the lease lapses."""
        while (sent_at_s := self._clock()) < self._lease_valid_until_s:
            try:
                async with asyncio.timeout(self._lease_valid_until_s - sent_at_s):
                    await self._submit(requests.sync(self._full("/")))
            except TimeoutError:
                break
            except (StoreUnavailableError, ZookeeperError) as error:
                log.debug("heartbeat_failed", error=repr(error))
            else:
                self._lease_valid_until_s = sent_at_s + LEASE_RATIO * self._session_timeout_s
            await asyncio.sleep(self._session_timeout_s / HEARTBEATS_PER_SESSION_TIMEOUT)
        self._lapse()

    def _is_over(self) -> bool:
        """Whether the session is over by our own clock, with a margin of a whole timeout; called in kazoo's thread."""
        unanswered_timeouts = GIVEN_UP_AFTER_TIMEOUTS - LEASE_RATIO
        return self._clock() >= self._lease_valid_until_s + unanswered_timeouts * self._session_timeout_s

    def _lapse(self) -> None:
        log.warning("session_lease_lapsed", session_id=hex(self._session_id))
        self._set_state(SessionState.SUSPENDED)
        if self._client is not None:
            self._client.drop()

    def _set_state(self, state: SessionState) -> None:
        if state is not self._state:
            self._state = state
            self._subscriptions.state_changed(state)

    def _forget_session(self) -> None:
        self._session_id = 0
        self._lease_valid_until_s = -math.inf
        self._set_state(SessionState.LOST)

    def _stop_heartbeats(self) -> None:
        if self._heartbeats is not None:
            self._heartbeats.cancel()
            self._heartbeats = None

    async def _prepare_patiently(self) -> None:
        """Prepare on the first connection that lasts long enough."""
        is_said = False
        while not self._prepared:
            await self._serving.wait()
            try:
                await self._prepare()
            except StoreUnavailableError as error:
                if not is_said:
                    log.warning("start_waits_for_store", error=str(error))
                is_said = True
                await asyncio.sleep(_POLL_S)
            else:
                self._prepared = True

    async def _prepare(self) -> None:
        """Make sure of a server that knows the requests we use, and of the chroot."""
        try:
            await self._exchange(requests.multi_read(["/"], ["/"]))
            if self._chroot and self._create_chroot:
                await self._ensure(self._chroot)
            elif self._chroot and await self.get("/") is None:
                raise StoreError(f"the chroot {self._chroot} does not exist at {self._hosts}")
        except UnimplementedError as error:
            raise StoreError(f"the ZooKeeper at {self._hosts} is too old: 3.6 or newer is needed") from error
        except (_UnansweredError, OutcomeUnknownError) as error:
            raise StoreUnavailableError(f"the ZooKeeper at {self._hosts} hung up") from error

    async def _disconnect(self) -> None:
        """End the session and kazoo's threads; whoever holds something by the session hears of it first."""
        client, self._client = self._client, None
        connected = self._state is SessionState.CONNECTED
        self._stop_heartbeats()
        self._forget_session()
        self._serving.clear()
        self._prepared = False
        for task in self._tasks:
            task.cancel()
        if client is not None:
            await _shut_down(client, self._session_timeout_s / 3 if connected else 0.0)

    # Watches

    def _arm_all(self) -> None:
        for path in self._subscriptions.paths:
            self._spawn(self._arm(path))

    async def _arm(self, path: str) -> None:
        """Ask the server to report changes below `path`; when the connection ends first, the next one asks anew."""
        try:
            await self._exchange(requests.add_watch(self._full(path)))
        except (StoreUnavailableError, _UnansweredError):
            return
        except ZookeeperError as error:
            log.exception("watch_refused", path=path, error=repr(error))
            return
        self._subscriptions.armed(path)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Requests

    async def _read(self, request: Request[T], path: str) -> T:
        """The answer; `NoNodeError` when the one znode asked for does not exist."""
        try:
            return await self._exchange(request)
        except NoNodeError:
            raise
        except _UnansweredError as error:
            raise StoreUnavailableError(f"{path}: no answer to a read: {error}") from error
        except ZookeeperError as error:
            raise StoreError(f"{path}: {error!r}") from error

    async def _transact(self, ops: Sequence[Op], full_path: Callable[[str], str], session_id: int | None) -> list[int]:
        for op in ops:
            check_path(op.path)
        check_sizes(ops, chroot_bytes=len(self._chroot.encode()))
        if not ops:
            return []
        try:
            outcomes = await self._exchange(requests.multi(ops, full_path), session_id)
        except _UnansweredError as error:
            raise OutcomeUnknownError(
                f"no answer to a transaction of {len(ops)} operations from {ops[0].path} on"
            ) from error
        except ZookeeperError as error:
            raise StoreError(f"a transaction from {ops[0].path} on: {error!r}") from error
        failed = requests.first_failure([code for code, _ in outcomes])
        if failed is not None:
            raise TransactionFailedError(failed, ops[failed].path, _CAUSES.get(outcomes[failed][0], "other"))
        return [_new_version(op, version) for op, (_, version) in zip(ops, outcomes, strict=True)]

    async def _ensure(self, full_path: str) -> None:
        names = full_path.strip("/").split("/")
        parents = ["/" + "/".join(names[:depth]) for depth in range(1, len(names) + 1)]
        found = await self._read(requests.multi_read(parents, parents), full_path)
        for parent in [parent for parent, znode in zip(parents, found, strict=True) if znode is None]:
            try:
                await self._transact([Create(parent, b"")], str, None)
            except TransactionFailedError as error:
                if error.cause != "node_exists":
                    raise

    async def _exchange(self, request: Request[T], session_id: int | None = None) -> T:
        """Send a request and wait for its answer, for at most a session timeout.

        Raises `StoreUnavailableError` when it was not sent, `_UnansweredError` when it was, and what the server says.
        """
        is_sent = False
        try:
            async with asyncio.timeout(self._session_timeout_s), self._window:
                answer = self._submit(request, session_id)
                is_sent = True
                return await answer
        except TimeoutError as error:
            if is_sent:
                raise _UnansweredError(f"none within {self._session_timeout_s:g} s") from error
            raise StoreUnavailableError("too many requests wait for answers; this one was not sent") from error
        except (ConnectionLoss, SessionExpiredError, SessionMovedError) as error:
            raise _UnansweredError(f"the connection ended: {error!r}") from error

    def _submit(self, request: Request[T], session_id: int | None = None) -> asyncio.Future[T]:
        """Hand a request to kazoo's thread, meant for the session this loop knows of; nothing else gets there."""
        if session_id is not None and session_id != self._session_id:
            raise StoreUnavailableError(f"session {session_id:#x} is not the current one any more")
        if self._client is None or self._state is not SessionState.CONNECTED:
            raise StoreUnavailableError(f"no connection to ZooKeeper at {self._hosts}: {self._state}")
        if self._clock() >= self._lease_valid_until_s:
            raise StoreUnavailableError(f"no answer from ZooKeeper at {self._hosts} for too long: the lease lapsed")
        reply = _Reply[T](asyncio.get_running_loop())
        if not self._client.submit(request, reply, self._session_id):
            raise StoreUnavailableError(f"the connection to ZooKeeper at {self._hosts} has just ended")
        return reply.future

    def _full(self, path: str) -> str:
        return (self._chroot + check_path(path)).removesuffix("/") or "/"


class _Reply(Generic[T]):
    """Takes an answer in kazoo's thread and hands it to a future of the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.future: asyncio.Future[T] = loop.create_future()

    def set(self, value: T) -> None:
        _call_soon(self._loop, self._resolve, value)

    def set_exception(self, exception: Exception) -> None:
        _call_soon(self._loop, self._reject, exception)

    def _resolve(self, value: T) -> None:
        if not self.future.done():
            self.future.set_result(value)

    def _reject(self, exception: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(exception)


class _LoopListener:
    """What kazoo reports in its thread, as calls on the event loop; many events at once are one call."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_connected: Callable[[Handshake], None],
        on_disconnected: Callable[[bool], None],
        on_events: Callable[[Sequence[str]], None],
        on_hung_up: Callable[[str], None],
        on_given_up: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._on_connected = on_connected
        self._on_disconnected = on_disconnected
        self._on_events = on_events
        self._on_hung_up = on_hung_up
        self._on_given_up = on_given_up
        self._events: deque[str] = deque()
        self._is_woken = False

    def on_connected(self, handshake: Handshake) -> None:
        _call_soon(self._loop, self._on_connected, handshake)

    def on_disconnected(self, *, session_is_lost: bool) -> None:
        _call_soon(self._loop, self._on_disconnected, session_is_lost)

    def on_hung_up(self, address: str) -> None:
        _call_soon(self._loop, self._on_hung_up, address)

    def on_given_up(self, address: str) -> None:
        _call_soon(self._loop, self._on_given_up, address)

    def on_event(self, full_path: str) -> None:
        self._events.append(full_path)
        if not self._is_woken:
            self._is_woken = True
            _call_soon(self._loop, self._drain)

    def _drain(self) -> None:
        """On the loop: the flag first, so that an event that comes while we look wakes us once more."""
        self._is_woken = False
        paths: dict[str, None] = {}
        with contextlib.suppress(IndexError):
            while True:
                paths[self._events.popleft()] = None
        self._on_events(list(paths))


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[*Ts], None], *args: *Ts) -> None:
    """Call back on the loop, from any thread; nobody is left to be told when the loop was closed without the store."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *args)


async def _shut_down(client: PromptClient, patience_s: float) -> None:
    """End the session by asking the server; when it has not answered by then, end the connection under kazoo."""
    loop = asyncio.get_running_loop()
    executor = ThreadPoolExecutor(max_workers=1)
    ending = loop.run_in_executor(executor, client.shut_down)
    try:
        await asyncio.wait([ending], timeout=patience_s)
        while not ending.done():
            client.drop()
            await asyncio.wait([ending], timeout=_POLL_S)
    finally:
        client.drop()
        executor.shutdown(wait=ending.done())
    try:
        ending.result()
    except WriterNotClosedException as error:
        log.warning("zookeeper_thread_left_behind", error=str(error))


def _end_of_chunk(full_paths: Sequence[str], begin: int, size: int) -> int:
    """Where a request that begins at `begin` ends: after `size` paths, or earlier when it grows too long itself."""
    request_bytes = 0
    for index in range(begin, min(begin + size, len(full_paths))):
        request_bytes += len(full_paths[index].encode())
        if request_bytes > _READ_REQUEST_BYTES and index > begin:
            return index
    return min(begin + size, len(full_paths))


def _new_version(op: Op, version_of_put: int) -> int:
    match op:
        case Create():
            return 0
        case Check(version=version):
            return version
        case Delete():
            return -1
        case _:
            return version_of_put


def _check_address(hosts: str, chroot: str) -> None:
    if "/" in hosts:
        raise ConfigurationError(f"ZooKeeper hosts {hosts!r}: give the path as the chroot, not behind the hosts")
    try:
        collect_hosts(hosts)
    except ValueError as error:
        raise ConfigurationError(f"ZooKeeper hosts {hosts!r}: {error}; expected host:port,host:port") from error
    if chroot == "/":
        raise ConfigurationError("ZooKeeper chroot '/': leave it empty to use the root")
    try:
        check_path(chroot or "/")
    except ValueError as error:
        raise ConfigurationError(f"ZooKeeper chroot: {error}") from error
