"""How long bundles cannot be assigned when the leader is killed, and when it stops in good order.

Real node processes on a real ZooKeeper, all on this machine. Lookups of bundles that nobody owns yet go on all the time
through the nodes that stay; measured is the time from the signal to the first answer to a lookup that was asked after
it. An answer goes out only after the assignment is committed.

    python benchmarks/bench_failover.py [--runs 10]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.cluster import Cluster, a_cluster, probing, topics_of_bundles
from support.waiting import eventually

from loadmanager.embedded.zookeeper import EmbeddedZooKeeper

BUNDLES = 256
TARGETS_S = {"SIGKILL": 2.0, "SIGTERM": 0.2}
DEFAULTS = {"metadataStoreSessionTimeoutMillis": 10_000, "lookupTimeoutMs": 5_000}


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
                took_s = [await measure(cluster, signal_name, run) for run in range(runs)]
                report(signal_name, took_s, target_s)


async def measure(cluster: Cluster, signal_name: str, run: int) -> float:
    """Seconds from the signal to the next committed assignment; the node is started again afterwards."""
    leader = await cluster.leader()
    others = [node.url for node in cluster.nodes.values() if node is not leader]
    for url in others:
        await cluster.brokers_are_seen(url, len(cluster.brokers))
    namespace = f"bench/{signal_name.lower()}{run}"
    await cluster.create_namespace(leader.url, namespace, BUNDLES)
    topics = fresh(topics_of_bundles(await cluster.state(namespace)))
    async with probing(cluster.http, others, lambda _: next(topics), concurrency=1, pause_s=0.01) as prober:
        await eventually(lambda: len(prober.successes()) > 5)
        sent_s = time.monotonic()
        if signal_name == "SIGKILL":
            leader.kill()
        else:
            leader.terminate()
        await eventually(lambda: prober.successes(asked_after_s=sent_s), 30.0)
        took_s = prober.successes(asked_after_s=sent_s)[0].answered_s - sent_s
    await eventually(lambda: not leader.is_running)
    await leader.start()
    return took_s


def fresh(topics: list[str]) -> Iterator[str]:
    """Each topic once: an answer that was not a new assignment would not count."""
    yield from topics


def report(signal_name: str, took_s: list[float], target_s: float) -> None:
    median_s = statistics.median(took_s)
    verdict = "met" if median_s <= target_s else "MISSED"
    runs = " ".join(f"{each * 1000:.0f}" for each in took_s)
    print(f"{signal_name}: median {median_s * 1000:.0f} ms, worst {max(took_s) * 1000:.0f} ms ", end="")
    print(f"(target {target_s * 1000:.0f} ms: {verdict}); runs in ms: {runs}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
