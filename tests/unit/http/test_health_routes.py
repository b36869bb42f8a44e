from __future__ import annotations

import pytest
from support.nodes import RunningNode, a_leader
from support.registrations import a_record
from support.waiting import eventually

from loadmanager.core.domain.names import BrokerId
from loadmanager.wire.broker_data import HealthData

WELL, BAD = HealthData(latencyMs=10.0, errorShare=0.0), HealthData(latencyMs=2_500.0, errorShare=0.5)


@pytest.fixture(autouse=True)
def sick_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmanager.core.domain.settings.SICK_AFTER_S", 0.0)


async def test_sick_broker_is_reported_and_gets_no_bundles() -> None:
    async with a_leader() as (cluster, node):
        for number in range(1, 5):
            record = a_record(f"b{number}:8080")
            if number > 1:
                record["health"] = BAD if number == 2 else WELL
            await cluster.a_broker(f"b{number}:8080", record)
        await node.node.planner.shed()
        assert await sick_brokers(node) == ["b2:8080"]
        (obstacle,) = (await node.get("/loadbalance/v1/explain/broker/b2:8080")).json()["obstacles"]
        assert obstacle["sentence"].startswith("Not on b2:8080 because it has been sick for ")
        assert obstacle["sentence"].endswith(" s: its latency was 2500 ms, that of its peers 10 ms")
        assert obstacle["change"].startswith("repair or restart it")
        assert "loadmanager_brokers_sick{" in (await node.get("/metrics")).body.decode()
        bundles = await cluster.a_namespace()
        for bundle in bundles:
            owner, verdict = await node.node.planner.choose(bundle)
            assert owner is not None
            assert owner.broker != "b2:8080"
            assert verdict.why["broker_sick"] == 1

        await cluster.brokers["b2:8080"].report({**a_record("b2:8080"), "health": WELL})
        await eventually(
            lambda: node.node.mirror.brokers[BrokerId("b2:8080")].record.get("health") == WELL, what="it says so"
        )
        await node.node.planner.shed()
        assert await sick_brokers(node) == []


async def sick_brokers(node: RunningNode) -> list[str]:
    brokers = (await node.get("/loadbalance/v1/fleet")).json()["brokers"]
    return [broker for broker, state in zip(brokers["id"], brokers["state"], strict=True) if state == "sick"]


async def test_stuck_broker_gets_no_bundles_and_its_own_are_unserved() -> None:
    async with a_leader() as (cluster, node):
        await cluster.a_broker("b1:8080")
        (first, *others) = await cluster.a_namespace()
        owner = await node.node.assigner.request(first)
        assert owner.owner is not None
        await cluster.a_broker("b2:8080")
        why = "it was granted topics, and opens none"
        await cluster.brokers["b1:8080"].report({**a_record("b1:8080"), "stuck": why})
        await eventually(lambda: "stuck" in node.node.mirror.brokers[BrokerId("b1:8080")].record, what="it says so")
        for bundle in others:
            destination, verdict = await node.node.planner.choose(bundle)
            assert destination is not None
            assert (destination.broker, verdict.why["broker_stuck"]) == ("b2:8080", 1)
        fleet = (await node.get("/loadbalance/v1/fleet")).json()
        assert fleet["brokers"]["state"] == ["broker_stuck", "active"]
        remedy = "restart b1:8080, or drain it: loadmanager admin brokers drain b1:8080"
        assert fleet["unserved"] == [{"broker": "b1:8080", "bundles": 1, "why": why, "remedy": remedy}]
        assert "loadmanager_bundles_unserved{" in (await node.get("/metrics")).body.decode()
        obstacle = (await node.get("/loadbalance/v1/explain/broker/b1:8080")).json()["obstacles"][0]
        assert obstacle["sentence"] == f"Not on b1:8080 because it serves none of its bundles: {why}"
        assert obstacle["change"].startswith("restart b1:8080")


async def test_decision_states_why_nothing_goes_to_a_sick_broker() -> None:
    async with a_leader() as (cluster, node):
        for number, health in enumerate((BAD, WELL, WELL), 1):
            await cluster.a_broker(f"b{number}:8080", {**a_record(f"b{number}:8080"), "health": health})
        await node.node.shedding.run_round()
        (said,) = (await node.get("/loadbalance/v1/decisions?subject=b1:8080")).json()["decisions"]
        assert "Nothing is moved to it because it has been sick" in said["sentence"]
        assert (said["reason"], said["acted"]) == ("broker_sick", False)
