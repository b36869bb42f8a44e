"""An HTTP server that nobody can silence: limits on each connection, and on how many there are.

What aiohttp lacks: a time for the head and for the body of a request, a number of connections, and errors as JSON. For
a request that arrives at once, as nearly all do, no timer is started.
"""

from __future__ import annotations

import asyncio
import resource
from collections import OrderedDict
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import orjson
import structlog
from aiohttp import StreamReader, web

from loadmanager.config import HttpSettings
from loadmanager.request_ids import REQUEST_ID_HEADER, id_of

log = structlog.get_logger(__name__)

_FILES_PER_CONNECTION = 2
"""Half of the files that the process may have open are for connections that others open."""

_SHOWN_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Times in seconds: for the head of a request from its first byte on, for its body, and between two requests.

    `connections` is how many may be open at a time.
    """

    head_s: float
    body_s: float
    idle_s: float
    connections: int

    @classmethod
    def of(cls, settings: HttpSettings) -> ServerLimits:
        """As configured, but no more connections than this process can have without running out of files.

        Raises the process's own limit on open files as far as it may.
        """
        wanted = settings.max_http_server_connections
        connections = min(wanted, _raise_open_files(wanted * _FILES_PER_CONNECTION) // _FILES_PER_CONNECTION)
        if connections < wanted:
            log.warning("connections_limited", wanted=wanted, connections=connections)
        return cls(
            head_s=settings.http_request_head_timeout_ms / 1000,
            body_s=settings.http_request_body_timeout_ms / 1000,
            idle_s=settings.http_idle_timeout_ms / 1000,
            connections=connections,
        )


async def serve_within(app: web.Application, limits: ServerLimits, shutdown_timeout_s: float) -> web.AppRunner:
    """A runner that has been set up; it serves once it has a site."""
    runner = _Runner(app, limits, access_log=None, shutdown_timeout=shutdown_timeout_s, keepalive_timeout=limits.idle_s)
    await runner.setup()
    return runner


def _raise_open_files(wanted: int) -> int:
    """How many files this process may have open, once it has raised its limit as far as it may and is wanted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited or soft >= wanted:
        return wanted
    raised = wanted if hard == unlimited else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return raised


class _Runner(web.AppRunner):
    __slots__ = ("_limits",)

    def __init__(self, app: web.Application, limits: ServerLimits, **options: Any) -> None:  # noqa: ANN401 - aiohttp's
        super().__init__(app, **options)
        self._limits = limits

    async def _make_server(self) -> web.Server:
        return _Server(await super()._make_server(), self._limits)


class _Server(web.Server):
    def __init__(self, server: web.Server, limits: ServerLimits) -> None:
        options = server._kwargs  # noqa: SLF001 - as aiohttp made them of the runner's
        super().__init__(server.request_handler, request_factory=server.request_factory, **options)
        self._connections_open = _Connections(limits)

    def __call__(self) -> _LimitedConnection:
        return _LimitedConnection(self, self._connections_open, self._loop, self._kwargs)


class _Connections:
    """Those that are open, the one that has been silent for longest first."""

    def __init__(self, limits: ServerLimits) -> None:
        self.limits = limits
        self._open: OrderedDict[_LimitedConnection, None] = OrderedDict()
        self._is_full = False

    def admit(self, connection: _LimitedConnection) -> bool:
        """Whether there is room for one more: else the one that has been silent for longest is closed, if any is."""
        if len(self._open) >= self.limits.connections and not self._close_a_silent_one():
            return False
        self._open[connection] = None
        return True

    def asked(self, connection: _LimitedConnection) -> None:
        if connection in self._open:
            self._open.move_to_end(connection)

    def gone(self, connection: _LimitedConnection) -> None:
        self._open.pop(connection, None)
        self._is_full = self._is_full and len(self._open) > self.limits.connections // 2

    def _close_a_silent_one(self) -> bool:
        if not self._is_full:
            self._is_full = True
            log.warning("connections_exhausted", connections=self.limits.connections)
        silent = next((each for each in self._open if each.is_silent), None)
        if silent is None:
            return False
        del self._open[silent]
        silent.force_close()
        return True


class _LimitedConnection(web.RequestHandler):
    __slots__ = ("_all", "_head_timer")

    def __init__(
        self, server: web.Server, connections: _Connections, loop: asyncio.AbstractEventLoop, options: dict[str, Any]
    ) -> None:
        super().__init__(server, loop=loop, **options)
        self._all = connections
        self._head_timer: asyncio.TimerHandle | None = None

    @property
    def is_silent(self) -> bool:
        """Whether no request has arrived that was not answered."""
        return self._waiter is not None and not self._waiter.done()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._all.admit(self):
            self.force_close()

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._all.gone(self)
        self._head_is_whole()

    def data_received(self, data: bytes) -> None:
        requests = self._request_count
        super().data_received(data)
        if self._request_count != requests:
            self._asked()
        elif self._head_timer is None and (self.is_silent or not requests):  # uvloop reads before anybody waits
            self._head_timer = self._loop.call_later(self._all.limits.head_s, self.force_close)

    def _asked(self) -> None:
        self._head_is_whole()
        self._all.asked(self)
        body = self._messages[-1][1]
        if not body.is_eof():
            self._loop.call_later(self._all.limits.body_s, self._end_slow_body, body)

    def _head_is_whole(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_slow_body(self, body: StreamReader) -> None:
        """Have whoever reads the body answer 408, unless it has arrived, and wait for no more of it."""
        if not body.is_eof() and body.exception() is None:
            self._lingering_time = 0.0
            reason = f"the body took longer than {self._all.limits.body_s:g} s"
            body.set_exception(web.HTTPRequestTimeout(reason=reason))

    def log_exception(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - as aiohttp calls it
        if not isinstance(options.get("exc_info"), web.RequestPayloadError):  # the rest of a body that cannot be read
            super().log_exception(*args, **options)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what no handler has answered: a request that is none, or an error that nobody foresaw."""
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the answer was sent already")
        if isinstance(exc, web.RequestPayloadError):
            status, message = HTTPStatus.BAD_REQUEST, unreadable(exc)
        if status == HTTPStatus.INTERNAL_SERVER_ERROR and self.transport is not None:
            log.error("request_failed", method=request.method, path=request.path, exc_info=exc)
            message = f"{type(exc).__name__}: {exc}"
        reason = " ".join((message or HTTPStatus(status).phrase).split())[:_SHOWN_CHARACTERS]
        response = web.Response(body=orjson.dumps({"reason": reason}), status=status, content_type="application/json")
        response.headers[REQUEST_ID_HEADER] = id_of(request)
        response.force_close()
        return response


def unreadable(error: web.RequestPayloadError) -> str:
    """What to say of a body that is not encoded as its headers say."""
    return f"body: cannot be read: {error}"
