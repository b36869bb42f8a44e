from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import numpy as np
import orjson
from pydantic import TypeAdapter
from support.nodes import Cluster, RunningNode, a_leader, settings
from support.registrations import a_record, load_of, write
from support.waiting import eventually

from loadmanager.core.domain.names import TopicName
from loadmanager.core.domain.ownership import OwnershipState
from loadmanager.core.domain.plan import Plan, Unload
from loadmanager.core.domain.reasons import SheddingReason
from loadmanager.lab.decide.cluster_dump import collect_cluster, configuration_of
from loadmanager.lab.decide.dump_decision import DecidedLine, ShedDecider
from loadmanager.lab.decide.dump_snapshot import snapshot_of
from loadmanager.lab.decide.record_collector import Collected
from loadmanager.store import paths
from loadmanager.wire.broker_data import LocalBrokerData
from loadmanager.wire.dump_line import DumpedBroker, DumpLine, encode

NAMESPACE = "t/ns"
TAKEN_AT_MS = 1_700_000_060_000


async def report(
    cluster: Cluster, leader: RunningNode, broker_id: str, bundles: Sequence[str], cpu: float, load: float = 20.0
) -> None:
    """The broker reports these bundles, each with so many MiB/s in and out, and the leader has taken it in."""
    applied = leader.node.intake.reports_applied
    broker = cluster.brokers[broker_id]
    record = a_record(broker_id, {name: load_of(load) for name in bundles}, agent_url=broker.url, cpu=cpu)
    record["startTimestamp"] = 5
    await broker.report(record)
    await eventually(lambda: leader.node.intake.reports_applied > applied)


async def hot_and_idle(cluster: Cluster, leader: RunningNode) -> list[str]:
    """b1 owns and reports all bundles of a namespace; b2 has nothing to do."""
    await cluster.a_broker("b1:8080")
    bundles = await cluster.a_namespace(NAMESPACE, bundles={"numBundles": 4})
    number = 0
    while any(leader.ownership(name).state is not OwnershipState.OWNED for name in bundles):
        await leader.node.lookups.lookup(TopicName.parse(f"persistent://{NAMESPACE}/topic-{number}"))
        number += 1
    await cluster.a_broker("b2:8080")
    await report(cluster, leader, "b1:8080", bundles, cpu=95.0)
    await report(cluster, leader, "b2:8080", (), cpu=5.0)
    return bundles


async def dumped(cluster: Cluster, **overrides: object) -> Collected:
    return await collect_cluster(cluster.store, TAKEN_AT_MS, settings(**overrides))


def unloads(plan: Plan) -> list[tuple[str, str]]:
    return [(step.bundle, step.source.broker) for step in plan.steps if isinstance(step, Unload)]


def decided_again(line: DumpLine, strategy: str) -> tuple[list[tuple[str, str]], DecidedLine]:
    decided = ShedDecider(strategy, {}).decide(line, "line 1")
    return [(each["bundle"], each["source"]) for each in decided.decisions], decided


async def test_dump_decided_offline_gives_the_decision_of_the_leader() -> None:
    async with a_leader() as (cluster, leader):
        await hot_and_idle(cluster, leader)
        await leader.node.persistence.flush()
        line = (await dumped(cluster)).finish()
        plan = await leader.node.shedding.run_round()
        again, decided = decided_again(line, "ThresholdShedder")
        assert again == unloads(plan)
        assert again
        journalled = {
            (entry["subject"], entry["source"], entry["reason"])
            for entry in leader.node.decision_log.recent(100)
            if entry["kind"] == "unload"
        }
        offline = {(each["bundle"], each["source"], each["reason"]) for each in decided.decisions}
        assert offline == {each for each in journalled if each[2] == "broker_above_average"}
        verdicts = {verdict.subject: (verdict.verdict, dict(verdict.why)) for verdict in plan.verdicts}
        for verdict in decided.verdicts:
            assert verdicts[verdict.subject] == (verdict.verdict, dict(verdict.why))


async def test_dump_has_bundle_loads_over_time_and_their_deviation() -> None:
    async with a_leader() as (cluster, leader):
        bundles = await hot_and_idle(cluster, leader)
        await report(cluster, leader, "b1:8080", bundles, cpu=90.0, load=24.0)
        await leader.node.persistence.flush()
        later_ms = round(time.time() * 1000) + 600_000
        dump = await collect_cluster(cluster.store, later_ms, settings())
        again = snapshot_of(dump.finish(), 0.0, "here").bundles
        live = leader.node.mirror.model.snapshot(later_ms / 1000, 0.0).bundles
        assert again.names == live.names
        np.testing.assert_allclose(again.present, live.present, rtol=1e-6)
        assert (again.present[:, 2] / load_of(20.0)["msgThroughputIn"] > 1.05).all()
        assert again.sigma.tolist() == live.sigma.tolist()
        assert (again.sigma > 0).all()


