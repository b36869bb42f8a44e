"""A cluster for tests: real node processes on one ZooKeeper, brokers and probers inside the test, and a witness.

The witness is a store of the test's own, which goes to ZooKeeper directly: what it reads there is what happened.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from support.lm_node import NodeProcess, get_json
from support.processes import Processes
from support.scripted_broker import ScriptedBroker
from support.waiting import eventually

from loadmanager.core.domain.names import NamespaceName, TopicName
from loadmanager.core.domain.ownership import NamespaceState, Ownership
from loadmanager.store import paths
from loadmanager.store.metadata_store import Znode
from loadmanager.store.znode_codec import decode
from loadmanager.store.zookeeper_store import ZooKeeperStore
from loadmanager.wire.store_records import decode_namespace

CALM: dict[str, Any] = {
    "metadataStoreSessionTimeoutMillis": 60_000,
    "leaderSilenceMs": 0,
    "namespaceBundleUnloadingTimeoutMs": 30_000,
    "loadBalancerSheddingEnabled": False,
    "historyUrl": "",
}
"""Settings of nodes in tests, with long timeouts for busy machines. Tests of timeouts use shorter ones."""

_POLL_S = 1.0

NAMESPACE = "tenant/ns"
BUNDLES = 64


class Cluster:
    """Nodes by name, brokers, and the witness; all end with `a_cluster`."""

    def __init__(self, stack: AsyncExitStack, connect_string: str, chroot: str, folder: Path) -> None:
        self.nodes: dict[str, NodeProcess] = {}
        self.brokers: list[ScriptedBroker] = []
        self.chroot = chroot
        self._connect_string = connect_string
        self._folder = folder
        self._stack = stack
        self._processes = stack.enter_context(Processes(folder))

    async def start(self) -> None:
        self.http = await self._stack.enter_async_context(aiohttp.ClientSession())
        self.witness = await self.a_store()

    async def a_store(self) -> ZooKeeperStore:
        """A store of the test's own on this cluster's part of ZooKeeper; closed with the cluster.

        Its session outlives every pause of ZooKeeper and of this process.
        """
        store = ZooKeeperStore(self._connect_string, session_timeout_s=600.0, chroot=self.chroot)
        await store.start()
        self._stack.push_async_callback(store.close)
        return store

    async def start_node(
        self,
        name: str,
        settings: Mapping[str, object] | None = None,
        *,
        via: str | None = None,
    ) -> NodeProcess:
        """A node process, which reaches ZooKeeper at `via` (`host:port`); settings by Pulsar's keys, over `CALM`."""
        url = f"zk:{via or self._connect_string}{self.chroot}"
        node = NodeProcess(name, self._folder, self._processes, {**CALM, "metadataStoreUrl": url, **(settings or {})})
        await node.start()
        self.nodes[name] = node
        return node

    async def start_broker(self, cpu_percent: float = 1.0) -> ScriptedBroker:
        broker = ScriptedBroker(store=await self.a_store())
        await broker.start()
        self._stack.push_async_callback(broker.stop)
        await broker.register(cpu_percent)
        self.brokers.append(broker)
        return broker

    async def start_all(self, nodes: int, brokers: int, settings: Mapping[str, object] | None = None) -> None:
        """Start nodes `n1`, `n2`, ... and brokers, and wait until every node sees all brokers."""
        names = (f"n{number}" for number in range(1, nodes + 1))
        started = (self.start_node(name, settings) for name in names)
        await asyncio.gather(*started, *(self.start_broker() for _ in range(brokers)))
        await self.all_brokers_are_seen()

    async def create_namespace(self, url: str, name: str = NAMESPACE, bundles: int = BUNDLES) -> None:
        """Create it at the node at `url`, and wait until every node that is ready has heard of it."""
        path, body = f"/admin/v2/namespaces/{name}", {"bundles": {"numBundles": bundles}}
        async with self.http.put(f"{url}{path}", json=body) as answer:
            assert answer.status == 204, await answer.text()

        async def known() -> bool:
            return all([await self._knows(node.url, path) for node in self.nodes.values()])

        await eventually(known, what=f"{name} is known to every node that is ready")

    async def _knows(self, url: str, path: str) -> bool:
        """Return True if the node answers there; one that is not ready need not."""
        if (await get_json(self.http, f"{url}{path}"))[0] == 200:
            return True
        return not await self.is_ready(url)

    async def is_ready(self, url: str) -> bool:
        return (await get_json(self.http, f"{url}/readyz"))[0] == 200

    async def lookup(self, url: str, topic: str) -> tuple[int, dict[str, Any]]:
        """Status and body; `topic` is `tenant/namespace/topic`."""
        return await get_json(self.http, f"{url}/lookup/v2/topic/persistent/{topic}")

    async def assign_all(self, url: str) -> list[str]:
        """Give each bundle of the namespace an owner, by lookups at the node at `url`; a topic of each."""
        topics = topics_of_bundles(await self.state())
        answers = await asyncio.gather(*(self.lookup(url, topic) for topic in topics))
        assert {status for status, _ in answers} == {200}
        return topics

    async def unload(self, url: str, bundle: str, destination: str = "") -> int:
        namespace, _, bundle_range = bundle.rpartition("/")
        query = {"destinationBroker": destination} if destination else {}
        path = f"{url}/admin/v2/namespaces/{namespace}/{bundle_range}/unload"
        async with self.http.put(path, params=query) as answer:
            return answer.status

    # What is true

    async def state(self, name: str = NAMESPACE) -> NamespaceState:
        """The namespace as its record says now."""
        znode = await self.get(paths.namespace(name))
        return decode_namespace(NamespaceName.parse(name), decode(znode.data, znode.path), znode.path)

    async def ownership(self, bundle: str) -> Ownership:
        state = await self.state(bundle.rpartition("/")[0])
        return state.ownerships[state.bundle_names().index(bundle)]

    async def get(self, path: str) -> Znode:
        await self.witness.sync()
        znode = await self.witness.get(path)
        assert znode is not None, f"there is no {path}"
        return znode

    async def epoch(self) -> int:
        return (await self.get(paths.EPOCH)).version

    async def leaders(self, timeout_s: float = 10.0) -> list[str]:
        """The nodes that say they lead; one that is stopped says nothing, and is waited for so long."""
        names = sorted(self.nodes)
        answers = await asyncio.gather(*(get_json(self.http, f"{self.nodes[n].url}/healthz", timeout_s) for n in names))
        return [name for name, (_, body) in zip(names, answers, strict=True) if body.get("leading")]

    async def leader(self) -> NodeProcess:
        """The one node that leads; waits until exactly one says so."""
        found: list[str] = []

        async def one_leads() -> bool:
            found[:] = await self.leaders(_POLL_S)
            return len(found) == 1

        await eventually(one_leads, "exactly one node leads")
        return self.nodes[found[0]]

    async def brokers_are_seen(self, url: str, count: int) -> None:
        """By the node at `url` and by the leader, who plans and who answers what operators command."""

        async def seen() -> bool:
            leaders = await self.leaders(_POLL_S)
            urls = {url, *(self.nodes[name].url for name in leaders)}
            return bool(leaders) and all([await self._known_brokers(each) == count for each in urls])

        await eventually(seen, f"{count} brokers are seen by {url} and by the leader")

    async def all_brokers_are_seen(self) -> None:
        for node in self.nodes.values():
            await self.brokers_are_seen(node.url, len(self.brokers))

    async def _known_brokers(self, url: str) -> int:
        async with self.http.get(f"{url}/admin/v2/brokers") as answer:
            return len(await answer.json())


