from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.stores import MemoryWorld
from support.waiting import eventually

from loadmanager.cli.broker_monitor import BrokerReadings, Update
from loadmanager.store import paths
from loadmanager.store.metadata_store import Create, Delete, MetadataStore, Put

NEVER_S = 3600.0
RECORD = b'{"msgRateIn":1.0}'
AVERAGES = b'{"longTermMsgRateIn":5.0}'


@pytest.fixture
async def world() -> AsyncIterator[MemoryWorld]:
    world = MemoryWorld()
    yield world
    await world.close()


@pytest.fixture
async def store(world: MemoryWorld) -> MetadataStore:
    store = await world.connect()
    for path in (paths.BROKERS, paths.BROKER_TIME_AVERAGE):
        await store.ensure_path(path)
    return store


async def register(store: MetadataStore, broker_id: str, record: bytes = RECORD) -> None:
    await store.commit([Create(paths.broker(broker_id), record, ephemeral=True)])


async def test_the_brokers_are_read_in_the_order_of_their_ids(store: MetadataStore) -> None:
    await register(store, "b:2")
    await register(store, "b:1")
    update = await BrokerReadings(store).read()
    assert list(update.readings) == ["b:1", "b:2"]
    assert update.changed == {"b:1", "b:2"}


async def test_only_the_brokers_asked_for_are_read(store: MetadataStore) -> None:
    await register(store, "b:1")
    await register(store, "b:2")
    assert list((await BrokerReadings(store, ["b:2", "b:9"]).read()).readings) == ["b:2"]


async def test_nothing_is_there_before_anything_was_started(world: MemoryWorld) -> None:
    assert (await BrokerReadings(await world.connect()).read()) == Update({}, frozenset())


async def test_nothing_is_written(world: MemoryWorld, store: MetadataStore) -> None:
    await register(store, "b:1")
    reader = await world.connect()
    before = world.cluster.zxid
    updates = BrokerReadings(reader).updates(NEVER_S)
    await anext(updates)
    await updates.aclose()
    assert world.cluster.zxid == before


class Follower:
    """Collects updates in the background."""

    def __init__(self, readings: BrokerReadings, interval_s: float = NEVER_S) -> None:
        self._updates = readings.updates(interval_s)
        self.seen: list[Update] = []

    async def until(self, broker_ids: list[str]) -> Update:
        """The next update that has exactly these brokers."""
        async for update in self._updates:
            self.seen.append(update)
            if list(update.readings) == broker_ids:
                return update
        raise AssertionError("updates never end")

    async def next(self) -> Update:
        self.seen.append(await anext(self._updates))
        return self.seen[-1]


async def test_a_broker_that_comes_changes_or_goes_makes_an_update_that_names_it(store: MetadataStore) -> None:
    await register(store, "b:1")
    follower = Follower(BrokerReadings(store))
    await follower.until(["b:1"])

    await register(store, "b:2")
    came = await follower.until(["b:1", "b:2"])
    assert "b:2" in came.changed

    await store.commit([Put(paths.broker("b:2"), b'{"msgRateIn":7.0}')])
    changed = await follower.next()
    assert changed.changed == {"b:2"}
    assert changed.readings["b:2"].record == {"msgRateIn": 7.0}

    await store.commit([Delete(paths.broker("b:2"))])
    gone = await follower.next()
    assert list(gone.readings) == ["b:1"]
    assert gone.changed == {"b:2"}


async def test_new_averages_make_an_update_of_their_broker(store: MetadataStore) -> None:
    await register(store, "b:1")
    follower = Follower(BrokerReadings(store))
    await follower.until(["b:1"])
    await store.commit([Create(paths.broker_time_average("b:1"), AVERAGES)])
    while (update := await follower.next()).readings["b:1"].averages is None:
        pass
    assert update.readings["b:1"].averages.long_term_msg_rate_in == 5.0


async def test_averages_of_a_broker_that_is_not_registered_concern_nobody(store: MetadataStore) -> None:
    readings = BrokerReadings(store)
    await readings.read()
    readings._mark(paths.broker_time_average("gone:1"))
    assert (await readings.read()).changed == frozenset()


async def test_without_any_change_there_is_an_update_of_everything_at_the_interval(store: MetadataStore) -> None:
    await register(store, "b:1")
    follower = Follower(BrokerReadings(store), interval_s=0.01)
    for _ in range(4):
        update = await follower.next()
    assert update.changed == {"b:1"}


async def test_lost_store(world: MemoryWorld, store: MetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmanager.cli.broker_monitor._RETRY_S", 0.0)
    await register(store, "b:1")
    reader = await world.connect()
    follower = Follower(BrokerReadings(reader), interval_s=0.01)
    await follower.until(["b:1"])

    world.cluster.partition(reader, noticed=True)
    while (update := await follower.next()).problem is None:
        pass
    assert list(update.readings) == ["b:1"]

    world.cluster.heal(reader)
    await eventually(lambda: reader.session_id != 0)
    while (update := await follower.next()).problem is not None:
        pass
    assert list(update.readings) == ["b:1"]
