"""A model of ZooKeeper and its client: sessions, lagging followers, ordered answers, broken connections.

    client ──requests, in order──▶ follower ──writes──▶ leader ──transactions, in order──▶ each follower, in its time
       ◀──answers and events, in order──┘

Guarantees, as in ZooKeeper: a client gets answers in order of its requests, and an event before it can read the change.
Reads may be stale but never go back in time. A write is answered once the client's follower has it, `sync` once the
follower has the leader's state. A session expires when its client is silent for its timeout. After a broken connection
the outcome of pending writes is unknown. The tree and its transactions are those of `support.memory_store`. The client
implements `MetadataStore` and uses `loadmanager.store.store_session`, as the real one.

The servers may be rolled back to their last saved state, initially empty: tree, sessions and transaction ids go back.
They hang up on clients that have seen more. A rollback takes longer than any lease; otherwise two brokers might serve a
topic.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from protocol.parties import Party, current_party

from loadmanager.errors import OutcomeUnknownError, StoreUnavailableError, TransactionFailedError, ZnodeTooLargeError
from loadmanager.store._subscriptions import Subscriptions
from loadmanager.store.local_store import StagedTransaction
from loadmanager.store.metadata_store import (
    Create,
    Op,
    Put,
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
    Drop,
    Event,
    GivenUp,
    Heartbeat,
    HungUp,
    OfSession,
    RequestAnswered,
    Session,
    SessionSignal,
)
from loadmanager.util.clock import now_s

_LATENCY_S = (0.0001, 0.0019)
_SLOW_SHARES = (0.0, 0.0, 0.05, 0.2)
_SLOW_S = 1.5
_LAG_S = 0.003
_RECONNECT_S = (0.02, 0.3)
_CONNECT_TIMEOUT_S = 1.0
_TICK_S = 0.2
_FOLLOWERS = 3
_SERVERS = "zookeeper"


class Clockwork(Protocol):
    """Clock and timers of the world: `parties.VirtualLoop`."""

    @property
    def now_s(self) -> float: ...

    def as_party(self, party: Party, delay_s: float, callback: Callable[..., object], *args: object) -> None: ...


Changes = dict[str, Znode | None]
OnCommit = Callable[[int, Sequence[Op], Changes], None]
"""Called with each transaction: session, operations, and changed znodes (None: deleted)."""

OnRefusal = Callable[[Party, Sequence[Op], TransactionFailedError], None]
"""Called with each refused transaction and its client."""

OnSetBack = Callable[[dict[str, Znode]], None]
"""Called with the tree after a rollback."""


_Greeting = tuple["Follower", int] | None
"""Server that takes a client, and its session, 0 if expired. None: no server has seen as much as the client."""


@dataclass(eq=False, slots=True)
class _Session:
    number: int
    timeout_s: float
    heard_at_s: float


@dataclass(frozen=True, slots=True)
class _Saved:
    zxid: int
    znodes: dict[str, Znode]
    sessions: dict[int, float]
    """Their timeouts, in seconds."""


@dataclass(eq=False, slots=True)
class Follower:
    """A copy of the tree at transaction `zxid`. `lag_s` is an extra delay of each transaction."""

    name: str
    znodes: dict[str, Znode] = field(default_factory=lambda: {"/": Znode("/", b"", 0, 0, 0, 0)})
    zxid: int = 0
    lag_s: float = 0.0
    last_due_s: float = 0.0
    connections: list[_Connection] = field(default_factory=list)
    waiting: list[tuple[int, Callable[[], None]]] = field(default_factory=list)

    def once_at(self, zxid: int, then: Callable[[], None]) -> None:
        if self.zxid >= zxid:
            then()
        else:
            self.waiting.append((zxid, then))


class Ensemble:
    """The servers. While `is_stopped` they answer nothing, and session timeouts go on."""

    def __init__(self, loop: Clockwork, rng: random.Random) -> None:
        self.loop = loop
        self.rng = rng
        self.party = Party("zookeeper", "zookeeper")
        self.zxid = 0
        self.znodes: dict[str, Znode] = {"/": Znode("/", b"", 0, 0, 0, 0)}
        self.followers = [Follower(f"zk{number}") for number in range(_FOLLOWERS)]
        self.sessions: dict[int, _Session] = {}
        self.is_stopped = False
        self.is_being_set_back = False
        self.era = 0
        """Number of rollbacks of the servers: messages under way before one are lost."""
        self.has_ended = False
        self.most_lag_s = _LAG_S
        """Longest delay of a follower that does not lag."""
        self.slow_share = rng.choice(_SLOW_SHARES)
        """Share of slow messages; drawn once."""
        self.cut_hosts: set[str] = set()
        self.most_bytes: int | None = None
        """Largest size of a znode's data, if below ZooKeeper's own limit."""
        self.on_commit: list[OnCommit] = []
        self.on_refusal: list[OnRefusal] = []
        self.on_set_back: list[OnSetBack] = []
        self.clients: dict[int, Party] = {}
        """Party of each session, ended ones included."""
        self.messages = 0
        self._numbers = 0
        self._held: list[Callable[[], None]] = []
        self._saved = _Saved(self.zxid, dict(self.znodes), {})
        loop.as_party(self.party, _TICK_S, self._tick)

    def end(self) -> None:
        """End the timers of the servers."""
        self.has_ended = True

    # What goes wrong

    def stop(self) -> None:
        self.is_stopped = True

    def go_on(self) -> None:
        if self.is_being_set_back:
            return
        self.is_stopped = False
        self._expire()
        held, self._held = self._held, []
        for then in held:
            self.loop.as_party(self.party, 0.0, then)

    def save(self) -> None:
        """Save the current data for a rollback."""
        timeouts_s = {session.number: session.timeout_s for session in self.sessions.values()}
        self._saved = _Saved(self.zxid, dict(self.znodes), timeouts_s)

    def set_back(self, down_s: float) -> None:
        """End the servers, and start them again after so many seconds, with what was saved."""
        if self.is_being_set_back:
            return
        self.is_being_set_back = self.is_stopped = True
        self.era += 1
        self._held.clear()
        for follower in self.followers:
            for connection in list(follower.connections):
                connection.end()
        self.loop.as_party(self.party, down_s, self._come_back)

    def _come_back(self) -> None:
        saved, now_s = self._saved, self.loop.now_s
        self.zxid, self.znodes = saved.zxid, dict(saved.znodes)
        self.sessions = {number: _Session(number, timeout_s, now_s) for number, timeout_s in saved.sessions.items()}
        for follower in self.followers:
            follower.zxid, follower.znodes, follower.last_due_s = saved.zxid, dict(saved.znodes), now_s
            follower.waiting.clear()
        for told in self.on_set_back:
            told(self.znodes)
        self.is_being_set_back = False
        self.go_on()

    def cut(self, host: str) -> None:
        """Cut the links between this host and all servers."""
        self.cut_hosts.add(host)

    def heal(self, host: str) -> None:
        """Mend the links and deliver pending messages of open connections."""
        self.cut_hosts.discard(host)
        for follower in self.followers:
            for connection in list(follower.connections):
                connection.flush()

    def expire(self, number: int) -> None:
        """Expire a session."""
        session = self.sessions.pop(number, None)
        if session is None:
            return
        held = {path: None for path, znode in self.znodes.items() if znode.ephemeral_owner == number}
        self._commit(number, (), dict(held))
        for follower in self.followers:
            for connection in [each for each in follower.connections if each.session == number]:
                connection.end()

    # What servers do

    def when_running(self, then: Callable[[], None]) -> None:
        """Call `then` now, or when the servers resume."""
        if self.is_stopped:
            self._held.append(then)
        else:
            then()

    def latency_s(self) -> float:
        if self.rng.random() < self.slow_share:
            return self.rng.uniform(0.0, _SLOW_S)
        return self.rng.uniform(*_LATENCY_S)

    def begin_session(self, timeout_s: float, party: Party) -> int:
        self._numbers += 1
        number = (self._numbers << 8) | 0xA
        self.clients[number] = party
        self.sessions[number] = _Session(number, timeout_s, self.loop.now_s)
        self.zxid += 1
        self._spread({})
        return number

    def greet(
        self, party: Party, number: int, seen_zxid: int, timeout_s: float, greeted: asyncio.Future[_Greeting]
    ) -> None:
        """Resume a client's session, or begin one (0), unless its host is cut off."""

        def arrive() -> None:
            if party.host not in self.cut_hosts:
                self.when_running(answer)

        def answer() -> None:
            if not greeted.done():
                found = self._follower_for(party, number, seen_zxid, timeout_s)
                self.loop.as_party(party, self.latency_s(), come_back, found)

        def come_back(found: _Greeting) -> None:
            if party.host not in self.cut_hosts:
                _resolve(greeted, found)

        self.loop.as_party(self.party, self.latency_s(), arrive)

    def _follower_for(self, party: Party, number: int, seen_zxid: int, timeout_s: float) -> _Greeting:
        follower = self.rng.choice(self.followers)
        if follower.zxid < seen_zxid:
            return None
        if number in self.sessions:
            self.heard(number)
            return follower, number
        return follower, 0 if number else self.begin_session(timeout_s, party)

    def heard(self, number: int) -> None:
        session = self.sessions.get(number)
        if session is not None:
            session.heard_at_s = self.loop.now_s

    def check_sizes(self, ops: Sequence[Op]) -> None:
        """Refuse too large data, as clients do before sending."""
        for op in ops:
            if self.most_bytes is not None and isinstance(op, Create | Put) and len(op.data) > self.most_bytes:
                raise ZnodeTooLargeError(f"{op.path}: {len(op.data)} bytes, at most {self.most_bytes} fit into a znode")

    def write(self, ops: Sequence[Op], number: int) -> list[int]:
        """Apply all operations or none, for a live session."""
        staged = StagedTransaction(self.znodes, self.zxid + 1, number)
        versions = [staged.apply(index, op) for index, op in enumerate(ops)]
        self._commit(number, ops, staged.changes)
        return versions

    def _commit(self, number: int, ops: Sequence[Op], changes: Changes) -> None:
        self.zxid += 1
        _apply(self.znodes, changes)
        for told in self.on_commit:
            told(number, ops, changes)
        self._spread(changes)

    def _spread(self, changes: Changes) -> None:
        zxid = self.zxid
        for follower in self.followers:
            due_s = max(follower.last_due_s, self.loop.now_s + follower.lag_s + self.rng.uniform(0.0, self.most_lag_s))
            follower.last_due_s = due_s
            self.loop.as_party(self.party, due_s - self.loop.now_s, self._take, self.era, follower, zxid, changes)

    def _take(self, era: int, follower: Follower, zxid: int, changes: Changes) -> None:
        if era != self.era:
            return
        _apply(follower.znodes, changes)
        follower.zxid = zxid
        for connection in follower.connections:
            connection.changed(list(changes))
        due = [then for at, then in follower.waiting if at <= zxid]
        follower.waiting = [each for each in follower.waiting if each[0] > zxid]
        for then in due:
            then()

    def _tick(self) -> None:
        if self.has_ended:
            return
        if not self.is_stopped:
            self._expire()
        self.loop.as_party(self.party, _TICK_S, self._tick)

    def _expire(self) -> None:
        now_s = self.loop.now_s
        for session in list(self.sessions.values()):
            if now_s - session.heard_at_s > session.timeout_s:
                self.expire(session.number)


