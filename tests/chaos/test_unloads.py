"""Unloads that fail at each step: the bundle ends with one owner or none, and is served."""

from __future__ import annotations

import asyncio

import pytest
from support.local_cluster import LocalCluster
from support.scripted_broker import ScriptedBroker
from support.waiting import eventually

from loadmanager.core.domain.ownership import OwnershipState

pytestmark = pytest.mark.zookeeper

IMPATIENT = pytest.mark.parametrize("cluster", [{"namespaceBundleUnloadingTimeoutMs": 6_000}], indirect=True)
"""Unanswered requests are soon repeated."""
GIVES_UP = {"namespaceBundleUnloadingTimeoutMs": 1_500}

FREE, OWNED, RELEASING = OwnershipState.FREE, OwnershipState.OWNED, OwnershipState.RELEASING


async def begin_unload(cluster: LocalCluster) -> tuple[ScriptedBroker, ScriptedBroker, asyncio.Task[int]]:
    """Begin an unload that the source holds; return source, destination, and the request."""
    source = await cluster.owner()
    target = cluster.other_than(source)
    source.may_obey.clear()
    unloading = asyncio.create_task(cluster.unload(target))
    await eventually(lambda: source.unloads)
    return source, target, unloading


async def test_obedient_broker_frees_the_bundle(cluster: LocalCluster) -> None:
    source = await cluster.owner()
    assert await cluster.unload() == 204
    await cluster.reaches(FREE)
    assert not source.serves(cluster.bundle)
    assert [(call.epoch, call.version, call.status) for call in source.unloads] == [(1, 2, 204)]
    story = await cluster.story()
    assert (story[0], story[-1]) == (("Owned", source.broker_id, "lookup"), ("Free", None, "admin_unload"))
    await cluster.owner()


async def test_obedient_broker_hands_the_bundle_to_the_destination(cluster: LocalCluster) -> None:
    source = await cluster.owner()
    target = cluster.other_than(source)
    assert await cluster.unload(target) == 204
    await cluster.reaches(OWNED, target)
    assert await cluster.owner() is target
    assert [entry["destination"] for entry in cluster.journalled("unloaded")] == [target.broker_id]


async def test_transfer_to_the_owner_changes_nothing(cluster: LocalCluster) -> None:
    source = await cluster.owner()
    assert await cluster.unload(source) == 204
    assert (cluster.ownership.version, source.unloads) == (1, [])


@IMPATIENT
async def test_unload_with_a_lost_answer_is_repeated_and_executed_once(cluster: LocalCluster) -> None:
    source = await cluster.owner()
    source.may_answer.clear()
    unloading = asyncio.create_task(cluster.unload())
    await eventually(lambda: len(source.unloads) >= 2, what="the call is repeated")
    source.may_answer.set()
    assert await unloading == 204
    assert {(call.epoch, call.version, call.status) for call in source.unloads} == {(1, 2, 204)}
    assert cluster.ownership.version == 3


@pytest.mark.parametrize("cluster", [GIVES_UP], indirect=True)
@pytest.mark.parametrize("conduct", ["never answers", "refuses", "is not there"])
async def test_broker_that_does_not_release_keeps_the_bundle(cluster: LocalCluster, conduct: str) -> None:
    source = await cluster.owner()
    target = cluster.other_than(source)
    if conduct == "never answers":
        source.may_obey.clear()
    elif conduct == "refuses":
        source.unload_status = 503
    else:
        await source.stop()
    assert await cluster.unload(target) == 504
    await cluster.reaches(OWNED, source)
    assert cluster.ownership.version == 3
    assert (await cluster.story())[1:] == [
        ("Releasing", source.broker_id, "admin_unload"),
        ("Owned", source.broker_id, "unload_failed"),
    ]
    (failure,) = cluster.journalled("unload_failed")
    assert failure["why"]["error"]
    assert await metric(cluster, "loadmanager_unloads_failed_total") == 1.0
    assert await cluster.owner() is source
    assert not target.serves(cluster.bundle)


