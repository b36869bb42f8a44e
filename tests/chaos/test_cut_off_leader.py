"""A leader that loses ZooKeeper unnoticed: packets are dropped without a disconnect, or the server hangs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from support.cluster import Cluster, Prober, a_cluster, probing, topics_of_bundles
from support.history import recording
from support.lm_node import NodeProcess, get_json
from support.scripted_broker import asking, overlaps
from support.tcp_proxy import TcpProxy
from support.waiting import eventually, patience
from support.zookeeper import ZooKeeperFactory

from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.store import paths
from loadmanager.util.clock import now_s

pytestmark = pytest.mark.zookeeper

SETTINGS = {"metadataStoreSessionTimeoutMillis": 6_000}


@pytest.fixture
async def cut(zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path) -> AsyncIterator[tuple[Cluster, TcpProxy]]:
    """A node behind a proxy, `far`, which leads; another, `near`; two brokers, 16 owned bundles and 512 free ones."""
    async with TcpProxy(zookeeper.port) as proxy, a_cluster(zookeeper.connect_string, chroot, tmp_path) as cluster:
        await cluster.start_node("far", SETTINGS, via=proxy.address)
        await cluster.leader()
        await cluster.start_node("near", SETTINGS)
        await populate(cluster)
        assert (await cluster.leader()).name == "far"
        yield cluster, proxy
        proxy.heal()


async def populate(cluster: Cluster) -> None:
    url = next(iter(cluster.nodes.values())).url
    for _ in range(2):
        await cluster.start_broker()
    await cluster.brokers_are_seen(url, 2)
    await cluster.create_namespace(url, bundles=16)
    await cluster.create_namespace(url, "tenant/fresh", 512)
    await cluster.assign_all(url)


async def test_busy_leader_that_is_cut_off_steps_down_before_another_leads(cut: tuple[Cluster, TcpProxy]) -> None:
    cluster, proxy = cut
    far, near = cluster.nodes["far"], cluster.nodes["near"]
    owned, fresh = topics_of_bundles(await cluster.state()), topics_of_bundles(await cluster.state("tenant/fresh"))
    async with (
        probing(cluster.http, [far.url, near.url], lambda number: owned[number % 16]) as prober,
        probing(cluster.http, [far.url], lambda number: fresh[number % 256], concurrency=4, timeout_s=5.0),
        recording(cluster.witness, "tenant/fresh") as history,
    ):
        await eventually(lambda: len(history.moments) > 5, what="the leader is busy")
        proxy.blackhole()
        await eventually(lambda: leads(cluster, near), what="the other node takes over")
        assert await has_stepped_down(cluster, far)
        taken_over = await cluster.get(paths.EPOCH)
        await eventually(lambda: answers(cluster, near, fresh[-1]), what="the successor assigns")
        count = len(prober.probes)
        await eventually(lambda: len(prober.probes) > count + 30)
        proxy.heal()
        await eventually(lambda: cluster.is_ready(far.url), what="the healed node is ready")
        await eventually(lambda: answers(cluster, far, fresh[-2]), what="the healed node forwards")
        assert await cluster.leaders() == ["near"]
    assert prober.failures() == [], "owned bundles are answered all the while, by both"
    assert history.written_by_deposed_leaders(taken_over.version, taken_over.mzxid) == []
    assert history.versions_skipped() == []
    reasons = {event["reason"] for event in far.events("stepped_down")}
    assert reasons <= {"lease_lapsed", "session_changed"}
    assert reasons


async def test_healed_node_is_not_ready_before_it_has_caught_up(cut: tuple[Cluster, TcpProxy]) -> None:
    """While the node is cut off a bundle moves, another is assigned and a namespace appears."""
    cluster, proxy = cut
    far, near = cluster.nodes["far"], cluster.nodes["near"]
    topics, fresh = topics_of_bundles(await cluster.state()), topics_of_bundles(await cluster.state("tenant/fresh"), 2)
    moved, before = (await cluster.state()).bundle_name(0), (await cluster.state()).ownerships[0]
    assert before.owner is not None
    target = next(broker for broker in cluster.brokers if broker.broker_id != before.owner.broker)
    async with asking(cluster.http, cluster.brokers, [far.url, near.url], topics):
        await eventually(lambda: any(broker.serves(moved) for broker in cluster.brokers))
        proxy.blackhole()
        await eventually(lambda: leads(cluster, near))
        assert await cluster.unload(near.url, moved, target.broker_id) == 204
        await cluster.create_namespace(near.url, "tenant/later")
        status, assigned = await cluster.lookup(near.url, fresh[0])
        assert status == 200
        await eventually(lambda: target.serves(moved), what="the new owner serves")
        assert (await get_json(cluster.http, f"{far.url}/readyz"))[0] == 503
        proxy.heal()
        await not_ready_unless_it_knows(cluster, far, topics[0], target.broker_id)
        assert (await cluster.lookup(far.url, fresh[0])) == (200, assigned)
        assert (await cluster.lookup(far.url, "tenant/later/t"))[0] == 200
    assert overlaps(cluster.brokers) == []
    state = await cluster.state("tenant/fresh")
    assert max(ownership.version for ownership in state.ownerships) == 1, "nothing was assigned twice"


async def test_hanging_zookeeper(start_zookeeper: ZooKeeperFactory, chroot: str, tmp_path: Path) -> None:
    server = await asyncio.to_thread(start_zookeeper)
    async with a_cluster(server.connect_string, chroot, tmp_path) as cluster:
        await asyncio.gather(*(cluster.start_node(name, SETTINGS) for name in ("n1", "n2")))
        await populate(cluster)
        owned, fresh = topics_of_bundles(await cluster.state()), topics_of_bundles(await cluster.state("tenant/fresh"))
        urls = [node.url for node in cluster.nodes.values()]
        epoch = await cluster.epoch()
        async with (
            probing(cluster.http, urls, lambda number: owned[number % 16]) as prober,
            probing(cluster.http, urls, lambda number: fresh[number % 256], concurrency=4, timeout_s=5.0) as assigning,
        ):
            await eventually(lambda: len(assigning.successes()) > 20)
            server.pause()
            try:
                for node in cluster.nodes.values():
                    await eventually(partial(has_stepped_down, cluster, node), what=f"{node.name} leads no more")
                silent_s = now_s()
                count = len(assigning.probes)
                await eventually(lambda: len(assigning.probes) > count + 4)
                for url in urls:
                    assert (await get_json(cluster.http, f"{url}/readyz"))[0] == 503
            finally:
                server.resume()
            resumed_s = now_s()
            await cluster.leader()
            await eventually(
                lambda: answers(cluster, cluster.nodes["n1"], fresh[-1]), what="bundles are assigned again"
            )
        answered = [probe.topic for probe in assigning.successes(silent_s) if probe.answered_s < resumed_s]
        during = set(answered) - known(assigning, silent_s)
        assert during == set(), "nothing is assigned without ZooKeeper"
        assert prober.failures() == []
        assert await cluster.epoch() > epoch


def known(prober: Prober, before_s: float) -> set[str]:
    """Return the topics answered before this time."""
    return {probe.topic for probe in prober.probes if probe.status == 200 and probe.answered_s < before_s}


async def leads(cluster: Cluster, node: NodeProcess) -> bool:
    return node.name in await cluster.leaders()


async def answers(cluster: Cluster, node: NodeProcess, topic: str) -> bool:
    return (await cluster.lookup(node.url, topic))[0] == 200


async def has_stepped_down(cluster: Cluster, node: NodeProcess) -> bool:
    """Return true if health and metrics of the node say that it does not lead."""
    status, health = await get_json(cluster.http, f"{node.url}/healthz")
    async with cluster.http.get(f"{node.url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    gauges = [line.rpartition(" ")[2] for line in lines if line.startswith("loadmanager_leader{")]
    assert status == 200
    return not health["leading"] and gauges == ["0.0"]


async def not_ready_unless_it_knows(cluster: Cluster, node: NodeProcess, topic: str, owner: str) -> None:
    """Poll readiness and the owner without a pause; once ready, the node must name `owner`."""
    async with asyncio.timeout(patience()):
        ready = False
        while not ready:
            ready = await cluster.is_ready(node.url)
            _, answer = await cluster.lookup(node.url, topic)
    assert answer["brokerId"] == owner, "ready with a stale mirror"
