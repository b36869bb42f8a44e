from __future__ import annotations

import asyncio
import random

import pytest
from support.clock import ManualClock
from support.memory_store import MemoryCluster, MemoryStore
from support.waiting import eventually, patience

from loadmanager.errors import OutcomeUnknownError, StoreUnavailableError
from loadmanager.store.metadata_store import Create, Delete, Put, SessionState

SESSION_TIMEOUT_S = 9.0
LEASE_S = 6.0


class Pair:
    """A store to break and another to watch it from."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.cluster = MemoryCluster(self.clock)
        self.store = MemoryStore(self.cluster, session_timeout_s=SESSION_TIMEOUT_S)
        self.witness = MemoryStore(self.cluster, session_timeout_s=SESSION_TIMEOUT_S)
        self.states: list[SessionState] = []

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.cluster.tick()


@pytest.fixture
async def pair() -> Pair:
    pair = Pair()
    await pair.store.start()
    await pair.witness.start()
    await pair.store.commit([Create("/held", b"", ephemeral=True), Create("/a", b"0")])
    pair.store.on_session(pair.states.append)
    return pair


async def test_lease_of_a_connected_client_is_two_thirds_of_the_timeout(pair: Pair) -> None:
    for _ in range(3):
        pair.advance(100)
        assert pair.store.lease_valid_until_s == pair.clock() + LEASE_S
    assert pair.states == []


async def test_silent_partition_suspends_at_the_end_of_the_lease_and_expires_later(pair: Pair) -> None:
    pair.cluster.partition(pair.store)
    pair.advance(LEASE_S - 0.1)
    await asyncio.sleep(0)
    assert pair.states == []
    pair.advance(0.1)
    await asyncio.sleep(0)
    assert pair.states == [SessionState.SUSPENDED]
    assert await pair.witness.get("/held") is not None
    pair.advance(SESSION_TIMEOUT_S - LEASE_S)
    assert await pair.witness.get("/held") is None
    await asyncio.sleep(0)
    assert pair.states == [SessionState.SUSPENDED]


async def test_noticed_partition_suspends_at_once(pair: Pair) -> None:
    pair.cluster.partition(pair.store, noticed=True)
    assert pair.store.state is SessionState.SUSPENDED
    with pytest.raises(StoreUnavailableError):
        await pair.store.get("/a")


async def test_session_healed_in_time_continues_and_watches_fire(pair: Pair) -> None:
    seen: list[str] = []
    pair.store.watch("/a", seen.append)
    session_id = pair.store.session_id
    pair.cluster.partition(pair.store)
    await pair.witness.commit([Put("/a", b"unseen")])
    await asyncio.sleep(0)
    seen.clear()
    pair.advance(SESSION_TIMEOUT_S - 0.1)
    pair.cluster.heal(pair.store)
    await asyncio.sleep(0)
    assert seen == ["/a"]
    assert pair.store.session_id == session_id
    assert pair.states == [SessionState.SUSPENDED, SessionState.CONNECTED]


async def test_session_healed_too_late_is_replaced(pair: Pair) -> None:
    session_id = pair.store.session_id
    pair.cluster.partition(pair.store)
    pair.advance(SESSION_TIMEOUT_S)
    pair.cluster.heal(pair.store)
    await asyncio.sleep(0)
    assert pair.states == [SessionState.SUSPENDED, SessionState.LOST, SessionState.CONNECTED]
    assert pair.store.session_id not in {0, session_id}


async def test_write_behind_a_silent_partition_is_not_done_and_outcome_unknown(pair: Pair) -> None:
    pair.cluster.partition(pair.store)
    with pytest.raises(OutcomeUnknownError):
        await pair.store.commit([Put("/a", b"1")])
    with pytest.raises(StoreUnavailableError):
        await pair.store.get("/a")
    znode = await pair.witness.get("/a")
    assert znode is not None
    assert znode.data == b"0"


async def test_write_with_a_lost_answer_is_done_and_outcome_unknown(pair: Pair) -> None:
    pair.cluster.lose_answer(pair.store)
    assert await pair.store.get("/a") is not None
    with pytest.raises(OutcomeUnknownError):
        await pair.store.commit([Put("/a", b"1")])
    znode = await pair.witness.get("/a")
    assert znode is not None
    assert znode.data == b"1"
    pair.advance(LEASE_S)
    assert pair.store.state is SessionState.SUSPENDED


async def test_session_expired_unseen_suspends_at_the_end_of_its_lease(pair: Pair) -> None:
    pair.cluster.partition(pair.store)
    pair.cluster.expire(pair.store)
    await asyncio.sleep(0)
    assert pair.states == []
    assert await pair.witness.get("/held") is None
    pair.advance(LEASE_S)
    await asyncio.sleep(0)
    assert pair.states == [SessionState.SUSPENDED]


async def test_ephemerals_of_a_partitioned_closed_client_stay_until_expiry(pair: Pair) -> None:
    pair.cluster.partition(pair.store)
    await pair.store.close()
    pair.cluster.heal(pair.store)
    assert await pair.witness.get("/held") is not None
    pair.advance(SESSION_TIMEOUT_S)
    assert await pair.witness.get("/held") is None


async def test_callbacks_run_in_order_once_the_caller_awaits(pair: Pair) -> None:
    await asyncio.sleep(0)
    seen: list[str] = []
    pair.witness.watch("/", seen.append)
    await pair.store.commit([Create("/b", b"")])
    await pair.store.commit([Put("/a", b"1"), Create("/b/c", b"")])
    assert seen == []
    await asyncio.sleep(0)
    assert seen == ["/", "/b", "/a", "/b/c"]


async def test_store_is_started_once(pair: Pair) -> None:
    with pytest.raises(RuntimeError):
        await pair.store.start()


LONG = 1_000


class Trip:
    """Two sessions; each message takes as many turns as the test says, `LONG` for what is to be on its way."""

    def __init__(self) -> None:
        self.turns = 1
        self.cluster = MemoryCluster(ManualClock(), lambda: self.turns)
        self.store, self.other = MemoryStore(self.cluster), MemoryStore(self.cluster)

    async def data(self, path: str) -> bytes | None:
        """Data as the other session reads it, while the first one's messages are held."""
        turns, self.turns = self.turns, 1
        znode = await self.other.get(path)
        self.turns = turns
        return None if znode is None else znode.data

    async def write_on_its_way(self, *, arrives: bool) -> asyncio.Task[list[int]]:
        """Send a write and wait until its request or, if it `arrives`, its answer is under way for long."""
        self.turns = 1 if arrives else LONG
        task = asyncio.create_task(self.store.commit([Put("/a", b"1")]))
        await asyncio.sleep(0)
        self.turns = LONG
        if arrives:
            await self.is_written()
        return task

    async def is_written(self) -> None:
        """Return in the very turn in which the write arrives."""
        while (znode := self.cluster.find("/a")) is None or znode.data != b"1":  # noqa: ASYNC110 - the store in memory tells nobody
            await asyncio.sleep(0)


