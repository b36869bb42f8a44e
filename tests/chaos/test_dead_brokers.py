"""A broker whose znode is deleted, created again, or becomes unreadable."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from support.local_cluster import TOPIC, LocalCluster
from support.waiting import eventually

from loadmanager.core.domain.ownership import OwnershipState
from loadmanager.wire.broker_data import encode_local_broker_data

pytestmark = pytest.mark.zookeeper

OWNED = OwnershipState.OWNED


async def test_bundle_of_a_dead_broker_is_placed_at_its_next_lookup_in_one_write(cluster: LocalCluster) -> None:
    dead = await cluster.owner()
    await dead.die()
    await eventually(lambda: len(cluster.node.mirror.brokers) == 2)
    assert await cluster.owner() is not dead
    assert cluster.ownership.version == 2
    assert [entry["source"] for entry in cluster.journalled("assign")] == [None, dead.broker_id]


async def test_re_registered_broker_owns_nothing(cluster: LocalCluster) -> None:
    broker = await cluster.owner()
    before = broker.incarnation
    others = [each for each in cluster.brokers if each is not broker]
    await broker.register_again()
    await eventually(lambda: broker.incarnation in cluster.incarnations())
    assert not broker.serves(cluster.bundle)
    for other in others:
        await other.die()
    assert await cluster.owner() is broker
    assert cluster.ownership.owner is not None
    assert cluster.ownership.owner.incarnation == broker.incarnation > before


async def test_broker_with_an_unreadable_record_keeps_its_bundles(cluster: LocalCluster) -> None:
    broker = await cluster.owner()
    await broker.publish(b"\x00 no record")
    await eventually(lambda: cluster.node.mirror.faults, what="the fault is listed")
    assert await cluster.lookup() == (200, (await cluster.lookup())[1])
    assert await cluster.owner() is broker
    assert (cluster.ownership.state, cluster.ownership.version) == (OWNED, 1)
    await broker.publish(encode_local_broker_data(broker.record(1.0)))
    await eventually(lambda: not cluster.node.mirror.faults, what="the fault is mended")
    assert cluster.ownership.version == 1


async def test_unreadable_broker_record_frees_no_bundle_after_a_reread(cluster: LocalCluster) -> None:
    broker = await cluster.owner()
    await broker.publish(b"[]")
    await eventually(lambda: cluster.node.mirror.faults)
    cluster.node.intake.mark_dirty("/loadbalance")
    await cluster.node.intake.settled()
    assert cluster.node.mirror.faults, "a full reread does not clear the fault"
    assert (await cluster.lookup(TOPIC))[0] == 200
    assert (cluster.ownership.state, cluster.ownership.version) == (OWNED, 1)


async def test_lookup_without_brokers_is_refused_until_one_comes_back(cluster: LocalCluster) -> None:
    await cluster.owner()
    for broker in cluster.brokers[1:]:
        await broker.die()
    survivor = cluster.brokers[0]
    await survivor.register_again()
    await eventually(lambda: cluster.incarnations() == {survivor.incarnation})
    assert await cluster.owner() is survivor
    await survivor.die()
    await eventually(lambda: not cluster.node.mirror.brokers)
    status, body = await cluster.lookup()
    assert status == 503
    assert "broker" in body["reason"]


async def test_lookups_are_answered_during_a_rolling_restart(cluster: LocalCluster) -> None:
    """Two of three brokers are always registered; losing the chosen one refuses no lookup."""
    statuses: list[int] = []

    async def ask(number: int) -> None:
        while True:
            statuses.append((await cluster.lookup(f"tenant/ns/{number}"))[0])

    asking = [asyncio.create_task(ask(number)) for number in range(8)]
    try:
        for _ in range(5):
            answered = len(statuses)
            for broker in cluster.brokers:
                await broker.register_again()
            await eventually(partial(is_longer_than, statuses, answered + 10))
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    assert set(statuses) == {200}


def is_longer_than(statuses: list[int], length: int) -> bool:
    return len(statuses) > length
