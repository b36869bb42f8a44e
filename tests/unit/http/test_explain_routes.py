from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.nodes import Cluster, RunningNode
from support.registrations import a_record, load_of, register
from support.waiting import eventually

from loadmanager.wire.explain_bodies import BrokerExplanation, BundleExplanation, WhyNotExplanation

EXPLAIN = "/loadbalance/v1/explain"
LOWEST, SECOND, THIRD, HIGHEST = (
    f"t/ns/{each}"
    for each in (
        "0x00000000_0x40000000",
        "0x40000000_0x80000000",
        "0x80000000_0xc0000000",
        "0xc0000000_0xffffffff",
    )
)


@pytest.fixture
async def node(cluster: Cluster) -> RunningNode:
    """Broker b1 owns and reports all but the highest bundle of t/ns, which nobody owns; b2 and b3 have nothing."""
    node = cluster.nodes[0]
    first = await cluster.a_broker("b1:8080")
    await cluster.a_namespace()
    owned = {LOWEST: load_of(20.0), SECOND: load_of(20.0), THIRD: load_of(5.0)}
    number = 0
    while any(node.ownership(bundle).owner is None for bundle in owned):
        if node.bundle_of(f"persistent://t/ns/x{number}") in owned:
            await node.lookup(f"persistent://t/ns/x{number}")
        number += 1
    await cluster.a_broker("b2:8080")
    await cluster.a_broker("b3:8080")
    await first.report(a_record("b1:8080", owned, agent_url=first.url, cpu=80.0))
    await eventually(lambda: node.node.intake.reports_applied == 4)
    return node


async def explained(node: RunningNode, path: str) -> Any:  # noqa: ANN401 - JSON
    reply = await node.get(f"{EXPLAIN}/{path}")
    assert reply.status == 200, reply
    return reply.json()


async def test_bundle_explanation_has_inputs_and_their_ages(cluster: Cluster, node: RunningNode) -> None:
    body = await explained(node, f"bundle/{LOWEST}")
    BundleExplanation.model_validate(body)
    assert body["inputs"]["epoch"] == 1
    assert body["inputs"]["revision"] == node.node.mirror.model.revision
    assert body["inputs"]["reportAgeS"] == body["inputs"]["sampleAgeS"] > 0
    assert body["ownership"]["owner"] == "b1:8080"
    assert body["ownership"]["incarnation"] == cluster.brokers["b1:8080"].registration.incarnation
    assert 0 <= body["ownership"]["ageS"] < 60
    assert (body["load"]["shortSamples"], body["load"]["longSamples"]) == (1, 1)
    assert body["load"]["shortTerm"]["msgRateIn"] == 100.0
    assert [decision["kind"] for decision in body["decisions"]] == ["assign"]


async def test_bundle_explanation_has_destination_and_runner_up_of_a_move(node: RunningNode) -> None:
    body = await explained(node, f"bundle/{LOWEST}")
    assert body["shedding"]["wouldMove"]
    assert body["shedding"]["destination"] in ("b2:8080", "b3:8080")
    assert body["shedding"]["brokerVerdicts"][0]["reason"] == "broker_above_average"
    placement = body["placement"]
    assert {placement["chosen"], placement["runnerUp"]["why"]["broker"]} == {"b2:8080", "b3:8080"}
    assert placement["standings"][0]["brokerId"] == "b1:8080"
    assert len(placement["standings"]) == 3


async def test_bundle_explanation_names_the_pin_and_how_to_remove_it(node: RunningNode) -> None:
    assert (await node.put(f"/loadbalance/v1/bundles/{LOWEST}/pin", json={"broker": "b1:8080"})).status == 204
    shedding = (await explained(node, f"bundle/{LOWEST}"))["shedding"]
    assert not shedding["wouldMove"]
    assert shedding["staysByRule"]
    assert shedding["stays"]["sentence"] == "No move because it is pinned to b1:8080"
    assert shedding["stays"]["change"] == "unpin it"


async def test_bundle_without_an_owner_is_explained(node: RunningNode) -> None:
    body = await explained(node, f"bundle/{HIGHEST}")
    assert body["ownership"]["state"] == "Free"
    assert body["ownership"]["ageS"] is None
    assert body["inputs"]["reportAgeS"] is None
    assert body["shedding"]["stays"]["reason"] == "no_owner"
    assert body["placement"]["chosen"] in ("b2:8080", "b3:8080")
    assert body["placement"]["dropped"] == {"owns_more_of_namespace": 1}


