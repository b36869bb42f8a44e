from __future__ import annotations

import asyncio

import pytest
from support.nodes import Cluster, RunningNode, a_leader
from support.registrations import a_record, register
from support.waiting import eventually

from loadmanager.core.domain.names import BrokerId, BundleName, TopicName
from loadmanager.core.domain.ownership import (
    Ownership,
    OwnershipState,
    Registration,
    Stamp,
    complete,
    release,
)
from loadmanager.core.domain.reasons import OwnershipReason
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.protocol import reconciler as reconciler_module
from loadmanager.core.protocol.state_machine import OwnerChange
from loadmanager.leader.execution.assignment_driver import AssignmentDriver
from loadmanager.leader.execution.reconciler_driver import ReconcilerDriver
from loadmanager.store import paths
from loadmanager.store.metadata_store import Delete
from loadmanager.wire.http_bodies import BUNDLE_VERSION_HEADER

TOPIC = TopicName.parse("persistent://t/ns/x")


@pytest.fixture(autouse=True)
def _nothing_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all assignments finish before bundles are freed."""
    monkeypatch.setattr(reconciler_module, "FREED_AFTER_S", 3_600.0)


async def _start_owner(cluster: Cluster, leader: RunningNode) -> str:
    await cluster.a_broker("b1:8080")
    await cluster.a_namespace("t/ns", bundles={"numBundles": 1})
    await leader.node.lookups.lookup(TOPIC)
    return leader.bundle_of(str(TOPIC))


async def test_lookup_reassigns_a_bundle_of_a_lost_broker_in_one_write() -> None:
    async with a_leader() as (cluster, leader):
        bundle = await _start_owner(cluster, leader)
        other = await cluster.a_broker("b2:8080")
        await _remove_brokers(cluster, leader, "b1:8080")
        assert leader.ownership(bundle).version == 1, "no lookup yet"
        assert (await leader.node.lookups.lookup(TOPIC)).registration == other.registration
        assert leader.ownership(bundle).version == 2
        (newest,) = leader.node.decision_log.recent(1)
        assert (newest["kind"], newest["source"], newest["destination"]) == ("assign", "b1:8080", "b2:8080")


async def test_full_restart_writes_each_bundle_once(monkeypatch: pytest.MonkeyPatch) -> None:
    may_look = _hold_scans(monkeypatch)
    async with a_leader() as (cluster, leader):
        brokers = [f"b{number}:8080" for number in range(3)]
        for broker in brokers:
            await cluster.a_broker(broker)
        topics = []
        for name in ("t/ns1", "t/ns2"):
            await cluster.a_namespace(name, bundles={"numBundles": 8})
            topics += [TopicName.parse(f"persistent://{name}/{number}") for number in range(80)]
        await asyncio.gather(*map(leader.node.lookups.lookup, topics))
        mirror = leader.node.mirror
        assert [each.version for _, _, each in mirror.ownerships()] == [1] * 16
        may_look.clear()  # otherwise a broker about to leave may get bundles if they take more than 50 ms
        await _remove_brokers(cluster, leader, *brokers)
        may_look.set()
        back = {(await cluster.a_broker(broker)).registration for broker in brokers}
        await asyncio.gather(*map(leader.node.lookups.lookup, topics))
        after = [ownership for _, _, ownership in mirror.ownerships()]
        assert {each.owner for each in after} <= back
        assert [each.version for each in after] == [2] * 16


async def test_bundles_of_a_lost_broker_without_lookups_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler_module, "FREED_AFTER_S", 0.0)
    async with a_leader() as (cluster, leader):
        await cluster.a_broker("b1:8080")
        await cluster.a_namespace("t/ns", bundles={"numBundles": 8})
        topics = [TopicName.parse(f"persistent://t/ns/{number}") for number in range(80)]
        await asyncio.gather(*map(leader.node.lookups.lookup, topics))
        entry = leader.node.mirror.namespaces["t/ns"]
        await cluster.brokers["b1:8080"].leave()
        await eventually(lambda: not leader.node.mirror.model.owners(), what="no record names an owner")
        after = [ownership for _, _, ownership in leader.node.mirror.ownerships()]
        assert {(each.state, each.reason, each.version) for each in after} == {(OwnershipState.FREE, "owner_gone", 2)}
        assert leader.node.mirror.namespaces["t/ns"].version == entry.version + 1, "one write"
        freed = [each for each in leader.node.decision_log.recent(20) if each["kind"] == "freed"]
        assert len(freed) == 8
        assert {each["source"] for each in freed} == {"b1:8080"}


async def test_nothing_is_freed_during_assignments(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, is_assigning = list[bool](), True

    def told(_: AssignmentDriver, __: float) -> bool:
        looks.append(is_assigning)
        return is_assigning

    monkeypatch.setattr(reconciler_module, "FREED_AFTER_S", 0.0)
    monkeypatch.setattr(AssignmentDriver, "is_assigning", told)
    async with a_leader() as (cluster, leader):
        bundle = await _start_owner(cluster, leader)
        await _remove_brokers(cluster, leader, "b1:8080")
        looks.clear()
        leader.node.reconciler.wake()
        await eventually(lambda: looks)
        assert leader.ownership(bundle).state is OwnershipState.OWNED
        is_assigning = False
        await eventually(lambda: leader.ownership(bundle).state is OwnershipState.FREE)


async def test_free_bundles_wait_for_their_lookup() -> None:
    async with a_leader() as (cluster, leader):
        bundle = await _start_owner(cluster, leader)
        await leader.unload(bundle)
        (unowned,) = await cluster.a_namespace("t/other", bundles={"numBundles": 1})
        await cluster.a_broker("b2:8080")
        leader.node.reconciler.wake()
        await leader.node.lookups.lookup(TopicName.parse("persistent://t/ns/x"))
        assert leader.ownership(unowned).version == 0
        assert leader.ownership(bundle).version == 4, "owned, released, freed, and assigned by its lookup"


async def test_re_registered_broker_has_lost_its_bundles() -> None:
    async with a_leader() as (cluster, leader):
        bundle = await _start_owner(cluster, leader)
        store = cluster.brokers["b1:8080"].store
        assert store is not None
        former = leader.ownership(bundle).owner
        await store.commit([Delete(paths.broker("b1:8080"))])
        await register(store, "b1:8080", a_record())
        await eventually(lambda: leader.node.mirror.registrations.get(BrokerId("b1:8080")) not in (None, former))
        assert leader.node.lookups.find_owner(TOPIC) is None
        again = (await leader.node.lookups.lookup(TOPIC)).registration
        assert (again.broker, again != former) == ("b1:8080", True)


@pytest.mark.parametrize("owner_lives", [True, False])
async def test_release_of_a_former_leader_is_finished(owner_lives: bool) -> None:  # noqa: FBT001 - a case
    async with Cluster() as cluster:
        first = await cluster.start_leader()
        bundle = await _start_owner(cluster, first)
        broker = cluster.brokers["b1:8080"]
        name = BundleName.parse(bundle)
        target = await cluster.a_broker("b2:8080")
        broker.status = 503
        await first.node.ledger.apply(
            "t/ns", name.range, _releasing_to(target.registration), OwnershipReason.ADMIN_UNLOAD.value
        )
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


async def test_release_from_a_lost_broker_completes() -> None:
    async with a_leader() as (cluster, leader):
        bundle = await _start_owner(cluster, leader)
        other = await cluster.a_broker("b2:8080")
        await _remove_brokers(cluster, leader, "b1:8080")
        begun = _releasing_to(other.registration)
        await leader.node.ledger.apply(
            "t/ns", BundleName.parse(bundle).range, begun, OwnershipReason.ADMIN_UNLOAD.value
        )
        leader.node.reconciler.wake()
        await eventually(lambda: leader.ownership(bundle).owner == other.registration)


def _hold_scans(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Return an event; the reconciler scans only while it is set."""
    may_look, look = asyncio.Event(), ReconcilerDriver._look
    may_look.set()

    async def held(reconciler: ReconcilerDriver) -> reconciler_module.Event:
        await may_look.wait()
        return await look(reconciler)

    monkeypatch.setattr(ReconcilerDriver, "_look", held)
    return may_look


