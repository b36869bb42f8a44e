from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.builders import Load
from support.nodes import Cluster, FakeAgent, RunningNode, in_memory
from support.registrations import a_record, load_of
from support.waiting import eventually

from loadmanager.core.domain.bundles import BoundariesError, HashFunction, topic_hash
from loadmanager.core.domain.names import BundleName, NamespaceName
from loadmanager.core.domain.ownership import IllegalTransitionError, OwnershipState
from loadmanager.core.domain.reasons import MergeReason, OwnershipReason, SplitReason
from loadmanager.errors import (
    BundleNotFoundError,
    NoBrokerAvailableError,
    NotLeaderError,
    OwnerSilentError,
    SplitRefusedError,
    UnloadFailedError,
)
from loadmanager.store import paths
from loadmanager.store.znode_codec import decode
from loadmanager.wire.average_records import decode_bundle_data
from loadmanager.wire.bundle_bodies import HOT, LARGEST

NS = NamespaceName("t", "ns")
WHOLE, LOW, HIGH = (
    BundleName.parse(f"t/ns/{text}")
    for text in ("0x00000000_0xffffffff", "0x00000000_0x80000000", "0x80000000_0xffffffff")
)
ONE = {"bundles": {"numBundles": 1}}
TOPICS = {f"persistent://t/ns/topic-{number}": (1.0, 1.0, 10.0, 10.0) for number in range(40)}


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(in_memory()) as cluster:
        await cluster.start_leader()
        yield cluster


async def an_owner(cluster: Cluster, topics: dict[str, Load] | None = None, **policies: object) -> FakeAgent:
    """Start b1, which owns the bundle of topic-0 of namespace t/ns (one bundle by default)."""
    agent = await cluster.a_broker("b1:8080")
    agent.topics = dict(TOPICS if topics is None else topics)
    await cluster.a_namespace("t/ns", **{**ONE, **policies})
    assert (await cluster.nodes[0].lookup("persistent://t/ns/topic-0")).status == 200
    return agent


def states(node: RunningNode) -> set[tuple[OwnershipState, str | None, int]]:
    """State, owner and version of each bundle."""
    found = node.node.mirror.namespaces["t/ns"].state.ownerships
    return {(each.state, each.owner.broker if each.owner else None, each.version) for each in found}


def journalled(node: RunningNode, kind: str) -> list[dict[str, Any]]:
    return [entry for entry in node.node.decision_log.recent(100) if entry["kind"] == kind]


async def test_halves_stay_with_the_owner(cluster: Cluster, leader: RunningNode) -> None:
    agent = await an_owner(cluster)
    parts = await leader.node.reshaper.split(WHOLE)
    assert [str(part.range) for part in parts] == leader.ranges_of()
    assert leader.ranges_of() == ["0x00000000_0x7fffffff", "0x7fffffff_0xffffffff"]
    assert states(leader) == {(OwnershipState.OWNED, "b1:8080", 2)}
    await eventually(lambda: agent.boundaries == [("t/ns", ["0x00000000", "0x7fffffff", "0xffffffff"])])
    assert agent.unloads == []
    (entry,) = journalled(leader, "split")
    assert (entry["subject"], entry["reason"], entry["acted"], entry["source"]) == (
        str(WHOLE),
        "admin_split",
        True,
        "b1:8080",
    )
    assert entry["sentence"] == "Split into 2 because an operator ordered it"
    assert (entry["why"]["boundaries"], entry["why"]["topics"]) == ("0x7fffffff", 40)


async def test_split_by_topic_count_divides_the_topics(cluster: Cluster, leader: RunningNode) -> None:
    await an_owner(cluster)
    parts = await leader.node.reshaper.split(WHOLE, algorithm="topic_count_equally_divide")
    hashes = [topic_hash(topic, HashFunction.MURMUR3_32) for topic in TOPICS]
    assert [sum(value in part.range for value in hashes) for part in parts] == [20, 20]


async def test_bundle_is_split_at_several_boundaries_at_once(cluster: Cluster, leader: RunningNode) -> None:
    await an_owner(cluster, dict.fromkeys(TOPICS, (400.0, 0.0, 1.0, 1.0)))
    leader.node.live.apply({"loadBalancerNamespaceBundleMaxMsgRate": "4000"})
    parts = await leader.node.reshaper.split(WHOLE, algorithm="flow_or_qps_equally_divide")
    assert len(parts) == 4
    assert len(leader.ranges_of()) == 4
    assert states(leader) == {(OwnershipState.OWNED, "b1:8080", 2)}


async def test_split_uses_specified_positions(cluster: Cluster, leader: RunningNode) -> None:
    await an_owner(cluster, {})
    await leader.node.reshaper.split(WHOLE, algorithm="specified_positions_divide", positions=[0, 5, 0x80000000])
    assert leader.ranges_of() == ["0x00000000_0x00000005", "0x00000005_0x80000000", "0x80000000_0xffffffff"]