def _apply(znodes: dict[str, Znode], changes: Changes) -> None:
    for path, znode in changes.items():
        if znode is None:
            znodes.pop(path, None)
        else:
            znodes[path] = znode


@dataclass(eq=False, slots=True)
class _Request:
    """A request; `serve` executes it at the follower and passes the result or an error to its callback."""

    serve: Callable[[Callable[[Any], None]], None]
    answer: asyncio.Future[Any]
    is_write: bool


class _Connection:
    """One connection of a client to a follower, on a session; both directions keep their order."""

    def __init__(self, ensemble: Ensemble, follower: Follower, store: ModelStore, party: Party, session: int) -> None:
        self.session = session
        self.follower = follower
        self.is_open = True
        self._ensemble = ensemble
        self._store = store
        self._party = party
        self._inbox: deque[_Request] = deque()
        self._is_serving = False
        self._last_in_s = 0.0
        self._last_out_s = 0.0
        self._stalled: deque[tuple[Party, Callable[[], None]]] = deque()
        follower.connections.append(self)

    @property
    def is_cut(self) -> bool:
        return self._party.host in self._ensemble.cut_hosts

    def send(self, request: _Request | None) -> None:
        """Send a request to the server, in order; None ends the connection."""
        loop = self._ensemble.loop
        self._last_in_s = max(self._last_in_s, loop.now_s + self._ensemble.latency_s())
        servers = self._ensemble.party
        loop.as_party(servers, self._last_in_s - loop.now_s, self._pass, servers, lambda: self._arrive(request))

    def changed(self, paths: Sequence[str]) -> None:
        """Notify the client of changed znodes."""
        if self.is_open and paths:
            self._out(lambda: self._store.changed(self, paths))

    def end(self) -> None:
        """Close the connection at the server; notify the client if reachable."""
        if not self.is_open:
            return
        self.close()
        self._out(lambda: self._store.disconnected(self))

    def left(self) -> None:
        """End the connection of a killed client; sent requests still arrive."""
        self.send(None)

    def close(self) -> None:
        self.is_open = False
        if self in self.follower.connections:
            self.follower.connections.remove(self)

    def _arrive(self, request: _Request | None) -> None:
        self._ensemble.when_running(lambda: self._take(request))

    def _take(self, request: _Request | None) -> None:
        if request is None:
            self.close()
        if request is None or not self.is_open:
            return
        self._ensemble.heard(self.session)
        self._inbox.append(request)
        self._serve_next()

    def _serve_next(self) -> None:
        if self._is_serving or not self._inbox or not self.is_open:
            return
        self._is_serving = True
        request = self._inbox.popleft()

        def done(result: Any) -> None:  # noqa: ANN401 - whatever is answered
            self._is_serving = False
            if self.is_open:
                zxid = self.follower.zxid
                self._out(lambda: self._store.answered(self, request.answer, result, zxid))
            self._serve_next()

        request.serve(done)

    def _out(self, arrive: Callable[[], None]) -> None:
        """Send a message to the client, in order."""
        loop = self._ensemble.loop
        self._last_out_s = max(self._last_out_s, loop.now_s + self._ensemble.latency_s())

        loop.as_party(self._party, self._last_out_s - loop.now_s, self._pass, self._party, arrive)

    def _pass(self, to: Party, arrive: Callable[[], None]) -> None:
        """Deliver messages in order, or keep them until the network is mended."""
        if self.is_cut or self._stalled:
            self._stalled.append((to, arrive))
        else:
            self._ensemble.messages += 1
            arrive()

    def flush(self) -> None:
        stalled, self._stalled = self._stalled, deque()
        for to, arrive in stalled:
            self._ensemble.loop.as_party(to, 0.0, self._pass, to, arrive)


