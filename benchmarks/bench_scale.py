"""Growth of a leader's cost with the cluster: from 10,000 bundles of 50 brokers to 1,000,000 of 5,000.

A real ZooKeeper and real nodes, each in its own process. Brokers are only znodes, with reports of the 200 bundles that
each owns, all written by this process. Measured for each size: the data in ZooKeeper; the time from a node's start
until it leads and has read everything, and its memory then, with its helper processes; lookups; reading all reports
again; a shedding plan; writes at rest; and the time without assignments after the leader was killed, with the work of
the standby that takes over.

    python benchmarks/bench_scale.py [--bundles 10000 100000 1000000]
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import structlog
from http_load import load
from measure import Measured, percentile, show
from support.cluster import Cluster, a_cluster
from support.lm_node import NodeProcess, get_json
from support.waiting import eventually

from loadmanager.cli.service_runner import install_fast_loop
from loadmanager.core.domain.bundles import NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import BrokerId, NamespaceName
from loadmanager.core.domain.ownership import NamespaceState, Ownership, OwnershipState, Registration
from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.store import paths
from loadmanager.store.metadata_store import Create, Put
from loadmanager.store.zookeeper_store import ZooKeeperStore
from loadmanager.wire.broker_data import LocalBrokerData, NamespaceBundleStats, ResourceUsage, encode_local_broker_data
from loadmanager.wire.store_records import encode_namespace

SIZES = (10_000, 100_000, 1_000_000)
BUNDLES_PER_BROKER = 200
BUNDLES_PER_NAMESPACE = 1_000
ONE_IN_HOT, HOT = 10, 3.0
"""One broker out of `ONE_IN_HOT` carries `HOT` times the load of the others."""

AT_A_TIME = 64
CONNECTIONS, LOAD_S = 16, 3.0
IDLE_S = 10.0
LONG_S = 900.0
MIB = 2**20
GIB_TARGET_MIB = 1024.0
HEAP_MIB = 4_096
SETTINGS = {
    "metadataStoreSessionTimeoutMillis": 60_000,
    "loadBalancerSheddingEnabled": True,
    "loadBalancerSheddingIntervalMinutes": 100_000,
    "loadBalancerAutoBundleSplitEnabled": False,
    "historyUrl": "",
}
BUNDLES = NamespaceBundles(equal_boundaries(BUNDLES_PER_NAMESPACE))
FREE = "tenant/free"


@dataclass(slots=True)
class Fleet:
    """Brokers that exist only as znodes; `store` has their session."""

    store: ZooKeeperStore
    names: list[str]
    """Names of all bundles in order. The brokers own them in turn, so the bundles of a namespace have different owners,
    as in an old cluster.
    """
    registrations: list[Registration]
    rng: np.random.Generator

    def report(self, number: int) -> bytes:
        """Encode a report like that of a broker: rates with all digits."""
        mine = self.names[number :: len(self.registrations)]
        hot = HOT if number % ONE_IN_HOT == 0 else 1.0
        rates = self.rng.lognormal(0.0, 1.0, (len(mine), 2)) * 10.0 * hot
        stats: dict[str, NamespaceBundleStats] = {
            name: {
                "msgRateIn": rate,
                "msgRateOut": rate,
                "msgThroughputIn": bytes_per_s * 1_000.0,
                "msgThroughputOut": bytes_per_s * 1_000.0,
                "topics": 10,
                "producerCount": 10,
                "consumerCount": 10,
            }
            for name, (rate, bytes_per_s) in zip(mine, rates.tolist(), strict=True)
        }
        broker = broker_id(number)
        messages, kilobytes = rates.sum(axis=0).tolist()
        used = kilobytes / BUNDLES_PER_BROKER
        idle: ResourceUsage = {"usage": 0.0, "limit": 100_000.0}
        return encode_local_broker_data(
            LocalBrokerData(
                brokerId=broker,
                webServiceUrl=f"http://{broker}",
                pulsarServiceUrl=f"pulsar://{broker}",
                cpu={"usage": min(used, 95.0), "limit": 100.0},
                memory=idle,
                directMemory=idle,
                bandwidthIn=idle,
                bandwidthOut=idle,
                lastStats=stats,
                bundles=mine,
                numBundles=len(mine),
                msgRateIn=messages,
                msgRateOut=messages,
                msgThroughputIn=kilobytes * 1_000.0,
                msgThroughputOut=kilobytes * 1_000.0,
                lastUpdate=time.time_ns() // 1_000_000,
            )
        )

    async def register(self) -> None:
        await self.store.ensure_path(paths.BROKERS)

        async def one(number: int) -> None:
            path = paths.broker(broker_id(number))
            await self.store.commit([Create(path, self.report(number), ephemeral=True)])
            znode = await self.store.get(path)
            assert znode is not None
            self.registrations[number] = Registration(broker_id(number), znode.czxid)

        await some_at_a_time(one, len(self.registrations))

    async def report_all(self) -> None:
        async def one(number: int) -> None:
            await self.store.commit([Put(paths.broker(broker_id(number)), self.report(number))])

        await some_at_a_time(one, len(self.registrations))

    async def own(self) -> None:
        """Write records in which all bundles are owned."""
        await self.store.ensure_path(f"{paths.NAMESPACES}/tenant")
        for first in range(0, len(self.names), BUNDLES_PER_NAMESPACE):
            owned = tuple(
                Ownership(OwnershipState.OWNED, self.registrations[(first + index) % len(self.registrations)], None, 1)
                for index in range(BUNDLES_PER_NAMESPACE)
            )
            name = namespace(first // BUNDLES_PER_NAMESPACE)
            await self.store.commit([Create(paths.namespace(name), encode_namespace(state_of(name, owned)))])


def state_of(name: str, owned: tuple[Ownership, ...]) -> NamespaceState:
    return NamespaceState(NamespaceName.parse(name), BUNDLES, owned)


def broker_id(number: int) -> BrokerId:
    return BrokerId(f"broker-{number:04d}.example.com:8080")


def namespace(number: int) -> str:
    return f"tenant/ns-{number:04d}"


async def some_at_a_time(one: Callable[[int], Awaitable[None]], count: int) -> None:
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await one(number)

    await asyncio.gather(*(work() for _ in range(AT_A_TIME)))


@asynccontextmanager
async def a_fleet(cluster: Cluster, bundles: int) -> AsyncIterator[Fleet]:
    ranges = [str(each) for each in BUNDLES.ranges()]
    names = [f"{namespace(number)}/{each}" for number in range(bundles // BUNDLES_PER_NAMESPACE) for each in ranges]
    brokers = bundles // BUNDLES_PER_BROKER
    nobody = Registration(BrokerId(""), 0)
    fleet = Fleet(await cluster.a_store(), names, [nobody] * brokers, np.random.default_rng(1))
    await fleet.register()
    await fleet.own()
    yield fleet


@dataclass(slots=True)
class Usage:
    """Memory and CPU time of a process and its children."""

    memory_bytes: int
    cpu_s: float


def usage_of(node: NodeProcess) -> Usage:
    process = psutil.Process(node.pid)
    all_of_it = [process, *process.children(recursive=True)]
    return Usage(
        sum(each.memory_info().rss for each in all_of_it),
        sum(sum(each.cpu_times()[:2]) for each in all_of_it),
    )


def forget_highest(node: NodeProcess) -> None:
    """Reset Linux's peak memory of the node."""
    Path(f"/proc/{node.pid}/clear_refs").write_text("5")