@pytest.mark.parametrize(
    ("algorithm", "positions", "complaint"),
    [
        ("no_such", (), "splitAlgorithmName 'no_such': expected one of range_equally_divide"),
        ("specified_positions_divide", (), "specified_positions_divide needs positions"),
        ("range_equally_divide", (7,), "range_equally_divide takes no positions"),
    ],
)
async def test_invalid_split_request_is_refused(
    cluster: Cluster, leader: RunningNode, algorithm: str, positions: tuple[int, ...], complaint: str
) -> None:
    await an_owner(cluster)
    with pytest.raises(SplitRefusedError, match=complaint):
        await leader.node.reshaper.split(WHOLE, algorithm=algorithm, positions=positions)
    assert leader.ranges_of() == ["0x00000000_0xffffffff"]


async def test_split_of_a_single_hash_or_unknown_bundle_is_refused(cluster: Cluster, leader: RunningNode) -> None:
    boundaries = ["0x00000000", "0x00000001", "0xffffffff"]
    await cluster.a_namespace("t/ns", bundles={"boundaries": boundaries})
    with pytest.raises(SplitRefusedError, match="no hash between its ends"):
        await leader.node.reshaper.split(BundleName.parse("t/ns/0x00000000_0x00000001"))
    with pytest.raises(BundleNotFoundError):
        await leader.node.reshaper.split(LOW)


async def test_no_split_without_a_place_to_cut(cluster: Cluster, leader: RunningNode) -> None:
    await an_owner(cluster, dict(list(TOPICS.items())[:1]))
    assert await leader.node.reshaper.split(WHOLE, algorithm="topic_count_equally_divide") == []
    assert leader.ranges_of() == ["0x00000000_0xffffffff"]
    (entry,) = journalled(leader, "split")
    assert (entry["acted"], entry["reason"]) == (False, "no_split_boundary")
    assert entry["sentence"] == "No split because the algorithm finds no boundary between its 1 topics"


async def test_silent_owner_stops_only_algorithms_that_need_topics(cluster: Cluster, leader: RunningNode) -> None:
    agent = await an_owner(cluster)
    agent.topics_status = 503
    with pytest.raises(OwnerSilentError, match="answered 503"):
        await leader.node.reshaper.split(WHOLE, algorithm="topic_count_equally_divide")
    assert len(await leader.node.reshaper.split(WHOLE)) == 2
    await agent.stop()
    low = BundleName.parse("t/ns/0x00000000_0x7fffffff")
    with pytest.raises(OwnerSilentError, match="ConnectionRefusedError"):
        await leader.node.reshaper.split(low, algorithm="flow_or_qps_equally_divide")
    assert len(await leader.node.reshaper.split(low)) == 2


async def test_unowned_bundle_is_assigned_before_the_split(cluster: Cluster, leader: RunningNode) -> None:
    await cluster.a_namespace("t/ns", **ONE)
    with pytest.raises(NoBrokerAvailableError):
        await leader.node.reshaper.split(WHOLE)
    await cluster.a_broker("b1:8080")
    await leader.node.reshaper.split(WHOLE)
    assert states(leader) == {(OwnershipState.OWNED, "b1:8080", 2)}


async def test_bundle_of_a_lost_owner_is_reassigned_before_the_split(cluster: Cluster, leader: RunningNode) -> None:
    dead = await an_owner(cluster)
    await cluster.a_broker("b2:8080")
    await dead.leave()
    await eventually(lambda: "b1:8080" not in leader.node.mirror.registrations)
    await leader.node.reshaper.split(WHOLE)
    ((state, owner, _),) = states(leader)
    assert (state, owner) == (OwnershipState.OWNED, "b2:8080")


async def test_split_waits_for_a_running_unload(cluster: Cluster, leader: RunningNode) -> None:
    source = await an_owner(cluster)
    target = await cluster.a_broker("b2:8080")
    source.may_answer.clear()
    unloading = asyncio.create_task(
        leader.node.executor.unload(WHOLE, target.registration, OwnershipReason.ADMIN_UNLOAD)
    )
    await eventually(lambda: source.unloads)
    splitting = asyncio.create_task(leader.node.reshaper.split(WHOLE))
    await eventually(lambda: leader.node.reshaper.in_progress)
    source.may_answer.set()
    await unloading
    await splitting
    assert states(leader) == {(OwnershipState.OWNED, "b2:8080", 4)}
    assert leader.node.reshaper.in_progress == set()