def _resolve(answer: asyncio.Future[Any], result: Any) -> None:  # noqa: ANN401 - whatever is answered
    if answer.done():
        return
    if isinstance(result, Exception):
        answer.set_exception(result)
    else:
        answer.set_result(result)


class ModelStore(OfSession):
    """A `MetadataStore` of the party that creates it; `written` rewrites its operations."""

    def __init__(
        self,
        ensemble: Ensemble,
        *,
        session_timeout_s: float = 6.0,
        connect_timeout_s: float = 15.0,
        written: Callable[[Sequence[Op]], Sequence[Op]] = lambda ops: ops,
    ) -> None:
        super().__init__(Session(session_timeout_s))
        self._ensemble = ensemble
        self._written = written
        self._party = current_party() or ensemble.party
        self._timer: asyncio.TimerHandle | None = None
        self._connect_timeout_s = connect_timeout_s
        self._subscriptions = Subscriptions()
        self._connection: _Connection | None = None
        self._seen_zxid = 0
        self._in_progress: dict[_Request, None] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._serving = asyncio.Event()
        self._is_closed = False
        self.leaves_out_answer = False
        self._party.on_death.append(self._killed)

    @property
    def denied(self) -> Mapping[str, str]:
        return {}

    async def start(self) -> None:
        self._subscriptions.bind(asyncio.get_running_loop())
        self._step(SessionSignal.OPEN)
        self._tasks = [asyncio.create_task(self._keep_connected())]
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await self._serving.wait()
        except TimeoutError:
            for task in self._tasks:
                task.cancel()
            raise StoreUnavailableError("no ZooKeeper answered") from None

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        connection, number = self._connection, self.session_id
        if connection is not None and number:
            ended = self._request(lambda _: self._ensemble.expire(number), is_write=False)
            try:
                async with asyncio.timeout(1.0):
                    await ended
            except (TimeoutError, StoreUnavailableError):
                pass
        self._step(SessionSignal.CLOSE)
        self._drop()

    async def get(self, path: str) -> Znode | None:
        check_path(path)
        return (await self.get_many([path]))[0]

    async def get_many(self, paths: Sequence[str]) -> list[Znode | None]:
        for path in paths:
            check_path(path)
        if not paths:
            return []
        found: list[Znode | None] = await self._ask(lambda follower: [follower.znodes.get(path) for path in paths])
        return found

    async def children_many(self, paths: Sequence[str]) -> list[list[str]]:
        return [await self.children(path) for path in paths]

    async def children(self, path: str) -> list[str]:
        check_path(path)
        prefix = "/" if path == "/" else f"{path}/"
        names: list[str] = await self._ask(
            lambda follower: sorted(
                other.removeprefix(prefix)
                for other in follower.znodes
                if other.startswith(prefix) and other != "/" and "/" not in other.removeprefix(prefix)
            )
        )
        return names

    async def commit(self, ops: Sequence[Op], *, session_id: int | None = None) -> list[int]:
        for op in ops:
            check_path(op.path)
        check_sizes(ops)
        if not ops:
            return []
        ops = self._written(ops)
        self._ensemble.check_sizes(ops)
        self._check_usable(session_id)
        number, follower, era = self.session_id, self._follower(), self._ensemble.era
        sent_at_s = now_s()

        def serve(done: Callable[[Any], None]) -> None:
            self._ensemble.loop.as_party(self._ensemble.party, self._ensemble.latency_s(), write, done)

        def write(done: Callable[[Any], None]) -> None:
            def act() -> None:
                if number not in self._ensemble.sessions or era != self._ensemble.era:
                    return
                try:
                    versions = self._ensemble.write(ops, number)
                except TransactionFailedError as error:
                    for told in self._ensemble.on_refusal:
                        told(self._party, ops, error)
                    done(error)
                else:
                    follower.once_at(self._ensemble.zxid, lambda: done(versions))

            self._ensemble.when_running(act)

        made: list[int] = await self._request(serve, is_write=True)
        self._step(RequestAnswered(number, sent_at_s))
        return made

    async def ensure_path(self, path: str) -> None:
        names = check_path(path).strip("/").split("/")
        for depth in range(1, len(names) + 1):
            parent = "/" + "/".join(names[:depth])
            if await self.get(parent) is None:
                try:
                    await self.commit([Create(parent, b"")])
                except TransactionFailedError as error:
                    if error.cause != "node_exists":
                        raise

    async def sync(self) -> None:
        follower = self._follower()

        def serve(done: Callable[[Any], None]) -> None:
            self._ensemble.loop.as_party(self._ensemble.party, self._ensemble.latency_s(), catch_up, done)

        def catch_up(done: Callable[[Any], None]) -> None:
            self._ensemble.when_running(lambda: follower.once_at(self._ensemble.zxid, lambda: done(None)))

        await self._request(serve, is_write=False)

    def watch(self, path: str, on_change: Callable[[str], None]) -> Unsubscribe:
        unsubscribe = self._subscriptions.watch(check_path(path), on_change)
        if self.state is SessionState.CONNECTED:
            self._subscriptions.armed(path)
        return unsubscribe

    def on_session(self, callback: Callable[[SessionState], None]) -> Unsubscribe:
        return self._subscriptions.on_session(callback)

    # What arrives

    def answered(self, connection: _Connection, answer: asyncio.Future[Any], result: Any, zxid: int) -> None:  # noqa: ANN401 - whatever is answered
        if connection is self._connection:
            self._seen_zxid = max(self._seen_zxid, zxid)
            if self.leaves_out_answer:
                self.leaves_out_answer = False
                self._drop()
                return
        _resolve(answer, result)

    def changed(self, connection: _Connection, paths: Sequence[str]) -> None:
        if connection is self._connection:
            self._seen_zxid = max(self._seen_zxid, connection.follower.zxid)
            for path in paths:
                self._subscriptions.changed(path)

    def disconnected(self, connection: _Connection) -> None:
        if connection is self._connection:
            self._drop()

    def drop(self) -> None:
        """Break the connection; the session stays."""
        self._drop()

    # Inside

    def _follower(self) -> Follower:
        if self._connection is None:
            raise StoreUnavailableError("ZooKeeper: no connection")
        return self._connection.follower

    def _check_usable(self, session_id: int | None = None) -> None:
        why_not = self._session.why_not(asyncio.get_running_loop().time(), session_id)
        if why_not is not None:
            raise StoreUnavailableError(f"ZooKeeper: {why_not}")

    async def _ask(self, read: Callable[[Follower], Any]) -> Any:  # noqa: ANN401 - what is read
        follower = self._follower()
        return await self._request(lambda done: done(read(follower)), is_write=False)

    async def _request(self, serve: Callable[[Callable[[Any], None]], None], *, is_write: bool) -> Any:  # noqa: ANN401 - the answer
        self._check_usable()
        assert self._connection is not None, "a session is connected by a connection"
        request = _Request(serve, asyncio.get_running_loop().create_future(), is_write)
        self._in_progress[request] = None
        self._connection.send(request)
        try:
            return await request.answer
        finally:
            self._in_progress.pop(request, None)

    async def _keep_connected(self) -> None:
        rng = self._ensemble.rng
        while True:
            if self._connection is None:
                await self._connect()
            lapses_in_s = self.lease_valid_until_s - now_s()
            await asyncio.sleep(rng.uniform(*_RECONNECT_S) if self._connection is None else max(0.001, lapses_in_s))

    async def _connect(self) -> None:
        """Try once to connect to a follower that is not behind this client."""
        loop = asyncio.get_running_loop()
        asked_at_s = now_s()
        greeted: asyncio.Future[_Greeting] = loop.create_future()
        self._ensemble.greet(self._party, self.session_id, self._seen_zxid, self.session_timeout_s, greeted)
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                answer = await greeted
        except TimeoutError:
            return
        if answer is not None:
            self._connected(*answer, asked_at_s)
        elif self.session_id:
            self._step(HungUp(_SERVERS))
            if self._session.is_over(now_s()):
                self._seen_zxid = 0
                self._step(GivenUp(_SERVERS))

    def _connected(self, follower: Follower, number: int, asked_at_s: float) -> None:
        if self.session_id and number != self.session_id:
            self._seen_zxid = 0
            self._step(SessionSignal.EXPIRED)
            return
        self._connection = _Connection(self._ensemble, follower, self, self._party, number)
        self._step(Connected(number, self.session_timeout_s, asked_at_s))
        self._serving.set()

    def _step(self, event: Event) -> None:
        loop = asyncio.get_running_loop()
        for action in self._session.step(event, now_s()):
            match action:
                case Announce(state):
                    self._subscriptions.state_changed(state)
                case Arm():
                    self._subscriptions.disarmed()
                    for path in self._subscriptions.paths:
                        self._subscriptions.armed(path)
                case Heartbeat():
                    asking = asyncio.ensure_future(self.sync())
                    asking.add_done_callback(partial(self._beaten, action))
                case Drop():
                    self._drop()
        if self._timer is not None:
            self._timer.cancel()
        wake_s = self._session.wake_s
        self._timer = None if wake_s is None else loop.call_at(wake_s, self._step, SessionSignal.TIME)

    def _beaten(self, beat: Heartbeat, done: asyncio.Future[None]) -> None:
        if not done.cancelled() and done.exception() is None:
            self._step(RequestAnswered(beat.session_id, beat.sent_at_s))

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        for request in list(self._in_progress):
            error = OutcomeUnknownError if request.is_write else StoreUnavailableError
            _resolve(request.answer, error("the connection to ZooKeeper broke"))
        if not self._is_closed:
            self._step(SessionSignal.DISCONNECTED)

    def _killed(self) -> None:
        if self._connection is not None:
            self._connection.left()