async def test_strategy_state_is_dumped_by_broker_start() -> None:
    async with a_leader() as (cluster, leader):
        bundles = await hot_and_idle(cluster, leader)
        await report(cluster, leader, "b1:8080", bundles, cpu=5.0)
        await leader.node.planner.shed()
        first, second = cluster.brokers["b1:8080"].registration, cluster.brokers["b2:8080"].registration
        assert leader.node.planner.state["ThresholdShedder"]["usage"]["b1:8080"][0] == first.incarnation
        leader.node.planner.state["ThresholdShedder"]["usage"]["b2:8080"][0] = second.incarnation - 1
        leader.node.planner.state |= {"FutureShedder": {}, "churn": {"memory": {}}}
        await leader.node.persistence.flush()
        collected = await dumped(cluster)
        line = collected.finish()
        assert line["state"] == {
            "ThresholdShedder": {
                "usage": {"b1:8080": (5, leader.node.planner.state["ThresholdShedder"]["usage"]["b1:8080"][1])}
            }
        }
        faults = [fault for fault in collected.faults if "strategy-state" in fault]
        assert faults == ["/loadbalance/strategy-state: FutureShedder: no strategy of this version"]


async def test_averages_that_the_next_round_resets_are_left_out() -> None:
    async with a_leader() as (cluster, leader):
        bundles = await hot_and_idle(cluster, leader)
        await report(cluster, leader, "b1:8080", bundles, cpu=5.0)
        await leader.node.planner.shed()
        await report(cluster, leader, "b1:8080", bundles, cpu=95.0)
        await leader.node.persistence.flush()
        line = (await dumped(cluster)).finish()
        assert list(line["state"]["ThresholdShedder"]["usage"]) == ["b2:8080"]
        plan = await leader.node.shedding.run_round()
        assert decided_again(line, "ThresholdShedder")[0] == unloads(plan) != []


async def test_dump_has_owners_and_releasing_bundles() -> None:
    async with a_leader() as (cluster, leader):
        bundles = await hot_and_idle(cluster, leader)
        cluster.brokers["b1:8080"].may_answer.clear()
        cycle = asyncio.create_task(leader.node.shedding.run_round())
        await eventually(lambda: cluster.brokers["b1:8080"].unloads)
        line = (await dumped(cluster)).finish()
        cluster.brokers["b1:8080"].may_answer.set()
        await cycle
        ownership = line["namespaces"][NAMESPACE]["ownership"]
        assert {entry["state"] for entry in ownership.values()} == {"Owned", "Releasing"}
        leaving = [entry for entry in ownership.values() if entry["state"] == "Releasing"]
        assert leaving[0] == {"state": "Releasing", "owner": "b1:8080", "destination": "b2:8080"}
        again, decided = decided_again(line, "ThresholdShedder")
        assert again == []
        assert {verdict.verdict.value for verdict in decided.verdicts} == {"awaiting_report", "below_threshold"}
        assert len(line["namespaces"][NAMESPACE]["boundaries"]) == len(bundles) + 1


async def test_bundles_of_a_lost_broker_are_free() -> None:
    async with a_leader() as (cluster, leader):
        await hot_and_idle(cluster, leader)
        record = orjson.loads((await cluster.store.get(paths.namespace(NAMESPACE))).data)  # type: ignore[union-attr]  # it is there
        for entry in record["ownership"].values():
            entry["incarnation"] -= 1
        await leader.node.election.resign()  # who leads would free them
        await write(cluster.store, paths.namespace("t/copy"), orjson.dumps(record))
        ownership = (await dumped(cluster)).finish()["namespaces"]["t/copy"]["ownership"]
        assert {encode(entry) for entry in ownership.values()} == {'{"state":"Free"}'}


