from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.nodes import Cluster, RunningNode
from support.registrations import a_record, load_of
from support.waiting import eventually

pytestmark = pytest.mark.usefixtures("namespace")

TOPIC = "persistent://t/ns/x"
DECISIONS = "/loadbalance/v1/decisions"


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster() as cluster:
        await cluster.start_leader()
        yield cluster


async def test_decisions_are_newest_first_with_reasons(node: RunningNode) -> None:
    await node.lookup(TOPIC)
    await node.put(f"/admin/v2/namespaces/{node.bundle_of(TOPIC)}/unload")
    body = (await node.get(DECISIONS)).json()
    assert body["epoch"] == 1
    assert [entry["kind"] for entry in body["decisions"]] == ["unloaded", "unload", "assign"]
    assert "Placed because b1:8080 has the least long-term message rate" in body["decisions"][-1]["sentence"]


async def test_decisions_are_limited_and_filtered_by_subject(node: RunningNode) -> None:
    await node.lookup(TOPIC)
    await node.put(f"/admin/v2/namespaces/{node.bundle_of(TOPIC)}/unload")
    assert len((await node.get(f"{DECISIONS}?limit=1")).json()["decisions"]) == 1
    assert len((await node.get(f"{DECISIONS}?subject={node.bundle_of(TOPIC)}")).json()["decisions"]) == 3
    assert (await node.get(f"{DECISIONS}?subject=b9:8080")).json()["decisions"] == []


@pytest.mark.parametrize("limit", ["0", "-1", "4001", "many", "", "1.5", "%D9%A3", "9" * 5000])
async def test_invalid_limit_is_400_with_the_allowed_range(node: RunningNode, limit: str) -> None:
    reply = await node.get(f"{DECISIONS}?limit={limit}")
    assert reply.status == 400
    assert "expected a number from 1 to 4000" in reply.reason


async def test_verdicts_of_a_shedding_round_are_listed(cluster: Cluster, node: RunningNode) -> None:
    await cluster.a_broker("b2:8080")
    broker = cluster.brokers["b1:8080"]
    await broker.report(a_record("b1:8080", {"t/ns/0x00000000_0x40000000": load_of(1.0)}, agent_url=broker.url, cpu=50))
    await eventually(lambda: node.node.intake.reports_applied == 3)
    await node.node.shedding.run_round()
    decisions = (await node.get(DECISIONS)).json()["decisions"]
    assert {entry["subject"] for entry in decisions} == {"b1:8080", "b2:8080"}
    assert all(entry["sentence"].startswith("No move because") for entry in decisions)


async def test_imbalance_is_shown_with_its_lower_bound(cluster: Cluster, node: RunningNode) -> None:
    broker = cluster.brokers["b1:8080"]
    await node.lookup(TOPIC)
    await cluster.a_broker("b2:8080")
    await broker.report(a_record("b1:8080", {node.bundle_of(TOPIC): load_of(8.0)}, agent_url=broker.url, cpu=50))
    await eventually(lambda: bool(node.node.planner.snapshot().bundles.movable.any()))
    shown = (await node.get("/loadbalance/v1/balance")).json()
    assert shown["now"]["heatBefore"] == shown["now"]["heatAfter"] == pytest.approx(2.0)
    assert shown["now"]["bound"] == pytest.approx(2.0)
    assert shown["now"]["boundBy"] == "heaviest"
    assert node.bundle_of(TOPIC) in shown["now"]["sentence"]
    assert shown["lastRound"] is None
    assert shown["worstBrokerLoss"]["isBorne"]
    assert shown["worstDomainLoss"] is None
    await node.node.shedding.run_round()
    assert (await node.get("/loadbalance/v1/balance")).json()["lastRound"]["bundlesMoved"] == 0


async def test_decisions_are_filtered_by_kind_and_time(node: RunningNode) -> None:
    await node.lookup(TOPIC)
    await node.put(f"/admin/v2/namespaces/{node.bundle_of(TOPIC)}/unload")

    async def kinds(query: str) -> list[str]:
        return [entry["kind"] for entry in (await node.get(f"{DECISIONS}?{query}")).json()["decisions"]]

    assert await kinds("kind=assign") == ["assign"]
    assert await kinds("kind=unload,unloaded") == ["unloaded", "unload"]
    assert await kinds("since=9000000000000") == await kinds("until=1") == []
    assert len(await kinds("since=1&until=9000000000000")) == 3
    reply = await node.get(f"{DECISIONS}?since=yesterday")
    assert (reply.status, reply.reason) == (400, "since 'yesterday': expected milliseconds since 1970")


async def test_move_has_predicted_and_measured_effect(cluster: Cluster, node: RunningNode) -> None:
    await node.lookup(TOPIC)
    await cluster.a_broker("b2:8080")
    bundle, source, destination = node.bundle_of(TOPIC), cluster.brokers["b1:8080"], cluster.brokers["b2:8080"]

    async def report(first: float, second: float) -> None:
        before = node.node.intake.reports_applied
        for broker, carried in ((source, first), (destination, second)):
            load = {bundle: load_of(carried)} if carried else {}
            await broker.report(a_record(broker.registration.broker, load, agent_url=broker.url))
        await eventually(lambda: node.node.intake.reports_applied == before + 2)

    async def effect() -> Any:  # noqa: ANN401 - JSON
        (entry,) = (await node.get(f"{DECISIONS}?kind=unloaded")).json()["decisions"]
        return entry["effect"]

    await report(1.0, 0.0)
    node.node.planner.snapshot()  # predictions are made on the last one
    await node.put(f"/admin/v2/namespaces/{bundle}/unload?destinationBroker=b2:8080")
    predicted = await effect()
    assert predicted["predicted"] == {"imbalanceBefore": 2.0, "imbalanceAfter": 2.0}
    assert (predicted["measured"], predicted["source"]) == (None, None)
    await report(0.0, 1.0)
    measured = await effect()
    assert measured["measured"] == {"imbalanceBefore": 2.0, "imbalanceAfter": 2.0}
    load = predicted["load"]
    assert load > 0
    assert (measured["source"], measured["destination"]) == ([load, 0.0], [0.0, load])
