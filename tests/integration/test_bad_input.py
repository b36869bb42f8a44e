from __future__ import annotations

import gzip
import time
from collections.abc import AsyncIterator

import pytest
from support.nodes import Cluster, RunningNode, on_zookeeper
from support.registrations import a_record, load_of, write
from support.waiting import eventually

from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.store import paths
from loadmanager.wire.broker_data import encode_local_broker_data

pytestmark = pytest.mark.zookeeper

BUNDLE = "t/ns/0x00000000_0xffffffff"
TOPIC = "persistent://t/ns/x"

GARBAGE = {
    "garbage": (b"\x00\x01garbage", "Invalid JSON"),
    "empty": (b"", "empty"),
    "truncated": (b'{"cpu":{"usage":1.0', "Invalid JSON"),
    "not-utf-8": (b'{"brokerId":"\xff\xfe"}', "not UTF-8"),
    "another-type": (b"[1,2,3]", "Input should be an object"),
    "oversized": (b"[" * 900_000, "Invalid JSON: recursion limit"),
    "gzip-bomb": (gzip.compress(b" " * (70 << 20)), "decompresses to more than"),
    "truncated-gzip": (gzip.compress(b"{}" * 1_000)[:-9], "gzip that is cut off"),
    "damaged-gzip": (b"\x1f\x8b\x08garbage", "damaged gzip"),
}
EACH_GARBAGE = pytest.mark.parametrize(("data", "complaint"), GARBAGE.values(), ids=list(GARBAGE))


@pytest.fixture
async def cluster(zookeeper: EmbeddedZooKeeper, chroot: str) -> AsyncIterator[Cluster]:
    async with Cluster(on_zookeeper(zookeeper, chroot)) as cluster:
        yield cluster


@pytest.fixture
async def node(cluster: Cluster) -> RunningNode:
    """A leader with two brokers and a namespace, one bundle of which is owned by b1."""
    leader = await cluster.start_leader()
    await cluster.a_broker("b1:8080")
    await cluster.a_namespace("t/ns", bundles={"numBundles": 1})
    await leader.lookup(TOPIC)
    await cluster.a_broker("b2:8080")
    return leader


async def _rejected(node: RunningNode) -> float:
    text = (await node.get("/metrics")).body.decode()
    lines = [line for line in text.splitlines() if line.startswith("loadmanager_records_rejected_total")]
    return float(lines[0].rpartition(" ")[2])


async def _assert_listed(node: RunningNode, path: str, complaint: str) -> None:
    """The fault names the place and what is wrong with it, in short, and was counted once."""
    await eventually(lambda: path in node.node.mirror.faults)
    reply = await node.get("/readyz")
    assert reply.status == 200
    (fault,) = reply.json()["faults"].items()
    assert fault[0] == path
    assert fault[1].startswith(f"{path}: ")
    assert complaint in fault[1]
    assert len(fault[1]) < 500
    assert await _rejected(node) == 1


async def _assert_others_work(cluster: Cluster, node: RunningNode) -> None:
    """The owner of the bundle is as it was, and another namespace gets its owners."""
    assert (await node.lookup(TOPIC)).json()["brokerId"] == "b1:8080"
    await cluster.a_namespace("t/another")
    assert (await node.lookup("persistent://t/another/x")).status == 200
    assert node.leads
    assert not node.node.failure.done()


@EACH_GARBAGE
async def test_spoiled_broker_keeps_bundles(cluster: Cluster, node: RunningNode, data: bytes, complaint: str) -> None:
    await cluster.brokers["b1:8080"].report(data)
    await _assert_listed(node, paths.broker("b1:8080"), complaint)
    await _assert_others_work(cluster, node)
    await cluster.brokers["b1:8080"].report(a_record("b1:8080"))
    await eventually(lambda: not node.node.mirror.faults)


@EACH_GARBAGE
async def test_spoiled_namespace_keeps_last_good(
    cluster: Cluster, node: RunningNode, data: bytes, complaint: str
) -> None:
    path = paths.namespace("t/ns")
    await write(cluster.store, path, data)
    await _assert_listed(node, path, complaint)
    await _assert_others_work(cluster, node)
    refused = await node.put(f"/admin/v2/namespaces/{BUNDLE}/unload")
    assert refused.status == 503
    assert path in refused.reason
    assert (await cluster.store.get_many([path]))[0].data == data  # type: ignore[union-attr]  # it is there


@EACH_GARBAGE
async def test_unreadable_namespace_is_503(cluster: Cluster, node: RunningNode, data: bytes, complaint: str) -> None:
    await write(cluster.store, paths.namespace("t/spoiled"), data)
    await _assert_listed(node, paths.namespace("t/spoiled"), complaint)
    reply = await node.lookup("persistent://t/spoiled/x")
    assert (reply.status, reply.headers["Retry-After"]) == (503, "1")
    assert complaint in reply.reason
    await _assert_others_work(cluster, node)


