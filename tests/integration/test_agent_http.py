"""The agent's HTTP interface with real servers on all sides; the metadata store is in memory."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import AsyncIterator
from functools import partial, partialmethod

import pytest
from structlog.testing import capture_logs
from support.agents import BROKER_ID, HIGHEST_EPOCH, RunningAgent, agent_settings, elect, running_agent
from support.clock import ManualClock
from support.delays import a_memory_cluster
from support.fake_broker import FakeBroker
from support.fake_node import FakeNode
from support.memory_store import Link, MemoryStore
from support.servers import closed_port
from support.stores import started
from support.waiting import eventually

from loadmanager.agent.broker_watch import BrokerWatch
from loadmanager.agent.presence import PresencePhase
from loadmanager.agent.registration import Registrar
from loadmanager.agent.usage_sampler import UsageSampler
from loadmanager.core.domain.bundles import HashFunction, NamespaceBundles, topic_hash
from loadmanager.core.domain.names import BundleName, BundleRange
from loadmanager.store import paths
from loadmanager.store.metadata_store import SessionState
from loadmanager.wire.http_bodies import (
    BUNDLE_VERSION_HEADER,
    DESTINATION_HEADER,
    EPOCH_HEADER,
    HASH_FUNCTION_HEADER,
    INCARNATION_HEADER,
    OWNER_HEADER,
    TopicsOfBundle,
)
from loadmanager.wire.store_records import BundlesData

TOPIC = "persistent://t/ns/orders"
GRANTED = {"verdict": "granted"}


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as broker:
        yield broker


@pytest.fixture
async def node() -> AsyncIterator[FakeNode]:
    async with FakeNode() as node:
        node.create_namespace("t/ns")
        yield node


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    async with started(MemoryStore(a_memory_cluster())) as store:
        yield store


@pytest.fixture
async def beside(broker: FakeBroker, node: FakeNode, store: MemoryStore) -> AsyncIterator[RunningAgent]:
    """A registered agent."""
    async with running_agent(agent_settings(broker, node), store) as agent:
        await agent.registered()
        yield agent


async def own(beside: RunningAgent, node: FakeNode, topic: str = TOPIC, version: int = 1) -> str:
    """Have the node say that this broker owns the topic's bundle."""
    bundle = node.bundle_of(topic)
    node.own(bundle, BROKER_ID, await beside.registered(), version)
    return bundle


async def open_topic(beside: RunningAgent, node: FakeNode, broker: FakeBroker, topic: str = TOPIC) -> str:
    """Ask as a broker does, and open."""
    bundle = await own(beside, node, topic)
    status, answer = await beside.owner(topic)
    assert (status, answer["owned"]) == (200, True)
    broker.open(topic)
    return bundle


async def reports(beside: RunningAgent, bundles: set[str]) -> bool:
    return set((await beside.record() or {}).get("lastStats") or {}) == bundles


async def test_lease_names_the_incarnation_and_its_length(beside: RunningAgent) -> None:
    status, lease = await beside.lease()
    assert status == 200
    expected = {"brokerId": BROKER_ID, "incarnation": await beside.registered(), "validForMs": 600, "available": []}
    assert lease == expected


async def test_no_lease_before_the_first_statistics(broker: FakeBroker, node: FakeNode, store: MemoryStore) -> None:
    broker.may_answer_stats.clear()
    async with running_agent(agent_settings(broker, node), store) as beside:
        status, answer = await beside.lease()
        assert status == 503
        assert "not registered" in answer["reason"]
        assert (await beside.owner(TOPIC))[0] == 503
        assert (await beside.get("/healthz"))[0] == 503
        broker.may_answer_stats.set()
        await beside.registered()
        assert (await beside.lease())[0] == 200


async def test_topic_of_an_owned_bundle_is_granted(beside: RunningAgent, node: FakeNode) -> None:
    bundle = await own(beside, node)
    assert await beside.owner(TOPIC) == (
        200,
        {"owned": True, "bundle": bundle, "owner": BROKER_ID, "incarnation": await beside.registered()},
    )
    assert beside.metric("ownership_questions_total", **GRANTED) == 1


async def test_topic_of_another_broker_is_refused_with_its_owner(beside: RunningAgent, node: FakeNode) -> None:
    node.own(node.bundle_of(TOPIC), "broker-2.example:8080", 99)
    status, answer = await beside.owner(TOPIC)
    assert (status, answer["owned"], answer.get("owner")) == (200, False, "broker-2.example:8080")


async def test_topic_of_an_unknown_namespace_is_not_granted(beside: RunningAgent) -> None:
    status, answer = await beside.owner("persistent://t/nowhere/x")
    assert (status, answer["owned"], answer.get("bundle")) == (200, False, None)


async def test_topic_name_reaches_the_node_unchanged(beside: RunningAgent, node: FakeNode) -> None:
    topic = "persistent://t/ns/a b/c%2F?ü"
    await own(beside, node, topic)
    assert (await beside.owner(topic))[1]["owned"]
    assert node.questions == [topic]


@pytest.mark.parametrize("topic", ["", "orders", "persistent://t/ns", "ftp://t/ns/x", "persistent://t/n s/x"])
async def test_malformed_topic_is_rejected_and_named(beside: RunningAgent, topic: str) -> None:
    status, answer = await beside.owner(topic)
    assert status == 400
    assert "expected" in answer["reason"]


async def test_missing_topic_is_rejected(beside: RunningAgent) -> None:
    async with beside.http.get(f"{beside.local_url}/loadmanager/v1/owner") as refusal:
        status, answer = refusal.status, await refusal.json()
    assert status == 400
    assert "query parameter topic: missing" in answer["reason"]


