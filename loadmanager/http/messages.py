"""HTTP messages: checks of requests (origin, body, query), responses with the status codes of errors, and server-sent
events. Unusable input is `BadRequestError` (400).
"""

from __future__ import annotations

import math
import re
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import urlsplit

import orjson
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler
from multidict import istr
from pydantic import BaseModel, TypeAdapter, ValidationError

from loadmanager.core.domain.bundles import BoundariesError
from loadmanager.core.domain.names import BrokerId, BundleName, BundleRange, InvalidNameError, NamespaceName
from loadmanager.core.domain.ownership import IllegalTransitionError
from loadmanager.errors import (
    BadRequestError,
    BodyTooLargeError,
    BrokerNotFoundError,
    BundleNotFoundError,
    ConcurrentModificationError,
    ConflictError,
    ForbiddenError,
    HeldForOwnerError,
    HistoryError,
    InvalidRecordError,
    LoadManagerError,
    NamespaceBeingDeletedError,
    NamespaceExistsError,
    NamespaceNotFoundError,
    NoBrokerAvailableError,
    NoLeaderError,
    NotDynamicError,
    NotFoundError,
    NotLeaderError,
    OutdatedMirrorError,
    OwnerSilentError,
    SplitRefusedError,
    StoreError,
    TooManyPreviewsError,
    UnauthenticatedError,
    UnloadCancelledError,
    UnloadFailedError,
    ZnodeTooLargeError,
)
from loadmanager.net.auth.token_verifier import bearer_token
from loadmanager.net.http_server import unreadable
from loadmanager.util import clock
from loadmanager.wire.http_bodies import NOT_LEADER_HEADER
from loadmanager.wire.validation import WireModel, describe

log = structlog.get_logger(__name__)

RETRY_AFTER_S = 1
EVENTS = "text/event-stream"
MAX_BODY_BYTES = 8 * 1024 * 1024
_SHOWN_CHARACTERS = 200
_HEADERS: dict[int, dict[str, str]] = {
    HTTPStatus.SERVICE_UNAVAILABLE: {"Retry-After": str(RETRY_AFTER_S)},
    HTTPStatus.UNAUTHORIZED: {"WWW-Authenticate": "Bearer"},
}

