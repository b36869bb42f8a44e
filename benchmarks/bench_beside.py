"""What a look at a Pulsar's ZooKeeper costs: the first one at all of it, and every second after that.

A real ZooKeeper with the znodes of 1,000 brokers and 100,000 bundles, and the picture of a process beside them in a
process of its own. Of ZooKeeper its count of packets and its processor time are shown, less what the brokers in this
process cost it by themselves. The yardstick is a process that asks once a second instead of watching: for the reports,
and for the names of the bundles of each namespace that have an owner.

    python benchmarks/bench_beside.py [--brokers 1000] [--namespaces 1000] [--seconds 15]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from measure import Measured, percentile, show

from loadmanager.cli.service_runner import install_fast_loop
from loadmanager.config import BesideSettings
from loadmanager.core.domain.bundles import NamespaceBundles, equal_boundaries
from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.lab.decide.broker_settings import BrokerSettings
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.pulsar.planning_settings import PulsarSettings
from loadmanager.pulsar.pulsar_intake import PulsarIntake
from loadmanager.pulsar.read_only_store import ReadOnlyStore
from loadmanager.store import paths, pulsar_paths
from loadmanager.store.metadata_store import Create, MetadataStore, Put
from loadmanager.store.zookeeper_store import ZooKeeperStore
from loadmanager.util.logging import configure_logging

BUNDLES_PER_NAMESPACE = 100
SESSION_TIMEOUT_S = 10.0
FIRST_VIEW_TARGET_S = 10.0
CORE_TARGET_PERCENT = 5.0
REQUESTS_TARGET = 10.0
PROBE_EVERY_S = 0.005
AT_A_TIME = 16
BUNDLES = NamespaceBundles(equal_boundaries(BUNDLES_PER_NAMESPACE))
LOAD = {"msgRateIn": 12.5, "msgRateOut": 25.125, "msgThroughputIn": 12345.25, "msgThroughputOut": 24690.5}
AVERAGES = {"maxSamples": 1000, "numSamples": 412, **LOAD}


@dataclass(frozen=True, slots=True)
class Fleet:
    """So many brokers, which own all bundles in turn; their znodes are in one session."""

    store: MetadataStore
    brokers: int
    namespaces: int

    async def fill(self) -> None:
        """Write everything that a Pulsar has, with the averages of every tenth bundle."""
        await self.store.ensure_path("/admin/clusters/standalone")
        for folder in ("/namespace", "/admin/local-policies", paths.BUNDLE_DATA):
            await self.store.ensure_path(f"{folder}/tenant")
        await self.store.ensure_path(paths.BROKERS)
        for first in range(0, self.namespaces, AT_A_TIME):
            numbers = range(first, min(first + AT_A_TIME, self.namespaces))
            await asyncio.gather(*map(self._add_namespace, numbers))
        await self._each_broker(0.0, is_new=True)

    async def report(self, within_s: float) -> None:
        """Have every broker report once within so many seconds."""
        await self._each_broker(within_s / self.brokers, is_new=False)

    async def probe(self, latencies_s: list[float]) -> None:
        """Ask for a znode again and again, as any broker does, until cancelled."""
        while True:
            began_s = time.perf_counter()
            await self.store.get(paths.BROKERS)
            latencies_s.append(time.perf_counter() - began_s)
            await asyncio.sleep(PROBE_EVERY_S)

    async def _add_namespace(self, number: int) -> None:
        name = f"tenant/ns-{number:04d}"
        boundaries = [f"0x{each:08x}" for each in BUNDLES.boundaries]
        policies = {"bundles": {"boundaries": boundaries, "numBundles": len(BUNDLES)}, "migrated": False}
        ops = [Create(pulsar_paths.local_policies(name), orjson.dumps(policies))]
        ops += [Create(f"{parent}/{name}", b"") for parent in (pulsar_paths.OWNERSHIP, paths.BUNDLE_DATA)]
        for bundle, owner in self._bundles_of(number):
            record = {"nativeUrl": f"pulsar://{_host(owner)}:6650", "httpUrl": f"http://{_host(owner)}:8080"}
            ops.append(Create(pulsar_paths.owner(bundle), orjson.dumps({**record, "disabled": False}), ephemeral=True))
        bundle, _ = next(self._bundles_of(number))
        history = {"shortTermData": AVERAGES, "longTermData": AVERAGES, "topics": 16}
        ops.append(Create(paths.bundle_data(bundle), orjson.dumps(history)))
        await self.store.commit(ops)

    def _bundles_of(self, namespace: int) -> Iterator[tuple[str, int]]:
        for place, text in enumerate(BUNDLES.range_texts()):
            yield f"tenant/ns-{namespace:04d}/{text}", (namespace * len(BUNDLES) + place) % self.brokers

    async def _each_broker(self, pause_s: float, *, is_new: bool) -> None:
        owned: list[list[str]] = [[] for _ in range(self.brokers)]
        for namespace in range(self.namespaces):
            for bundle, owner in self._bundles_of(namespace):
                owned[owner].append(bundle)
        began_s = time.monotonic()
        for number, bundles in enumerate(owned):
            await asyncio.sleep(max(0.0, began_s + number * pause_s - time.monotonic()))
            path, data = paths.broker(f"{_host(number)}:8080"), orjson.dumps(_report(number, bundles))
            await self.store.commit([Create(path, data, ephemeral=True) if is_new else Put(path, data)])


def _host(number: int) -> str:
    return f"broker-{number:04d}.pulsar.example.com"


def _report(number: int, bundles: list[str]) -> dict[str, Any]:
    stats = {**LOAD, "consumerCount": 8, "producerCount": 4, "topics": 16, "cacheSize": 1048576}
    usage = {"usage": 30.0, "limit": 800.0}
    return {
        "webServiceUrl": f"http://{_host(number)}:8080",
        "pulsarServiceUrl": f"pulsar://{_host(number)}:6650",
        **dict.fromkeys(("cpu", "memory", "directMemory", "bandwidthIn", "bandwidthOut"), usage),
        **{name: value * len(bundles) for name, value in LOAD.items()},
        "lastUpdate": time.time_ns() // 1_000_000,
        "lastStats": dict.fromkeys(bundles, stats),
        "bundles": bundles,
        "numBundles": len(bundles),
        "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl",
        "startTimestamp": 1_753_000_000_000,
    }


# The process that looks


async def watch(store: ReadOnlyStore) -> None:
    """Keep the picture, and say how it stands for each line of input."""
    ours = BesideSettings(pulsar_metadata_store_url="zk:unused:1", admin_urls=("http://unused:1",))
    live = PulsarSettings(BrokerSettings("http://unused:1", "standalone", {}), ours)
    view, loop = ClusterMirror(), asyncio.get_running_loop()
    intake = PulsarIntake(store, view, live, None, lambda: None, lambda _: None)
    running = loop.create_task(intake.run())
    await intake.settled()
    say(bundles=len(intake.owners), brokers=len(view.brokers), faults=len(view.faults))
    while await loop.run_in_executor(None, sys.stdin.readline):
        say(seeded=intake.seeded.is_set(), reports=intake.reports_applied)
    running.cancel()


async def poll(store: ReadOnlyStore) -> None:
    """Ask once a second for all reports, and for the names of all bundles that have an owner."""
    brokers = [paths.broker(name) for name in await store.children(paths.BROKERS)]
    namespaces = [f"/namespace/tenant/{name}" for name in await store.children("/namespace/tenant")]

    async def ask() -> None:
        while True:
            began_s = time.monotonic()
            await store.get_many(brokers)
            await store.children_many(namespaces)
            await asyncio.sleep(max(0.0, began_s + 1.0 - time.monotonic()))

    asking = asyncio.create_task(ask())
    say()
    while await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline):
        say()
    asking.cancel()


def say(**more: object) -> None:
    sys.stdout.buffer.write(orjson.dumps({"cpu": time.process_time(), **more}) + b"\n")
    sys.stdout.buffer.flush()


async def look(how: str, connect_string: str) -> None:
    configure_logging(json_lines=False, level="error")
    store = ZooKeeperStore(connect_string, session_timeout_s=SESSION_TIMEOUT_S)
    await store.start()
    await {"watch": watch, "poll": poll}[how](ReadOnlyStore(store))
    await store.close()


@dataclass(frozen=True, slots=True)
class Looking:
    """The process that looks, as this one sees it."""

    process: asyncio.subprocess.Process
    first: dict[str, Any]

    async def ask(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        return await _line_of(self.process)


async def _line_of(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    said: dict[str, Any] = orjson.loads(await process.stdout.readline())
    return said


@asynccontextmanager
async def looking(how: str, connect_string: str) -> AsyncIterator[Looking]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        __file__,
        "--look",
        how,
        "--at",
        connect_string,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    yield Looking(process, await _line_of(process))
    assert process.stdin is not None
    process.stdin.close()
    await process.wait()


# What is measured


@dataclass(frozen=True, slots=True)
class Cost:
    """A second's worth: of the processor in per cent of a core, of ZooKeeper's packets that came in."""

    server_percent: float
    requests: float
    own_percent: float = 0.0


@dataclass(frozen=True, slots=True)
class Bench:
    server: EmbeddedZooKeeper
    fleet: Fleet
    seconds: float

    async def cost(self, looks: Looking | None, *, reports: bool) -> Cost:
        """Of a while in which nothing changes, or every broker reports once."""
        before = await self._counted(looks)
        if reports:
            await self.fleet.report(self.seconds)
        else:
            await asyncio.sleep(self.seconds)
        at_s, server_s, packets, own_s = (b - a for a, b in zip(before, await self._counted(looks), strict=True))
        return Cost(100 * server_s / at_s, packets / at_s, 100 * own_s / at_s)

    async def _counted(self, looks: Looking | None) -> tuple[float, float, float, float]:
        own_s = 0.0 if looks is None else float((await looks.ask())["cpu"])
        packets = float((await asyncio.to_thread(self.server.counters))["zk_packets_received"])
        return time.monotonic(), _processor_s(self.server.pid), packets, own_s

    async def latencies(self, seconds: float) -> list[float]:
        """What another session's requests take, in ms, ascending."""
        latencies_s: list[float] = []
        probing = asyncio.create_task(self.fleet.probe(latencies_s))
        await asyncio.sleep(seconds)
        probing.cancel()
        return sorted(1e3 * each for each in latencies_s)


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(bench: Bench) -> None:
    connect_string = bench.server.connect_string
    quiet, busy = await bench.cost(None, reports=False), await bench.cost(None, reports=True)
    async with looking("poll", connect_string) as looks:
        polled = await bench.cost(looks, reports=False)
    undisturbed = await bench.latencies(bench.seconds / 3)
    latencies_s: list[float] = []
    probing = asyncio.create_task(bench.fleet.probe(latencies_s))
    began_s, packets = time.monotonic(), float(bench.server.counters()["zk_packets_received"])
    async with looking("watch", connect_string) as looks:
        first_s, own_s = time.monotonic() - began_s, looks.first["cpu"]
        probing.cancel()
        asked = float(bench.server.counters()["zk_packets_received"]) - packets - len(latencies_s)
        disturbed = sorted(1e3 * each for each in latencies_s)
        seeding = await bench.cost(looks, reports=False)
        while True:
            if (await looks.ask())["seeded"]:
                break
            await asyncio.sleep(1.0)
        seeded_s = time.monotonic() - began_s
        watched, told = await bench.cost(looks, reports=False), await bench.cost(looks, reports=True)
        reports = (await looks.ask())["reports"]
    assert looks.first["faults"] == 0
    assert reports >= 1.5 * bench.fleet.brokers, "reports were followed"
    size = f"{looks.first['brokers']:,} brokers, {looks.first['bundles']:,} bundles"
    rate = bench.fleet.brokers / bench.seconds
    show(
        f"The first look at {size}, the start of the process included",
        [
            Measured("until the view was whole", first_s, "s", FIRST_VIEW_TARGET_S),
            Measured("processor time of the process", own_s, "s"),
            Measured("requests to ZooKeeper", asked, ""),
            Measured("another session's request meanwhile, 99 of 100", percentile(disturbed, 99), "ms"),
            Measured("the same when nobody looks", percentile(undisturbed, 99), "ms"),
            Measured("until the history of bundles was taken over, too", seeded_s, "s"),
            Measured("requests/s while it was", seeding.requests - quiet.requests, "", REQUESTS_TARGET),
        ],
    )
    show(
        "A second while nothing changes",
        [
            Measured("watching: of a core", watched.own_percent, "%", CORE_TARGET_PERCENT),
            Measured("watching: requests to ZooKeeper", watched.requests - quiet.requests, "", REQUESTS_TARGET),
            Measured("watching: ZooKeeper, of a core", watched.server_percent - quiet.server_percent, "%"),
            Measured("asking: of a core", polled.own_percent, "%"),
            Measured("asking: requests to ZooKeeper", polled.requests - quiet.requests, ""),
            Measured("asking: ZooKeeper, of a core", polled.server_percent - quiet.server_percent, "%"),
        ],
    )
    show(
        f"A second while {rate:.0f} brokers report in it",
        [
            Measured("watching: of a core", told.own_percent, "%"),
            Measured("watching: requests to ZooKeeper", told.requests - busy.requests, "", REQUESTS_TARGET),
            Measured("watching: ZooKeeper, of a core", told.server_percent - busy.server_percent, "%"),
            Measured("the reports themselves: ZooKeeper, of a core", busy.server_percent, "%"),
        ],
    )


async def main(given: argparse.Namespace) -> None:
    with EmbeddedZooKeeper() as server:
        store = ZooKeeperStore(server.connect_string, session_timeout_s=SESSION_TIMEOUT_S)
        await store.start()
        fleet = Fleet(store, given.brokers, given.namespaces)
        await fleet.fill()
        await measure(Bench(server, fleet, given.seconds))
        await store.close()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", type=int, default=1_000)
    parser.add_argument("--namespaces", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=15.0, help="how long each figure is measured")
    parser.add_argument("--look", choices=("watch", "poll"), help=argparse.SUPPRESS)
    parser.add_argument("--at", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    install_fast_loop()
    given = arguments()
    asyncio.run(look(given.look, given.at) if given.look else main(given))
