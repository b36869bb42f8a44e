"""A leading node with scripted brokers, on the ZooKeeper shared by all tests of this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.delays import a_memory_cluster
from support.local_cluster import LocalCluster, a_local_cluster
from support.stores import MemoryWorld, StoreWorld, ZooKeeperWorld

from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper

SETTINGS: dict[str, Any] = {"loadBalancerSheddingEnabled": False}


@pytest.fixture(params=["memory", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[StoreWorld]:
    world: StoreWorld = MemoryWorld(a_memory_cluster())
    if request.param == "zookeeper":
        world = ZooKeeperWorld(request.getfixturevalue("zookeeper"), request.getfixturevalue("chroot"))
    yield world
    await world.close()


@pytest.fixture
async def cluster(
    zookeeper: EmbeddedZooKeeper, chroot: str, request: pytest.FixtureRequest
) -> AsyncIterator[LocalCluster]:
    """Three brokers; `@pytest.mark.parametrize("cluster", [{...}], indirect=True)` changes settings."""
    settings = {**SETTINGS, **getattr(request, "param", {})}
    async with a_local_cluster(ZooKeeperWorld(zookeeper, chroot), settings) as cluster:
        yield cluster