def highest_bytes(node: NodeProcess) -> int:
    """Return the node's peak memory since the reset."""
    lines = Path(f"/proc/{node.pid}/status").read_text().splitlines()
    (peak,) = (line for line in lines if line.startswith("VmHWM:"))
    return int(peak.split()[1]) * 1024


async def started(cluster: Cluster, name: str, brokers: int) -> tuple[NodeProcess, float]:
    """Start a node; return it after it has read everything, with the seconds that this took."""
    began_s = time.monotonic()
    node = await cluster.start_node(name, SETTINGS)

    async def is_ready() -> bool:
        return (await get_json(cluster.http, f"{node.url}/readyz"))[0] == 200

    await eventually(is_ready, f"{name} has read everything", least_s=LONG_S)
    await cluster.leader()
    await cluster.brokers_are_seen(node.url, brokers)
    return node, time.monotonic() - began_s


async def settled(node: NodeProcess) -> float:
    """Wait until a node is idle; return its CPU time in seconds."""
    last_s = -1.0
    while (now_s := usage_of(node).cpu_s) - last_s > 0.05:
        last_s = now_s
        await asyncio.sleep(1.0)
    return now_s


def zxid(zookeeper: EmbeddedZooKeeper) -> int:
    """Return the server's last transaction id."""
    answer = zookeeper._four_letter_command(b"srvr")  # noqa: SLF001 - `mntr` does not have it
    (found,) = [line.partition(": ")[2] for line in answer.splitlines() if line.startswith("Zxid")]
    return int(found, 16)


