"""What is asked for the most: a leader, and one with a broker and a namespace."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.nodes import Cluster, RunningNode


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster() as cluster:
        await cluster.start_leader()
        yield cluster


@pytest.fixture
async def node(cluster: Cluster) -> RunningNode:
    await cluster.a_broker()
    await cluster.a_namespace()
    return cluster.nodes[0]
