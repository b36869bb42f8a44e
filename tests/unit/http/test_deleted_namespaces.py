"""A namespace is deleted with all that is kept of it, once nobody serves anything of it; and may be created anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from support.nodes import Cluster, FakeAgent, RunningNode, topics_by_bundle
from support.registrations import a_record, load_of
from support.waiting import eventually

from loadmanager.core.domain.names import BundleName
from loadmanager.core.domain.ownership import IllegalTransitionError, OwnershipState, inherit, owner_gone
from loadmanager.store import paths
from loadmanager.store.metadata_store import Op, Put
from loadmanager.wire.http_bodies import BUNDLE_VERSION_HEADER

NAMESPACE = "/admin/v2/namespaces/t/ns"
TOPIC = "persistent://t/ns/x"


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster() as cluster:
        yield cluster


async def an_owned_namespace(cluster: Cluster, bundles: int = 2) -> tuple[RunningNode, FakeAgent, list[str]]:
    """All its bundles are owned by one broker."""
    node = await cluster.start_leader()
    agent = await cluster.a_broker()
    names = await cluster.a_namespace(bundles={"numBundles": bundles})
    for topic in topics_by_bundle(node, "t/ns", bundles).values():
        assert (await node.lookup(topic)).status == 200
    return node, agent, names


async def test_deletion_unloads_every_bundle_and_removes_the_namespace(cluster: Cluster) -> None:
    node, agent, names = await an_owned_namespace(cluster)
    other = await cluster.start_node()
    assert (await other.ask("DELETE", NAMESPACE)).status == 204
    assert sorted(path.rpartition("/")[0].rpartition("/")[2] for path, _ in agent.unloads) == [
        name.rpartition("/")[2] for name in names
    ]
    assert await cluster.store.get(paths.namespace("t/ns")) is None
    assert (await node.lookup(TOPIC)).status == 404
    assert (await node.get(NAMESPACE)).status == 404
    assert (await node.get("/admin/v2/namespaces/t")).json() == []
    await cluster.known_everywhere(lambda each: "t/ns" not in each.node.mirror.namespaces)
    assert (await other.lookup(TOPIC)).status == 404
    assert (await node.ask("DELETE", NAMESPACE)).status == 404


async def test_tenant_folders_are_removed_with_the_last_namespace(cluster: Cluster) -> None:
    node = await cluster.start_leader()
    await cluster.a_namespace("t/ns")
    await cluster.a_namespace("t/other")
    await node.store.ensure_path(paths.bundle_data("t/ns"))
    assert (await node.ask("DELETE", NAMESPACE)).status == 204
    assert await node.store.children(f"{paths.NAMESPACES}/t") == ["other"]
    assert (await node.ask("DELETE", "/admin/v2/namespaces/t/other")).status == 204
    for root in (paths.NAMESPACES, paths.BUNDLE_DATA):
        assert await node.store.children(root) == []
    await cluster.a_namespace("t/ns")
    assert (await node.get("/admin/v2/namespaces/t")).json() == ["t/ns"]


async def test_namespace_with_open_topics_is_refused_unchanged(cluster: Cluster) -> None:
    node, agent, names = await an_owned_namespace(cluster)
    agent.topics = {TOPIC: (0.0, 0.0, 0.0, 0.0)}
    before = [node.ownership(name) for name in names]
    reply = await node.ask("DELETE", f"{NAMESPACE}?force=false")
    assert reply.status == 409
    assert reply.reason == f"namespace t/ns is not empty: 1 topics are open, such as {TOPIC}; force=true closes them"
    assert agent.unloads == []
    assert [node.ownership(name) for name in names] == before
    assert (await node.lookup(TOPIC)).status == 200


async def test_forced_deletion_unloads_open_topics(cluster: Cluster) -> None:
    node, agent, names = await an_owned_namespace(cluster)
    agent.topics = {TOPIC: (0.0, 0.0, 0.0, 0.0)}
    assert (await node.ask("DELETE", f"{NAMESPACE}?force=true")).status == 204
    assert len(agent.unloads) == len(names)


async def test_deletion_is_503_when_the_owner_does_not_list_its_topics(cluster: Cluster) -> None:
    node, agent, _ = await an_owned_namespace(cluster)
    agent.topics_status = 503
    assert (await node.ask("DELETE", NAMESPACE)).status == 503
    assert agent.unloads == []


async def test_deletion_is_504_when_the_owner_does_not_release(cluster: Cluster) -> None:
    node = await cluster.start_leader(namespace_bundle_unloading_timeout_ms=300)
    agent = await cluster.a_broker()
    (bundle,) = await cluster.a_namespace(bundles={"numBundles": 1})
    assert (await node.lookup(TOPIC)).status == 200
    agent.status = 503
    assert (await node.ask("DELETE", f"{NAMESPACE}?force=true")).status == 504
    assert node.ownership(bundle).state is OwnershipState.OWNED
    assert (await node.lookup(TOPIC)).status == 200, "what could not be deleted is served again"
    agent.status = 204
    node.node.live.apply({"namespaceBundleUnloadingTimeoutMs": "20000"})  # now it is to be done, however long it takes
    assert (await node.ask("DELETE", f"{NAMESPACE}?force=true")).status == 204


async def test_bundles_are_not_assigned_during_deletion(cluster: Cluster) -> None:
    node, agent, _ = await an_owned_namespace(cluster)
    agent.may_answer.clear()
    deletion = asyncio.create_task(node.ask("DELETE", NAMESPACE))
    await eventually(lambda: len(agent.unloads) == 2)
    again = await node.ask("DELETE", NAMESPACE)
    assert (again.status, again.reason) == (409, "namespace t/ns is being deleted already")
    assert (await node.put(NAMESPACE)).status == 503
    lookup = asyncio.create_task(node.lookup(TOPIC))
    agent.may_answer.set()
    assert (await deletion).status == 204
    assert (await lookup).status in {404, 503}


async def test_bundle_of_a_lost_owner_is_not_assigned_during_deletion(cluster: Cluster) -> None:
    """A lookup that was decided before, and is written while the namespace is being deleted."""
    node, agent, (bundle, _) = await an_owned_namespace(cluster)
    other = await cluster.a_broker("b2:8080")
    await agent.leave()
    await eventually(lambda: agent.broker_id not in node.node.mirror.registrations)
    with node.node.ledger.closed("t/ns"):
        own = BundleName.parse(bundle).range
        with pytest.raises(IllegalTransitionError, match="is given to nobody: t/ns is being deleted"):
            await node.node.ledger.apply(
                "t/ns", own, lambda current, stamp: inherit(current, other.registration, stamp), "lookup"
            )
        assert node.ownership(bundle).owner == agent.registration
        await node.node.ledger.apply("t/ns", own, owner_gone, "owner_gone")
    assert node.ownership(bundle).state is OwnershipState.FREE


@pytest.mark.parametrize("is_held_off", [False, True])
async def test_namespace_of_a_lost_owner_is_deleted(cluster: Cluster, is_held_off: bool) -> None:  # noqa: FBT001 - a case
    node, agent, _ = await an_owned_namespace(cluster)
    if is_held_off:
        path = f"/loadbalance/v1/brokers/{agent.broker_id}/hold-off"
        assert (await node.put(path, json={"forS": 60})).status == 204
    await agent.leave()
    await eventually(lambda: agent.broker_id not in node.node.mirror.registrations)
    assert (await node.ask("DELETE", NAMESPACE)).status == 204


async def test_deletion_removes_only_controls_and_averages_of_the_namespace(cluster: Cluster) -> None:
    node, agent, (first, second) = await an_owned_namespace(cluster)
    (others,) = await cluster.a_namespace("t/ns2", bundles={"numBundles": 1})
    for bundle in (first, others):
        pin = {"broker": agent.broker_id}
        assert (await node.put(f"/loadbalance/v1/bundles/{bundle}/pin", json=pin)).status == 204
    for bundle in (second, others):
        assert (await node.put(f"/loadbalance/v1/bundles/{bundle}/freeze", json={"reason": "r"})).status == 204
    for namespace in ("t/ns", "t/ns2"):
        assert (await node.ask("POST", f"/admin/v2/namespaces/{namespace}/antiAffinity", data="g")).status == 204
    loads = {bundle: load_of(1.0) for bundle in (first, others)}
    await agent.report(a_record(agent.broker_id, loads, agent_url=agent.url))
    await eventually(lambda: node.node.mirror.model.count_samples(first)[0])
    await node.node.persistence.flush()
    assert await cluster.store.children(paths.bundle_data("t")) == ["ns", "ns2"]
    assert (await node.ask("DELETE", NAMESPACE)).status == 204
    controls = (await node.get("/loadbalance/v1/controls")).json()
    assert (controls["pinned"], controls["frozenBundles"]) == ({others: agent.broker_id}, {others: "r"})
    groups = await node.get("/admin/v2/namespaces/standalone/antiAffinity/g?tenant=t")
    assert groups.json() == ["t/ns2"]
    assert await cluster.store.children(paths.bundle_data("t")) == ["ns2"]
    await node.node.persistence.flush()
    assert await cluster.store.children(paths.bundle_data("t")) == ["ns2"]


async def test_recreated_namespace_continues_at_higher_versions(cluster: Cluster) -> None:
    node, agent, (first, _) = await an_owned_namespace(cluster)
    for _ in range(3):
        assert (await node.put(f"/admin/v2/namespaces/{first}/unload")).status == 204
        for topic in topics_by_bundle(node, "t/ns", 2).values():
            assert (await node.lookup(topic)).status == 200
    assert (await node.ask("DELETE", NAMESPACE)).status == 204
    told = max(int(headers[BUNDLE_VERSION_HEADER]) for _, headers in agent.unloads)
    (whole,) = await cluster.a_namespace(bundles={"numBundles": 1})
    assert node.ownership(whole).version > told
    assert (await node.lookup(TOPIC)).status == 200
    assert node.ownership(whole).version > told + 1
    (elsewhere,) = await cluster.a_namespace("t/other", bundles={"numBundles": 1})
    assert node.ownership(elsewhere).version > told


async def test_recreated_namespace_continues_at_higher_versions_under_a_new_leader(cluster: Cluster) -> None:
    node, agent, _ = await an_owned_namespace(cluster)
    assert (await node.ask("DELETE", NAMESPACE)).status == 204
    told = max(int(headers[BUNDLE_VERSION_HEADER]) for _, headers in agent.unloads)
    cluster.nodes.remove(node)
    await node.stop()
    await cluster.start_leader()
    (whole,) = await cluster.a_namespace(bundles={"numBundles": 1})
    assert cluster.nodes[0].ownership(whole).version > told


async def test_changed_record_is_read_again_before_deletion(cluster: Cluster) -> None:
    """Somebody is given a bundle although the leader takes care of that: only the record's version is in the way."""
    node, _, _ = await an_owned_namespace(cluster)
    delete = node.node.ledger.delete_namespace
    interfered: list[bool] = []

    async def with_a_change_before(namespace: str, along: Sequence[Op]) -> None:
        if not interfered:
            interfered.append(True)
            znode = await cluster.store.get(paths.namespace(namespace))
            assert znode is not None
            await cluster.store.commit([Put(paths.namespace(namespace), znode.data, znode.version)])
        await delete(namespace, along)

    node.node.ledger.delete_namespace = with_a_change_before  # type: ignore[method-assign]
    assert (await node.ask("DELETE", NAMESPACE)).status == 204
    assert await cluster.store.get(paths.namespace("t/ns")) is None


async def test_tenants_are_those_with_namespaces(cluster: Cluster) -> None:
    node = await cluster.start_leader()
    assert (await node.get("/admin/v2/tenants")).json() == []
    for name in ("b/x", "a/x", "a/y"):
        await cluster.a_namespace(name)
    assert (await node.get("/admin/v2/tenants")).json() == ["a", "b"]
