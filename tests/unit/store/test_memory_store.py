from __future__ import annotations

import asyncio

import pytest
from support.clock import ManualClock

from loadmanager.errors import OutcomeUnknownError, StoreUnavailableError
from loadmanager.store.memory_store import MemoryCluster, MemoryStore
from loadmanager.store.metadata_store import Create, Put, SessionState

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


async def test_a_connected_clients_lease_is_always_two_thirds_of_the_timeout_ahead(pair: Pair) -> None:
    for _ in range(3):
        pair.advance(100)
        assert pair.store.lease_valid_until_s == pair.clock() + LEASE_S
    assert pair.states == []


async def test_a_silent_partition_suspends_when_the_lease_lapses_and_expires_later(pair: Pair) -> None:
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


async def test_a_partition_that_is_noticed_suspends_at_once(pair: Pair) -> None:
    pair.cluster.partition(pair.store, noticed=True)
    assert pair.store.state is SessionState.SUSPENDED
    with pytest.raises(StoreUnavailableError):
        await pair.store.get("/a")


async def test_healed_in_time_the_session_goes_on_and_watches_say_read_again(pair: Pair) -> None:
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


async def test_healed_too_late_the_session_is_lost_and_another_begins(pair: Pair) -> None:
    session_id = pair.store.session_id
    pair.cluster.partition(pair.store)
    pair.advance(SESSION_TIMEOUT_S)
    pair.cluster.heal(pair.store)
    await asyncio.sleep(0)
    assert pair.states == [SessionState.SUSPENDED, SessionState.LOST, SessionState.CONNECTED]
    assert pair.store.session_id not in {0, session_id}


async def test_behind_a_silent_partition_a_write_is_not_done_and_its_outcome_unknown(pair: Pair) -> None:
    pair.cluster.partition(pair.store)
    with pytest.raises(OutcomeUnknownError):
        await pair.store.commit([Put("/a", b"1")])
    with pytest.raises(StoreUnavailableError):
        await pair.store.get("/a")
    znode = await pair.witness.get("/a")
    assert znode is not None
    assert znode.data == b"0"


async def test_a_lost_answer_leaves_a_write_done_and_its_outcome_unknown(pair: Pair) -> None:
    pair.cluster.lose_answer(pair.store)
    assert await pair.store.get("/a") is not None
    with pytest.raises(OutcomeUnknownError):
        await pair.store.commit([Put("/a", b"1")])
    znode = await pair.witness.get("/a")
    assert znode is not None
    assert znode.data == b"1"
    pair.advance(LEASE_S)
    assert pair.store.state is SessionState.SUSPENDED


async def test_a_session_that_ends_unseen_suspends_by_its_lease_all_the_same(pair: Pair) -> None:
    pair.cluster.partition(pair.store)
    pair.cluster.expire(pair.store)
    await asyncio.sleep(0)
    assert pair.states == []
    assert await pair.witness.get("/held") is None
    pair.advance(LEASE_S)
    await asyncio.sleep(0)
    assert pair.states == [SessionState.SUSPENDED]


async def test_closed_behind_a_partition_its_ephemerals_stay_until_the_session_expires(pair: Pair) -> None:
    pair.cluster.partition(pair.store)
    await pair.store.close()
    pair.cluster.heal(pair.store)
    assert await pair.witness.get("/held") is not None
    pair.advance(SESSION_TIMEOUT_S)
    assert await pair.witness.get("/held") is None


async def test_callbacks_run_in_the_order_of_events_once_the_caller_waits(pair: Pair) -> None:
    await asyncio.sleep(0)
    seen: list[str] = []
    pair.witness.watch("/", seen.append)
    await pair.store.commit([Create("/b", b"")])
    await pair.store.commit([Put("/a", b"1"), Create("/b/c", b"")])
    assert seen == []
    await asyncio.sleep(0)
    assert seen == ["/", "/b", "/a", "/b/c"]


async def test_a_store_is_started_once(pair: Pair) -> None:
    with pytest.raises(RuntimeError):
        await pair.store.start()