async def test_broker_explanation_has_thresholds_and_moves(node: RunningNode) -> None:
    body = await explained(node, "broker/b1:8080")
    BrokerExplanation.model_validate(body)
    assert body["resources"]["cpu"] == 80.0
    assert body["thresholds"]["loadBalancerBrokerThresholdShedderPercentage"] == pytest.approx(10 * 80 / 3 / 50)
    assert [move["bundle"] for move in body["wouldShed"]]
    assert body["margin"] is None
    assert "best possible" in body["certificate"]["sentence"]
    assert (body["takesBundles"], body["isOverloaded"]) == (True, False)


async def test_broker_explanation_has_the_margin_to_shedding(node: RunningNode) -> None:
    body = await explained(node, "broker/b2:8080")
    assert body["wouldShed"] == []
    assert body["margin"]["why"]["usage_points"] == pytest.approx(48.0, abs=0.01)
    assert body["margin"]["sentence"] == "A round would shed if usage were 48 points higher"


async def test_excluded_broker_takes_no_bundles_and_states_why(node: RunningNode) -> None:
    await node.put("/loadbalance/v1/brokers/b2:8080/exclusion")
    body = await explained(node, "broker/b2:8080")
    assert not body["takesBundles"]
    assert body["obstacles"][0]["sentence"] == "Not on b2:8080 because an operator has excluded it"
    why = await explained(node, f"why-not?bundle={LOWEST}&broker=b2:8080")
    assert why["answer"]["change"] == "remove its exclusion"


async def test_why_not_answers_for_each_broker(node: RunningNode) -> None:
    bodies = [await explained(node, f"why-not?bundle={LOWEST}&broker={broker}:8080") for broker in ("b2", "b3")]
    for body in bodies:
        WhyNotExplanation.model_validate(body)
    assert {body["answer"]["reason"] for body in bodies} == {"would_be_chosen", "as_good_as_chosen"}
    mine = await explained(node, f"why-not?bundle={LOWEST}&broker=b1:8080")
    assert mine["answer"]["reason"] == "owns_it_already"


async def test_explaining_changes_no_state_and_no_decision(node: RunningNode) -> None:
    planner = node.node.planner
    memory, chance = planner.memory, planner._rng.bit_generator.state
    await asyncio.gather(
        *(explained(node, path) for path in (f"bundle/{LOWEST}", "broker/b1:8080", f"bundle/{HIGHEST}") * 3)
    )
    assert planner.memory == memory
    assert planner._rng.bit_generator.state == chance
    expected = (await explained(node, f"bundle/{HIGHEST}"))["placement"]["chosen"]
    number = 0
    while node.bundle_of(f"persistent://t/ns/y{number}") != HIGHEST:
        number += 1
    assert (await node.lookup(f"persistent://t/ns/y{number}")).json()["brokerId"] == expected


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("bundle/t/other/0x00000000_0x40000000", 404),
        ("bundle/t/ns/0x00000000_0x20000000", 412),
        ("bundle/t/ns/everything", 412),
        ("broker/b9:8080", 404),
        ("broker/nobody", 412),
        ("why-not", 400),
        (f"why-not?bundle={LOWEST}", 400),
        ("why-not?broker=b1:8080", 400),
        ("why-not?bundle=&broker=b1:8080", 400),
        (f"why-not?bundle={LOWEST}&broker=b9:8080", 404),
        ("why-not?bundle=t/other/0x00000000_0x40000000&broker=b1:8080", 404),
        ("why-not?bundle=t/ns/0x00000000_0x20000000&broker=b1:8080", 412),
        ("why-not?bundle=everything&broker=b1:8080", 412),
    ],
)
async def test_invalid_question_is_an_error(node: RunningNode, path: str, status: int) -> None:
    reply = await node.get(f"{EXPLAIN}/{path}")
    assert reply.status == status
    assert reply.reason


async def test_unreadable_broker_is_503_and_no_destination(cluster: Cluster, node: RunningNode) -> None:
    await register(cluster.store, "b4:8080", b"{")
    await eventually(lambda: "b4:8080" in node.node.mirror.registrations)
    reply = await node.get(f"{EXPLAIN}/broker/b4:8080")
    assert reply.status == 503
    assert reply.reason == "the record of broker b4:8080 cannot be read"
    answer = (await explained(node, f"why-not?bundle={LOWEST}&broker=b4:8080"))["answer"]
    assert answer["reason"] == "not_registered"


async def test_standby_forwards_the_question_to_the_leader() -> None:
    async with Cluster() as cluster:
        leader, standby = await cluster.start_nodes(2)
        await cluster.a_broker("b1:8080")
        await cluster.a_namespace()
        assert leader.leads
        for path in (f"bundle/{LOWEST}", "broker/b1:8080", f"why-not?bundle={LOWEST}&broker=b1:8080"):
            assert (await explained(standby, path))["inputs"]["epoch"] == 1
