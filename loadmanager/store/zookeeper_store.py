"""Metadata store on ZooKeeper (3.6 or newer), through kazoo.

kazoo's threads only transport bytes. An answer, an event or a change of state only wakes the event loop, which decides.

`loadmanager.store.store_session` decides when the session can be trusted and when it has expired. This module drives
it, and sends the heartbeats: `sync` requests, which write nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar, TypeVarTuple

import structlog
from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
    UnimplementedError,
    WriterNotClosedException,
    ZookeeperError,
)
from kazoo.hosts import collect_hosts
from kazoo.security import ACL, OPEN_ACL_UNSAFE, Id

from loadmanager.core.protocol.state_machine import Say, do_all
from loadmanager.errors import (
    AccessDeniedError,
    ConfigurationError,
    OutcomeUnknownError,
    StoreError,
    StoreUnavailableError,
    TransactionFailedError,
)
from loadmanager.store import _kazoo_requests as requests
from loadmanager.store._kazoo_requests import KazooRequest
from loadmanager.store._subscriptions import Subscriptions
from loadmanager.store.kazoo_client import PromptClient
from loadmanager.store.metadata_store import (
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
from loadmanager.store.store_session import (
    Action,
    Announce,
    Arm,
    Drop,
    Event,
    GiveUp,
    Heartbeat,
    OfSession,
    RequestAnswered,
    Session,
    SessionSignal,
)
from loadmanager.store.zookeeper_acl import ANYBODY, Access
from loadmanager.util.clock import now_s

log = structlog.get_logger(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_MAX_REQUESTS_IN_PROGRESS = 64
"""kazoo wakes its thread with one byte per request, through a socket that blocks after about 270 of them."""

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
    NoAuthError.code: "no_access",
}

_NO_ANSWERS = (ConnectionLoss, OperationTimeoutError, SessionExpiredError, SessionMovedError)
"""Errors of ZooKeeper, or of kazoo on its behalf, that leave the outcome of a request unknown."""


class _UnansweredError(Exception):
    """A request was sent, or may have been sent, without a readable answer."""


class ZooKeeperStore(OfSession):
    """A `MetadataStore` on the ZooKeeper at `hosts` (`host:port,host:port`), with all paths below `chroot`.

    The chroot is created at the start if it is missing, unless `create_chroot` is off: then `start` fails. `access` has
    our identity, and the ACLs of created znodes. `clock` is the clock of the lease, in seconds; kazoo's thread reads it
    too. `connect_timeout_s` limits `start`.
    """

    def __init__(
        self,
        hosts: str,
        *,
        session_timeout_s: float,
        chroot: str = "",
        connect_timeout_s: float = 15.0,
        clock: Callable[[], float] = now_s,
        create_chroot: bool = True,
        access: Access = ANYBODY,
    ) -> None:
        super().__init__(Session(session_timeout_s))
        _check_address(hosts, chroot)
        self._hosts = hosts
        self._chroot = chroot
        self._create_chroot = create_chroot
        self._access = access
        self._denied: dict[tuple[str, str], str] = {}
        self._asked_session_timeout_s = session_timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._clock = clock
        self._subscriptions = Subscriptions()
        self._window = asyncio.Semaphore(_MAX_REQUESTS_IN_PROGRESS)
        self._client: PromptClient | None = None
        self._serving = asyncio.Event()
        self._prepared = False
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Open the session, as in the port; raises `StoreError` for a server older than 3.6. It may be called again
        after a failure.
        """
        if self._client is not None or self._closed:
            raise RuntimeError("a store is started once")
        loop = asyncio.get_running_loop()
        self._subscriptions.bind(loop)
        listener = _LoopListener(loop, self._step, self._changed)
        self._step(SessionSignal.OPEN)
        self._client = PromptClient(self._hosts, self._asked_session_timeout_s, self._clock, listener, self._access)
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

    @property
    def access(self) -> Access:
        return self._access

    @property
    def has_chroot(self) -> bool:
        return bool(self._chroot)

    @property
    def denied(self) -> Mapping[str, str]:
        return {path: sentence for (path, _), sentence in self._denied.items()}

    async def get(self, path: str) -> Znode | None:
        return (await self.get_many([path]))[0]

    async def get_many(self, paths: Sequence[str]) -> list[Znode | None]:
        return await self._read_many(requests.multi_read, paths, lambda znode: len(znode.data))

    async def children(self, path: str) -> list[str]:
        return (await self.children_many([path]))[0]

    async def children_many(self, paths: Sequence[str]) -> list[list[str]]:
        found = await self._read_many(requests.multi_children, paths, lambda names: sum(map(len, names)))
        return [sorted(names or ()) for names in found]

    async def commit(self, ops: Sequence[Op], *, session_id: int | None = None) -> list[int]:
        return await self._transact(ops, self._full, session_id)

    async def ensure_path(self, path: str) -> None:
        await self._ensure(self._full(path))

    async def sync(self) -> None:
        await self._read(requests.sync(self._full("/")), "/")

    async def get_acl(self, path: str) -> list[ACL] | None:
        """Return the ACL of the znode; None if it does not exist. Without the admin permission hashes are hidden."""
        try:
            return await self._read(requests.get_acl(self._full(path)), path)
        except NoNodeError:
            return None

    async def set_acl(self, path: str, acl: Sequence[ACL]) -> bool:
        """Replace the ACL of the znode; return False if it does not exist."""
        try:
            await self._read(requests.set_acl(self._full(path), acl), path)
        except NoNodeError:
            return False
        return True

    async def who_am_i(self) -> list[Id]:
        """Return our identities as the servers know them; for servers older than 3.7, as configured. For a digest they
        return only the user. Servers accept any digest identity that we add.
        """
        ours = [self._access.credentials.identity] if self._access.credentials else []
        try:
            known = await self._exchange(requests.who_am_i())
        except UnimplementedError:
            return ours
        except (ZookeeperError, _UnansweredError) as error:
            raise StoreUnavailableError(f"who we are: {error!r}") from error
        return [each for each in known if each.scheme != "digest"] + [each for each in ours if each.scheme == "digest"]

    def watch(self, path: str, on_change: Callable[[str], None]) -> Unsubscribe:
        """Watch, as in the port. Events of a path without watchers are dropped until the connection ends."""
        unsubscribe = self._subscriptions.watch(check_path(path), on_change)
        if self._prepared and self.state is SessionState.CONNECTED:
            self._spawn(self._arm(path))
        return unsubscribe

    def on_session(self, callback: Callable[[SessionState], None]) -> Unsubscribe:
        return self._subscriptions.on_session(callback)

    # The session

    def _step(self, event: Event) -> None:
        """Step the session on the event loop, for an event from any thread."""
        try:
            do_all(self._session.step(event, self._clock()), self._do)
        finally:
            self._set_timer()

    def _do(self, action: Action) -> None:
        match action:
            case Say(event, fields, is_warning):
                (log.warning if is_warning else log.info)(event, **fields)
            case Announce(state):
                self._announce(state)
            case Arm():
                self._subscriptions.disarmed()
                if self._prepared:
                    self._arm_all()
            case Heartbeat():
                self._send_heartbeat(action)
            case Drop():
                self._get_client().drop()
            case GiveUp(asked_at_s):
                self._get_client().give_up(asked_at_s)

    def _get_client(self) -> PromptClient:
        assert self._client is not None, "a session that is not closed has one"
        return self._client

    def _announce(self, state: SessionState) -> None:
        self._subscriptions.state_changed(state)
        if state is SessionState.CONNECTED:
            self._serving.set()
        else:
            self._serving.clear()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake_s = self._session.wake_s
        if wake_s is not None:
            pause_s = max(0.0, wake_s - self._clock())
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._step, SessionSignal.TIME)

    def _send_heartbeat(self, beat: Heartbeat) -> None:
        """Send a `sync` at once: on an overloaded machine each turn of the event loop costs part of the lease."""

        def end(answer: asyncio.Future[None]) -> None:
            error = answer.exception()
            if error is None:
                self._step(RequestAnswered(beat.session_id, beat.sent_at_s))
            else:
                log.debug("heartbeat_failed", error=repr(error))

        try:
            self._submit(requests.sync(self._full("/"))).add_done_callback(end)
        except StoreUnavailableError as error:
            log.debug("heartbeat_failed", error=str(error))

    def _changed(self, full_paths: Sequence[str]) -> None:
        if self._client is not None:
            for full_path in full_paths:
                self._subscriptions.changed(full_path[len(self._chroot) :] or "/")

    # The connection

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
        """Check that the server knows the requests we use, and create the chroot."""
        try:
            with contextlib.suppress(NoAuthError):  # it knows the request; permission to read the root is not needed
                await self._exchange(requests.multi_read(["/"], ["/"]))
            if self._chroot and self._create_chroot:
                await self._ensure(self._chroot)
            elif self._chroot and await self.get("/") is None:
                raise StoreError(
                    f"the chroot {self._chroot} does not exist at {self._hosts}: give another, or leave it"
                    " out if there is none"
                )
        except UnimplementedError as error:
            raise StoreError(f"the ZooKeeper at {self._hosts} is too old: 3.6 or newer is needed") from error
        except (_UnansweredError, OutcomeUnknownError) as error:
            raise StoreUnavailableError(f"the ZooKeeper at {self._hosts} hung up") from error

    async def _disconnect(self) -> None:
        """End the session and kazoo's threads, after the session callbacks were scheduled."""
        client, self._client = self._client, None
        connected = self.state is SessionState.CONNECTED
        self._step(SessionSignal.CLOSE)
        self._prepared = False
        for task in self._tasks:
            task.cancel()
        if client is not None:
            await _shut_down(client, self.session_timeout_s / 3 if connected else 0.0)

    # Watches

    def _arm_all(self) -> None:
        for path in self._subscriptions.paths:
            self._spawn(self._arm(path))

    async def _arm(self, path: str) -> None:
        """Ask the server to report changes below `path`; repeated after every reconnection."""
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

    async def _read_many(
        self,
        request_of: Callable[[Sequence[str], Sequence[str]], KazooRequest[list[T | None]]],
        paths: Sequence[str],
        size_of: Callable[[T], int],
    ) -> list[T | None]:
        """Read each path; the sizes seen so far keep each reply moderate."""
        full_paths = [self._full(path) for path in paths]
        found: list[T | None] = []
        size = _FIRST_READ_ZNODES
        while len(found) < len(paths):
            begin = len(found)
            end = _end_of_chunk(full_paths, begin, size)
            chunk = await self._read(request_of(full_paths[begin:end], paths[begin:end]), paths[begin])
            found += chunk
            self._let_through("read", paths[begin:end])
            mean_bytes = max(1, sum(size_of(each) for each in chunk if each is not None) // len(chunk))
            size = max(1, min(size * _READ_GROWTH, _MAX_READ_ZNODES, _READ_REPLY_BYTES // mean_bytes))
        return found

    async def _read(self, request: KazooRequest[T], path: str) -> T:
        """Return the answer; raises `NoNodeError` if the requested znode does not exist."""
        try:
            answer = await self._exchange(request)
        except NoNodeError:
            raise
        except NoAuthError as error:
            raise AccessDeniedError(self._deny("read", *(error.args or (path,)))) from error
        except _UnansweredError as error:
            raise StoreUnavailableError(f"{path}: no answer to a read: {error}") from error
        except ZookeeperError as error:
            raise StoreError(f"{path}: {error!r}") from error
        self._let_through("read", [path])
        return answer

    def _deny(self, what: str, path: str) -> str:
        """Store an access denial, and log it once."""
        if (path, what) not in self._denied:
            log.error("zookeeper_denies_access", path=path, what=what, who=self._access.who)
        sentence = f"the ACL of {path}, or of its parent, does not let us {what} it; we are {self._access.who}"
        self._denied[path, what] = sentence
        return sentence

    def _let_through(self, what: str, paths: Iterable[str]) -> None:
        if self._denied:
            for path in paths:
                self._denied.pop((path, what), None)

    async def _transact(self, ops: Sequence[Op], full_path: Callable[[str], str], session_id: int | None) -> list[int]:
        for op in ops:
            check_path(op.path)
        check_sizes(ops, extra_bytes=len(self._chroot.encode()) + self._access.acls.longest_bytes)
        if not ops:
            return []
        asked = self.session_id, self._clock()
        try:
            outcomes = await self._exchange(requests.multi(ops, full_path, self._acl_of), session_id)
        except _UnansweredError as error:
            raise OutcomeUnknownError(
                f"no answer to a transaction of {len(ops)} operations from {ops[0].path} on"
            ) from error
        except ZookeeperError as error:
            raise StoreError(f"a transaction from {ops[0].path} on: {error!r}") from error
        failed = requests.first_failure([code for code, _ in outcomes])
        if failed is not None:
            cause = _CAUSES.get(outcomes[failed][0], "other")
            if cause == "no_access":
                self._deny("write", ops[failed].path)
            raise TransactionFailedError(failed, ops[failed].path, cause)
        self._step(RequestAnswered(*asked))  # not for a failed one: its session may have expired
        self._let_through("write", [op.path for op in ops])
        return [_new_version(op, version) for op, (_, version) in zip(ops, outcomes, strict=True)]

    def _acl_of(self, full_path: str) -> list[ACL]:
        """Return the ACL for a new znode; open above the chroot."""
        path = full_path.removeprefix(self._chroot)
        is_ours = path != full_path or not self._chroot
        return self._access.acls.of(path or "/") if is_ours else OPEN_ACL_UNSAFE

    async def _ensure(self, full_path: str) -> None:
        if (await self._read(requests.multi_read([full_path], [full_path]), full_path))[0] is not None:
            return  # its parents may be closed to us
        names = full_path.strip("/").split("/")
        parents = ["/" + "/".join(names[:depth]) for depth in range(1, len(names) + 1)]
        found = await self._read(requests.multi_read(parents, parents), full_path)
        for parent in [parent for parent, znode in zip(parents, found, strict=True) if znode is None]:
            try:
                await self._transact([Create(parent, b"")], str, None)
            except TransactionFailedError as error:
                if error.cause != "node_exists":
                    raise

    async def _exchange(self, request: KazooRequest[T], session_id: int | None = None) -> T:
        """Send a request and wait for its answer, for at most a session timeout.

        Raises `StoreUnavailableError` if it was not sent, `_UnansweredError` if it was sent without an answer, and the
        server's error.
        """
        is_sent = False
        try:
            async with asyncio.timeout(self.session_timeout_s), self._window:
                answer = self._submit(request, session_id)
                is_sent = True
                return await answer
        except TimeoutError as error:
            if is_sent:
                raise _UnansweredError(f"none within {self.session_timeout_s:g} s") from error
            raise StoreUnavailableError("too many requests wait for answers; this one was not sent") from error

    def _submit(self, request: KazooRequest[T], session_id: int | None = None) -> asyncio.Future[T]:
        """Pass a request to kazoo's thread, for the session that this loop knows."""
        why_not = self._session.why_not(self._clock(), session_id)
        if self._client is None or why_not is not None:
            raise StoreUnavailableError(f"ZooKeeper at {self._hosts}: {why_not}")
        reply = _Reply[T](asyncio.get_running_loop())
        if not self._client.submit(request, reply, self.session_id):
            raise StoreUnavailableError(f"the connection to ZooKeeper at {self._hosts} has just ended")
        return reply.future

    def _full(self, path: str) -> str:
        return (self._chroot + check_path(path)).removesuffix("/") or "/"


class _Reply(Generic[T]):
    """Handler of an answer in kazoo's thread, which completes a future of the event loop.

    Any exception other than ZooKeeper's own errors becomes `_UnansweredError`, including faults in kazoo.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.future: asyncio.Future[T] = loop.create_future()

    def set(self, value: T) -> None:
        _call_soon(self._loop, self._resolve, value)

    def set_exception(self, exception: Exception) -> None:
        if not isinstance(exception, ZookeeperError) or isinstance(exception, _NO_ANSWERS):
            unanswered = _UnansweredError(repr(exception))
            unanswered.__cause__ = exception
            exception = unanswered
        _call_soon(self._loop, self._reject, exception)

    def _resolve(self, value: T) -> None:
        if not self.future.done():
            self.future.set_result(value)

    def _reject(self, exception: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(exception)


class _LoopListener:
    """Listener that forwards kazoo's events to the event loop; queued events share one call."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        step: Callable[[Event], None],
        changed: Callable[[Sequence[str]], None],
    ) -> None:
        self._loop = loop
        self._step = step
        self._changed = changed
        self._events: deque[str] = deque()
        self._is_woken = False

    def on_session(self, event: Event) -> None:
        _call_soon(self._loop, self._step, event)

    def on_change(self, full_path: str) -> None:
        self._events.append(full_path)
        if not self._is_woken:
            self._is_woken = True
            _call_soon(self._loop, self._drain)

    def _drain(self) -> None:
        """Handle queued events on the loop. The flag is cleared first, so that a later event wakes the loop again."""
        self._is_woken = False
        paths: dict[str, None] = {}
        with contextlib.suppress(IndexError):
            while True:
                paths[self._events.popleft()] = None
        self._changed(list(paths))


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[*Ts], None], *args: *Ts) -> None:
    """Schedule a callback on the loop from any thread; ignore a loop that was closed before the store."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *args)


async def _shut_down(client: PromptClient, timeout_s: float) -> None:
    """End the session at the server; after the timeout, drop kazoo's connection."""
    loop = asyncio.get_running_loop()
    executor = ThreadPoolExecutor(max_workers=1)
    ending = loop.run_in_executor(executor, client.shut_down)
    try:
        await asyncio.wait([ending], timeout=timeout_s)
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
    """Return the end of a request that begins at `begin`: after `size` paths, or earlier if the request would become
    too long.
    """
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
