"""Time without an owner for the bundles of a broker whose process is killed, or whose machine is lost.

A real node, real agents and the demo's brokers, each in its own process, on a real ZooKeeper with the short ticks that
docs/operations.md recommends. After the signal all topics of that broker are looked up repeatedly, until each has
another owner. The time until ZooKeeper has removed the broker's znode is shown too. To lose a machine, broker and
agent are killed together.

    python benchmarks/bench_broker_lost.py [--runs 10] [--session-ms 10000] [--tick-ms 500]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import yaml
from measure import Measured, show
from support.cluster import Cluster, a_cluster, topics_of_bundles
from support.processes import Processes
from support.waiting import eventually, patience

from loadmanager.config.agent_settings import AgentSettings
from loadmanager.dev.demo.demo_settings import agent_configuration
from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.store import paths

BROKERS, BUNDLES = 3, 64
NAMESPACE = "bench/lost"
KILLED_S, LOST_S = 0.3, 3.0
_POLL_S = 0.005
_REPOSITORY = Path(__file__).resolve().parents[1]
_IN_DEMO = {"metadataStoreUrl", "brokerLeaseMs", "metadataStoreSessionTimeoutMillis", "loadBalancerCPUResourceWeight"}
"""Keys that keep the value of the demo, or that this benchmark sets."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A broker and its agent."""

    broker_id: str
    pids: tuple[int, int]


@dataclass(slots=True)
class Fleet:
    cluster: Cluster
    connect_string: str
    session_ms: int
    folder: Path
    processes: Processes
    started: int = 0

    async def start_machine(self) -> Machine:
        self.started += 1
        name = f"broker-{self.started}"
        agent_file, broker_ready = self.folder / f"{name}-agent.ready", self.folder / f"{name}.ready"
        files = {"--agent-file": agent_file, "--ready-file": broker_ready, "--serving-log": self.folder / f"{name}.log"}
        words = [word for option, path in files.items() for word in (option, str(path))]
        self.processes.start(name, ["-m", "loadmanager.dev.demo.demo_broker", *words], self.folder / f"{name}.out")
        broker = await ready(broker_ready)
        config = self.folder / f"{name}-agent.yaml"
        demo = agent_configuration("", broker, [node.url for node in self.cluster.nodes.values()])
        settings = {key: value for key, value in demo.items() if key not in _IN_DEMO}
        settings["metadataStoreUrl"] = f"zk:{self.connect_string}{self.cluster.chroot}"
        settings["metadataStoreSessionTimeoutMillis"] = self.session_ms
        config.write_text(yaml.safe_dump(settings))
        words = ["agent", "--config", str(config), "--ready-file", str(agent_file)]
        self.processes.start(f"{name}-agent", ["-m", "loadmanager", *words], self.folder / f"{name}-agent.out")
        agent = await ready(agent_file)
        machine = Machine(broker["broker_id"], (broker["pid"], agent["pid"]))
        await eventually(lambda: self.is_registered(machine.broker_id), what=f"{name} is registered")
        return machine

    async def is_registered(self, broker_id: str) -> bool:
        return await self.cluster.witness.get(paths.broker(broker_id)) is not None


async def ready(file: Path) -> dict[str, Any]:
    await eventually(file.exists)
    found: dict[str, Any] = orjson.loads(await asyncio.to_thread(file.read_bytes))
    return found


async def measure(fleet: Fleet, victim: Machine, pids: Iterable[int]) -> tuple[float, float]:
    """Return the seconds from the signal until the znode was removed, and until all its bundles had another owner."""
    (node,) = fleet.cluster.nodes.values()
    names = topics_of_bundles(await fleet.cluster.state(NAMESPACE))
    topics = [f"persistent://{name}" for name in names]
    owners = await all_owners(fleet, node.url, topics)
    lost = [topic for topic, owner in zip(topics, owners, strict=True) if owner == victim.broker_id]
    gone: list[float] = []

    async def watch_znode() -> None:
        while await fleet.is_registered(victim.broker_id):  # noqa: ASYNC110 - ZooKeeper is asked
            await asyncio.sleep(_POLL_S)
        gone.append(time.monotonic())

    async def wait_for_others() -> None:
        while victim.broker_id in await all_owners(fleet, node.url, lost):  # noqa: ASYNC110 - a node is asked
            await asyncio.sleep(_POLL_S)

    sent_s = time.monotonic()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(patience()), asyncio.TaskGroup() as group:
        group.create_task(watch_znode())
        group.create_task(wait_for_others())
    return gone[0] - sent_s, time.monotonic() - sent_s


async def all_owners(fleet: Fleet, url: str, topics: list[str]) -> list[str]:
    """Return the owner of each topic; retry while the node returns none, as it may on a busy machine."""
    while True:
        async with fleet.cluster.http.post(f"{url}/loadbalance/v1/lookups", json={"topics": topics}) as answer:
            body = orjson.loads(await answer.read())
        owners = [each.get("brokerId") for each in body.get("lookups", [])]
        if len(owners) == len(topics) and None not in owners:
            return owners
        await asyncio.sleep(_POLL_S)


async def rounds(
    fleet: Fleet, machines: list[Machine], runs: int, *, with_agent: bool
) -> tuple[list[float], list[float]]:
    """Measure each run; one that times out is left out. A lost machine is replaced."""
    gone_s, assigned_s = list[float](), list[float]()
    for _ in range(runs):
        victim = machines.pop(0)
        with contextlib.suppress(TimeoutError):
            gone, assigned = await measure(fleet, victim, victim.pids if with_agent else victim.pids[:1])
            gone_s.append(gone)
            assigned_s.append(assigned)
        machines.append(await fleet.start_machine())
    return gone_s, assigned_s


def report(title: str, measured_s: tuple[list[float], list[float]], target_s: float, runs: int) -> None:
    gone_s, assigned_s = measured_s
    if len(assigned_s) < runs:
        print(f"{title}: {runs - len(assigned_s)} of {runs} runs could not be measured")
    if not assigned_s:
        return
    show(
        title,
        [
            Measured("until its znode was gone, median", statistics.median(gone_s), "s"),
            Measured("until all its bundles had other owners, median", statistics.median(assigned_s), "s"),
            Measured(f"the longest of {len(assigned_s)}", max(assigned_s), "s", target_s),
        ],
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    default_ms = AgentSettings.model_fields["metadata_store_session_timeout_millis"].default
    parser.add_argument("--session-ms", type=int, default=default_ms)
    parser.add_argument("--tick-ms", type=int, default=200)
    given = parser.parse_args()
    with ExitStack() as stack:
        zookeeper = stack.enter_context(EmbeddedZooKeeper(tick_time_ms=given.tick_ms))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        processes = stack.enter_context(Processes(_REPOSITORY))
        async with a_cluster(zookeeper.connect_string, "/bench", folder) as cluster:
            node = await cluster.start_node("node")
            await cluster.leader()
            fleet = Fleet(cluster, zookeeper.connect_string, given.session_ms, folder, processes)
            machines = [await fleet.start_machine() for _ in range(BROKERS)]
            await cluster.create_namespace(node.url, NAMESPACE, BUNDLES)
            killed = await rounds(fleet, machines, given.runs, with_agent=False)
            report("A broker's process is killed", killed, KILLED_S, given.runs)
            lost = await rounds(fleet, machines, given.runs, with_agent=True)
            title = f"A broker's machine is lost: sessions of {given.session_ms} ms, ticks of {given.tick_ms} ms"
            report(title, lost, LOST_S, given.runs)


if __name__ == "__main__":
    asyncio.run(main())
