"""An operation that is held at one of its steps, on two nodes inside the test, so that somebody can die there.

The steps are the moments between which nothing but the network and the metadata store is at work: before a record is
written and after it is, when a broker's agent is called and when it is about to answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import aiohttp
from aiohttp import web
from support.delays import a_memory_cluster
from support.history import History, recording
from support.invariants import ownership_violations
from support.lm_node import get_json
from support.memory_store import Link, MemoryStore
from support.scripted_broker import ScriptedBroker, asking, overlaps
from support.servers import end_app, listen, serve_app
from support.stores import MemoryWorld, StoreWorld
from support.waiting import eventually, patience

from loadmanager.config.node_settings import Settings
from loadmanager.config.settings_loader import load_settings
from loadmanager.core.domain.bundles import NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import BrokerId, NamespaceName, TopicName
from loadmanager.core.domain.ownership import (
    FREE,
    NamespaceState,
    Ownership,
    OwnershipState,
    Registration,
    succession_violations,
)
from loadmanager.errors import StoreUnavailableError
from loadmanager.http.app import make_app
from loadmanager.leader.execution import executor
from loadmanager.leader.node import Node
from loadmanager.store import paths
from loadmanager.store.metadata_store import Create, MetadataStore, Op, Put
from loadmanager.store.znode_codec import decode
from loadmanager.wire.store_records import decode_namespace, encode_namespace

UNLOAD = ("write 1 ready", "write 1 committed", "unload asked", "unload obeyed", "write 2 ready", "write 2 committed")
STEPS: Mapping[str, Sequence[str]] = {
    "split": ("topics asked", "topics named", "write 1 ready", "write 1 committed", "boundaries told"),
    "unload": UNLOAD,
    "transfer": ("topics asked", "topics named", *UNLOAD),
    "merge": ("write 1 ready", "write 1 committed", "boundaries told"),
}
"""The steps of each operation; a test proves that there are no others."""

NAME = NamespaceName.of("tenant", "ns")
_SETTINGS: dict[str, Any] = {
    "loadBalancerSheddingEnabled": False,
    "namespaceBundleUnloadingTimeoutMs": 8_000,
}
_REQUESTS = {
    "split": ("PUT", "/admin/v2/namespaces/{bundle}/split?splitAlgorithmName=topic_count_equally_divide"),
    "unload": ("PUT", "/admin/v2/namespaces/{bundle}/unload"),
    "transfer": ("PUT", "/admin/v2/namespaces/{bundle}/unload?destinationBroker={destination}"),
    "merge": ("POST", "/loadbalance/v1/bundles/{bundle}/merge"),
}


class Steps:
    """The steps that were reached, in their order. One of them can be held: then nothing goes on there."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self._held = ""
        self._reached = asyncio.Event()
        self._may_go_on = asyncio.Event()

    def hold(self, step: str) -> None:
        self._held = step

    async def at(self, step: str) -> None:
        self.log.append(step)
        if step == self._held and not self._reached.is_set():
            self._reached.set()
            await self._may_go_on.wait()

    async def reached(self) -> None:
        """Wait until the operation is held."""
        async with asyncio.timeout(patience()):
            await self._reached.wait()

    def go_on(self) -> None:
        self._may_go_on.set()


class MortalStore:
    """A session that tells `steps` of each write of a namespace's record; once it is dead it takes no request."""

    def __init__(self, store: MetadataStore, steps: Steps) -> None:
        self.is_dead = False
        self.inner = store
        self._steps = steps
        self._writes = 0

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a store has
        return getattr(self.inner, name)

    async def commit(self, ops: Sequence[Op], *, session_id: int | None = None) -> list[int]:
        if not any(isinstance(op, Put) and op.path == paths.namespace(str(NAME)) for op in ops):
            return await self._commit(ops, session_id)
        self._writes += 1
        number = self._writes
        await self._steps.at(f"write {number} ready")
        versions = await self._commit(ops, session_id)
        await self._steps.at(f"write {number} committed")
        return versions

    async def _commit(self, ops: Sequence[Op], session_id: int | None) -> list[int]:
        if self.is_dead:
            raise StoreUnavailableError("this process is dead")
        return await self.inner.commit(ops, session_id=session_id)


