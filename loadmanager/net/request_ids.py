"""Request ids: in the answer, in the log lines of the request, and in the requests that it causes.

The client's id is used if it is safe in a log line; otherwise one is made.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import structlog
from aiohttp import web
from multidict import istr

REQUEST_ID_HEADER = "X-Request-ID"
_HEADER = istr(REQUEST_ID_HEADER)
_SANE = re.compile(r"[-A-Za-z0-9._:]{1,64}", re.ASCII)
_IN_REQUEST = web.RequestKey("request_id", str)
_IN_LOGS = "request_id"

_PROCESS = secrets.token_hex(5)
_COUNT = count(1)


def id_of(request: web.BaseRequest) -> str:
    """Return the id of the request; it does not change."""
    known = request.get(_IN_REQUEST)
    if known is None:
        given = request.headers.get(_HEADER, "")
        known = request[_IN_REQUEST] = given if _SANE.fullmatch(given) else new_id()
    return known


def new_id() -> str:
    """Return a new id for a request that came without one."""
    return f"{_PROCESS}-{next(_COUNT):x}"


async def name_answer(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Add the request id to an answer; for `on_response_prepare` of an application."""
    response.headers[_HEADER] = id_of(request)


@contextmanager
def noted(request: web.BaseRequest) -> Iterator[None]:
    """Bind the id of the request to logs, outgoing requests and tasks inside the context."""
    with structlog.contextvars.bound_contextvars(**{_IN_LOGS: id_of(request)}):
        yield


def get_id_headers() -> dict[str, str]:
    """Return the header of an outgoing request: the id of the request being handled, if there is one."""
    known: str | None = structlog.contextvars.get_contextvars().get(_IN_LOGS)
    return {} if known is None else {REQUEST_ID_HEADER: known}
