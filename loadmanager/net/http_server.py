"""HTTP server with limits on each connection, on their number, and on bodies, so that no client can exhaust it.

It adds to aiohttp: timeouts for the head and the body of a request, a connection limit, a limit on concurrent large
bodies, and errors as JSON. Nearly all requests arrive in one piece and need no timer.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import resource
import socket
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import orjson
import structlog
from aiohttp import StreamReader, web

from loadmanager.config.shared_settings import HttpSettings
from loadmanager.errors import BadRequestError, BodyTooLargeError
from loadmanager.net.request_ids import REQUEST_ID_HEADER, id_of
from loadmanager.net.tls_contexts import ServerTls
from loadmanager.net.tls_listener import ConnectionLimit, Handshake, TlsListener

log = structlog.get_logger(__name__)

_FILES_PER_CONNECTION = 2
"""Half of the allowed open files are left for connections and files that the process opens itself."""

_SHOWN_CHARACTERS = 200

_LINGERING_S = 1.0
"""Time to read the rest of a refused body after the answer, so that the sender receives the answer."""


FastPath = Callable[[bytes], bytes | None]
"""Fast path: returns the complete answer to a raw request, or None to use the normal path."""

FAST_PATH: web.AppKey[FastPath] = web.AppKey("fast_path")
"""Application key of the fast path for requests that are answered before they are parsed."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of a server: concurrent connections, and the timeouts of a connection in seconds.

    `head_s` counts from the first byte of a request's head, and also limits a TLS handshake. `body_s` limits the body.
    `idle_s` is the time between two requests; it exceeds the keep-alive of clients and proxies.
    """

    connections: int
    head_s: float = 10.0
    body_s: float = 30.0
    idle_s: float = 120.0

    @classmethod
    def of(cls, settings: HttpSettings, servers: int = 1) -> ServerLimits:
        """Return the configured limits for each of `servers` servers of this process. The limit on open files caps the
        number of connections.

        Raises the soft limit on open files as far as allowed.
        """
        wanted, files = settings.max_http_server_connections, servers * _FILES_PER_CONNECTION
        connections = min(wanted, _raise_open_files(wanted * files) // files)
        if connections < wanted:
            log.warning("connections_limited", wanted=wanted, connections=connections)
        return cls(connections)


def with_trailing_slashes(routes: list[web.RouteDef]) -> list[web.RouteDef]:
    """Return the routes, then each with a trailing slash, which Pulsar's servers and some scrapers use.

    The latter come last, so that matching plain paths takes no longer.
    """
    plain = [each for each in routes if not each.path.endswith(("/", "*}"))]
    return [*routes, *(web.RouteDef(each.method, f"{each.path}/", each.handler, each.kwargs) for each in plain)]


async def serve_within(app: web.Application, limits: ServerLimits, shutdown_timeout_s: float) -> web.AppRunner:
    """Return a runner that is set up; add a site or `listen_on` to serve."""
    runner = _Runner(
        app,
        limits,
        access_log=None,
        shutdown_timeout=shutdown_timeout_s,
        keepalive_timeout=limits.idle_s,
        lingering_time=_LINGERING_S,
        auto_decompress=False,
    )
    await runner.setup()
    return runner


BACKLOG = 1024
"""Length of the accept queue: after a mass failure all clients connect at once."""


async def listen_on(runner: web.AppRunner, listener: socket.socket, tls: ServerTls | None = None) -> None:
    """Serve on one more socket: plain TCP, TLS, or a Unix socket."""
    await _Site(runner, listener, tls).start()


class _Site(web.SockSite):
    __slots__ = ("_entrance", "_tls")

    def __init__(self, runner: web.AppRunner, listener: socket.socket, tls: ServerTls | None) -> None:
        super().__init__(runner, listener, backlog=BACKLOG)
        self._tls = tls
        self._entrance: TlsListener | None = None

    async def start(self) -> None:
        server, listener = self._runner.server, self._sock
        assert isinstance(server, _Server), "it was made by serve_within"
        await web.BaseSite.start(self)
        if self._tls is not None:
            self._entrance = server.entrance(listener, self._tls)
            return
        loop = asyncio.get_running_loop()
        create = loop.create_unix_server if listener.family == socket.AF_UNIX else loop.create_server
        self._server = await create(server, sock=listener, backlog=self._backlog)

    async def stop(self) -> None:
        if self._entrance is not None:
            self._entrance.close()
        await super().stop()


def _raise_open_files(wanted: int) -> int:
    """Raise the limit on open files up to `wanted`, as far as allowed; return it."""
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
        return _Server(await super()._make_server(), self._limits, self.app.get(FAST_PATH))


class _Server(web.Server):
    def __init__(self, server: web.Server, limits: ServerLimits, fast_path: FastPath | None) -> None:
        options = server._kwargs  # noqa: SLF001 - the runner's options, as aiohttp keeps them
        super().__init__(server.request_handler, request_factory=server.request_factory, **options)
        self._limits = limits
        self._fast_path = fast_path
        self._open = ConnectionLimit(limits.connections)

    def __call__(self, handshake: Handshake | None = None) -> _LimitedConnection:
        return _LimitedConnection(self, self._open, self._limits, self._fast_path, self._loop, self._kwargs, handshake)

    def entrance(self, listener: socket.socket, tls: ServerTls) -> TlsListener:
        return TlsListener(listener, tls, self._open, self, self._limits.head_s)


class _LimitedConnection(web.RequestHandler):
    __slots__ = ("_all", "_fast_path", "_handshake", "_head_timer", "_limits")

    def __init__(
        self,
        server: web.Server,
        connections: ConnectionLimit,
        limits: ServerLimits,
        fast_path: FastPath | None,
        loop: asyncio.AbstractEventLoop,
        options: dict[str, Any],
        handshake: Handshake | None,
    ) -> None:
        super().__init__(server, loop=loop, **options)
        self._all = connections
        self._limits = limits
        self._fast_path = fast_path
        self._handshake = handshake
        self._head_timer: asyncio.TimerHandle | None = None

    @property
    def most_at_a_time(self) -> int:
        return self._limits.connections

    @property
    def is_silent(self) -> bool:
        """True if every request received so far is answered."""
        return self._waiter is not None and not self._waiter.done()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._handshake is not None:
            self._all.gone(self._handshake)
            self._handshake = None
        if not self._all.admit(self):
            self.force_close()

    def abort(self) -> None:
        transport = self.transport
        self.force_close()
        if transport is not None:
            transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._all.gone(self)
        self._head_is_whole()

    def _answers_at_once(self, data: bytes) -> bool:
        """Answer a request that qualifies for the fast path; return True if it did.

        It qualifies if nothing else is in progress on the connection: no earlier request, no slow reader and no partial
        request. The keep-alive timeout restarts.
        """
        if self._fast_path is None or self._paused or self._head_timer is not None or self._keepalive_handle is None:
            return False
        if not self.is_silent or self._upgraded or self.transport is None:
            return False
        answer = self._fast_path(data)
        if answer is None:
            return False
        self.transport.write(answer)
        self._all.asked(self)
        self._next_keepalive_close_time = self._loop.time() + self._limits.idle_s
        return True

    def data_received(self, data: bytes) -> None:
        if self._answers_at_once(data):
            return
        requests = self._request_count
        super().data_received(data)
        if self._request_count != requests:
            self._on_request()
        elif self._head_timer is None and (self.is_silent or not requests):  # uvloop reads before the handler waits
            self._head_timer = self._loop.call_later(self._limits.head_s, self.force_close)

    def _on_request(self) -> None:
        self._head_is_whole()
        self._all.asked(self)
        body = self._messages[-1][1]
        if not body.is_eof():
            self._loop.call_later(self._limits.body_s, self._end_slow_body, body)

    def _head_is_whole(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_slow_body(self, body: StreamReader) -> None:
        """Answer 408 if the body has not arrived, and stop waiting for it."""
        if not body.is_eof() and body.exception() is None:
            self._lingering_time = 0.0
            reason = f"the body took longer than {self._limits.body_s:g} s"
            body.set_exception(web.HTTPRequestTimeout(reason=reason))

    def log_exception(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - as aiohttp calls it
        if not isinstance(options.get("exc_info"), web.RequestPayloadError):  # the rest of an unreadable body
            super().log_exception(*args, **options)

    def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> Coroutine[Any, Any, tuple[web.StreamResponse, bool]]:
        """Send the answer; aiohttp's own errors, such as 417, become JSON like all others."""
        if isinstance(resp, web.HTTPException):
            resp = self.handle_error(request, resp.status, message=resp.text)
        return super().finish_response(request, resp, start_time)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that reached no handler (malformed), or an unexpected error."""
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


def connections_allowed(request: web.Request) -> float:
    """Return the connection limit of the request's server; infinite without one."""
    connection = request.protocol
    return connection.most_at_a_time if isinstance(connection, _LimitedConnection) else math.inf


