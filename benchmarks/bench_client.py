"""Cost of finding a topic's owner in the client's memory, on one thread, for known topics and for new ones.

The map is built from the bytes that a node sends. The baseline is a static dictionary from topic to owner. Rounds of it
and of `resolve` alternate, and each figure is the median of the rounds.
"""

from __future__ import annotations

import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence

import orjson
from measure import Measured, show

from loadmanager.client import Owner
from loadmanager.client.owner_map import TOPICS_KEPT, OwnerMap
from loadmanager.client.push_events import StreamEvent
from loadmanager.core.domain.bundles import HashFunction, NamespaceBundles, equal_boundaries

TOPICS = 50_000
BUNDLES = 1_024
BROKERS = 100
ROUNDS = 15
TARGET_PER_S = 1e6
NAMESPACE = "public/default"
NAMES = [f"persistent://{NAMESPACE}/orders-{number:06d}" for number in range(TOPICS)]


def a_map(function: HashFunction, version: int = 1) -> OwnerMap:
    owners = OwnerMap()
    owners.follow(NAMESPACE, 0.0)
    owners.take(StreamEvent("snapshot", "mark", said(function, version)), 0.0)
    return owners


def said(function: HashFunction, version: int, bundles: slice = slice(None)) -> bytes:
    """Return the namespace, or some of its bundles, as a node pushes it."""
    ranges = [str(each) for each in NamespaceBundles(equal_boundaries(BUNDLES)).ranges()]
    owned = {
        text: {"state": "Owned", "version": version, "owner": f"b{index % BROKERS}:1"}
        for index, text in list(enumerate(ranges))[bundles]
    }
    brokers = {
        f"b{number}:1": {"incarnation": 1, "lookup": {"brokerId": f"b{number}:1", "brokerUrl": f"pulsar://b{number}:2"}}
        for number in range(BROKERS)
    }
    return orjson.dumps(
        {"namespace": NAMESPACE, "version": version, "hashFunction": function, "bundles": owned, "brokers": brokers}
    )


def per_topic_s(find: Callable[[str], Owner | None], topics: Sequence[str]) -> float:
    """Return the CPU time per topic, including that of the loop."""
    began_s = time.process_time()
    for topic in topics:
        find(topic)
    return (time.process_time() - began_s) / len(topics)


def just_read() -> list[str]:
    """Return the topics as new strings without a cached hash, like those from a request."""
    return [name.encode().decode() for name in NAMES]


def measured() -> list[Measured]:
    resolve = a_map(HashFunction.MURMUR3_32).resolve
    kept = {topic: resolve(topic) for topic in NAMES}
    times: dict[str, list[float]] = {name: [] for name in ("dict", "same", "warm", "moved", "cold", "crc32")}
    for _ in range(ROUNDS):
        owners = a_map(HashFunction.MURMUR3_32)
        times["cold"].append(per_topic_s(owners.resolve, NAMES))
        times["same"].append(per_topic_s(owners.resolve, NAMES))
        times["warm"].append(per_topic_s(owners.resolve, just_read()))
        times["dict"].append(per_topic_s(kept.get, just_read()))
        change = said(HashFunction.MURMUR3_32, 2, slice(BUNDLES // 10))
        owners.take(StreamEvent("change", "mark", change), 0.0)
        times["moved"].append(per_topic_s(owners.resolve, just_read()))
        times["crc32"].append(per_topic_s(a_map(HashFunction.CRC32).resolve, NAMES))
    of = {name: statistics.median(each) for name, each in times.items()}
    return [
        Measured("a dictionary's get, name just read", of["dict"] * 1e9, "ns"),
        Measured("a topic met before, name just read", of["warm"] * 1e9, "ns"),
        Measured("a topic met before / a dictionary", of["warm"] / of["dict"], ""),
        Measured("topics met before, a core", 1 / of["warm"], "/s", TARGET_PER_S, at_least=True),
        Measured("the same, slowest round", 1 / max(times["warm"]), "/s"),
        Measured("a topic met before, by the same text", of["same"] * 1e9, "ns"),
        Measured("the same after a tenth of the bundles moved", 1 / of["moved"], "/s"),
        Measured("a topic for the first time, murmur3_32", of["cold"] * 1e9, "ns"),
        Measured("topics for the first time, a core", 1 / of["cold"], "/s"),
        Measured("a topic for the first time, crc32", of["crc32"] * 1e9, "ns"),
        Measured("memory of a topic, beside its name", memory_bytes() / TOPICS, "bytes"),
        Measured("topics kept at most", TOPICS_KEPT, ""),
    ]


def memory_bytes() -> int:
    owners = a_map(HashFunction.MURMUR3_32)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for topic in NAMES:
        owners.resolve(topic)
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return after - before


def main() -> None:
    show(f"Owners from a client's memory: {TOPICS:,} topics, {BUNDLES:,} bundles, one thread", measured())


if __name__ == "__main__":
    main()
