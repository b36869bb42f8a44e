"""The agent's two HTTP interfaces: one for its broker (lease, owner), one for the leader (prepare, unload, topics,
bundles) and operators (health, metrics). Each route belongs to one of them.

If one port serves both, the broker's routes answer callers on this host only. A remote caller that asked for leases
could keep a dead broker registered.
"""

from __future__ import annotations

import re
from asyncio import BaseTransport
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from http import HTTPStatus
from ipaddress import ip_address
from typing import TypeVar

import orjson
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry

from loadmanager.agent.grants import UnloadRefusal
from loadmanager.agent.node_queries import parse_bundles
from loadmanager.agent.ownership_query import NotRegisteredError, OpenTopics
from loadmanager.agent.unload_handler import LONGEST_WAIT_S, WarmUp
from loadmanager.core.domain.bundles import HashFunction
from loadmanager.core.domain.names import (
    BrokerId,
    BundleName,
    BundleRange,
    InvalidNameError,
    NamespaceName,
    TopicName,
    parse_broker_id,
)
from loadmanager.core.domain.ownership import Registration
from loadmanager.errors import (
    BadRequestError,
    BodyTooLargeError,
    ForbiddenError,
    InvalidRecordError,
    StoreError,
    UnauthenticatedError,
)
from loadmanager.net.auth.gate import AccessRole, AuthGate
from loadmanager.net.http_client import PeerUnavailableError
from loadmanager.net.http_server import BodyLimit, with_trailing_slashes
from loadmanager.net.request_ids import name_answer, noted
from loadmanager.net.tracing import OFF, Tracing
from loadmanager.util.process_metrics import choose_format
from loadmanager.wire.http_bodies import (
    BUNDLE_VERSION_HEADER,
    DESTINATION_HEADER,
    EPOCH_HEADER,
    HASH_FUNCTION_HEADER,
    INCARNATION_HEADER,
    OWNER_HEADER,
    LeaseAnswer,
    TopicsOfBundle,
)
from loadmanager.wire.validation import parse_model

log = structlog.get_logger(__name__)

T = TypeVar("T")

_MOST_BODY_BYTES = 256 * 1024
"""More than the boundaries of the largest possible namespace take."""

_NATURAL = re.compile(r"[0-9]{1,18}")
_REASON_OF_REFUSAL = {
    UnloadRefusal.NOT_REGISTERED: "the broker is not registered",
    UnloadRefusal.OTHER_BROKER: f"{OWNER_HEADER}, {INCARNATION_HEADER}: this agent belongs to another broker, or to"
    " another incarnation of it: check agentUrl",
    UnloadRefusal.STALE_EPOCH: f"{EPOCH_HEADER}: a higher epoch was seen: this leader has been replaced",
    UnloadRefusal.UNKNOWN_EPOCH: f"{EPOCH_HEADER}: no leader was elected with an epoch this high",
    UnloadRefusal.STALE_VERSION: f"{BUNDLE_VERSION_HEADER}: the bundle was granted at a higher version since",
}


@dataclass(frozen=True, slots=True)
class AgentRoute:
    """Method and path of a route, and the role that its caller needs."""

    method: str
    path: str
    handler: Handler
    role: AccessRole

    def definition(self, gate: AuthGate, tracing: Tracing) -> web.RouteDef:
        """Return the aiohttp route. All but the broker's own routes check the caller's role; calls of the leader are
        traced.
        """
        handler = self.handler if self.role is AccessRole.LOOKUP else gate.permitting(self.role, self.handler)
        if self.role is AccessRole.PEER:
            handler = tracing.serving(self.path, handler)
        if self.method == "GET":
            return web.get(self.path, handler)
        return web.route(self.method, self.path, handler)


