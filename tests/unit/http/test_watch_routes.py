from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import orjson
import pytest
from prometheus_client import CollectorRegistry
from pydantic import SecretStr
from support.delays import a_memory_cluster
from support.events import Events
from support.memory_store import MemoryStore
from support.nodes import Cluster, RunningNode, in_memory, topics_by_bundle
from support.tokens import CLOSED, SECRET, bearer, token_of
from support.waiting import eventually
from yarl import URL

from loadmanager.http import watch_hub
from loadmanager.http.metrics_text import WatchMetrics
from loadmanager.http.watch_hub import Hub
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror

WATCH = "/loadbalance/v1/watch"
TOPIC = "persistent://t/ns/x"


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster() as cluster:
        await cluster.start_leader()
        await cluster.a_broker("b1:8080")
        await cluster.a_namespace()
        yield cluster


@asynccontextmanager
async def watching(
    node: RunningNode,
    query: str = "namespace=t/ns",
    **options: Any,  # noqa: ANN401 - aiohttp's options
) -> AsyncIterator[Events]:
    async with node.http.get(f"{node.node.service_url}{WATCH}?{query}", **options) as answer:
        assert answer.status == 200, await answer.text()
        assert answer.headers["Content-Type"] == "text/event-stream"
        events = Events(answer)
        hello = await events.data("hello")
        assert hello == {"protocol": 1, "node": node.node.node_id, "heartbeatSeconds": 10}
        yield events


