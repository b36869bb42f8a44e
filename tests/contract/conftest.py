"""The two implementations of the metadata store, which every test here runs on."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.stores import MemoryWorld, StoreWorld, ZooKeeperWorld

from loadmanager.store.base import MetadataStore


@pytest.fixture(params=["memory", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[StoreWorld]:
    world: StoreWorld = MemoryWorld()
    if request.param == "zookeeper":
        world = ZooKeeperWorld(request.getfixturevalue("zookeeper"), request.getfixturevalue("chroot"))
    yield world
    await world.close()


@pytest.fixture
async def store(world: StoreWorld) -> MetadataStore:
    return await world.connect()