@dataclass(frozen=True, slots=True)
class AgentServer:
    """Routes of the agent and their handlers."""

    broker_id: BrokerId
    _: KW_ONLY
    grant_lease: Callable[[BaseTransport | None], Awaitable[LeaseAnswer | None]]
    warm_up: WarmUp
    unload: Callable[
        [BundleName, Registration, int, int, HashFunction | None, BrokerId | None], Awaitable[UnloadRefusal | None]
    ]
    topics: OpenTopics
    health: Callable[[], Mapping[str, object]]
    registry: CollectorRegistry
    gate: AuthGate
    tracing: Tracing = OFF
    _body_limit: BodyLimit = field(default_factory=BodyLimit)

    def __post_init__(self) -> None:
        self.gate.show_in(self.registry, {"broker": self.broker_id})

    def app(self) -> web.Application:
        """Application for the leader and operators."""
        return self._application(self.routes())

    def broker_app(self) -> web.Application:
        """Application for the broker."""
        return self._application(self.broker_routes())

    def shared_app(self) -> web.Application:
        """Application for leader, operators and broker on one port."""
        guarded = [replace(each, handler=_of_this_host(each.handler)) for each in self.broker_routes()]
        return self._application([*self.routes(), *guarded])

    def _application(self, routes: list[AgentRoute]) -> web.Application:
        app = web.Application(middlewares=[_errors_as_json])
        app.on_response_prepare.append(name_answer)
        app.add_routes(with_trailing_slashes([each.definition(self.gate, self.tracing) for each in routes]))
        return app

    def routes(self) -> list[AgentRoute]:
        """Return the routes for the leader, then those for operators."""
        bundles = "/loadmanager/v1/namespaces/{tenant}/{namespace}/bundles"
        unload = "/admin/v2/namespaces/{tenant}/{namespace}/{range}/unload"
        return [
            AgentRoute("GET", "/loadmanager/v1/topics", self._get_topics, AccessRole.PEER),
            AgentRoute("PUT", bundles, self._put_bundles, AccessRole.PEER),
            AgentRoute("POST", "/loadmanager/v1/prepare", self._prepare, AccessRole.PEER),
            AgentRoute("PUT", unload, self._put_unload, AccessRole.PEER),
            AgentRoute("GET", "/healthz", self._healthz, AccessRole.ANYONE),
            AgentRoute("GET", "/metrics", self._metrics, AccessRole.READ),
        ]

    def broker_routes(self) -> list[AgentRoute]:
        return [
            AgentRoute("GET", "/loadmanager/v1/lease", self._lease, AccessRole.LOOKUP),
            AgentRoute("GET", "/loadmanager/v1/owner", self._owner, AccessRole.LOOKUP),
        ]

    async def _lease(self, request: web.Request) -> web.Response:
        lease = await self.grant_lease(request.transport)
        if lease is None:
            return _problem(HTTPStatus.SERVICE_UNAVAILABLE, f"no lease: broker {self.broker_id} is not registered")
        return _json(lease.to_json())

    async def _owner(self, request: web.Request) -> web.Response:
        text = request.query.get("topic")
        if text is None:
            raise InvalidNameError("query parameter topic: missing; expected 'persistent://tenant/namespace/topic'")
        answer = await self.warm_up.ask_owner(TopicName.parse(text), _wait_s(request))
        return _json(answer.to_json())

    async def _prepare(self, request: web.Request) -> web.Response:
        destination = _registration(request)
        wanted = await self._read(request, partial(parse_model, TopicsOfBundle))
        bundle = BundleName.parse(wanted.bundle)
        done = await self.warm_up.prepare(destination, wanted)
        if isinstance(done, UnloadRefusal):
            return _refuse(bundle, done)
        if not done:
            return _problem(HTTPStatus.NOT_IMPLEMENTED, f"{bundle}: the broker does not know how to prepare")
        return web.Response(status=HTTPStatus.NO_CONTENT)

    async def _put_unload(self, request: web.Request) -> web.Response:
        match = request.match_info
        namespace = NamespaceName.of(match["tenant"], match["namespace"])
        bundle = BundleName(namespace, BundleRange.parse(match["range"]))
        epoch, version = _natural(request, EPOCH_HEADER), _natural(request, BUNDLE_VERSION_HEADER)
        owner, destination = _registration(request), request.headers.get(DESTINATION_HEADER)
        to = None if destination is None else parse_broker_id(destination)
        refusal = await self.unload(bundle, owner, epoch, version, _hash_function(request), to)
        if refusal is not None:
            return _refuse(bundle, refusal)
        return web.Response(status=HTTPStatus.NO_CONTENT)

    async def _get_topics(self, request: web.Request) -> web.Response:
        text = request.query.get("bundle")
        if text is None:
            raise InvalidNameError("query parameter bundle: missing; expected 'tenant/namespace/0xLLLLLLLL_0xUUUUUUUU'")
        answer = await self.topics.of_bundle(BundleName.parse(text))
        return _json(answer.to_json())

    async def _put_bundles(self, request: web.Request) -> web.Response:
        """Take new bundle boundaries. The body is Pulsar's Policies; only its `bundles` and hash function are read."""
        namespace = NamespaceName.of(request.match_info["tenant"], request.match_info["namespace"])
        self.topics.take_boundaries(namespace, await self._read(request, parse_bundles))
        return web.Response(status=HTTPStatus.NO_CONTENT)

    async def _read(self, request: web.Request, parse: Callable[[bytes, str], T]) -> T:
        """Read and parse the body; raises `BadRequestError` or `BodyTooLargeError`."""
        try:
            async with self._body_limit.read(request, _MOST_BODY_BYTES):
                return parse(await request.read(), request.path)
        except InvalidRecordError as error:
            raise BadRequestError(str(error)) from None

    async def _healthz(self, _request: web.Request) -> web.Response:
        health = self.health()
        status = HTTPStatus.OK if health["registered"] and not health.get("fault") else HTTPStatus.SERVICE_UNAVAILABLE
        return _json(orjson.dumps(dict(health)), status)

    async def _metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_format(",".join(request.headers.getall("Accept", ())))
        return web.Response(body=encode(self.registry), headers={"Content-Type": content_type})


