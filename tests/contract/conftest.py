"""The implementations of the metadata store, and the model of ZooKeeper, which every test here runs on."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from protocol.real_time import ModelWorld
from support.clock import ManualClock
from support.memory_store import MemoryCluster
from support.stores import MemoryWorld, StoreWorld, ZooKeeperWorld

from loadmanager.store.metadata_store import MetadataStore


@pytest.fixture(params=["memory", "memory at once", "model", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[StoreWorld]:
    world: StoreWorld = MemoryWorld()
    if request.param == "memory at once":
        world = MemoryWorld(MemoryCluster(ManualClock()))
    elif request.param == "model":
        world = ModelWorld()
    elif request.param == "zookeeper":
        world = ZooKeeperWorld(request.getfixturevalue("zookeeper"), request.getfixturevalue("chroot"))
    yield world
    await world.close()


@pytest.fixture
async def store(world: StoreWorld) -> MetadataStore:
    return await world.connect()
