from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from support.nodes import Cluster, RunningNode, lookup_timeout, topics_by_bundle
from support.pulsar_harness import pulsar_harness
from support.tokens import CLOSED, bearer, token_of
from support.waiting import eventually, patience

from loadmanager.http.audit_middleware import differing
from loadmanager.http.openapi import PATH
from loadmanager.leader.audit.audit_log import AuditTrail
from loadmanager.leader.audit.history_recorder import MOST_WAITING
from loadmanager.net.auth.gate import AccessRole
from loadmanager.net.request_ids import REQUEST_ID_HEADER
from loadmanager.wire.http_bodies import BUNDLE_VERSION_HEADER
from loadmanager.wire.lineage_bodies import AuditEntry

AUDIT = "/loadbalance/v1/audit"
CONTROLS_OF = "/loadbalance/v1/bundles/t/ns/0x00000000_0x80000000"
NAMES = {
    "tenant": "t",
    "namespace": "ns",
    "range": "0x00000000_0x80000000",
    "broker": "b1:8080",
    "cluster": "standalone",
    "policy": "p",
    "failureDomain": "d",
    "key": "loadBalancerSheddingEnabled",
    "value": "false",
    "hash": "0" * 64,
}


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster() as cluster:
        yield cluster


async def entries(node: RunningNode, **query: object) -> list[dict[str, Any]]:
    reply = await node.get(AUDIT, params={name: str(value) for name, value in query.items()})
    assert reply.status == 200, reply
    found: list[dict[str, Any]] = reply.json()["entries"]
    return found


def changing(document: dict[str, Any]) -> list[tuple[str, str]]:
    """The verb and the path of each operation that is no question, as lookups are whatever their verb."""
    return [
        (method.upper(), path)
        for path, methods in document["paths"].items()
        for method, described in methods.items()
        if method != "get" and described["x-role"] != AccessRole.LOOKUP
    ]


def filled(path: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: NAMES[match[1]], path)


async def test_every_changing_operation_leaves_an_audit_entry(cluster: Cluster) -> None:
    node = await cluster.start_leader()
    operations = changing((await node.get(PATH)).json())
    assert len(operations) > 25
    for number, (method, path) in enumerate(operations):
        before_ms = round(time.time() * 1000) - 1
        reply = await node.ask(method, filled(path), headers={REQUEST_ID_HEADER: f"walk-{number}"})
        (entry,) = [each for each in await entries(node) if each["requestId"] == f"walk-{number}"]
        assert entry["operation"] == f"{method} {path}"
        assert entry["path"] == filled(path)
        assert entry["status"] == reply.status
        assert (entry["who"], entry["from"], entry["node"]) == ("anonymous", "127.0.0.1", node.node.node_id)
        assert before_ms <= entry["at"] <= round(time.time() * 1000) + 1


async def test_every_changing_operation_beside_a_pulsar_leaves_an_audit_entry(tmp_path: Path) -> None:
    async with pulsar_harness(tmp_path, bundles=2) as harness:
        node = await harness.leader()
        operations = changing((await harness.ask(node, "GET", PATH)).json())
        for number, (method, path) in enumerate(operations):
            reply = await harness.ask(node, method, filled(path), headers={REQUEST_ID_HEADER: f"walk-{number}"})
            found = (await harness.ask(node, "GET", AUDIT)).json()["entries"]
            (entry,) = [each for each in found if each["requestId"] == f"walk-{number}"]
            assert (entry["operation"], entry["status"]) == (f"{method} {path}", reply.status)


