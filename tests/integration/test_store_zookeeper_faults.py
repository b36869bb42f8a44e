"""The store on a real ZooKeeper when servers, connections and sessions fail."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from unittest.mock import Mock

import pytest
from kazoo.protocol.serialization import write_string
from kazoo.protocol.states import KeeperState
from support.stores import answer_with, close_session, drop_connection, expire_session, started
from support.tcp_proxy import TcpProxy
from support.waiting import eventually, eventually_sync, patience
from support.zookeeper import EnsembleFactory, ZooKeeperFactory

from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.errors import (
    ConfigurationError,
    OutcomeUnknownError,
    StoreError,
    StoreUnavailableError,
    TransactionFailedError,
    ZnodeTooLargeError,
)
from loadmanager.store import _kazoo_requests as requests
from loadmanager.store._kazoo_requests import KazooRequest
from loadmanager.store.kazoo_client import PromptClient
from loadmanager.store.metadata_store import Check, Create, Op, Put, SessionState
from loadmanager.store.store_session import LEASE_RATIO
from loadmanager.store.zookeeper_store import ZooKeeperStore, _UnansweredError
from loadmanager.util.clock import now_s

pytestmark = pytest.mark.zookeeper

SHORT_S, STEADY_S = 3.0, 600.0
"""Session timeouts: one that expires within the test, and one that does not on the slowest machine."""


def a_store(hosts: str, chroot: str = "", timeout_s: float = STEADY_S) -> AbstractAsyncContextManager[ZooKeeperStore]:
    return started(ZooKeeperStore(hosts, session_timeout_s=timeout_s, chroot=chroot))


class BusyReader:
    """Reads every 20 ms or so, whatever the answer: the client that kazoo takes for alive because it keeps sending."""

    def __init__(self, store: ZooKeeperStore) -> None:
        self._store = store
        self.refused_at_s: float | None = None
        self.last_answer_at_s = time.monotonic()

    async def run(self) -> None:
        pending: set[asyncio.Task[None]] = set()
        try:
            while True:
                pending.add(asyncio.create_task(self._read()))
                await asyncio.sleep(0.02)
                pending = {task for task in pending if not task.done()}
        finally:
            for task in pending:
                task.cancel()

    async def _read(self) -> None:
        try:
            await self._store.get("/")
        except StoreUnavailableError:
            self.refused_at_s = self.refused_at_s or time.monotonic()
        else:
            self.last_answer_at_s = time.monotonic()


async def check_that_silence_suspends(
    store: ZooKeeperStore, silence: Callable[[], None], end_silence: Callable[[], None]
) -> None:
    """A busy client of a server gone silent: suspended and refusing once the lease lapsed, and well again after."""
    states: list[tuple[SessionState, float]] = []
    store.on_session(lambda state: states.append((state, time.monotonic())))
    reader = BusyReader(store)
    reading = asyncio.create_task(reader.run())
    silence()
    try:
        await eventually(lambda: states)
        assert states[0][0] is SessionState.SUSPENDED
        assert store.lease_valid_until_s <= time.monotonic()
        await eventually(lambda: not _kazoo_is_connected(store))
        with pytest.raises(StoreUnavailableError):
            await store.commit([Create("/refused", b"")])
        await eventually(lambda: reader.refused_at_s is not None)
    finally:
        end_silence()
    await eventually(lambda: states[-1][0] is SessionState.CONNECTED)
    await eventually(lambda: reader.last_answer_at_s > states[-1][1])
    assert store.lease_valid_until_s > time.monotonic()
    reading.cancel()


async def test_busy_client_of_a_stopped_server_suspends_and_recovers(start_zookeeper: ZooKeeperFactory) -> None:
    server = start_zookeeper()
    async with a_store(server.connect_string, timeout_s=SHORT_S) as store:
        await check_that_silence_suspends(store, server.pause, server.resume)


async def test_busy_client_without_packets_suspends_and_recovers(zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
    async with TcpProxy(zookeeper.port) as proxy, a_store(proxy.address, chroot, SHORT_S) as store:
        await check_that_silence_suspends(store, proxy.blackhole, proxy.heal)


async def test_idle_client_without_packets_suspends_and_recovers(zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
    async with TcpProxy(zookeeper.port) as proxy, a_store(proxy.address, chroot, SHORT_S) as store:
        proxy.blackhole()
        await eventually(lambda: store.state is SessionState.SUSPENDED)
        proxy.heal()
        await eventually(lambda: store.state is SessionState.CONNECTED)


async def test_process_stopped_past_its_lease_refuses_and_recovers(zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
    """Stopped here means that the event loop does not run; kazoo's thread, which could keep the connection, does."""
    async with a_store(zookeeper.connect_string, chroot, SHORT_S) as store:
        states: list[SessionState] = []
        store.on_session(states.append)
        time.sleep(SHORT_S * 0.75)  # noqa: ASYNC251 - to block the loop is the point
        with pytest.raises(StoreUnavailableError):
            await store.commit([Create("/late", b"")])
        await eventually(lambda: states == [SessionState.SUSPENDED, SessionState.CONNECTED])
        assert await store.get("/late") is None


