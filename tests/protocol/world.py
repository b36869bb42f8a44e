"""A cluster in virtual time: nodes, agents, brokers, clients, operators, a model of ZooKeeper, and one seed.

Nodes and agents are the product's own; only sockets, threads, clocks and the metadata store are simulated (see
`network`, `parties`, `virtual_time`, `zookeeper`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import random
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import aiohttp
import orjson
import structlog
from protocol.brokers import Broker, Served
from protocol.network import ClientSession, Network
from protocol.parties import Party, VirtualLoop
from protocol.process_exits import Kernels
from protocol.records import Records
from protocol.states import States
from protocol.versions import as_another_version
from protocol.virtual_time import virtual_time
from protocol.zookeeper import Ensemble, ModelStore
from support.nodes import settings as node_settings

from loadmanager.agent.agent_service import Agent
from loadmanager.agent.host_usage import NOTHING_KNOWN
from loadmanager.client import LookupClient
from loadmanager.config.agent_settings import AgentSettings
from loadmanager.config.node_settings import Settings
from loadmanager.errors import LoadManagerError, NodesUnavailableError, StoreError, ZnodeTooLargeError
from loadmanager.http.app import make_app
from loadmanager.leader.node import Node
from loadmanager.net.liveness import Life
from loadmanager.util.clock import now_s

NAMESPACE = "t/ns"
SESSION_S = 6.0
NODE_PORT, AGENT_PORT, LOCAL_PORT, BROKER_PORT = 8080, 9090, 9091, 6650
_OK, _NO_CONTENT = 200, 204
_ANSWERS = {_OK, 202, _NO_CONTENT, 400, 404, 409, 412, 413, 503, 504}
"""Statuses that any request may be answered with."""
DRIFT = 0.0049
"""Drift of each clock: one runs at most a hundredth faster than another, as the contract allows."""
_ANOTHER_VERSION = 0.2
"""Share of processes of nodes and agents with another version."""
_TIMEOUT_S = 20.0
UNLOADS_AT_A_TIME = 2
"""Limit in the nodes' settings; operators only lower it."""
_STORY_LINES = 400
_CLIENT_PAUSE_S = 1.0
_CLIENT_TIMEOUT_S = 5.0

_NODE_SETTINGS = {
    "leader_silence_ms": 800,
    "namespace_bundle_unloading_timeout_ms": 8_000,
    "max_concurrent_unloads": UNLOADS_AT_A_TIME,
}

Then = Callable[[int, bytes], None]
"""Handler of an answer: its status and its body."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of a cluster and timeouts of its ZooKeeper sessions; `clients` keep who owns what. The namespace is
    `available` without leases.
    """

    nodes: int
    brokers: int
    bundles: int
    topics: int
    clients: int = 0
    node_session_s: float = SESSION_S
    agent_session_s: float = SESSION_S
    available: bool = False


@dataclass(eq=False, slots=True)
class Process:
    """A restartable process: `life` counts its starts, `party` is the current one."""

    name: str
    host: str
    main: Callable[[Process, Party], Coroutine[Any, Any, None]]
    party: Party | None = None
    life: int = 0
    stop: asyncio.Event | None = None
    node: Node | None = None

    @property
    def is_up(self) -> bool:
        return self.party is not None and not self.party.is_dead

    @property
    def is_paused(self) -> bool:
        return self.party is not None and self.party.is_paused


