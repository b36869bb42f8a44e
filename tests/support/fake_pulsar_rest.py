"""The web service of a broker of the fake Pulsar (`support.fake_pulsar`), and what can go wrong with its answers."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlencode

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from loadmanager.core.domain.names import BrokerId, BundleName, BundleRange, NamespaceName
from loadmanager.errors import TransactionFailedError

if TYPE_CHECKING:
    from support.fake_pulsar import PulsarBroker

DYNAMIC = frozenset(
    {
        "loadBalancerSheddingEnabled",
        "loadBalancerAutoBundleSplitEnabled",
        "loadBalancerAutoUnloadSplitBundlesEnabled",
        "loadBalancerSheddingIntervalMinutes",
        "loadBalancerSheddingGracePeriodMinutes",
        "loadBalancerLoadSheddingStrategy",
        "loadBalancerBrokerThresholdShedderPercentage",
        "loadBalancerBundleUnloadMinThroughputThreshold",
        "loadBalancerSheddingExcludedNamespaces",
        "loadBalancerNamespaceBundleMaxTopics",
        "loadManagerClassName",
        "namespaceBundleUnloadingTimeoutMs",
    }
)
"""Keys that may be changed while brokers run: those of them that a test has had a use for."""

_JSON = "application/json"
_TRANSFER_TICK_S = 0.01
_SYSTEM_LOAD = {
    "msgRateIn": 1.0,
    "msgThroughputIn": 9e9,
    "msgRateOut": 1.0,
    "msgThroughputOut": 9e9,
    "consumerCount": 1,
    "producerCount": 1,
}
"""Load of the load manager's own topics, which is not to count."""


@dataclass(slots=True)
class Asked:
    """A request as received by a broker; `token` is None if it had none."""

    broker_id: BrokerId
    method: str
    path: str
    token: str | None


@dataclass(slots=True)
class _Fault:
    """Without a `status` there is no answer."""

    on: str
    times: int
    at: BrokerId | None
    status: int | None = None
    body: bytes = b""
    location: str = ""
    kills: bool = False
    is_done_first: bool = False


@dataclass(slots=True)
class Faults:
    """Fault instead of answers to requests whose path contains `on`, at one broker or at any, a number of times."""

    _faults: list[_Fault] = field(default_factory=list)

    def refuse(
        self, on: str, status: int, reason: str = "told to fail", *, times: int = 1, at: BrokerId | None = None
    ) -> None:
        self._faults.append(_Fault(on, times, at, status, orjson.dumps({"reason": reason})))

    def answer(self, on: str, status: int, body: bytes, *, times: int = 1, at: BrokerId | None = None) -> None:
        """Anything, as what is no Pulsar may answer it."""
        self._faults.append(_Fault(on, times, at, status, body))

    def send_away(self, on: str, to: str, *, times: int = 1, at: BrokerId | None = None) -> None:
        """A redirect to another origin, such as `http://127.0.0.1:1`, with path and query as they were asked."""
        self._faults.append(_Fault(on, times, at, 307, location=to))

    def hold(self, on: str, *, times: int = 1, at: BrokerId | None = None, done: bool = False) -> None:
        """No answer ever comes; with `done` all the same what was asked for is done."""
        self._faults.append(_Fault(on, times, at, is_done_first=done))

    def kill(self, on: str, *, at: BrokerId | None = None, done: bool = False) -> None:
        """The broker that gets it dies of it; with `done` after what was asked for is done."""
        self._faults.append(_Fault(on, 1, at, kills=True, is_done_first=done))

    def forgive(self) -> None:
        self._faults.clear()

    def take(self, request: web.Request, broker_id: BrokerId) -> _Fault | None:
        for fault in self._faults:
            if fault.on in request.raw_path and fault.at in (None, broker_id):
                fault.times -= 1
                if not fault.times:
                    self._faults.remove(fault)
                return fault
        return None


