"""From errors to status codes, and bodies that every handler shares."""

from __future__ import annotations

from http import HTTPStatus

import orjson
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from loadmanager.core.names import InvalidNameError
from loadmanager.core.ownership import IllegalTransitionError
from loadmanager.errors import (
    BundleNotFoundError,
    InvalidRecordError,
    LoadManagerError,
    NamespaceExistsError,
    NamespaceNotFoundError,
    NoBrokerAvailableError,
    NoLeaderError,
    NotLeaderError,
    StoreError,
    UnloadFailedError,
    ZnodeTooLargeError,
)
from loadmanager.wire.http import NOT_LEADER_HEADER

log = structlog.get_logger(__name__)

RETRY_AFTER_S = 1
_SHOWN_CHARACTERS = 200

_STATUS: tuple[tuple[type[Exception], HTTPStatus], ...] = (
    (InvalidNameError, HTTPStatus.PRECONDITION_FAILED),
    (NamespaceNotFoundError, HTTPStatus.NOT_FOUND),
    (NamespaceExistsError, HTTPStatus.CONFLICT),
    (BundleNotFoundError, HTTPStatus.PRECONDITION_FAILED),
    (IllegalTransitionError, HTTPStatus.CONFLICT),
    (UnloadFailedError, HTTPStatus.GATEWAY_TIMEOUT),
    (ZnodeTooLargeError, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (NoBrokerAvailableError, HTTPStatus.SERVICE_UNAVAILABLE),
    (NotLeaderError, HTTPStatus.SERVICE_UNAVAILABLE),
    (NoLeaderError, HTTPStatus.SERVICE_UNAVAILABLE),
    (InvalidRecordError, HTTPStatus.SERVICE_UNAVAILABLE),
    (StoreError, HTTPStatus.SERVICE_UNAVAILABLE),
)
"""The first that fits counts. Pulsar answers a bad name, or a range that is no bundle, with 412."""


def json_response(body: object, status: int = HTTPStatus.OK) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")


def json_bytes(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")


def problem(status: int, reason: str) -> web.Response:
    """Pulsar's error body; what will pass by itself comes with `Retry-After`."""
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status == HTTPStatus.SERVICE_UNAVAILABLE else None
    return web.Response(
        body=orjson.dumps({"reason": reason}), status=status, headers=headers, content_type="application/json"
    )


def response_of(error: LoadManagerError | InvalidNameError | IllegalTransitionError) -> web.Response:
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), HTTPStatus.INTERNAL_SERVER_ERROR)
    response = problem(status, str(error))
    if isinstance(error, NotLeaderError | NoLeaderError):
        response.headers[NOT_LEADER_HEADER] = "true"
    return response


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every answer that is an error says why in JSON; none carries a stack trace."""
    try:
        return await handler(request)
    except (LoadManagerError, InvalidNameError, IllegalTransitionError) as error:
        return response_of(error)
    except web.HTTPException as error:
        if error.status < HTTPStatus.BAD_REQUEST:
            raise
        return _refusal(request, error)
    except Exception as error:  # the top of every request: whatever it was, say it and go on
        log.exception("request_failed", method=request.method, path=request.path)
        return problem(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}"[:_SHOWN_CHARACTERS])


def _refusal(request: web.Request, error: web.HTTPException) -> web.Response:
    """What aiohttp refuses by itself, with the headers that belong to it (a 405 says what is allowed)."""
    if error.status == HTTPStatus.NOT_FOUND:
        return problem(error.status, f"no such path: {request.path[:_SHOWN_CHARACTERS]}")
    response = problem(error.status, f"{request.method} {request.path[:_SHOWN_CHARACTERS]}: {error.reason}")
    if "Allow" in error.headers:
        response.headers["Allow"] = error.headers["Allow"]
    return response