class World:
    """One cluster. `violations` lists broken invariants; `unanswered` has pending requests and their start times."""

    def __init__(
        self, seed: int, shape: Shape, loop: VirtualLoop, chance: Callable[[int], random.Random] = random.Random
    ) -> None:
        self._chance = chance
        self.rng = chance(seed)
        self.shape = shape
        self.loop = loop
        self.story: deque[str] = deque(maxlen=_STORY_LINES)
        self.failures: list[str] = []
        self.network = Network(loop, chance(self.rng.getrandbits(64)), tell=self.tell)
        self.zookeeper = Ensemble(loop, chance(self.rng.getrandbits(64)))
        self.served = Served(loop)
        self.records = Records(loop, self.served, self.tell, UNLOADS_AT_A_TIME)
        self.served.is_owner = self.records.is_owner
        self.zookeeper.on_commit.append(self.records.committed)
        self.zookeeper.on_set_back.append(self.records.set_back)
        self.topics = [f"persistent://{NAMESPACE}/topic-{number}" for number in range(shape.topics)]
        self.kernels = Kernels(chance(seed), loop)
        self.lives: dict[str, Party] = {}
        """Parties of all agents and nodes so far, by life name."""
        self.unanswered: dict[str, float] = {}
        self._asked = 0
        self.processes: dict[str, Process] = {}
        self.states = States(self.records, self.served, self.processes.values())
        self.records.on_change = self.served.on_change = self.states.note
        self.advertised: dict[str, str] = {}
        """Advertised addresses of nodes, by name, where they are wrong."""
        self.owners: dict[str, LookupClient] = {}
        """Lookup clients by name, while they run."""
        self._people = Party("people", "people")
        for number in range(shape.nodes):
            self._add(f"node-{number}", f"n{number}", self._run_node)
        for number in range(shape.brokers):
            self._add(f"agent-{number}", f"b{number}", self._run_agent)
            self._add(f"broker-{number}", f"b{number}", self._run_broker)
        for number in range(shape.clients):
            self._add(f"client-{number}", f"c{number}", self._run_client)

    def tell(self, line: str) -> None:
        self.story.append(f"{self.loop.now_s:9.3f}  {line}")

    @property
    def violations(self) -> list[str]:
        return [*self.served.violations, *self.records.violations, *self.failures]

    @property
    def messages(self) -> int:
        """Return the number of messages that have arrived from one party at another."""
        return self.network.delivered.total() + self.zookeeper.messages

    @property
    def hosts(self) -> list[str]:
        return sorted({process.host for process in self.processes.values()})

    # Processes

    def _add(self, name: str, host: str, main: Callable[[Process, Party], Coroutine[Any, Any, None]]) -> None:
        self.processes[name] = Process(name, host, main)

    def of(self, kind: str) -> list[Process]:
        return [process for process in self.processes.values() if process.name.startswith(kind)]

    def start(self, name: str) -> None:
        """Start or restart a process."""
        process = self.processes[name]
        assert not process.is_up, f"{name} is running"
        process.life += 1
        rate, offset_s = self.rng.uniform(1 - DRIFT, 1 + DRIFT), self.rng.uniform(100.0, 1_000_000.0)
        party = process.party = Party(f"{name}.{process.life}", process.host, rate, offset_s)
        self.kernels.started(party)
        self.loop.as_party(party, 0.0, self._begin, process, party)

    def _begin(self, process: Process, party: Party) -> None:
        process.stop = asyncio.Event()
        task = asyncio.create_task(process.main(process, party), name=party.name)
        task.add_done_callback(lambda done: self._ended(party, done))

    def _ended(self, party: Party, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        self.tell(f"{party} ended{f': {type(error).__name__}: {error}' if error else ''}")
        if error is not None and (isinstance(error, ZnodeTooLargeError) or not isinstance(error, StoreError)):
            self.failures.append(f"{party} ended by {type(error).__name__}: {error}")
        self.loop.kill(party)

    async def _run_node(self, process: Process, party: Party) -> None:
        address = f"{process.host}:{NODE_PORT}"
        settings = _settings_of_nodes(available=self.shape.available)
        async with self._a_store(self.shape.node_session_s) as store:
            url = self.advertised.get(process.name, f"http://{address}")
            seed, life = self.rng.getrandbits(32), _VirtualLife(party, self.lives)
            node = process.node = Node(settings, store, address, url, seed, life)
            self.network.serve(address, party, make_app(node))
            await node.start()
            await _first(_event(process.stop), node.failure)
            await node.stop()

    async def _run_agent(self, process: Process, party: Party) -> None:
        host = process.host
        url = f"http://{host}:{AGENT_PORT}"
        settings = _settings_of_agent(host, self.shape.nodes)
        async with self._a_store(self.shape.agent_session_s) as store:
            agent = Agent(settings, store, url, clock=now_s, life=_VirtualLife(party, self.lives))
            self.network.serve(f"{host}:{AGENT_PORT}", party, agent.server.app())
            self.network.serve(f"{host}:{LOCAL_PORT}", party, agent.server.broker_app())
            assert process.stop is not None
            try:
                await agent.run(process.stop)
            finally:
                await agent.close()

    async def _run_broker(self, process: Process, party: Party) -> None:
        rng = self._chance(zlib.crc32(party.name.encode()))
        broker = Broker(party, f"http://{process.host}:{LOCAL_PORT}", self.served, rng)
        self.network.serve(f"{process.host}:{BROKER_PORT}", party, broker.app())
        async with broker.hosting:
            await _event(process.stop)

    async def _run_client(self, process: Process, party: Party) -> None:
        """Run a lookup client; create it again if no node answers."""
        urls = [self.node_url(number) for number in range(self.shape.nodes)]
        assert process.stop is not None
        while not process.stop.is_set():
            client = LookupClient(urls, namespaces=[NAMESPACE], chance=random.Random(party.name))
            with contextlib.suppress(NodesUnavailableError):
                async with client:
                    self.owners[process.name] = client
                    await process.stop.wait()
            await asyncio.sleep(_CLIENT_PAUSE_S)

    @contextlib.asynccontextmanager
    async def _a_store(self, session_timeout_s: float) -> Any:  # noqa: ANN401 - AsyncIterator[ModelStore], which mypy wants spelt out
        written = as_another_version if self.rng.random() < _ANOTHER_VERSION else list
        store = ModelStore(self.zookeeper, session_timeout_s=session_timeout_s, written=written)
        await store.start()
        try:
            yield store
        finally:
            await store.close()

    # Clients and operators

    def node_url(self, number: int) -> str:
        return f"http://n{number % self.shape.nodes}:{NODE_PORT}"

    def ask(self, method: str, url: str, body: object = None, then: Then | None = None) -> None:
        """Send a request as an operator or client; some answer must arrive in time."""
        self.loop.as_party(self._people, 0.0, lambda: asyncio.create_task(self._ask(method, url, body, then)))

    async def _ask(self, method: str, url: str, body: object, then: Then | None) -> None:
        self._asked += 1
        name = f"{method} {url} at {self.loop.now_s:.3f} s (request {self._asked})"
        self.unanswered[name] = self.loop.now_s
        options: dict[str, Any] = {} if body is None else {"json": body}
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        try:
            async with ClientSession().request(method, url, timeout=timeout, **options) as answer:
                if answer.status not in _ANSWERS:
                    self.failures.append(f"{name} was answered {answer.status}: {await answer.text()}")
                if then is not None:
                    then(answer.status, await answer.read())
        except (aiohttp.ClientError, TimeoutError):
            pass
        finally:
            del self.unanswered[name]

    def use(self, topic: str, node: int, then: Callable[[], None] | None = None) -> None:
        """Look a topic up and use it at its owner; call `then` on success."""

        def found(status: int, body: bytes) -> None:
            if status == _OK:
                address = orjson.loads(body)["brokerUrl"].partition("://")[2]
                self.ask("GET", f"http://{address}/serve?topic={topic}", then=served)

        def served(status: int, _: bytes) -> None:
            if status == _NO_CONTENT and then is not None:
                then()

        self.ask("GET", f"{self.node_url(node)}/lookup/v2/topic/{topic.replace('://', '/')}", then=found)

    def use_as_client(self, topic: str, name: str, then: Callable[[], None] | None = None) -> None:
        """Use a topic through a lookup client; call `then` on success."""
        party = self.processes[name].party
        if party is not None and not party.is_dead and name in self.owners:
            self.loop.as_party(party, 0.0, lambda: asyncio.create_task(self._use_as_client(topic, name, then)))

    async def _use_as_client(self, topic: str, name: str, then: Callable[[], None] | None) -> None:
        owners = self.owners[name]
        status = 0
        with contextlib.suppress(LoadManagerError):
            owner = await owners.lookup(topic, _CLIENT_TIMEOUT_S)
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                url = f"http://{owner.broker_id}/serve?topic={topic}"
                async with ClientSession().get(url, timeout=aiohttp.ClientTimeout(total=_CLIENT_TIMEOUT_S)) as answer:
                    status = answer.status
            if status != _NO_CONTENT:
                owners.refused(topic, owner.broker_id)
            elif then is not None:
                then()

    # Time

    async def wait(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s)

    async def wait_until(self, condition: Callable[[], bool], within_s: float) -> bool:
        """Return true if the condition holds within so many seconds of the world."""
        until_s = self.loop.now_s + within_s
        while not condition():
            if self.loop.now_s >= until_s or self.violations:
                return False
            await asyncio.sleep(0.05)
        return True


class _VirtualLife(Life):
    """A life of an agent or node without the product's sockets for exit detection."""

    def __init__(self, party: Party, lives: dict[str, Party]) -> None:
        self.name = f"{party.host}/{party.name}"
        self._host = party.host
        self._lives = lives
        lives[self.name] = party

    def close(self) -> None: ...

    def is_over(self, name: str) -> bool:
        party = self._lives.get(name)
        return party is not None and party.host == self._host and party.is_dead

    def count_agents_here(self) -> int:
        return sum(party.host == self._host and not party.is_dead for party in self._lives.values())


@functools.cache
def _settings_of_nodes(*, available: bool) -> Settings:
    return node_settings(**_NODE_SETTINGS, available_namespaces={NAMESPACE} if available else frozenset())


@functools.cache
def _settings_of_agent(host: str, nodes: int) -> AgentSettings:
    broker = f"{host}:{BROKER_PORT}"
    return AgentSettings(
        broker_id=broker,
        broker_url=f"http://{broker}",
        broker_service_url=f"pulsar://{broker}",
        load_manager_urls=tuple(f"http://n{number}:{NODE_PORT}" for number in range(nodes)),
        agent_url=f"http://{host}:{AGENT_PORT}",
        stats_update_frequency_in_secs=2.0,
    )


async def _event(event: asyncio.Event | None) -> None:
    assert event is not None
    await event.wait()


async def _first(stop: Awaitable[None], failure: asyncio.Future[None]) -> None:
    """Wait for either; raise the error of the second one."""
    stopped = asyncio.ensure_future(stop)
    await asyncio.wait({stopped, failure}, return_when=asyncio.FIRST_COMPLETED)
    if failure.done():
        await failure


@contextlib.contextmanager
def in_virtual_time(loop: VirtualLoop, network: Network, kernels: Kernels) -> Iterator[None]:
    """Replace sockets, clocks and host metrics of the product, and silence its logs."""

    async def is_refused(url: str) -> bool:
        return await network.is_refused(url)

    ClientSession.network = network
    with contextlib.ExitStack() as stack:
        stack.enter_context(virtual_time(loop))
        for module in ("net.broker_client", "leader.election.leader_watch"):
            stack.enter_context(patch(f"loadmanager.{module}.is_refused", is_refused))
        stack.enter_context(patch("loadmanager.agent.agent_service.BrokerExit", kernels.deaths))
        stack.enter_context(patch("os.getpid", kernels.pid))
        stack.enter_context(patch("aiohttp.ClientSession", ClientSession))
        stack.enter_context(patch("aiohttp.TCPConnector", lambda **_: None))
        stack.enter_context(patch("loadmanager.agent.usage_sampler.UsageSampler.sample", _no_sample))
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
        for module in ("broker.broker_host", "client.namespace_watch"):
            stack.enter_context(patch(f"loadmanager.{module}.log.disabled", new=True))
        try:
            yield
        finally:
            structlog.reset_defaults()


async def _no_sample(sampler: Any) -> None:  # noqa: ANN401 - a UsageSampler
    sampler.usage, sampler.measured_at_s = NOTHING_KNOWN, sampler.clock()
