from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.nodes import Cluster, RunningNode, in_memory
from support.registrations import a_record, load_of
from support.waiting import eventually

from loadmanager.core.domain.bundles import HashFunction, topic_hash

NS = "/admin/v2/namespaces/t/ns"
WHOLE = "0x00000000_0xffffffff"
CUT = ["0x00000000_0x7fffffff", "0x7fffffff_0xffffffff"]
TOPICS = [f"persistent://t/ns/topic-{number}" for number in range(8)]
ALGORITHMS = ("range_equally_divide", "topic_count_equally_divide", "flow_or_qps_equally_divide")
MERGE = "/loadbalance/v1/bundles/t/ns"


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """Broker b1 owns the only bundle of a namespace t/ns and has `TOPICS` open."""
    async with Cluster(in_memory()) as cluster:
        leader = await cluster.start_leader()
        agent = await cluster.a_broker("b1:8080")
        agent.topics = dict.fromkeys(TOPICS, (10_000.0, 0.0, 1.0, 1.0))
        await cluster.a_namespace("t/ns", bundles={"numBundles": 1})
        assert (await leader.lookup(TOPICS[0])).status == 200
        yield cluster


async def test_bundle_is_split_by_the_configured_algorithm(node: RunningNode) -> None:
    reply = await node.put(f"{NS}/{WHOLE}/split")
    assert (reply.status, reply.body) == (204, b"")
    assert node.ranges_of() == CUT


