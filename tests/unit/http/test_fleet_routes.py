from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest
from pydantic import SecretStr
from support.events import Events
from support.memory_store import MemoryStore
from support.nodes import Cluster, RunningNode
from support.registrations import a_record, load_of
from support.tokens import CLOSED, SECRET, bearer, token_of
from support.waiting import eventually, patience
from yarl import URL

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Registration

FLEET = "/loadbalance/v1/fleet"
LIVE = "/loadbalance/v1/live"
BRIEFING = "/loadbalance/v1/briefing"
TOPIC = "persistent://t/ns/x"


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster() as cluster:
        await cluster.start_leader()
        await cluster.a_broker("b1:8080", a_record("b1:8080", {"t/ns/0x00000000_0x40000000": load_of(1.0)}, cpu=40))
        await cluster.a_broker("b2:8080", a_record("b2:8080", cpu=10))
        await cluster.a_namespace()
        yield cluster


@asynccontextmanager
async def a_stream(node: RunningNode, headers: Mapping[str, str] | None = None) -> AsyncIterator[Events]:
    async with node.http.get(f"{node.node.service_url}{LIVE}", headers=headers) as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "text/event-stream"
        yield Events(answer)


async def test_fleet_has_a_column_per_figure_and_names_the_leader(cluster: Cluster) -> None:
    (node,) = cluster.nodes
    await node.lookup(TOPIC)
    assert (await node.put("/loadbalance/v1/freeze", json={"reason": "night"})).status == 204
    node.node.live.apply({"loadBalancerSheddingEnabled": "false"})
    await node.node.stuck_monitor.look()
    fleet = (await node.get(FLEET)).json()
    brokers = fleet["brokers"]
    assert brokers["id"] == ["b1:8080", "b2:8080"]
    assert (brokers["cpu"], brokers["highest"], fleet["mean"]) == ([40, 10], [40, 10], 25)
    assert sum(brokers["bundles"]) == 1
    assert (fleet["bundles"], fleet["unowned"]) == (4, 3)
    assert brokers["state"] == ["active", "active"]
    assert brokers["throughput"][0] > 0
    assert fleet["leader"] == {"id": node.node.node_id, "url": node.node.service_url, "epoch": 1}
    assert fleet["isWhole"]
    assert fleet["openToAnyone"]
    assert fleet["lowerBound"] is None
    assert fleet["size"]["needed"] == 2
    assert "after the loss of a broker" in fleet["size"]["sentence"]
    cannot_move = {each["key"]: each["sentence"] for each in fleet["balancing"].pop("cannotMove")}
    assert cannot_move["loadBalancerSheddingEnabled"].startswith("Nothing can move because")
    assert fleet["balancing"] == {"frozen": "night", "dryRun": False, "breaker": None, "limits": []}