async def test_unload_is_answered_after_closing(beside: RunningAgent, node: FakeNode, broker: FakeBroker) -> None:
    bundle = await open_topic(beside, node, broker)
    broker.may_answer_unloads.clear()
    unload = asyncio.create_task(beside.unload(bundle, version=2))
    await eventually(lambda: broker.unloads)
    assert not unload.done()
    broker.may_answer_unloads.set()
    assert await unload == (204, None)
    assert (broker.unloads[0].bundle, broker.unloads[0].topics) == (bundle, [TOPIC])
    assert broker.topics == {}


async def test_repeated_unload_is_204(beside: RunningAgent, node: FakeNode, broker: FakeBroker) -> None:
    bundle = await open_topic(beside, node, broker)
    assert [(await beside.unload(bundle, version=2))[0] for _ in range(3)] == [204, 204, 204]


async def test_unanswered_unload_is_503(beside: RunningAgent, node: FakeNode, broker: FakeBroker) -> None:
    bundle = await open_topic(beside, node, broker)
    broker.may_answer_unloads.clear()
    beside.agent._broker._unload_timeout_s = 0.3
    status, answer = await beside.unload(bundle, version=2)
    assert status == 503
    assert "did not answer within 0.3 s" in answer["reason"]
    assert beside.metric("unloads_total", outcome="broker_unavailable") == 1
    broker.may_answer_unloads.set()
    beside.agent._broker._unload_timeout_s = 10.0
    assert (await beside.unload(bundle, version=2))[0] == 204
    assert broker.unloads[-1].topics == [TOPIC], "an unload that was not confirmed is repeated in full"


async def test_failed_unload_is_503(beside: RunningAgent, node: FakeNode, broker: FakeBroker) -> None:
    bundle = await open_topic(beside, node, broker)
    broker.unload_status = 500
    status, answer = await beside.unload(bundle, version=2)
    assert status == 503
    assert "answered 500" in answer["reason"]


async def test_lagging_node_cannot_undo_an_unload(beside: RunningAgent, node: FakeNode, broker: FakeBroker) -> None:
    bundle = await open_topic(beside, node, broker)
    assert (await beside.unload(bundle, version=2))[0] == 204
    assert not (await beside.owner(TOPIC))[1]["owned"]
    assert beside.metric("ownership_questions_total", verdict="stale") == 1
    await own(beside, node, version=4)
    assert (await beside.owner(TOPIC))[1]["owned"]


async def test_answer_overtaken_by_an_unload_is_asked_again(beside: RunningAgent, node: FakeNode) -> None:
    bundle = await own(beside, node)
    node.may_answer.clear()
    question = asyncio.create_task(beside.owner(TOPIC))
    await eventually(lambda: node.questions)
    assert (await beside.unload(bundle, version=2))[0] == 204
    node.own(bundle, BROKER_ID, await beside.registered(), version=2, state="Releasing")
    node.may_answer.set()
    status, answer = await question
    assert (status, answer["owned"]) == (200, False)
    assert beside.metric("ownership_questions_total", verdict="void") == 1


async def test_unload_is_followed_by_a_new_report(broker: FakeBroker, node: FakeNode, store: MemoryStore) -> None:
    nothing_else = {
        "loadBalancerReportUpdateThresholdPercentage": 100,
        "loadBalancerReportUpdateMaxIntervalMinutes": 60,
    }
    for topic in (TOPIC, "persistent://t/ns/a", "persistent://t/ns/b", "persistent://t/ns/c"):
        broker.open(topic)
    async with running_agent(agent_settings(broker, node, **nothing_else), store) as beside:
        await beside.registered()
        bundle = await own(beside, node)

        async def reported_bundles() -> list[str]:
            record = await beside.record()
            return (record and record.get("bundles")) or []

        await eventually(lambda: beside.agent.watch.loads)
        await eventually(reported_bundles, what="the first report with bundles")
        assert bundle in await reported_bundles()
        assert (await beside.unload(bundle, version=2))[0] == 204

        async def is_reported_without_it() -> bool:
            return bundle not in await reported_bundles()

        await eventually(is_reported_without_it)


async def test_unload_for_another_broker_is_412(beside: RunningAgent, node: FakeNode, broker: FakeBroker) -> None:
    bundle = await own(beside, node)
    assert (await beside.owner(TOPIC))[1]["owned"]
    headers = {EPOCH_HEADER: "1", BUNDLE_VERSION_HEADER: "2", INCARNATION_HEADER: str(await beside.registered())}
    status, answer = await beside.unload_with(bundle, headers | {OWNER_HEADER: "another.example:8080"})
    assert status == 412
    assert "another broker" in answer["reason"]
    assert (await beside.owner(TOPIC))[1]["owned"]
    assert broker.unloads == []
    status, answer = await beside.unload_with(bundle, headers)
    assert status == 400
    assert OWNER_HEADER in answer["reason"]


async def test_unload_by_a_replaced_leader_is_412(beside: RunningAgent, node: FakeNode) -> None:
    bundle = await own(beside, node)
    assert (await beside.unload(bundle, version=2, epoch=5))[0] == 204
    status, answer = await beside.unload(bundle, version=3, epoch=4)
    assert status == 412
    assert EPOCH_HEADER in answer["reason"]


async def test_unload_older_than_the_grant_is_412(beside: RunningAgent, node: FakeNode, broker: FakeBroker) -> None:
    await own(beside, node, version=7)
    assert (await beside.owner(TOPIC))[1]["owned"]
    broker.open(TOPIC)
    status, answer = await beside.unload(node.bundle_of(TOPIC), version=6)
    assert status == 412
    assert BUNDLE_VERSION_HEADER in answer["reason"]
    assert broker.unloads == []