async def test_unreadable_records_are_left_out_and_named() -> None:
    async with a_leader() as (cluster, leader):
        bundles = await hot_and_idle(cluster, leader)
        await leader.node.persistence.flush()
        await write(cluster.store, paths.broker("b3:8080"), b"{")
        await write(cluster.store, paths.broker("b4:8080"), b"")
        await write(cluster.store, paths.namespace("t/broken"), b"{}")
        await write(cluster.store, paths.namespace("t/bro ken"), b"{}")
        await write(cluster.store, paths.bundle_data("t/broken"), b"[]")
        await write(cluster.store, paths.broker_time_average("b1:8080"), b"[]")
        data = orjson.loads((await cluster.store.get(paths.bundle_data(NAMESPACE))).data)  # type: ignore[union-attr]  # it is there
        data["0x00000000_0x00000010"] = data[bundles[0].rpartition("/")[2]]
        await write(cluster.store, paths.bundle_data(NAMESPACE), orjson.dumps(data))
        await report(
            cluster, leader, "b2:8080", ["t/ns/0x00000000_0x00000010", "t/other/0x00000000_0x00000010"], cpu=5.0
        )
        await write(cluster.store, paths.STRATEGY_STATE, b"[]")
        collected = await dumped(cluster)
        line = collected.finish()
        assert sorted(line["brokers"]) == ["b1:8080", "b2:8080"]
        assert list(line["brokers"]["b2:8080"]["lastStats"] or ()) == ["t/other/0x00000000_0x00000010"]
        assert sorted(line["bundleData"]) == sorted(bundles)
        assert len(collected.faults) == 9
        assert all("loadbalance" in fault or "is no bundle of its namespace" in fault for fault in collected.faults)


async def test_empty_store_gives_an_empty_dump() -> None:
    async with Cluster() as cluster:
        line = (await dumped(cluster)).finish()
        assert line["brokers"] == {}
        assert decided_again(line, "ThresholdShedder")[0] == []


def test_dumped_configuration_is_what_differs_from_the_defaults() -> None:
    given = settings(
        metadata_store_url="zk:secret:2181",
        load_balancer_enabled=False,
        load_balancer_shedding_excluded_namespaces=frozenset({"b/c", "a/b"}),
    )
    configured = configuration_of(given)
    assert configured["loadBalancerEnabled"] == "false"
    assert configured["loadBalancerSheddingExcludedNamespaces"] == "a/b,b/c"
    assert "metadataStoreUrl" not in configured
    line: DumpLine = {"configuration": configured}
    assert decided_again(line, "ThresholdShedder")[0] == []


async def test_operator_config_is_dumped_and_decides_as_live() -> None:
    async with a_leader() as (cluster, leader):
        first, *_ = await hot_and_idle(cluster, leader)
        await cluster.a_broker("b3:8080", a_record("b3:8080", cpu=1.0))
        for path, data in {
            paths.ISOLATION: b'{"mine": {"namespaces": ["t/other"], "primary": ["b3"]}}',
            paths.FAILURE_DOMAINS: b'{"east": {"brokers": ["b2:8080"]}}',
            paths.ANTI_AFFINITY: b'{"t/ns": "group", "t/none": "group"}',
            paths.CONTROLS: b'{"frozenBundles": {"%s": "test"}, "dryRun": true}' % first.encode(),
            paths.CONFIGURATION: b'{"loadBalancerLoadSheddingStrategy": "OverloadShedder", "noSuchKey": "1"}',
        }.items():
            await write(cluster.store, path, data)
        await eventually(lambda: leader.node.live.overrides and leader.node.mirror.operator_config.controls.dry_run)
        await leader.node.persistence.flush()
        collected = await dumped(cluster)
        assert collected.faults == ["/loadbalance/configuration: noSuchKey: no such key"]
        line = collected.finish()
        assert list(line["isolationPolicies"]) == ["mine"]
        assert line["failureDomains"] == {"east": {"brokers": ["b2:8080"]}}
        assert line["namespaces"][NAMESPACE]["antiAffinityGroup"] == "group"
        assert line["configuration"]["loadBalancerLoadSheddingStrategy"] == "OverloadShedder"
        plan = await leader.node.shedding.run_round()
        again, decided = decided_again(line, "OverloadShedder")
        assert again == unloads(plan)
        assert first not in dict(again)
        assert again
        frozen = {v.subject: v.sentence() for v in decided.verdicts if v.verdict is SheddingReason.BUNDLE_FROZEN}
        assert frozen == {first: "No move because it is frozen: test"}


async def test_unreadable_operator_config_is_named_and_left_out() -> None:
    async with a_leader() as (cluster, _):
        for path in paths.OPERATOR_CONFIG:
            await write(cluster.store, path, b"garbage")
        collected = await dumped(cluster)
        assert [fault.partition(":")[0] for fault in collected.faults] == list(paths.OPERATOR_CONFIG)
        assert not {"isolationPolicies", "failureDomains", "controls"} & collected.finish().keys()


def test_dumped_broker_has_every_field_of_a_report() -> None:
    schema = TypeAdapter(DumpedBroker).json_schema()
    assert schema["properties"].keys() == LocalBrokerData.__annotations__.keys()
    assert schema["additionalProperties"] is False
