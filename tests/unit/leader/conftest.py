from __future__ import annotations

import pytest
from support.nodes import Cluster, RunningNode


@pytest.fixture
async def leader(cluster: Cluster) -> RunningNode:
    """The first node of the file's own `cluster`."""
    return cluster.nodes[0]