_STATUS: tuple[tuple[type[Exception], HTTPStatus], ...] = (
    (UnauthenticatedError, HTTPStatus.UNAUTHORIZED),
    (ForbiddenError, HTTPStatus.FORBIDDEN),
    (BadRequestError, HTTPStatus.BAD_REQUEST),
    (BodyTooLargeError, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (BoundariesError, HTTPStatus.BAD_REQUEST),
    (InvalidNameError, HTTPStatus.PRECONDITION_FAILED),
    (SplitRefusedError, HTTPStatus.PRECONDITION_FAILED),
    (OwnerSilentError, HTTPStatus.SERVICE_UNAVAILABLE),
    (BrokerNotFoundError, HTTPStatus.NOT_FOUND),
    (NotFoundError, HTTPStatus.NOT_FOUND),
    (ConflictError, HTTPStatus.CONFLICT),
    (ConcurrentModificationError, HTTPStatus.CONFLICT),
    (NotDynamicError, HTTPStatus.PRECONDITION_FAILED),
    (NamespaceNotFoundError, HTTPStatus.NOT_FOUND),
    (NamespaceExistsError, HTTPStatus.CONFLICT),
    (BundleNotFoundError, HTTPStatus.PRECONDITION_FAILED),
    (IllegalTransitionError, HTTPStatus.CONFLICT),
    (UnloadCancelledError, HTTPStatus.CONFLICT),
    (UnloadFailedError, HTTPStatus.GATEWAY_TIMEOUT),
    (ZnodeTooLargeError, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (NamespaceBeingDeletedError, HTTPStatus.SERVICE_UNAVAILABLE),
    (NoBrokerAvailableError, HTTPStatus.SERVICE_UNAVAILABLE),
    (NotLeaderError, HTTPStatus.SERVICE_UNAVAILABLE),
    (NoLeaderError, HTTPStatus.SERVICE_UNAVAILABLE),
    (InvalidRecordError, HTTPStatus.SERVICE_UNAVAILABLE),
    (HistoryError, HTTPStatus.SERVICE_UNAVAILABLE),
    (OutdatedMirrorError, HTTPStatus.SERVICE_UNAVAILABLE),
    (TooManyPreviewsError, HTTPStatus.SERVICE_UNAVAILABLE),
    (StoreError, HTTPStatus.SERVICE_UNAVAILABLE),
)
"""HTTP status by error class; the first match counts. As in Pulsar, a bad name or an unknown range is a 412."""


def json_response(body: object, status: int = HTTPStatus.OK) -> web.Response:
    return web.Response(body=orjson.dumps(body, default=_content), status=status, content_type="application/json")


def _content(model: object) -> object:
    if isinstance(model, WireModel):
        return model.model_dump(by_alias=True)
    raise TypeError


def json_bytes(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")


def problem(status: int, reason: str) -> web.Response:
    """Build Pulsar's error body; temporary errors carry `Retry-After`, missing tokens `WWW-Authenticate`."""
    headers = _HEADERS.get(status)
    return web.Response(
        body=orjson.dumps({"reason": reason}), status=status, headers=headers, content_type="application/json"
    )


def response_of(error: LoadManagerError | InvalidNameError | IllegalTransitionError) -> web.Response:
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), HTTPStatus.INTERNAL_SERVER_ERROR)
    response = problem(status, str(error))
    if isinstance(error, NotLeaderError | NoLeaderError):
        response.headers[NOT_LEADER_HEADER] = "true"
    if isinstance(error, HeldForOwnerError):
        response.headers["Retry-After"] = str(math.ceil(error.retry_after_s))
    return response


def guarded(handler: Handler) -> Handler:
    """Wrap a handler so that every error is a JSON answer with its reason, never a stack trace.

    Not a middleware, because aiohttp would look it up for every request.
    """

    async def guard(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except Exception as error:  # noqa: BLE001 - outermost handler of every request
            return answer_error(request, error)

    return guard


def answer_error(request: web.Request, error: Exception) -> web.Response:
    """Build the answer to a request that ended in `error`."""
    if isinstance(error, LoadManagerError | InvalidNameError | IllegalTransitionError):
        return response_of(error)
    if isinstance(error, web.RequestPayloadError):
        return problem(HTTPStatus.BAD_REQUEST, unreadable(error))
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return problem(error.status, f"body: larger than {MAX_BODY_BYTES} bytes")
    if isinstance(error, web.HTTPException):
        return problem(error.status, f"{request.method} {request.path[:_SHOWN_CHARACTERS]}: {error.reason}")
    if request.transport is not None:  # else the client has disconnected
        log.error("request_failed", method=request.method, path=request.path, exc_info=error)
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}"[:_SHOWN_CHARACTERS])


def no_such_route(elsewhere: str = "") -> Handler:
    """Build the handler of unknown routes: 405 with the methods of a known path, else 404.

    `elsewhere` names where to ask instead; it follows a semicolon.
    """

    async def refuse(request: web.Request) -> web.Response:
        here = request.match_info.route.resource
        allowed: set[str] = set()
        for resource in request.app.router.resources():
            if resource is not here:
                allowed |= (await resource.resolve(request))[1]
        path, whom = request.path[:_SHOWN_CHARACTERS], f"; {elsewhere}" if elsewhere else ""
        if not allowed:
            return problem(HTTPStatus.NOT_FOUND, f"no such path: {path}{whom}")
        response = problem(HTTPStatus.METHOD_NOT_ALLOWED, f"{request.method} {path}: Method Not Allowed{whom}")
        response.headers["Allow"] = ",".join(sorted(allowed))
        return response

    return refuse


NOTHING_NEW = b": nothing new\n\n"
"""Heartbeat of a stream."""


def event_stream() -> web.StreamResponse:
    """Return the response of an event stream; its headers keep proxies from buffering."""
    response = web.StreamResponse(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
    response.content_type = EVENTS
    return response


def encode_event(event: str, data: bytes, identity: object = "") -> bytes:
    """Encode one event, with the id for a reader that reconnects; `data` is JSON without line breaks."""
    line = f"id: {identity}\n" if identity else ""
    return b"event: %b\n%bdata: %b\n\n" % (event.encode(), line.encode(), data)


M = TypeVar("M", bound=BaseModel)
V = TypeVar("V")
_TIME = re.compile(r"[0-9]{1,15}")
_SHOWN_INPUT = 40
_TRUTHS = {"": False, "false": False, "true": True}


async def parse_body(request: web.Request, model: type[M]) -> M:
    """Parse the body as a `model`; an empty body is an empty object."""
    content = await request.read()
    try:
        return model.model_validate_json(content if content.strip() else b"{}")
    except ValidationError as error:
        raise BadRequestError(f"body: {describe(error)}") from None


async def parse_value(request: web.Request, adapter: TypeAdapter[V]) -> V:
    """Parse the body as a value of the adapter's type."""
    try:
        return adapter.validate_json(await request.read())
    except ValidationError as error:
        raise BadRequestError(f"body: {describe(error)}") from None


def parse_broker(request: web.Request) -> BrokerId:
    """Return the broker in a path, whatever its form."""
    return BrokerId(request.match_info["broker"])


def parse_namespace(request: web.Request) -> NamespaceName:
    """Return the namespace in a path; raises `InvalidNameError`."""
    return NamespaceName.of(request.match_info["tenant"], request.match_info["namespace"])


def parse_bundle(request: web.Request) -> BundleName:
    """Return the bundle in a path; raises `InvalidNameError`."""
    return BundleName(parse_namespace(request), BundleRange.parse(request.match_info["range"].lower()))


def parse_time(request: web.Request, name: str) -> int | None:
    """Parse milliseconds since 1970 from the query; None when absent."""
    text = request.query.get(name)
    if text is None:
        return None
    if not _TIME.fullmatch(text):
        raise BadRequestError(f"{name} {text[:_SHOWN_INPUT]!r}: expected milliseconds since 1970")
    return int(text)


def parse_range(request: web.Request, span_ms: int) -> tuple[int, int]:
    """Parse `since` and `until` from the query, in ms since 1970; by default the last `span_ms` up to now."""
    now_ms = clock.now_ms()
    since_ms, until_ms = parse_time(request, "since"), parse_time(request, "until")
    until_ms = now_ms + 1 if until_ms is None else until_ms
    return max(0, min(until_ms, now_ms) - span_ms) if since_ms is None else since_ms, until_ms


def parse_flag(request: web.Request, name: str) -> bool:
    """Parse `true` or `false` from the query; false when absent."""
    text = request.query.get(name, "")
    truth = _TRUTHS.get(text.lower())
    if truth is None:
        raise BadRequestError(f"{name} {text[:_SHOWN_INPUT]!r}: expected true or false")
    return truth


_AUTHORIZATION = istr("Authorization")
_FETCH_SITE = istr("Sec-Fetch-Site")
_ORIGIN = istr("Origin")
_OURS = ("same-origin", "none")
_SHOWN_ORIGIN = 80


def refuse_foreign_page(request: web.Request) -> None:
    """Raise `ForbiddenError` for a request from a page of another origin, unless it carries a token (CSRF protection).

    The victim's browser may have access by its network address, while no token is required, or by a client certificate.
    Browsers name the origin of a request and pages cannot change that; other clients name none. Browsers never add a
    bearer token by themselves.
    """
    if bearer_token(request.headers.get(_AUTHORIZATION, "")) is not None:
        return
    site, origin = request.headers.get(_FETCH_SITE), request.headers.get(_ORIGIN)
    is_ours = site in _OURS if site is not None else origin is None or _host_in(origin) == request.host.lower()
    if not is_ours:
        whose = repr(origin[:_SHOWN_ORIGIN]) if origin else "another"
        raise ForbiddenError(
            f"Origin: a page of {whose} may change nothing here; a proxy before {request.host[:_SHOWN_ORIGIN]!r}"
            " must not change the Host header"
        )


def _host_in(origin: str) -> str:
    """Return the host and port of an origin; empty without one."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