@pytest.fixture
async def trip() -> Trip:
    trip = Trip()
    await trip.store.start()
    await trip.other.start()
    await trip.store.commit([Create("/a", b"0")])
    return trip


async def test_answer_includes_a_concurrent_write(trip: Trip) -> None:
    trip.turns = 10
    reading = asyncio.create_task(trip.store.get("/a"))
    await asyncio.sleep(0)
    trip.turns = 1
    await trip.other.commit([Put("/a", b"meanwhile")])
    znode = await reading
    assert znode is not None
    assert znode.data == b"meanwhile"


async def test_answer_may_be_outdated_on_arrival(trip: Trip) -> None:
    reading = asyncio.create_task(trip.store.get("/a"))
    await asyncio.sleep(0)
    trip.turns = 10  # the answer's
    await asyncio.sleep(0)
    trip.turns = 1
    await trip.other.commit([Put("/a", b"later")])
    assert not reading.done()
    znode = await reading
    assert znode is not None
    assert znode.data == b"0"


@pytest.mark.parametrize("seed", range(20))
async def test_requests_of_a_session_are_ordered_and_sessions_interleave(seed: int) -> None:
    chance = random.Random(seed)
    cluster = MemoryCluster(ManualClock(), lambda: chance.randint(1, 9))
    stores = [MemoryStore(cluster) for _ in range(2)]
    for store in stores:
        await store.start()
    answered: list[tuple[int, int]] = []

    async def create(of: int, number: int) -> None:
        await stores[of].commit([Create(f"/{of}-{number}", b"")])
        answered.append((of, number))

    await asyncio.gather(*(create(of, number) for of in range(2) for number in range(10)))
    for of in range(2):
        assert [number for store, number in answered if store == of] == list(range(10))
        znodes = [cluster.find(f"/{of}-{number}") for number in range(10)]
        zxids = [znode.czxid for znode in znodes if znode is not None]
        assert zxids == sorted(zxids)
    assert answered != sorted(answered)


