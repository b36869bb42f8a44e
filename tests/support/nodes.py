"""Load-manager nodes inside the test's process, their brokers, and a client that asks them over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from unittest import mock

import aiohttp
import orjson
import pytest
from aiohttp import web
from support.builders import Load
from support.delays import a_memory_cluster
from support.memory_store import MemoryCluster, MemoryStore
from support.registrations import a_record, register
from support.servers import LoopbackServer, end_app, listen, serve_app
from support.waiting import eventually, patience
from yarl import URL

from loadmanager.config.node_settings import Settings
from loadmanager.core.domain.bundles import HashFunction, topic_hash
from loadmanager.core.domain.names import BrokerId, BundleName, TopicName
from loadmanager.core.domain.ownership import Ownership, Registration
from loadmanager.core.domain.reasons import OwnershipReason
from loadmanager.core.protocol import move_machine
from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.http import app as http_app
from loadmanager.http.app import make_app
from loadmanager.leader.audit.decision_log import DecisionLog
from loadmanager.leader.audit.history_recorder import HistoryRecorder
from loadmanager.leader.audit.move_records import MoveRecorder
from loadmanager.leader.execution import assignment_driver
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.leader.node import Node
from loadmanager.leader.planning.planner_service import PlannerService
from loadmanager.net.http_server import ServerLimits
from loadmanager.store import paths
from loadmanager.store.metadata_store import MetadataStore, Put
from loadmanager.store.zookeeper_store import ZooKeeperStore
from loadmanager.wire.broker_data import LocalBrokerData, encode_local_broker_data
from loadmanager.wire.http_bodies import NamespacePolicies, OpenTopic, TopicsAnswer, TopicsOfBundle
from loadmanager.wire.validation import parse_model

Connect = Callable[[], Awaitable[MetadataStore]]
"""Opens one more session with the metadata store that the nodes and brokers of a test share."""


def in_memory(cluster: MemoryCluster | None = None) -> Connect:
    """Sessions with one metadata store in memory, on the clock that nodes look at."""
    shared = cluster or a_memory_cluster()

    async def connect() -> MetadataStore:
        store = MemoryStore(shared)
        await store.start()
        return store

    return connect


def on_zookeeper(server: EmbeddedZooKeeper, chroot: str) -> Connect:
    """Sessions with a real ZooKeeper, below `chroot`."""

    async def connect() -> MetadataStore:
        store = ZooKeeperStore(server.connect_string, session_timeout_s=60.0, chroot=chroot)
        await store.start()
        return store

    return connect


def settings(**overrides: Any) -> Settings:  # noqa: ANN401 - whatever a setting may be
    """Settings without periodic shedding or writes."""
    values: dict[str, Any] = {
        "leader_silence_ms": 0,
        "load_balancer_shedding_interval_minutes": 1_000.0,
        "load_balancer_split_interval_minutes": 1_000.0,
        "load_balancer_resource_quota_update_interval_minutes": 1_000.0,
    }
    return Settings(**(values | overrides))


@contextlib.contextmanager
def lookup_timeout(timeout_s: float) -> Iterator[None]:
    """Let nodes that start here wait this long for a leader and, while this lasts, for an assignment."""
    with (
        mock.patch.object(assignment_driver, "LOOKUP_TIMEOUT_S", timeout_s),
        mock.patch.object(http_app, "LOOKUP_TIMEOUT_S", timeout_s),
    ):
        yield


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:  # noqa: ANN401 - whatever was answered
        return orjson.loads(self.body)

    @property
    def reason(self) -> str:
        """Reason of an error answer; fails unless it has Pulsar's form."""
        assert self.headers["Content-Type"].startswith("application/json"), self.headers
        content = self.json()
        assert list(content) == ["reason"], content
        reason = content["reason"]
        assert isinstance(reason, str)
        assert "Traceback" not in reason
        return reason


