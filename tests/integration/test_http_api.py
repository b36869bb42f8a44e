"""The HTTP interfaces of several nodes on a real ZooKeeper, from an empty cluster to moved bundles."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from support.nodes import Cluster, on_zookeeper, topics_by_bundle
from support.waiting import eventually

from loadmanager.core.domain.ownership import OwnershipState
from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def cluster(zookeeper: EmbeddedZooKeeper, chroot: str) -> Cluster:
    return Cluster(on_zookeeper(zookeeper, chroot))


async def test_every_node_gives_the_same_answer_for_every_topic(cluster: Cluster) -> None:
    async with cluster:
        nodes = await cluster.start_nodes(3)
        for number in range(3):
            await cluster.a_broker(f"b{number}:8080")
        await cluster.a_namespace("t/ns", bundles={"numBundles": 12})
        topics = topics_by_bundle(nodes[0], "t/ns", 12).values()
        asked = [await asyncio.gather(*(node.lookup(topic) for topic in topics)) for node in nodes]
        assert {reply.status for replies in asked for reply in replies} == {200}
        answers = [[reply.json()["brokerId"] for reply in replies] for replies in asked]
        assert answers[0] == answers[1] == answers[2]
        assert sorted(Counter(answers[0]).values()) == [4, 4, 4]


async def test_concurrent_lookups_at_all_nodes_agree(cluster: Cluster) -> None:
    async with cluster:
        nodes = await cluster.start_nodes(3)
        for number in range(3):
            await cluster.a_broker(f"b{number}:8080")
        await cluster.a_namespace()
        replies = await asyncio.gather(*(node.lookup("persistent://t/ns/x") for node in nodes * 20))
        assert len({reply.body for reply in replies}) == 1
        assert nodes[0].node.assigner.assignments == 1


async def test_namespace_unload_and_transfer_can_be_requested_of_any_node(cluster: Cluster) -> None:
    async with cluster:
        _, second, third = await cluster.start_nodes(3)
        first_broker = await cluster.a_broker("b1:8080")
        assert (await second.put("/admin/v2/namespaces/t/ns", json={"hashFunction": "crc32"})).status == 204
        await cluster.known_everywhere(lambda node: "t/ns" in node.node.mirror.namespaces)
        await third.lookup("persistent://t/ns/x")
        bundle = third.bundle_of("persistent://t/ns/x")
        target = await cluster.a_broker("b2:8080")
        unload = await second.put(f"/admin/v2/namespaces/{bundle}/unload?destinationBroker=b2:8080")
        assert unload.status == 204
        await cluster.known_everywhere(lambda node: node.ownership(bundle).owner == target.registration)
        assert len(first_broker.unloads) == 1
        assert (await third.put("/admin/v2/namespaces/t/ns/unload")).status == 204
        await cluster.known_everywhere(lambda node: node.ownership(bundle).state is OwnershipState.FREE)


async def test_next_leader_answers_as_the_last_one(cluster: Cluster) -> None:
    async with cluster:
        first, second = await cluster.start_nodes(2)
        await cluster.a_broker("b1:8080")
        await cluster.a_broker("b2:8080")
        await cluster.a_namespace()
        before = await first.lookup("persistent://t/ns/x")
        await first.stop()
        await eventually(lambda: second.leads)
        after = await second.lookup("persistent://t/ns/x")
        assert (after.status, after.body) == (200, before.body)
        # What every node knows of the leader is what it has read, the leader itself too.
        await eventually(lambda: second.node.mirror.leader is not None)
        leader = (await second.get("/admin/v2/brokers/leaderBroker")).json()
        assert leader["brokerId"] == second.node.node_id
