"""The store in memory when its messages take their time: what may come between sending and the answer, and what not."""

from __future__ import annotations

import asyncio
import random

import pytest
from support.clock import ManualClock
from support.waiting import eventually, patience

from loadmanager.errors import OutcomeUnknownError, StoreUnavailableError
from loadmanager.store.memory_store import MemoryCluster, MemoryStore
from loadmanager.store.metadata_store import Create, Delete, Put

LONG = 1_000


class Trip:
    """Two sessions; each message takes as many turns as the test says, `LONG` for what is to be on its way."""

    def __init__(self) -> None:
        self.turns = 1
        self.cluster = MemoryCluster(ManualClock(), lambda: self.turns)
        self.store, self.other = MemoryStore(self.cluster), MemoryStore(self.cluster)

    async def data(self, path: str) -> bytes | None:
        """As the other session reads it, while the first one's messages stay where they are."""
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


async def test_what_another_session_writes_meanwhile_is_in_the_answer(trip: Trip) -> None:
    trip.turns = 10
    reading = asyncio.create_task(trip.store.get("/a"))
    await asyncio.sleep(0)
    trip.turns = 1
    await trip.other.commit([Put("/a", b"meanwhile")])
    znode = await reading
    assert znode is not None
    assert znode.data == b"meanwhile"


async def test_an_answer_may_be_out_of_date_when_it_arrives(trip: Trip) -> None:
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
async def test_one_sessions_requests_are_done_and_answered_in_order_and_sessions_interleave(seed: int) -> None:
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
async def test_a_change_is_told_before_the_answer_that_shows_it(seed: int) -> None:
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


async def test_a_request_that_is_on_its_way_when_the_link_breaks_is_not_done(trip: Trip) -> None:
    writing = await trip.write_on_its_way(arrives=False)
    trip.cluster.partition(trip.store)
    with pytest.raises(OutcomeUnknownError):
        await writing
    assert await trip.data("/a") == b"0"


async def test_a_request_whose_answer_is_on_its_way_when_the_link_breaks_is_done(trip: Trip) -> None:
    writing = await trip.write_on_its_way(arrives=True)
    trip.cluster.partition(trip.store, noticed=True)
    with pytest.raises(OutcomeUnknownError):
        await writing
    assert await trip.data("/a") == b"1"


async def test_what_is_on_its_way_when_the_session_ends_fails_with_it(trip: Trip) -> None:
    trip.turns = LONG
    reading = asyncio.create_task(trip.store.get("/a"))
    await asyncio.sleep(0)
    trip.cluster.expire(trip.store)
    with pytest.raises(StoreUnavailableError):
        await reading


async def test_a_write_is_done_even_if_nobody_waits_for_its_answer_any_more(trip: Trip) -> None:
    writing = await trip.write_on_its_way(arrives=False)
    writing.cancel()
    await trip.is_written()


async def test_an_event_that_is_on_its_way_when_the_link_breaks_is_lost_and_made_good_by_the_next_connection(
    trip: Trip,
) -> None:
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


async def test_a_session_ends_before_close_returns_and_not_at_once(trip: Trip) -> None:
    await trip.store.commit([Create("/e", b"", ephemeral=True)])
    trip.turns = LONG
    closing = asyncio.create_task(trip.store.close())
    await asyncio.sleep(0)
    assert trip.store.session_id == 0
    assert await trip.data("/e") is not None
    await closing
    assert await trip.data("/e") is None


async def test_closing_does_not_wait_for_a_link_that_breaks_meanwhile(trip: Trip) -> None:
    trip.turns = LONG
    closing = asyncio.create_task(trip.store.close())
    await asyncio.sleep(0)
    trip.cluster.partition(trip.store)
    await asyncio.wait_for(closing, patience())