class MortalNode:
    """A node and its port, which may end as a process does that is killed."""

    def __init__(self, store: MortalStore) -> None:
        self._store = store

    async def start(self) -> None:
        listener = listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        settings = load_settings(Settings, None, _SETTINGS)
        self.node = Node(settings, self._store, address, f"http://{address}", seed=7)
        self._runner: web.AppRunner = await serve_app(make_app(self.node), listener)
        await self.node.start()

    @property
    def url(self) -> str:
        return self.node.service_url

    @property
    def session(self) -> MetadataStore:
        """The node's session with the metadata store, to be broken."""
        return self._store.inner

    async def stop(self) -> None:
        if not self._store.is_dead:
            await self.node.stop()
            await end_app(self._runner)

    async def crash(self) -> None:
        """Stop all running operations, close the port, and send no more heartbeats, so that the session expires.

        A standby that has not heard the leader before does not suspect it: it waits for the session.
        """
        self._store.is_dead = True
        assert isinstance(self.session, MemoryStore)
        self.session.link_changed(Link.SILENT)
        for task in list(self.node._tasks):
            task.cancel()
        await end_app(self._runner)
        await self.node.reshaper.abort()
        await self.node.executor.abort()
        await self.node.agents.close()


@dataclass(slots=True)
class SteppedCluster:
    """`source` owns the two lowest of four bundles, `bystander` the third; nobody the last.

    `topics` are asked for by the brokers all the while: `subjects` in the lowest bundle, the others in the next two.
    """

    steps: Steps
    leader: MortalNode
    standby: MortalNode
    source: ScriptedBroker
    destination: ScriptedBroker
    bystander: ScriptedBroker
    subjects: list[str]
    uninvolved: str
    history: History
    http: aiohttp.ClientSession
    witness: MetadataStore

    @property
    def brokers(self) -> list[ScriptedBroker]:
        return [self.source, self.destination, self.bystander]

    async def state(self) -> NamespaceState:
        """The record as it is stored now."""
        path = paths.namespace(str(NAME))
        await self.witness.sync()
        znode = await self.witness.get(path)
        assert znode is not None
        return decode_namespace(NAME, decode(znode.data, path), path)

    async def act(self, operation: str) -> int:
        """Ask the leader for the operation, on the lowest bundle; the answer's status, 0 when there was none."""
        method, path = _REQUESTS[operation]
        bundle = f"{NAME}/{NamespaceBundles(equal_boundaries(4)).range_at(0)}"
        url = self.leader.url + path.format(bundle=bundle, destination=self.destination.broker_id)
        try:
            async with self.http.request(method, url, timeout=aiohttp.ClientTimeout(total=patience())) as answer:
                return answer.status
        except aiohttp.ClientError:
            return 0

    async def settled(self) -> NamespaceState:
        """Wait until nothing is under way, every owner lives, and clients find who serves them."""
        found: list[NamespaceState] = []

        async def is_settled() -> bool:
            with contextlib.suppress(StoreUnavailableError):
                found[:] = [await self.state()]
                return _is_quiet(found[0], self.brokers) and all([await self._is_found(t) for t in self.subjects])
            return False

        await eventually(is_settled, "the operation is completed or undone")
        return await self.state()

    async def _is_found(self, topic: str) -> bool:
        status, answer = await get_json(self.http, f"{self.standby.url}/lookup/v2/topic/persistent/{topic}", 2.0)
        owners = [broker for broker in self.brokers if broker.broker_id == answer.get("brokerId")]
        return status == 200 and bool(owners) and owners[0].serves_topic(topic)

    def violations(self) -> list[str]:
        """Invalid records, and topics served by two brokers at a time."""
        states = [moment.state for moment in self.history.moments]
        found = [text for state in states for text in ownership_violations(state.bundles.ranges(), state.ownerships)]
        found += [text for before, after in pairwise(states) for text in succession_violations(before, after)]
        return [*found, *map(str, overlaps(self.brokers))]