@pytest.mark.parametrize("seed", range(20))
async def test_watch_fires_before_the_answer_that_shows_the_change(seed: int) -> None:
    chance = random.Random(seed)
    cluster = MemoryCluster(ManualClock(), lambda: chance.randint(1, 9))
    reader, writer = MemoryStore(cluster), MemoryStore(cluster)
    await reader.start()
    await writer.start()
    told: list[str] = []
    reader.watch("/", told.append)
    writing = asyncio.create_task(writer.commit([Create("/a", b"")]))
    while await reader.get("/a") is None:
        assert not writing.cancelled()
    assert "/a" in told
    await writing
    await reader.commit([Delete("/a")])
    assert told.count("/a") == 2, "one's own changes too"


async def test_write_in_flight_to_the_server_is_not_done_when_the_link_breaks(trip: Trip) -> None:
    writing = await trip.write_on_its_way(arrives=False)
    trip.cluster.partition(trip.store)
    with pytest.raises(OutcomeUnknownError):
        await writing
    assert await trip.data("/a") == b"0"


async def test_write_with_its_answer_in_flight_is_done_when_the_link_breaks(trip: Trip) -> None:
    writing = await trip.write_on_its_way(arrives=True)
    trip.cluster.partition(trip.store, noticed=True)
    with pytest.raises(OutcomeUnknownError):
        await writing
    assert await trip.data("/a") == b"1"


async def test_request_in_flight_fails_when_the_session_ends(trip: Trip) -> None:
    trip.turns = LONG
    reading = asyncio.create_task(trip.store.get("/a"))
    await asyncio.sleep(0)
    trip.cluster.expire(trip.store)
    with pytest.raises(StoreUnavailableError):
        await reading


async def test_cancelled_write_is_done(trip: Trip) -> None:
    writing = await trip.write_on_its_way(arrives=False)
    writing.cancel()
    await trip.is_written()


async def test_event_lost_with_the_link_is_repeated_on_reconnection(trip: Trip) -> None:
    told: list[str] = []
    trip.store.watch("/a", told.append)
    await eventually(lambda: told == ["/a"])
    told.clear()
    writing = asyncio.create_task(trip.other.commit([Put("/a", b"1")]))
    await asyncio.sleep(0)
    trip.turns = LONG
    await trip.is_written()
    trip.cluster.partition(trip.store, noticed=True)
    await writing
    assert told == []
    trip.turns = 1
    trip.cluster.heal(trip.store)
    await eventually(lambda: told == ["/a"])


async def test_session_ends_before_close_returns(trip: Trip) -> None:
    await trip.store.commit([Create("/e", b"", ephemeral=True)])
    trip.turns = LONG
    closing = asyncio.create_task(trip.store.close())
    await asyncio.sleep(0)
    assert trip.store.session_id == 0
    assert await trip.data("/e") is not None
    await closing
    assert await trip.data("/e") is None


async def test_close_does_not_wait_for_a_broken_link(trip: Trip) -> None:
    trip.turns = LONG
    closing = asyncio.create_task(trip.store.close())
    await asyncio.sleep(0)
    trip.cluster.partition(trip.store)
    await asyncio.wait_for(closing, patience())
