"""The lookup client against nodes in this process, over real sockets."""

from __future__ import annotations

import asyncio
import random
import re
import sys
import threading
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support import cluster as processes
from support.cluster import NAMESPACE
from support.nodes import Cluster, RunningNode, topics_by_bundle
from support.processes import ended
from support.tokens import CLOSED, token_of
from support.waiting import eventually

from loadmanager.client import BlockingLookupClient, LookupClient
from loadmanager.core.domain.names import InvalidNameError
from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.errors import (
    ConfigurationError,
    NamespaceNotFoundError,
    NodesUnavailableError,
    UnauthenticatedError,
)

CHECKOUT = Path(__file__).parents[2]
DOCUMENTATION = CHECKOUT / "docs" / "client.md"
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


async def test_topic_is_looked_up_once(cluster: Cluster) -> None:
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


async def test_client_and_node_name_the_same_owners(cluster: Cluster) -> None:
    leader = cluster.nodes[0]
    topics = topics_by_bundle(leader, "t/ns", 4)
    async with a_client(*cluster.nodes, namespaces=["t/ns"]) as client:
        owners = await asyncio.gather(*(client.lookup(topic) for topic in topics.values()))
        for bundle, owner in zip(topics, owners, strict=True):
            registration = leader.ownership(bundle).owner
            assert registration is not None
            assert registration.broker == owner.broker_id


async def test_move_is_pushed_to_the_client(cluster: Cluster) -> None:
    leader = cluster.nodes[0]
    async with a_client(*cluster.nodes, namespaces=["t/ns"]) as client:
        before = await client.lookup(TOPIC)
        other = next(name for name in cluster.brokers if name != before.broker_id)
        bundle = leader.bundle_of(TOPIC)
        reply = await leader.put(f"/admin/v2/namespaces/{bundle}/unload?destinationBroker={other}")
        assert reply.status == 204
        await eventually(lambda: (owner := client.resolve(TOPIC)) and owner.broker_id == other)


async def test_split_keeps_the_owner_of_every_topic(cluster: Cluster) -> None:
    leader = cluster.nodes[0]
    topics = [f"{TOPIC}-{number}" for number in range(40)]
    async with a_client(*cluster.nodes, namespaces=["t/ns"]) as client:
        owners = await asyncio.gather(*map(client.lookup, topics))
        bundle = leader.bundle_of(TOPIC)
        reply = await leader.put(f"/admin/v2/namespaces/{bundle}/split?splitAlgorithmName=range_equally_divide")
        assert reply.status == 204
        await eventually(lambda: str(client._owners.place_of(TOPIC).pushed.range) in leader.bundle_of(TOPIC))  # type: ignore[union-attr]
        assert await asyncio.gather(*map(client.lookup, topics)) == owners


async def test_deleted_namespace_is_unknown_until_recreated(cluster: Cluster) -> None:
    leader = cluster.nodes[0]
    async with a_client(*cluster.nodes, namespaces=["t/ns"]) as client:
        await client.lookup(TOPIC)
        assert (await leader.ask("DELETE", "/admin/v2/namespaces/t/ns?force=true")).status == 204
        await eventually(lambda: client.resolve(TOPIC) is None)
        with pytest.raises(NamespaceNotFoundError, match="t/ns not found"):
            await client.lookup(TOPIC)
        await cluster.a_namespace("t/ns")
        assert (await client.lookup(TOPIC)).broker_id in cluster.brokers


async def test_client_needs_a_token_of_a_closed_node(tmp_path: Path) -> None:
    async with Cluster() as cluster:
        leader = await cluster.start_leader(**CLOSED)
        with pytest.raises(UnauthenticatedError, match=f"{leader.node.service_url} answered 401"):
            await a_client(leader, namespaces=["t/ns"]).__aenter__()
        (tmp_path / "token").write_text(token_of("client"))
        async with a_client(leader, namespaces=["t/no"], token=f"file://{tmp_path}/token") as client:
            with pytest.raises(NamespaceNotFoundError):
                await client.lookup("persistent://t/no/x")


async def test_invalid_arguments_are_rejected_before_any_request() -> None:
    with pytest.raises(ConfigurationError, match="token: expected a token"):
        LookupClient(["http://127.0.0.1:1"], token="token:two words")
    with pytest.raises(InvalidNameError, match="namespace 'orders'"):
        LookupClient(["http://127.0.0.1:1"], namespaces=["orders"])
    async with LookupClient(["http://127.0.0.1:1"]) as client:
        with pytest.raises(InvalidNameError, match="topic 'orders'"):
            await client.lookup("orders")


async def test_blocking_client_works_from_many_threads(cluster: Cluster) -> None:
    def work() -> set[str]:
        with BlockingLookupClient(a_client(*cluster.nodes)) as client, ThreadPoolExecutor(8) as threads:
            owners = list(threads.map(client.lookup, [f"{TOPIC}-{number}" for number in range(100)]))
            known = client.resolve(f"{TOPIC}-1")
            assert known == owners[1]
            with pytest.raises(NamespaceNotFoundError):
                client.lookup("persistent://t/no/x")
            return {owner.broker_id for owner in owners}

    assert await asyncio.to_thread(work) <= cluster.brokers.keys()


async def test_documented_examples_run_as_printed(cluster: Cluster, tmp_path: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", DOCUMENTATION.read_text(), re.DOTALL)
    assert len(examples) == 2
    for number, example in enumerate(examples):
        script = tmp_path / f"owner-{number}.py"
        script.write_text(example)
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(script), *urls(*cluster.nodes), TOPIC, stdout=PIPE, stderr=PIPE, cwd=CHECKOUT
        )
        status, out, errors = await ended(process)
        assert (status, errors) == (0, "")
        owner = (await cluster.nodes[0].lookup(TOPIC)).json()
        assert set(out.splitlines()) == {f"{TOPIC}: go to {owner['brokerUrl']}"}


async def test_blocking_client_that_fails_to_start_leaves_no_thread() -> None:
    def work() -> None:
        client = LookupClient(["http://127.0.0.1:1"], namespaces=["t/ns"])
        with pytest.raises(NodesUnavailableError), BlockingLookupClient(client):
            pass

    await asyncio.to_thread(work)
    assert "lookup client" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.zookeeper
async def test_client_survives_killed_nodes(zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path) -> None:
    """The leader first: moves are known from the other one. Then that, too: what was known is known."""
    topic = f"persistent://{NAMESPACE}/x"
    async with processes.a_cluster(zookeeper.connect_string, chroot, tmp_path) as cluster:
        await cluster.start_all(2, 2)
        leader = await cluster.leader()
        (other,) = (node for node in cluster.nodes.values() if node is not leader)
        await cluster.create_namespace(leader.url, bundles=1)
        async with LookupClient([leader.url, other.url], namespaces=[NAMESPACE]) as client:
            first = await client.lookup(topic)
            (second,) = (broker.broker_id for broker in cluster.brokers if broker.broker_id != first.broker_id)
            leader.kill()
            assert await client.lookup(topic) == first

            async def is_moved() -> bool:
                return await cluster.unload(other.url, f"{NAMESPACE}/0x00000000_0xffffffff", second) == 204

            await eventually(is_moved)
            await eventually(lambda: (owner := client.resolve(topic)) is not None and owner.broker_id == second)
            other.kill()
            assert (await client.lookup(topic)).broker_id == second
            with pytest.raises(NodesUnavailableError) as failed:
                await client.lookup("persistent://tenant/unheard-of/x", timeout_s=1.0)
            assert leader.url in str(failed.value)
            assert other.url in str(failed.value)
            assert (await client.lookup(topic)).broker_id == second