async def test_entry_has_the_state_before_and_after(cluster: Cluster) -> None:
    node = await cluster.start_leader()
    await cluster.a_broker("b1:8080")
    await cluster.a_broker("b2:8080")
    await cluster.a_namespace(bundles={"numBundles": 2})

    async def changed(method: str, path: str, **options: Any) -> tuple[object, object]:  # noqa: ANN401 - aiohttp's options
        reply = await node.ask(method, path, **options)
        assert reply.status < 300, reply
        newest = (await entries(node, limit=1))[0]
        return newest["before"], newest["after"]

    bundle = "t/ns/0x00000000_0x80000000"
    pin, group = f"{CONTROLS_OF}/pin", "/admin/v2/namespaces/t/ns/antiAffinity"
    key = "/admin/v2/brokers/configuration/loadBalancerSheddingEnabled"
    policy = "/admin/v2/clusters/standalone/namespaceIsolationPolicies/p"
    drain = "/loadbalance/v1/brokers/b1:8080/drain"
    data = {"namespaces": ["x/.*"], "primary": ["b1.*"], "secondary": []}

    assert await changed("PUT", pin, json={"broker": "b1:8080"}) == (
        {"pinned": {bundle: None}},
        {"pinned": {bundle: "b1:8080"}},
    )
    assert await changed("PUT", pin, json={"broker": "b2:8080"}) == (
        {"pinned": {bundle: "b1:8080"}},
        {"pinned": {bundle: "b2:8080"}},
    )
    assert await changed("PUT", pin, json={"broker": "b2:8080"}) == (None, None)
    assert await changed("PUT", "/loadbalance/v1/freeze", json={"reason": "night"}) == (
        {"frozen": ""},
        {"frozen": "night"},
    )
    assert await changed("POST", group, data="g") == ({"t/ns": None}, {"t/ns": "g"})
    assert await changed("DELETE", group) == ({"t/ns": "g"}, {"t/ns": None})
    name = "loadBalancerSheddingEnabled"
    assert await changed("POST", f"{key}/false") == ({name: None}, {name: "false"})
    assert await changed("DELETE", key) == ({name: "false"}, {name: None})
    assert await changed("POST", policy, json=data) == ({"p": None}, {"p": data})
    assert await changed("DELETE", policy) == ({"p": data}, {"p": None})
    before, after = await changed("PUT", drain)
    assert before is None
    assert isinstance(after, dict)
    assert await changed("DELETE", drain) == (after, None)
    assert await changed("PUT", "/admin/v2/namespaces/t/new") == (None, {"bundles": 4, "hashFunction": "murmur3_32"})


async def test_refused_operation_has_no_state_before_and_after(cluster: Cluster) -> None:
    node = await cluster.start_leader()
    reply = await node.put("/loadbalance/v1/brokers/b9:8080/exclusion")
    assert reply.status == 404
    (entry,) = await entries(node)
    assert (entry["status"], entry["before"], entry["after"]) == (404, None, None)


async def test_large_state_is_replaced_by_its_size(cluster: Cluster) -> None:
    node = await cluster.start_leader()
    domain = "/admin/v2/clusters/standalone/failureDomains/d"
    reply = await node.ask("POST", domain, json={"brokers": [f"broker-{number}:8080" for number in range(1_000)]})
    assert reply.status == 204, reply
    (entry,) = await entries(node)
    assert entry["before"] == {"d": None}
    assert entry["after"]["bytesLeftOut"] > 10_000


async def test_forwarded_operation_leaves_one_entry_with_its_origin(cluster: Cluster) -> None:
    leader, other = await cluster.start_nodes(2)
    reply = await other.put("/loadbalance/v1/freeze", json={"reason": "x"}, headers={REQUEST_ID_HEADER: "mine"})
    assert (reply.status, reply.headers[REQUEST_ID_HEADER]) == (204, "mine")
    (entry,) = await entries(other)
    assert entry["requestId"] == "mine"
    assert entry["from"] == "127.0.0.1 via 127.0.0.1"
    assert entry["node"] == leader.node.node_id


async def test_client_address_headers_of_strangers_are_ignored(cluster: Cluster) -> None:
    node = await cluster.start_leader()
    headers = {"X-Forwarded-For": "10.9.9.9", "X-Loadmanager-Client": "10.9.9.8", "Forwarded": "for=10.9.9.7"}
    await node.put("/loadbalance/v1/freeze", json={"reason": "x"}, headers=headers)
    (entry,) = await entries(node)
    assert entry["from"] == "127.0.0.1"
    await node.put("/loadbalance/v1/dry-run", headers={**headers, "X-Loadmanager-Forwarded": "me"})
    assert (await entries(node))[0]["from"] == "10.9.9.8 via 127.0.0.1"


async def test_control_characters_in_a_path_stay_escaped(cluster: Cluster) -> None:
    node = await cluster.start_leader()
    assert (await node.put("/admin/v2/namespaces/%1B%5D0;mine%07/ns")).status == 412
    (entry,) = await entries(node)
    assert entry["path"] == "/admin/v2/namespaces/%1B%5D0;mine%07/ns"


async def test_operation_without_a_leader_is_audited_where_it_arrived(cluster: Cluster) -> None:
    with lookup_timeout(0.3):
        leader, other = await cluster.start_nodes(2)
    await leader.vanish()
    reply = await other.put("/loadbalance/v1/freeze", json={"reason": "x"})
    noted = list(other.node.audit.newest(10))
    assert [(each.operation, each.status) for each in noted] == [("PUT /loadbalance/v1/freeze", reply.status)]