async def test_node_without_a_lease_names_no_leader(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    (node,) = cluster.nodes
    monkeypatch.setattr(MemoryStore, "lease_valid_until_s", property(lambda _: 0.0))
    assert (await node.get(FLEET)).json()["leader"] is None


async def test_node_whose_mirror_is_of_a_former_session_names_no_leader(cluster: Cluster) -> None:
    (node,) = cluster.nodes
    node.node.mirror.is_of_former_session = True
    assert (await node.get(FLEET)).json()["leader"] is None


async def test_drain_is_the_state_of_a_broker(cluster: Cluster) -> None:
    (node,) = cluster.nodes
    await node.put("/loadbalance/v1/brokers/b2:8080/drain")
    fleet = (await node.get(FLEET)).json()
    assert dict(zip(fleet["brokers"]["id"], fleet["brokers"]["state"], strict=True)) == {
        "b1:8080": "active",
        "b2:8080": "draining",
    }
    assert [drain["broker"] for drain in fleet["drains"]] == ["b2:8080"]


async def test_broker_without_a_readable_record_is_listed(cluster: Cluster) -> None:
    (node,) = cluster.nodes
    unreadable = BrokerId("b0:8080")
    node.node.mirror.registrations[unreadable] = Registration(unreadable, 7)
    brokers = (await node.get(FLEET)).json()["brokers"]
    assert brokers["id"] == ["b1:8080", "b2:8080", "b0:8080"]
    assert brokers["state"][2] == "unreadable"
    assert brokers["reportedAt"][2] is None
    assert {len(column) for column in brokers.values()} == {3}


async def test_lower_bound_of_the_last_round_is_computed_on_request(cluster: Cluster) -> None:
    (node,) = cluster.nodes
    await node.lookup(TOPIC)
    await node.node.shedding.run_round()

    async def bound() -> float | None:
        found: float | None = (await node.get(FLEET)).json()["lowerBound"]
        return found

    assert await bound() is None

    async def is_known() -> bool:
        return await bound() is not None

    await eventually(is_known)
    assert 0 <= (await bound() or 0.0) <= 40


async def test_standby_merges_its_view_with_the_leaders(cluster: Cluster) -> None:
    leader = cluster.nodes[0]
    standby = await cluster.start_node()
    await cluster.known_everywhere(lambda node: len(node.node.mirror.model.summary().brokers) == 2)
    await leader.put("/loadbalance/v1/brokers/b2:8080/drain")
    await cluster.known_everywhere(lambda node: node.node.mirror.operator_config.controls.draining)
    fleet = (await standby.get(FLEET)).json()
    assert fleet["isWhole"]
    assert [drain["broker"] for drain in fleet["drains"]] == ["b2:8080"]
    assert fleet["node"] == standby.node.node_id

    standby.node.mirror.leader = None
    fleet = (await standby.get(FLEET)).json()
    assert (fleet["isWhole"], fleet["leader"], fleet["drains"]) == (False, None, [])
    assert fleet["brokers"]["state"] == ["active", "draining"]


@pytest.mark.parametrize("through", ["leader", "standby"])
async def test_stream_starts_with_the_fleet(cluster: Cluster, through: str) -> None:
    leader = cluster.nodes[0]
    node = leader if through == "leader" else await cluster.start_node()
    await cluster.known_everywhere(lambda each: len(each.node.mirror.model.summary().brokers) == 2)
    await cluster.known_everywhere(lambda each: each.node.mirror.leader is not None)
    async with a_stream(node) as events:
        assert (await events.data("fleet"))["unowned"] == 4
        await leader.lookup(TOPIC)
        told = await events.next("decision")
        assert orjson.loads(told["data"])["kind"] == "assign"
    async with a_stream(node) as events:
        while (await events.data("fleet"))["unowned"] != 3:
            pass
    await leader.node.shedding.run_round()
    async with a_stream(node, {"Last-Event-ID": told["id"]}) as events:
        again = await events.data("decision")
        assert again["sequence"] == orjson.loads(told["data"])["sequence"] + 1


async def test_operations_are_streamed_and_repeated_after_a_reconnection(cluster: Cluster) -> None:
    leader, standby = cluster.nodes[0], await cluster.start_node()
    await cluster.known_everywhere(lambda each: each.node.mirror.leader is not None)
    freeze = {"json": {"reason": "night"}, "headers": {"X-Request-ID": "of-this-test"}}
    async with a_stream(standby) as events:
        await events.next("fleet")
        assert (await standby.put("/loadbalance/v1/freeze", **freeze)).status == 204
        told = await events.next("operation")
        assert orjson.loads(told["data"])["requestId"] == "of-this-test"
    await leader.ask("DELETE", "/loadbalance/v1/freeze")
    async with a_stream(leader, {"Last-Event-ID": told["id"]}) as events:
        missed = await events.data("operation")
        assert missed["operation"] == "DELETE /loadbalance/v1/freeze"


async def test_stream_continues_under_another_leader(cluster: Cluster) -> None:
    standby = await cluster.start_node()
    await cluster.known_everywhere(lambda node: len(node.node.mirror.model.summary().brokers) == 2)
    async with a_stream(standby) as events:
        assert (await events.data("fleet"))["leader"]["epoch"] == 1
        await cluster.nodes[0].stop()
        await eventually(lambda: standby.leads)
        while ((await events.data("fleet"))["leader"] or {}).get("id") != standby.node.node_id:
            pass
        await standby.lookup(TOPIC)
        assert (await events.data("decision"))["epoch"] == 2


async def test_streams_are_bounded_and_end_with_the_node(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    (node,) = cluster.nodes
    monkeypatch.setattr("loadmanager.http.fleet_routes._MAX_STREAMS", 2)
    async with a_stream(node) as first, a_stream(node) as second:
        reply = await node.get(LIVE)
        assert (reply.status, reply.reason) == (503, "2 streams are open: ask another node")
        await first.next("fleet")
        await node._runner.shutdown()
        rest = await asyncio.wait_for(second.answer.content.read(), patience())
        assert rest.endswith(b"\n\n")
        assert (await first.answer.content.read()) is not None


async def test_closed_reader_frees_its_place(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    (node,) = cluster.nodes
    monkeypatch.setattr("loadmanager.http.fleet_routes._MAX_STREAMS", 1)
    for _ in range(2):
        async with a_stream(node) as events:
            await events.next("fleet")

        async def has_room() -> bool:
            return (await node.ask("HEAD", LIVE)).status == 200

        await eventually(has_room)


async def test_stalled_reader_is_cut_off(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    (node,) = cluster.nodes
    monkeypatch.setattr("loadmanager.http.fleet_routes._MAX_STREAMS", 2)
    monkeypatch.setattr("loadmanager.http.fleet_routes._SLOW_S", 2.5)
    node.node.mirror.faults["/large"] = "x" * 10_000_000  # more than lies between two sockets
    url = URL(node.node.service_url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(f"GET {LIVE} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    async with a_stream(node) as events:
        assert "/large" in (await events.data("fleet"))["faults"]

        async def is_cut_off() -> bool:
            return (await node.ask("HEAD", LIVE)).status == 200

        await eventually(is_cut_off)
    assert not reader.at_eof()
    writer.close()


@pytest.mark.parametrize("after", ["", "x", "1:2", "-1:2:3"])
async def test_invalid_mark_is_rejected(cluster: Cluster, after: str) -> None:
    reply = await cluster.nodes[0].get(f"{BRIEFING}?after={after}")
    assert reply.status == 400
    assert "expected the mark of an answer" in reply.reason


async def test_stream_ends_when_its_token_becomes_invalid(tmp_path: Path) -> None:
    key = tmp_path / "secret.key"
    key.write_bytes(SECRET)
    reader = bearer(token_of("reader"))
    async with Cluster() as cluster:
        node = await cluster.start_leader(**{**CLOSED, "token_secret_key": SecretStr(str(key))})
        async with a_stream(node, reader) as events:
            await events.next("fleet")
            key.write_bytes(b"another secret of 32 bytes, or of more.")
            async with asyncio.timeout(patience()):
                await events.answer.read()
        assert (await node.get(FLEET, headers=reader)).status == 401
