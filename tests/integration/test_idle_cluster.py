"""A cluster in which nothing happens writes nothing: counted by ZooKeeper itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.cluster import Cluster, a_cluster, topics_of_bundles
from support.waiting import eventually
from support.zookeeper import ZooKeeperFactory

from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper

pytestmark = pytest.mark.zookeeper

QUIET_S = 6.0
OFTEN = {
    "loadBalancerSheddingEnabled": True,
    "loadBalancerSheddingIntervalMinutes": 0.01,
    "loadBalancerResourceQuotaUpdateIntervalMinutes": 0.01,
    "metadataStoreSessionTimeoutMillis": 9_000,
    "leaderSilenceMs": 60_000,
}
"""Everything that is done now and then is done several times in the test, and the session is renewed as often."""


@pytest.fixture
async def idle(start_zookeeper: ZooKeeperFactory, tmp_path: Path) -> AsyncIterator[tuple[Cluster, EmbeddedZooKeeper]]:
    """Three nodes and two brokers that own bundles, on a ZooKeeper that nobody else uses."""
    server = await asyncio.to_thread(start_zookeeper)
    async with a_cluster(server.connect_string, "/idle", tmp_path) as cluster:
        await asyncio.gather(*(cluster.start_node(name, OFTEN) for name in ("n1", "n2", "n3")))
        for _ in range(2):
            await cluster.start_broker(cpu_percent=30.0)
        url = (await cluster.leader()).url
        await cluster.brokers_are_seen(url, 2)
        await cluster.create_namespace(url, bundles=16)
        await cluster.assign_all(url)
        yield cluster, server


async def test_idle_cluster_writes_nothing(idle: tuple[Cluster, EmbeddedZooKeeper]) -> None:
    cluster, server = idle
    leader = await cluster.leader()
    await flushed(server)
    before, cycles = await last_zxid(server), await cycles_of(cluster, leader.url)
    await asyncio.sleep(QUIET_S)  # it is the passing of time itself that must have no effect

    async def with_failures_reset() -> bool:
        return await cycles_of(cluster, leader.url) >= cycles + 3

    await eventually(with_failures_reset, what="rounds of shedding go on meanwhile")
    assert await last_zxid(server) == before
    topic = topics_of_bundles(await cluster.state(), 1)[0]
    for node in cluster.nodes.values():
        assert (await cluster.lookup(node.url, topic))[0] == 200
    assert await last_zxid(server) == before, "an answer from memory writes nothing either"
    await cluster.create_namespace(leader.url, "tenant/other", 4)
    assert await last_zxid(server) > before, "the counter counts"


async def flushed(server: EmbeddedZooKeeper) -> None:
    """Wait until the averages of what happened so far have been written, and nothing else for some intervals."""
    last, quiet = 0, 0
    while quiet < 4:
        await asyncio.sleep(0.5)
        now = await last_zxid(server)
        last, quiet = now, quiet + 1 if now == last else 0


async def last_zxid(server: EmbeddedZooKeeper) -> int:
    """The server's last transaction; a session that begins or ends is one too."""
    said = await asyncio.to_thread(server._four_letter_command, b"srvr")
    (zxid,) = [line.partition(": ")[2] for line in said.splitlines() if line.startswith("Zxid")]
    return int(zxid, 16)


async def cycles_of(cluster: Cluster, url: str) -> float:
    async with cluster.http.get(f"{url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    (value,) = [line.rpartition(" ")[2] for line in lines if line.startswith("loadmanager_shedding_cycles_total{")]
    return float(value)
