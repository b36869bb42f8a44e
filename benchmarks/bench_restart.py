"""Restart of all brokers of a large cluster: time until each bundle can be looked up again, and number of moves.

A real node (own process, uvloop) on a real ZooKeeper; 100 light brokers with scripted agents in this process own 65,000
bundles. First all brokers restart together. Then they restart one after the other, each held off, as in a rolling
restart by an operator. Meanwhile clients look up a topic of every bundle, over 512 connections, until each gets a
running broker. Clients that got an answer before the last broker was back ask once more. The baseline is the same
number of lookups without a restart.

With `--batch`, one request asks for 1,000 topics, over 8 connections. With `--shuffled`, topics are in random order.
The node's CPU time and the number of writes per bundle are shown too. On a busy machine only these are meaningful.

    python benchmarks/bench_restart.py [--brokers 100] [--namespaces 650] [--batch] [--shuffled] [--only-all]
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import psutil
from http_load import request_bytes
from measure import Measured, show
from support.cluster import Cluster, a_cluster
from support.scripted_broker import ScriptedBroker, leave_together

from loadmanager.cli.service_runner import install_fast_loop
from loadmanager.core.domain.bundles import NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import BrokerId, NamespaceName, TopicName
from loadmanager.core.domain.ownership import NamespaceState, Ownership, OwnershipState, Registration
from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.store import paths
from loadmanager.store.metadata_store import Create, MetadataStore
from loadmanager.wire.store_records import encode_namespace

BUNDLES_PER_NAMESPACE = 100
TARGET_S = 5.0
CONNECTIONS = 512
BATCH, BATCH_CONNECTIONS = 1_000, 8
HELD_OFF_S = 120
SETTINGS = {
    "metadataStoreSessionTimeoutMillis": 10_000,
    "loadBalancerSheddingEnabled": False,
}
BUNDLES = NamespaceBundles(equal_boundaries(BUNDLES_PER_NAMESPACE))


@dataclass(slots=True)
class Clients:
    """One client per bundle, which retries until it gets a running broker. `longest_s` is the longest request.

    `asked_s` are the times at which the clients sent their last successful request. `at_a_time` clients share a
    request.
    """

    url: str
    at_a_time: int
    topics: list[str]
    brokers: dict[str, ScriptedBroker]
    waiting: deque[int] = field(default_factory=deque)
    asked_s: dict[int, float] = field(default_factory=dict)
    connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)
    left: int = 0
    longest_s: float = 0.0

    async def connect(self) -> None:
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        connections = CONNECTIONS if self.at_a_time == 1 else BATCH_CONNECTIONS
        self.connections = [await asyncio.open_connection(host, int(port)) for _ in range(connections)]

    async def close(self) -> None:
        for _, writer in self.connections:
            writer.close()
            await writer.wait_closed()

    async def ask_all(self, before_s: float = math.inf) -> None:
        """Retry until each client that has not asked since `before_s` gets a running broker."""
        self.waiting.extend(each for each in range(len(self.topics)) if self.asked_s.get(each, -math.inf) < before_s)
        self.left = len(self.waiting)
        self.longest_s = 0.0
        async with asyncio.TaskGroup() as group:
            for connection in self.connections:
                group.create_task(self._ask(*connection))

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while self.left:
            if not self.waiting:
                await asyncio.sleep(0.01)
                continue
            numbers = [self.waiting.popleft() for _ in range(min(self.at_a_time, len(self.waiting)))]
            asked_s = time.monotonic()
            writer.write(self._request(numbers))
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
            body = await reader.readexactly(length)
            answers = self._answers(orjson.loads(body)) if b" 200 " in head[:16] else [{}] * len(numbers)
            for number, answer in zip(numbers, answers, strict=True):
                if self._is_there(answer.get("brokerId")):
                    self.left -= 1
                    self.asked_s[number] = asked_s
                else:
                    self.waiting.append(number)
            self.longest_s = max(self.longest_s, time.monotonic() - asked_s)

    def _request(self, numbers: Sequence[int]) -> bytes:
        if self.at_a_time == 1:
            return request_bytes(self.url, [f"/lookup/v2/topic/persistent/{self.topics[numbers[0]]}"])[0]
        body = orjson.dumps({"topics": [f"persistent://{self.topics[number]}" for number in numbers]})
        head = f"POST /loadbalance/v1/lookups HTTP/1.1\r\nHost: node\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    def _answers(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        return [body] if self.at_a_time == 1 else body["lookups"]

    def _is_there(self, broker_id: str | None) -> bool:
        return broker_id is not None and self.brokers[broker_id].incarnation > 0


@dataclass(slots=True)
class World:
    cluster: Cluster
    store: MetadataStore
    brokers: list[ScriptedBroker]
    namespaces: list[NamespaceName]
    clients: Clients

    @property
    def url(self) -> str:
        return self.clients.url

    def cpu_s(self) -> float:
        """Return the CPU time of the node so far."""
        (node,) = self.cluster.nodes.values()
        return sum(psutil.Process(node.pid).cpu_times()[:2])

    async def assignments(self) -> int:
        """Return the number of assignments so far, from the node's metrics."""
        async with self.cluster.http.get(f"{self.url}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        (value,) = [line.rpartition(" ")[2] for line in lines if line.startswith("loadmanager_assignments_total{")]
        return int(float(value))

    async def records(self) -> list[Ownership]:
        """Return the ownership of every bundle from the records."""
        states = [await self.cluster.state(str(name)) for name in self.namespaces]
        return [ownership for state in states for ownership in state.ownerships]


async def fill(store: MetadataStore, namespaces: Iterable[NamespaceName], brokers: list[ScriptedBroker]) -> None:
    """Write records in which the brokers own all bundles in turn."""
    owners = [Registration(BrokerId(each.broker_id), each.incarnation) for each in brokers]
    await store.ensure_path(f"{paths.NAMESPACES}/tenant")
    for number, name in enumerate(namespaces):
        first = number * BUNDLES_PER_NAMESPACE
        owned = tuple(
            Ownership(OwnershipState.OWNED, owners[(first + index) % len(owners)], None, 1)
            for index in range(BUNDLES_PER_NAMESPACE)
        )
        state = NamespaceState(name, BUNDLES, owned)
        await store.commit([Create(paths.namespace(str(name)), encode_namespace(state))])


def topics_of(name: NamespaceName) -> list[str]:
    """Return a topic in each bundle of a namespace."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < BUNDLES_PER_NAMESPACE:
        topic = TopicName.of("persistent", name.tenant, name.local_name, f"t{number}")
        found.setdefault(BUNDLES.index_of_topic(str(topic)), f"{name}/t{number}")
        number += 1
    return [found[index] for index in range(BUNDLES_PER_NAMESPACE)]


@asynccontextmanager
async def a_world(
    connect_string: str, folder: Path, brokers: int, namespaces: int, at_a_time: int
) -> AsyncIterator[World]:
    async with a_cluster(connect_string, "/bench", folder) as cluster:
        store = await cluster.a_store()
        fleet = []
        for _ in range(brokers):
            broker = ScriptedBroker(store=store)
            await broker.start()
            await broker.register()
            fleet.append(broker)
        names = [NamespaceName.of("tenant", f"ns-{number:04d}") for number in range(namespaces)]
        await fill(store, names, fleet)
        node = await cluster.start_node("node", SETTINGS)
        await cluster.leader()
        topics = [topic for name in names for topic in topics_of(name)]
        clients = Clients(node.url, at_a_time, topics, {broker.broker_id: broker for broker in fleet})
        world = World(cluster, store, fleet, names, clients)
        await clients.connect()
        await clients.ask_all()
        yield world
        await clients.close()
        for broker in fleet:
            await broker.stop()


async def all_at_once(world: World) -> float:
    await leave_together(world.brokers)
    for broker in world.brokers:
        await broker.register()
    return time.monotonic()


async def one_after_the_other(world: World) -> float:
    """Restart the brokers one after the other; each is held off before it stops."""
    for broker in world.brokers:
        url = f"{world.url}/loadbalance/v1/brokers/{broker.broker_id}/hold-off"
        async with world.cluster.http.put(url, json={"forS": HELD_OFF_S}) as answer:
            assert answer.status == 204, await answer.text()
        await broker.leave()
        await broker.register()
    return time.monotonic()


async def measure(world: World, title: str, restart: Callable[[World], Awaitable[float]]) -> None:
    before, assigned = await world.records(), await world.assignments()
    began_s, before_cpu_s = time.monotonic(), world.cpu_s()
    asking = asyncio.create_task(world.clients.ask_all())
    back_s = await restart(world)
    await asking
    longest_s = world.clients.longest_s
    await world.clients.ask_all(before_s=back_s)
    found_s, found_cpu_s = time.monotonic(), world.cpu_s()
    await world.clients.ask_all()
    again_s, again_cpu_s = time.monotonic() - found_s, world.cpu_s() - found_cpu_s
    after, moves = await world.records(), await world.assignments() - assigned
    pairs = list(zip(before, after, strict=True))
    assert {each.owner for each in after} <= {
        Registration(BrokerId(each.broker_id), each.incarnation) for each in world.brokers
    }
    show(
        title,
        [
            Measured("until the last broker was back", back_s - began_s, "s"),
            Measured("longest wait of a client for an owner", longest_s, "s", TARGET_S),
            Measured("from then until every bundle was found", found_s - back_s, "s", TARGET_S),
            Measured("to look all of them up when nothing happens", again_s, "s"),
            Measured(
                "the node's processor time for it, a bundle", (found_cpu_s - before_cpu_s) / len(after) * 1e6, "us"
            ),
            Measured("the same when nothing happens", again_cpu_s / len(after) * 1e6, "us"),
            Measured("moves per bundle", moves / len(after), "", 1.0),
            Measured("writes per bundle", sum(new.version - old.version for old, new in pairs) / len(pairs), "", 1.0),
            Measured("owners changed", sum(is_other(old.owner, new.owner) for old, new in pairs), ""),
        ],
    )


def is_other(before: Registration | None, after: Registration | None) -> bool:
    """Return True if a bundle moved to another broker, whatever its incarnation."""
    return before is None or after is None or before.broker != after.broker


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", type=int, default=100)
    parser.add_argument("--namespaces", type=int, default=650)
    parser.add_argument("--batch", action="store_true", help="many lookups in one request")
    parser.add_argument("--shuffled", action="store_true", help="topics of all namespaces in no order")
    parser.add_argument("--only-all", action="store_true", help="not one broker after the other")
    given = parser.parse_args()
    at_a_time = BATCH if given.batch else 1
    with EmbeddedZooKeeper() as zookeeper, tempfile.TemporaryDirectory() as folder:
        async with a_world(zookeeper.connect_string, Path(folder), given.brokers, given.namespaces, at_a_time) as world:
            if given.shuffled:
                random.Random(1).shuffle(world.clients.topics)
            size = f"{given.brokers} brokers, {len(world.clients.topics):,} bundles"
            await measure(world, f"All brokers restart at once: {size}", all_at_once)
            if not given.only_all:
                await measure(world, f"Brokers restart one after the other: {size}", one_after_the_other)


if __name__ == "__main__":
    install_fast_loop()
    asyncio.run(main())