async def _remove_brokers(cluster: Cluster, leader: RunningNode, *brokers: str) -> None:
    """Remove brokers and wait until the leader knows."""
    for broker in brokers:
        await cluster.brokers[broker].leave()
    await eventually(lambda: not leader.node.mirror.registrations.keys() & set(brokers))


async def test_release_that_ended_during_the_scan_is_not_resumed() -> None:
    async with a_leader() as (cluster, leader):
        bundle = await _start_owner(cluster, leader)
        name, ledger, broker = BundleName.parse(bundle), leader.node.ledger, cluster.brokers["b1:8080"]
        other = await cluster.a_broker("b2:8080")
        await ledger.apply("t/ns", name.range, _releasing_to(other.registration), OwnershipReason.ADMIN_UNLOAD.value)
        await ledger.apply("t/ns", name.range, complete, OwnershipReason.ADMIN_UNLOAD.value)
        await _swept(leader, bundle)
        assert broker.unloads == []


async def test_release_of_a_vanished_bundle_is_skipped() -> None:
    async with a_leader() as (cluster, leader):
        bundle = await _start_owner(cluster, leader)
        name, ledger = BundleName.parse(bundle), leader.node.ledger
        other = await cluster.a_broker("b2:8080")
        await ledger.apply("t/ns", name.range, _releasing_to(other.registration), OwnershipReason.ADMIN_UNLOAD.value)
        await ledger.apply("t/ns", name.range, complete, OwnershipReason.ADMIN_UNLOAD.value)
        await leader.node.bundles.split(name, algorithm="range_equally_divide", positions=[], unload=False)
        await _swept(leader, bundle)
        assert not leader.node.failure.done()
        assert leader.leads


async def _swept(leader: RunningNode, releasing: str) -> None:
    """Have the reconciler scan a stale mirror in which this bundle is releasing."""
    looks: list[int] = []

    def look() -> list[str]:
        looks.append(len(looks))
        if len(looks) == 1:
            leader.node.reconciler.wake()
        return [releasing]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClusterModel, "releasing", lambda _: look())
        leader.node.reconciler.wake()
        await eventually(lambda: len(looks) > 1, what="a second scan")


async def test_older_pending_release_does_not_block_a_newer_one() -> None:
    async with a_leader(namespace_bundle_unloading_timeout_ms=360_000) as (cluster, leader):
        bundle = await _start_owner(cluster, leader)
        name, broker = BundleName.parse(bundle), cluster.brokers["b1:8080"]
        broker.may_answer.clear()
        older = asyncio.create_task(leader.unload(bundle))
        await eventually(lambda: broker.unloads)
        await leader.node.ledger.apply("t/ns", name.range, complete, "another hand")
        await leader.node.lookups.lookup(TOPIC)
        newer = asyncio.create_task(leader.unload(bundle))
        await eventually(lambda: len(broker.unloads) > 1)
        assert [headers[BUNDLE_VERSION_HEADER] for _, headers in broker.unloads] == ["2", "5"]
        broker.may_answer.set()
        await newer
        await older
        assert leader.ownership(bundle).version == 6, "no third request"


def _releasing_to(target: Registration) -> OwnerChange:
    def begin(current: Ownership, stamp: Stamp) -> Ownership:
        return release(current, target, stamp)

    return begin