@asynccontextmanager
async def a_cluster(connect_string: str, chroot: str, folder: Path) -> AsyncIterator[Cluster]:
    """An empty cluster; nodes and brokers are started by the test."""
    async with AsyncExitStack() as stack:
        cluster = Cluster(stack, connect_string, chroot, folder)
        await cluster.start()
        yield cluster


@dataclass(frozen=True, slots=True)
class Probe:
    """One lookup: when it was asked and answered (monotonic), where, and what came back (status 0: nothing)."""

    asked_s: float
    answered_s: float
    url: str
    topic: str
    status: int
    broker: str


@dataclass(slots=True)
class Prober:
    probes: list[Probe] = field(default_factory=list)

    def failures(self) -> list[Probe]:
        return [probe for probe in self.probes if probe.status != 200]

    def successes(self, asked_after_s: float = 0.0) -> list[Probe]:
        """The lookups asked after that moment and answered with a broker, in the order of their answers."""
        return [probe for probe in self.probes if probe.asked_s > asked_after_s and probe.status == 200]


@asynccontextmanager
async def probing(
    http: aiohttp.ClientSession,
    urls: Sequence[str],
    topic_of: Callable[[int], str],
    *,
    concurrency: int = 2,
    pause_s: float = 0.005,
    timeout_s: float | None = None,
) -> AsyncIterator[Prober]:
    """Meanwhile look up `topic_of(0)`, `topic_of(1)`, ... at the nodes in turn."""
    prober = Prober()
    numbers = iter(range(1_000_000))

    async def probe() -> None:
        while True:
            number = next(numbers)
            url, topic = urls[number % len(urls)], topic_of(number)
            asked_s = time.monotonic()
            status, body = await get_json(http, f"{url}/lookup/v2/topic/persistent/{topic}", timeout_s)
            broker = str(body.get("brokerId", body))
            prober.probes.append(Probe(asked_s, time.monotonic(), url, topic, status, broker))
            await asyncio.sleep(pause_s)

    tasks = [asyncio.create_task(probe()) for _ in range(concurrency)]
    try:
        yield prober
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def topics_of_bundles(state: NamespaceState, count: int | None = None) -> list[str]:
    """One topic, `tenant/namespace/topic`, in each of the first `count` bundles (default: all)."""
    wanted = len(state.bundles) if count is None else count
    found: dict[int, str] = {}
    number = 0
    while len([index for index in found if index < wanted]) < wanted:
        topic = TopicName.of("persistent", state.name.tenant, state.name.local_name, f"t{number}")
        found.setdefault(state.bundles.index_of_topic(str(topic)), f"{state.name}/t{number}")
        number += 1
    return [found[index] for index in range(wanted)]
