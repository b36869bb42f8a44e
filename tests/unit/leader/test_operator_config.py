from __future__ import annotations

import numpy as np
import pytest
from support.learned import learned
from support.nodes import Cluster, a_leader
from support.registrations import a_record, load_of, write
from support.waiting import eventually

from loadmanager.core.domain.controls import NO_CONTROLS, Controls
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.policies import IsolationPolicy
from loadmanager.leader.node import Node
from loadmanager.store import paths
from loadmanager.store.metadata_store import Delete
from loadmanager.wire.control_records import encode_controls
from loadmanager.wire.learned_records import encode_learned

LEARNED = learned({"t/ns": (1, 2, 3, 4)})
CONTROLS = Controls(excluded=frozenset({BrokerId("b1:8080")}), frozen="incident")
GOOD: dict[str, bytes] = {
    paths.ISOLATION: b'{"mine": {"namespaces": ["t/ns"], "primary": ["b1"]}}',
    paths.FAILURE_DOMAINS: b'{"east": {"brokers": ["b1:8080"]}}',
    paths.ANTI_AFFINITY: b'{"t/ns": "group"}',
    paths.CONTROLS: encode_controls(CONTROLS),
    paths.CONFIGURATION: b'{"loadBalancerBrokerMaxTopics": "7"}',
    paths.LEARNED: encode_learned(LEARNED),
}
GARBAGE: dict[str, list[bytes]] = {
    paths.ISOLATION: [
        *(b"\xff", b"[]", b'{"mine": {"namespaces": ["("]}}', b'{"mine": {"primery": ["b1"]}}'),
        *(b'{"mine": {"namespaces": ["(.)\\\\1"]}}', b'{"mine": {"primary": [%s"b"]}}' % (b'"b",' * 1000)),
    ],
    paths.FAILURE_DOMAINS: [b"{", b'{"east": {"brokers": ["nowhere"]}}', b'{"east": ["b1:8080"]}'],
    paths.ANTI_AFFINITY: [b"null", b'{"no namespace": "group"}', b'{"t/ns": ""}', b'{"t/ns": 1}'],
    paths.CONTROLS: [b"", b'{"excluded": "b1:8080"}', b'{"excludet": []}', b'{"pinned": {"t/ns": "b1:8080"}}'],
    paths.CONFIGURATION: [b"\x1f\x8bnot gzip", b'"loadBalancerBrokerMaxTopics"', b"[]"],
    paths.LEARNED: [b"[]", b'{"run": "r"}', encode_learned(LEARNED).replace(b'"bundles":4', b'"bundles":0')],
}


def in_force(node: Node, path: str) -> bool:
    snapshot = node.mirror.model.snapshot(0.0, 0.0)
    policies = snapshot.policies
    return {
        paths.ISOLATION: policies.isolation == (IsolationPolicy("mine", ("t/ns",), ("b1",)),),
        paths.FAILURE_DOMAINS: policies.failure_domain(BrokerId("b1:8080")) == "east",
        paths.ANTI_AFFINITY: policies.find_group("t/ns") == "group",
        paths.CONTROLS: snapshot.controls == CONTROLS == node.mirror.operator_config.controls,
        paths.CONFIGURATION: node.live.planner.broker_max_topics == 7,
        paths.LEARNED: bool(np.array_equal(snapshot.learned.load_of("t/ns"), [1, 2, 3, 4])),
    }[path]


async def test_operator_config_applies_until_deleted() -> None:
    async with a_leader() as (cluster, leader):
        for path, data in GOOD.items():
            await write(cluster.store, path, data)
        await eventually(lambda: all(in_force(leader.node, path) for path in GOOD))
        late = await cluster.start_node()
        assert all(in_force(late.node, path) for path in GOOD)
        await cluster.store.commit([Delete(path) for path in GOOD])
        await cluster.known_everywhere(lambda each: not any(in_force(each.node, path) for path in GOOD))
        assert leader.node.mirror.operator_config.controls == NO_CONTROLS
        assert leader.node.live.overrides == {}


@pytest.mark.parametrize("path", GOOD)
async def test_garbage_is_a_fault_and_the_last_good_value_applies(path: str) -> None:
    async with a_leader() as (cluster, leader):
        faults = leader.node.mirror.faults
        await write(cluster.store, path, GOOD[path])
        await eventually(lambda: in_force(leader.node, path))
        for garbage in GARBAGE[path]:
            await write(cluster.store, path, garbage)
            await eventually(lambda: path in faults, what=f"{garbage!r} is listed")
            assert in_force(leader.node, path), garbage
            await write(cluster.store, path, GOOD[path])
            await eventually(lambda: path not in faults, what=f"{garbage!r} is mended")
        assert leader.node.intake.records_rejected == len(GARBAGE[path])


async def test_node_starts_and_leads_despite_garbage() -> None:
    async with Cluster() as cluster:
        for path, (garbage, *_) in GARBAGE.items():
            await cluster.store.ensure_path(path.rpartition("/")[0])
            await write(cluster.store, path, garbage)
        leader = await cluster.start_leader()
        assert set(leader.node.mirror.faults) == set(GARBAGE)
        await cluster.a_broker()
        await cluster.a_namespace()
        assert (await leader.lookup("persistent://t/ns/x")).status == 200


async def test_invalid_overrides_are_faults_and_the_others_apply() -> None:
    async with a_leader() as (cluster, leader):
        stored = b'{"loadBalancerBrokerMaxTopics": "7", "clusterName": "other", "minUnloadMessage": "-1"}'
        await write(cluster.store, paths.CONFIGURATION, stored)
        await eventually(lambda: in_force(leader.node, paths.CONFIGURATION))
        fault = leader.node.mirror.faults[paths.CONFIGURATION]
        assert "clusterName" in fault
        assert "minUnloadMessage" in fault
        assert leader.node.live.current.cluster_name == "standalone"


async def test_new_shedding_interval_applies_to_the_current_pause() -> None:
    async with a_leader() as (cluster, leader):
        await write(cluster.store, paths.CONFIGURATION, b'{"loadBalancerSheddingIntervalMinutes": "0.0005"}')
        await eventually(lambda: leader.node.shedding.rounds >= 2)


async def test_new_persistence_interval_applies_to_the_current_pause() -> None:
    async with a_leader() as (cluster, leader):
        broker = await cluster.a_broker()
        (bundle, *_) = await cluster.a_namespace()
        await broker.report(a_record(stats={bundle: load_of(1.0)}))
        stored = b'{"loadBalancerResourceQuotaUpdateIntervalMinutes": "0.0005"}'
        await write(cluster.store, paths.CONFIGURATION, stored)
        await eventually(lambda: leader.node.persistence.records_written > 0)


async def test_resource_weights_apply_to_the_next_report() -> None:
    async with a_leader() as (cluster, leader):
        await write(
            cluster.store,
            paths.CONFIGURATION,
            b'{"loadBalancerCPUResourceWeight": "0.5", "loadBalancerHistoryResourcePercentage": "0"}',
        )
        await eventually(lambda: leader.node.live.overrides)
        await cluster.a_broker("b1:8080", a_record(cpu=80.0))
        load = leader.node.mirror.model.snapshot(0.0, 0.0).broker_load
        assert load is not None
        assert load.weighted_max_ema.tolist() == pytest.approx([0.4])