async def measure(zookeeper: EmbeddedZooKeeper, folder: Path, bundles: int) -> list[Measured]:
    async with a_cluster(zookeeper.connect_string, "/bench", folder) as cluster, a_fleet(cluster, bundles) as fleet:
        brokers = len(fleet.registrations)
        held = zookeeper.counters()
        leader, start_s = await started(cluster, "n1", brokers)
        start_cpu_s = await settled(leader)
        memory = usage_of(leader).memory_bytes
        rows = [
            Measured("znodes", float(held["zk_znode_count"]), ""),
            Measured("bytes in them", float(held["zk_approximate_data_size"]) / MIB, "MiB"),
            Measured("from the start of a node until it leads", start_s, "s"),
            Measured("  processor time of that", start_cpu_s, "s"),
            Measured("memory of the leader, settled", memory / MIB, "MiB", GIB_TARGET_MIB),
        ]
        rows += await measure_lookups(leader)
        rows += await measure_reports(leader, fleet)
        rows += await measure_plan(cluster, leader)
        rows += await measure_idle(zookeeper, leader)
        rows += await measure_failover(cluster, leader, brokers)
        return rows


async def measure_lookups(leader: NodeProcess) -> list[Measured]:
    topics = [f"/lookup/v2/topic/persistent/{namespace(number % 10)}/t-{number:05d}" for number in range(10_000)]
    before_s = usage_of(leader).cpu_s
    per_s, latencies_s = await load(leader.url, topics, CONNECTIONS, LOAD_S)
    cpu_s = usage_of(leader).cpu_s - before_s
    return [
        Measured("processor time of a lookup", cpu_s / len(latencies_s) * 1e6, "us"),
        Measured("lookups", per_s, "/s"),
        Measured("  99th percentile", percentile(latencies_s, 99) * 1000, "ms"),
    ]


async def measure_reports(leader: NodeProcess, fleet: Fleet) -> list[Measured]:
    """Measure reports of all brokers, written as fast as this process can."""
    before_s, began_s = await settled(leader), time.monotonic()
    await fleet.report_all()
    took_s = time.monotonic() - began_s
    cpu_s = await settled(leader) - before_s
    return [
        Measured("all reports, written", took_s, "s"),
        Measured("  processor time of the leader for each", cpu_s / len(fleet.registrations) * 1000, "ms"),
        Measured("memory of the leader after that", usage_of(leader).memory_bytes / MIB, "MiB", GIB_TARGET_MIB),
    ]


async def measure_plan(cluster: Cluster, leader: NodeProcess) -> list[Measured]:
    """Measure the second of two plans, when the caches of the first exist."""
    took_s = 0.0
    for _ in range(2):
        forget_highest(leader)
        began_s = time.monotonic()
        async with cluster.http.post(f"{leader.url}/loadbalance/v1/plans", json={"kind": "shed"}) as answer:
            body = await answer.json()
            assert answer.status == 200, body
        took_s = time.monotonic() - began_s
    return [
        Measured("a plan of shedding", took_s, "s"),
        Measured("  steps in it", len(body["steps"]), ""),
        Measured("  the most memory of the leader while it lasts", highest_bytes(leader) / MIB, "MiB"),
        Measured("memory of the leader after that", usage_of(leader).memory_bytes / MIB, "MiB", GIB_TARGET_MIB),
    ]


async def measure_idle(zookeeper: EmbeddedZooKeeper, leader: NodeProcess) -> list[Measured]:
    cpu_s, last = await settled(leader), zxid(zookeeper)
    await asyncio.sleep(IDLE_S)
    return [
        Measured("transactions a minute while nothing happens", (zxid(zookeeper) - last) * 60 / IDLE_S, "", 0.0),
        Measured("  processor of the leader meanwhile", (usage_of(leader).cpu_s - cpu_s) / IDLE_S * 100, "%"),
    ]


async def measure_failover(cluster: Cluster, leader: NodeProcess, brokers: int) -> list[Measured]:
    standby, _ = await started(cluster, "n2", brokers)
    await cluster.create_namespace(leader.url, FREE, 1)
    before_s = await settled(standby)
    memory = usage_of(standby).memory_bytes
    leader.kill()
    killed_s = time.monotonic()

    async def is_assigned() -> bool:
        return (await cluster.lookup(standby.url, f"{FREE}/topic"))[0] == 200

    await eventually(is_assigned, "the next leader assigns", least_s=LONG_S)
    took_s = time.monotonic() - killed_s
    cpu_s = await settled(standby) - before_s
    return [
        Measured("memory of a node that stands by", memory / MIB, "MiB", GIB_TARGET_MIB),
        Measured("leader killed, until the next assignment", took_s, "s"),
        Measured("  processor time of the next leader until it has settled", cpu_s, "s"),
    ]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundles", type=int, nargs="+", default=SIZES, help="each a multiple of 1,000")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    for bundles in parser.parse_args().bundles:
        with EmbeddedZooKeeper(heap_mib=HEAP_MIB) as zookeeper, tempfile.TemporaryDirectory() as folder:
            rows = await measure(zookeeper, Path(folder), bundles)
        show(f"{bundles:,} bundles of {bundles // BUNDLES_PER_BROKER:,} brokers", rows)


if __name__ == "__main__":
    install_fast_loop()
    asyncio.run(main())
