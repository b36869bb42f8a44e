"""Splits and merges with a real ZooKeeper, real nodes and agents, and brokers whose topics are under load."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from support.invariants import ownership_violations
from support.loaded_broker import Fleet, a_fleet
from support.nodes import Cluster, on_zookeeper
from support.waiting import eventually

from loadmanager.core.domain.bundles import HashFunction, topic_hash
from loadmanager.core.domain.names import BundleName, BundleRange, NamespaceName
from loadmanager.core.domain.ownership import NamespaceState, OwnershipState
from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.store import paths
from loadmanager.store.metadata_store import Delete, Put
from loadmanager.store.znode_codec import decode
from loadmanager.wire.average_records import decode_bundle_data
from loadmanager.wire.store_records import decode_namespace

pytestmark = pytest.mark.zookeeper

NS = "/admin/v2/namespaces/t/ns"
WHOLE = "0x00000000_0xffffffff"
TOPICS = [f"persistent://t/ns/topic-{number}" for number in range(12)]
HASHES = {topic: topic_hash(topic, HashFunction.MURMUR3_32) for topic in TOPICS}
SETTINGS = {"load_balancer_auto_unload_split_bundles_enabled": False}


@pytest.fixture
async def fleet(zookeeper: EmbeddedZooKeeper, chroot: str) -> AsyncIterator[Fleet]:
    """Two nodes, one broker that serves all topics of a namespace of one bundle, and a second one without any."""
    async with Cluster(on_zookeeper(zookeeper, chroot)) as cluster:
        await cluster.start_nodes(2, **SETTINGS)
        async with a_fleet(cluster, "b1:8080") as fleet:
            await cluster.a_namespace("t/ns", bundles={"numBundles": 1})
            await fleet.serve(TOPICS)
            await fleet.start_broker("b2:8080")
            await eventually(lambda: fleet.reported() == {f"t/ns/{WHOLE}"})
            yield fleet


async def stored(fleet: Fleet) -> NamespaceState:
    path = paths.namespace("t/ns")
    znode = await fleet.cluster.store.get(path)
    assert znode is not None
    state = decode_namespace(NamespaceName("t", "ns"), decode(znode.data, path), path)
    assert ownership_violations(state.bundles.ranges(), state.ownerships) == []
    return state


async def split(fleet: Fleet, bundle: str = WHOLE, query: str = "", body: object = None) -> int:
    data = None if body is None else json.dumps(body)
    return (await fleet.leader.put(f"{NS}/{bundle}/split?{query}", data=data)).status


def bundles_with_topics(fleet: Fleet) -> set[str]:
    bundles = fleet.state().bundles
    return {f"t/ns/{bundles.range_at(bundles.index_of_hash(value))}" for value in HASHES.values()}


async def nothing_was_disturbed(fleet: Fleet) -> None:
    """All topics are where they were, were never closed, and may be asked for; the report follows the new bundles."""
    broker = fleet.brokers["b1:8080"]
    assert set(broker.topics) == set(TOPICS)
    assert (broker.openings, broker.unloads) == (TOPICS, [])
    assert {o.owner.broker for o in fleet.state().ownerships if o.owner} == {"b1:8080"}
    for topic in TOPICS:
        status, answer = await fleet.agents["b1:8080"].owner(topic)
        assert (status, answer["owned"]) == (200, True)
    await eventually(lambda: fleet.reported() == bundles_with_topics(fleet), what="reports follow the boundaries")
    rows = fleet.leader.node.planner.snapshot().bundles
    assert {name for name, row in zip(rows.names, rows.movable.tolist(), strict=True) if row} == fleet.reported()


@pytest.mark.parametrize(
    ("bundle", "query", "body"),
    [
        (WHOLE, "", None),
        ("LARGEST", "splitAlgorithmName=range_equally_divide", []),
        ("HOT", "", None),
        (WHOLE, "splitAlgorithmName=specified_positions_divide", [0x40000000, 0x80000000]),
        ("HOT", "splitAlgorithmName=topic_count_equally_divide", None),
        ("LARGEST", "splitAlgorithmName=flow_or_qps_equally_divide", None),
    ],
)
async def test_split_closes_no_topic(fleet: Fleet, bundle: str, query: str, body: list[int] | None) -> None:
    fleet.leader.node.live.apply({"loadBalancerNamespaceBundleMaxMsgRate": "5000"})
    await eventually(lambda: fleet.leader.node.planner.snapshot().bundles.long.sum() > 0)
    await eventually(
        lambda: sum(each["msgRateIn"] for each in fleet.agents["b1:8080"].agent.watch.loads.values()) > 8_000
    )
    assert await split(fleet, bundle, query, body) == 204
    state = await stored(fleet)
    assert len(state.bundles) >= 2
    assert {o.version for o in state.ownerships} == {2}
    if body:
        assert state.bundles.boundaries == (0, *body, 0xFFFFFFFF)
    if "topic_count" in query:
        assert [sum(value in part for value in HASHES.values()) for part in state.bundles.ranges()] == [6, 6]
    await nothing_was_disturbed(fleet)


async def test_history_is_divided_and_left_to_the_next_leader(fleet: Fleet) -> None:
    await eventually(lambda: fleet.leader.node.mirror.model.bundle_averages("t/ns"))
    assert await split(fleet, query="splitAlgorithmName=specified_positions_divide", body=[0x40000000]) == 204
    names = set(fleet.state().bundle_names())
    path = paths.bundle_data("t/ns")

    async def written() -> bool:
        znode = await fleet.cluster.store.get(path)
        return znode is not None and set(decode_bundle_data("t/ns", decode(znode.data, path), path)) == names

    await eventually(written)
    standby = next(node for node in fleet.cluster.nodes if not node.leads)
    await eventually(lambda: not standby.node.mirror.model.awaits_division("t/ns"))
    shares = [
        {name: each.long[0] for name, each in node.node.mirror.model.bundle_averages("t/ns").items()}
        for node in (fleet.leader, standby)
    ]
    inside = sum(value < 0x40000000 for value in HASHES.values()) / len(TOPICS)
    for share in shares:
        first = min(share)
        assert share[first] / sum(share.values()) == pytest.approx(inside, abs=0.05)


async def test_split_parts_are_unloaded_and_placed_again_on_request(fleet: Fleet) -> None:
    assert await split(fleet, query="unload=true") == 204
    broker = fleet.brokers["b1:8080"]
    await eventually(lambda: {o.state for o in fleet.state().ownerships} == {OwnershipState.FREE})
    assert len(broker.unloads) == 2
    for unload in broker.unloads:
        own = BundleName.parse(unload.bundle).range
        assert set(unload.topics) == {topic for topic, value in HASHES.items() if value in own}
    await fleet.serve(TOPICS)
    assert all(len(fleet.holders(topic)) == 1 for topic in TOPICS)


async def test_moved_part_leaves_the_topics_of_the_other_open(fleet: Fleet) -> None:
    assert await split(fleet) == 204
    low, high = fleet.state().bundles.ranges()
    reply = await fleet.leader.put(f"{NS}/{low}/unload?destinationBroker=b2:8080")
    assert reply.status == 204
    await fleet.serve(TOPICS)
    for topic, value in HASHES.items():
        assert fleet.holders(topic) == ["b2:8080" if value in low else "b1:8080"]
    stayed = [topic for topic in TOPICS if HASHES[topic] in high]
    assert all(fleet.brokers["b1:8080"].openings.count(topic) == 1 for topic in stayed)


async def test_merged_bundle_stays_open_and_moves_as_one(fleet: Fleet) -> None:
    assert await split(fleet, query="splitAlgorithmName=specified_positions_divide", body=[5, 0x80000000]) == 204
    last = fleet.state().bundles.range_at(2)
    middle = fleet.state().bundles.range_at(1)
    reply = await fleet.leader.ask("POST", f"/loadbalance/v1/bundles/t/ns/{last}/merge", json={"with": str(middle)})
    merged = BundleRange(5, 0xFFFFFFFF)
    assert (reply.status, reply.json()) == (200, {"bundle": f"t/ns/{merged}"})
    assert [o.version for o in (await stored(fleet)).ownerships] == [2, 3]
    await nothing_was_disturbed(fleet)
    assert (await fleet.leader.put(f"{NS}/{merged}/unload?destinationBroker=b2:8080")).status == 204
    await fleet.serve(TOPICS)
    assert {fleet.holders(topic)[0] for topic in TOPICS} == {"b2:8080"}


async def test_bundle_above_a_limit_is_split_automatically_until_below(fleet: Fleet) -> None:
    fleet.leader.node.live.apply(
        {
            "loadBalancerNamespaceBundleMaxTopics": "4",
            "defaultNamespaceBundleSplitAlgorithm": "topic_count_equally_divide",
            "loadBalancerSplitIntervalMinutes": "0.002",
        }
    )

    def most_topics() -> int:
        return max(sum(value in part for value in HASHES.values()) for part in fleet.state().bundles.ranges())

    await eventually(lambda: most_topics() <= 4)
    await nothing_was_disturbed(fleet)
    await eventually(lambda: fleet.leader.node.reshaper.splits.total() == len(fleet.state().bundles) - 1)
    rounds = fleet.leader.node.reshaping.rounds
    await eventually(lambda: fleet.leader.node.reshaping.rounds > rounds + 5)
    assert most_topics() >= 3


async def test_bundle_of_a_lost_owner_is_split_and_placed(fleet: Fleet) -> None:
    await fleet.stop_broker("b1:8080")
    await eventually(lambda: len(fleet.leader.node.mirror.registrations) == 1)
    assert await split(fleet) == 204
    assert {o.owner.broker for o in fleet.state().ownerships if o.owner} == {"b2:8080"}
    await fleet.serve(TOPICS)


async def test_concurrent_unload_and_split_both_end(fleet: Fleet) -> None:
    unload = fleet.leader.put(f"{NS}/{WHOLE}/unload?destinationBroker=b2:8080")
    replies = await asyncio.gather(unload, split(fleet), return_exceptions=True)
    assert not [reply for reply in replies if isinstance(reply, BaseException)]
    state = await stored(fleet)
    assert {o.state for o in state.ownerships} == {OwnershipState.OWNED}
    await fleet.serve(TOPICS)
    assert all(len(fleet.holders(topic)) == 1 for topic in TOPICS)


async def test_replaced_leader_splits_nothing(fleet: Fleet) -> None:
    deposed = fleet.leader
    before = await stored(fleet)
    deposed.node.election._resigned = True  # else it might be elected again before it is asked
    await fleet.cluster.store.commit([Put(paths.EPOCH, b"another"), Delete(paths.LEADER)])
    reply = await deposed.put(f"{NS}/{WHOLE}/split", headers={"X-Loadmanager-Forwarded": "test"})
    assert reply.status == 503
    assert (await stored(fleet)) == before
    await eventually(lambda: any(node.leads for node in fleet.cluster.nodes))
    assert await split(fleet) == 204
    await nothing_was_disturbed(fleet)


async def test_split_parts_are_known_to_every_node(fleet: Fleet) -> None:
    standby = next(node for node in fleet.cluster.nodes if not node.leads)
    assert (await standby.put(f"{NS}/{WHOLE}/split")).status == 204
    parts = fleet.state().bundle_names()
    await fleet.cluster.known_everywhere(lambda node: node.node.mirror.namespaces["t/ns"].state.bundle_names() == parts)
    rows = standby.node.mirror.model.bundle_averages("t/ns")
    assert set(rows) <= set(parts)
    positions = (await standby.get(f"{NS}/{parts[0].rpartition('/')[2]}/topicHashPositions")).json()
    own = BundleName.parse(parts[0]).range
    assert positions["topicHashPositions"] == {topic: value for topic, value in HASHES.items() if value in own}