def _of_this_host(handler: Handler) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        if _is_of_this_host(request):
            return await handler(request)
        reason = f"{request.path}: only the broker beside this agent may ask, from this host"
        return _problem(HTTPStatus.FORBIDDEN, reason)

    return answer


def _is_of_this_host(request: web.Request) -> bool:
    """Tell if the connection came over loopback, or from this host to its own address."""
    if request.transport is None:
        return False
    caller, own = (ip_address(request.transport.get_extra_info(name)[0]) for name in ("peername", "sockname"))
    mapped = getattr(caller, "ipv4_mapped", None)
    return caller == own or (mapped or caller).is_loopback


@web.middleware
async def _errors_as_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        with noted(request):
            return await handler(request)
    except (InvalidNameError, BadRequestError, BodyTooLargeError) as error:
        is_too_large = isinstance(error, BodyTooLargeError)
        return _problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE if is_too_large else HTTPStatus.BAD_REQUEST, str(error))
    except UnauthenticatedError as error:
        return _problem(HTTPStatus.UNAUTHORIZED, str(error), {"WWW-Authenticate": "Bearer"})
    except ForbiddenError as error:
        return _problem(HTTPStatus.FORBIDDEN, str(error))
    except (NotRegisteredError, PeerUnavailableError, InvalidRecordError, StoreError) as error:
        return _problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
    except web.HTTPException as error:
        return _problem(error.status, f"{request.method} {request.path}: {error.reason}")


def _header(request: web.Request, header: str) -> str:
    text = request.headers.get(header)
    if text is None:
        raise InvalidNameError(f"header {header}: missing")
    return text


def _natural(request: web.Request, header: str) -> int:
    text = _header(request, header)
    if not _NATURAL.fullmatch(text):
        raise InvalidNameError(f"header {header}: {text[:40]!r}: expected a whole number")
    return int(text)


def _registration(request: web.Request) -> Registration:
    return Registration(parse_broker_id(_header(request, OWNER_HEADER)), _natural(request, INCARNATION_HEADER))


def _wait_s(request: web.Request) -> float:
    text = request.query.get("waitMs", "0")
    if not _NATURAL.fullmatch(text):
        most = int(LONGEST_WAIT_S * 1000)
        raise InvalidNameError(f"query parameter waitMs: {text[:40]!r}: expected whole milliseconds, up to {most}")
    return int(text) / 1000


def _hash_function(request: web.Request) -> HashFunction | None:
    """Hash function of the namespace; None if the leader sent none. Every overlapping grant is revoked then."""
    text = request.headers.get(HASH_FUNCTION_HEADER)
    try:
        return None if text is None else HashFunction(text)
    except ValueError:
        known = ", ".join(HashFunction)
        raise InvalidNameError(f"header {HASH_FUNCTION_HEADER}: {text!r:.40}: expected one of {known}") from None


def _refuse(bundle: BundleName, refusal: UnloadRefusal) -> web.Response:
    is_absent = refusal is UnloadRefusal.NOT_REGISTERED
    status = HTTPStatus.SERVICE_UNAVAILABLE if is_absent else HTTPStatus.PRECONDITION_FAILED
    return _problem(status, f"{bundle}: {_REASON_OF_REFUSAL[refusal]}")


def _problem(status: int, reason: str, headers: dict[str, str] | None = None) -> web.Response:
    body = orjson.dumps({"reason": reason})
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


def _json(body: bytes, status: int = HTTPStatus.OK) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")