@asynccontextmanager
async def a_silent_reader(node: RunningNode) -> AsyncIterator[socket.socket]:
    """A watcher of `t/large`, whose snapshot is more than lies between it and the node, and who has read nothing."""
    url, loop = URL(node.node.service_url), asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.settimeout(0)
        await loop.sock_connect(client, (url.host or "", url.port or 0))
        await loop.sock_sendall(client, f"GET {WATCH}?namespace=t/large HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        yield client


async def test_watch_starts_with_a_snapshot_and_continues_with_changes(cluster: Cluster) -> None:
    (node,) = cluster.nodes
    bundles = node.node.mirror.namespaces["t/ns"].state.bundles
    async with watching(node) as events:
        assert await events.data("snapshot") == {
            "namespace": "t/ns",
            "version": 0,
            "hashFunction": "murmur3_32",
            "bundles": {text: {"state": "Free", "version": 0} for text in bundles.range_texts()},
            "brokers": {},
        }
        looked_up = (await node.lookup(TOPIC)).json()
        by_listener = (await node.lookup(f"{TOPIC}?listenerName=internal")).json()
        change = await events.data("change")
    assert change == {
        "namespace": "t/ns",
        "version": 1,
        "bundles": {node.bundle_of(TOPIC).removeprefix("t/ns/"): {"state": "Owned", "version": 1, "owner": "b1:8080"}},
        "brokers": {
            "b1:8080": {
                "incarnation": cluster.brokers["b1:8080"].registration.incarnation,
                "lookup": looked_up,
                "listeners": {"internal": by_listener},
            }
        },
    }


async def test_releasing_bundle_has_its_destination_and_lost_owner_is_omitted(cluster: Cluster) -> None:
    (node,) = cluster.nodes
    agent = cluster.brokers["b1:8080"]
    await node.lookup(TOPIC)
    bundle = node.bundle_of(TOPIC)
    text = bundle.removeprefix("t/ns/")
    await cluster.a_broker("b2:8080")
    agent.may_answer.clear()
    async with watching(node) as events:
        await events.next("snapshot")
        unload = f"/admin/v2/namespaces/{bundle}/unload?destinationBroker=b2:8080"
        unloading = asyncio.create_task(node.put(unload))
        moving = await events.data("change")
        assert moving["bundles"][text] == {
            "state": "Releasing",
            "version": 2,
            "owner": "b1:8080",
            "destination": "b2:8080",
        }
        assert list(moving["brokers"]) == ["b2:8080"]
        agent.may_answer.set()
        assert (await events.data("change"))["bundles"][text] == {"state": "Owned", "version": 3, "owner": "b2:8080"}
        assert (await unloading).status == 204
        await cluster.brokers["b2:8080"].leave()
        assert "owner" not in (await events.data("change"))["bundles"][text]


async def test_returning_watcher_gets_missed_changes_from_any_node(cluster: Cluster) -> None:
    leader = cluster.nodes[0]
    topics = topics_by_bundle(leader, "t/ns", 4)
    first, second, third, _ = topics
    async with watching(leader) as events:
        await events.next("snapshot")
        await leader.lookup(topics[first])
        seen = (await events.next("change"))["id"]
    standby = await cluster.start_node()
    async with watching(standby, headers={"Last-Event-ID": seen}) as events:
        await leader.lookup(topics[second])
        told = await events.next()
        assert told["event"] == "change"
        assert list(orjson.loads(told["data"])["bundles"]) == [second.removeprefix("t/ns/")]
    async with watching(standby, "namespace=t/ns"):
        await leader.lookup(topics[third])
        await cluster.known_everywhere(lambda node: node.ownership(third).version == 1)
        async with watching(standby, f"namespace=t/ns&from={told['id']}") as events:
            assert list((await events.data(""))["bundles"]) == [third.removeprefix("t/ns/")]


@pytest.mark.parametrize("id_", ["", "x", "t/ns", "t/ns@", "t/ns@x", "t/other@0", "t/ns@0000000000000000", "@,@"])
async def test_unknown_event_id_gets_a_snapshot(cluster: Cluster, id_: str) -> None:
    async with watching(cluster.nodes[0], headers={"Last-Event-ID": id_}) as events:
        assert (await events.next())["event"] == "snapshot"


async def test_missing_namespace_is_watched_until_it_exists(cluster: Cluster) -> None:
    (node,) = cluster.nodes
    async with watching(node, "namespace=t/ns&namespace=t/later&namespace=t/ns") as events:
        assert (await events.data("snapshot"))["namespace"] == "t/ns"
        gone = await events.next("gone")
        assert orjson.loads(gone["data"]) == {"namespace": "t/later", "reason": "namespace t/later not found"}
        await cluster.a_namespace("t/later")
        assert (await events.data("snapshot"))["namespace"] == "t/later"
        assert (await node.ask("DELETE", "/admin/v2/namespaces/t/later")).status == 204
        assert (await events.data("gone"))["namespace"] == "t/later"
    async with watching(node, f"namespace=t/later&namespace=t/ns&from={gone['id']}") as events:
        assert (await events.next())["event"] == "snapshot"


async def test_load_reports_are_not_sent_but_changed_addresses_are(cluster: Cluster) -> None:
    (node,) = cluster.nodes
    agent = cluster.brokers["b1:8080"]
    await node.lookup(TOPIC)
    async with watching(node) as events:
        await events.next("snapshot")
        await agent.report({**agent.record, "msgRateIn": 5.0})
        await eventually(lambda: node.node.mirror.brokers[agent.registration.broker].record["msgRateIn"] == 5.0)
        await agent.report({**agent.record, "pulsarServiceUrl": "pulsar://elsewhere:6650"})
        change = await events.data("")
    assert (change["bundles"], list(change["brokers"])) == ({}, ["b1:8080"])
    assert change["brokers"]["b1:8080"]["lookup"] == (await node.lookup(TOPIC)).json()


@pytest.mark.parametrize(
    ("query", "status", "complaint"),
    [
        ("", 400, "namespace: 0 of them; expected 1 to 64, such as ?namespace=tenant/namespace"),
        ("&".join(f"namespace=t/n{number}" for number in range(65)), 400, "namespace: 65 of them; expected 1 to 64"),
        ("namespace=t", 412, "namespace 't': expected 'tenant/namespace'"),
        ("namespace=t/ns&protocol=2", 400, "protocol '2': this node speaks 1; look topics up one by one, or"),
        ("namespace=t/ns&protocol=", 400, "protocol '': this node speaks 1"),
    ],
)
async def test_invalid_watch_is_rejected(cluster: Cluster, query: str, status: int, complaint: str) -> None:
    reply = await cluster.nodes[0].get(f"{WATCH}?{query}")
    assert (reply.status, reply.reason[: len(complaint)]) == (status, complaint)


async def test_watch_over_http_1_0_is_505_with_the_proxy_setting(cluster: Cluster) -> None:
    url = URL(cluster.nodes[0].node.service_url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(f"GET {WATCH}?namespace=t/ns HTTP/1.0\r\nHost: x\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.0 505 ")
    assert b"proxy_http_version 1.1" in answer


async def test_watchers_are_unlimited_without_a_connection_limit(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_hub, "connections_allowed", lambda _: math.inf)
    async with watching(cluster.nodes[0]) as stream:
        await stream.next("snapshot")


async def test_watchers_leave_connections_for_other_requests(cluster: Cluster) -> None:
    node = await cluster.start_node(max_http_server_connections=4)
    path = f"{WATCH}?namespace=t/ns"
    async with watching(node), watching(node), watching(node) as last:
        reply = await node.get(path)
        assert (reply.status, reply.reason[:19]) == (503, "3 watchers are here")
        await last.next("snapshot")

    async def has_room() -> bool:
        return (await node.ask("HEAD", path)).status == 200

    await eventually(has_room)


async def test_unknown_namespaces_are_not_kept(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    (node,) = cluster.nodes
    monkeypatch.setattr("loadmanager.http.watch_hub._MOST_UNKNOWN", 2)
    async with watching(node), watching(node, "namespace=t/a&namespace=t/b"):
        reply = await node.get(f"{WATCH}?namespace=t/c")
        assert (reply.status, reply.reason[:40]) == (503, "too many watched namespaces do not exist")
        await cluster.a_namespace("t/c")
        async with watching(node, "namespace=t/c") as events:
            assert (await events.next())["event"] == "snapshot"


async def test_slow_watcher_gets_the_newest_state(cluster: Cluster) -> None:
    (node,) = cluster.nodes
    await cluster.a_namespace("t/large", bundles={"numBundles": 8_192})
    async with a_silent_reader(node) as silent, watching(node, "namespace=t/large") as quick:
        await quick.next("snapshot")
        for number in range(20):
            await node.lookup(f"persistent://t/large/{number}")
            assert (await quick.data("change"))["version"] == number + 1
        assert max(each.transport.get_write_buffer_size() for each in node.connections if each.transport) < 40_000
        told = b""
        while b'"version":20,' not in told or not told.endswith(b"}}\n\n\r\n"):
            told += await asyncio.get_running_loop().sock_recv(silent, 1_000_000)
    assert told.count(b"event: snapshot\n") == 1
    assert told.count(b"event: change\n") <= 1


async def test_watcher_that_reads_nothing_is_cut_off(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    (node,) = cluster.nodes
    monkeypatch.setattr("loadmanager.http.watch_hub._SLOW_S", 0.5)
    await cluster.a_namespace("t/large", bundles={"numBundles": 8_192})

    async def cut_off() -> bool:
        shown = (await node.get("/metrics")).body.decode()
        return 'loadmanager_watchers_cut_off_total{cluster="standalone"} 1.0' in shown

    async with a_silent_reader(node):
        await eventually(cut_off)


async def test_idle_watcher_gets_heartbeats(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmanager.http.watch_hub.HEARTBEAT_S", 0.0)
    (node,) = cluster.nodes
    async with node.http.get(f"{node.node.service_url}{WATCH}?namespace=t/ns") as answer:
        read = b""
        while not read.endswith(b"\n\n: nothing new\n\n"):
            read += await answer.content.readany()


async def test_streams_end_with_the_node(cluster: Cluster) -> None:
    (node,) = cluster.nodes
    async with watching(node) as first, watching(node) as second:
        await first.next("snapshot")
        await node._runner.shutdown()
        for events in (first, second):
            await events.answer.read()  # to the end, and not broken off


async def test_watch_ends_when_its_token_becomes_invalid(tmp_path: Path) -> None:
    key = tmp_path / "secret.key"
    key.write_bytes(SECRET)
    client = bearer(token_of("client"))
    async with Cluster() as cluster:
        node = await cluster.start_leader(**{**CLOSED, "token_secret_key": SecretStr(str(key))})
        assert (await node.get(f"{WATCH}?namespace=t/ns")).status == 401
        async with watching(node, headers=client) as events:
            await events.next("gone")
            key.write_bytes(b"another secret of 32 bytes, or of more.")
            await events.answer.read()
        assert (await node.get(f"{WATCH}?namespace=t/ns", headers=client)).status == 401


async def test_watches_end_when_the_node_loses_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmanager.http.watch_hub._LOOK_S", 0.05)
    memory = a_memory_cluster()
    async with Cluster(in_memory(memory)) as cluster:
        _, node = await cluster.start_nodes(2)
        await cluster.a_namespace()
        assert isinstance(node.store, MemoryStore)
        async with watching(node) as events:
            memory.partition(node.store, noticed=True)
            await events.answer.read()
        refused = await node.get(f"{WATCH}?namespace=t/ns")
        assert (refused.status, "cut off" in refused.reason) == (503, True)
        memory.heal(node.store)
        await eventually(lambda: node.node.mirror.is_fresh)
        async with watching(node) as events:
            await events.next("snapshot")


async def test_single_stale_check_ends_no_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmanager.http.watch_hub._LOOK_S", 0.0)
    looks, ended_at = iter([False, True, False, True, False]), list[int]()

    class Blinking(ClusterMirror):
        @property
        def is_fresh(self) -> bool:
            return next(looks, False)

        @is_fresh.setter
        def is_fresh(self, _: bool) -> None: ...

    hub = Hub(Blinking(), lambda _: True, WatchMetrics(CollectorRegistry(), "test"))
    watcher = Mock(places=(), is_gone=False)
    watcher.end.side_effect = lambda: ended_at.append(len(list(looks)))
    with hub.has(watcher):
        await eventually(lambda: ended_at)
    assert ended_at[0] == 0, "only after two looks in a row"
    hub.close()
