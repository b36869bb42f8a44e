"""Two nodes, three fickle brokers and a metadata store on slow lines, all in virtual time; and what must hold of them.

What a broker serves is what it was told to own and has not confirmed to have closed, until its lease ends. Brokers ask
every node about every topic as soon as anything is written, and take old answers as well as new ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from support.fickle_broker import FickleBroker, Manner, serve_yes_man
from support.lm_node import get_json
from support.scripted_broker import overlaps
from support.servers import end_app
from support.slow_store import SlowStore
from support.steps import NAME, MortalNode
from support.virtual_loop import close_port, network, serve
from support.waiting import eventually

from loadmanager.config import Settings, load_settings
from loadmanager.core.diagnosis.invariants import ownership_violations, succession_violations
from loadmanager.core.domain.bundles import NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import BrokerId, TopicName
from loadmanager.core.domain.ownership import NamespaceState, Ownership, OwnershipState, Registration
from loadmanager.http.app import make_app
from loadmanager.leader.node import Node
from loadmanager.store import paths
from loadmanager.store.memory_store import Link, MemoryCluster, MemoryStore
from loadmanager.store.metadata_store import Create, Op
from loadmanager.store.znode_codec import decode
from loadmanager.wire.store_records import decode_namespace, encode_namespace

BUNDLES = 4
BROKERS = 3
UNLOAD_S = 4.0
LOOKUP_S = 3.0
UNLOADS_AT_A_TIME = 2
ANSWERED_S = 2 * LOOKUP_S + 2.0
"""A lookup may wait for a leader, and then for the owner; then comes what slow lines take."""
LATE_S = 2.0
"""What writing takes, and looking for what nobody follows, beside the time in which an owner may let go."""
SETTLED_S = 60.0
_ASK_AGAIN_S = 0.5
_LOOK_UP_AGAIN_S = 0.1
_UNLOADS = 40
_APART_S = 0.05
_ANSWERS = {0, 200, 202, 204, 400, 404, 409, 412, 503, 504}
"""0: the node died over it."""
_LOOKUP_ANSWERS = {0, 200, 503}
_PATH = paths.namespace(str(NAME))
_SETTINGS: dict[str, Any] = {
    "loadBalancerSheddingEnabled": False,
    "unloadAttemptTimeoutMs": 1_000,
    "namespaceBundleUnloadingTimeoutMs": int(UNLOAD_S * 1_000),
    "lookupTimeoutMs": int(LOOKUP_S * 1_000),
    "maxConcurrentUnloads": UNLOADS_AT_A_TIME,
}


class WatchedCluster(MemoryCluster):
    """Looks at every record in the moment in which it is written; `faults` is what was wrong with any.

    `has_confirmed` says whether the owner of a released bundle has ever confirmed that unload.
    """

    def __init__(self, clock: Callable[[], float], has_confirmed: Callable[[str, Ownership], bool]) -> None:
        super().__init__(clock)
        self._has_confirmed = has_confirmed
        self.faults: list[str] = []
        self.released_at_s: dict[tuple[str, int], float] = {}
        self.changed = asyncio.Event()

    @property
    def epoch(self) -> int:
        znode = self.find(paths.EPOCH)
        return -1 if znode is None else znode.version

    def state(self) -> NamespaceState:
        znode = self.find(_PATH)
        assert znode is not None
        return decode_namespace(NAME, decode(znode.data, _PATH), _PATH)

    def apply(self, ops: Sequence[Op], session_id: int) -> list[int]:
        if not any(op.path == _PATH for op in ops):
            return super().apply(ops, session_id)
        before = None if self.find(_PATH) is None else self.state()
        versions = super().apply(ops, session_id)
        self._look(before, self.state())
        self.changed.set()
        return versions

    def _look(self, before: NamespaceState | None, after: NamespaceState) -> None:
        self.faults += ownership_violations(after.bundles.ranges(), after.ownerships)
        if before is not None:
            self.faults += succession_violations(before, after)
            self.faults += [
                f"{new} was written in epoch {self.epoch} by the leader of epoch {new.epoch}"
                for new in set(after.ownerships) - set(before.ownerships)
                if new.epoch != self.epoch
            ]
            self.faults += self._taken_away(before, after)
        released = {
            (name, ownership.version)
            for name, ownership in zip(after.bundle_names(), after.ownerships, strict=True)
            if ownership.state is OwnershipState.RELEASING
        }
        self.released_at_s = {each: self.released_at_s.get(each, self.clock()) for each in released}
        begun = [o for o in after.ownerships if o.state is OwnershipState.RELEASING and o.epoch == self.epoch]
        if len(begun) > UNLOADS_AT_A_TIME:
            self.faults.append(f"{len(begun)} unloads at a time: {begun}")

    def _taken_away(self, before: NamespaceState, after: NamespaceState) -> list[str]:
        """Bundles that have another owner, or none, although theirs lives and has not let go."""
        found = []
        for lower in sorted({*before.bundles.boundaries[:-1], *after.bundles.boundaries[:-1]}):
            index = before.bundles.index_of_hash(lower)
            name, old = before.bundle_name(index), before.ownerships[index]
            new = after.ownerships[after.bundles.index_of_hash(lower)]
            if old.owner != new.owner and self._lives(old.owner):
                is_released = old.state is OwnershipState.RELEASING
                if not is_released or not self._has_confirmed(name, old):
                    found.append(f"{name} was taken from an owner that lives: {old}, then {new}")
        return found

    def _lives(self, owner: Registration | None) -> bool:
        znode = None if owner is None else self.find(paths.broker(owner.broker))
        return owner is not None and znode is not None and znode.czxid == owner.incarnation


class VirtualNode(MortalNode):
    """A node in virtual time."""

    def __init__(self, store: SlowStore, port: int) -> None:
        super().__init__(store)
        self.port = port
        self.store = store

    async def start(self) -> None:
        address = f"127.0.0.1:{self.port}"
        settings = load_settings(Settings, None, _SETTINGS)
        self.node = Node(settings, self.store, address, f"http://{address}", seed=7)
        self._runner = await serve(make_app(self.node), self.port)
        await self.node.start()

    @property
    def memory(self) -> MemoryStore:
        assert isinstance(self.store.inner, MemoryStore)
        return self.store.inner

    async def crash(self) -> None:
        await close_port(self.port)
        await super().crash()


@dataclass(slots=True)
class _Lookup:
    topic: str
    since_s: float
    task: asyncio.Task[tuple[int, dict[str, Any]]]


@dataclass
class FickleFleet:
    """`slowness_s` is the longest that a message of the metadata store takes, and a decision."""

    seed: int
    slowness_s: float
    nodes: list[VirtualNode] = field(default_factory=list)
    brokers: list[FickleBroker] = field(default_factory=list)
    _lookups: list[_Lookup] = field(default_factory=list)
    _under_way: set[asyncio.Task[None]] = field(default_factory=set)
    _led_since_s: dict[int, float] = field(default_factory=dict)
    _undisturbed_since_s: float = 0.0
    _faults: list[str] = field(default_factory=list)
    _late_answers: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def delay_s(self) -> float:
        """Mostly short."""
        return self.slowness_s * self._chance.random() ** 3

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    async def start(self, stack: AsyncExitStack) -> None:
        self.cluster = WatchedCluster(network().time, self._has_confirmed)
        self.http = await stack.enter_async_context(aiohttp.ClientSession())
        stack.push_async_callback(end_app, await serve_yes_man())
        bundles = NamespaceBundles(equal_boundaries(BUNDLES))
        self.topics = _a_topic_in_each(bundles)
        await self._write_record(bundles)
        for number in range(BROKERS):
            broker = FickleBroker(port=9_001 + number, store=await self._connect())
            await stack.enter_async_context(broker)
            await broker.register()
            self.brokers.append(broker)
        for number in range(2):
            self.nodes.append(await self._a_node(8_001 + number))
        stack.push_async_callback(self._stop)
        await eventually(lambda: self.leader is not None)
        for work in (self._keep_asking(), self._keep_looking_up(), self._keep_ticking()):
            stack.push_async_callback(_end, asyncio.create_task(work))

    async def _stop(self) -> None:
        for task in [*self._under_way, *(lookup.task for lookup in self._lookups)]:
            await _end(task)
        for node in self.nodes:
            await node.stop()

    async def crash(self) -> None:
        """After a run that failed: whatever goes on ends, and so do the nodes, in no good order."""
        going_on = asyncio.all_tasks() - {asyncio.current_task()}
        for task in going_on:
            task.cancel()
        await asyncio.wait(going_on, timeout=SETTLED_S)
        for node in self.nodes:
            await node.crash()

    def _has_confirmed(self, bundle: str, released: Ownership) -> bool:
        return any(
            (call.bundle, call.version, call.status) == (bundle, released.version, 204)
            for broker in self.brokers
            if released.owner is not None and broker.broker_id == released.owner.broker
            for call in broker.unloads
        )

    async def _connect(self) -> MemoryStore:
        store = MemoryStore(self.cluster)
        await store.start()
        return store

    async def _a_node(self, port: int) -> VirtualNode:
        node = VirtualNode(SlowStore(await self._connect(), self.delay_s), port)
        await node.start()
        return node

    async def _write_record(self, bundles: NamespaceBundles) -> None:
        store = await self._connect()
        await store.ensure_path(_PATH.rpartition("/")[0])
        await store.commit([Create(_PATH, encode_namespace(NamespaceState.unowned(NAME, bundles)))])

    @property
    def leader(self) -> VirtualNode | None:
        return next((node for node in self.nodes if node.node.leading.is_set() and node.node.election.term), None)

    # What clients and operators do

    def look_up(self, node: int, *topics: int) -> None:
        for topic in topics or range(len(self.topics)):
            self._look_up(node, self.topics[topic])

    async def _keep_ticking(self) -> None:
        """Sessions expire although no client asks for anything."""
        while True:
            self.cluster.tick()
            await asyncio.sleep(1.0)

    async def _keep_looking_up(self) -> None:
        """Clients look their topics up as soon as they are served no more."""
        while True:
            await asyncio.sleep(_LOOK_UP_AGAIN_S)
            waited_for = {lookup.topic for lookup in self._lookups if not lookup.task.done()}
            for topic in self.topics:
                if topic not in waited_for and not any(broker.serves_topic(topic) for broker in self.brokers):
                    self._look_up(self._chance.randrange(2), topic)

    def _look_up(self, node: int, name: str) -> None:
        url = f"{self._url(node)}/lookup/v2/topic/persistent/{name}"
        task = asyncio.ensure_future(get_json(self.http, url, 10 * ANSWERED_S))
        self._lookups.append(_Lookup(name, network().time(), task))

    def ask(self, node: int, method: str, path: str, body: object = None) -> None:
        """Have a node do something; what comes of it comes when it comes."""
        self._keep(self._ask(f"{self._url(node)}{path}", method, body))

    def unload_all_the_time(self, node: int) -> None:
        """Have a node unload one bundle after the other for a while, whatever becomes of it."""

        async def go() -> None:
            for number in range(_UNLOADS):
                self.ask(node, "PUT", f"/admin/v2/namespaces/{self.bundle(number)}/unload")
                await asyncio.sleep(_APART_S)

        self._keep(go())

    def bundle(self, number: int) -> str:
        """One of the bundles that there are now."""
        names = self.cluster.state().bundle_names()
        return names[number % len(names)]

    def _url(self, node: int) -> str:
        return self.nodes[node % len(self.nodes)].url

    async def _ask(self, url: str, method: str, body: object) -> None:
        status, said = 0, ""
        with contextlib.suppress(aiohttp.ClientError):
            async with self.http.request(method, url, json=body, timeout=aiohttp.ClientTimeout(SETTLED_S)) as answer:
                status, said = answer.status, await answer.text()
        if status not in _ANSWERS:
            self._faults.append(f"{method} {url} was answered {status}: {said}")

    # What befalls brokers

    async def restart_broker(self, number: int) -> None:
        broker = self.brokers[number]
        if broker.incarnation and self._link(broker) is Link.UP:
            await broker.register_again()

    async def kill_broker(self, number: int, for_s: float) -> None:
        broker = self.brokers[number]
        if broker.incarnation:
            self.cluster.end_session(_memory(broker).session_id)
            await broker.die()
            self._later(for_s, lambda: self._revive_broker(number))

    async def _revive_broker(self, number: int) -> None:
        """Start it again, or connect it again, if that is what it needs; its session may have ended meanwhile."""
        broker = self.brokers[number]
        broker._check_lease()
        if not broker.incarnation:
            await broker.start()
            broker.store = await self._connect()
            await broker.register()
        elif self._link(broker) is not Link.UP:
            store = _memory(broker)
            session_id = store.session_id
            self.cluster.heal(store)
            if store.session_id != session_id:
                broker._end_life()
                await broker.register()

    def cut_broker_off(self, number: int, for_s: float) -> None:
        broker = self.brokers[number]
        if broker.incarnation and self._link(broker) is Link.UP:
            broker._check_lease()
            self.cluster.partition(_memory(broker))
            self._later(for_s, lambda: self._revive_broker(number))

    async def report(self, number: int, cpu_percent: float) -> None:
        broker = self.brokers[number]
        if broker.incarnation and self._link(broker) is Link.UP:
            await broker.report(cpu_percent, {})

    def _link(self, broker: FickleBroker) -> Link:
        return _memory(broker).link

    # What befalls nodes

    async def replace_leader(self) -> None:
        """The leader is killed; its place is taken by another node, once its session is known to be over or before."""
        leader = self.leader
        if leader is not None:
            self.nodes.remove(leader)
            await leader.crash()
            if leader.memory.link is Link.UP:
                self.cluster.partition(leader.memory, noticed=False)
            self.nodes.append(await self._a_node(max(node.port for node in [*self.nodes, leader]) + 1))

    def cut_leader_off(self, for_s: float, *, noticed: bool) -> None:
        if self.leader is not None and self.leader.memory.link is Link.UP:
            self.cluster.partition(self.leader.memory, noticed=noticed)
            self._later(for_s, self._reconnect_nodes)

    def lose_answer(self, for_s: float) -> None:
        """The leader's next write is done, its answer lost, and so is the connection."""
        if self.leader is not None and self.leader.memory.link is Link.UP:
            self.cluster.lose_answer(self.leader.memory)
            self._later(for_s, self._reconnect_nodes)

    def expire_leader(self) -> None:
        if self.leader is not None and self.leader.memory.link is Link.UP:
            self.cluster.expire(self.leader.memory)
            self._undisturbed_since_s = network().time()

    async def _reconnect_nodes(self) -> None:
        for node in self.nodes:
            if node.memory.link is not Link.UP:
                self.cluster.heal(node.memory)
                self._undisturbed_since_s = network().time()

    async def depose_leader(self) -> None:
        """The leader's port refuses connections for a while: the standby takes over from a leader that is alive."""
        leader = self.leader
        if leader is not None:
            server = network().servers.pop(leader.port)
            await asyncio.sleep(0.5)
            network().servers[leader.port] = server

    def _later(self, after_s: float, act: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def go() -> None:
            await asyncio.sleep(after_s)
            await act()

        self._keep(go())

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._faults.append(f"{task.exception()!r}")

    # What must hold

    def check(self) -> None:
        now_s = network().time()
        self.cluster.tick()
        for broker in self.brokers:
            broker._check_lease()
        faults = [*self.cluster.faults, *self._faults, *map(str, overlaps(self.brokers))]
        faults += [f"task of {node.url} ended: {node.node.failure}" for node in self.nodes if node.node.failure.done()]
        faults += self._overdue(now_s)
        faults += self._bad_lookups(now_s)
        assert not faults, "\n".join(faults)

    def _overdue(self, now_s: float) -> list[str]:
        """Releases that are older than they may be, under one leader that nothing befell."""
        led_since_s = self._led_since_s.get(self.cluster.epoch, now_s)
        if self.leader is None or any(node.memory.link is not Link.UP for node in self.nodes):
            self._undisturbed_since_s = now_s
        return [
            f"{name} at version {version} has been released for {now_s - since_s:.1f} s"
            for (name, version), since_s in self.cluster.released_at_s.items()
            if now_s - max(since_s, led_since_s, self._undisturbed_since_s) > UNLOAD_S + LATE_S
        ]

    def _bad_lookups(self, now_s: float) -> list[str]:
        waiting = [lookup for lookup in self._lookups if not lookup.task.done()]
        done = [lookup.task.result() for lookup in self._lookups if lookup.task.done()]
        self._lookups = waiting
        known = {broker.broker_id for broker in self.brokers}
        return [
            *(f"the lookup of {each.topic} waits" for each in waiting if now_s - each.since_s > ANSWERED_S),
            *(f"a lookup was answered {status}: {said}" for status, said in done if status not in _LOOKUP_ANSWERS),
            *(f"no owner: {said}" for status, said in done if status == 200 and said.get("brokerId") not in known),
        ]

    async def settles(self) -> None:
        """Everything is well again: within a while every topic is found at a broker that serves it."""
        await self._reconnect_nodes()
        for number, broker in enumerate(self.brokers):
            broker.manner = Manner.OBEYS
            await self._revive_broker(number)
        await eventually(lambda: self.leader is not None)
        for broker in self.brokers:
            self.ask(0, "DELETE", f"/loadbalance/v1/brokers/{broker.broker_id}/drain")
        await eventually(lambda: not self._under_way, "every request is answered")
        await eventually(self._is_served, "every topic is found at a broker that serves it")
        self.check()

    async def _is_served(self) -> bool:
        state = self.cluster.state()
        living = {Registration(BrokerId(each.broker_id), each.incarnation) for each in self.brokers}
        if any(o.state is OwnershipState.RELEASING or o.owner not in living | {None} for o in state.ownerships):
            return False
        for topic in self.topics:
            _, answer = await get_json(self.http, f"{self.nodes[0].url}/lookup/v2/topic/persistent/{topic}", SETTLED_S)
            owners = [broker for broker in self.brokers if broker.broker_id == answer.get("brokerId")]
            if not any(owner.serves_topic(topic) for owner in owners):
                return False
        return True

    # What brokers do by themselves

    async def _keep_asking(self) -> None:
        while True:
            self.cluster.changed.clear()
            await asyncio.gather(*(self._offer(node.url, topic) for node in self.nodes for topic in self.topics))
            leader = self.leader
            if leader is not None:
                self._led_since_s.setdefault(leader.node.election.get_term().epoch, network().time())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ASK_AGAIN_S):
                    await self.cluster.changed.wait()

    async def _offer(self, url: str, topic: str) -> None:
        status, answer = await get_json(self.http, f"{url}/loadbalance/v1/ownership/persistent/{topic}")
        late = self._late_answers.get((url, topic))
        for broker in self.brokers:
            broker._check_lease()
            for each in (answer if status == 200 else None, late):
                if each and broker.incarnation:
                    broker.offer(topic, each)
        if status == 200:
            self._late_answers[url, topic] = answer


def _a_topic_in_each(bundles: NamespaceBundles) -> list[str]:
    found: dict[int, str] = {}
    for number in range(100):
        topic = TopicName.of("persistent", NAME.tenant, NAME.local_name, f"t{number}")
        found.setdefault(bundles.index_of_topic(str(topic)), f"{NAME}/t{number}")
    return list(found.values())


def _memory(broker: FickleBroker) -> MemoryStore:
    assert isinstance(broker.store, MemoryStore)
    return broker.store


async def _end(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
