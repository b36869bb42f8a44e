from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.cluster import Cluster, a_cluster, topics_of_bundles
from support.lm_node import get_json
from support.waiting import eventually, patience

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Registration
from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper

pytestmark = pytest.mark.zookeeper

POLICIES = "/admin/v2/clusters/standalone/namespaceIsolationPolicies"
CONFIGURATION = "/admin/v2/brokers/configuration"
OURS = "/loadbalance/v1"


@pytest.fixture
async def cluster(zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with a_cluster(zookeeper.connect_string, chroot, tmp_path) as cluster:
        for name in ("n1", "n2"):
            await cluster.start_node(name)
        await cluster.leader()
        yield cluster


async def ask(cluster: Cluster, method: str, url: str, **options: Any) -> int:  # noqa: ANN401 - aiohttp's options
    timeout = aiohttp.ClientTimeout(total=patience())
    async with cluster.http.request(method, url, timeout=timeout, **options) as answer:
        assert answer.status < 500, await answer.text()
        return answer.status


async def a_follower(cluster: Cluster) -> str:
    """The URL of the node that does not lead."""
    leader = await cluster.leader()
    (follower,) = [node for node in cluster.nodes.values() if node is not leader]
    return follower.url


async def kill_the_leader(cluster: Cluster) -> str:
    """The URL of its successor."""
    leader = await cluster.leader()
    leader.kill()
    del cluster.nodes[leader.name]
    return (await cluster.leader()).url


async def owners_of_new_bundles(cluster: Cluster, url: str, namespace: str) -> set[str]:
    """Create a namespace and return the owners of its bundles."""
    await cluster.create_namespace(url, namespace, 8)
    state = await cluster.state(namespace)
    answers = [await cluster.lookup(url, topic) for topic in topics_of_bundles(state)]
    assert {status for status, _ in answers} == {200}
    return {str(body["brokerId"]) for _, body in answers}


async def test_operator_config_set_at_a_follower_survives_a_failover(cluster: Cluster) -> None:
    brokers = [await cluster.start_broker() for _ in range(2)]
    follower = await a_follower(cluster)
    await cluster.brokers_are_seen(follower, 2)
    pinned_to, excluded = (broker.broker_id for broker in brokers)
    assert await ask(cluster, "PUT", f"{follower}{OURS}/brokers/{excluded}/exclusion") == 204
    assert await owners_of_new_bundles(cluster, follower, "tenant/first") == {pinned_to}
    policy = {"namespaces": ["tenant/nowhere"], "primary": ["no-such-host"]}
    assert await ask(cluster, "POST", f"{follower}{POLICIES}/p", json=policy) == 204
    successor = await kill_the_leader(cluster)
    assert await owners_of_new_bundles(cluster, successor, "tenant/second") == {pinned_to}
    status, policies = await get_json(cluster.http, f"{successor}{POLICIES}", 5.0)
    assert (status, policies) == (200, {"p": policy})
    await cluster.create_namespace(successor, "tenant/nowhere", 1)
    status, body = await cluster.lookup(successor, "tenant/nowhere/x")
    assert status == 503
    assert "isolation policy p leaves no broker" in body["reason"]


async def test_dynamic_configuration_is_effective_on_current_and_later_nodes(cluster: Cluster) -> None:
    follower = await a_follower(cluster)
    key = "loadBalancerBrokerMaxTopics"
    assert await ask(cluster, "POST", f"{follower}{CONFIGURATION}/{key}/7") == 200
    assert await ask(cluster, "POST", f"{follower}{CONFIGURATION}/{key}/-1") == 400
    assert await ask(cluster, "POST", f"{follower}{CONFIGURATION}/clusterName/x") == 412
    await cluster.start_node("n3")

    async def holds_everywhere() -> bool:
        urls = [node.url for node in cluster.nodes.values()]
        answers = [await get_json(cluster.http, f"{url}{CONFIGURATION}/runtime", 5.0) for url in urls]
        return all(body.get(key) == "7" for _, body in answers)

    await eventually(holds_everywhere)
    await kill_the_leader(cluster)
    await eventually(holds_everywhere)


async def test_held_off_broker_gets_its_bundles_back(cluster: Cluster) -> None:
    restarting = await cluster.start_broker()
    follower = await a_follower(cluster)
    await cluster.brokers_are_seen(follower, 1)
    await cluster.create_namespace(follower, bundles=8)
    topics = topics_of_bundles(await cluster.state())
    for topic in topics:
        assert (await cluster.lookup(follower, topic))[0] == 200
    await cluster.start_broker()
    await cluster.brokers_are_seen(follower, 2)
    path = f"{OURS}/brokers/{restarting.broker_id}/hold-off"
    assert await ask(cluster, "PUT", f"{follower}{path}", json={"forS": 120}) == 204
    assert restarting.store is not None
    await restarting.store.close()
    await cluster.brokers_are_seen(follower, 1)
    async with cluster.http.get(f"{follower}/lookup/v2/topic/persistent/{topics[0]}") as answer:
        assert answer.status == 503
        assert 100 < int(answer.headers["Retry-After"]) <= 120
    successor = await kill_the_leader(cluster)
    assert (await cluster.lookup(successor, topics[0]))[0] == 503
    restarting.store = await cluster.a_store()
    await restarting.register()
    back = Registration(BrokerId(restarting.broker_id), restarting.incarnation)

    async def all_returned() -> bool:
        return {ownership.owner for ownership in (await cluster.state()).ownerships} == {back}

    await eventually(all_returned)
