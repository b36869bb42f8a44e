"""Hold-off: the bundles of a restarting broker wait for it and return to it."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from support.nodes import Cluster, RunningNode, a_leader, topics_by_bundle
from support.waiting import eventually

from loadmanager.core.domain.names import BrokerId, TopicName
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.reasons import PlacementReason
from loadmanager.errors import HeldForOwnerError

B1 = BrokerId("b1:8080")
TOPIC = "persistent://t/ns/x"


async def hold_off(leader: RunningNode, for_s: float) -> None:
    until_s = time.time() + for_s
    await leader.node.operators.update_controls(lambda controls: replace(controls, held_off={B1: until_s}))


async def all_owned_by_b1(cluster: Cluster, leader: RunningNode) -> list[str]:
    """Give all bundles of t/ns to b1, then start b2."""
    await cluster.a_broker("b1:8080")
    bundles = await cluster.a_namespace("t/ns", bundles={"numBundles": 4})
    for topic in topics_by_bundle(leader, "t/ns", 4).values():
        assert (await leader.lookup(topic)).status == 200
    await cluster.a_broker("b2:8080")
    return bundles


async def let_b1_leave(cluster: Cluster, leader: RunningNode) -> None:
    await cluster.brokers.pop("b1:8080").leave()
    await eventually(lambda: "b1:8080" not in leader.node.mirror.registrations)


def owners(leader: RunningNode, bundles: list[str]) -> set[Registration | None]:
    return {leader.ownership(bundle).owner for bundle in bundles}


async def test_lookups_fail_with_the_remaining_hold_and_owners_are_kept() -> None:
    async with a_leader() as (cluster, leader):
        bundles = await all_owned_by_b1(cluster, leader)
        before = owners(leader, bundles)
        await hold_off(leader, 90.0)
        await let_b1_leave(cluster, leader)
        reply = await leader.lookup(TOPIC)
        left_s = int(reply.headers["Retry-After"])
        assert (reply.status, 60 < left_s <= 90) == (503, True)
        said = [f"waits for b1:8080, which is held off, for {left_s - less} s at most" for less in (0, 1)]
        assert any(text in reply.reason for text in said), reply.reason
        leader.node.reconciler.wake()
        follower = await cluster.start_node()
        reply = await follower.lookup(TOPIC)
        assert (reply.status, int(reply.headers["Retry-After"]) > 60) == (503, True)
        assert owners(leader, bundles) == before


async def test_returning_broker_gets_its_bundles_without_lookups() -> None:
    async with a_leader() as (cluster, leader):
        bundles = await all_owned_by_b1(cluster, leader)
        await hold_off(leader, 90.0)
        await let_b1_leave(cluster, leader)
        back = await cluster.a_broker("b1:8080")
        await eventually(lambda: owners(leader, bundles) == {back.registration})
        await eventually(lambda: leader.node.decision_log.recent(1)[0]["reason"] == PlacementReason.HELD_FOR_OWNER)
        (entry,) = leader.node.decision_log.recent(1)
        assert (entry["reason"], entry["destination"]) == (PlacementReason.HELD_FOR_OWNER, "b1:8080")
        assert entry["sentence"] == "Placed on b1:8080 because it was held for that broker during its absence"


async def test_lookup_after_the_return_finds_the_broker_at_once() -> None:
    async with a_leader() as (cluster, leader):
        await all_owned_by_b1(cluster, leader)
        await hold_off(leader, 90.0)
        await let_b1_leave(cluster, leader)
        back = await cluster.a_broker("b1:8080")
        assert (await leader.node.lookups.lookup(TopicName.parse(TOPIC))).registration == back.registration


async def test_broker_that_re_registers_quickly_keeps_its_bundles() -> None:
    async with a_leader() as (cluster, leader):
        bundles = await all_owned_by_b1(cluster, leader)
        await hold_off(leader, 90.0)
        await cluster.brokers["b1:8080"].leave()
        back = await cluster.a_broker("b1:8080")
        await eventually(lambda: owners(leader, bundles) == {back.registration})


@pytest.mark.parametrize("how", ["the time is over", "the operator lets go"])
async def test_bundles_are_placed_elsewhere_after_the_hold(how: str) -> None:
    async with a_leader() as (cluster, leader):
        bundles = await all_owned_by_b1(cluster, leader)
        await hold_off(leader, 0.3 if how == "the time is over" else 90.0)
        await let_b1_leave(cluster, leader)
        if how == "the operator lets go":
            assert (await leader.ask("DELETE", "/loadbalance/v1/brokers/b1:8080/hold-off")).status == 204
        await eventually(lambda: not leader.node.mirror.holds())
        assert (await leader.lookup(TOPIC)).json()["brokerId"] == "b2:8080"
        assert {leader.ownership(bundle).version for bundle in bundles} == {1, 2}, "only one bundle was looked up"


async def test_bundles_of_other_brokers_do_not_wait() -> None:
    async with a_leader() as (cluster, leader):
        await all_owned_by_b1(cluster, leader)
        until_s = time.time() + 90
        await leader.node.operators.update_controls(
            lambda controls: replace(controls, held_off={BrokerId("b9:8080"): until_s})
        )
        await let_b1_leave(cluster, leader)
        assert (await leader.lookup(TOPIC)).json()["brokerId"] == "b2:8080"


async def test_operator_may_move_a_held_bundle() -> None:
    async with a_leader() as (cluster, leader):
        (bundle, *_) = await all_owned_by_b1(cluster, leader)
        await hold_off(leader, 90.0)
        await let_b1_leave(cluster, leader)
        destination = cluster.brokers["b2:8080"].registration
        await leader.unload(bundle, destination)
        assert leader.ownership(bundle).owner == destination


async def test_lookup_of_a_held_bundle_fails_with_the_remaining_time() -> None:
    async with a_leader() as (cluster, leader):
        await all_owned_by_b1(cluster, leader)
        await hold_off(leader, 90.0)
        await let_b1_leave(cluster, leader)
        with pytest.raises(HeldForOwnerError) as raised:
            await leader.node.lookups.lookup(TopicName.parse(TOPIC))
        assert 60 < raised.value.retry_after_s <= 90