async def test_kernel_closes_an_unacknowledged_connection(zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
    async with a_store(zookeeper.connect_string, chroot) as store:
        assert store._client is not None
        connection = store._client._connection._socket
        assert connection is not None
        timeout_ms = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert timeout_ms == STEADY_S * 1000 / 3


async def test_lease_lapses_before_the_server_ends_the_session(zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
    async with TcpProxy(zookeeper.port) as proxy, a_store(proxy.address, chroot, SHORT_S) as store:
        async with a_store(zookeeper.connect_string, chroot) as witness:
            await store.commit([Create("/held", b"", ephemeral=True)])
            gone = asyncio.Event()
            witness.watch("/held", lambda _: gone.set())
            await eventually(gone.is_set)
            gone.clear()
            proxy.blackhole()
            await asyncio.wait_for(gone.wait(), timeout=patience())
            assert time.monotonic() > store.lease_valid_until_s
            assert await witness.get("/held") is None
        proxy.heal()


async def test_successful_write_renews_the_lease(zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
    async with a_store(zookeeper.connect_string, chroot) as store:
        asked_s = now_s()
        await store.commit([Create("/written", b"")])
        renewed_s = store.lease_valid_until_s
        assert renewed_s >= asked_s + LEASE_RATIO * STEADY_S
        with pytest.raises(TransactionFailedError):
            await store.commit([Create("/written", b"")])
        assert store.lease_valid_until_s == renewed_s


async def test_unanswered_write_is_unknown_and_read_unavailable(zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
    async with TcpProxy(zookeeper.port) as proxy, a_store(proxy.address, chroot, SHORT_S) as store:
        proxy.blackhole()
        outcomes = await asyncio.gather(
            store.commit([Create("/a", b"")]), store.get("/a"), store.children("/"), return_exceptions=True
        )
        assert [type(outcome) for outcome in outcomes] == [
            OutcomeUnknownError,
            StoreUnavailableError,
            StoreUnavailableError,
        ]
        proxy.heal()


async def test_session_expired_behind_lost_packets_is_replaced(zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
    async with TcpProxy(zookeeper.port) as proxy, a_store(proxy.address, chroot, SHORT_S) as store:
        async with a_store(zookeeper.connect_string, chroot) as witness:
            states: list[SessionState] = []
            store.on_session(states.append)
            expired = store.session_id
            await store.commit([Create("/held", b"", ephemeral=True)])
            proxy.blackhole()
            await eventually(lambda: _is_gone(witness, "/held"))
        proxy.heal()
        await eventually(lambda: store.state is SessionState.CONNECTED)
        assert states == [SessionState.SUSPENDED, SessionState.LOST, SessionState.CONNECTED]
        assert store.session_id not in {0, expired}
        with pytest.raises(StoreUnavailableError):
            await store.commit([Create("/late", b"")], session_id=expired)


async def _is_gone(store: ZooKeeperStore, path: str) -> bool:
    await store.sync()
    return await store.get(path) is None


async def test_watches_wake_and_work_after_an_expired_session(zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
    async with a_store(zookeeper.connect_string, chroot) as store:
        seen: list[str] = []
        store.watch("/a", seen.append)
        await eventually(lambda: seen == ["/a"])
        await store.commit([Create("/a", b""), Create("/a/held", b"", ephemeral=True)])
        await eventually(lambda: "/a/held" in seen)
        seen.clear()
        await expire_session(store, zookeeper.connect_string)
        await eventually(lambda: "/a" in seen)
        assert await store.get("/a/held") is None
        seen.clear()
        await store.commit([Create("/a/b", b"")])
        await eventually(lambda: seen == ["/a/b"])


async def test_session_and_watches_survive_a_server_restart(start_zookeeper: ZooKeeperFactory) -> None:
    """A server that starts may take a connection and never answer: the client waits a third of its session for that."""
    server, session_s = start_zookeeper(), 60.0
    async with (
        a_store(server.connect_string, "/app", session_s) as store,
        a_store(server.connect_string, "/app", session_s) as other,
    ):
        seen: list[str] = []
        store.watch("/", seen.append)
        await eventually(lambda: seen == ["/"])
        session_id = store.session_id
        await asyncio.to_thread(server.restart)
        await eventually(lambda: seen[-1:] == ["/"] and len(seen) > 1)
        await eventually(lambda: store.state is other.state is SessionState.CONNECTED)
        assert store.session_id == session_id
        seen.clear()
        await other.commit([Create("/b", b"")])
        await eventually(lambda: seen == ["/b"])


async def test_killed_server_suspends_and_keeps_no_request(start_zookeeper: ZooKeeperFactory) -> None:
    server = start_zookeeper()
    async with a_store(server.connect_string) as store:
        await asyncio.to_thread(server.kill)
        await eventually(lambda: store.state is SessionState.SUSPENDED)
        for number in range(200):
            with pytest.raises(StoreUnavailableError):
                await store.commit([Create(f"/n{number}", b"")])
        assert store._client is not None
        assert not store._client._queue
        await asyncio.to_thread(server.start)
        await eventually(lambda: store.state is SessionState.CONNECTED)
        assert await store.children("/") == ["zookeeper"]


async def test_unprocessed_events_do_not_queue_requests_in_kazoo(start_zookeeper: ZooKeeperFactory) -> None:
    """The connection ends while the loop is busy: its next request is refused all the same, not kept for later."""
    server = start_zookeeper()
    async with a_store(server.connect_string) as store:
        assert store._client is not None
        server.pause()
        store._client.drop()
        eventually_sync(lambda: not _kazoo_is_connected(store))
        assert store.state is SessionState.CONNECTED
        with pytest.raises(StoreUnavailableError):
            await store.commit([Create("/late", b"")])
        assert not store._client._queue
        server.resume()


async def test_no_request_on_a_session_unknown_to_the_loop(zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
    async with a_store(zookeeper.connect_string, chroot) as store:
        client = store._client
        assert client is not None
        expired = store.session_id
        close_session(zookeeper.connect_string, client.client_id)
        eventually_sync(lambda: _kazoo_is_connected(store) and client._session_id != expired)
        assert store.session_id == expired
        with pytest.raises(StoreUnavailableError):
            await store.commit([Create("/meant-for-the-old-session", b"")])
        await eventually(lambda: store.session_id == client._session_id)
        assert await store.children("/") == []


def _kazoo_is_connected(store: ZooKeeperStore) -> bool:
    return store._client is not None and store._client._state == KeeperState.CONNECTED


async def test_blocked_connection_does_not_block_the_event_loop(start_zookeeper: ZooKeeperFactory) -> None:
    server = start_zookeeper()
    async with a_store(server.connect_string, timeout_s=9.0) as store:
        server.pause()
        large: list[Op] = [Create("/large", bytes(900_000))]
        requests = [asyncio.create_task(store.commit(large)) for _ in range(20)]
        requests += [asyncio.create_task(store.commit([Create("/small", b"")])) for _ in range(1000)]
        turns = 0
        while not all(request.done() for request in requests):
            await asyncio.sleep(0.01)
            turns += 1
        assert turns > 20, "a loop that is held up is so until the lease has lapsed, for 6 s, and makes one or two"
        outcomes = {type(request.exception()) for request in requests}
        # The first ones may have been answered before the server stands still: one made the znode, others find it.
        answered = {type(None), TransactionFailedError}
        assert outcomes <= {OutcomeUnknownError, StoreUnavailableError, *answered}
        assert len(outcomes - {type(None)}) > 0
        server.resume()
        await eventually(lambda: store.state is SessionState.CONNECTED)


async def test_request_at_disconnection_is_never_sent_later(zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
    """Every write that was not answered is over once the store is connected again: nothing of it happens after."""
    async with a_store(zookeeper.connect_string, chroot) as store:
        written: list[int] = []

        async def write(number: int) -> None:
            try:
                await store.commit([Create(f"/n{number:04}", b"")], session_id=store.session_id)
                written.append(number)
            except (StoreUnavailableError, OutcomeUnknownError):
                pass

        for round_number in range(10):
            writes = [asyncio.create_task(write(100 * round_number + number)) for number in range(100)]
            await asyncio.sleep(0)
            await drop_connection(store)
            await asyncio.gather(*writes)
        await store.sync()
        present = await store.children("/")
        assert {f"n{number:04}" for number in written} <= set(present)
        await store.sync()
        assert await store.children("/") == present


async def test_transaction_with_an_outdated_epoch_fails(zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
    async with a_store(zookeeper.connect_string, chroot) as old, a_store(zookeeper.connect_string, chroot) as new:
        await old.commit([Create("/epoch", b""), Create("/record", b"old")])
        assert await new.commit([Put("/epoch", b"new", 0)]) == [1]
        ops: list[Op] = [Check("/epoch", 0), Put("/record", b"late"), Create("/more", b"")]
        with pytest.raises(TransactionFailedError) as refusal:
            await old.commit(ops)
        assert (refusal.value.index, refusal.value.cause) == (0, "bad_version")
        record = await old.get("/record")
        assert record is not None
        assert (record.data, record.version) == (b"old", 0)
        assert await old.get("/more") is None


async def test_too_large_write_is_refused_on_a_live_connection(zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
    async with a_store(zookeeper.connect_string, chroot) as store:
        states: list[SessionState] = []
        store.on_session(states.append)
        with pytest.raises(ZnodeTooLargeError):
            await store.commit([Create("/large", bytes(1_100_000))])
        assert await store.get("/large") is None
        assert states == []


async def test_idle_client_writes_nothing(start_zookeeper: ZooKeeperFactory) -> None:
    server = start_zookeeper()
    async with a_store(server.connect_string, timeout_s=6.0) as store:
        store.watch("/", lambda _: None)
        before = await asyncio.to_thread(_last_zxid, server)
        lease_s = store.lease_valid_until_s
        await eventually(lambda: store.lease_valid_until_s > lease_s + 3)
        assert await asyncio.to_thread(_last_zxid, server) == before


def _last_zxid(server: EmbeddedZooKeeper) -> int:
    """The id of the server's last transaction, from the four-letter command `srvr`."""
    lines = server._four_letter_command(b"srvr").splitlines()
    return int(next(line for line in lines if line.startswith("Zxid:")).split()[1], 16)


async def test_many_znodes_are_batched(
    zookeeper: EmbeddedZooKeeper, chroot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_store(zookeeper.connect_string, chroot) as store:
        paths = [f"/n{number:05}" for number in range(20_000)]
        for begin in range(0, len(paths), 1000):
            await store.commit([Create(path, path.encode()) for path in paths[begin : begin + 1000]])
        sent = _count_requests(monkeypatch)
        znodes = await store.get_many(paths)
        assert [znode and znode.data for znode in znodes] == [path.encode() for path in paths]
        assert sum(opcode == 22 for opcode in sent) < 30


async def test_replies_are_bounded(zookeeper: EmbeddedZooKeeper, chroot: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_store(zookeeper.connect_string, chroot) as store:
        paths = [f"/n{number:03}" for number in range(100)]
        for path in paths:
            await store.commit([Create(path, bytes(400_000))])
        sent = _count_requests(monkeypatch)
        assert all(znode is not None and len(znode.data) == 400_000 for znode in await store.get_many(paths))
        assert sum(opcode == 22 for opcode in sent) == 1 + 7  # 32 unawares, then about 4 MB at a time


def _count_requests(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    sent: list[int] = []
    submit = PromptClient.submit

    def counting(client: PromptClient, request: KazooRequest[object], reply: object, session_id: int) -> bool:
        sent.append(request.type)
        return submit(client, request, reply, session_id)  # type: ignore[arg-type]  # a reply as it was given

    monkeypatch.setattr(PromptClient, "submit", counting)
    return sent


async def test_requests_beyond_kazoos_wake_ups_are_answered(zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
    async with a_store(zookeeper.connect_string, chroot) as store:
        answers = await asyncio.gather(*(store.get("/") for _ in range(3000)))
        assert all(answer is not None for answer in answers)


async def test_session_timeout_is_the_one_the_server_granted(zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
    async with a_store(zookeeper.connect_string, chroot, timeout_s=0.1) as store:
        assert store.session_timeout_s == 0.4  # two ticks of 200 ms are the least


async def test_chroot_is_created_and_hidden(zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
    async with a_store(zookeeper.connect_string, f"{chroot}/deep/er") as store:
        seen: list[str] = []
        store.watch("/", seen.append)
        await eventually(lambda: seen == ["/"])
        await store.commit([Create("/a", b"")])
        await eventually(lambda: "/a" in seen)
        znode = await store.get("/a")
        assert znode is not None
        assert znode.path == "/a"
        async with a_store(zookeeper.connect_string) as outside:
            assert await outside.children(f"{chroot}/deep/er") == ["a"]


async def test_required_chroot_is_not_created(zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
    visitor = ZooKeeperStore(zookeeper.connect_string, session_timeout_s=STEADY_S, chroot=chroot, create_chroot=False)
    with pytest.raises(StoreError, match=f"the chroot {chroot} does not exist"):
        await visitor.start()
    async with a_store(zookeeper.connect_string) as outside:
        assert await outside.get(chroot) is None
        await outside.commit([Create(chroot, b"")])
    await visitor.start()
    assert await visitor.children("/") == []
    await visitor.close()


async def test_stores_on_one_chroot_see_each_others_changes(zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
    async with (
        a_store(zookeeper.connect_string, chroot) as one,
        a_store(zookeeper.connect_string, chroot) as two,
        a_store(zookeeper.connect_string, chroot) as three,
    ):
        seen: list[str] = []
        for store in (one, two, three):
            store.watch("/", lambda path, name=store.session_id: seen.append(f"{name} {path}"))  # type: ignore[misc]  # the default binds the name
        await eventually(lambda: len(seen) == 3)
        seen.clear()
        await two.commit([Create("/a", b"")])
        await eventually(lambda: set(seen) == {f"{store.session_id} /a" for store in (one, two, three)})


async def test_failed_start_names_the_hosts_and_leaves_no_thread() -> None:
    threads = set(threading.enumerate())
    store = ZooKeeperStore("127.0.0.1:1,localhost:1", session_timeout_s=3, connect_timeout_s=0.5)
    with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1:1,localhost:1 within 0\.5 s"):
        await store.start()
    await eventually(lambda: not set(threading.enumerate()) - threads)
    await store.close()
    assert store.state is SessionState.LOST


async def test_start_can_be_repeated(start_zookeeper: ZooKeeperFactory) -> None:
    server = start_zookeeper()
    await asyncio.to_thread(server.kill)
    store = ZooKeeperStore(server.connect_string, session_timeout_s=3, connect_timeout_s=0.5)
    with pytest.raises(StoreUnavailableError):
        await store.start()
    await asyncio.to_thread(server.start)
    await store.start()
    assert await store.children("/") == ["zookeeper"]
    await store.close()


async def test_start_times_out_on_a_server_that_never_answers(zookeeper: EmbeddedZooKeeper) -> None:
    async with TcpProxy(zookeeper.port) as proxy:
        proxy.blackhole()
        threads = set(threading.enumerate())
        store = ZooKeeperStore(proxy.address, session_timeout_s=SHORT_S, connect_timeout_s=2)
        with pytest.raises(StoreUnavailableError):
            await store.start()
        assert proxy.accepted >= 2  # it did not wait for the first connection all the time
        await eventually(lambda: not set(threading.enumerate()) - threads)


async def test_close_is_fast_without_a_connection(zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
    threads = set(threading.enumerate())
    async with TcpProxy(zookeeper.port) as proxy:
        for cut, session_timeout_s in ((False, STEADY_S), (True, SHORT_S)):
            store = ZooKeeperStore(proxy.address, session_timeout_s=session_timeout_s, chroot=chroot)
            await store.start()
            if cut:
                proxy.blackhole()
            async with asyncio.timeout(patience()):
                await asyncio.gather(store.close(), store.close())
            proxy.heal()
    await eventually(lambda: not set(threading.enumerate()) - threads)


class Unsendable(KazooRequest[None]):
    def serialize(self) -> bytes:
        raise RuntimeError("cannot be serialised")


def unsendable(_: ZooKeeperStore) -> KazooRequest[None]:
    return Unsendable(9, b"", lambda *_: None)


def an_exists_answered_with_an_unknown_code(store: ZooKeeperStore) -> KazooRequest[None]:
    answer_with(store, err=-999)
    return KazooRequest(3, write_string("/") + b"\0", lambda *_: None)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("make", [unsendable, an_exists_answered_with_an_unknown_code])
async def test_unexpected_kazoo_error_costs_only_the_connection(
    zookeeper: EmbeddedZooKeeper, chroot: str, make: Callable[[ZooKeeperStore], KazooRequest[None]]
) -> None:
    async with a_store(zookeeper.connect_string, chroot) as store:
        session_id = store.session_id
        states: list[SessionState] = []
        store.on_session(states.append)
        poisoned = store._submit(make(store))
        await eventually(lambda: states == [SessionState.SUSPENDED, SessionState.CONNECTED])
        assert isinstance(poisoned.exception(), _UnansweredError)
        assert store.session_id == session_id
        await store.sync()


async def test_unreadable_answer_counts_as_unanswered(zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
    async with a_store(zookeeper.connect_string, chroot) as store:
        for error in (ValueError("garbage"), struct.error("too short")):
            with pytest.raises(_UnansweredError, match=str(error)):
                await store._exchange(KazooRequest(requests.SYNC, write_string(chroot), Mock(side_effect=error)))


@pytest.mark.deep
async def test_client_of_a_dead_member_moves_to_another(start_ensemble: EnsembleFactory) -> None:
    ensemble = start_ensemble()
    async with a_store(ensemble.connect_string, "/app") as store:
        await store.commit([Create("/held", b"", ephemeral=True)])
        session_id = store.session_id
        for member in ensemble.members:
            if member is not ensemble.find_leader():
                await asyncio.to_thread(member.kill)
                break
        await eventually(lambda: store.state is SessionState.CONNECTED)
        await eventually(lambda: _answers(store))
        assert store.session_id == session_id
        assert await store.get("/held") is not None


async def _answers(store: ZooKeeperStore) -> bool:
    try:
        await store.sync()
    except StoreError:
        return False
    return True


@pytest.mark.deep
async def test_lease_lapses_without_a_quorum(start_ensemble: EnsembleFactory) -> None:
    ensemble = start_ensemble()
    async with a_store(ensemble.members[0].connect_string, "/app", timeout_s=SHORT_S) as store:
        for member in ensemble.members[1:]:
            await asyncio.to_thread(member.pause)
        await eventually(lambda: store.state is not SessionState.CONNECTED)
        with pytest.raises(StoreUnavailableError):
            await store.commit([Create("/a", b"")])
        for member in ensemble.members[1:]:
            await asyncio.to_thread(member.resume)
        await eventually(lambda: _answers(store))


@pytest.mark.parametrize(
    ("hosts", "chroot"), [("", ""), ("h:1/app", ""), ("h:port", ""), ("h:1", "app"), ("h:1", "/app/"), ("h:1", "/")]
)
def test_invalid_address_is_a_configuration_error(hosts: str, chroot: str) -> None:
    with pytest.raises(ConfigurationError, match="ZooKeeper"):
        ZooKeeperStore(hosts, session_timeout_s=3, chroot=chroot)