@pytest.mark.parametrize(
    ("bundle", "headers", "said"),
    [
        ("t/ns/0x0_0xffffffff", {EPOCH_HEADER: "1", BUNDLE_VERSION_HEADER: "1"}, "bundle range '0x0_0xffffffff'"),
        ("t/ns/0x80000000_0x00000000", {EPOCH_HEADER: "1", BUNDLE_VERSION_HEADER: "1"}, "lower < upper"),
        ("t/n$/0x00000000_0xffffffff", {EPOCH_HEADER: "1", BUNDLE_VERSION_HEADER: "1"}, "namespace 'n$'"),
        ("t/ns/0x00000000_0xffffffff", {BUNDLE_VERSION_HEADER: "1"}, f"header {EPOCH_HEADER}: missing"),
        ("t/ns/0x00000000_0xffffffff", {EPOCH_HEADER: "1"}, f"header {BUNDLE_VERSION_HEADER}: missing"),
        (
            "t/ns/0x00000000_0xffffffff",
            {EPOCH_HEADER: "one", BUNDLE_VERSION_HEADER: "1"},
            f"header {EPOCH_HEADER}: 'one'",
        ),
        (
            "t/ns/0x00000000_0xffffffff",
            {EPOCH_HEADER: "1", BUNDLE_VERSION_HEADER: "-1"},
            f"header {BUNDLE_VERSION_HEADER}: '-1'",
        ),
        ("t/ns/0x00000000_0xffffffff", {EPOCH_HEADER: "9" * 40, BUNDLE_VERSION_HEADER: "1"}, f"header {EPOCH_HEADER}"),
    ],
)
async def test_malformed_unload(beside: RunningAgent, bundle: str, headers: dict[str, str], said: str) -> None:
    status, answer = await beside.unload_with(bundle, headers)
    assert status == 400
    assert said in answer["reason"]


async def test_unknown_path_or_method_is_answered_in_json(beside: RunningAgent) -> None:
    status, answer = await beside.get("/nowhere")
    assert (status, answer) == (404, {"reason": "GET /nowhere: Not Found"})
    async with beside.http.post(f"{beside.local_url}/loadmanager/v1/lease") as refusal:
        assert refusal.status == 405
        assert "reason" in await refusal.json()
    bundles = f"{beside.url}/loadmanager/v1/namespaces/t/ns/bundles"
    async with beside.http.put(bundles, data=b"{}", headers={"Content-Encoding": "gzip"}) as refusal:
        assert refusal.status == 400
        assert (await refusal.json())["reason"] == "Content-Encoding: 'gzip': send the body as it is"
    async with beside.http.put(bundles, data=io.BytesIO(b" " * (2 << 20))) as refusal:
        assert refusal.status == 413
        assert "reason" in await refusal.json()


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"<html>proxy error</html>",
        b"[]",
        b'{"pid": "x"}',
        b'{"pid": 1}',
        b'{"pid": 1, "monotonicS": NaN, "topics": []}',
        b'{"pid": 1, "monotonicS": 1, "topics": [{"topic": "nonsense"}]}',
        b'{"pid": 1, "monotonicS": 1, "topics": [{"topic": "persistent://t/ns/x", "bytesIn": -5}]}',
        b'{"pid": 1, "monotonicS": 1, "topics": [{"topic": "persistent://t/ns/x", "bytesIn": 1e300}]}',
    ],
)
async def test_malformed_statistics_keep_the_last_valid_ones(
    beside: RunningAgent, broker: FakeBroker, garbage: bytes
) -> None:
    before = await beside.record()
    broker.spoiled_stats = garbage
    with capture_logs() as logs:
        await eventually(lambda: beside.metric("garbage_total", source="broker") > 2)
    named = [entry for entry in logs if entry["event"] == "broker_does_not_answer"]
    assert len(named) == 1, "said once, not at every attempt"
    assert "/loadmanager/v1/stats" in named[0]["error"]
    after = await beside.record()
    assert before is not None
    assert after is not None
    assert after["startTimestamp"] == before["startTimestamp"]
    assert (await beside.lease())[0] == 200, "slow or confused is not gone"
    broker.spoiled_stats = None
    await eventually(lambda: beside.agent.watch.is_answering)


@pytest.mark.parametrize(
    "garbage",
    [
        b"not json",
        b"{}",
        b'{"bundle":"t/ns/0x0","state":"Owned","owner":"a:1","incarnation":1,"version":1,"epoch":1}',
        b'{"bundle":"t/ns/0x00000000_0xffffffff","state":"Mine","owner":null,"incarnation":1,"version":1,"epoch":1}',
        b'{"bundle":"t/ns/0x00000000_0xffffffff","state":"Owned","owner":"nobody","incarnation":1,"version":1,"epoch":1}',
    ],
)
async def test_malformed_answer_of_a_node_grants_nothing(beside: RunningAgent, node: FakeNode, garbage: bytes) -> None:
    await own(beside, node)
    node.spoiled = garbage
    with capture_logs() as logs:
        status, answer = await beside.owner(TOPIC)
    assert status == 503
    assert node.url in answer["reason"]
    assert beside.metric("garbage_total", source="node") >= 1
    assert any(entry["event"] == "node_answer_invalid" and node.url in entry["error"] for entry in logs)
    node.spoiled = None
    assert (await beside.owner(TOPIC))[1]["owned"]


async def test_answer_about_another_bundle_grants_nothing(beside: RunningAgent, node: FakeNode) -> None:
    answer = {
        "bundle": "t/other/0x00000000_0xffffffff",
        "state": "Owned",
        "owner": BROKER_ID,
        "incarnation": await beside.registered(),
        "version": 1,
        "epoch": 1,
    }
    node.spoiled = json.dumps(answer).encode()
    assert not (await beside.owner(TOPIC))[1]["owned"]
    assert beside.metric("garbage_total", source="node") == 1


