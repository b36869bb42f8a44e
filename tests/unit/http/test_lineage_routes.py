from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.nodes import Cluster, a_leader
from support.waiting import eventually

from loadmanager.wire.store_records import NodeRecord

BUNDLE = "t/ns/0x00000000_0x80000000"
LIFE = f"/loadbalance/v1/history/bundle/{BUNDLE}"


async def test_lineage_continues_under_the_next_leader(tmp_path: Path) -> None:
    history = str(tmp_path / "history")
    async with Cluster() as cluster:
        first = await cluster.start_leader(history_url=history)
        await cluster.a_broker("b1:8080")
        await cluster.a_broker("b2:8080")
        lower, _ = await cluster.a_namespace("t/ns", bundles={"numBundles": 2})
        assert lower == BUNDLE
        await first.node.assigner.request(lower)
        source = first.ownership(BUNDLE).owner
        assert source is not None
        target = ({"b1:8080", "b2:8080"} - {source.broker}).pop()
        moved = await first.ask("PUT", f"/admin/v2/namespaces/{BUNDLE}/unload?destinationBroker={target}")
        assert moved.status == 204
        await cluster.start_node(history_url=history)
        await first.stop()
        second = await cluster.start_node(history_url=history)
        reply = await second.get(LIFE)
        assert reply.status == 200, reply
        life = reply.json()
    kinds = [entry["kind"] for entry in life["entries"]]
    assert kinds.count("leader") == 2
    assert [kind for kind in kinds if kind not in ("leader", "gap")] == ["operation", "place", "move", "operation"]
    move = next(entry for entry in life["entries"] if entry["kind"] == "move")
    assert (move["bundle"], move["source"], move["destination"], move["acted"]) == (BUNDLE, source.broker, target, True)
    orders = [entry["detail"]["path"] for entry in life["entries"] if entry["kind"] == "operation"]
    assert orders == ["/admin/v2/namespaces/t/ns", f"/admin/v2/namespaces/{BUNDLE}/unload"]
    assert {entry["epoch"] for entry in life["entries"]} == {1, 2}


async def test_lineages_recorded_on_different_nodes_are_merged(tmp_path: Path) -> None:
    async with Cluster() as cluster:
        first = await cluster.start_leader(history_url=str(tmp_path / "one"))
        await cluster.a_broker("b1:8080")
        lower, _ = await cluster.a_namespace("t/ns", bundles={"numBundles": 2})
        await first.node.assigner.request(lower)
        second = await cluster.start_node(history_url=str(tmp_path / "other"))
        await first.stop()
        await eventually(lambda: second.leads)
        assert "place" not in [entry["kind"] for entry in (await second.get(LIFE)).json()["entries"]]
        third = await cluster.start_node(history_url=str(tmp_path / "one"))
        silent = await cluster.start_node(history_url="")
        three = (second, third, silent)
        await eventually(lambda: all(len(node.node.mirror.nodes) == 3 for node in three))
        for node in three:
            life = (await node.get(LIFE)).json()
            kinds = [(entry["epoch"], entry["kind"]) for entry in life["entries"] if entry["kind"] != "operation"]
            assert (kinds, life["unheard"]) == ([(1, "leader"), (1, "place"), (2, "leader")], [])
        await silent.vanish()
        assert (await second.get(LIFE)).json()["unheard"] == [silent.node.node_id]


class _Leaving(dict[str, NodeRecord]):
    """Nodes of which each is there when they are listed, and gone when it is looked at."""

    def __getitem__(self, node: str) -> NodeRecord:
        raise KeyError(node)


async def test_node_that_leaves_during_a_request_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster() as cluster:
        leader = await cluster.start_leader(history_url=str(tmp_path / "history"))
        await cluster.start_node(history_url="")
        mirror = leader.node.mirror
        await eventually(lambda: len(mirror.nodes) == 2)
        monkeypatch.setattr(mirror, "nodes", _Leaving(mirror.nodes))
        assert [entry["kind"] for entry in (await leader.get(LIFE)).json()["entries"]] == ["leader"]


async def test_lineage_is_filtered_by_time_and_limited(tmp_path: Path) -> None:
    async with a_leader(history_url=str(tmp_path / "history")) as (_, leader):
        assert len((await leader.get(LIFE)).json()["entries"]) == 1
        now_ms = round(time.time() * 1000)
        later = (await leader.get(f"{LIFE}?since={now_ms + 60_000}&until={now_ms + 90_000}&limit=1")).json()
        assert (later["since"], later["until"], later["entries"]) == (now_ms + 60_000, now_ms + 90_000, [])
        assert (await leader.get(f"{LIFE}?since=-1")).status == 400
        assert (await leader.get(f"{LIFE}?limit=0")).status == 400
        assert (await leader.get(LIFE.replace("0x00000000", "0x0"))).status == 412


async def test_lineage_without_a_history_is_404_with_the_remedy() -> None:
    async with a_leader() as (_, leader):
        reply = await leader.get(LIFE)
        assert reply.status == 404
        assert "set historyUrl" in reply.json()["reason"]
        assert f"loadmanager admin decisions --bundle {BUNDLE}" in reply.json()["reason"]