async def test_failed_unload_can_be_repeated(cluster: LocalCluster) -> None:
    source = await cluster.owner()
    source.may_obey.clear()
    cluster.node.live.apply({key: str(value) for key, value in GIVES_UP.items()})
    assert await cluster.unload() == 504
    source.may_obey.set()
    cluster.node.live.apply({})
    assert await cluster.unload() == 204
    await cluster.reaches(FREE)
    assert cluster.ownership.version == 5


async def test_destination_takes_over_when_the_source_dies(cluster: LocalCluster) -> None:
    source, target, unloading = await begin_unload(cluster)
    await source.die()
    assert await unloading == 204
    await cluster.reaches(OWNED, target)
    assert await cluster.owner() is target


async def test_dead_source_without_a_destination_leaves_the_bundle_free(cluster: LocalCluster) -> None:
    source = await cluster.owner()
    source.may_obey.clear()
    unloading = asyncio.create_task(cluster.unload())
    await eventually(lambda: source.unloads)
    await source.die()
    assert await unloading == 204
    await cluster.reaches(FREE)
    assert await cluster.owner() is not source


async def test_bundle_is_freed_when_the_destination_dies(cluster: LocalCluster) -> None:
    source, target, unloading = await begin_unload(cluster)
    await target.die()
    await eventually(lambda: len(cluster.node.mirror.brokers) == 2)
    source.may_obey.set()
    assert await unloading == 409
    assert (await cluster.story())[-1] == ("Free", None, "admin_unload")
    assert await cluster.owner() is not target


async def test_third_broker_gets_the_bundle_when_source_and_destination_die(cluster: LocalCluster) -> None:
    source, target, unloading = await begin_unload(cluster)
    third = cluster.other_than(source, target)
    await asyncio.gather(source.die(), target.die())
    assert await unloading in (204, 409), "it depends on whose end the leader sees first"
    assert await cluster.owner() is third


async def test_re_registered_destination_does_not_get_the_bundle(cluster: LocalCluster) -> None:
    source, target, unloading = await begin_unload(cluster)
    before = target.incarnation
    await target.register_again()
    assert target.incarnation > before
    await eventually(lambda: target.incarnation in [r.incarnation for r in cluster.node.mirror.registrations.values()])
    source.may_obey.set()
    assert await unloading == 409
    assert cluster.ownership.state is FREE
    assert not target.serves(cluster.bundle)


@IMPATIENT
async def test_lookups_of_a_releasing_bundle_wait_for_its_new_owner(cluster: LocalCluster) -> None:
    source, target, unloading = await begin_unload(cluster)
    lookups = [asyncio.create_task(cluster.lookup()) for _ in range(10)]
    await eventually(lambda: len(source.unloads) >= 2, what="some time passes: the call is repeated")
    source.may_obey.set()
    assert await unloading == 204
    answers = await asyncio.gather(*lookups)
    assert {(status, body["brokerId"]) for status, body in answers} == {(200, target.broker_id)}


@IMPATIENT
async def test_unload_of_a_releasing_bundle_shares_the_first_outcome(cluster: LocalCluster) -> None:
    source = await cluster.owner()
    source.may_obey.clear()
    first = asyncio.create_task(cluster.unload())
    await eventually(lambda: source.unloads)
    others = [asyncio.create_task(cluster.unload()) for _ in range(3)]
    await eventually(lambda: len(source.unloads) >= 2, what="some time passes: the call is repeated")
    source.may_obey.set()
    assert await asyncio.gather(first, *others) == [204, 204, 204, 204]
    assert cluster.ownership.version == 3


async def test_concurrent_unloads_conflict_or_share_the_outcome(cluster: LocalCluster) -> None:
    await cluster.owner()
    statuses = await asyncio.gather(*(cluster.unload() for _ in range(5)))
    assert 204 in statuses
    assert set(statuses) <= {204, 409}
    assert cluster.ownership.version == 3


async def metric(cluster: LocalCluster, name: str) -> float:
    async with cluster.http.get(f"{cluster.local.url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    (value,) = [float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{")]
    return value