@dataclass(slots=True)
class RunningNode:
    """A node, its HTTP server on a port that the kernel chose, and the client that asks it."""

    node: Node
    store: MetadataStore
    http: aiohttp.ClientSession
    app: web.Application
    _runner: web.AppRunner

    @property
    def connections(self) -> list[web.RequestHandler]:
        """Open connections to the node."""
        return [] if self._runner.server is None else self._runner.server.connections

    @property
    def leads(self) -> bool:
        return self.node.leading.is_set()

    async def ask(self, method: str, path: str, **options: Any) -> Reply:  # noqa: ANN401 - aiohttp's options
        """One request; the path goes out as it is given, percent signs and all."""
        url = URL(f"{self.node.service_url}{path}", encoded=True)
        async with self.http.request(method, url, timeout=aiohttp.ClientTimeout(total=patience()), **options) as answer:
            return Reply(answer.status, dict(answer.headers), await answer.read())

    async def get(self, path: str, **options: Any) -> Reply:  # noqa: ANN401 - aiohttp's options
        return await self.ask("GET", path, **options)

    async def put(self, path: str, **options: Any) -> Reply:  # noqa: ANN401 - aiohttp's options
        return await self.ask("PUT", path, **options)

    async def lookup(self, topic: str, **options: Any) -> Reply:  # noqa: ANN401 - aiohttp's options
        return await self.get(f"/lookup/v2/topic/{topic.replace('://', '/')}", **options)

    def ownership(self, bundle: str) -> Ownership:
        entry, index = self.node.mirror.bundle(BundleName.parse(bundle))
        return entry.state.ownerships[index]

    def ranges_of(self, namespace: str = "t/ns") -> list[str]:
        """The ranges of the namespace's bundles, as this node knows them."""
        return [str(each) for each in self.node.mirror.namespaces[namespace].state.bundles.ranges()]

    def bundle_of(self, topic: str) -> str:
        entry, index = self.node.mirror.bundle_of_topic(TopicName.parse(topic))
        return entry.state.bundle_name(index)

    async def unload(self, bundle: str, destination: Registration | None = None) -> Ownership:
        """Unload as an operator does; return the ownership afterwards."""
        await self.node.bundles.unload(BundleName.parse(bundle), destination, OwnershipReason.ADMIN_UNLOAD)
        return self.ownership(bundle)

    async def stop(self) -> None:
        await self.node.stop()
        await end_app(self._runner)
        await self.store.close()

    async def vanish(self) -> None:
        """Close the port at once; the node keeps running."""
        await end_app(self._runner)

    async def kill(self) -> None:
        """Simulate a killed process until its session expires: its port is closed."""
        self.node._life.close()
        await self.vanish()


@dataclass(slots=True)
class FakeAgent(LoopbackServer):
    """A registered broker whose agent takes unload calls; what it answers is up to the test."""

    broker_id: str = "b1:8080"
    status: int = 204
    body: bytes = b""
    content_type: str = "application/json"
    location: str = ""
    """Agent that a redirect leads to."""
    unloads: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """The path and the headers of each unload call."""
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    topics: dict[str, Load] = field(default_factory=dict)
    """The open topics with their load; the agent names those of the bundle that it is asked about."""
    topics_status: int = 200
    prepare_status: int = 204
    prepared: list[TopicsOfBundle] = field(default_factory=list)
    may_answer_prepares: asyncio.Event = field(default_factory=asyncio.Event)
    boundaries_status: int = 204
    boundaries: list[tuple[str, list[str]]] = field(default_factory=list)
    """The namespaces whose bundles the agent was told, and their boundaries."""
    registration: Registration = field(default_factory=lambda: Registration(BrokerId(""), 0))
    store: MetadataStore | None = None
    record: LocalBrokerData = field(default_factory=LocalBrokerData)

    def __post_init__(self) -> None:
        self.may_answer.set()
        self.may_answer_prepares.set()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/loadmanager/v1/prepare", self._prepare),
            web.put("/admin/v2/namespaces/{tenant}/{namespace}/{range}/unload", self._unload),
            web.get("/loadmanager/v1/topics", self._name_topics),
            web.put("/loadmanager/v1/namespaces/{tenant}/{namespace}/bundles", self._take_bundles),
        ]

    async def report(self, record: LocalBrokerData | bytes) -> None:
        """Write the broker's record again."""
        assert self.store is not None
        data = record if isinstance(record, bytes) else encode_local_broker_data(record)
        await self.store.commit([Put(paths.broker(self.broker_id), data)])

    async def leave(self) -> None:
        """End the broker's session, and its server."""
        assert self.store is not None
        await self.store.close()
        await self.stop()

    async def _prepare(self, request: web.Request) -> web.Response:
        self.prepared.append(parse_model(TopicsOfBundle, await request.read(), "prepare"))
        await self.may_answer_prepares.wait()
        return web.Response(status=self.prepare_status)

    async def _name_topics(self, request: web.Request) -> web.Response:
        bundle = BundleName.parse(request.query["bundle"])
        hashes = {topic: topic_hash(topic, HashFunction.MURMUR3_32) for topic in self.topics}
        named = [
            OpenTopic(
                topic=topic,
                hash=value,
                msg_rate_in=self.topics[topic][0],
                msg_rate_out=self.topics[topic][1],
                msg_throughput_in=self.topics[topic][2],
                msg_throughput_out=self.topics[topic][3],
            )
            for topic, value in hashes.items()
            if value in bundle.range
        ]
        body = TopicsAnswer(bundle=str(bundle), topics=named).to_json()
        return web.Response(
            status=self.topics_status, body=body, content_type="application/json", headers=self._headers(request)
        )

    async def _take_bundles(self, request: web.Request) -> web.Response:
        policies = parse_model(NamespacePolicies, await request.read(), "bundles")
        assert policies.bundles is not None
        assert policies.bundles.boundaries is not None
        name = f"{request.match_info['tenant']}/{request.match_info['namespace']}"
        self.boundaries.append((name, policies.bundles.boundaries))
        return web.Response(status=self.boundaries_status, headers=self._headers(request))

    async def _unload(self, request: web.Request) -> web.Response:
        self.unloads.append((request.path, dict(request.headers)))
        await self.may_answer.wait()
        if self.status == 204:
            return web.Response(status=204)
        headers = {"Content-Type": self.content_type, **self._headers(request)}
        return web.Response(status=self.status, body=self.body, headers=headers)

    def _headers(self, request: web.Request) -> dict[str, str]:
        return {"Location": f"{self.location}{request.path_qs}"} if self.location else {}