class Door:
    """Middleware before the broker's handlers: records a request, delays it by a fault, or rejects it."""

    def __init__(self, broker: PulsarBroker) -> None:
        self._broker = broker
        self._pulsar = broker.pulsar

    @web.middleware
    async def let_in(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        asked = Asked(self._broker.broker_id, request.method, request.raw_path, _token(request))
        self._pulsar.asked.append(asked)
        self._pulsar.on_asked()
        fault = self._pulsar.faults.take(request, self._broker.broker_id)
        if fault is not None:
            return await self._spoil(fault, request, handler)
        if self._pulsar.token is not None and asked.token != self._pulsar.token:
            return web.json_response({"status": "401", "message": "Authentication required"}, status=401)
        return await handler(request)

    async def _spoil(self, fault: _Fault, request: web.Request, handler: Handler) -> web.StreamResponse:
        if fault.is_done_first:
            await handler(request)
        if fault.kills:
            self._pulsar.kill_soon(self._broker)
        if fault.status is None:
            await asyncio.Event().wait()
            raise AssertionError("nobody sets it")
        if fault.location:
            return web.Response(status=fault.status, headers={"Location": fault.location + request.raw_path})
        return web.Response(status=fault.status, body=fault.body, content_type=_JSON)


class Rest:
    """The calls of one broker's web service that a balancer has a use for."""

    def __init__(self, broker: PulsarBroker) -> None:
        self._broker = broker
        self._pulsar = broker.pulsar

    def routes(self) -> list[web.RouteDef]:
        brokers, bundle = "/admin/v2/brokers", "/admin/v2/namespaces/{tenant}/{namespace}/{range}"
        return [
            web.get("/admin/v2/clusters/{cluster}/failureDomains", self._domains),
            web.get("/admin/v2/clusters/{cluster}/namespaceIsolationPolicies", self._isolation),
            web.get("/admin/v2/broker-stats/load-report", self._load_report),
            web.get("/admin/v2/broker-stats/metrics", self._metrics),
            web.get("/admin/v2/broker-stats/topics", self._topics),
            web.get(f"{brokers}/{{cluster}}/{{broker}}/ownedNamespaces", self._owned),
            web.get("/admin/v2/tenants", self._tenants),
            web.get("/admin/v2/namespaces/{tenant}", self._namespaces),
            web.get("/admin/v2/namespaces/{tenant}/{namespace}/antiAffinity", self._group),
            web.get(brokers, self._active),
            web.get(f"{brokers}/version", self._version),
            web.get(f"{brokers}/health", self._health),
            web.get(f"{brokers}/leaderBroker", self._leader),
            web.get(f"{brokers}/configuration/runtime", self._runtime),
            web.get(f"{brokers}/configuration/values", self._values),
            web.post(f"{brokers}/configuration/{{name}}/{{value}}", self._set),
            web.delete(f"{brokers}/configuration/{{name}}", self._delete),
            web.get("/admin/v2/namespaces/{tenant}/{namespace}/bundles", self._bundles),
            web.put(f"{bundle}/unload", self._unload),
            web.put(f"{bundle}/split", self._split),
            web.get("/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}", self._lookup),
            web.get("/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}/bundle", self._bundle_of),
        ]

    # What there is

    async def _load_report(self, _: web.Request) -> web.Response:
        if self._pulsar.extensible:
            return _reason(500, "java.lang.UnsupportedOperationException")
        return web.json_response(await self._broker.published())

    async def _metrics(self, _: web.Request) -> web.Response:
        record = await self._broker.published()
        usage = {
            f"brk_lb_{name}_usage": 100.0 * record[key]["usage"] / record[key]["limit"]
            for name, key in (("cpu", "cpu"), ("memory", "memory"), ("directMemory", "directMemory"))
        }
        return web.json_response(
            [
                {
                    "metrics": {"brk_lb_resource_usage": 0.1},
                    "dimensions": {"feature": "max", "metric": "loadBalancing"},
                },
                {"metrics": usage, "dimensions": {"broker": self._broker.host, "metric": "loadBalancing"}},
            ]
        )

    async def _topics(self, _: web.Request) -> web.Response:
        """Answer one topic for each bundle, and one of the load manager's own in a bundle that nobody owns."""
        stats = (await self._broker.record())["lastStats"]
        found: dict[str, dict[str, object]] = {"pulsar/system": {"0x00000000_0x40000000": _topic(_SYSTEM_LOAD)}}
        for bundle, load in stats.items():
            namespace, _, text = bundle.rpartition("/")
            found.setdefault(namespace, {})[text] = _topic(load)
        return web.json_response(found)

    async def _owned(self, request: web.Request) -> web.Response:
        if request.match_info["broker"] != self._broker.broker_id:
            return _redirect(request, BrokerId(request.match_info["broker"]))
        state = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
        self_test = f"pulsar/{self._broker.broker_id}/0x00000000_0xffffffff"
        return web.json_response(dict.fromkeys([self_test, *await self._broker.owned()], state))

    async def _tenants(self, _: web.Request) -> web.Response:
        return web.json_response(await self._broker.store.children("/admin/policies"))

    async def _namespaces(self, request: web.Request) -> web.Response:
        tenant = request.match_info["tenant"]
        names = await self._broker.store.children(f"/admin/policies/{tenant}")
        return web.json_response([f"{tenant}/{name}" for name in names])

    async def _group(self, request: web.Request) -> web.Response:
        """Return an empty body if there is no group."""
        policies = await self._pulsar.content(f"/admin/local-policies/{_namespace(request)}")
        group = policies.get("namespaceAntiAffinityGroup")
        return web.json_response(group) if group else web.Response(content_type=_JSON)

    async def _isolation(self, request: web.Request) -> web.Response:
        path = f"/admin/clusters/{request.match_info['cluster']}/namespaceIsolationPolicies"
        znode = await self._pulsar.operator.get(path)
        return _reason(404, "none yet") if znode is None else web.Response(body=znode.data, content_type=_JSON)

    async def _domains(self, request: web.Request) -> web.Response:
        path = f"/admin/clusters/{request.match_info['cluster']}/failureDomain"
        names = await self._broker.store.children(path)
        return web.json_response({name: await self._pulsar.content(f"{path}/{name}") for name in names})

    async def _active(self, _: web.Request) -> web.Response:
        return web.json_response(await self._registered())

    async def _version(self, _: web.Request) -> web.Response:
        return web.Response(text=self._pulsar.version)

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _leader(self, _: web.Request) -> web.Response:
        leader = await self._pulsar.leader()
        if leader is None:
            return _reason(404, "Couldn't find leader broker")
        return web.json_response({"serviceUrl": f"http://{leader}", "brokerId": leader})

    async def _registered(self) -> list[str]:
        return await self._broker.store.children("/loadbalance/brokers")

    # Configuration

    async def _runtime(self, _: web.Request) -> web.Response:
        return web.json_response(await self._broker.effective())

    async def _values(self, _: web.Request) -> web.Response:
        return web.json_response(await self._pulsar.dynamic())

    async def _set(self, request: web.Request) -> web.Response:
        name, value = request.match_info["name"], request.match_info["value"]
        if name not in DYNAMIC:
            return _reason(412, "Can't update non-dynamic configuration")
        await self._pulsar.set_dynamic({**await self._pulsar.dynamic(), name: value})
        return web.Response(status=200)

    async def _delete(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in DYNAMIC:
            return _reason(412, "Can't delete non-dynamic configuration")
        values = await self._pulsar.dynamic()
        await self._pulsar.set_dynamic({key: value for key, value in values.items() if key != name})
        return web.Response(status=200)

    # Bundles

    async def _bundles(self, request: web.Request) -> web.Response:
        content = await self._pulsar.content(f"/admin/local-policies/{_namespace(request)}")
        return web.json_response(content["bundles"]) if content else _reason(404, "Namespace does not exist")

    async def _unload(self, request: web.Request) -> web.Response:  # noqa: PLR0911 - one for each answer
        bundle = f"{_namespace(request)}/{request.match_info['range']}"
        destination = request.query.get("destinationBroker", "")
        if request.content_type != _JSON:
            return web.Response(status=415)
        if destination:
            answer = await self._remember(request, bundle, BrokerId(destination))
            if answer is not None:
                return answer
        answer, owner = await self._find_owner(request)
        if answer is not None or owner is None:
            return answer or web.Response(status=204)
        if owner != self._broker.broker_id:
            return _redirect(request, owner, without="" if self._pulsar.extensible else "destinationBroker")
        if self._pulsar.extensible and destination:
            return await self._transfer(bundle, BrokerId(destination))
        try:
            await self._broker.release(bundle)
        except TransactionFailedError:
            return _reason(500, f"Namespace is not active: {bundle}")
        return web.Response(status=204)

    async def _transfer(self, bundle: str, destination: BrokerId) -> web.Response:
        """Answer once the destination owns the bundle, or the broker where a test has it land."""
        if destination == self._broker.broker_id:
            return _reason(500, f"own by {destination}, cannot be transfer to same broker")
        await self._broker.release(bundle)
        while (to := self._pulsar.lands.get(bundle, destination)) is None:  # noqa: ASYNC110 - a plain dict of tests
            await asyncio.sleep(_TRANSFER_TICK_S)
        self._pulsar.lands.pop(bundle, None)
        if await self._pulsar.owner(bundle) is None:
            await self._pulsar.broker(to).acquire(bundle)
        return web.Response(status=204)

    async def _remember(self, request: web.Request, bundle: str, destination: BrokerId) -> web.Response | None:
        """Return the answer of a broker that does not keep the destination itself."""
        leader, registered = await self._pulsar.leader(), await self._registered()
        if destination not in registered:
            return _reason(409, "Not allowed unload namespace bundle to inactive destination broker")
        if self._pulsar.extensible:
            return None
        if leader is None:
            return _reason(412, "The leader broker is not found")
        if leader not in registered:
            return _reason(404, f"The leader broker {leader} is not registered")
        if leader != self._broker.broker_id:
            return _redirect(request, leader)
        self._broker.affinity[bundle] = destination
        return None

    async def _find_owner(self, request: web.Request) -> tuple[web.Response | None, BrokerId | None]:
        """The owner of the bundle in the path, or what is answered if it is none."""
        namespace = _namespace(request)
        if not await self._pulsar.content(f"/admin/local-policies/{namespace}"):
            return _reason(404, "Namespace not found"), None
        if request.match_info["range"] not in (await self._pulsar.bundles(namespace)).range_texts():
            return _reason(412, "Invalid upper boundary for bundle"), None
        return None, await self._pulsar.owner(f"{namespace}/{request.match_info['range']}")

    async def _split(self, request: web.Request) -> web.Response:
        """In two equal parts, or at the positions given."""
        answer, owner = await self._find_owner(request)
        if request.content_type != _JSON:
            return web.Response(status=415)
        if answer is not None:
            return answer
        if owner is not None and owner != self._broker.broker_id:
            return _redirect(request, owner, without="destinationBroker")
        algorithm = request.query.get("splitAlgorithmName", "")
        if algorithm not in (await self._broker.effective())["supportedNamespaceBundleSplitAlgorithms"]:
            return _reason(412, f"Unsupported split algorithm {algorithm}")
        await self._cut(request, await request.read(), owned=owner is not None)
        return web.Response(status=204)

    async def _cut(self, request: web.Request, body: bytes, *, owned: bool) -> None:
        namespace, old = _namespace(request), BundleRange.parse(request.match_info["range"])
        bundles = await self._pulsar.bundles(namespace)
        middle = old.lower + (old.upper - old.lower) // 2
        at = [each for each in orjson.loads(body or b"[]") if old.lower < each < old.upper] or [middle]
        parts = [BundleRange(*ends) for ends in itertools.pairwise((old.lower, *sorted(at), old.upper))]
        await self._pulsar.cut(namespace, sorted({*bundles.boundaries, *at}))
        if owned:
            await self._broker.release(f"{namespace}/{old}")
            if request.query.get("unload") != "true":
                for part in parts:
                    await self._broker.acquire(f"{namespace}/{part}")

    # Lookups

    async def _bundle_of(self, request: web.Request) -> web.Response:
        return web.Response(text=(await self._bundle_asked(request)).rpartition("/")[2], content_type=_JSON)

    async def _bundle_asked(self, request: web.Request) -> str:
        namespace = _namespace(request)
        topic = f"{request.match_info['domain']}://{namespace}/{unquote(request.match_info['topic'])}"
        bundles = await self._pulsar.bundles(namespace)
        return str(BundleName(NamespaceName.parse(namespace), bundles.range_at(bundles.index_of_topic(topic))))

    async def _lookup(self, request: web.Request) -> web.Response:
        if not self._pulsar.auto_topic_creation and request.match_info["domain"] == "persistent":
            return _reason(404, "Topic not found")
        if not await self._pulsar.content(f"/admin/local-policies/{_namespace(request)}"):
            return _reason(404, "Namespace not found")
        bundle = await self._bundle_asked(request)
        owner = await self._pulsar.owner(bundle)
        if owner is not None:
            return _found(self._pulsar.broker(owner))
        return await self._place(request, bundle)

    async def _place(self, request: web.Request, bundle: str) -> web.Response:
        is_decided = request.query.get("authoritative") == "true"
        candidate = self._broker.broker_id if is_decided else await self._candidate(bundle)
        if candidate is None:
            return web.Response(status=503)
        if candidate == self._broker.broker_id:
            return _found(await self._take(bundle))
        registered = await self._registered()
        if candidate not in registered:
            return _reason(500, f"Failed to look up {candidate}: it is not registered")
        return _redirect(request, candidate, is_decided=not is_decided and await self._decides())

    async def _take(self, bundle: str) -> PulsarBroker:
        """The owner: this broker, unless another was faster."""
        try:
            await self._broker.acquire(bundle)
        except TransactionFailedError:
            return self._pulsar.broker(await self._pulsar.owner(bundle) or "")
        return self._broker

    async def _decides(self) -> bool:
        """Return True if this broker places bundles: the leader, or every broker while the leader is not registered."""
        leader = await self._pulsar.leader()
        return leader == self._broker.broker_id or leader not in await self._registered()

    async def _candidate(self, bundle: str) -> BrokerId | None:
        if not await self._decides():
            return await self._pulsar.leader()
        if bundle in self._pulsar.lands:
            to = self._pulsar.lands[bundle]
            if to is not None:
                del self._pulsar.lands[bundle]
            self._broker.affinity.pop(bundle, None)
            return to
        destination = self._broker.affinity.pop(bundle, None)
        return destination or await self._emptiest()

    async def _emptiest(self) -> BrokerId:
        """The broker with the fewest bundles."""
        owned = [(len(await broker.owned()), broker.broker_id) for broker in self._pulsar.brokers]
        return min(owned)[1]


def _topic(load: dict[str, float]) -> dict[str, object]:
    consumers = [{"consumerName": str(number)} for number in range(int(load["consumerCount"]))]
    topic = {key: load[key] for key in ("msgRateIn", "msgThroughputIn", "msgRateOut", "msgThroughputOut")}
    return {
        "persistent": {
            "persistent://t": {
                **topic,
                "producerCount": load["producerCount"],
                "subscriptions": {"mine": {"consumers": consumers}},
            }
        }
    }


def _namespace(request: web.Request) -> str:
    return f"{request.match_info['tenant']}/{request.match_info['namespace']}"


def _token(request: web.Request) -> str | None:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token if scheme == "Bearer" else None


def _reason(status: int, reason: str) -> web.Response:
    return web.json_response({"reason": reason}, status=status)


def _redirect(request: web.Request, to: BrokerId, *, is_decided: bool = False, without: str = "") -> web.Response:
    """Redirect to another broker as Pulsar does: the same path and query, and whether the decision is made."""
    query = {**request.query, "authoritative": str(is_decided).lower()}
    query.pop(without, None)
    path = request.raw_path.partition("?")[0]
    return web.Response(status=307, headers={"Location": f"http://{to}{path}?{urlencode(query)}"})


def _found(owner: PulsarBroker) -> web.Response:
    native = f"pulsar://{owner.host}:6650"
    return web.json_response({"brokerUrl": native, "httpUrl": owner.url, "nativeUrl": native, "brokerUrlSsl": ""})
