"""The lookup client against nodes in this process, over real sockets."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
from support.nodes import Cluster, RunningNode, topics_by_bundle
from support.waiting import eventually

from loadmanager.client import LookupClient

TOPIC = "persistent://t/ns/x"


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """Two nodes, the leader first, two brokers, and a namespace of four bundles."""
    async with Cluster() as cluster:
        cluster.nodes = await cluster.start_nodes(2)
        await cluster.a_broker("b1:8080")
        await cluster.a_broker("b2:8080")
        await cluster.a_namespace()
        yield cluster


def urls(*nodes: RunningNode) -> list[str]:
    return [node.node.service_url for node in nodes]


def a_client(*nodes: RunningNode, **options: object) -> LookupClient:
    return LookupClient(urls(*nodes), chance=random.Random(7), **options)  # type: ignore[arg-type]


def lookups_of(node: RunningNode) -> float:
    """How many lookups the node has answered."""
    return node.app  # type: ignore[return-value]


async def test_a_topic_is_looked_up_once_and_known_from_then_on(cluster: Cluster) -> None:
    async with a_client(*cluster.nodes) as client:
        assert client.resolve(TOPIC) is None
        owner = await client.lookup(TOPIC)
        answer = (await cluster.nodes[0].lookup(TOPIC)).json()
        assert (owner.broker_id, owner.broker_url, owner.http_url) == (
            answer["brokerId"],
            answer["brokerUrl"],
            answer["httpUrl"],
        )
        assert await client.lookup(TOPIC) == client.resolve(TOPIC) == owner


async def test_every_topic_has_the_owner_that_a_node_names(cluster: Cluster) -> None:
    leader = cluster.nodes[0]
    topics = topics_by_bundle(leader, "t/ns", 4)
    async with a_client(*cluster.nodes, namespaces=["t/ns"]) as client:
        owners = await asyncio.gather(*(client.lookup(topic) for topic in topics.values()))
        for bundle, owner in zip(topics, owners, strict=True):
            registration = leader.ownership(bundle).owner
            assert registration is not None
            assert registration.broker == owner.broker_id


async def test_a_move_is_known_without_being_asked_for(cluster: Cluster) -> None:
    leader = cluster.nodes[0]
    async with a_client(*cluster.nodes, namespaces=["t/ns"]) as client:
        before = await client.lookup(TOPIC)
        other = next(name for name in cluster.brokers if name != before.broker_id)
        bundle = leader.bundle_of(TOPIC)
        reply = await leader.put(f"/admin/v2/namespaces/{bundle}/unload?destinationBroker={other}")
        assert reply.status == 204
        await eventually(lambda: (owner := client.resolve(TOPIC)) and owner.broker_id == other)
