"""Drain of a broker with 1,000 bundles: duration, answers to lookups meanwhile, and compliance with limits.

A real node (own process, uvloop) on a real ZooKeeper, and scripted brokers in this process with a given unload time.
Clients look up topics of the bundles all the time. The lower bound follows from the limit on concurrent unloads.

    python benchmarks/bench_drain.py [--bundles 1000] [--unload-ms 50]
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from measure import Measured, percentile, show
from support.cluster import Cluster, a_cluster, probing, topics_of_bundles
from support.scripted_broker import ScriptedBroker
from support.waiting import eventually

from loadmanager.cli.service_runner import install_fast_loop
from loadmanager.core.domain.bundles import NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import BrokerId, NamespaceName
from loadmanager.core.domain.ownership import NamespaceState, Ownership, OwnershipState, Registration
from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.store import paths
from loadmanager.store.metadata_store import Create
from loadmanager.wire.store_records import encode_namespace

BROKERS = 10
AT_A_TIME = 16
NAME = NamespaceName.of("tenant", "ns")
SETTINGS = {
    "metadataStoreSessionTimeoutMillis": 10_000,
    "maxConcurrentUnloads": AT_A_TIME,
    "maxConcurrentUnloadsPerBroker": AT_A_TIME,
    "loadBalancerSheddingEnabled": False,
}


@dataclass(slots=True)
class Busy:
    """Concurrent unloads: current and maximum number; each takes `pause_s`."""

    pause_s: float
    now: int = 0
    most: int = 0

    async def at(self, step: str) -> None:
        if step == "unload asked":
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(self.pause_s)
        elif step == "unload obeyed":
            self.now -= 1


@asynccontextmanager
async def brokers_of(cluster: Cluster, busy: Busy) -> AsyncIterator[list[ScriptedBroker]]:
    store = await cluster.a_store()
    brokers = [ScriptedBroker(store=store, at=busy.at) for _ in range(BROKERS)]
    for broker in brokers:
        await broker.start()
        await broker.register()
    yield brokers
    for broker in brokers:
        await broker.stop()


async def fill(cluster: Cluster, owner: ScriptedBroker, bundles: int) -> NamespaceState:
    """Create a namespace whose bundles all belong to the broker."""
    owned = Ownership(OwnershipState.OWNED, Registration(BrokerId(owner.broker_id), owner.incarnation), None, 1)
    state = NamespaceState(NAME, NamespaceBundles(equal_boundaries(bundles)), (owned,) * bundles)
    path = paths.namespace(str(NAME))
    await cluster.witness.ensure_path(path.rpartition("/")[0])
    await cluster.witness.commit([Create(path, encode_namespace(state))])
    return state


async def measure(connect_string: str, folder: Path, bundles: int, unload_s: float) -> None:
    busy = Busy(unload_s)
    async with a_cluster(connect_string, "/bench", folder) as cluster, brokers_of(cluster, busy) as brokers:
        topics = topics_of_bundles(await fill(cluster, brokers[0], bundles))
        node = await cluster.start_node("node", SETTINGS)
        await cluster.leader()
        await cluster.brokers_are_seen(node.url, BROKERS)
        url = f"{node.url}/loadbalance/v1/brokers/{brokers[0].broker_id}/drain"

        async def is_done() -> bool:
            async with cluster.http.get(url) as answer:
                return bool((await answer.json())["state"] == "done")

        async with probing(
            cluster.http, [node.url], lambda number: topics[number * 7 % bundles], concurrency=8
        ) as prober:
            began_s = time.monotonic()
            async with cluster.http.put(url) as answer:
                assert answer.status == 202, await answer.text()
            await eventually(is_done, "the broker is drained", least_s=300.0)
            took_s = time.monotonic() - began_s
        owners = {o.owner.broker for o in (await cluster.state(str(NAME))).ownerships if o.owner}
        assert brokers[0].broker_id not in owners
        calls = len(brokers[0].unloads)
        waits_s = sorted(probe.answered_s - probe.asked_s for probe in prober.probes)
    bound_s = bundles * unload_s / AT_A_TIME
    show(
        f"Drain of a broker with {bundles:,} bundles, {unload_s * 1000:g} ms for an unload, {AT_A_TIME} at a time",
        [
            Measured("until it owned nothing", took_s, "s"),
            Measured("at best, by the limit", bound_s, "s"),
            Measured("ratio", took_s / bound_s, ""),
            Measured("bundles given away", bundles / took_s, "/s"),
            Measured("most unloads at a time", busy.most, "", AT_A_TIME),
            Measured("unload calls per bundle", calls / bundles, "", 1.0),
            Measured("lookups meanwhile", len(waits_s), ""),
            Measured("of them not answered", len(prober.failures()), "", 0.0),
            Measured("slowest lookup", waits_s[-1] * 1000, "ms"),
            Measured("99th percentile", percentile(waits_s, 99) * 1000, "ms"),
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundles", type=int, default=1_000)
    parser.add_argument("--unload-ms", type=float, default=50.0)
    arguments = parser.parse_args()
    install_fast_loop()
    with EmbeddedZooKeeper() as zookeeper, tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(zookeeper.connect_string, Path(folder), arguments.bundles, arguments.unload_ms / 1000))


if __name__ == "__main__":
    main()
