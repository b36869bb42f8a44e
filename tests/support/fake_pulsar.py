"""A Pulsar for tests: its REST and its znodes, as brokers of 4.0.1 under ModularLoadManagerImpl were seen to answer.

Each broker is an HTTP server on a loopback address of its own, with a session of its own in the metadata store. Nothing
happens by itself: no report is written, nothing is balanced and nobody looks anything up unless a test says so.

    async with FakePulsar(world, brokers=3) as pulsar:
        first, second, third = pulsar.brokers
        await pulsar.add_namespace("lm/bench", bundles=16, owners=[first.broker_id])
        pulsar.load("lm/bench/0x00000000_0x10000000", rate=200.0)
        await pulsar.report()
        pulsar.faults.refuse("/unload", 500)

An unload with a destination goes from the broker that is asked to the leader, which remembers the destination, in
memory alone, and on to the owner without it. The owner deletes the bundle's znode. The next lookup that reaches the
leader has it placed there.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import orjson
from aiohttp import web
from support.fake_pulsar_rest import Asked, Door, Faults, Rest
from support.registrations import write
from support.servers import end_app, serve_app
from support.stores import StoreWorld

from loadmanager.core.domain.bundles import HashFunction, NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import BrokerId, NamespaceName
from loadmanager.store.metadata_store import Create, Delete, MetadataStore, Put

IMPL = "org.apache.pulsar.broker.loadbalance.impl"
EXTENSIBLE = "org.apache.pulsar.broker.loadbalance.extensions.ExtensibleLoadManagerImpl"
VERSION = "4.0.1"

SETTINGS: Mapping[str, str] = {
    "metadataStoreSessionTimeoutMillis": "30000",
    "bindAddress": "0.0.0.0",
    "brokerClientAuthenticationParameters": "token:secret",
    "superUserRoles": "[]",
    "loadBalancerEnabled": "true",
    "loadManagerClassName": f"{IMPL}.ModularLoadManagerImpl",
    "loadBalancerLoadSheddingStrategy": f"{IMPL}.ThresholdShedder",
    "loadBalancerLoadPlacementStrategy": f"{IMPL}.LeastLongTermMessageRate",
    "loadBalancerSheddingEnabled": "true",
    "loadBalancerAutoBundleSplitEnabled": "true",
    "loadBalancerAutoUnloadSplitBundlesEnabled": "true",
    "loadBalancerSheddingIntervalMinutes": "1",
    "loadBalancerSheddingGracePeriodMinutes": "30",
    "loadBalancerSheddingExcludedNamespaces": "[]",
    "supportedNamespaceBundleSplitAlgorithms": (
        "[range_equally_divide, topic_count_equally_divide, specified_positions_divide, flow_or_qps_equally_divide]"
    ),
    "loadBalancerBrokerThresholdShedderPercentage": "10",
    "loadBalancerBandwithInResourceWeight": "1.0",
    "loadBalancerBandwidthInResourceWeight": "1.0",
    "loadBalancerReportUpdateMaxIntervalMinutes": "15",
    "loadBalancerOverrideBrokerNicSpeedGbps": "Optional.empty",
    "loadBalancerPlacementStrategy": "",
    "loadBalancerBundleUnloadMinThroughputThreshold": "10.0",
    "namespaceBundleUnloadingTimeoutMs": "60000",
    "preferLaterVersions": "false",
}
"""Runtime configuration of a broker, without most of its 528 keys."""

_FIRST_HOST = 21
_JSON = "application/json"


_TOTALS = ("msgThroughputIn", "msgThroughputOut", "msgRateIn", "msgRateOut")
_NO_AVERAGES = {
    f"{term}Term{key}": 0.0
    for term in ("short", "long")
    for key in ("MsgThroughputIn", "MsgThroughputOut", "MsgRateIn", "MsgRateOut")
}


class FakePulsar:
    """A cluster of so many brokers, the first of which leads. `world` is to be empty; a test has stores there too."""

    def __init__(self, world: StoreWorld, brokers: int = 3, cluster: str = "rp") -> None:
        self.world = world
        self.cluster = cluster
        self.faults = Faults()
        self.token: str | None = None
        """With one, whoever has not this one is answered 401."""
        self.extensible = False
        """True if the brokers run the extensible load manager."""
        self.auto_topic_creation = True
        self.version = VERSION
        self.metadata_store_url = "zk:127.0.0.1:2181"
        self.lands: dict[str, BrokerId | None] = {}
        """By bundle: where its next placement puts it whatever was asked for; None: nowhere, until it is taken out."""
        self.elects = True
        """True if another broker leads at once when the leader goes."""
        self.asked: list[Asked] = []
        self.on_asked: Callable[[], object] = lambda: None
        """Called when a request has come and nothing is done about it yet."""
        self.loads: dict[str, dict[str, float]] = {}
        self.brokers: list[PulsarBroker] = []
        """Those that are up."""
        self.operator: MetadataStore
        self._hosts = itertools.count(_FIRST_HOST)
        self._starts_with = brokers
        self.dying: set[asyncio.Task[None]] = set()
        """Tasks that kill brokers while they answer."""

    async def __aenter__(self) -> Self:
        self.operator = await self.world.connect()
        await self._set_up()
        for _ in range(self._starts_with):
            await self.join()
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(broker.stop() for broker in self.brokers), *self.dying)

    async def _set_up(self) -> None:
        clusters = "/admin/clusters"
        await write(self.operator, f"{clusters}/global", b"{}")
        await write(self.operator, f"{clusters}/{self.cluster}", b'{"serviceUrl":"http://127.0.0.21"}')
        await write(self.operator, "/admin/configuration", b"{}")
        for path in ("/admin/local-policies", "/admin/policies", "/loadbalance/brokers", "/namespace"):
            await self.operator.ensure_path(path)

    # The cluster

    @property
    def urls(self) -> list[str]:
        return [broker.url for broker in self.brokers]

    def broker(self, broker_id: str) -> PulsarBroker:
        """The broker of that id, which is up."""
        return next(broker for broker in self.brokers if broker.broker_id == broker_id)

    async def join(self) -> PulsarBroker:
        """One more broker; the first one leads."""
        broker = PulsarBroker(self, await self.world.connect(), f"127.0.0.{next(self._hosts)}")
        await broker.start()
        self.brokers.append(broker)
        if await self.leader() is None and len(self.brokers) == 1:
            await self.elect(broker)
        return broker

    async def kill(self, broker: PulsarBroker) -> None:
        """Kill the broker and end its session: its bundles have no owner afterwards."""
        self.brokers.remove(broker)
        await broker.stop()
        await self._replace_leader()

    async def restart(self, broker: PulsarBroker) -> None:
        """`kill` it, and start another process of it."""
        place = self.brokers.index(broker)
        await self.kill(broker)
        broker.store, broker.started_ms = await self.world.connect(), broker.started_ms + 1
        await broker.start()
        self.brokers.insert(place, broker)

    def kill_soon(self, broker: PulsarBroker) -> None:
        """`kill` it while it answers."""
        task = asyncio.create_task(self.kill(broker))
        self.dying.add(task)
        task.add_done_callback(self.dying.discard)

    async def leave(self, broker: PulsarBroker) -> None:
        """It goes as a broker goes that is told to stop: first its registration, then its bundles, then itself."""
        await broker.store.commit([Delete(broker.path)])
        for bundle in await broker.owned():
            await broker.release(bundle)
        await self.kill(broker)

    async def elect(self, broker: PulsarBroker) -> None:
        """Make a broker the leader; what the leader before it remembered is lost."""
        if await self.leader() is not None:
            await self.operator.commit([Delete("/loadbalance/leader")])
        content = {"brokerId": broker.broker_id, "serviceUrl": broker.url}
        await broker.store.commit([Create("/loadbalance/leader", orjson.dumps(content), ephemeral=True)])

    async def leader(self) -> BrokerId | None:
        znode = await self.operator.get("/loadbalance/leader")
        return None if znode is None else orjson.loads(znode.data)["brokerId"]

    async def _replace_leader(self) -> None:
        if self.elects and self.brokers and await self.leader() is None:
            await self.elect(self.brokers[0])

    # Bundles

    async def add_namespace(self, name: str, bundles: int = 4, owners: Sequence[str] = ()) -> list[str]:
        """A namespace with so many equal bundles, given to these owners in turn; the names of its bundles."""
        tenant = orjson.dumps({"adminRoles": [], "allowedClusters": [self.cluster]})
        await write(self.operator, f"/admin/policies/{NamespaceName.parse(name).tenant}", tenant)
        await self.cut(name, equal_boundaries(bundles))
        names = [f"{name}/{each}" for each in (await self.bundles(name)).range_texts()]
        for bundle, owner in zip(names, itertools.cycle(owners), strict=False):
            await self.broker(owner).acquire(bundle)
        return names

    async def cut(self, namespace: str, boundaries: Sequence[int]) -> None:
        """Write where the bundles of a namespace end, as after a split; what else is in its policies stays."""
        bundles = {"boundaries": [f"0x{each:08x}" for each in boundaries], "numBundles": len(boundaries) - 1}
        for path in (f"/admin/local-policies/{namespace}", f"/admin/policies/{namespace}"):
            await write(self.operator, path, orjson.dumps({**await self.content(path), "bundles": bundles}))

    async def bundles(self, namespace: str) -> NamespaceBundles:
        content = await self.content(f"/admin/local-policies/{namespace}")
        boundaries = content.get("bundles", {}).get("boundaries", ["0x00000000", "0xffffffff"])
        return NamespaceBundles(tuple(int(each, 16) for each in boundaries), HashFunction.CRC32)

    async def owner(self, bundle: str) -> BrokerId | None:
        content = await self.content(f"/namespace/{bundle}")
        return BrokerId(content["httpUrl"].partition("://")[2]) if content else None

    async def move(self, bundle: str, to: str) -> None:
        """Move a bundle as Pulsar's own shedder does: the owner releases it, and another one takes it."""
        owner = await self.owner(bundle)
        if owner is not None:
            await self.broker(owner).release(bundle)
        await self.broker(to).acquire(bundle)

    # Load

    def load(self, bundle: str, rate: float, *, bytes_each: float = 1024.0, topics: int = 2) -> None:
        """Set messages per second in, and as many out, from the next report on."""
        self.loads[bundle] = {
            "msgRateIn": rate,
            "msgThroughputIn": rate * bytes_each,
            "msgRateOut": rate,
            "msgThroughputOut": rate * bytes_each,
            "consumerCount": topics,
            "producerCount": topics,
            "topics": topics,
            "cacheSize": 0,
        }

    async def report(self) -> None:
        """Let each broker that reports write how it is, as all do within one interval."""
        for broker in self.brokers:
            await broker.report()

    # What operators lay down

    async def dynamic(self) -> dict[str, str]:
        return await self.content("/admin/configuration")

    async def set_dynamic(self, changed: Mapping[str, str]) -> None:
        """Replace dynamic configuration as a whole."""
        await write(self.operator, "/admin/configuration", orjson.dumps(dict(changed)))

    async def content(self, path: str) -> dict[str, Any]:
        """Return the object in a znode; empty if the znode does not exist."""
        znode = await self.operator.get(path)
        return orjson.loads(znode.data) if znode is not None and znode.data else {}