async def test_one_of_two_concurrent_splits_succeeds(cluster: Cluster, leader: RunningNode) -> None:
    await an_owner(cluster)
    outcomes = await asyncio.gather(
        leader.node.reshaper.split(WHOLE), leader.node.reshaper.split(WHOLE), return_exceptions=True
    )
    assert sorted(isinstance(outcome, BundleNotFoundError) for outcome in outcomes) == [False, True]
    assert len(leader.ranges_of()) == 2


async def test_parts_are_unloaded_on_request(cluster: Cluster, leader: RunningNode) -> None:
    agent = await an_owner(cluster)
    parts = await leader.node.reshaper.split(WHOLE, unload=True)
    await eventually(lambda: {state for state, *_ in states(leader)} == {OwnershipState.FREE})
    assert sorted(path for path, _ in agent.unloads) == [
        f"/admin/v2/namespaces/t/ns/{part.range}/unload" for part in parts
    ]
    assert {headers["X-Loadmanager-Hash-Function"] for _, headers in agent.unloads} == {"murmur3_32"}


async def test_unreleased_parts_stay_with_their_owner(cluster: Cluster, leader: RunningNode) -> None:
    agent = await an_owner(cluster)
    agent.status = 503
    leader.node.live.apply({"namespaceBundleUnloadingTimeoutMs": "1000"})
    await leader.node.reshaper.split(WHOLE, unload=True)
    await eventually(lambda: states(leader) == {(OwnershipState.OWNED, "b1:8080", 4)})


async def test_failed_part(cluster: Cluster, leader: RunningNode, monkeypatch: pytest.MonkeyPatch) -> None:
    await an_owner(cluster)
    ends = {"0x00000000_0x40000000": UnloadFailedError("it stays"), "0x40000000_0x80000000": RuntimeError("a mistake")}
    tried = []

    async def unload(part: BundleName, *given: object) -> None:
        tried.append((str(part.range), given))
        raise ends.get(str(part.range), NotLeaderError("the term is over"))

    monkeypatch.setattr(leader.node.executor, "unload", unload)
    with capture_logs() as logs:
        await leader.node.reshaper.split(
            WHOLE, algorithm="specified_positions_divide", positions=[0x40000000, 0x80000000], unload=True
        )
        await eventually(lambda: not leader.node.reshaper._tasks)
    assert [part for part, _ in tried] == leader.ranges_of()
    assert {given for _, given in tried} == {(None, SplitReason.ADMIN_SPLIT, ())}
    said = [(each["event"], each.get("bundle")) for each in logs if each["log_level"] in ("warning", "error")]
    assert sorted(said, key=str) == [
        ("part_not_unloaded", "t/ns/0x00000000_0x40000000"),
        ("reshaping_task_failed", None),
    ]
    assert [each["exc_info"] for each in logs if "exc_info" in each] == [ends["0x40000000_0x80000000"]]


async def test_abandoned_split_is_cancelled(cluster: Cluster, leader: RunningNode) -> None:
    source = await an_owner(cluster)
    source.may_answer.clear()
    unloading = asyncio.create_task(leader.node.executor.unload(WHOLE, None, OwnershipReason.ADMIN_UNLOAD))
    await eventually(lambda: source.unloads)
    splitting = asyncio.create_task(leader.node.reshaper.split(WHOLE))
    await eventually(lambda: leader.node.reshaper.in_progress)
    splitting.cancel()
    await asyncio.wait({splitting})
    assert leader.node.reshaper.in_progress == frozenset()
    source.may_answer.set()
    await unloading
    assert leader.ranges_of() == ["0x00000000_0xffffffff"]


async def test_history_is_divided_by_topic_load(cluster: Cluster, leader: RunningNode) -> None:
    topics = {
        next(t for t in TOPICS if topic_hash(t, HashFunction.MURMUR3_32) in LOW.range): (30.0, 0.0, 3.0, 0.0),
        next(t for t in TOPICS if topic_hash(t, HashFunction.MURMUR3_32) in HIGH.range): (10.0, 0.0, 1.0, 0.0),
    }
    agent = await an_owner(cluster, topics)
    await agent.report(a_record("b1:8080", {str(WHOLE): load_of(8.0, msg_rate=400.0)}, agent_url=agent.url))
    await eventually(lambda: leader.node.mirror.model.bundle_averages("t/ns"))
    await leader.node.reshaper.split(WHOLE, algorithm="specified_positions_divide", positions=[0x80000000])
    found = leader.node.mirror.model.bundle_averages("t/ns")
    assert {name: (each.long[0], each.topics) for name, each in found.items()} == {
        str(LOW): (300.0, 1),
        str(HIGH): (100.0, 1),
    }
    path = paths.bundle_data("t/ns")

    async def written() -> dict[str, Any]:
        znode = await cluster.store.get(path)
        return decode_bundle_data("t/ns", decode(znode.data, path), path) if znode else {}

    await eventually(written)
    assert {name: each.long[0] for name, each in (await written()).items()} == {str(LOW): 300.0, str(HIGH): 100.0}


