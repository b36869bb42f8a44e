"""Downtime of a topic during a planned move, with and without `prepare` at the destination.

A real node (own process, uvloop) on a real ZooKeeper; agents, brokers and clients are in this process. Each of two
pairs of brokers moves one bundle back and forth, while a client publishes to its topic, one message after the other.
The times to close and to open a topic are given. One pair does not support `prepare` and does not redirect: its client
looks the topic up repeatedly without a pause. The other pair prepares the topic and redirects the client, whose request
waits at the destination.

    python benchmarks/bench_move.py [--moves 100] [--close-ms 2] [--open-ms 50]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import tempfile
import time
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import structlog
from aiohttp import web
from measure import Measured, percentile, show
from support.agents import RunningAgent, running_agent
from support.cluster import Cluster, a_cluster
from support.servers import LoopbackServer
from support.waiting import eventually

from loadmanager.cli.service_runner import install_fast_loop
from loadmanager.config.agent_settings import AgentSettings
from loadmanager.config.settings_loader import load_settings
from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.store.metadata_store import Put
from loadmanager.wire.http_bodies import BrokerStats, OwnerAnswer, TopicsOfBundle, TopicStats, UnloadRequest

SETTINGS = {"loadBalancerSheddingEnabled": False, "loadBalancerAutoBundleSplitEnabled": False}
WAYS = ("without prepare", "with prepare")
TARGET_MS = 20.0


@dataclass(slots=True)
class Times:
    """Monotonic times of one move: the old owner stopped serving, and had closed; the new owner was granted the topic,
    and had opened it.
    """

    stopped_s: float
    closed_s: float = 0.0
    granted_s: float = 0.0
    opened_s: float = 0.0


@dataclass(slots=True)
class Broker(LoopbackServer):
    """Broker that implements the parts of the contract that a move needs. It ignores the expiry of leases."""

    prepares: bool = False
    close_s: float = 0.0
    open_s: float = 0.0
    times: list[Times] = field(default_factory=list)
    """Times of all moves of the pair, in order."""
    agent: RunningAgent | None = None
    topics: set[str] = field(default_factory=set)
    ready: set[str] = field(default_factory=set)
    """Prepared topics."""
    gone_to: dict[str, str] = field(default_factory=dict)
    openings: dict[str, asyncio.Task[bool]] = field(default_factory=dict)

    def routes(self) -> list[web.RouteDef]:
        more = [web.post("/loadmanager/v1/prepare", self._prepare)] if self.prepares else []
        return [
            web.get("/loadmanager/v1/stats", self._stats),
            web.post("/loadmanager/v1/unload", self._unload),
            web.post("/publish", self._publish),
            *more,
        ]

    @property
    def broker_id(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def take_leases(self) -> None:
        while True:
            assert self.agent is not None
            await self.agent.lease()
            await asyncio.sleep(1.0)

    async def _stats(self, _: web.Request) -> web.Response:
        stats = BrokerStats(
            pid=self.port,
            version="1",
            start_timestamp=1,
            monotonic_s=time.monotonic(),
            topics=[TopicStats(topic=each) for each in self.topics],
            opening=list(self.openings),
        )
        return web.Response(body=stats.to_json(), content_type="application/json")

    async def _prepare(self, request: web.Request) -> web.Response:
        topics = TopicsOfBundle.model_validate_json(await request.read()).topics
        await asyncio.sleep(self.open_s)
        self.ready.update(topics)
        return web.Response(status=204)

    async def _unload(self, request: web.Request) -> web.Response:
        wanted = UnloadRequest.model_validate_json(await request.read())
        open_here = self.topics.intersection(wanted.topics)
        if open_here:
            self.times.append(Times(time.monotonic()))
        self.topics -= open_here
        if self.prepares and wanted.destination is not None:
            self.gone_to.update(dict.fromkeys(wanted.topics, wanted.destination))
        await asyncio.sleep(self.close_s)
        if open_here:
            self.times[-1].closed_s = time.monotonic()
        return web.Response(status=204)

    async def _publish(self, request: web.Request) -> web.Response:
        topic = request.query["topic"]
        if topic in self.topics or (topic not in self.gone_to and await self._open(topic)):
            return web.Response(status=204)
        return web.Response(status=409, headers={"Destination": self.gone_to.pop(topic, "")})

    async def _open(self, topic: str) -> bool:
        if topic not in self.openings:
            self.openings[topic] = asyncio.create_task(self._ask_and_open(topic))
            self.openings[topic].add_done_callback(lambda _: self.openings.pop(topic))
        return await self.openings[topic]

    async def _ask_and_open(self, topic: str) -> bool:
        assert self.agent is not None
        status, answer = await self.agent.owner(topic, **({"waitMs": "2000"} if self.prepares else {}))
        if status != 200 or not OwnerAnswer.model_validate(answer).owned:
            return False
        if self.times:
            self.times[-1].granted_s = time.monotonic()
        if topic not in self.ready:
            await asyncio.sleep(self.open_s)
        self.ready.discard(topic)
        self.topics.add(topic)
        if self.times:
            self.times[-1].opened_s = time.monotonic()
        return True


@dataclass(slots=True)
class Publisher:
    """Client of one topic. `gaps_s` are the pauses between acknowledgements of different brokers."""

    http: aiohttp.ClientSession
    node_url: str
    topic: str
    gaps_s: list[float] = field(default_factory=list)
    owner: str = ""
    _acknowledged_s: float = 0.0
    _by: str = ""

    @property
    def is_served(self) -> bool:
        return bool(self._by)

    async def run(self) -> None:
        while True:
            if not self.owner:
                await self._look_up()
                continue
            async with self.http.post(f"http://{self.owner}/publish", params={"topic": self.topic}) as answer:
                if answer.status == 204:
                    self._acknowledged()
                else:
                    self.owner = answer.headers["Destination"]
            await asyncio.sleep(0.001)

    def _acknowledged(self) -> None:
        now_s = time.monotonic()
        if self._by not in ("", self.owner):
            self.gaps_s.append(now_s - self._acknowledged_s)
        self._by, self._acknowledged_s = self.owner, now_s

    async def _look_up(self) -> None:
        async with self.http.get(f"{self.node_url}/lookup/v2/topic/{self.topic.replace('://', '/')}") as answer:
            if answer.status == 200:
                self.owner = (await answer.json())["brokerId"]


@dataclass(slots=True)
class Pair:
    """Two brokers and the bundle that moves between them."""

    brokers: list[Broker]
    times: list[Times]
    publisher: Publisher
    bundle: str

    async def begin(self, cluster: Cluster) -> None:
        """Move the bundle from any broker to this pair; this move is not measured."""
        if self.publisher.owner not in {each.broker_id for each in self.brokers}:
            await self.move(cluster)
        self.times.clear()
        self.publisher.gaps_s.clear()

    async def move(self, cluster: Cluster) -> None:
        there = next(each for each in self.brokers if each.broker_id != self.publisher.owner)
        moved = len(self.publisher.gaps_s)
        assert await cluster.unload(self.publisher.node_url, self.bundle, there.broker_id) == 204
        await eventually(lambda: len(self.publisher.gaps_s) > moved, what="the client is served again")


async def start(stack: AsyncExitStack, cluster: Cluster, node_url: str, broker: Broker) -> None:
    """Run the broker with its agent until `stack` is closed."""
    await stack.enter_async_context(broker)
    settings = {
        "brokerId": broker.broker_id,
        "brokerUrl": broker.url,
        "brokerServiceUrl": f"pulsar://{broker.broker_id}",
        "loadManagerUrls": [node_url],
        "agentPort": 0,
    }
    agent = running_agent(load_settings(AgentSettings, None, settings), await cluster.a_store(), highest_epoch=0)
    broker.agent = await stack.enter_async_context(agent)
    run_until_the_end(stack, broker.take_leases())
    await broker.agent.registered()


def run_until_the_end(stack: AsyncExitStack, work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(work)

    async def end() -> None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    stack.push_async_callback(end)


async def measure(connect_string: str, folder: Path, moves: int, close_s: float, open_s: float) -> None:
    async with a_cluster(connect_string, "/bench", folder) as cluster, AsyncExitStack() as stack:
        await cluster.witness.ensure_path("/bench")
        node = await cluster.start_node("node", SETTINGS)
        await cluster.leader()
        pairs = []
        for number, way in enumerate(WAYS):
            await cluster.create_namespace(node.url, f"tenant/ns{number}", bundles=1)
            times: list[Times] = []
            brokers = [Broker(prepares=way == WAYS[1], close_s=close_s, open_s=open_s, times=times) for _ in range(2)]
            for broker in brokers:
                await start(stack, cluster, node.url, broker)
            publisher = Publisher(cluster.http, node.url, f"persistent://tenant/ns{number}/topic")
            pairs.append(Pair(brokers, times, publisher, f"tenant/ns{number}/0x00000000_0xffffffff"))
        await cluster.brokers_are_seen(node.url, 2 * len(WAYS))
        for pair in pairs:
            run_until_the_end(stack, pair.publisher.run())
        await eventually(lambda: all(pair.publisher.is_served for pair in pairs), what="the topics are served")
        for pair in pairs:
            await pair.begin(cluster)
        writes_s = []
        for _ in range(moves):
            for pair in pairs:
                await pair.move(cluster)
            writes_s.append(await write_once(cluster))
        report(moves, close_s, open_s, pairs, writes_s)


async def write_once(cluster: Cluster) -> float:
    """Return the time in which ZooKeeper writes one small znode."""
    began_s = time.monotonic()
    await cluster.witness.commit([Put("/bench", b"")])
    return time.monotonic() - began_s


def report(moves: int, close_s: float, open_s: float, pairs: Sequence[Pair], writes_s: list[float]) -> None:
    title = f"A planned move, {moves} each: {close_s * 1000:g} ms to close, {open_s * 1000:g} ms to open"
    rows = figures("one write of ZooKeeper", writes_s)
    for way, pair in zip(WAYS, pairs, strict=True):
        parts = {
            f"{way}: nobody serves": [each.opened_s - each.stopped_s for each in pair.times],
            "  closing": [each.closed_s - each.stopped_s for each in pair.times],
            "  until the next may open": [each.granted_s - each.closed_s for each in pair.times],
            "  opening": [each.opened_s - each.granted_s for each in pair.times],
            "  a client is not answered": pair.publisher.gaps_s,
        }
        for what, took_s in parts.items():
            rows += figures(what, took_s, TARGET_MS if what == f"{WAYS[1]}: nobody serves" else None)
    show(title, rows)


def figures(what: str, took_s: Sequence[float], target_ms: float | None = None) -> list[Measured]:
    median_ms, slowest_ms = (percentile(sorted(took_s), percent) * 1000 for percent in (50, 99))
    return [
        Measured(f"{what}, median", median_ms, "ms"),
        Measured(f"{what}, 99th percentile", slowest_ms, "ms", target_ms),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moves", type=int, default=100)
    parser.add_argument("--close-ms", type=float, default=2.0)
    parser.add_argument("--open-ms", type=float, default=50.0)
    arguments = parser.parse_args()
    install_fast_loop()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with EmbeddedZooKeeper() as zookeeper, tempfile.TemporaryDirectory() as folder:
        took = (arguments.moves, arguments.close_ms / 1000, arguments.open_ms / 1000)
        asyncio.run(measure(zookeeper.connect_string, Path(folder), *took))


if __name__ == "__main__":
    main()