def unreadable(error: web.RequestPayloadError) -> str:
    """Describe a body whose encoding contradicts its headers."""
    return f"body: cannot be read: {error}"


SMALL_BYTES = 65_536
"""Bodies up to this size do not count as large: each connection's buffer may hold as much."""

_LARGE_AT_A_TIME = 8


class BodyLimit:
    """Request body limits of one server: a maximum size per operation, and a limit on concurrent large bodies.

    Without them, anyone who can connect could leave an unfinished body of the maximum size on every connection.
    """

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(_LARGE_AT_A_TIME)

    @contextlib.asynccontextmanager
    async def read(self, request: web.Request, most_bytes: int) -> AsyncIterator[None]:
        """Read the body. A large one keeps its slot until the context ends. A long wait ends in 408, like a slow body.

        Raises `BodyTooLargeError`, before reading if the length is declared, and `BadRequestError` for a compressed
        body: a few bytes could expand without limit.
        """
        packed = request.headers.get("Content-Encoding", "identity")
        if packed.lower() != "identity":
            raise BadRequestError(f"Content-Encoding: {packed[:40]!r}: send the body as it is")
        length = request.content_length
        if length is None and not request.can_read_body:
            length = 0
        if length is not None and length > most_bytes:
            raise BodyTooLargeError(most_bytes)
        is_large = length is None or length > SMALL_BYTES
        async with self._places if is_large else contextlib.nullcontext():
            if len(await _whole(request)) > most_bytes:
                raise BodyTooLargeError(most_bytes)
            yield


async def _whole(request: web.Request) -> bytes:
    try:
        return await request.read()
    except Exception as error:
        # The stream keeps the error, whose frames hold the bytes read, in a cycle that is collected much later.
        traceback.clear_frames(error.__traceback__)
        raise
