"""A dump of a cluster at work, decided offline, against what the leader then decides: real processes all of them.

One node leads first and sheds nothing, so that the cluster comes to rest under load. Then the dump is taken, and a
second node takes over that knows no more than what is written down and sheds: its first round is the one to compare.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from aiohttp import web
from support.cluster import CALM, Cluster, a_cluster
from support.command_line import run
from support.fake_broker import FakeBroker
from support.lm_node import NodeProcess, get_json
from support.processes import Processes
from support.waiting import eventually

from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.store import paths
from loadmanager.store.znode_codec import decode

pytestmark = pytest.mark.zookeeper

NAMESPACE = "t/ns"
BUNDLES = 12
BROKERS = 3
NIC_GBPS = 0.008
"""1,000,000 bytes/s a broker, in and out."""
HOT_BYTES, COLD_BYTES = (300_000, 250_000, 200_000, 150_000), (20_000, 15_000, 10_000, 5_000)
"""Bytes per second in and out of the topics of the hot broker, and of the others."""
STRATEGY = "TransferShedder"
SHEDS = {
    **CALM,
    "loadBalancerSheddingEnabled": True,
    "loadBalancerSheddingIntervalMinutes": 0.1,
    "loadBalancerLoadSheddingStrategy": STRATEGY,
    "loadBalancerSheddingConditionHitCountThreshold": 0,
    "loadBalancerCPUResourceWeight": 0.0,
}


@dataclass(slots=True)
class SteadyBroker(FakeBroker):
    """A second passes on its clock with each question for statistics, so that rates are the same each time."""

    bytes_per_s: dict[str, int] = field(default_factory=dict)
    broker_id: str = ""
    _seconds: int = 0

    def carry(self, topic: str, bytes_per_s: int) -> None:
        self.open(topic, producers=1, consumers=1)
        self.bytes_per_s[topic] = bytes_per_s

    async def _stats(self, _request: web.Request) -> web.Response:
        self._seconds += 1
        topics = [
            {"topic": name, "messagesIn": 10 * self._seconds, "messagesOut": 10 * self._seconds}
            | {"bytesIn": rate * self._seconds, "bytesOut": rate * self._seconds, "producers": 1, "consumers": 1}
            for name, rate in self.bytes_per_s.items()
            if name in self.topics
        ]
        return web.json_response(
            {"pid": self.pid, "version": "1", "startTimestamp": 1, "monotonicS": self._seconds, "topics": topics}
        )


@asynccontextmanager
async def brokers_with_agents(
    cluster: Cluster, folder: Path, store_url: str, node_url: str
) -> AsyncIterator[list[SteadyBroker]]:
    """Brokers, and a `loadmanager agent` process beside each."""
    async with AsyncExitStack() as stack:
        brokers = [await stack.enter_async_context(SteadyBroker()) for _ in range(BROKERS)]
        processes = stack.enter_context(Processes(folder))
        for broker in brokers:
            broker.broker_id = f"127.0.0.1:{broker.port}"
            config, ready = folder / f"agent-{broker.port}.yaml", folder / f"agent-{broker.port}.json"
            config.write_text(yaml.safe_dump(agent_settings(broker, store_url, node_url)), encoding="utf-8")
            command = ["-m", "loadmanager", "agent", f"--config={config}", f"--ready-file={ready}"]
            processes.start(f"agent-{broker.port}", command, folder / f"agent-{broker.port}.log")
        await cluster.brokers_are_seen(node_url, BROKERS)
        try:
            yield brokers
        finally:
            for broker in brokers:  # ended in order, an agent would wait for its broker, which nobody serves then
                processes.signal(f"agent-{broker.port}", signal.SIGKILL)


def agent_settings(broker: SteadyBroker, store_url: str, node_url: str) -> dict[str, object]:
    """Only bandwidth counts, which is what goes through the broker's topics."""
    return {
        "metadataStoreUrl": store_url,
        "brokerId": broker.broker_id,
        "brokerUrl": broker.url,
        "brokerServiceUrl": f"pulsar://127.0.0.1:{broker.port}",
        "loadManagerUrls": [node_url],
        "bindAddress": "127.0.0.1",
        "agentPort": 0,
        "hostUsageScope": "process",
        "loadBalancerCPUResourceWeight": 0.0,
        "loadBalancerOverrideBrokerNicSpeedGbps": NIC_GBPS,
        "loadBalancerReportUpdateThresholdPercentage": 1,
        "loadBalancerReportUpdateMinIntervalMillis": 100,
        "loadBalancerHostUsageCheckIntervalMinutes": 0.003,
        "statsUpdateFrequencyInSecs": 0.1,
    }