async def test_principal_is_recorded_for_refused_and_forwarded_operations() -> None:
    async with Cluster() as cluster:
        leader, other = await cluster.start_nodes(2, **CLOSED)

        async def noted(node: RunningNode, *headers: dict[str, str]) -> list[tuple[str, int]]:
            for each in headers:
                await node.put("/loadbalance/v1/dry-run", headers=each)
            return [(each.who, each.status) for each in node.node.audit.newest(10)]

        assert await noted(leader, bearer(token_of("operator")), bearer(token_of("reader")), {}) == [
            ("anonymous", 401),
            ("reader", 403),
            ("operator", 204),
        ]
        assert await noted(other, bearer(token_of("reader")), {}) == [("anonymous", 401), ("reader", 403)]
        await noted(other, bearer(token_of("operator")))
        newest = leader.node.audit.newest(1)[0]
        assert (newest.who, newest.from_, newest.status) == ("operator", "127.0.0.1 via 127.0.0.1", 204)


async def test_refused_operations_are_rate_limited_and_evict_no_entry(cluster: Cluster) -> None:
    node = await cluster.start_leader()
    assert (await node.put("/loadbalance/v1/freeze", json={"reason": "x"})).status == 204
    for _ in range(300):
        assert (await node.put("/loadbalance/v1/freeze", json={})).status == 400
    found = await entries(node, limit=2_000)
    assert 120 <= len(found) - 1 < 300
    assert found[-1]["status"] == 204


async def test_entries_are_filtered_by_time_and_limited(cluster: Cluster) -> None:
    node = await cluster.start_leader()
    for _ in range(3):
        await node.put("/loadbalance/v1/dry-run")
        await asyncio.sleep(0.002)
    newest, middle, oldest = await entries(node)
    assert [newest["at"], middle["at"], oldest["at"]] == sorted(each["at"] for each in (newest, middle, oldest))[::-1]
    assert await entries(node, limit=1) == [newest]
    assert await entries(node, since=middle["at"]) == [newest, middle]
    assert await entries(node, until=newest["at"]) == [middle, oldest]
    assert await entries(node, since=middle["at"], until=newest["at"]) == [middle]
    assert (await node.get(f"{AUDIT}?limit=0")).status == 400
    assert (await node.get(f"{AUDIT}?since=yesterday")).status == 400


async def test_new_leader_reads_entries_of_its_predecessor_from_the_history(tmp_path: Path) -> None:
    async with Cluster() as cluster:
        first = await cluster.start_leader(history_url=str(tmp_path))
        await first.put("/loadbalance/v1/freeze", json={"reason": "before"})
        (before,) = await entries(first)
        await first.stop()
        second = await cluster.start_node(history_url=str(tmp_path))
        await eventually(lambda: second.leads)
        await second.ask("DELETE", "/loadbalance/v1/freeze")
        found = await entries(second)
        assert [each["operation"][:6] for each in found] == ["DELETE", "PUT /l"]
        assert found[1] == before


async def test_entries_with_the_same_id_and_time_are_both_kept(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await cluster.start_leader()
    moment = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: moment)
    for reason in ("one", "two"):
        await node.put("/loadbalance/v1/freeze", json={"reason": reason}, headers={REQUEST_ID_HEADER: "same"})
    monkeypatch.undo()
    assert len(await entries(node)) == 2


async def test_history_is_read_for_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[object] = []
    may_end = threading.Event()

    def read(*asked: object) -> list[AuditEntry]:
        begun.append(asked)
        may_end.wait(patience())
        return []

    monkeypatch.setattr(AuditTrail, "_read", read)
    async with Cluster() as cluster:
        node = await cluster.start_leader(history_url=str(tmp_path))
        asked = [asyncio.create_task(node.get(AUDIT)) for _ in range(MOST_WAITING + 2)]
        try:
            await eventually(lambda: any(each.done() for each in asked))
            assert len(begun) == 1
        finally:
            may_end.set()
        statuses = [reply.status for reply in await asyncio.gather(*asked)]
        assert sorted(statuses) == [200] * (MOST_WAITING + 1) + [503]


