"""A leader stopped (SIGSTOP) beyond its session resumes with old answers in its sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.cluster import Cluster, a_cluster, probing, topics_of_bundles
from support.history import History, recording
from support.lm_node import NodeProcess
from support.scripted_broker import ScriptedBroker, asking, overlaps
from support.waiting import eventually

from loadmanager.core.domain.ownership import NamespaceState, OwnershipState
from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.store import paths
from loadmanager.wire.broker_data import NamespaceBundleStats

pytestmark = pytest.mark.zookeeper

MIB = 1024 * 1024
SHEDDING = {
    "loadBalancerSheddingEnabled": True,
    "loadBalancerSheddingIntervalMinutes": 0.01,
    "loadBalancerSheddingGracePeriodMinutes": 0,
    "loadBalancerBundleUnloadMinThroughputThreshold": 0,
    "namespaceBundleUnloadingTimeoutMs": 360_000,
    "metadataStoreSessionTimeoutMillis": 6_000,
}


@pytest.fixture
async def cluster(zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path) -> AsyncIterator[Cluster]:
    """Three nodes that shed often, and two brokers that share 16 bundles."""
    async with a_cluster(zookeeper.connect_string, chroot, tmp_path) as cluster:
        await cluster.start_all(3, 2, SHEDDING)
        url = cluster.nodes["n1"].url
        await cluster.create_namespace(url, bundles=16)
        await cluster.create_namespace(url, "tenant/fresh", 512)
        await cluster.assign_all(url)
        yield cluster


async def test_leader_paused_while_shedding_changes_nothing_after_resuming(cluster: Cluster) -> None:
    hot = cluster.brokers[0]
    topics, fresh = topics_of_bundles(await cluster.state()), topics_of_bundles(await cluster.state("tenant/fresh"))
    paused = await cluster.leader()
    urls = [node.url for node in cluster.nodes.values()]
    others = [node.url for node in cluster.nodes.values() if node is not paused]
    async with (
        asking(cluster.http, cluster.brokers, urls, topics),
        recording(cluster.witness, "tenant/ns") as history,
        probing(cluster.http, others, lambda number: topics[number % len(topics)], concurrency=1) as prober,
        probing(cluster.http, urls, lambda number: fresh[number % 511], pause_s=0.02, timeout_s=2.0) as assigning,
    ):
        old_epoch = await cluster.epoch()
        shed = await shed_something(cluster, hot)
        paused.pause()
        hot.may_obey.set()
        await eventually(
            lambda: all(not hot.serves(bundle) for bundle in shed), what="the paused leader's unloads done"
        )
        successor = await successor_of(cluster, paused)
        taken_over = await cluster.get(paths.EPOCH)
        await eventually(lambda: settled(history, shed), what="the successor has finished the unloads")
        calls_before = len(hot.unloads)
        paused.resume()
        await eventually(lambda: paused.events("stepped_down"), what="the old leader says that it stepped down")
        assert await cluster.leaders() == [successor.name]
        await follows_and_forwards(cluster, paused, fresh[-1])
        count = len(assigning.probes)
        await eventually(lambda: len(assigning.probes) > count + 30)
    assert history.written_by_deposed_leaders(taken_over.version, taken_over.mzxid) == []
    assert history.versions_skipped() == []
    assert [call for call in hot.unloads[calls_before:] if call.epoch == old_epoch and call.status == 204] == []
    assert overlaps(cluster.brokers) == []
    assert [probe for probe in prober.failures() if not is_moving(probe.broker)] == []


async def test_lookup_forwarded_to_a_paused_leader_is_answered_by_its_successor(cluster: Cluster) -> None:
    paused = await cluster.leader()
    other = next(node for node in cluster.nodes.values() if node is not paused)
    topics = topics_of_bundles(await cluster.state("tenant/fresh"))
    paused.pause()
    answers = await asyncio.gather(*(cluster.lookup(other.url, topic) for topic in topics[:20]))
    paused.resume()
    assert {status for status, _ in answers} == {200}


async def shed_something(cluster: Cluster, hot: ScriptedBroker) -> list[str]:
    """Make one broker hot and hold its unloads; return the releasing bundles."""
    hot.may_obey.clear()
    state = await cluster.state()
    owners = zip(state.bundle_names(), state.ownerships, strict=True)
    load = NamespaceBundleStats(msgRateIn=100.0, msgThroughputIn=10.0 * MIB, msgThroughputOut=10.0 * MIB, topics=1)
    await hot.report(95.0, {name: load for name, o in owners if o.owner and o.owner.broker == hot.broker_id})
    await eventually(lambda: hot.unloads, what="something is shed")
    state = await cluster.state()
    pairs = zip(state.bundle_names(), state.ownerships, strict=True)
    return [name for name, ownership in pairs if ownership.state is OwnershipState.RELEASING]


async def successor_of(cluster: Cluster, paused: NodeProcess) -> NodeProcess:
    """Return the node that leads while the paused one does not answer."""
    successor = await cluster.leader()
    assert successor is not paused
    return successor


def settled(history: History, bundles: list[str]) -> bool:
    state: NamespaceState = history.moments[-1].state
    pairs = zip(state.bundle_names(), state.ownerships, strict=True)
    return all(ownership.state is not OwnershipState.RELEASING for name, ownership in pairs if name in bundles)


async def follows_and_forwards(cluster: Cluster, node: NodeProcess, topic: str) -> None:
    """Check that the node forwards a lookup to the leader."""

    async def assigned() -> bool:
        return (await cluster.lookup(node.url, topic))[0] == 200

    await eventually(assigned, what="the old leader forwards")
    state = await cluster.state("tenant/fresh")
    assert state.ownerships[-1].epoch == await cluster.epoch()


def is_moving(answer: str) -> bool:
    """Return true if a lookup was refused because its bundle is changing owners."""
    return "Releasing" in answer or "no owner yet" in answer
