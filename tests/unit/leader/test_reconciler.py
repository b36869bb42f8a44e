"""What records say is unfinished is finished, whoever left it so."""

from __future__ import annotations

import pytest
from support.nodes import Cluster, RunningNode, a_leader
from support.registrations import a_record, register
from support.waiting import eventually

from loadmanager.core.names import BundleName, TopicName
from loadmanager.core.ownership import Ownership, OwnershipState, Registration, Stamp, release
from loadmanager.core.plan import Reason
from loadmanager.leader.ledger import Transition
from loadmanager.store import paths
from loadmanager.store.base import Delete

TOPIC = TopicName.parse("persistent://t/ns/x")


async def _owned(cluster: Cluster, leader: RunningNode) -> str:
    await cluster.a_broker("b1:8080")
    await cluster.a_namespace("t/ns", bundles={"numBundles": 1})
    await leader.node.lookup(TOPIC)
    return leader.bundle_of(str(TOPIC))


async def test_the_bundles_of_a_broker_that_left_become_free() -> None:
    async with a_leader() as (cluster, leader):
        bundle = await _owned(cluster, leader)
        await cluster.brokers["b1:8080"].leave()
        await eventually(lambda: leader.ownership(bundle).state is OwnershipState.FREE)
        assert leader.ownership(bundle).reason == "owner_gone"
        await eventually(lambda: "freed" in [entry["kind"] for entry in leader.node.journal.recent(9)])
        (newest, *_) = leader.node.journal.recent(1)
        assert (newest["kind"], newest["source"]) == ("freed", "b1:8080")


async def test_they_are_placed_at_once_where_that_is_asked_for() -> None:
    async with a_leader(reassign_bundles_of_dead_brokers_at_once=True) as (cluster, leader):
        bundle = await _owned(cluster, leader)
        other = await cluster.a_broker("b2:8080")
        await cluster.brokers["b1:8080"].leave()
        await eventually(lambda: leader.ownership(bundle).owner == other.registration)


async def test_bundles_that_were_freed_while_no_broker_was_there_are_placed_when_one_registers() -> None:
    async with a_leader(reassign_bundles_of_dead_brokers_at_once=True) as (cluster, leader):
        bundle = await _owned(cluster, leader)
        await cluster.brokers["b1:8080"].leave()
        await eventually(lambda: leader.ownership(bundle).state is OwnershipState.FREE)
        other = await cluster.a_broker("b2:8080")
        await eventually(lambda: leader.ownership(bundle).owner == other.registration)


async def test_a_bundle_that_nobody_ever_owned_or_that_an_operator_unloaded_waits_for_its_lookup_all_the_same() -> None:
    async with a_leader(reassign_bundles_of_dead_brokers_at_once=True) as (cluster, leader):
        bundle = await _owned(cluster, leader)
        await leader.node.unload_bundle(BundleName.parse(bundle), None, Reason.ADMIN_UNLOAD)
        (unowned,) = await cluster.a_namespace("t/other", bundles={"numBundles": 1})
        await cluster.a_broker("b2:8080")
        leader.node.reconciler.wake()
        await leader.node.lookup(TopicName.parse("persistent://t/ns/x"))
        assert leader.ownership(unowned).version == 0
        assert leader.ownership(bundle).version == 4, "owned, released, freed, and owned by its lookup"


async def test_a_broker_that_registers_again_has_lost_its_bundles() -> None:
    async with a_leader() as (cluster, leader):
        bundle = await _owned(cluster, leader)
        store = cluster.brokers["b1:8080"].store
        assert store is not None
        await store.commit([Delete(paths.broker("b1:8080"))])
        await register(store, "b1:8080", a_record())
        await eventually(lambda: leader.ownership(bundle).state is OwnershipState.FREE)


@pytest.mark.parametrize("owner_lives", [True, False])
async def test_a_release_that_a_former_leader_began_is_finished(owner_lives: bool) -> None:  # noqa: FBT001 - a case
    async with Cluster() as cluster:
        first = await cluster.start_leader()
        bundle = await _owned(cluster, first)
        broker = cluster.brokers["b1:8080"]
        name = BundleName.parse(bundle)
        target = await cluster.a_broker("b2:8080")
        broker.status = 503
        await first.node.ledger.apply("t/ns", name.range, _releasing_to(target.registration), Reason.ADMIN_UNLOAD.value)
        await first.stop()
        cluster.nodes.clear()
        if owner_lives:
            broker.status = 204
        else:
            await broker.leave()
        second = await cluster.start_leader()
        await eventually(lambda: second.ownership(bundle).state is OwnershipState.OWNED)
        assert second.ownership(bundle).owner == target.registration
        assert second.ownership(bundle).epoch == 2


def _releasing_to(target: Registration) -> Transition:
    def begin(current: Ownership, stamp: Stamp) -> Ownership:
        return release(current, target, stamp)

    return begin