def _is_quiet(state: NamespaceState, brokers: Sequence[ScriptedBroker]) -> bool:
    living = {Registration(BrokerId(each.broker_id), each.incarnation) for each in brokers if each.incarnation}
    return all(
        ownership.state is not OwnershipState.RELEASING and (ownership.owner is None or ownership.owner in living)
        for ownership in state.ownerships
    )


def in_memory() -> MemoryWorld:
    """A metadata store in memory, on the clock that nodes look at."""
    return MemoryWorld(a_memory_cluster())


@asynccontextmanager
async def a_stepped_cluster(world: StoreWorld) -> AsyncIterator[SteppedCluster]:
    async with AsyncExitStack() as stack:
        stack.enter_context(patch.object(executor, "PREPARE_S", 60.0))
        stack.push_async_callback(world.close)
        steps, witness = Steps(), await world.connect()
        source, destination, bystander = [await _a_broker(stack, world, steps) for _ in range(3)]
        await _write_record(witness, source, bystander)
        leader, standby = [await _a_node(stack, world, steps) for _ in range(2)]
        http = await stack.enter_async_context(aiohttp.ClientSession())
        history = await stack.enter_async_context(recording(witness, str(NAME)))
        subjects, neighbour, uninvolved = _topics()
        cluster = SteppedCluster(
            steps, leader, standby, source, destination, bystander, subjects, uninvolved, history, http, witness
        )
        topics = [*subjects, neighbour, uninvolved]
        await stack.enter_async_context(asking(http, cluster.brokers, [leader.url, standby.url], topics))
        await eventually(lambda: all(source.serves_topic(topic) for topic in [*subjects, neighbour]))
        await eventually(lambda: bystander.serves_topic(uninvolved))
        yield cluster
        steps.go_on()


async def _a_node(stack: AsyncExitStack, world: StoreWorld, steps: Steps) -> MortalNode:
    """A node that has read the cluster; the first one leads."""
    node = MortalNode(MortalStore(await world.connect(), steps))
    await node.start()
    stack.push_async_callback(node.stop)
    await eventually(lambda: node.node.mirror.leader is not None)
    return node


async def _a_broker(stack: AsyncExitStack, world: StoreWorld, steps: Steps) -> ScriptedBroker:
    broker = ScriptedBroker(store=await world.connect(), at=steps.at)
    await stack.enter_async_context(broker)
    await broker.register()
    return broker


async def _write_record(store: MetadataStore, source: ScriptedBroker, bystander: ScriptedBroker) -> None:
    owners = [Registration(BrokerId(each.broker_id), each.incarnation) for each in (source, source, bystander)]
    owned = [Ownership(OwnershipState.OWNED, owner, version=1) for owner in owners]
    state = NamespaceState(NAME, NamespaceBundles(equal_boundaries(4)), (*owned, FREE))
    path = paths.namespace(str(NAME))
    await store.ensure_path(path.rpartition("/")[0])
    await store.commit([Create(path, encode_namespace(state))])


def _topics() -> tuple[list[str], str, str]:
    """Two topics in the lowest bundle, so that it can be split between them, and one in each of the next two."""
    bundles = NamespaceBundles(equal_boundaries(4))
    found: dict[int, list[str]] = {index: [] for index in range(4)}
    for number in range(100):
        topic = TopicName.of("persistent", NAME.tenant, NAME.local_name, f"t{number}")
        found[bundles.index_of_topic(str(topic))].append(f"{NAME}/t{number}")
    return found[0][:2], found[1][0], found[2][0]
