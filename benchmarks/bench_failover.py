"""Time without assignments after the leader is killed, hangs, or stops cleanly.

Real node processes on a real ZooKeeper, all on this machine. Clients continuously look up unowned bundles through the
remaining nodes. The result is the time from the signal to the first answer to a lookup that was sent after it. A node
answers only after the assignment is committed. The stages are those in the log of the new leader. The cost of ZooKeeper
is measured in the same run: a transaction with one small write, and a read.

    python benchmarks/bench_failover.py [--runs 10]
"""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from measure import percentile
from support.cluster import Cluster, a_cluster, probing, topics_of_bundles
from support.lm_node import NodeProcess
from support.waiting import eventually

from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.store.metadata_store import Put

BUNDLES = 256
TARGETS_S = {"SIGKILL": 0.1, "SIGSTOP": 1.0, "SIGTERM": 0.2}
DEFAULTS = {"metadataStoreSessionTimeoutMillis": 10_000, "leaderSilenceMs": 800}
STAGES = {
    "found out": ("leader_process_ended", "leader_silent"),
    "elected": ("elected",),
    "leads": ("leading",),
}
"""Log events of the new leader at the end of each stage. The last stage lasts until the first assignment."""

BESIDE = 200
"""Number of requests for the cost of ZooKeeper."""


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    runs = parser.parse_args().runs
    with EmbeddedZooKeeper() as zookeeper, tempfile.TemporaryDirectory() as folder:
        async with a_cluster(zookeeper.connect_string, "/bench", Path(folder)) as cluster:
            for name in ("n1", "n2", "n3"):
                await cluster.start_node(name, DEFAULTS)
            for _ in range(2):
                await cluster.start_broker()
            for signal_name, target_s in TARGETS_S.items():
                report(signal_name, [await measure(cluster, signal_name, run) for run in range(runs)], target_s)
            await report_zookeeper(cluster)


@dataclass(frozen=True, slots=True)
class Failover:
    """Seconds from the signal to the next committed assignment, in total and by stage in the new leader's log."""

    took_s: float
    stages_s: dict[str, float]


async def measure(cluster: Cluster, signal_name: str, run: int) -> Failover:
    """Measure one failover, and restart the node afterwards."""
    leader = await cluster.leader()
    for node in cluster.nodes.values():
        if node is not leader:
            await eventually(lambda node=node: hears(cluster, node))  # type: ignore[misc]  # mypy of a default
    others = [node.url for node in cluster.nodes.values() if node is not leader]
    for url in others:
        await cluster.brokers_are_seen(url, len(cluster.brokers))
    namespace = f"bench/{signal_name.lower()}{run}"
    await cluster.create_namespace(leader.url, namespace, BUNDLES)
    topics = fresh(topics_of_bundles(await cluster.state(namespace)))
    async with probing(cluster.http, others, lambda _: next(topics), concurrency=1, pause_s=0.01) as prober:
        await eventually(lambda: len(prober.successes()) > 5)
        sent_s, sent = time.monotonic(), datetime.now(UTC)
        {"SIGKILL": leader.kill, "SIGSTOP": leader.pause, "SIGTERM": leader.terminate}[signal_name]()
        await eventually(lambda: prober.successes(asked_after_s=sent_s))
        took_s = prober.successes(asked_after_s=sent_s)[0].answered_s - sent_s
    if signal_name == "SIGSTOP":
        leader.kill()
    await eventually(lambda: not leader.is_running)
    await leader.start()
    return Failover(took_s, stages_of(cluster, sent, took_s))


async def hears(cluster: Cluster, node: NodeProcess) -> bool:
    """Return True if the node watches the leader."""
    async with cluster.http.get(f"{node.url}/metrics") as answer:
        return re.search(r"^loadmanager_leader_heard\{.*\} 1\.0$", await answer.text(), re.MULTILINE) is not None


def stages_of(cluster: Cluster, sent: datetime, took_s: float) -> dict[str, float]:
    """Return the duration of each stage on the node elected since then; a clean stop has no detection."""
    logs = {name: node.events("elected") for name, node in cluster.nodes.items()}
    successor = next(name for name, logged in logs.items() if logged and at(logged[-1]) > sent)
    ended_s, stages_s = 0.0, {}
    for stage, names in STAGES.items():
        logged = [each for name in names for each in cluster.nodes[successor].events(name) if at(each) > sent]
        if logged:
            stages_s[stage] = (at(logged[0]) - sent).total_seconds() - ended_s
            ended_s += stages_s[stage]
    return {**stages_s, "assigned": took_s - ended_s}


def at(logged: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(logged["timestamp"])


def fresh(topics: list[str]) -> Iterator[str]:
    """Yield each topic once: only new assignments count."""
    yield from topics


def report(signal_name: str, runs: list[Failover], target_s: float) -> None:
    took_s = [each.took_s for each in runs]
    median_s = statistics.median(took_s)
    verdict = "met" if max(took_s) <= target_s else "MISSED"
    shown = " ".join(f"{each * 1000:.0f}" for each in took_s)
    print(f"{signal_name}: median {median_s * 1000:.0f} ms, worst {max(took_s) * 1000:.0f} ms ", end="")
    print(f"(target {target_s * 1000:.0f} ms: {verdict}); runs in ms: {shown}", flush=True)
    for stage in [*STAGES, "assigned"]:
        spent_s = [each.stages_s[stage] for each in runs if stage in each.stages_s]
        if spent_s:
            print(f"    {stage}: median {statistics.median(spent_s) * 1000:.1f}, worst {max(spent_s) * 1000:.1f} ms")


async def report_zookeeper(cluster: Cluster) -> None:
    """Show ZooKeeper's share: a failover takes two transactions and a few reads, one after the other."""
    path = "/beside"
    await cluster.witness.ensure_path(path)
    for what, ask in (
        ("a transaction", lambda: cluster.witness.commit([Put(path, b"x" * 100)])),
        ("a read", lambda: cluster.witness.get(path)),
    ):
        spent_s = []
        for _ in range(BESIDE):
            begun_s = time.perf_counter()
            await ask()
            spent_s.append(time.perf_counter() - begun_s)
        spent_s.sort()
        print(f"ZooKeeper alone, {what}: median {statistics.median(spent_s) * 1000:.1f} ms", end="")
        print(f", 99th percentile {percentile(spent_s, 99) * 1000:.1f} ms", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