async def test_next_node_is_asked_after_a_failure(broker: FakeBroker, node: FakeNode, store: MemoryStore) -> None:
    async with FakeNode() as failing, FakeNode() as confused:
        failing.status = 500
        failing.create_namespace("t/ns")
        confused.spoiled = b"nonsense"
        confused.create_namespace("t/ns")
        gone = FakeNode(port=closed_port())
        async with running_agent(agent_settings(broker, gone, failing, confused, node), store) as beside:
            await own(beside, node)
            assert (await beside.owner(TOPIC))[1]["owned"]
            assert (await beside.owner(TOPIC))[1]["owned"]
        assert len(failing.questions) == len(confused.questions) == 1, (
            "the node that answered is asked first from then on"
        )


async def test_lagging_node_does_not_deny_a_grant(broker: FakeBroker, node: FakeNode, store: MemoryStore) -> None:
    async with FakeNode() as lagging:
        lagging.create_namespace("t/ns")
        async with running_agent(agent_settings(broker, lagging, node), store) as beside:
            await own(beside, node)
            assert (await beside.owner(TOPIC))[1]["owned"]


async def test_broker_is_told_when_no_node_answers(node: FakeNode, beside: RunningAgent) -> None:
    await node.stop()
    status, answer = await beside.owner(TOPIC)
    assert status == 503
    assert "no load-manager node answered" in answer["reason"]
    assert (await beside.lease())[0] == 200, "leases need no load-manager node"


async def test_reports_have_load_by_bundle(beside: RunningAgent, node: FakeNode, broker: FakeBroker) -> None:
    bundle = await open_topic(beside, node, broker)
    started_s = time.monotonic()

    async def has_load() -> bool:
        elapsed_s = time.monotonic() - started_s
        broker.open(
            TOPIC, messages_in=int(elapsed_s * 1000), bytes_in=int(elapsed_s * 100_000), producers=2, consumers=3
        )
        record = await beside.record()
        entry = ((record or {}).get("lastStats") or {}).get(bundle)
        return entry is not None and 500 < entry["msgRateIn"] < 2000 and entry["consumerCount"] == 3

    await eventually(has_load, what="a report with about 1000 messages a second in the topic's bundle")
    assert beside.metric("reports_total", outcome="written") >= 1


async def test_split_bundle_is_reported_by_its_parts(beside: RunningAgent, node: FakeNode, broker: FakeBroker) -> None:
    await open_topic(beside, node, broker)

    whole = node.bundle_of(TOPIC)
    await eventually(lambda: reports(beside, {whole}))
    node.create_namespace("t/ns", bundles=16)
    await own(beside, node, version=2)
    assert (await beside.owner(TOPIC))[1]["owned"]
    await eventually(lambda: reports(beside, {node.bundle_of(TOPIC)}))


async def test_report_without_boundaries_uses_grants(beside: RunningAgent, node: FakeNode, broker: FakeBroker) -> None:
    bundle = await own(beside, node)
    assert (await beside.owner(TOPIC))[1]["owned"]
    await node.stop()
    broker.open(TOPIC)
    broker.open("persistent://t/elsewhere/never-granted")

    await eventually(lambda: reports(beside, {bundle}))
    assert beside.metric("unmapped_topics") == 1


async def test_stop_closes_topics_before_deregistration(broker: FakeBroker, node: FakeNode, store: MemoryStore) -> None:
    async with running_agent(agent_settings(broker, node), store, ManualClock(), unload_timeout_s=600.0) as beside:
        await open_topic(beside, node, broker)
        assert (await beside.lease())[1]["validForMs"] > 0
        broker.may_answer_unloads.clear()
        beside.stop.set()
        await eventually(lambda: broker.unloads)
        assert (await beside.lease())[0] == 503
        assert (await beside.owner(TOPIC))[0] == 503
        assert await beside.record() is not None, "registered as long as a topic may be open"
        broker.may_answer_unloads.set()

        async def is_deregistered() -> bool:
            return await beside.record() is None

        await eventually(is_deregistered, what="the znode goes at once: no lease lapses while the clock stands still")
    assert broker.topics == {}


async def test_broker_that_opens_nothing_is_stuck(beside: RunningAgent, broker: FakeBroker, node: FakeNode) -> None:
    broker.opening = []
    await own(beside, node)
    assert (await beside.owner(TOPIC))[1]["owned"]
    await eventually(lambda: beside.agent.find_fault() is not None)
    status, health = await beside.get("/healthz")
    assert (status, health["broker"]) == (503, "stuck")
    assert health["fault"] == "broker_stuck: it was granted topics, and opens none: restart it"
    await eventually(lambda: reports_stuck(beside, "it was granted topics, and opens none"))
    assert beside.metric("broker_stuck") == 1
    broker.open(TOPIC)
    await eventually(lambda: reports_stuck(beside, None))
    assert (await beside.get("/healthz"))[0] == 200


async def reports_stuck(beside: RunningAgent, stuck: str | None) -> bool:
    record = await beside.record()
    return record is not None and record.get("stuck") == stuck


async def test_broker_without_lease_requests_is_withdrawn(broker: FakeBroker, node: FakeNode) -> None:
    clock = ManualClock()
    cluster = a_memory_cluster(clock)
    store = MemoryStore(cluster)
    await store.start()
    async with running_agent(agent_settings(broker, node), store, clock=clock) as beside:
        first = await beside.registered()
        assert (await beside.lease())[0] == 200
        clock.advance(11.0)
        await eventually(lambda: beside.agent.registration.phase is PresencePhase.ABSENT)
        status, health = await beside.get("/healthz")
        assert (status, health["broker"]) == (503, "stuck")
        assert health["fault"] == "broker_stuck: it answers, and has asked for no lease for 11 s: restart it"
        assert (await beside.lease())[0] == 503
        await beside.registered(after=first)
        assert (await beside.get("/healthz"))[0] == 200
    await store.close()


