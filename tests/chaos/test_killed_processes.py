"""Processes are killed during a split, unload, transfer and merge: each operation ends within 10 s.

Leaders die while an agent delays its answer; a broker and its agent die while asked to release a bundle.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
from support.cluster import NAMESPACE, Cluster, a_cluster, probing, topics_of_bundles
from support.history import recording
from support.invariants import ownership_violations
from support.scripted_broker import ScriptedBroker, asking, overlaps
from support.steps import Steps
from support.waiting import eventually

from loadmanager.core.domain.names import NamespaceName
from loadmanager.core.domain.ownership import NamespaceState, OwnershipState, succession_violations
from loadmanager.dev.demo.demo_cluster import DemoCluster
from loadmanager.dev.demo.demo_settings import DemoSettings
from loadmanager.dev.demo.evidence import find_overlaps, read_journals, serving_intervals
from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.store import paths
from loadmanager.store.znode_codec import decode
from loadmanager.store.zookeeper_store import ZooKeeperStore
from loadmanager.wire.store_records import decode_namespace

pytestmark = pytest.mark.zookeeper

REQUESTS = {
    "split": ("PUT", "/admin/v2/namespaces/{}/split?splitAlgorithmName=range_equally_divide"),
    "unload": ("PUT", "/admin/v2/namespaces/{}/unload"),
    "transfer": ("PUT", "/admin/v2/namespaces/{}/unload?destinationBroker={}"),
    "merge": ("POST", "/loadbalance/v1/bundles/{}/merge"),
}


@pytest.fixture
async def cluster(zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path) -> AsyncIterator[Cluster]:
    """Two node processes and one broker, with sessions longer than any test."""
    async with a_cluster(zookeeper.connect_string, chroot, tmp_path) as cluster:
        await cluster.start_all(2, 1, {"namespaceBundleUnloadingTimeoutMs": 12_000})
        await cluster.create_namespace((await cluster.leader()).url, bundles=4)
        yield cluster


@pytest.mark.parametrize(
    ("operation", "step"),
    [
        ("split", "topics asked"),
        ("split", "topics named"),
        ("split", "boundaries told"),
        ("unload", "unload asked"),
        ("unload", "unload obeyed"),
        ("transfer", "unload asked"),
        ("transfer", "unload obeyed"),
        ("merge", "boundaries told"),
    ],
)
async def test_operation_survives_a_leader_killed_while_it_waits_for_an_agent(
    cluster: Cluster, operation: str, step: str
) -> None:
    leader = await cluster.leader()
    survivor = next(node for node in cluster.nodes.values() if node is not leader)
    (source,) = cluster.brokers
    topics = await cluster.assign_all(survivor.url)
    target = await cluster.start_broker()
    await cluster.all_brokers_are_seen()
    before, steps = await cluster.state(), Steps()
    source.at = steps.at
    steps.hold(step)
    async with (
        asking(cluster.http, cluster.brokers, [node.url for node in cluster.nodes.values()], topics),
        recording(cluster.witness, NAMESPACE) as history,
        probing(cluster.http, [survivor.url], lambda _: topics[3]) as prober,
    ):
        await eventually(lambda: all(source.serves_topic(topic) for topic in topics))
        acting = asyncio.create_task(act(cluster.http, leader.url, operation, before.bundle_name(0), target.broker_id))
        await steps.reached()
        leader.kill()
        await acting
        steps.go_on()
        await is_served(cluster, survivor.url, topics)
    state = await cluster.state()
    assert_outcome(operation, step, state, target)
    states = [moment.state for moment in history.moments]
    for index, each in enumerate(states):
        assert ownership_violations(each.bundles.ranges(), each.ownerships) == []
        assert succession_violations(states[max(0, index - 1)], each) == []
    assert prober.failures() == []
    assert overlaps(cluster.brokers) == []


async def act(http: aiohttp.ClientSession, url: str, operation: str, bundle: str, destination: str) -> None:
    """Request the operation; the node may die before it answers."""
    method, path = REQUESTS[operation]
    with contextlib.suppress(aiohttp.ClientError):
        async with http.request(method, url + path.format(bundle, destination)) as answer:
            await answer.read()


async def is_served(cluster: Cluster, url: str, topics: list[str]) -> None:
    """Wait until no bundle is releasing and each topic is served by the broker of its lookup."""

    async def served() -> bool:
        if any(each.state is OwnershipState.RELEASING for each in (await cluster.state()).ownerships):
            return False
        answers = [(await cluster.lookup(url, topic))[1].get("brokerId") for topic in topics]
        serving = {broker.broker_id: broker for broker in cluster.brokers}
        return all(
            owner in serving and serving[owner].serves_topic(topic)
            for owner, topic in zip(answers, topics, strict=True)
        )

    await eventually(served, "the operation is completed or undone")


def assert_outcome(operation: str, step: str, state: NamespaceState, target: ScriptedBroker) -> None:
    """Assert that committed steps are completed by the next leader, and others are undone."""
    bundles = {"split": 4 if step.startswith("topics") else 5, "merge": 3}.get(operation, 4)
    assert len(state.bundles) == bundles
    if operation in ("unload", "transfer"):
        assert state.ownerships[0].version >= 3
        assert state.ownerships[0].reason != "unload_failed"
    if operation == "transfer":
        owner = state.ownerships[0].owner
        assert owner is not None
        assert owner.broker == target.broker_id


@pytest.mark.deep
async def test_operations_survive_brokers_killed_with_their_agents(tmp_path: Path) -> None:
    """Kills the owner of a bundle during an unload, a transfer, a split and a merge, one by one."""
    settings = DemoSettings(nodes=2, brokers=3)
    async with DemoCluster.started(settings, tmp_path) as demo, aiohttp.ClientSession() as http:
        url, name = demo.node_urls[0], NamespaceName.of("tenant", "ns")
        store = ZooKeeperStore(demo._zookeeper.connect_string, session_timeout_s=60.0)
        await store.start()

        async def state() -> NamespaceState:
            await store.sync()
            znode = await store.get(paths.namespace(str(name)))
            assert znode is not None
            return decode_namespace(name, decode(znode.data, znode.path), znode.path)

        async with http.put(f"{url}/admin/v2/namespaces/{name}", json={"bundles": {"numBundles": 2}}) as answer:
            assert answer.status == 204, await answer.text()
        for operation in REQUESTS:
            for topic in topics_of_bundles(await state()):
                await owner_of(http, url, topic)
            now = await state()
            owner = now.ownerships[0].owner
            assert owner is not None
            victim = next(broker for broker in demo.brokers.values() if broker.broker_id == owner.broker)
            other = next(broker for broker in demo.brokers.values() if broker is not victim)
            os.kill(victim.agent_pid, signal.SIGSTOP)  # the agent is asked and does not answer
            acting = asyncio.create_task(act(http, url, operation, now.bundle_name(0), other.broker_id))
            if operation in ("unload", "transfer"):
                await eventually(lambda: is_releasing(state))
            await demo.kill_broker(victim.name)

            async def settled() -> bool:
                owners = [each.owner.broker if each.owner else None for each in (await state()).ownerships]
                living = {broker.broker_id for broker in demo.brokers.values()}
                return set(owners) <= living | {None} and not await is_releasing(state)

            await eventually(settled, f"the {operation} is completed or undone")
            await acting
            assert succession_violations(now, await state()) == []
            if operation == "transfer":
                ended = (await state()).ownerships[0].owner
                assert ended is not None
                assert ended.broker == other.broker_id
            await demo.start_broker()
        assert find_overlaps(serving_intervals(read_journals(demo.serving_logs()), demo.ended_at_s)) == []
        await store.close()


async def owner_of(http: aiohttp.ClientSession, url: str, topic: str) -> None:
    """Wait until the topic has an owner."""

    async def found() -> bool:
        async with http.get(f"{url}/lookup/v2/topic/persistent/{topic}") as answer:
            return answer.status == 200

    await eventually(found)


async def is_releasing(state: Callable[[], Awaitable[NamespaceState]]) -> bool:
    return any(each.state is OwnershipState.RELEASING for each in (await state()).ownerships)
