"""A lookup with its decision, and a move with all that is done for it, are a trace each across node, leader and agent:
as a collector of OpenTelemetry hears of it.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator

import pytest
from support.agents import BROKER_ID, RunningAgent, agent_settings, running_agent
from support.collector import Collector
from support.fake_broker import FakeBroker
from support.nodes import Cluster, RunningNode, in_memory

from loadmanager.errors import ConfigurationError
from loadmanager.net import tracing
from loadmanager.net.tracing import ENDPOINT, OFF, tracing_of

TOPIC = "persistent://t/ns/x"
OF_CLIENT = "0af7651916cd43dd8448eb211c80319c"
SAMPLED = {"traceparent": f"00-{OF_CLIENT}-b7ad6b7169203331-01"}
NOT_SAMPLED = {"traceparent": f"00-{OF_CLIENT}-b7ad6b7169203331-00"}
LOOKUP = "GET /lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}"
UNLOAD = "PUT /admin/v2/namespaces/{tenant}/{namespace}/{range}/unload"


@pytest.fixture
async def collector(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collector]:
    async with Collector() as collector:
        monkeypatch.setenv(ENDPOINT, collector.url)
        yield collector


async def two_nodes(cluster: Cluster) -> tuple[RunningNode, RunningNode]:
    """A leader and another node."""
    leader, other = await cluster.start_nodes(2)
    await cluster.a_namespace("t/ns", bundles={"numBundles": 1})
    return leader, other


async def all_told(*running: RunningNode | RunningAgent) -> None:
    """Flush all spans, in a thread, since the collector is served by this one."""
    for each in running:
        exporter = (each.node if isinstance(each, RunningNode) else each.agent).caller.tracing.exporter
        assert exporter is not None
        await asyncio.to_thread(exporter.force_flush)


async def test_lookup_and_its_decision_are_one_trace_across_nodes(collector: Collector) -> None:
    async with Cluster() as cluster:
        leader, other = await two_nodes(cluster)
        await cluster.a_broker("b1:8080")
        assert (await other.lookup(TOPIC, headers=SAMPLED)).status == 200
        await all_told(leader, other)
    of_trace = [each for each in collector.told if each.trace == OF_CLIENT]
    lookups = {each.instance: each for each in of_trace if each.name == LOOKUP}
    asked, passed_on = lookups[other.node.node_id], lookups[leader.node.node_id]
    assert passed_on.parent == asked.span
    by_name = {each.name: each for each in of_trace}
    assert by_name["decide on owners"].parent == passed_on.span
    assert by_name["decide on owners"].instance == leader.node.node_id
    assert by_name["write owners"].attributes == {"namespace": "t/ns"}


async def test_move_is_one_trace_across_leader_and_agent(collector: Collector) -> None:
    connect = in_memory()
    store = await connect()
    async with Cluster(connect) as cluster, FakeBroker() as broker:
        leader, other = await two_nodes(cluster)
        settings = agent_settings(broker, loadManagerUrls=[leader.node.service_url])
        async with running_agent(settings, store, highest_epoch=0) as agent:
            await agent.registered()
            await cluster.known_everywhere(lambda node: BROKER_ID in node.node.mirror.brokers)
            assert (await other.lookup(TOPIC)).status == 200
            bundle = leader.bundle_of(TOPIC)
            reply = await other.put(f"/admin/v2/namespaces/{bundle}/unload", headers=SAMPLED)
            assert reply.status == 204, reply
            await all_told(leader, other, agent)
    await store.close()
    of_trace = collector.of(OF_CLIENT)
    move, asked = of_trace["loadmanager", "move"], of_trace["loadmanager-agent", UNLOAD]
    assert move.attributes["bundle"] == bundle
    assert not move.is_error
    assert asked.parent == move.span
    assert asked.instance == BROKER_ID


async def test_shedding_round_is_a_trace_of_its_own(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "SAMPLED_REQUESTS", 0.0)
    async with Cluster() as cluster:
        leader, other = await two_nodes(cluster)
        await other.lookup(TOPIC)
        await leader.node.shedding.run_round()
        await all_told(leader, other)
    assert {each.name for each in collector.told} == {"shedding round"}


async def test_unsampled_trace_is_not_exported(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "SAMPLED_REQUESTS", 1.0)
    async with Cluster() as cluster:
        leader, other = await two_nodes(cluster)
        await cluster.a_broker("b1:8080")
        await other.lookup(TOPIC, headers=NOT_SAMPLED)
        await other.lookup(TOPIC)
        await all_told(leader, other)
    assert not collector.of(OF_CLIENT)


async def test_unreachable_collector_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    monkeypatch.setattr(tracing, "SAMPLED_REQUESTS", 1.0)
    async with Cluster() as cluster:
        leader, other = await two_nodes(cluster)
        await cluster.a_broker("b1:8080")
        assert (await other.lookup(TOPIC)).status == 200
        assert (await leader.lookup(TOPIC)).status == 200


def test_tracing_is_off_without_a_collector() -> None:
    assert tracing_of("loadmanager", "a:1") is OFF


def test_missing_packages_are_named_with_key_and_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    import_really = builtins.__import__

    def without(name: str, *rest: object) -> object:
        if name.startswith("opentelemetry.sdk"):
            raise ModuleNotFoundError("gone", name="opentelemetry")
        return import_really(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setenv(ENDPOINT, "http://c:4318")
    with pytest.raises(ConfigurationError, match=f"^{ENDPOINT}: opentelemetry is not installed; install it"):
        tracing_of("loadmanager", "a:1")


@pytest.mark.parametrize("url", ["collector:4318", "http://", "http://c:4318/v1/traces"])
def test_invalid_endpoint_is_rejected(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv(ENDPOINT, url)
    with pytest.raises(ConfigurationError, match=f"{ENDPOINT}: expected a URL .*'{url}'"):
        tracing_of("loadmanager", "a:1")
