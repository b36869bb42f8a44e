"""A broker with its agent in one, inside the test: it keeps the contract by a rule of its own, and writes down when.

What a broker serves is what counts for "a bundle never has two owners", whatever records and nodes say. So this one is
as eager as the contract allows: it takes the word of any node, stale or not, and serves until it is told otherwise or
its lease ends. It goes by topics, so that bundles may change their shape. It shares no code with the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web
from support.lm_node import get_json
from support.servers import LoopbackServer

from loadmanager.core.domain.bundles import HashFunction, topic_hash
from loadmanager.core.domain.names import BundleName
from loadmanager.store import paths
from loadmanager.store.metadata_store import Create, Delete, MetadataStore, Put
from loadmanager.util.clock import now_s
from loadmanager.wire.broker_data import (
    AGENT_PROTOCOL,
    LocalBrokerData,
    NamespaceBundleStats,
    encode_local_broker_data,
)
from loadmanager.wire.http_bodies import (
    BUNDLE_VERSION_HEADER,
    EPOCH_HEADER,
    OWNER_HEADER,
    OpenTopic,
    TopicsAnswer,
)

Moment = Callable[[str], Awaitable[None]]
"""Called when something is about to happen, with what; it happens once this returns."""


@dataclass(slots=True)
class Serving:
    """Period (monotonic) in which a broker may have served a topic of `bundle`; `until_s` is None while it may."""

    broker: str
    topic: str
    bundle: str
    version: int
    since_s: float
    until_s: float | None = None


@dataclass(slots=True)
class UnloadCall:
    """An unload as it arrived; `status` is None until it is answered."""

    bundle: str
    epoch: int
    version: int
    arrived_s: float
    status: int | None = None


@dataclass(slots=True)
class ScriptedBroker(LoopbackServer):
    """Registers itself through `store`; its id is its own address. `servings` and `unloads` are its event_log."""

    store: MetadataStore | None = None
    incarnation: int = 0
    servings: list[Serving] = field(default_factory=list)
    unloads: list[UnloadCall] = field(default_factory=list)
    may_obey: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared: an unload is taken, nothing is closed and nothing answered."""
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared: an unload is obeyed, and its answer held back."""
    unload_status: int = 204
    """With another status, unloads are answered with it and not obeyed."""
    at: Moment = field(default=lambda _: asyncio.sleep(0))
    """Called when each call arrives, and again before it is answered."""
    _fences: list[tuple[BundleName, int]] = field(default_factory=list)
    _highest_epoch: int = 0
    _trusted_until_s: float = 0.0

    def __post_init__(self) -> None:
        self.may_obey.set()
        self.may_answer.set()

    @property
    def broker_id(self) -> str:
        return f"127.0.0.1:{self.port}"

    def routes(self) -> list[web.RouteDef]:
        return [
            web.put("/admin/v2/namespaces/{tenant}/{namespace}/{range}/unload", self._unload),
            web.get("/loadmanager/v1/topics", self._name_topics),
            web.put("/loadmanager/v1/namespaces/{tenant}/{namespace}/bundles", self._take_boundaries),
        ]

    # Membership

    async def register(self, cpu_percent: float = 1.0) -> None:
        """Appear in the cluster as a new incarnation."""
        store = self._get_store()
        path = paths.broker(self.broker_id)
        await store.ensure_path(paths.BROKERS)
        await store.commit([Create(path, encode_local_broker_data(self.record(cpu_percent)), ephemeral=True)])
        znode = await store.get(path)
        assert znode is not None
        self.incarnation = znode.czxid
        self._fences.clear()
        self._highest_epoch = 0

    async def leave(self) -> None:
        """Stop in good order: whatever was served is closed before the registration ends."""
        self._end_life()
        await self._get_store().commit([Delete(paths.broker(self.broker_id))])

    async def register_again(self) -> None:
        """Restart under the same id."""
        await self.leave()
        await self.register()

    def record(self, cpu_percent: float, stats: Mapping[str, NamespaceBundleStats] | None = None) -> LocalBrokerData:
        url = f"http://{self.broker_id}"
        return LocalBrokerData(
            brokerId=self.broker_id,
            webServiceUrl=url,
            pulsarServiceUrl=f"pulsar://{self.broker_id}",
            cpu={"usage": cpu_percent, "limit": 100.0},
            lastStats=dict(stats or {}),
            numBundles=len(stats or {}),
            msgThroughputIn=sum(each.get("msgThroughputIn", 0.0) for each in (stats or {}).values()),
            msgThroughputOut=sum(each.get("msgThroughputOut", 0.0) for each in (stats or {}).values()),
            lastUpdate=time.time_ns() // 1_000_000,
            protocols={AGENT_PROTOCOL: url},
        )

    async def report(self, cpu_percent: float, stats: Mapping[str, NamespaceBundleStats]) -> None:
        """Publish a load report."""
        await self.publish(encode_local_broker_data(self.record(cpu_percent, stats)))

    async def publish(self, data: bytes) -> None:
        """Write any bytes as its own record."""
        await self._get_store().commit([Put(paths.broker(self.broker_id), data)])

    async def die(self) -> None:
        """End as a killed process whose session the servers have just ended: it serves nothing, then it is gone."""
        self._end_life()
        await self.stop()
        await self._get_store().close()

    # Serving

    def serving_now(self) -> list[Serving]:
        return [serving for serving in self.servings if serving.until_s is None]

    def serves(self, bundle: str) -> bool:
        self._check_lease()
        return any(serving.bundle == bundle for serving in self.serving_now())

    def serves_topic(self, topic: str) -> bool:
        self._check_lease()
        return any(serving.topic == topic for serving in self.serving_now())

    def offer(self, topic: str, answer: Mapping[str, object]) -> bool:
        """Take a node's answer to the ownership question; whether it lets this broker serve the topic."""
        self._check_lease()
        bundle, version = str(answer["bundle"]), int(str(answer["version"]))
        mine = answer.get("owner") == self.broker_id and answer.get("incarnation") == self.incarnation
        if answer["state"] != "Owned" or not mine or version <= self._fence(topic):
            return False
        if now_s() >= self._get_store().lease_valid_until_s:
            return False
        held = [serving for serving in self.serving_now() if serving.topic == topic]
        if not held:
            self.servings.append(Serving(self.broker_id, topic, bundle, version, time.monotonic()))
        elif version > held[0].version:
            held[0].bundle, held[0].version = bundle, version
        return True

    def _fence(self, topic: str) -> int:
        """The highest version at which the topic was taken away."""
        return max((version for bundle, version in self._fences if _is_in(topic, bundle)), default=-1)

    def _check_lease(self) -> None:
        """Serving ends with the lease, at that very moment, whenever it is noticed."""
        now_s, lease_until_s = time.monotonic(), self._get_store().lease_valid_until_s
        if now_s < lease_until_s:
            self._trusted_until_s = lease_until_s
            return
        for serving in self.serving_now():
            serving.until_s = max(serving.since_s, min(now_s, self._trusted_until_s))

    def _end_life(self) -> None:
        """Serve nothing, and take nothing more on the word of an answer about this life."""
        self.incarnation = 0
        self._close(self.serving_now())

    def _close(self, servings: Iterable[Serving]) -> None:
        for serving in servings:
            serving.until_s = time.monotonic()

    async def _unload(self, request: web.Request) -> web.Response:
        names = request.match_info
        call = UnloadCall(
            f"{names['tenant']}/{names['namespace']}/{names['range']}",
            int(request.headers[EPOCH_HEADER]),
            int(request.headers[BUNDLE_VERSION_HEADER]),
            time.monotonic(),
        )
        assert request.headers[OWNER_HEADER] == self.broker_id
        self.unloads.append(call)
        await self.at("unload asked")
        call.status = await self._obey(call)
        await self.at("unload obeyed")
        await self.may_answer.wait()
        return web.json_response({"reason": "scripted"}, status=call.status) if call.status != 204 else _no_content()

    async def _obey(self, call: UnloadCall) -> int:
        if self.unload_status != 204:
            return self.unload_status
        if self._is_stale(call):
            return 412
        bundle = BundleName.parse(call.bundle)
        self._fences.append((bundle, call.version))
        await self.may_obey.wait()
        if self._is_stale(call):
            return 412
        self._close(s for s in self.serving_now() if _is_in(s.topic, bundle) and s.version <= call.version)
        return 204

    def _is_stale(self, call: UnloadCall) -> bool:
        """An epoch below the highest seen, or a version below the one granted since."""
        if call.epoch < self._highest_epoch:
            return True
        self._highest_epoch = call.epoch
        bundle = BundleName.parse(call.bundle)
        return any(_is_in(s.topic, bundle) and s.version > call.version for s in self.serving_now())

    async def _name_topics(self, request: web.Request) -> web.Response:
        await self.at("topics asked")
        bundle = BundleName.parse(request.query["bundle"])
        topics = [s.topic for s in self.serving_now() if _is_in(s.topic, bundle)]
        named = [OpenTopic(topic=f"persistent://{each}", hash=_hash_of(each)) for each in sorted(topics)]
        await self.at("topics named")
        return web.Response(body=TopicsAnswer(bundle=str(bundle), topics=named).to_json(), content_type=_JSON)

    async def _take_boundaries(self, _: web.Request) -> web.Response:
        await self.at("boundaries told")
        return _no_content()

    def _get_store(self) -> MetadataStore:
        assert self.store is not None
        return self.store


