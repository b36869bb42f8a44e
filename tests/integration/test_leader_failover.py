"""Another node takes over when the leader's process ends, and what is owned is answered all the while."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.cluster import Cluster, a_cluster, probing, topics_of_bundles
from support.lm_node import NodeProcess
from support.waiting import eventually

from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper

pytestmark = pytest.mark.zookeeper

SESSION_MS = 600_000
"""Longer than `patience` ever is."""


@pytest.fixture
async def cluster(zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path) -> AsyncIterator[Cluster]:
    """Three nodes, two brokers, a namespace in which all bundles are owned, and one in which none is."""
    async with a_cluster(zookeeper.connect_string, chroot, tmp_path) as cluster:
        await cluster.start_all(3, 2, {"metadataStoreSessionTimeoutMillis": SESSION_MS})
        url = cluster.nodes["n1"].url
        await cluster.create_namespace(url)
        await cluster.create_namespace(url, "tenant/fresh", 512)
        await cluster.assign_all(url)
        yield cluster


@pytest.mark.parametrize("ending", ["SIGKILL", "SIGTERM"])
async def test_exited_leader_is_replaced_before_its_session_expires(cluster: Cluster, ending: str) -> None:
    owned_before = await cluster.state()
    owned, fresh = topics_of_bundles(owned_before), iter(topics_of_bundles(await cluster.state("tenant/fresh")))
    epoch, leader = await cluster.epoch(), await cluster.leader()
    others = {name: node.url for name, node in cluster.nodes.items() if node is not leader}
    urls = list(others.values())
    async with (
        probing(cluster.http, urls, lambda number: owned[number % len(owned)], concurrency=2) as prober,
        probing(cluster.http, urls, lambda _: next(fresh), concurrency=1, pause_s=0.02) as assigning,
    ):
        await eventually(lambda: len(assigning.successes()) > 5)
        ended_s = time.monotonic()
        leader.kill() if ending == "SIGKILL" else leader.terminate()
        await eventually(lambda: assigning.successes(asked_after_s=ended_s))
        del cluster.nodes[leader.name]
        successor = await cluster.leader()
        seen = len(prober.probes)
        await eventually(lambda: len(prober.probes) > seen + 20)
    assert prober.failures() == []
    assert assigning.failures() == []
    assert successor.name in others
    assert await cluster.epoch() == epoch + 1
    assert len(successor.events("elected")) == 1
    assert await cluster.state() == owned_before, "a failover moves nothing"


async def test_hanging_leader_is_replaced_early(zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path) -> None:
    settings = {"metadataStoreSessionTimeoutMillis": SESSION_MS, "leaderSilenceMs": 800}
    async with a_cluster(zookeeper.connect_string, chroot, tmp_path) as cluster:
        for name in ("n1", "n2"):
            await cluster.start_node(name, settings)
        hung = await cluster.leader()
        (standby,) = (node for node in cluster.nodes.values() if node is not hung)
        epoch = await cluster.epoch()
        await eventually(lambda: _hears(cluster, standby), what="the standby hears the leader")
        hung.pause()
        await eventually(lambda: standby.events("leader_silent"), what="the standby says that the leader is silent")
        await eventually(lambda: standby.events("elected"))
        hung.resume()
        await eventually(lambda: hung.events("stepped_down"), what="the old leader steps down")
        assert await cluster.epoch() > epoch


async def test_returning_node_follows_and_forwards(cluster: Cluster) -> None:
    leader = await cluster.leader()
    del cluster.nodes[leader.name]
    leader.kill()
    successor = await cluster.leader()
    await leader.start()
    cluster.nodes[leader.name] = leader
    topics = topics_of_bundles(await cluster.state("tenant/fresh"), 3)
    assert (await cluster.lookup(leader.url, topics[0]))[0] == 200
    assert await cluster.leaders() == [successor.name]
    owner = (await cluster.state("tenant/fresh")).ownerships[0]
    assert owner.epoch == await cluster.epoch()


async def test_wrong_addresses_depose_nobody(zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path) -> None:
    """Nothing listens where they say they are: that proves nothing about the leader's process. Killed, it is missed."""
    async with a_cluster(zookeeper.connect_string, chroot, tmp_path) as cluster:
        wrong = {"bindAddress": "127.0.0.2", "leaderSilenceMs": 200}
        nodes = [await cluster.start_node(name, wrong) for name in ("n1", "n2")]
        leader, standby = sorted(nodes, key=lambda node: not node.events("elected"))
        assert await cluster.epoch() == 1
        leader.kill()
        del cluster.nodes[leader.name]
        await eventually(lambda: standby.events("leader_process_ended"), what="the standby knows by the kernel")
        assert await cluster.epoch() == 2
        assert standby.events("leader_silent") == []


async def _hears(cluster: Cluster, node: NodeProcess) -> bool:
    async with cluster.http.get(f"{node.url}/metrics") as answer:
        return re.search(r"^loadmanager_leader_heard\{.*\} 1\.0$", await answer.text(), re.MULTILINE) is not None
