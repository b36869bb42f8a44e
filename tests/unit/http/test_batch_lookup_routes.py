from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson
import pytest
from support.nodes import Cluster, Reply, RunningNode, topics_by_bundle
from support.tokens import CLOSED, bearer, token_of

LOOKUPS = "/loadbalance/v1/lookups"


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster() as cluster:
        await cluster.start_leader()
        await cluster.a_broker("b1:8080")
        await cluster.a_broker("b2:8080")
        await cluster.a_namespace()
        yield cluster


async def look_up(node: RunningNode, topics: Sequence[str], query: str = "", **options: Any) -> Reply:  # noqa: ANN401
    return await node.ask("POST", f"{LOOKUPS}{query}", json={"topics": list(topics)}, **options)


async def alone(node: RunningNode, topic: str, query: str = "") -> dict[str, Any]:
    """Answer to a lookup of the topic alone, in the form of a batch."""
    reply = await node.lookup(f"{topic}{query}")
    return reply.json() if reply.status == 200 else {"status": reply.status, **reply.json()}


@pytest.mark.parametrize("through", ["leader", "standby"])
async def test_answers_keep_the_order_and_assign_owners(cluster: Cluster, through: str) -> None:
    leader = cluster.nodes[0]
    node = leader if through == "leader" else await cluster.start_node()
    topics = [*topics_by_bundle(leader, "t/ns", 4).values(), "persistent://t/ns/again", "non-persistent://t/ns/x"]
    await leader.lookup(topics[0])
    reply = await look_up(node, topics)
    assert reply.status == 200
    assert leader.node.assigner.assignments == 4
    assert reply.json() == {"lookups": [await alone(leader, topic) for topic in topics]}
    await cluster.known_everywhere(
        lambda each: all(each.ownership(b).version for b in topics_by_bundle(each, "t/ns", 4))
    )
    again = await look_up(node, topics, headers={"X-Loadmanager-Forwarded": "a test"})
    assert again.body == reply.body


@pytest.mark.parametrize("through", ["leader", "standby"])
@pytest.mark.parametrize("query", ["", "?listenerName=internal", "?listenerName=external"])
async def test_error_of_one_topic_does_not_affect_the_others(cluster: Cluster, through: str, query: str) -> None:
    leader = cluster.nodes[0]
    node = leader if through == "leader" else await cluster.start_node()
    topics = ["persistent://t/ns/x", "persistent://t/other/x", "queue://t/ns/x", "", "persistent://t/ns/x"]
    found = (await look_up(node, topics, query)).json()["lookups"]
    assert [each.get("status") for each in found] == [
        500 if "external" in query else None,
        404,
        412,
        412,
        found[0].get("status"),
    ]
    assert found[:2] == [await alone(leader, topic, query) for topic in topics[:2]]


async def test_every_topic_gets_the_reason_when_there_is_no_broker() -> None:
    async with Cluster() as empty:
        node = await empty.start_leader()
        await empty.a_namespace()
        found = (await look_up(node, ["persistent://t/ns/x"] * 2)).json()["lookups"]
    assert found[0] == found[1]
    assert found[0]["status"] == 503
    assert "none of 0 registered brokers" in found[0]["reason"]


async def test_batch_lookup_leaves_no_audit_entry(cluster: Cluster) -> None:
    node = cluster.nodes[0]
    await look_up(node, ["persistent://t/ns/x"])
    operations = [entry.operation for entry in await node.node.audit.recent(0, 2**53, 100)]
    assert operations == ["PUT /admin/v2/namespaces/{tenant}/{namespace}"]


async def test_each_topic_counts_as_a_lookup(cluster: Cluster) -> None:
    node = cluster.nodes[0]
    await look_up(node, ["persistent://t/ns/x", "persistent://t/ns/y", "persistent://t/other/y"])
    shown = (await node.get("/metrics")).body.decode()
    assert 'loadmanager_lookup_seconds_count{cluster="standalone"} 2.0' in shown
    assert 'pulsar_broker_lookup_failures_total{cluster="standalone"} 1.0' in shown


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "body: topics: Field required"),
        (b"{", "body: "),
        (b'{"topics": []}', "body: topics: List should have at least 1 item"),
        (orjson.dumps({"topics": ["x"] * 1_001}), "body: topics: List should have at most 1000 items"),
        (b'{"topics": [1]}', "body: topics.0: "),
        (b'{"topics": "persistent://t/ns/x"}', "body: topics: "),
    ],
)
async def test_invalid_body_is_rejected(cluster: Cluster, body: bytes, complaint: str) -> None:
    reply = await cluster.nodes[0].ask("POST", LOOKUPS, data=body)
    assert (reply.status, reply.reason[: len(complaint)]) == (400, complaint)


async def test_batch_lookup_needs_the_role_of_a_lookup() -> None:
    async with Cluster() as closed:
        node = await closed.start_leader(**CLOSED)
        assert (await look_up(node, ["persistent://t/ns/x"])).status == 401
        assert (await look_up(node, ["persistent://t/ns/x"], headers=bearer(token_of("reader")))).status == 403
        found = (await look_up(node, ["persistent://t/ns/x"], headers=bearer(token_of("client")))).json()
        assert found["lookups"][0]["status"] == 404
