"""Tracing: spans of lookups, decisions and moves across processes; and request ids.

`Tracing` itself does nothing and costs nothing; `loadmanager.net.otlp` exports to an OpenTelemetry collector. The
current trace follows the task, and crosses processes in the header `traceparent` (W3C Trace Context).

A request id appears in the answer, in the log lines of the request, and in the requests that it causes. The client's id
is used if it is safe in a log line; otherwise one is made.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count

import structlog
from aiohttp import web
from multidict import istr

from loadmanager.config.shared_settings import TracingSettings
from loadmanager.errors import ConfigurationError
from loadmanager.util.optional_dependencies import how_to_install

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Attributes = Mapping[str, str | int]


class Trail:
    """A span that other tasks can continue, or several tasks can share."""

    def enter(self) -> None:
        """Make the span current in this context (of `contextvars`)."""

    def end(self, error: Exception | None = None) -> None:
        """End the span."""


NOWHERE = Trail()


class Tracing:
    """Tracing interface; this class does nothing."""

    def close(self) -> None:
        """Export remaining spans; takes a few seconds at most."""

    def headers(self) -> dict[str, str]:
        """Return the trace headers of an outgoing request."""
        return {}

    def serving(self, route: str, handler: Handler) -> Handler:
        """Wrap a handler so that each request gets a span in its caller's trace."""
        del route
        return handler

    @contextmanager
    def span(self, name: str, attributes: Attributes, of: Iterable[Trail] = ()) -> Iterator[None]:
        """Open a span in the first trail's trace, linked to the others; without trails in the current trace."""
        del name, attributes, of
        yield

    def here(self) -> Trail:
        """Return the current span."""
        return NOWHERE

    def begin(self, name: str, attributes: Attributes) -> Trail:
        """Begin a span that may cross tasks; it ends when its trail is ended."""
        del name, attributes
        return NOWHERE


OFF = Tracing()


def tracing_of(settings: TracingSettings, service: str, instance: str) -> Tracing:
    """Build tracing from the settings. Raises `ConfigurationError` if OpenTelemetry is configured but not installed."""
    if not settings.otlp_endpoint:
        return OFF
    try:
        from loadmanager.net.otlp import CollectorTracing  # noqa: PLC0415 - needs the optional extra `otel`
    except ModuleNotFoundError as error:
        fix = f"is not installed; install it with: {how_to_install('otel')}"
        raise ConfigurationError(f"{settings.key('otlp_endpoint')}: {error.name} {fix}") from None
    return CollectorTracing(settings.otlp_endpoint, service, instance)


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


def current_id() -> str | None:
    """Return the id of the request being handled; None without one."""
    known: str | None = structlog.contextvars.get_contextvars().get(_IN_LOGS)
    return known