@EACH_GARBAGE
async def test_spoiled_node_record_is_ignored(cluster: Cluster, node: RunningNode, data: bytes, complaint: str) -> None:
    await write(cluster.store, paths.node("n9:8080"), data)
    await _assert_listed(node, paths.node("n9:8080"), complaint)
    await _assert_others_work(cluster, node)


@EACH_GARBAGE
async def test_spoiled_leader_record_is_counted(
    cluster: Cluster, node: RunningNode, data: bytes, complaint: str
) -> None:
    assert complaint
    await write(cluster.store, paths.LEADER, data)
    await eventually(lambda: node.leads and node.node.mirror.epoch == 2 and not node.node.mirror.faults)
    assert await _rejected(node) == 1
    await _assert_others_work(cluster, node)


@pytest.mark.parametrize("path", [paths.bundle_data("t/ns"), paths.STRATEGY_STATE])
@EACH_GARBAGE
async def test_spoiled_history_is_overwritten(cluster: Cluster, path: str, data: bytes, complaint: str) -> None:
    await write(cluster.store, path, data)
    node = await cluster.start_leader()
    await _assert_listed(node, path, complaint)
    broker = await cluster.a_broker("b1:8080")
    await cluster.a_namespace("t/ns", bundles={"numBundles": 1})
    await broker.report(a_record("b1:8080", {BUNDLE: load_of(1.0)}, agent_url=broker.url))
    await eventually(lambda: node.node.mirror.model.bundle_averages("t/ns"))
    await node.node.persistence.flush()
    assert node.node.mirror.faults == {}
    await _assert_others_work(cluster, node)


def _spoiled_report(old: bytes, new: bytes) -> bytes:
    data = encode_local_broker_data(a_record("b1:8080", {BUNDLE: load_of(1.0, msg_rate=777.0)}))
    assert old in data
    return data.replace(old, new, 1)


REPORTS = {
    "bare-nan": (_spoiled_report(b'"msgRateIn":777.0', b'"msgRateIn":NaN'), "msgRateIn: Input should be a finite"),
    "quoted-nan": (_spoiled_report(b'"msgRateIn":777.0', b'"msgRateIn":"NaN"'), "msgRateIn: Input should be a finite"),
    "negative": (_spoiled_report(b'"msgRateIn":777.0', b'"msgRateIn":-1.0'), "msgRateIn: Input should be greater"),
    "beyond-reason": (_spoiled_report(b'"msgRateIn":777.0', b'"msgRateIn":1e308'), "msgRateIn: Input should be less"),
    "no-bundle": (_spoiled_report(BUNDLE.encode(), b"t/ns/everything"), "bundle range 'everything': expected 0x"),
    "no-range": (_spoiled_report(BUNDLE.encode(), b"t/ns/0x9_0x1"), "bundle range '0x9_0x1': expected 0x"),
}


@pytest.mark.parametrize(("data", "complaint"), REPORTS.values(), ids=list(REPORTS))
async def test_bad_figures_are_not_taken_in(cluster: Cluster, node: RunningNode, data: bytes, complaint: str) -> None:
    broker = cluster.brokers["b1:8080"]
    await broker.report(a_record("b1:8080", {BUNDLE: load_of(1.0)}, agent_url=broker.url))
    await eventually(lambda: node.node.mirror.model.bundle_averages("t/ns"))
    before = node.node.mirror.model.bundle_averages("t/ns")[BUNDLE]
    await broker.report(data)
    await _assert_listed(node, paths.broker("b1:8080"), complaint)
    after = node.node.mirror.model.bundle_averages("t/ns")[BUNDLE]
    assert after.short.tolist() == before.short.tolist()
    assert after.long_samples == 1
    await _assert_others_work(cluster, node)


async def test_largest_accepted_figures_do_not_overflow(cluster: Cluster, node: RunningNode) -> None:
    broker = cluster.brokers["b1:8080"]
    stats = load_of(1.0)
    stats |= {"msgRateIn": 1e12, "msgThroughputIn": 1e12, "consumerCount": 2**53, "producerCount": 2**53}
    now_ms = time.time_ns() // 1_000_000
    for number in range(3):
        record = a_record("b1:8080", {BUNDLE: stats}, agent_url=broker.url)
        await broker.report({**record, "lastUpdate": now_ms + number})
        await _reported(node, number + 1)
    await node.node.persistence.flush()
    assert (await node.node.shedding.run_round()).steps == ()
    assert (await node.get("/loadbalance/v1/fleet")).status == 200
    await _assert_others_work(cluster, node)


async def _reported(node: RunningNode, times: int) -> None:
    await eventually(lambda: _samples(node) == times)


def _samples(node: RunningNode) -> int:
    averages = node.node.mirror.model.bundle_averages("t/ns")
    return averages[BUNDLE].long_samples if BUNDLE in averages else 0
