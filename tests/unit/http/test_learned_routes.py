from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from support.learned import learned
from support.nodes import Cluster, RunningNode, a_leader, settings, topics_by_bundle
from support.registrations import a_record, load_of
from support.waiting import eventually

from loadmanager.cli.replay_command import find_start, planner_settings_of, recorded_items
from loadmanager.history.files import Directory
from loadmanager.history.reader import History
from loadmanager.lab.decide.cluster_dump import collect_cluster
from loadmanager.lab.decide.dump_snapshot import snapshot_of
from loadmanager.lab.replay.replayer import replay
from loadmanager.store import paths

LEARNED = "/loadbalance/v1/learned"
HEAVY = learned({"t/ns": (1000.0, 1000.0, 1e6, 1e6)})


async def load_explained(node: RunningNode, bundle: str) -> dict[str, object]:
    reply = await node.get(f"/loadbalance/v1/explain/bundle/{bundle}")
    assert reply.status == 200, reply
    load: dict[str, object] = reply.json()["load"]
    return load


async def test_learned_loads_can_be_published_and_removed() -> None:
    async with a_leader() as (_, leader):
        assert (await leader.get(LEARNED)).json() == {}
        for _ in range(2):
            assert (await leader.put(LEARNED, json=HEAVY)).status == 204
            assert (await leader.get(LEARNED)).json() == HEAVY
        for _ in range(2):
            assert (await leader.ask("DELETE", LEARNED)).status == 204
            assert (await leader.get(LEARNED)).json() == {}


async def test_published_loads_are_kept_in_the_store_for_every_node() -> None:
    async with a_leader() as (cluster, leader):
        follower = await cluster.start_node()
        assert (await follower.put(LEARNED, json=HEAVY)).status == 204
        assert leader.node.mirror.operator_config.learned == HEAVY
        await cluster.known_everywhere(lambda node: node.node.mirror.operator_config.learned == HEAVY)
        assert (await (await cluster.start_node()).get(LEARNED)).json() == HEAVY


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"run": ""}, "run"),
        ({"namespaces": {"nonamespace": HEAVY["namespaces"]["t/ns"]}}, "nonamespace"),
        ({"namespaces": {"t/ns": {**HEAVY["namespaces"]["t/ns"], "msgRateIn": -1}}}, "namespaces.t/ns.msgRateIn"),
        ({"namespaces": {"t/ns": {**HEAVY["namespaces"]["t/ns"], "profile": [1.0]}}}, "namespaces.t/ns.profile"),
        ({"more": 1}, "more"),
    ],
)
async def test_bad_field_is_refused_and_changes_nothing(change: dict[str, object], said: str) -> None:
    async with a_leader() as (_, leader):
        reply = await leader.put(LEARNED, json={**HEAVY, **change})
        assert reply.status == 400
        assert said in reply.reason
        assert (await leader.get(LEARNED)).json() == {}


async def test_explanation_names_the_run_until_the_bundle_is_reported() -> None:
    async with a_leader() as (cluster, leader):
        agent = await cluster.a_broker("b1:8080")
        bundle, *_ = await cluster.a_namespace()
        assert (await load_explained(leader, bundle))["takenFrom"] is None
        assert (await leader.put(LEARNED, json=HEAVY)).status == 204
        load = await load_explained(leader, bundle)
        assert load["takenFrom"] == "load taken from what was learned of namespace t/ns on 2026-11-20, run run-1"
        assert load["longTerm"] == {
            "msgRateIn": 1000.0,
            "msgRateOut": 1000.0,
            "msgThroughputIn": 1e6,
            "msgThroughputOut": 1e6,
        }
        assert (await leader.lookup(topics_by_bundle(leader, "t/ns", 4)[bundle])).status == 200
        await agent.report(a_record("b1:8080", {bundle: load_of(5.0)}, agent_url=agent.url))
        await eventually(lambda: leader.node.mirror.model.count_samples(bundle) == (1, 1))
        assert (await load_explained(leader, bundle))["takenFrom"] is None


async def test_dump_contains_learned_loads_used_by_decisions() -> None:
    async with a_leader() as (cluster, leader):
        await cluster.a_broker("b1:8080")
        bundle, *_ = await cluster.a_namespace()
        profiled = {**HEAVY["namespaces"]["t/ns"], "profile": [1.0] * 168}
        assert (await leader.put(LEARNED, json={**HEAVY, "namespaces": {"t/ns": profiled}})).status == 204
        assert (await leader.lookup(topics_by_bundle(leader, "t/ns", 4)[bundle])).status == 200
        line = (await collect_cluster(cluster.store, 0, settings())).finish()
        assert line["learned"] == HEAVY
        proved = {**HEAVY, "namespaces": {"t/ns": {**profiled, "proved": True}}}
        assert (await leader.put(LEARNED, json=proved)).status == 204
        carried = (await collect_cluster(cluster.store, 0, settings())).finish()
        assert carried["learned"] == proved
        assert list(snapshot_of(carried, 0.0, "line 1").learned.profiles) == ["t/ns"]
        live, read = leader.node.mirror.model.snapshot(0.0, 0.0), snapshot_of(line, 0.0, "line 1")
        row = read.bundles.find_row(bundle)
        assert row is not None
        assert read.bundles.long[row].tolist() == live.bundles.long[0].tolist() == [1000.0, 1000.0, 1e6, 1e6]
        assert read.brokers.preallocated.tolist() == live.brokers.preallocated.tolist()


async def test_history_with_learned_loads_replays_to_the_same_decisions(tmp_path: Path) -> None:
    async with Cluster() as cluster:
        leader = await cluster.start_leader(history_url=str(tmp_path))
        await cluster.a_broker("b1:8080")
        await cluster.a_broker("b2:8080")
        await cluster.a_namespace("t/before")
        assert (await leader.put(LEARNED, json=HEAVY)).status == 204
        await cluster.a_namespace()
        for namespace in ("t/before", "t/ns"):
            for topic in topics_by_bundle(leader, namespace, 4).values():
                assert (await leader.lookup(topic)).status == 200
    history = History(Directory.of(str(tmp_path)))
    kinds = [row["kind"] for row in history.rows("events")]
    assert "learned" in kinds
    outcome = replay(recorded_items(history, find_start(history, None), None), planner_settings_of)
    assert outcome.is_equal, outcome
    assert outcome.compared["place"] == 8


async def test_stored_record_is_plain_json() -> None:
    async with a_leader() as (cluster, leader):
        assert (await leader.put(LEARNED, json=HEAVY)).status == 204
        znode = await cluster.store.get(paths.LEARNED)
        assert znode is not None
        assert orjson.loads(znode.data) == HEAVY
