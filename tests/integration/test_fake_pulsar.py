"""The fake Pulsar in a real ZooKeeper: sessions that end take what they held along there too."""

from __future__ import annotations

import pytest
from support.fake_pulsar import FakePulsar
from support.stores import ZooKeeperWorld
from support.waiting import patience

from loadmanager.core.domain.names import BundleName
from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.pulsar.pulsar_admin import PulsarAdmin
from loadmanager.store import pulsar_detection

BUNDLE = BundleName.parse("lm/bench/0x00000000_0x40000000")


@pytest.mark.zookeeper
async def test_bundle_moves_and_is_unowned_when_its_owner_dies(zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
    world = ZooKeeperWorld(zookeeper, chroot)
    async with FakePulsar(world) as pulsar:
        _, owner, to = pulsar.brokers
        await pulsar.add_namespace("lm/bench", owners=[owner.broker_id])
        pulsar.load(str(BUNDLE), rate=100.0)
        await pulsar.report()
        assert await pulsar_detection.find_pulsar(pulsar.operator) == "/admin/clusters"
        async with PulsarAdmin(pulsar.urls[:1], timeout_s=patience()) as admin:
            admin.trust([each.broker_id for each in pulsar.brokers])
            await admin.unload(BUNDLE, to.broker_id)
            await admin.look_up(BUNDLE)
            assert await pulsar.owner(str(BUNDLE)) == to.broker_id
            await pulsar.kill(to)
            assert await pulsar.owner(str(BUNDLE)) is None
            assert len(await admin.brokers()) == 2
    await world.close()