async def test_lost_session_closes_everything(broker: FakeBroker, node: FakeNode) -> None:
    cluster = a_memory_cluster()
    store = MemoryStore(cluster)
    await store.start()
    async with running_agent(agent_settings(broker, node), store) as beside:
        bundle = await own(beside, node)
        assert (await beside.owner(TOPIC))[1]["owned"]
        broker.open(TOPIC)
        cluster.expire(store)
        await eventually(lambda: broker.topics == {})
        assert [(each.bundle, each.topics) for each in broker.unloads] == [(bundle, [TOPIC])]
    await store.close()


async def test_health_and_metrics_show_the_state(beside: RunningAgent) -> None:
    await eventually(lambda: beside.agent.sampler.usage["memory"]["limit"])
    status, health = await beside.get("/healthz")
    assert status == 200
    assert health["registered"] is True
    assert health["broker"] == "answering"
    assert "directMemory" in health["unknownLimits"]
    status, metrics = await beside.get("/metrics/")
    assert status == 200
    assert "loadmanager_agent_registered 1.0" in metrics
    assert "loadmanager_build_info{" in metrics
    assert "process_open_fds " in metrics
    assert 'pulsar_lb_cpu_usage{broker="broker-1.example",metric="loadBalancing"}' in metrics
    assert 'loadmanager_agent_resource_limit_known{resource="directMemory"} 0.0' in metrics


async def test_topic_of_an_unowned_bundle_is_not_granted(beside: RunningAgent, node: FakeNode) -> None:
    status, answer = await beside.owner(TOPIC)
    assert (status, answer["owned"], answer.get("bundle"), answer.get("owner")) == (
        200,
        False,
        node.bundle_of(TOPIC),
        None,
    )


async def test_no_grants_in_a_doubtful_session(broker: FakeBroker, node: FakeNode) -> None:
    clock = ManualClock()
    cluster = a_memory_cluster(clock)
    store = MemoryStore(cluster, session_timeout_s=3.0)
    await store.start()
    settings = agent_settings(broker, node, loadBalancerReportUpdateMaxIntervalMinutes=0.001)
    async with running_agent(settings, store, clock) as beside:
        incarnation = await beside.registered()
        await own(beside, node)
        cluster.partition(store, noticed=True)
        assert (await beside.lease())[0] == 200, "a short interruption is nobody's business"
        clock.advance(0.1)
        await eventually(lambda: beside.metric("reports_total", outcome="failed") > 0)
        clock.advance(2.0)
        assert not beside.agent.registration.is_certain
        assert (await beside.lease())[0] == 503
        assert (await beside.owner(TOPIC))[0] == 503
        assert (await beside.get("/healthz"))[0] == 503
        cluster.heal(store)
        assert (await beside.lease())[1]["incarnation"] == incarnation
        assert (await beside.owner(TOPIC))[1]["owned"]
    await store.close()


async def test_question_repeatedly_voided_by_unloads_is_given_up(beside: RunningAgent, node: FakeNode) -> None:
    bundle = await own(beside, node)
    node.may_answer.clear()
    question = asyncio.create_task(beside.owner(TOPIC))
    for version in range(2, 5):
        await eventually(partial(_were_asked, node, version - 1))
        assert (await beside.unload(bundle, version=version))[0] == 204
        held_back, node.may_answer = node.may_answer, asyncio.Event()
        held_back.set()
    status, answer = await question
    assert status == 503
    assert "being unloaded" in answer["reason"]


def _were_asked(node: FakeNode, questions: int) -> bool:
    return len(node.questions) == questions


def topics_in(node: FakeNode, *bundles: str) -> list[str]:
    """A topic of namespace t/ns in each of the bundles."""
    found: dict[str, str] = {}
    for number in range(1_000):
        topic = f"persistent://t/ns/topic-{number}"
        found.setdefault(node.bundle_of(topic), topic)
    return [found[bundle] for bundle in bundles]


def halves_of(bundle: str) -> list[str]:
    name = BundleName.parse(bundle)
    middle = (name.range.lower + name.range.upper) // 2
    ends = [(name.range.lower, middle), (middle, name.range.upper)]
    return [f"{name.namespace}/{BundleRange(*pair)}" for pair in ends]


async def tell(beside: RunningAgent, bundles: NamespaceBundles) -> int:
    """Tell the agent of other bundles of namespace t/ns, as the leader does."""
    url = f"{beside.url}/loadmanager/v1/namespaces/t/ns/bundles"
    body = {"bundles": BundlesData.of(bundles).model_dump(by_alias=True), "hashFunction": bundles.hash_function.value}
    async with beside.http.put(url, json=body) as answer:
        return answer.status


