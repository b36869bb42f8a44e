"""A broker is drained, plans are executed and unloads cancelled in a cluster of real processes on a real ZooKeeper."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.agents import BROKER_ID, agent_settings, running_agent
from support.cluster import Cluster, a_cluster, probing, topics_of_bundles
from support.fake_broker import FakeBroker
from support.lm_node import a_local_node, get_json
from support.scripted_broker import ScriptedBroker, asking, overlaps
from support.stores import ZooKeeperWorld
from support.waiting import eventually, patience

from loadmanager.core.domain.bundles import NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import BundleName, NamespaceName, TopicName
from loadmanager.core.domain.ownership import OwnershipState
from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper

pytestmark = pytest.mark.zookeeper

BUNDLES = 300
SETTINGS = {"loadBalancerReturnCoolDownMinutes": 30}


@pytest.fixture
async def cluster(zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path) -> AsyncIterator[Cluster]:
    """Three nodes, and three brokers with a hundred bundles each."""
    async with a_cluster(zookeeper.connect_string, chroot, tmp_path) as cluster:
        await cluster.start_all(3, 3, {**SETTINGS, "maxConcurrentUnloads": 4})
        leader = await cluster.leader()
        await cluster.create_namespace(leader.url, bundles=BUNDLES)
        await cluster.assign_all(leader.url)
        yield cluster


async def owners(cluster: Cluster) -> Counter[str]:
    state = await cluster.state()
    return Counter(o.owner.broker for o in state.ownerships if o.owner and o.state is OwnershipState.OWNED)


async def ask(cluster: Cluster, method: str, url: str, **options: Any) -> tuple[int, Any]:  # noqa: ANN401 - of aiohttp
    async with cluster.http.request(method, url, timeout=aiohttp.ClientTimeout(total=patience()), **options) as answer:
        return answer.status, await answer.json() if await answer.read() else None


def drain_of(url: str, broker: ScriptedBroker) -> str:
    return f"{url}/loadbalance/v1/brokers/{broker.broker_id}/drain"


async def is_done(cluster: Cluster, url: str) -> bool:
    status, progress = await get_json(cluster.http, url, 5.0)
    return status == 200 and progress["state"] == "done"


@pytest.mark.parametrize("leader_dies", [False, True], ids=["undisturbed", "the leader is killed"])
async def test_drain_moves_each_bundle_once_and_lookups_never_fail(cluster: Cluster, *, leader_dies: bool) -> None:
    leader, broker = await cluster.leader(), cluster.brokers[0]
    others = [node.url for node in cluster.nodes.values() if node is not leader]
    before = await cluster.state()
    assert (await owners(cluster))[broker.broker_id] == 100
    topics = topics_of_bundles(before)
    its = [
        topic
        for topic, o in zip(topics, before.ownerships, strict=True)
        if o.owner and o.owner.broker == broker.broker_id
    ]
    async with (
        asking(cluster.http, cluster.brokers, [others[0]], its[:10]),
        probing(cluster.http, others, lambda number: its[number % len(its)]) as prober,
    ):
        await eventually(lambda: len(broker.serving_now()) == 10, what="the broker serves")
        status, progress = await ask(cluster, "PUT", drain_of(others[0], broker))
        assert (status, progress["state"]) == (202, "draining")
        if leader_dies:
            await eventually(lambda: len(broker.unloads) > 20, what="some bundles have moved")
            del cluster.nodes[leader.name]
            leader.kill()
        await eventually(lambda: is_done(cluster, drain_of(others[1], broker)), "the drain is done")
        seen = len(prober.probes)
        await eventually(lambda: len(prober.probes) > seen + 2 * len(its))
    assert prober.failures() == []
    after = await cluster.state()
    now = await owners(cluster)
    assert set(now) == {other.broker_id for other in cluster.brokers[1:]}
    assert sum(now.values()) == BUNDLES
    assert max(now.values()) - min(now.values()) <= 8, "spread over the others"
    for old, new in zip(before.ownerships, after.ownerships, strict=True):
        moved = old.owner is not None and old.owner.broker == broker.broker_id
        assert new.version == old.version + (2 if moved else 0), "no bundle moved twice, and none without need"
    assert overlaps(cluster.brokers) == []
    assert len({call.bundle for call in broker.unloads}) == 100


async def test_plan_is_executed_as_shown_and_refused_after_a_change(cluster: Cluster) -> None:
    leader = await cluster.leader()
    other = next(node for node in cluster.nodes.values() if node is not leader)
    state = await cluster.state()
    source, target = cluster.brokers[0], cluster.brokers[1]
    its = [
        name
        for name, o in zip(state.bundle_names(), state.ownerships, strict=True)
        if o.owner and o.owner.broker == source.broker_id
    ]
    plans = f"{other.url}/loadbalance/v1/plans"

    async def plan(bundles: list[str]) -> Any:  # noqa: ANN401 - JSON
        wanted = [{"bundle": bundle, "destination": target.broker_id} for bundle in bundles]
        status, answer = await ask(cluster, "POST", plans, json={"kind": "moves", "moves": wanted})
        assert status == 200, answer
        return answer

    shown, drifting = await plan(its[:30]), await plan(its[30:60])
    status, report = await ask(cluster, "POST", f"{plans}/{shown['hash']}/execute")
    assert (status, report["executed"]) == (200, 30)
    assert (await owners(cluster))[target.broker_id] == 130
    assert await cluster.unload(leader.url, its[45], target.broker_id) == 204
    status, refused = await ask(cluster, "POST", f"{plans}/{drifting['hash']}/execute")
    assert (status, refused["executed"]) == (409, 0)
    assert refused["reason"].startswith(f"nothing was done: {its[45]}: it is Owned by {target.broker_id}")
    assert (await owners(cluster))[target.broker_id] == 131


async def test_cancelled_unload_is_granted_again(zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
    topic = "persistent://tenant/ns/t"
    async with AsyncExitStack() as stack:
        world = ZooKeeperWorld(zookeeper, chroot)
        stack.push_async_callback(world.close)
        local = await stack.enter_async_context(a_local_node(await world.connect()))
        node = local.node
        broker = await stack.enter_async_context(FakeBroker())
        settings = agent_settings(broker, local)  # type: ignore[arg-type] # of the node only its URL is looked at
        agent = await stack.enter_async_context(
            running_agent(settings, await world.connect(), unload_timeout_s=600.0, highest_epoch=0)
        )
        await eventually(lambda: node.leading.is_set() and BROKER_ID in node.mirror.brokers)
        name = NamespaceName.parse("tenant/ns")
        await node.bundles.create_namespace(name, NamespaceBundles(equal_boundaries(1)))
        await node.lookups.lookup(TopicName.parse(topic))
        assert (await agent.owner(topic))[1]["owned"] is True
        broker.may_answer_unloads.clear()
        bundle = BundleName(name, node.mirror.get_namespace("tenant/ns").state.bundles.range_at(0))
        unload = f"{local.url}/loadbalance/v1/bundles/{bundle}/unload"
        unloading = asyncio.create_task(node.bundles.unload_namespace(name))
        await eventually(lambda: broker.unloads)
        assert (await agent.owner(topic))[1]["owned"] is False, "it is being taken away"
        async with agent.http.delete(unload) as answer:
            assert answer.status == 204
        async with agent.http.delete(unload) as answer:
            assert answer.status == 409
        assert type((await asyncio.gather(unloading, return_exceptions=True))[0]).__name__ == "UnloadCancelledError"
        entry, index = node.mirror.bundle(bundle)
        assert (entry.state.ownerships[index].state, entry.state.ownerships[index].version) == (OwnershipState.OWNED, 3)
        broker.may_answer_unloads.set()

        async def owned_again() -> bool:
            return bool((await agent.owner(topic))[1]["owned"])

        await eventually(owned_again, what="the agent grants the topic at the higher version")