async def test_audit_log_file_has_one_line_per_entry(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    async with Cluster() as cluster:
        node = await cluster.start_leader(audit_log_file=str(path))
        await node.put("/loadbalance/v1/freeze", json={"reason": "x"})
        found = await entries(node)
    assert [orjson.loads(line) for line in path.read_text().splitlines()] == found


async def test_valid_request_id_is_kept_and_others_are_replaced(cluster: Cluster) -> None:
    node = await cluster.start_leader()
    for path in ("/healthz", "/no/such/path", "/lookup/v2/topic/persistent/t/ns/x", PATH):
        made = (await node.get(path)).headers[REQUEST_ID_HEADER]
        assert re.fullmatch(r"[0-9a-f]{10}-[0-9a-f]+", made)
        assert (await node.get(path, headers={REQUEST_ID_HEADER: "a-1.b:2_c"})).headers[
            REQUEST_ID_HEADER
        ] == "a-1.b:2_c"
        for strange in ("", "two words", "x" * 65, "é"):
            taken = (await node.get(path, headers={REQUEST_ID_HEADER: strange})).headers[REQUEST_ID_HEADER]
            assert re.fullmatch(r"[0-9a-f]{10}-[0-9a-f]+", taken), strange


async def test_malformed_request_is_answered_with_an_id(cluster: Cluster) -> None:
    node = await cluster.start_leader()
    host, _, port = node.node.node_id.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"\x00\x01 garbage\r\n\r\n")
    answer = await reader.read()
    writer.close()
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 "))
    assert f"\r\n{REQUEST_ID_HEADER}: ".lower().encode() in answer.lower()


async def test_request_id_reaches_the_agent_and_the_logs(cluster: Cluster) -> None:
    node = await cluster.start_leader()
    agents = [await cluster.a_broker(broker) for broker in ("b1:8080", "b2:8080")]
    bundle, _ = await cluster.a_namespace(bundles={"numBundles": 2})
    topics = ["persistent://t/ns/x", "persistent://t/ns/y", "persistent://t/ns/z"]
    for topic in topics:
        await node.lookup(topic)
    moved = node.bundle_of(topics[0])
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as logs:
        path = f"/admin/v2/namespaces/{moved}/unload"
        assert (await node.put(path, headers={REQUEST_ID_HEADER: "by-hand"})).status == 204
    ((_, headers),) = [each for agent in agents for each in agent.unloads]
    assert headers[REQUEST_ID_HEADER] == "by-hand"
    assert headers[BUNDLE_VERSION_HEADER]
    (unloaded,) = [each for each in logs if each["event"] == "unloaded"]
    assert unloaded["request_id"] == "by-hand"
    assert bundle


async def test_queued_move_keeps_the_id_of_its_own_request(cluster: Cluster) -> None:
    node = await cluster.start_leader(max_concurrent_unloads=1)
    agent = await cluster.a_broker()
    bundles = await cluster.a_namespace(bundles={"numBundles": 4})
    for topic in topics_by_bundle(node, "t/ns", 4).values():
        await node.lookup(topic)
    await asyncio.gather(
        *(
            node.put(f"/admin/v2/namespaces/{bundle}/unload", headers={REQUEST_ID_HEADER: f"for-{bundle[-21:]}"})
            for bundle in bundles
        )
    )
    said = {path.split("/")[-2]: headers[REQUEST_ID_HEADER] for path, headers in agent.unloads}
    assert said == {bundle.rpartition("/")[2]: f"for-{bundle[-21:]}" for bundle in bundles}


JSON = st.recursive(
    st.booleans() | st.integers(0, 3) | st.sampled_from("ab"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=8,
)


@given(before=st.none() | JSON, after=st.none() | JSON)
def test_differing_returns_exactly_the_changed_keys(before: Any, after: Any) -> None:  # noqa: ANN401 - JSON
    old, new = differing(before, after)
    if before == after:
        assert (old, new) == (None, None)
        return
    assert old != new
    if isinstance(before, dict) and isinstance(after, dict):
        assert isinstance(old, dict)
        assert isinstance(new, dict)
        assert old.keys() == new.keys() == {k for k in {**before, **after} if before.get(k) != after.get(k)}
    else:
        assert (old, new) == (before, after)


async def test_reads_leave_no_entry(cluster: Cluster) -> None:
    node = await cluster.start_leader()
    for path in ("/loadbalance/v1/controls", "/loadbalance/v1/decisions", "/metrics"):
        await node.get(path)
    assert await entries(node) == []


async def test_path_is_recorded_as_it_was_sent(cluster: Cluster) -> None:
    node = await cluster.start_leader()
    for method, path in changing((await node.get(PATH)).json()):
        strange = re.sub(r"\{(\w+)\}", "%FF%ED%A0%80%00%09%22", path)
        assert (await node.ask(method, strange)).status < 500, (method, path)
        newest = (await entries(node, limit=1))[0]
        assert newest["path"] == strange
