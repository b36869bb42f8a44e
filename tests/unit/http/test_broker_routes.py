from __future__ import annotations

import asyncio

import pytest
from support.nodes import Cluster, RunningNode
from support.registrations import a_record, load_of
from support.waiting import eventually

from loadmanager import __version__
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.policies import IsolationPolicy, Policies
from loadmanager.wire.broker_data import decode_local_broker_data

OWNED = "/admin/v2/brokers/standalone/{}/ownedNamespaces"
STATS = "/admin/v2/broker-stats"
TOPIC = "persistent://t/ns/x"


@pytest.fixture
async def bundle(cluster: Cluster, node: RunningNode) -> str:
    """A bundle that b1 owns."""
    await cluster.a_broker("b1:8080")
    await cluster.a_namespace()
    await node.lookup(TOPIC)
    return node.bundle_of(TOPIC)


async def test_owned_namespaces_are_the_assigned_bundles(cluster: Cluster, node: RunningNode, bundle: str) -> None:
    await cluster.a_broker("b2:8080")
    owned = {bundle: {"broker_assignment": "shared", "is_controlled": False, "is_active": True}}
    assert (await node.get(OWNED.format("b1:8080"))).json() == owned
    assert (await node.get(OWNED.format("b2:8080"))).json() == {}


async def test_releasing_bundle_is_not_active(cluster: Cluster, node: RunningNode, bundle: str) -> None:
    agent = cluster.brokers["b1:8080"]
    agent.may_answer.clear()
    unload = asyncio.ensure_future(node.put(f"/admin/v2/namespaces/{bundle}/unload"))
    await eventually(lambda: agent.unloads)
    status = (await node.get(OWNED.format("b1:8080"))).json()[bundle]
    assert status == {"broker_assignment": "shared", "is_controlled": False, "is_active": False}
    agent.may_answer.set()
    assert (await unload).status == 204
    assert (await node.get(OWNED.format("b1:8080"))).json() == {}


@pytest.mark.parametrize(
    ("primary", "secondary", "assignment"),
    [("b1", "b2", "primary"), ("b2", "b1", "secondary"), ("b2", "b3", "shared")],
)
async def test_broker_roles(node: RunningNode, bundle: str, primary: str, secondary: str, assignment: str) -> None:
    policy = IsolationPolicy("p", ("t/.*",), (primary,), (secondary,))
    node.node.mirror.model.set_policies(Policies((policy,)))
    status = (await node.get(OWNED.format("b1:8080"))).json()[bundle]
    assert status == {"broker_assignment": assignment, "is_controlled": True, "is_active": True}


@pytest.mark.parametrize(
    "path",
    [OWNED.format("b9:8080"), "/admin/v2/brokers/health?brokerId=b9:8080", f"{STATS}/load-report?brokerId=b9:8080"],
)
async def test_unregistered_broker_is_404(node: RunningNode, bundle: str, path: str) -> None:
    assert bundle
    reply = await node.get(path)
    assert (reply.status, reply.reason) == (404, "broker 'b9:8080' is not registered; known: b1:8080")


@pytest.mark.parametrize("question", ["health", "ready", "health?brokerId=b1:8080"])
async def test_ready_node_answers_ok(node: RunningNode, bundle: str, question: str) -> None:
    assert bundle
    reply = await node.get(f"/admin/v2/brokers/{question}")
    assert (reply.status, reply.body, reply.headers["Content-Type"]) == (200, b"ok", "text/plain; charset=utf-8")


@pytest.mark.parametrize("question", ["health", "ready", "health?brokerId=b1:8080"])
async def test_node_that_rereads_the_cluster_is_503(node: RunningNode, bundle: str, question: str) -> None:
    assert bundle
    node.node.mirror.is_fresh = False
    reply = await node.get(f"/admin/v2/brokers/{question}")
    assert (reply.status, reply.reason) == (503, "the cluster is being read again after a reconnection")


async def test_version_is_that_of_loadmanager(node: RunningNode) -> None:
    assert (await node.get("/admin/v2/brokers/version")).body.decode() == __version__


async def test_load_report_is_the_record_of_the_broker(cluster: Cluster, node: RunningNode, bundle: str) -> None:
    record = a_record("b1:8080", {bundle: load_of(1.0)})
    await cluster.brokers["b1:8080"].report(record)
    await eventually(lambda: any(each.bundle_names for each in node.node.mirror.model.latest_reports().values()))
    reply = await node.get(f"{STATS}/load-report?brokerId=b1:8080")
    assert reply.status == 200
    assert decode_local_broker_data(reply.body, "the answer") == record
    assert list(reply.json()["lastStats"]) == [bundle]


async def test_load_report_without_broker_id_is_400(node: RunningNode) -> None:
    reply = await node.get(f"{STATS}/load-report")
    assert (reply.status, reply.reason.partition(":")[0]) == (400, "brokerId is missing")


async def test_unreadable_load_report_is_503_with_the_fault(cluster: Cluster, node: RunningNode) -> None:
    broker = await cluster.a_broker("b1:8080")
    node.node.mirror.brokers.pop(BrokerId("b1:8080"))
    await broker.report(b"garbage")
    await eventually(lambda: node.node.mirror.faults)
    reply = await node.get(f"{STATS}/load-report?brokerId=b1:8080")
    assert reply.status == 503
    assert "Invalid JSON" in reply.reason


async def test_broker_metrics_have_the_form_of_pulsar(node: RunningNode, bundle: str) -> None:
    assert bundle
    (element,) = (await node.get(f"{STATS}/metrics")).json()
    assert element["dimensions"] == {"broker": "b1:8080", "metric": "loadBalancing"}
    assert list(element["metrics"]) == [
        "brk_lb_cpu_usage",
        "brk_lb_memory_usage",
        "brk_lb_directMemory_usage",
        "brk_lb_bandwidth_in_usage",
        "brk_lb_bandwidth_out_usage",
    ]
    usage = (await node.get("/loadbalance/v1/fleet")).json()["brokers"]
    resources = ("cpu", "memory", "directMemory", "bandwidthIn", "bandwidthOut")
    assert list(element["metrics"].values()) == [usage[resource][0] for resource in resources]


async def test_ranked_brokers_are_409(node: RunningNode) -> None:
    assert (await node.get(f"{STATS}/broker-resource-availability/t/ns")).status == 409
