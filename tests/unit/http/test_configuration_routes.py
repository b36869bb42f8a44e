from __future__ import annotations

import pytest
from support.nodes import a_leader
from support.registrations import write
from support.waiting import eventually

from loadmanager.config.dynamic_settings import dynamic_keys
from loadmanager.store import paths

CONFIGURATION = "/admin/v2/brokers/configuration"
OVERLOADED = "loadBalancerBrokerOverloadedThresholdPercentage"
EXCLUDED = "loadBalancerSheddingExcludedNamespaces"
SHEDDING = "loadBalancerLoadSheddingStrategy"


async def test_configuration_lists_dynamic_keys_overrides_and_current_values() -> None:
    async with a_leader(load_balancer_broker_max_topics=9) as (_, leader):
        assert (await leader.get(CONFIGURATION)).json() == dynamic_keys()
        assert (await leader.get(f"{CONFIGURATION}/values")).json() == {}
        runtime = (await leader.get(f"{CONFIGURATION}/runtime")).json()
        assert (runtime["loadBalancerBrokerMaxTopics"], runtime[OVERLOADED]) == ("9", "85")
        assert set(runtime) >= set(dynamic_keys())


async def test_override_is_effective_on_answer_and_undone_by_deletion() -> None:
    async with a_leader() as (_, leader):
        reply = await leader.ask("POST", f"{CONFIGURATION}/{OVERLOADED}/70")
        assert (reply.status, reply.body) == (200, b"")
        assert leader.node.live.planner.broker_overloaded_threshold_percentage == 70
        assert (await leader.get(f"{CONFIGURATION}/values")).json() == {OVERLOADED: "70"}
        assert (await leader.get(f"{CONFIGURATION}/runtime")).json()[OVERLOADED] == "70"
        assert (await leader.ask("DELETE", f"{CONFIGURATION}/{OVERLOADED}")).status == 200
        assert leader.node.live.planner.broker_overloaded_threshold_percentage == 85


async def test_override_values_may_be_lists_classes_and_contain_slashes() -> None:
    async with a_leader() as (_, leader):
        assert (await leader.ask("POST", f"{CONFIGURATION}/{EXCLUDED}/t%2Fa%2Ct%2Fb")).status == 200
        assert leader.node.live.planner.shedding_excluded_namespaces == {"t/a", "t/b"}
        strategy = "org.apache.pulsar.broker.loadbalance.impl.OverloadShedder"
        assert (await leader.ask("POST", f"{CONFIGURATION}/{SHEDDING}/{strategy}")).status == 200
        assert leader.node.live.planner.shedding_strategy == strategy
        assert (await leader.ask("POST", f"{CONFIGURATION}/{EXCLUDED}/")).status == 200
        assert leader.node.live.planner.shedding_excluded_namespaces == frozenset()


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        (f"{OVERLOADED}/101", 400, "allowed: >= 0, <= 100"),
        (f"{OVERLOADED}/much", 400, OVERLOADED),
        (f"{SHEDDING}/Tarot", 400, "known are"),
        (f"{SHEDDING}/AvgShedder", 400, "both or neither"),
        ("loadBalancerEnabled/false", 412, "not dynamic"),
        ("noSuchKey/1", 412, "noSuchKey: no such key"),
    ],
)
async def test_bad_value_is_refused(path: str, status: int, message: str) -> None:
    async with a_leader() as (cluster, leader):
        reply = await leader.ask("POST", f"{CONFIGURATION}/{path}")
        assert reply.status == status
        assert message in reply.reason
        assert await cluster.store.get(paths.CONFIGURATION) is None


@pytest.mark.parametrize(("key", "status"), [(OVERLOADED, 200), ("noSuchKey", 412), ("clusterName", 412)])
async def test_deleting_an_absent_override_succeeds_for_dynamic_keys(key: str, status: int) -> None:
    async with a_leader() as (_, leader):
        assert (await leader.ask("DELETE", f"{CONFIGURATION}/{key}")).status == status


async def test_invalid_stored_override_is_ignored_and_can_be_deleted() -> None:
    async with a_leader() as (cluster, leader):
        await write(cluster.store, paths.CONFIGURATION, b'{"noSuchKey": "1"}')
        await eventually(lambda: paths.CONFIGURATION in leader.node.mirror.faults)
        assert (await leader.ask("POST", f"{CONFIGURATION}/{OVERLOADED}/70")).status == 200
        assert (await leader.get(f"{CONFIGURATION}/values")).json() == {OVERLOADED: "70"}
        assert (await leader.ask("DELETE", f"{CONFIGURATION}/noSuchKey")).status == 200
        assert paths.CONFIGURATION not in leader.node.mirror.faults


async def test_override_required_by_another_cannot_be_deleted() -> None:
    async with a_leader() as (_, leader):
        supported, default = "supportedNamespaceBundleSplitAlgorithms", "defaultNamespaceBundleSplitAlgorithm"
        algorithm = "topic_count_equally_divide"
        assert (await leader.ask("POST", f"{CONFIGURATION}/{default}/{algorithm}")).status == 200
        assert (await leader.ask("POST", f"{CONFIGURATION}/{supported}/{algorithm}")).status == 200
        assert (await leader.ask("DELETE", f"{CONFIGURATION}/{default}")).status == 400
        assert leader.node.live.overrides == {supported: algorithm, default: algorithm}


async def test_override_sets_the_bundle_count_of_new_namespaces() -> None:
    async with a_leader() as (cluster, leader):
        assert (await leader.ask("POST", f"{CONFIGURATION}/defaultNumberOfNamespaceBundles/7")).status == 200
        assert len(await cluster.a_namespace()) == 7
