"""The picture of a Pulsar on a real ZooKeeper: brokers that come and go with their sessions, connections that break."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from support.pulsar_picture import B1, BUNDLE, NAMESPACE, OTHER, PULSAR, beside, broker, looking, state_of
from support.stores import ZooKeeperWorld
from support.waiting import eventually
from support.zookeeper import ZooKeeperFactory

from loadmanager.core.domain.names import BrokerId, BundleName
from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.pulsar.read_only_store import ReadOnlyStore
from loadmanager.store import paths, pulsar_paths
from loadmanager.store.metadata_store import Create, Delete, MetadataStore

pytestmark = pytest.mark.zookeeper

B3 = BrokerId("b3:8080")


@pytest.fixture
async def world(zookeeper: EmbeddedZooKeeper, chroot: str) -> AsyncIterator[ZooKeeperWorld]:
    world = ZooKeeperWorld(zookeeper, chroot)
    yield world
    await world.close()


async def take(session: MetadataStore, bundle: str, broker_id: BrokerId) -> None:
    """Own a bundle in this session, as a broker does."""
    record = json.dumps({"httpUrl": f"http://{broker_id}", "disabled": False}).encode()
    await session.commit([Create(pulsar_paths.owner(bundle), record, ephemeral=True)])


async def test_what_a_broker_owned_is_nobodys_when_its_session_ends(world: ZooKeeperWorld) -> None:
    async with beside(world) as pulsar:
        session = await world.connect()
        await session.commit([Create(paths.broker(B3), json.dumps(broker(B3)).encode(), ephemeral=True)])
        await pulsar.store.commit([Delete(pulsar_paths.owner(BUNDLE))])
        await take(session, BUNDLE, B3)
        await eventually(lambda: pulsar.owner(BUNDLE) == B3 and B3 in pulsar.view.brokers)
        assert await pulsar.intake.owner_now(BundleName.parse(BUNDLE)) == pulsar.view.registrations[B3]
        assert pulsar.view.is_registered(pulsar.ownership(BUNDLE).owner)
        await session.close()
        await eventually(lambda: pulsar.owner(BUNDLE) is None and B3 not in pulsar.view.registrations)
        assert pulsar.owner(OTHER) == B1
        assert [each.after and each.after.broker for each in pulsar.sighted][-1] is None


@pytest.mark.parametrize("is_expired", [False, True])
async def test_what_changed_while_the_connection_was_broken_is_read_again(
    world: ZooKeeperWorld, *, is_expired: bool
) -> None:
    async with beside(world) as pulsar:
        assert pulsar.view.is_fresh
        await (world.expire if is_expired else world.reconnect)(pulsar.own)
        await pulsar.store.commit([Delete(pulsar_paths.owner(BUNDLE)), Delete(paths.LEADER)])
        await take(pulsar.store, f"{NAMESPACE}/0x00000000_0x10000000", B1)
        await pulsar.store.commit([Delete(pulsar_paths.local_policies(NAMESPACE))])
        await eventually(lambda: pulsar.view.is_fresh and pulsar.intake.pulsars_leader is None)
        await pulsar.read()
        async with looking(ReadOnlyStore(await world.connect())) as (view, intake, _):
            assert state_of(pulsar.view, pulsar.intake) == state_of(view, intake)
        assert pulsar.view.get_namespace(NAMESPACE).state.bundle_names() == [f"{NAMESPACE}/0x00000000_0xffffffff"]
        await pulsar.put(pulsar_paths.local_policies(NAMESPACE), PULSAR[pulsar_paths.local_policies(NAMESPACE)])
        assert pulsar.owner(OTHER) == B1


async def test_a_look_leaves_no_trace(start_zookeeper: ZooKeeperFactory) -> None:
    """Transaction ids are given to every write, and to every session that begins or ends."""
    world = ZooKeeperWorld(await asyncio.to_thread(start_zookeeper), "/pulsar")
    async with beside(world) as pulsar:
        session = await world.connect()
        await pulsar.intake.seeded.wait()
        await pulsar.put("/marks/before", b"1")
        async with looking(ReadOnlyStore(session)) as (view, _, _):
            assert view.is_fresh
        await pulsar.put("/marks/after", b"2")
        before, after = await pulsar.store.get_many(["/marks/before", "/marks/after"])
        assert before is not None
        assert after is not None
        assert after.czxid == before.czxid + 1
    await world.close()