@pytest.mark.parametrize("body", [b"", b"null", b"[]"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_split_by_the_requested_algorithm(node: RunningNode, algorithm: str, body: bytes) -> None:
    reply = await node.put(f"{NS}/{WHOLE}/split?splitAlgorithmName={algorithm}&unload=false", data=body)
    assert reply.status == 204
    assert len(node.ranges_of()) > 1


async def test_bundle_is_split_at_positions_within_its_range(node: RunningNode) -> None:
    assert (await node.put(f"{NS}/{WHOLE}/split?splitAlgorithmName=range_equally_divide")).status == 204
    path = f"{NS}/{CUT[0]}/split?splitAlgorithmName=specified_positions_divide"
    reply = await node.put(path, json=[0, 16, 4096, 0x7FFFFFFF, 0xFFFFFFFF])
    assert reply.status == 204
    assert node.ranges_of()[:3] == ["0x00000000_0x00000010", "0x00000010_0x00001000", "0x00001000_0x7fffffff"]
    (low, *_) = node.ranges_of()
    path = f"{NS}/{low}/split?splitAlgorithmName=specified_positions_divide"
    assert (await node.put(path, json=[0x80000000])).status == 204
    assert len(node.ranges_of()) == 4


async def test_split_without_a_possible_position_does_nothing(cluster: Cluster, node: RunningNode) -> None:
    cluster.brokers["b1:8080"].topics.clear()
    assert (await node.put(f"{NS}/{WHOLE}/split?splitAlgorithmName=topic_count_equally_divide")).status == 204
    assert node.ranges_of() == [WHOLE]


async def test_parts_are_unloaded_on_request(cluster: Cluster, node: RunningNode) -> None:
    assert (await node.put(f"{NS}/{WHOLE}/split?unload=true")).status == 204
    await eventually(lambda: len(cluster.brokers["b1:8080"].unloads) == 2)


@pytest.mark.parametrize("which", ["LARGEST", "HOT"])
async def test_bundle_is_split_by_the_keyword_for_its_load(cluster: Cluster, node: RunningNode, which: str) -> None:
    missing = await node.put(f"{NS}/{which}/split")
    assert missing.status == 404
    assert missing.reason == f"{which}: no bundle of namespace t/ns carries anything"
    agent = cluster.brokers["b1:8080"]
    await agent.report(a_record("b1:8080", {f"t/ns/{WHOLE}": load_of(5.0, topics=3)}, agent_url=agent.url))
    await eventually(lambda: node.node.planner.snapshot().bundles.topics.sum() > 0)
    assert (await node.put(f"{NS}/{which}/split")).status == 204
    assert node.ranges_of() == CUT


@pytest.mark.parametrize(
    ("path", "body", "status", "reason"),
    [
        (f"{NS}/0x00000000_0x80000000/split", None, 412, "is not a current bundle"),
        (f"{NS}/largest/split", None, 412, "bundle range 'largest'"),
        ("/admin/v2/namespaces/t/nowhere/LARGEST/split", None, 404, "namespace t/nowhere not found"),
        (f"{NS}/{WHOLE}/split?splitAlgorithmName=cut", None, 412, "splitAlgorithmName 'cut': expected one of"),
        (f"{NS}/{WHOLE}/split?splitAlgorithmName=specified_positions_divide", [], 412, "needs positions"),
        (f"{NS}/{WHOLE}/split", [5], 412, "range_equally_divide takes no positions"),
        (f"{NS}/{WHOLE}/split?unload=perhaps", None, 400, "unload 'perhaps': expected true or false"),
        (f"{NS}/{WHOLE}/split", [7, 5], 400, "expected split positions that ascend, each of them once"),
        (f"{NS}/{WHOLE}/split", [5, 5], 400, "expected split positions that ascend, each of them once"),
        (f"{NS}/{WHOLE}/split", {"positions": [5]}, 400, "valid array"),
        (f"{NS}/{WHOLE}/split", [-1], 400, "greater than or equal to 0"),
        (f"{NS}/{WHOLE}/split", [1 << 32], 400, "less than or equal to 4294967295"),
        (f"{NS}/{WHOLE}/split", ["5"], 400, "valid integer"),
        (f"{NS}/{WHOLE}/split", [True], 400, "valid integer"),
    ],
)
async def test_invalid_split_is_refused(node: RunningNode, path: str, body: object, status: int, reason: str) -> None:
    reply = await node.put(path) if body is None else await node.put(path, json=body)
    assert reply.status == status
    assert reason in reply.reason
    assert node.ranges_of() == [WHOLE]


async def test_malformed_split_body_is_rejected(node: RunningNode) -> None:
    reply = await node.put(f"{NS}/{WHOLE}/split", data=b"[1,")
    assert reply.status == 400
    assert "Invalid JSON" in reply.reason


async def test_split_is_503_when_the_owner_does_not_list_its_topics(cluster: Cluster, node: RunningNode) -> None:
    cluster.brokers["b1:8080"].topics_status = 500
    reply = await node.put(f"{NS}/{WHOLE}/split?splitAlgorithmName=topic_count_equally_divide")
    assert reply.status == 503
    assert "answered 500" in reply.reason
    assert "Retry-After" in reply.headers


async def test_split_at_a_standby_is_done_by_the_leader(cluster: Cluster) -> None:
    standby = await cluster.start_node()
    assert (await standby.put(f"{NS}/{WHOLE}/split")).status == 204
    await cluster.known_everywhere(lambda node: node.ranges_of() == CUT)


async def test_neighbouring_bundles_are_merged(node: RunningNode) -> None:
    await node.put(f"{NS}/{WHOLE}/split")
    reply = await node.ask("POST", f"{MERGE}/{CUT[1]}/merge", json={"with": CUT[0]})
    assert (reply.status, reply.json()) == (200, {"bundle": f"t/ns/{WHOLE}"})
    await node.put(f"{NS}/{WHOLE}/split")
    reply = await node.ask("POST", f"{MERGE}/{CUT[0]}/merge")
    assert (reply.status, node.ranges_of()) == (200, [WHOLE])


@pytest.mark.parametrize(
    ("bundle", "body", "status", "reason"),
    [
        (CUT[0], {"with": "0x00000000_0x00000005"}, 412, "is not a current bundle"),
        (CUT[0], {"with": "everything"}, 412, "bundle range 'everything'"),
        ("0x00000000_0x00000005", None, 412, "is not a current bundle"),
        (CUT[0], {"with": CUT[0]}, 400, "is no neighbour of"),
        (CUT[1], None, 400, "is the last one"),
        (CUT[0], {"with": 5}, 400, "with: Input should be a valid string"),
        (CUT[0], {"into": CUT[1]}, 400, "into: unknown key"),
        (CUT[0], [], 400, "body"),
    ],
)
async def test_invalid_merge_is_refused(node: RunningNode, bundle: str, body: object, status: int, reason: str) -> None:
    await node.put(f"{NS}/{WHOLE}/split")
    options = {} if body is None else {"json": body}
    reply = await node.ask("POST", f"{MERGE}/{bundle}/merge", **options)
    assert reply.status == status
    assert reason in reply.reason
    assert node.ranges_of() == CUT


async def test_bundles_of_different_owners_are_not_merged(cluster: Cluster, node: RunningNode) -> None:
    await node.put(f"{NS}/{WHOLE}/split")
    await cluster.a_broker("b2:8080")
    assert (await node.put(f"{NS}/{CUT[0]}/unload?destinationBroker=b2:8080")).status == 204
    reply = await node.ask("POST", f"{MERGE}/{CUT[0]}/merge")
    assert reply.status == 409
    assert "cannot merge" in reply.reason


async def test_topic_hash_positions_are_listed(cluster: Cluster, node: RunningNode) -> None:
    agent = cluster.brokers["b1:8080"]
    agent.topics["persistent://t/ns/parted-partition-0"] = agent.topics[TOPICS[0]]
    agent.topics["persistent://t/ns/parted-partition-1"] = agent.topics[TOPICS[0]]
    reply = await node.get(f"{NS}/{WHOLE}/topicHashPositions")
    assert reply.status == 200
    assert reply.json() == {
        "namespace": "t/ns",
        "bundle": WHOLE,
        "topicHashPositions": {topic: topic_hash(topic, HashFunction.MURMUR3_32) for topic in agent.topics},
    }
    query = f"topics={TOPICS[1]}&topics=persistent://t/ns/parted"
    chosen = (await node.get(f"{NS}/{WHOLE}/topicHashPositions?{query}")).json()["topicHashPositions"]
    assert sorted(chosen) == [f"persistent://t/ns/parted-partition-{n}" for n in range(2)] + [TOPICS[1]]


async def test_topic_hash_positions_need_an_owner_and_a_current_bundle(cluster: Cluster, node: RunningNode) -> None:
    odd = await node.get(f"{NS}/0x00000000_0x00000005/topicHashPositions")
    assert (odd.status, "is not a current bundle" in odd.reason) == (412, True)
    await cluster.a_namespace("t/free", bundles={"numBundles": 1})
    free = await node.get(f"/admin/v2/namespaces/t/free/{WHOLE}/topicHashPositions")
    assert (free.status, "has no owner" in free.reason) == (412, True)
    cluster.brokers["b1:8080"].topics_status = 500
    assert (await node.get(f"{NS}/{WHOLE}/topicHashPositions")).status == 503


async def test_bundle_of_a_topic_is_current_after_a_split(node: RunningNode) -> None:
    await node.put(f"{NS}/{WHOLE}/split")
    reply = await node.get("/lookup/v2/topic/persistent/t/ns/topic-0/bundle")
    assert reply.body.decode() in CUT
