"""Cost of an assignment for the leader: lookups of bundles without an owner, from the node's part of a lookup to the
committed record. It runs in this process, without HTTP, over a metadata store in memory.

All bundles are looked up in batches, as after a restart of the whole cluster. The result is CPU time per bundle, the
minimum of several rounds, and its share in the planning thread. The baseline is the unavoidable part of a write: the
record is encoded once for each batch that changes it.

    python benchmarks/bench_assign.py [--profile] [--at-a-time 512]
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import pstats
import time
from collections.abc import Sequence
from dataclasses import dataclass

from measure import Measured, show
from support.memory_store import MemoryCluster, MemoryStore

from loadmanager.config.dynamic_settings import settings_of
from loadmanager.core.domain.bundles import HashFunction, NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import BrokerId, NamespaceName, TopicName
from loadmanager.core.domain.ownership import NamespaceState
from loadmanager.leader.node import Node
from loadmanager.store import paths
from loadmanager.store.metadata_store import Create, Delete
from loadmanager.wire.broker_data import LocalBrokerData, encode_local_broker_data
from loadmanager.wire.store_records import encode_namespace

BROKERS = 100
NAMESPACES = 200
BUNDLES_PER_NAMESPACE = 100
ROUNDS = 5
CUT = NamespaceBundles(equal_boundaries(BUNDLES_PER_NAMESPACE), HashFunction.MURMUR3_32)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true", help="show where the time of a round goes")
    parser.add_argument("--at-a-time", type=int, default=512, help="lookups that wait at a time")
    given = parser.parse_args()
    cluster = MemoryCluster(time.monotonic)
    store, agents = MemoryStore(cluster), MemoryStore(cluster)
    await store.start()
    await agents.start()
    names = [NamespaceName.of("tenant", f"ns{number}") for number in range(NAMESPACES)]
    topics = [topic for name in names for topic in topics_of(name)]
    node = Node(settings_of({"historyUrl": ""}, "here"), store, "n1:8080", "http://127.0.0.1:1", seed=1)
    await fill(agents, names)
    await node.start()
    await node.leading.wait()
    rounds = []
    for _ in range(1 if given.profile else ROUNDS):
        rounds.append(await a_round(node, topics, names, given.at_a_time, is_profiled=given.profile))
        await free_all(agents, names, node)
    rows = [
        Measured("an assignment, processor time", min(each.spent_us for each in rounds), "us"),
        Measured("of that deciding, in a thread of its own", min(each.deciding_us for each in rounds), "us"),
        Measured("encoding its share of the records alone", min(each.encoding_us for each in rounds), "us"),
    ]
    show(f"{len(topics)} bundles on {BROKERS} brokers, {given.at_a_time} lookups at a time", rows)
    await node.stop()


@dataclass(frozen=True, slots=True)
class Round:
    """CPU time per bundle, in microseconds."""

    spent_us: float
    deciding_us: float
    encoding_us: float


async def a_round(
    node: Node, topics: Sequence[TopicName], names: Sequence[NamespaceName], at_a_time: int, *, is_profiled: bool
) -> Round:
    """Look each bundle up once. With a profile its figures are printed too, and times are not representative."""
    gc.collect()
    profile = cProfile.Profile()
    begun_s, begun_here_s = time.process_time(), time.thread_time()
    if is_profiled:
        profile.enable()
    await look_up_all(node, topics, at_a_time)
    profile.disable()
    spent_s, here_s = time.process_time() - begun_s, time.thread_time() - begun_here_s
    if is_profiled:
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)
    a_bundle = 1e6 / len(topics)
    return Round(spent_s * a_bundle, (spent_s - here_s) * a_bundle, encoding_us(node, names, at_a_time))


def topics_of(name: NamespaceName) -> list[TopicName]:
    """Return one topic of each bundle."""
    found: dict[int, TopicName] = {}
    number = 0
    while len(found) < BUNDLES_PER_NAMESPACE:
        number += 1
        topic = TopicName.parse(f"persistent://{name}/t{number}")
        found.setdefault(CUT.index_of_topic(str(topic)), topic)
    return list(found.values())


async def fill(store: MemoryStore, names: Sequence[NamespaceName]) -> None:
    for path in paths.PERSISTENT_PARENTS:
        await store.ensure_path(path)
    await store.ensure_path(f"{paths.NAMESPACES}/tenant")
    for number in range(BROKERS):
        broker = BrokerId(f"b{number}.example.com:8080")
        record = LocalBrokerData(webServiceUrl=f"http://{broker}", pulsarServiceUrl=f"pulsar://{broker}")
        await store.commit([Create(paths.broker(broker), encode_local_broker_data(record), ephemeral=True)])
    await make(store, names)


async def make(store: MemoryStore, names: Sequence[NamespaceName]) -> None:
    for name in names:
        record = encode_namespace(NamespaceState.unowned(name, CUT))
        await store.commit([Create(paths.namespace(str(name)), record)])


async def free_all(store: MemoryStore, names: Sequence[NamespaceName], node: Node) -> None:
    for name in names:
        await store.commit([Delete(paths.namespace(str(name)))])
    while node.mirror.namespaces:  # noqa: ASYNC110 - it is read in no time
        await asyncio.sleep(0.01)
    await make(store, names)
    while len(node.mirror.namespaces) < len(names):  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.01)


async def look_up_all(node: Node, topics: Sequence[TopicName], at_a_time: int) -> None:
    left = iter(topics)

    async def ask() -> None:
        for topic in left:
            await node.lookups.lookup(topic)

    await asyncio.gather(*(ask() for _ in range(at_a_time)))


def encoding_us(node: Node, names: Sequence[NamespaceName], at_a_time: int) -> float:
    """Return the cost of encoding per bundle: each batch of lookups writes its namespaces once."""
    batches = max(1, BUNDLES_PER_NAMESPACE // at_a_time)
    begun_s = time.process_time()
    for name in names:
        for _ in range(batches):
            encode_namespace(node.mirror.get_namespace(str(name)).state)
    return (time.process_time() - begun_s) / (len(names) * BUNDLES_PER_NAMESPACE) * 1e6


if __name__ == "__main__":
    asyncio.run(main())
