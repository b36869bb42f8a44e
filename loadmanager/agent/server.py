"""The agent's HTTP interface: for its broker (lease, owner), the leader (unload) and operators (healthz, metrics)."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus

import orjson
import structlog
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from loadmanager.agent.grants import Refusal
from loadmanager.agent.ownership import NotRegisteredError
from loadmanager.agent.peers import PeerUnavailableError
from loadmanager.core.names import (
    BrokerId,
    BundleName,
    BundleRange,
    InvalidNameError,
    NamespaceName,
    TopicName,
    parse_broker_id,
)
from loadmanager.core.ownership import Registration
from loadmanager.errors import InvalidRecordError
from loadmanager.wire.http import (
    BUNDLE_VERSION_HEADER,
    EPOCH_HEADER,
    INCARNATION_HEADER,
    OWNER_HEADER,
    LeaseAnswer,
    OwnerAnswer,
)

log = structlog.get_logger(__name__)

_NATURAL = re.compile(r"[0-9]{1,18}")
_STATUS_OF_REFUSAL = {
    Refusal.NOT_REGISTERED: HTTPStatus.SERVICE_UNAVAILABLE,
    Refusal.OTHER_BROKER: HTTPStatus.PRECONDITION_FAILED,
    Refusal.STALE_EPOCH: HTTPStatus.PRECONDITION_FAILED,
    Refusal.STALE_VERSION: HTTPStatus.PRECONDITION_FAILED,
}
_REASON_OF_REFUSAL = {
    Refusal.NOT_REGISTERED: "the broker is not registered",
    Refusal.OTHER_BROKER: f"{OWNER_HEADER}, {INCARNATION_HEADER}: this agent stands beside another broker, or another"
    " life of it: is the agent's URL (agentUrl) right?",
    Refusal.STALE_EPOCH: f"{EPOCH_HEADER}: a higher epoch was seen: this leader has been replaced",
    Refusal.STALE_VERSION: f"{BUNDLE_VERSION_HEADER}: the bundle was granted at a higher version since",
}


class AgentServer:
    """The routes, and what they call."""

    def __init__(
        self,
        broker_id: BrokerId,
        *,
        grant_lease: Callable[[], LeaseAnswer | None],
        ask_owner: Callable[[TopicName], Awaitable[OwnerAnswer]],
        unload: Callable[[BundleName, Registration, int, int], Awaitable[Refusal | None]],
        health: Callable[[], Mapping[str, object]],
        registry: CollectorRegistry,
    ) -> None:
        self._broker_id = broker_id
        self._grant_lease = grant_lease
        self._ask_owner = ask_owner
        self._unload = unload
        self._health = health
        self._registry = registry

    def app(self) -> web.Application:
        app = web.Application(middlewares=[_errors_as_json])
        app.add_routes(
            [
                web.get("/loadmanager/v1/lease", self._lease),
                web.get("/loadmanager/v1/owner", self._owner),
                web.put("/admin/v2/namespaces/{tenant}/{namespace}/{range}/unload", self._put_unload),
                web.get("/healthz", self._healthz),
                web.get("/metrics", self._metrics),
            ]
        )
        return app

    async def _lease(self, _request: web.Request) -> web.Response:
        lease = self._grant_lease()
        if lease is None:
            return _problem(HTTPStatus.SERVICE_UNAVAILABLE, f"no lease: broker {self._broker_id} is not registered")
        return _json(lease.to_json())

    async def _owner(self, request: web.Request) -> web.Response:
        text = request.query.get("topic")
        if text is None:
            raise InvalidNameError("query parameter topic: missing; expected 'persistent://tenant/namespace/topic'")
        answer = await self._ask_owner(TopicName.parse(text))
        return _json(answer.to_json())

    async def _put_unload(self, request: web.Request) -> web.Response:
        match = request.match_info
        namespace = NamespaceName.of(match["tenant"], match["namespace"])
        bundle = BundleName(namespace, BundleRange.parse(match["range"]))
        epoch, version = _natural(request, EPOCH_HEADER), _natural(request, BUNDLE_VERSION_HEADER)
        owner = Registration(parse_broker_id(_header(request, OWNER_HEADER)), _natural(request, INCARNATION_HEADER))
        refusal = await self._unload(bundle, owner, epoch, version)
        if refusal is not None:
            return _problem(_STATUS_OF_REFUSAL[refusal], f"{bundle}: {_REASON_OF_REFUSAL[refusal]}")
        return web.Response(status=HTTPStatus.NO_CONTENT)

    async def _healthz(self, _request: web.Request) -> web.Response:
        health = self._health()
        status = HTTPStatus.OK if health["registered"] else HTTPStatus.SERVICE_UNAVAILABLE
        return _json(orjson.dumps(dict(health)), status)

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


@web.middleware
async def _errors_as_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except InvalidNameError as error:
        return _problem(HTTPStatus.BAD_REQUEST, str(error))
    except (NotRegisteredError, PeerUnavailableError, InvalidRecordError) as error:
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


def _problem(status: int, reason: str) -> web.Response:
    return _json(orjson.dumps({"reason": reason}), status)


def _json(body: bytes, status: int = HTTPStatus.OK) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")