async def test_topics_have_hashes_and_loads(beside: RunningAgent, node: FakeNode, broker: FakeBroker) -> None:
    bundle = await own(beside, node)
    other = next(name for name in node.namespaces["t/ns"].ranges() if f"t/ns/{name}" != bundle)
    (elsewhere,) = topics_in(node, f"t/ns/{other}")
    broker.open(TOPIC, messages_in=10, bytes_in=1_000)
    broker.open(elsewhere)
    await eventually(lambda: elsewhere in beside.agent.watch.loads)

    async def loaded() -> bool:
        broker.open(TOPIC, messages_in=broker.topics[TOPIC].messages_in + 10, bytes_in=0)
        _, answer = await beside.get("/loadmanager/v1/topics", bundle=bundle)
        return bool(answer["topics"][0].get("msgRateIn"))

    await eventually(loaded)
    status, answer = await beside.get("/loadmanager/v1/topics", bundle=bundle)
    assert (status, answer["bundle"]) == (200, bundle)
    (topic,) = answer["topics"]
    assert (topic["topic"], topic["hash"]) == (TOPIC, topic_hash(TOPIC, HashFunction.MURMUR3_32))
    assert set(topic) == {"topic", "hash", "msgRateIn", "msgRateOut", "msgThroughputIn", "msgThroughputOut"}


async def test_granted_topic_is_named_before_it_opens(beside: RunningAgent, node: FakeNode) -> None:
    bundle = await own(beside, node)
    assert (await beside.owner(TOPIC))[1]["owned"] is True
    _, answer = await beside.get("/loadmanager/v1/topics", bundle=bundle)
    assert [(each["topic"], each["msgRateIn"]) for each in answer["topics"]] == [(TOPIC, 0.0)]


async def test_topics_need_a_known_namespace(beside: RunningAgent, node: FakeNode) -> None:
    assert (await beside.get("/loadmanager/v1/topics"))[0] == 400
    assert (await beside.get("/loadmanager/v1/topics", bundle="t/ns/everything"))[0] == 400
    status, answer = await beside.get("/loadmanager/v1/topics", bundle="t/nowhere/0x00000000_0xffffffff")
    assert (status, answer["reason"]) == (503, "namespace t/nowhere not found")
    node.status = 500
    assert (await beside.get("/loadmanager/v1/topics", bundle="t/silent/0x00000000_0xffffffff"))[0] == 503