class PulsarBroker:
    """One broker: its web service, and the znodes that its session holds."""

    def __init__(self, pulsar: FakePulsar, store: MetadataStore, host: str) -> None:
        self.pulsar = pulsar
        self.store = store
        self.host = host
        self.port = 0
        self.started_ms = time.time_ns() // 1_000_000
        self.settings: dict[str, str] = {}
        """Settings of its own file, where they differ from `SETTINGS`."""
        self.affinity: dict[str, BrokerId] = {}
        """Destinations of bundles that it keeps as the leader."""
        self.reporting = True
        """True if `FakePulsar.report` makes it write a report."""
        self.cpu: float | None = None
        """Its CPU usage in percent; None: one percent for each 20 messages a second, in or out."""
        self._reported: list[str] = []
        self._published: dict[str, Any] | None = None
        self._runner: web.AppRunner | None = None

    @property
    def broker_id(self) -> BrokerId:
        return BrokerId(f"{self.host}:{self.port}")

    @property
    def url(self) -> str:
        return f"http://{self.broker_id}"

    @property
    def path(self) -> str:
        return f"/loadbalance/brokers/{self.broker_id}"

    async def start(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((self.host, self.port))
        listener.listen(64)
        self.port = listener.getsockname()[1]
        app = web.Application(middlewares=[Door(self).let_in])
        app.add_routes(Rest(self).routes())
        self._runner = await serve_app(app, listener)
        self._published = await self.record()
        await self.store.commit([Create(self.path, orjson.dumps(self._published), ephemeral=True)])
        await write(self.store, f"/loadbalance/broker-time-average/{self.broker_id}", orjson.dumps(_NO_AVERAGES))

    async def stop(self) -> None:
        """Close the port and end the session."""
        await self.store.close()
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await end_app(runner)

    async def report(self) -> None:
        if self.reporting:
            self._published = await self.record()
            await self.store.commit([Put(self.path, orjson.dumps(self._published))])

    async def published(self) -> dict[str, Any]:
        """Return the last report that a test had it make."""
        assert self._published is not None
        return self._published

    async def record(self) -> dict[str, Any]:
        """Its LocalBrokerData: only bundles with load, that is with topics, are in it."""
        stats = {bundle: self.pulsar.loads[bundle] for bundle in await self.owned() if bundle in self.pulsar.loads}
        before, self._reported = self._reported, list(stats)
        now_ms = time.time_ns() // 1_000_000
        totals = {key: float(sum(each[key] for each in stats.values())) for key in _TOTALS}
        cpu = self.cpu if self.cpu is not None else min(100.0, (totals["msgRateIn"] + totals["msgRateOut"]) / 20.0)
        return {
            "webServiceUrl": self.url,
            "pulsarServiceUrl": f"pulsar://{self.host}:6650",
            "persistentTopicsEnabled": True,
            "nonPersistentTopicsEnabled": True,
            "cpu": {"usage": cpu, "limit": 100.0},
            "memory": {"usage": 100.0, "limit": 400.0},
            "directMemory": {"usage": 32.0, "limit": 256.0},
            "bandwidthIn": {"usage": 0.0, "limit": -1000.0},
            "bandwidthOut": {"usage": 0.0, "limit": -1000.0},
            **totals,
            "lastUpdate": now_ms,
            "lastStats": stats,
            "numTopics": sum(each["topics"] for each in stats.values()),
            "numBundles": len(stats),
            "numConsumers": sum(each["consumerCount"] for each in stats.values()),
            "numProducers": sum(each["producerCount"] for each in stats.values()),
            "bundles": list(stats),
            "lastBundleGains": sorted(stats.keys() - set(before)),
            "lastBundleLosses": sorted(set(before) - stats.keys()),
            "brokerVersionString": self.pulsar.version,
            "protocols": {},
            "advertisedListeners": {"internal": {"brokerServiceUrl": f"pulsar://{self.host}:6650"}},
            "loadManagerClassName": (await self.effective())["loadManagerClassName"],
            "startTimestamp": self.started_ms,
            "maxResourceUsage": cpu / 100.0,
            "loadReportType": "LocalBrokerData",
        }

    async def effective(self) -> dict[str, str]:
        """Return the effective settings: those of its file, overridden by dynamic configuration."""
        here = {
            "clusterName": self.pulsar.cluster,
            "metadataStoreUrl": self.pulsar.metadata_store_url,
            "advertisedAddress": self.host,
            "webServicePort": f"Optional[{self.port}]",
        }
        if self.pulsar.extensible:
            here["loadManagerClassName"] = EXTENSIBLE
        return {**SETTINGS, **here, **self.settings, **await self.pulsar.dynamic()}

    async def owned(self) -> list[str]:
        """The bundles that it owns."""
        found = []
        for tenant in await self.store.children("/namespace"):
            for namespace in await self.store.children(f"/namespace/{tenant}"):
                for each in await self.store.children(f"/namespace/{tenant}/{namespace}"):
                    znode = await self.store.get(f"/namespace/{tenant}/{namespace}/{each}")
                    if znode is not None and znode.ephemeral_owner == self.store.session_id:
                        found.append(f"{tenant}/{namespace}/{each}")
        return found

    async def acquire(self, bundle: str) -> None:
        await self.store.ensure_path(f"/namespace/{bundle.rpartition('/')[0]}")
        content = {
            "nativeUrl": f"pulsar://{self.host}:6650",
            "httpUrl": self.url,
            "disabled": False,
            "advertisedListeners": {},
        }
        await self.store.commit([Create(f"/namespace/{bundle}", orjson.dumps(content), ephemeral=True)])

    async def release(self, bundle: str) -> None:
        await self.store.commit([Delete(f"/namespace/{bundle}")])