async def test_neighbours_of_one_owner_are_merged(cluster: Cluster, leader: RunningNode) -> None:
    agent = await an_owner(cluster)
    await leader.node.reshaper.split(WHOLE)
    low, high = (BundleName.parse(f"t/ns/{text}") for text in leader.ranges_of())
    merged = await leader.node.reshaper.merge(high, low.range, MergeReason.ADMIN_MERGE)
    assert merged == WHOLE
    assert states(leader) == {(OwnershipState.OWNED, "b1:8080", 3)}
    assert agent.unloads == []
    await eventually(lambda: agent.boundaries[-1:] == [("t/ns", ["0x00000000", "0xffffffff"])])
    (entry,) = journalled(leader, "merge")
    assert entry["sentence"] == f"Merged with {low} because an operator ordered it"
    await leader.node.reshaper.split(WHOLE)
    assert await leader.node.reshaper.merge(low, None, MergeReason.ADMIN_MERGE) == WHOLE


async def test_merge_needs_neighbours_of_one_owner(cluster: Cluster, leader: RunningNode) -> None:
    await an_owner(cluster, bundles={"numBundles": 4})
    first, second, third, last = (BundleName.parse(f"t/ns/{text}") for text in leader.ranges_of())
    with pytest.raises(BoundariesError, match=r"with: .* is no neighbour of"):
        await leader.node.reshaper.merge(first, third.range, MergeReason.ADMIN_MERGE)
    with pytest.raises(BoundariesError, match="is the last one"):
        await leader.node.reshaper.merge(last, None, MergeReason.ADMIN_MERGE)
    with pytest.raises(BundleNotFoundError):
        await leader.node.reshaper.merge(first, LOW.range, MergeReason.ADMIN_MERGE)
    owned = BundleName.parse(leader.bundle_of("persistent://t/ns/topic-0"))
    neighbour = second if owned == first else first if owned == second else last if owned == third else third
    with pytest.raises(IllegalTransitionError, match="cannot merge"):
        await leader.node.reshaper.merge(owned, neighbour.range, MergeReason.ADMIN_MERGE)


async def test_free_neighbours_are_merged(cluster: Cluster, leader: RunningNode) -> None:
    await cluster.a_namespace("t/ns", bundles={"numBundles": 2})
    await leader.node.reshaper.merge(LOW, HIGH.range, MergeReason.ADMIN_MERGE)
    assert states(leader) == {(OwnershipState.FREE, None, 1)}
    assert leader.ranges_of() == ["0x00000000_0xffffffff"]


async def test_neighbours_of_lost_owners_are_merged(cluster: Cluster, leader: RunningNode) -> None:
    await cluster.a_namespace("t/ns", bundles={"numBundles": 2})
    for number, bundle in enumerate((LOW, HIGH)):
        agent = await cluster.a_broker(f"b{number}:8080")
        await leader.node.assigner.request(str(bundle))
        await agent.leave()
        await eventually(lambda: not leader.node.mirror.registrations)
    await leader.node.reshaper.merge(LOW, HIGH.range, MergeReason.ADMIN_MERGE)
    assert {(state, owner) for state, owner, _ in states(leader)} == {(OwnershipState.FREE, None)}
    assert leader.ranges_of() == ["0x00000000_0xffffffff"]


async def test_largest_and_hottest_bundle_by_reports(cluster: Cluster, leader: RunningNode) -> None:
    agent = await an_owner(cluster, bundles={"numBundles": 4})
    names = [f"t/ns/{text}" for text in leader.ranges_of()]
    find = leader.node.reshaper.find_bundle
    assert (find(NS, LARGEST), find(NS, HOT)) == (None, None)
    stats = {names[1]: load_of(1.0, topics=9), names[2]: load_of(5.0, topics=3), names[3]: load_of(9.0, topics=0)}
    await agent.report(a_record("b1:8080", stats, agent_url=agent.url))
    await eventually(lambda: find(NS, LARGEST) is not None)
    assert (str(find(NS, LARGEST)), str(find(NS, HOT))) == (names[1], names[2])


async def test_lookup_during_a_split_is_answered(cluster: Cluster, leader: RunningNode) -> None:
    await cluster.a_broker("b1:8080")
    await cluster.a_namespace("t/ns", **ONE)
    splitting = asyncio.gather(*(leader.node.reshaper.split(WHOLE) for _ in range(2)), return_exceptions=True)
    replies = await asyncio.gather(*(leader.lookup(topic) for topic in TOPICS))
    await splitting
    assert len(leader.ranges_of()) == 2
    assert {reply.status for reply in replies} == {200}
