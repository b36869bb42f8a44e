from __future__ import annotations

import pytest
from support.nodes import Cluster, RunningNode


@pytest.fixture
async def node(cluster: Cluster) -> RunningNode:
    await cluster.a_broker()
    await cluster.a_namespace()
    return cluster.nodes[0]


LOOKUP = "/lookup/v2/topic"


async def test_lookup_has_the_form_of_pulsar(node: RunningNode) -> None:
    reply = await node.get(f"{LOOKUP}/persistent/t/ns/x")
    assert reply.status == 200
    assert reply.headers["Content-Type"] == "application/json"
    assert reply.json() == {
        "brokerId": "b1:8080",
        "brokerUrl": "pulsar://b1:6650",
        "httpUrl": "http://b1:8080",
        "nativeUrl": "pulsar://b1:6650",
        "brokerUrlSsl": "",
    }


async def test_topic_name_is_decoded_once_before_hashing(node: RunningNode) -> None:
    for encoded, name in (("a%2Fb", "a/b"), ("a%252Fb", "a%2Fb"), ("%C3%BC+%20", "ü+ "), ("x-partition-3",) * 2):
        reply = await node.get(f"{LOOKUP}/persistent/t/ns/{encoded}/bundle")
        assert f"t/ns/{reply.body.decode()}" == node.bundle_of(f"persistent://t/ns/{name}")


async def test_persistence_is_part_of_the_hashed_topic_name(cluster: Cluster) -> None:
    await cluster.a_namespace("t/ns", bundles={"numBundles": 64})
    node = cluster.nodes[0]
    found = [(await node.get(f"{LOOKUP}/{domain}/t/ns/x/bundle")).body for domain in ("persistent", "non-persistent")]
    expected = [node.bundle_of(f"{domain}://t/ns/x") for domain in ("persistent", "non-persistent")]
    assert [f"t/ns/{text.decode()}" for text in found] == expected
    assert expected[0] != expected[1]


async def test_bundle_of_a_topic_is_plain_text_and_stays_unassigned(node: RunningNode) -> None:
    reply = await node.get(f"{LOOKUP}/persistent/t/ns/x/bundle")
    assert (reply.status, reply.headers["Content-Type"]) == (200, "application/json; charset=utf-8")
    assert f"t/ns/{reply.body.decode()}" == node.bundle_of("persistent://t/ns/x")
    assert node.node.assigner.assignments == 0


@pytest.mark.parametrize("auto_create", ["", "?checkAllowAutoCreation=true", "?authoritative=false"])
async def test_topics_are_not_partitioned(node: RunningNode, auto_create: str) -> None:
    reply = await node.get(f"/admin/v2/persistent/t/ns/x/partitions{auto_create}")
    assert (reply.status, reply.json()) == (200, {"partitions": 0, "deleted": False, "properties": {}})


@pytest.mark.parametrize("path", ["{0}/{1}", "{0}/{1}/bundle"])
async def test_unknown_namespace_is_404_and_named(node: RunningNode, path: str) -> None:
    reply = await node.get(path.format(LOOKUP, "persistent/t/other/x"))
    assert (reply.status, reply.reason) == (404, "namespace t/other not found")


async def test_partitions_in_an_unknown_namespace_are_404(node: RunningNode) -> None:
    reply = await node.get("/admin/v2/persistent/t/other/x/partitions")
    assert (reply.status, reply.reason) == (404, "namespace t/other not found")


@pytest.mark.parametrize(
    ("topic", "complaint"),
    [
        ("persistent/t%20t/ns/x", "tenant 't t': expected letters, digits"),
        ("persistent/t/n%00s/x", "namespace 'n\\x00s': expected letters"),
        ("persistent/../ns/x", None),
        ("queue/t/ns/x", "topic domain 'queue': expected one of persistent, non-persistent"),
        (f"persistent/t/ns/{'x' * 3000}", "expected 1 to 2048 characters"),
        ("persistent/t/ns/a%00b", "expected 1 to 2048 characters"),
        ("persistent/t/ns/%FF", None),
        ("persistent/t/ns/%ED%A0%80", None),
        ("persistent/t/ns/%", None),
    ],
)
async def test_malformed_topic_is_refused(node: RunningNode, topic: str, complaint: str | None) -> None:
    reply = await node.get(f"{LOOKUP}/{topic}")
    if complaint is None:  # not the name that was meant, but some name: whatever becomes of it, it is no failure
        assert reply.status in {200, 400, 404, 412}
    else:
        assert reply.status == 412
        assert complaint in reply.reason
    assert (await node.lookup("persistent://t/ns/x")).status == 200


async def test_no_broker_is_503_with_retry_after(cluster: Cluster) -> None:
    await cluster.a_namespace()
    reply = await cluster.nodes[0].lookup("persistent://t/ns/x")
    assert (reply.status, reply.headers["Retry-After"]) == (503, "1")
    assert "none of 0 registered brokers" in reply.reason


async def test_listener_in_the_query_overrides_the_header(node: RunningNode) -> None:
    in_query = await node.get(f"{LOOKUP}/persistent/t/ns/x?listenerName=internal")
    in_header = await node.get(f"{LOOKUP}/persistent/t/ns/x", headers={"X-Pulsar-ListenerName": "internal"})
    both = await node.get(
        f"{LOOKUP}/persistent/t/ns/x?listenerName=internal", headers={"X-Pulsar-ListenerName": "other"}
    )
    for reply in (in_query, in_header, both):
        assert reply.json()["brokerUrl"] == "pulsar://b1.internal:6650"


@pytest.mark.parametrize("query", ["?listenerName=", "?", "?authoritative=true"])
async def test_broker_addresses_are_returned_without_a_listener_name(node: RunningNode, query: str) -> None:
    reply = await node.get(f"{LOOKUP}/persistent/t/ns/x{query}", headers={"X-Pulsar-ListenerName": ""})
    assert reply.json()["brokerUrl"] == "pulsar://b1:6650"


async def test_unknown_listener_is_500_and_named(node: RunningNode) -> None:
    reply = await node.get(f"{LOOKUP}/persistent/t/ns/x?listenerName=external")
    assert reply.status == 500
    assert reply.reason == "the broker b1:8080 has no advertised listener named 'external'"
