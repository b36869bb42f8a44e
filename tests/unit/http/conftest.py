"""Shared fixtures: a leader, and a namespace with a broker."""

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
def node(cluster: Cluster) -> RunningNode:
    return cluster.nodes[0]


@pytest.fixture
async def namespace(cluster: Cluster) -> None:
    """Namespace t/ns, and a broker for its bundles."""
    await cluster.a_broker()
    await cluster.a_namespace()
