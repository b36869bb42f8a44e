"""A bundle that brokers die of is given to nobody, whoever leads, until an operator lifts it."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs
from support.nodes import Cluster, RunningNode, a_leader, topics_by_bundle
from support.registrations import a_record, load_of
from support.waiting import eventually

from loadmanager.core.names import BrokerId
from loadmanager.core.reasons import PoisonReason

TOPIC = "persistent://t/ns/x"
POISON = "/loadbalance/v1/poison"
THREE = {"loadBalancerPoisonBundleDeaths": 3}


async def kill_owner(cluster: Cluster, node: RunningNode, topic: str = TOPIC) -> str:
    """Look the topic up, and have the owner of its bundle leave; who it was."""
    reply = await node.lookup(topic)
    assert reply.status == 200, reply.reason
    owner: str = reply.json()["brokerId"]
    await cluster.brokers.pop(owner).leave()
    await eventually(lambda: BrokerId(owner) not in node.node.view.registrations, what="its registration is gone")
    return owner


async def kill_owners(cluster: Cluster, node: RunningNode, deaths: int) -> list[str]:
    return [await kill_owner(cluster, node) for _ in range(deaths)]


async def brokers(cluster: Cluster, *numbers: int) -> None:
    for number in numbers:
        await cluster.a_broker(f"b{number}:8080")


async def test_after_three_deaths_it_is_given_to_nobody_and_all_else_goes_on() -> None:
    async with a_leader(**THREE) as (cluster, node):
        await brokers(cluster, 1, 2, 3, 4)
        bundles = await cluster.a_namespace(bundles={"numBundles": 4})
        bundle = node.bundle_of(TOPIC)
        with capture_logs() as logs:
            owners = await kill_owners(cluster, node, 3)
        reply = await node.lookup(TOPIC)
        assert reply.status == 503
        shown = ", ".join(f"{owner} after 0 s" for owner in owners)
        assert reply.reason == (
            f"bundle {bundle}: Given to nobody because its last 3 owners died soon after they got it"
            f" (loadBalancerPoisonBundleSeconds 120): {shown}"
        )
        (alarm,) = [entry for entry in logs if entry["event"] == "poison_bundle"]
        assert (alarm["log_level"], alarm["bundle"]) == ("error", bundle)
        for other in bundles:
            if other != bundle:
                assert (await node.node.assigner.request(other)).owner is not None

        answer = (await node.get(POISON)).json()
        assert [each["bundle"] for each in answer["bundles"]] == [bundle]
        assert [death["broker"] for death in answer["bundles"][0]["deaths"]] == owners
        assert bundle in answer["bundles"][0]["remedy"]
        assert "loadmanager_poison_bundles{" in (await node.get("/metrics")).body.decode()
        decisions = (await node.get(f"/loadbalance/v1/decisions?subject={bundle}")).json()["decisions"]
        assert {each["reason"] for each in decisions} >= {PoisonReason.POISON_BUNDLE.value}
        await node.node.desk.shed()
        chosen, verdict = await node.node.desk.choose(bundle)
        assert (chosen, verdict.verdict) == (None, PoisonReason.POISON_BUNDLE), "nor does anything else place it"

        assert (await node.ask("DELETE", f"{POISON}?bundle={bundle}")).status == 204
        assert (await node.lookup(TOPIC)).status == 200
        assert (await node.get(POISON)).json() == {"bundles": [], "suspects": 0}
        assert (await node.ask("DELETE", POISON)).status == 204
        assert (await node.ask("DELETE", f"{POISON}?bundle=x")).status == 412


async def test_it_can_be_split_where_it_has_an_owner_and_its_parts_are_other_bundles() -> None:
    async with a_leader(loadBalancerPoisonBundleBroker="b9:8080", loadBalancerPoisonBundleDeaths=1) as (cluster, node):
        await brokers(cluster, 1, 2, 9)
        assert (await node.put("/loadbalance/v1/brokers/b9:8080/exclusion")).status == 204
        await cluster.a_namespace()
        bundle = node.bundle_of(TOPIC)
        await kill_owner(cluster, node)
        split = f"/admin/v2/namespaces/{bundle}/split?splitAlgorithmName=range_equally_divide"
        reply = await node.put(split)
        assert reply.status == 204, reply.reason
        part = node.bundle_of(TOPIC)
        assert part != bundle
        assert node.node.desk.poison.verdicts() == {}
        assert (await node.put(f"/admin/v2/namespaces/{part}/unload")).status == 204
        assert await kill_owner(cluster, node) != "b9:8080"
        assert node.node.desk.poison.verdicts().keys() == {part}


async def test_the_next_leader_knows_of_it_and_of_those_it_was_suspected_for() -> None:
    async with Cluster() as cluster:
        first = await cluster.start_leader(**THREE)
        await brokers(cluster, 1, 2, 3, 4, 5)
        await cluster.a_namespace()
        await kill_owners(cluster, first, 2)
        await first.node.persistence.flush_memory()
        second = await cluster.start_node(**THREE)
        await first.stop()
        await eventually(lambda: second.leads)
        owner = await kill_owner(cluster, second)
        assert len(second.node.desk.poison.memory.poison) == 1, owner
        await second.node.persistence.flush_memory()
        third = await cluster.start_node(**THREE)
        await second.stop()
        await eventually(lambda: third.leads)
        assert (await third.lookup(TOPIC)).status == 503


async def test_a_death_while_nobody_leads_counts() -> None:
    async with Cluster() as cluster:
        first = await cluster.start_leader(**THREE)
        await brokers(cluster, 1, 2, 3)
        await cluster.a_namespace()
        reply = await first.lookup(TOPIC)
        await first.stop()
        await cluster.brokers.pop(reply.json()["brokerId"]).leave()
        second = await cluster.start_leader(**THREE)
        suspects = second.node.desk.poison.memory.suspects
        assert [len(each.deaths) for each in suspects.values()] == [1]


async def test_it_is_given_to_the_broker_that_is_there_for_it_and_stays_there() -> None:
    async with a_leader(loadBalancerPoisonBundleBroker="b9:8080", loadBalancerPoisonBundleDeaths=1) as (cluster, node):
        await brokers(cluster, 1, 2, 3)
        await cluster.a_namespace()
        topics = topics_by_bundle(node, "t/ns", 2)
        for topic in topics.values():
            await kill_owner(cluster, node, topic)
        assert [(await node.lookup(topic)).status for topic in topics.values()] == [503, 503], "until that one is there"
        kept = await cluster.a_broker("b9:8080")
        for topic in topics.values():
            assert (await node.lookup(topic)).json()["brokerId"] == "b9:8080"
        loads = dict.fromkeys(topics, load_of(50.0))
        await kept.report(a_record("b9:8080", loads, agent_url=kept.url, cpu=99))
        await eventually(lambda: node.node.desk.snapshot().bundles.movable.sum() == 2)
        plan = await node.node.desk.shed()
        assert plan.steps == ()
        assert {each.subject for each in plan.verdicts if each.verdict is PoisonReason.POISON_BUNDLE} == set(topics)
        explained = (await node.get(f"/loadbalance/v1/explain/bundle/{next(iter(topics))}")).json()
        assert explained["shedding"]["stays"]["reason"] == "poison_bundle"


@pytest.mark.parametrize("how", ["drain", "hold-off"])
async def test_a_broker_that_is_stopped_on_purpose_says_nothing_of_its_bundles(how: str) -> None:
    async with a_leader(**THREE) as (cluster, node):
        await brokers(cluster, 1, 2)
        await cluster.a_namespace()
        owner = (await node.lookup(TOPIC)).json()["brokerId"]
        body = {"json": {"forS": 60}} if how == "hold-off" else {}
        assert (await node.put(f"/loadbalance/v1/brokers/{owner}/{how}", **body)).status in (202, 204)
        await cluster.brokers.pop(owner).leave()
        await eventually(lambda: BrokerId(owner) not in node.node.view.registrations)
        assert node.node.desk.poison.memory.suspects == {}


async def test_when_too_many_bundles_die_with_their_brokers_that_is_said_and_none_is_poison() -> None:
    async with a_leader(loadBalancerPoisonBundleDeaths=1, loadBalancerMaxPoisonBundles=3) as (cluster, node):
        await brokers(cluster, 1)
        bundles = await cluster.a_namespace(bundles={"numBundles": 4})
        for bundle in bundles:
            await node.node.assigner.request(bundle)
        with capture_logs() as logs:
            await cluster.brokers.pop("b1:8080").leave()
            await eventually(lambda: node.node.desk.poison.memory.suspects)
        assert node.node.desk.poison.memory.poison == {}
        (alarm,) = [entry for entry in logs if entry["event"] == "too_many_to_be_poison"]
        assert alarm["sentence"] == (
            "No bundle is poison for the death of b1:8080: of 4 bundles the last owners died soon"
            " (loadBalancerMaxPoisonBundles 3), so the cause is another"
        )