class Cluster:
    """Nodes and brokers on one metadata store. Use it with `async with`: everything ends with it."""

    def __init__(self, connect: Connect | None = None) -> None:
        self.connect = connect or in_memory()
        self.nodes: list[RunningNode] = []
        self.brokers: dict[str, FakeAgent] = {}
        self._ending = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.http = await self._ending.enter_async_context(aiohttp.ClientSession())
        self.store = await self.connect()
        self._ending.push_async_callback(self.store.close)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._ending.aclose()

    async def start_node(self, **overrides: Any) -> RunningNode:  # noqa: ANN401 - whatever a setting may be
        """One more node; it has read the cluster, and may lead."""
        listener = listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        store = await self.connect()
        node = Node(settings(**overrides), store, address, f"http://{address}", seed=len(self.nodes) + 1)
        app = make_app(node)
        runner = await serve_app(app, listener, ServerLimits.of(node.settings))
        running = RunningNode(node, store, self.http, app, runner)
        self._ending.push_async_callback(running.stop)
        await node.start()
        self.nodes.append(running)
        return running

    async def start_nodes(self, count: int, **overrides: Any) -> list[RunningNode]:  # noqa: ANN401 - as above
        """Several nodes, the leader first."""
        started = [await self.start_node(**overrides) for _ in range(count)]
        await eventually(lambda: any(node.leads for node in started))
        return sorted(started, key=lambda node: not node.leads)

    async def start_leader(self, **overrides: Any) -> RunningNode:  # noqa: ANN401 - as above
        """A node that leads."""
        return (await self.start_nodes(1, **overrides))[0]

    async def a_broker(self, broker_id: str = "b1:8080", record: LocalBrokerData | None = None) -> FakeAgent:
        """Register a broker with an agent, and wait until every node knows it."""
        agent = FakeAgent(broker_id=broker_id)
        await self._ending.enter_async_context(agent)
        agent.store = await self.connect()
        self._ending.push_async_callback(agent.store.close)
        agent.record = record or a_record(broker_id)
        agent.record["protocols"] = {"loadmanager-agent": agent.url}
        agent.registration = await register(agent.store, broker_id, agent.record)
        self.brokers[broker_id] = agent
        await self.known_everywhere(lambda node: broker_id in node.node.mirror.brokers)
        return agent

    async def a_namespace(self, name: str = "t/ns", **policies: object) -> list[str]:
        """Create a namespace through the first node, and wait until every node knows it; its bundles."""
        reply = await self.nodes[0].put(f"/admin/v2/namespaces/{name}", json=policies)
        assert reply.status == 204, reply
        await self.known_everywhere(lambda node: name in node.node.mirror.namespaces)
        return self.nodes[0].node.mirror.namespaces[name].state.bundle_names()

    async def known_everywhere(self, fact: Callable[[RunningNode], object]) -> None:
        await eventually(lambda: all(fact(node) for node in self.nodes))


@contextlib.asynccontextmanager
async def a_leader(**overrides: Any) -> AsyncIterator[tuple[Cluster, RunningNode]]:  # noqa: ANN401 - as above
    """A cluster in memory of one node, which leads."""
    async with Cluster() as cluster:
        yield cluster, await cluster.start_leader(**overrides)


def a_planner(mirror: ClusterMirror, live: LiveSettings) -> PlannerService:
    """Return the planner service of a node that records nothing."""
    recorder = HistoryRecorder(live, mirror.operator_config)
    return PlannerService(mirror, live, DecisionLog(10), 1, recorder, MoveRecorder(recorder))


def the_next_refusal_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make retry pauses so long that an unload is attempted once."""
    monkeypatch.setattr(move_machine, "_FIRST_PAUSE_S", 3_600.0)
    monkeypatch.setattr(move_machine, "_LONGEST_PAUSE_S", 3_600.0)


def topics_by_bundle(node: RunningNode, namespace: str, bundles: int) -> dict[str, str]:
    """A topic for every bundle of a namespace."""
    found: dict[str, str] = {}
    number = 0
    while len(found) < bundles:
        topic = f"persistent://{namespace}/topic-{number}"
        found.setdefault(node.bundle_of(topic), topic)
        number += 1
    return found
