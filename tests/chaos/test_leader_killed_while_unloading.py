"""The leader is killed between the steps of an unload: whoever leads next finishes what the record says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.cluster import Cluster, a_cluster, topics_of_bundles
from support.history import recording
from support.scripted_broker import ScriptedBroker, asking, overlaps
from support.waiting import eventually

from loadmanager.core.domain.ownership import Ownership, OwnershipState
from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper

pytestmark = pytest.mark.zookeeper


@pytest.fixture
async def cluster(zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path) -> AsyncIterator[Cluster]:
    """Two nodes and two brokers; the session is so long that no test waits for its end."""
    async with a_cluster(zookeeper.connect_string, chroot, tmp_path) as cluster:
        await cluster.start_all(2, 2, {"unloadAttemptTimeoutMs": 5_000, "namespaceBundleUnloadingTimeoutMs": 6_000})
        await cluster.create_namespace((await cluster.leader()).url, bundles=4)
        yield cluster


@pytest.mark.parametrize(
    ("moment", "ends_with"),
    [
        ("before the broker obeyed", "target"),
        ("after the broker obeyed", "target"),
        ("and the source dies with it", "target"),
        ("and the destination dies with it", "nobody"),
        ("and the broker never answers", "source"),
    ],
)
async def test_the_successor_finishes_the_unload(cluster: Cluster, moment: str, ends_with: str) -> None:
    (topic,) = topics_of_bundles(await cluster.state(), 1)
    bundle = (await cluster.state()).bundle_name(0)
    leader = await cluster.leader()
    survivor = next(node for node in cluster.nodes.values() if node is not leader)
    _, answer = await cluster.lookup(survivor.url, topic)
    source = next(broker for broker in cluster.brokers if broker.broker_id == answer["brokerId"])
    target = next(broker for broker in cluster.brokers if broker is not source)
    async with (
        asking(cluster.http, cluster.brokers, [node.url for node in cluster.nodes.values()], [topic]),
        recording(cluster.witness, "tenant/ns") as history,
    ):
        await eventually(lambda: source.serves(bundle))
        (source.may_answer if moment == "after the broker obeyed" else source.may_obey).clear()
        unloading = asyncio.create_task(cluster.unload(leader.url, bundle, target.broker_id))
        await eventually(lambda: source.unloads and (source.may_obey.is_set() <= bool(source.unloads[0].status)))
        assert (await cluster.ownership(bundle)).state is OwnershipState.RELEASING
        leader.kill()
        await asyncio.gather(unloading, return_exceptions=True)
        if moment == "and the source dies with it":
            await source.die()
        elif moment == "and the destination dies with it":
            await target.die()
        if moment != "and the broker never answers":
            source.may_obey.set()
            source.may_answer.set()
        settled = await outcome(cluster, bundle)
        expected = {"target": target, "source": source, "nobody": None}[ends_with]
        assert (settled.owner.broker if settled.owner else None) == (expected.broker_id if expected else None)
        assert (settled.version, settled.epoch) == (3, await cluster.epoch())
        if expected is not None:
            source.may_obey.set()
            await eventually(lambda: expected.serves(bundle), what="the owner serves")
    assert_unloads_carried_on(source, epoch=settled.epoch)
    assert overlaps(cluster.brokers) == []
    assert history.versions_skipped() == []


async def outcome(cluster: Cluster, bundle: str) -> Ownership:
    """The ownership once nobody releases the bundle any more."""
    found: list[Ownership] = []

    async def is_settled() -> bool:
        found[:] = [await cluster.ownership(bundle)]
        return found[0].state is not OwnershipState.RELEASING

    await eventually(is_settled, what="the unload ends")
    return found[0]


def assert_unloads_carried_on(source: ScriptedBroker, epoch: int) -> None:
    """Every call was about the same release, and the epochs only grew."""
    epochs = [call.epoch for call in source.unloads]
    assert {call.version for call in source.unloads} == {2}
    assert epochs == sorted(epochs)
    assert set(epochs) <= {epoch - 1, epoch}