async def spread_load(cluster: Cluster, url: str, brokers: list[SteadyBroker]) -> None:
    """Have an owner given to every bundle, and a topic of it carry load there: far more on one broker."""
    await cluster.create_namespace(url, NAMESPACE, BUNDLES)
    served: dict[str, list[str]] = {broker.broker_id: [] for broker in brokers}
    bundles: set[str] = set()
    for number in range(1000):
        topic = f"{NAMESPACE}/topic-{number}"
        _, owned = await get_json(cluster.http, f"{url}/loadbalance/v1/ownership/persistent/{topic}")
        if owned["bundle"] not in bundles:
            bundles.add(owned["bundle"])
            _, answer = await cluster.lookup(url, topic)
            served[answer["brokerId"]].append(f"persistent://{topic}")
        if len(bundles) == BUNDLES:
            break
    assert {broker: len(topics) for broker, topics in served.items()} == dict.fromkeys(served, len(HOT_BYTES))
    for broker in brokers:
        rates = HOT_BYTES if broker is brokers[0] else COLD_BYTES
        for topic, rate in zip(served[broker.broker_id], rates, strict=True):
            broker.carry(topic, rate)


async def is_reported(cluster: Cluster, broker: SteadyBroker) -> bool:
    """Return true if the broker's znode has all its load, and the usage that this load causes."""
    znode = await cluster.get(paths.broker(broker.broker_id))
    record = orjson.loads(decode(znode.data, znode.path))
    carried = sum(broker.bytes_per_s.values())
    return bool(
        record["msgThroughputIn"] == record["msgThroughputOut"] == carried
        and record["bandwidthIn"]["usage"] == record["bandwidthOut"]["usage"] == carried * 8 / 1000
    )


def command(*arguments: str) -> dict[str, Any]:
    """The one line of JSON that the command prints."""
    done = run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    line: dict[str, Any] = json.loads(done.stdout)
    return line


async def journalled(cluster: Cluster, node: NodeProcess, unloads: int) -> list[dict[str, Any]]:
    """Decisions of the leader once there are so many unloads, oldest first."""
    found: list[dict[str, Any]] = []

    async def sheds() -> bool:
        _, body = await get_json(cluster.http, f"{node.url}/loadbalance/v1/decisions?limit=1000")
        found[:] = sorted(body.get("decisions", []), key=lambda entry: int(entry["sequence"]))
        return [entry["kind"] for entry in found].count("unload") >= unloads

    await eventually(sheds, f"{unloads} bundles are unloaded")
    return found


def check_unloads(decision_log: list[dict[str, Any]], offline: Mapping[str, Any]) -> None:
    """The same bundles go from the same brokers to the same ones, for the same reason."""
    keys = ("bundle", "source", "destination", "reason")
    expected = [tuple(each[key] for key in keys) for each in offline["decisions"]]
    unloads = [entry for entry in decision_log if entry["kind"] == "unload"]
    live = [(each["subject"], each["source"], each["destination"], each["reason"].capitalize()) for each in unloads]
    assert sorted(live) == sorted(expected)


def check_verdicts(decision_log: list[dict[str, Any]], offline: Mapping[str, Any]) -> None:
    """Everything that was looked at has the same verdict, with the same figures."""
    live = {entry["subject"]: entry for entry in decision_log if entry["kind"] == "shed"}
    assert {each["subject"]: each["verdict"] for each in offline["verdicts"]} == {
        subject: entry["reason"] for subject, entry in live.items()
    }
    for verdict in offline["verdicts"]:
        assert live[verdict["subject"]]["why"] == pytest.approx(verdict["why"]), verdict["subject"]


async def test_decision_on_a_dump_equals_the_leaders(zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path) -> None:
    url = f"zk:{zookeeper.connect_string}{chroot}"
    async with a_cluster(zookeeper.connect_string, chroot, tmp_path) as cluster:
        first = await cluster.start_node("first")
        await cluster.leader()
        async with brokers_with_agents(cluster, tmp_path, url, first.url) as brokers:
            await spread_load(cluster, first.url, brokers)
            for broker in brokers:
                await eventually(partial(is_reported, cluster, broker), "its load is reported")

            dump = tmp_path / "dump.jsonl"
            config = tmp_path / "second.yaml"
            config.write_text(yaml.safe_dump({**SHEDS, "metadataStoreUrl": url}), encoding="utf-8")
            line = await asyncio.to_thread(command, "dump", "--config", str(config))
            dump.write_text(json.dumps(line), encoding="utf-8")
            offline = await asyncio.to_thread(command, "decide", str(dump), "--shed", STRATEGY, "--json")

            second = await cluster.start_node("second", SHEDS)
            first.terminate()
            decision_log = await journalled(cluster, second, len(offline["decisions"]))
    assert {each["source"] for each in offline["decisions"]} == {brokers[0].broker_id}
    check_unloads(decision_log, offline)
    check_verdicts(decision_log, offline)