async def leave_together(brokers: Sequence[ScriptedBroker]) -> None:
    """Have brokers of one session leave in the same moment."""
    for broker in brokers:
        broker._end_life()
    await brokers[0]._get_store().commit([Delete(paths.broker(broker.broker_id)) for broker in brokers])


def _no_content() -> web.Response:
    return web.Response(status=204)


def _hash_of(topic: str) -> int:
    return topic_hash(f"persistent://{topic}", HashFunction.MURMUR3_32)


def _is_in(topic: str, bundle: BundleName) -> bool:
    return topic.rpartition("/")[0] == str(bundle.namespace) and _hash_of(topic) in bundle.range


def overlaps(brokers: Iterable[ScriptedBroker]) -> list[tuple[Serving, Serving]]:
    """Pairs of different lives that may have served one topic at one time: there must be none."""
    by_topic: dict[str, list[Serving]] = defaultdict(list)
    for broker in brokers:
        for serving in broker.servings:
            by_topic[serving.topic].append(serving)
    found = []
    for servings in by_topic.values():
        servings.sort(key=lambda serving: serving.since_s)
        latest: Serving | None = None
        for serving in servings:
            if latest is not None and (latest.until_s is None or serving.since_s < latest.until_s):
                found.append((latest, serving))
            if latest is None or latest.until_s is None or (serving.until_s or float("inf")) > latest.until_s:
                latest = serving
    return found


@asynccontextmanager
async def asking(
    http: aiohttp.ClientSession, brokers: Iterable[ScriptedBroker], node_urls: Iterable[str], topics: Iterable[str]
) -> AsyncIterator[None]:
    """Meanwhile the brokers ask every node about every topic, again and again, and take what they are offered.

    Topics are `tenant/namespace/topic`. An answer is offered to all brokers, whoever asked, and again later, so that
    it arrives as late as it could.
    """

    async def ask(url: str, topic: str) -> None:
        late: dict[str, object] = {}
        while True:
            status, answer = await get_json(http, f"{url}/loadbalance/v1/ownership/persistent/{topic}")
            for broker in brokers:
                if status == 200:
                    broker.offer(topic, answer)
                if late:
                    broker.offer(topic, late)
            late = answer if status == 200 else {}
            await asyncio.sleep(_ASK_AGAIN_S)

    brokers, topics = list(brokers), list(topics)
    tasks = [asyncio.create_task(ask(url, topic)) for url in node_urls for topic in topics]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
        ended = [task for task in tasks if not task.cancelled()]
        assert not ended, f"an asking task ended: {[task.exception() for task in ended]}"


_ASK_AGAIN_S = 0.02
_JSON = "application/json"