async def test_report_follows_new_boundaries(broker: FakeBroker, node: FakeNode, store: MemoryStore) -> None:
    settings = agent_settings(broker, node, loadBalancerReportUpdateMinIntervalMillis=3_600_000)
    async with running_agent(settings, store) as beside:
        await beside.registered()
        parent = await open_topic(beside, node, broker)

        async def is_reported() -> bool:
            await beside.agent.reporter.tick(beside.agent.registration)  # which it does by itself in an hour
            return await reports(beside, {parent})

        await eventually(is_reported)
        bundles = node.namespaces["t/ns"]
        index = bundles.ranges().index(BundleName.parse(parent).range)
        own_range = bundles.range_at(index)
        node.namespaces["t/ns"] = bundles.split(index, [(own_range.lower + own_range.upper) // 2])
        assert await tell(beside, node.namespaces["t/ns"]) == 204
        await eventually(lambda: reports(beside, {node.bundle_of(TOPIC)}))
        assert node.bundle_of(TOPIC) in halves_of(parent)


async def test_invalid_boundaries_are_rejected(beside: RunningAgent) -> None:
    url = f"{beside.url}/loadmanager/v1/namespaces/t/ns/bundles"
    for body in (b"{}", b"garbage", b'{"bundles":{"boundaries":["0x00000000","0x5"]}}'):
        async with beside.http.put(url, data=body) as answer:
            assert answer.status == 400
            assert "bundles" in (await answer.json())["reason"]


async def test_unload_of_a_part(beside: RunningAgent, node: FakeNode, broker: FakeBroker) -> None:
    node.create_namespace("t/ns", bundles=1)
    (whole,) = (f"t/ns/{each}" for each in node.namespaces["t/ns"].ranges())
    node.own(whole, BROKER_ID, await beside.registered(), version=1)
    low, high = halves_of(whole)
    topics = {f"persistent://t/ns/topic-{number}" for number in range(8)}
    inside = {t for t in topics if topic_hash(t, HashFunction.MURMUR3_32) in BundleName.parse(low).range}
    for topic in topics:
        assert (await beside.owner(topic))[1]["owned"] is True
        broker.open(topic)
    await eventually(lambda: len(beside.agent.watch.loads) == len(topics))
    headers = unload_headers(beside, version=3)
    assert (await beside.unload_with(low, {**headers, HASH_FUNCTION_HEADER: "murmur3_32"}))[0] == 204
    (unload,) = broker.unloads
    assert set(unload.topics) == inside
    assert set(unload.topics) != topics
    status, answer = await beside.get("/loadmanager/v1/topics", bundle=high)
    assert status == 200
    assert {each["topic"] for each in answer["topics"]} == topics - inside
    node.own(high, BROKER_ID, await beside.registered(), version=2)
    assert (await beside.unload_with(high, {**headers, EPOCH_HEADER: "1"}))[0] == 204
    assert set(broker.unloads[1].topics) >= topics - inside


async def test_unknown_hash_function_is_rejected(beside: RunningAgent, broker: FakeBroker) -> None:
    headers = unload_headers(beside, version=3)
    status, answer = await beside.unload_with("t/ns/0x00000000_0xffffffff", {**headers, HASH_FUNCTION_HEADER: "sha1"})
    assert status == 400
    assert answer["reason"] == f"header {HASH_FUNCTION_HEADER}: 'sha1': expected one of murmur3_32, crc32"
    assert broker.unloads == []


def unload_headers(beside: RunningAgent, version: int) -> dict[str, str]:
    return {
        EPOCH_HEADER: "1",
        BUNDLE_VERSION_HEADER: str(version),
        OWNER_HEADER: BROKER_ID,
        INCARNATION_HEADER: str(beside.agent.registration.incarnation),
    }


async def fail(*_: object) -> float:
    raise RuntimeError("nobody foresaw this")


async def held_back_when_it_ends(beside: RunningAgent, may_end: asyncio.Event) -> None:
    """Instead of one of the agent's tasks: its end takes a while."""
    del beside
    try:
        await asyncio.Event().wait()
    finally:
        await may_end.wait()


async def test_no_lease_is_granted_while_tasks_are_ending(
    broker: FakeBroker, node: FakeNode, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = asyncio.Event()
    monkeypatch.setattr(UsageSampler, "run", partialmethod(held_back_when_it_ends, may_end))
    async with running_agent(agent_settings(broker, node), store) as beside:
        await own(beside, node)
        assert (await beside.lease())[0] == 200
        beside.stop.set()
        await eventually(lambda: beside.agent.registration.incarnation is None)
        assert (await beside.lease())[0] == 503
        assert (await beside.owner(TOPIC))[0] == 503
        assert not beside.task.done()
        may_end.set()


async def is_waited_for(beside: RunningAgent, store: MemoryStore, valid_until_s: float) -> None:
    """Nothing is granted any more, and neither the registration nor the agent goes before the lease has lapsed."""
    await eventually(lambda: beside.agent.registration.incarnation is None)
    assert (await beside.lease())[0] == 503
    while time.monotonic() < valid_until_s:
        is_there = await store.get(paths.broker(BROKER_ID)) is not None and not beside.task.done()
        assert is_there or time.monotonic() >= valid_until_s
        await asyncio.sleep(0.01)
    await asyncio.wait([beside.task])
    assert store.state is SessionState.CONNECTED


async def granted_until_s(beside: RunningAgent) -> float:
    asked_s = time.monotonic()
    status, lease = await beside.lease()
    assert status == 200
    return asked_s + float(lease["validForMs"]) / 1000


async def test_unexpected_error_ends_the_agent_after_the_last_lease_lapsed(
    broker: FakeBroker, node: FakeNode, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with running_agent(agent_settings(broker, node, brokerLeaseMs=1500), store) as beside:
            await open_topic(beside, node, broker)
            broker.unload_status = 500
            monkeypatch.setattr(BrokerWatch, "look", fail)
            await is_waited_for(beside, store, await granted_until_s(beside))
            assert await beside.record() is None

    with pytest.raises(ExceptionGroup) as failure:
        await run()
    assert "nobody foresaw this" in str(failure.value.exceptions[0])
    assert [unload.topics for unload in broker.unloads] == [[TOPIC]], "the broker was asked to close what it had"


async def test_session_outlasts_the_last_lease_when_the_withdrawal_fails(
    broker: FakeBroker, node: FakeNode, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with running_agent(agent_settings(broker, node, brokerLeaseMs=1500), store) as beside:
            await beside.registered()
            valid_until_s = await granted_until_s(beside)
            monkeypatch.setattr(Registrar, "step", fail)
            beside.agent.registration.wake()
            await is_waited_for(beside, store, valid_until_s)

    with pytest.raises(ExceptionGroup):
        await run()


async def test_cancelled_agent_closes_and_deregisters(broker: FakeBroker, node: FakeNode, store: MemoryStore) -> None:
    async def cancel() -> None:
        async with running_agent(agent_settings(broker, node, brokerLeaseMs=60_000), store) as beside:
            await open_topic(beside, node, broker)
            assert (await beside.lease())[0] == 200
            beside.task.cancel()
            await asyncio.wait([beside.task])
            assert await beside.record() is None

    with pytest.raises(asyncio.CancelledError):
        await cancel()
    assert broker.topics == {}


async def test_unknown_epoch_is_412(
    beside: RunningAgent, node: FakeNode, broker: FakeBroker, store: MemoryStore
) -> None:
    bundle = await open_topic(beside, node, broker)
    status, answer = await beside.unload(bundle, version=2, epoch=HIGHEST_EPOCH + 1)
    assert status == 412
    assert EPOCH_HEADER in answer["reason"]
    assert (await beside.unload(bundle, version=2, epoch=10**17))[0] == 412
    assert broker.unloads == []
    assert beside.metric("unloads_total", outcome="unknown_epoch") == 2
    assert (await beside.unload(bundle, version=2, epoch=HIGHEST_EPOCH))[0] == 204
    assert (await beside.unload(bundle, version=3, epoch=HIGHEST_EPOCH + 1))[0] == 412
    await elect(store, HIGHEST_EPOCH + 1)
    assert (await beside.unload(bundle, version=3, epoch=HIGHEST_EPOCH + 1))[0] == 204


async def test_unreadable_epoch_is_503(
    beside: RunningAgent, node: FakeNode, broker: FakeBroker, store: MemoryStore
) -> None:
    bundle = await open_topic(beside, node, broker)
    store.link_changed(Link.DOWN)
    assert (await beside.unload(bundle, version=2))[0] == 503
    assert broker.unloads == []
    store.link_changed(Link.UP)
    assert (await beside.unload(bundle, version=2))[0] == 204


async def test_closed_topics_leave_unloads(beside: RunningAgent, node: FakeNode, broker: FakeBroker) -> None:
    broker.opening = []
    bundle = await own(beside, node)
    (kept, *others) = (topic for n in range(400) if node.bundle_of(topic := f"persistent://t/ns/t{n}") == bundle)
    for topic in (kept, *others):
        assert (await beside.owner(topic))[1]["owned"]
        broker.open(topic)
    await eventually(lambda: len(beside.agent.watch.loads) == len(others) + 1)
    for topic in others:
        del broker.topics[topic]
    await eventually(lambda: beside.metric("granted_topics") == 1)
    assert (await beside.unload(bundle, version=2))[0] == 204
    assert [unload.topics for unload in broker.unloads] == [[kept]]


async def stats_were_asked_for(broker: FakeBroker, times: int) -> None:
    before = broker.asked_for_stats
    await eventually(lambda: broker.asked_for_stats >= before + times)


async def test_opening_topic_is_named_in_an_unload(beside: RunningAgent, node: FakeNode, broker: FakeBroker) -> None:
    broker.opening = [TOPIC]
    bundle = await own(beside, node)
    assert (await beside.owner(TOPIC))[1]["owned"]
    await stats_were_asked_for(broker, 4)
    assert (await beside.unload(bundle, version=2))[0] == 204
    assert [unload.topics for unload in broker.unloads] == [[TOPIC]]


async def test_grants_of_a_silent_broker_are_kept(beside: RunningAgent, node: FakeNode, broker: FakeBroker) -> None:
    bundle = await own(beside, node)
    assert (await beside.owner(TOPIC))[1]["owned"]
    await stats_were_asked_for(broker, 4)
    assert (await beside.unload(bundle, version=2))[0] == 204
    assert [unload.topics for unload in broker.unloads] == [[TOPIC]]


@pytest.mark.parametrize("status", [200, 202, 301, 302, 303, 307, 308, 404])
async def test_only_204_confirms_an_unload(
    beside: RunningAgent, node: FakeNode, broker: FakeBroker, status: int
) -> None:
    bundle = await open_topic(beside, node, broker)
    async with FakeBroker() as elsewhere:
        broker.unload_status, broker.redirect = status, f"{elsewhere.url}/loadmanager/v1/unload"
        assert (await beside.unload(bundle, version=2))[0] == 503
        assert elsewhere.unloads == []
    assert len(broker.unloads) == 1


async def test_redirects_are_not_followed(beside: RunningAgent, node: FakeNode, broker: FakeBroker) -> None:
    await own(beside, node)
    async with FakeBroker(start_timestamp=1) as other_broker, FakeNode() as other_node:
        broker.stats_status, broker.redirect = 307, f"{other_broker.url}/loadmanager/v1/stats"
        node.status, node.redirect = 307, other_node.url
        other_node.create_namespace("t/ns")
        other_node.own(node.bundle_of(TOPIC), BROKER_ID, await beside.registered())
        await eventually(lambda: not beside.agent.watch.is_answering)
        assert (await beside.owner(TOPIC))[0] == 503
        await stats_were_asked_for(broker, 2)
        assert (other_broker.asked_for_stats, other_node.questions) == (0, [])
        broker.stats_status, node.status = 200, 200
        await eventually(lambda: beside.agent.watch.is_answering)
        assert (await beside.owner(TOPIC))[1]["owned"]


def coming(bundle: str) -> bytes:
    return TopicsOfBundle(bundle=bundle, topics=[TOPIC]).to_json()


async def test_warm_up_until_the_bundle_comes(beside: RunningAgent, node: FakeNode, broker: FakeBroker) -> None:
    await beside.registered()
    bundle = node.bundle_of(TOPIC)
    node.own(bundle, "broker-2.example:8080", 99, version=2, state="Releasing")
    assert await beside.prepare(coming(bundle)) == (204, None)
    assert [(each.bundle, each.topics) for each in broker.prepared] == [(bundle, [TOPIC])]
    question = asyncio.create_task(beside.owner(TOPIC, waitMs="60000"))
    await eventually(lambda: len(node.questions) > 2)
    assert not question.done(), "the broker that has it may serve it still"
    assert node.awaited[:2] == ["", BROKER_ID]
    await own(beside, node, version=3)
    assert (await question)[1]["owned"]


@pytest.mark.parametrize(("answered", "status"), [(404, 501), (405, 501), (501, 501), (500, 503), (200, 503)])
async def test_unsupported_prepare_is_501_and_a_failed_one_503(
    beside: RunningAgent, node: FakeNode, broker: FakeBroker, answered: int, status: int
) -> None:
    await beside.registered()
    broker.prepare_status = answered
    assert (await beside.prepare(coming(node.bundle_of(TOPIC))))[0] == status


async def test_bad_warm_up_is_refused(beside: RunningAgent, node: FakeNode, broker: FakeBroker) -> None:
    await beside.registered()
    good = coming(node.bundle_of(TOPIC))
    assert [
        (await beside.prepare(body))[0]
        for body in (b"{}", coming("t/ns"), b"x" * 300_000, b'{"bundle":"t/ns/0x0_0x1"}')
    ] == [400, 400, 413, 400]
    assert (await beside.prepare(good, incarnation=1))[0] == 412
    assert broker.prepared == []
    status, answer = await beside.owner(TOPIC, waitMs="-1")
    assert (status, "waitMs: '-1': expected" in answer["reason"]) == (400, True)


async def test_no_warm_up_without_a_registration(broker: FakeBroker, node: FakeNode, store: MemoryStore) -> None:
    broker.may_answer_stats.clear()
    async with running_agent(agent_settings(broker, node), store) as beside:
        assert (await beside.prepare(coming(node.bundle_of(TOPIC))))[0] == 503
        broker.may_answer_stats.set()


async def test_unload_names_the_destination(beside: RunningAgent, node: FakeNode, broker: FakeBroker) -> None:
    bundle = await open_topic(beside, node, broker)
    headers = {
        EPOCH_HEADER: "1",
        BUNDLE_VERSION_HEADER: "2",
        OWNER_HEADER: BROKER_ID,
        INCARNATION_HEADER: str(await beside.registered()),
    }
    assert (await beside.unload_with(bundle, {**headers, DESTINATION_HEADER: "no port"}))[0] == 400
    assert (await beside.unload_with(bundle, {**headers, DESTINATION_HEADER: "broker-2.example:8080"}))[0] == 204
    assert [each.destination for each in broker.unloads] == ["broker-2.example:8080"]
