"""HTTP between parties without sockets: real handlers, requests and answers, with faults between them.

    client                                        server
      │──request, after a while ──▶ the link is cut: again and again, until it is not     ──▶ handler
      │                             the process is gone, or a firewall rejects: refused
      │                             the process is paused: nothing, until it goes on
      │◀──answer, after a while──── the link is cut: as above; the process was killed: the connection breaks

As over TCP, sent data is not lost while both hosts live; it may arrive after the client's timeout. A client whose
connection broke may repeat a request, which the server then gets twice. Streamed answers are in `streams`.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson
from aiohttp import streams, web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.http_parser import RawRequestMessage
from aiohttp.http_writer import HttpVersion11
from multidict import CIMultiDict, CIMultiDictProxy
from protocol.command_answers import COMMANDS, Manner, answer
from protocol.parties import Party, VirtualLoop, current_party
from protocol.streams import Stream, StreamTransport, StreamWriter
from yarl import URL

_LATENCY_S = (0.0002, 0.0038)
_SLOW_SHARES = (0.0, 0.02, 0.1, 0.3)
_SLOW_S = (0.05, 0.5, 2.5)
_TRY_AGAIN_S = 0.2
_TWICE_SHARE = 0.01
_REDIRECTS = 307
"""Status of a redirect; its target answers 204."""


@dataclass(eq=False, slots=True)
class Server:
    """An application that a party serves at an address, `host:port`."""

    party: Party
    app: web.Application
    manner: Manner = Manner.OBEYS
    """Manner of its answers to commands."""


@dataclass(frozen=True, slots=True)
class Message:
    """A request, or its answer. Without an answer `response` is None and `failure` has the reason."""

    client: Party
    server: str
    """Name of a party, or an address without a server."""
    method: str
    url: URL
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    response: web.StreamResponse | None = None
    failure: str = ""


@dataclass(slots=True)
class Network:
    """`cuts` are the pairs of hosts (from, to) between which nothing gets through, `rejects` those between which each
    attempt to connect is refused at once; `delivered` counts what gets through.
    """

    loop: VirtualLoop
    rng: random.Random
    servers: dict[str, Server] = field(default_factory=dict)
    cuts: set[tuple[str, str]] = field(default_factory=set)
    rejects: set[tuple[str, str]] = field(default_factory=set)
    delivered: Counter[str] = field(default_factory=Counter)
    waiting: dict[asyncio.Future[web.StreamResponse], Party] = field(default_factory=dict)
    """Clients waiting for an answer."""
    streams: list[Stream] = field(default_factory=list)
    tell: Callable[[str], None] = lambda _: None
    on_message: list[Callable[[Message], None]] = field(default_factory=list)
    slow_share: float = 0.0
    slow_s: float = 0.0
    """Longest delay of a slow message; drawn once."""

    def __post_init__(self) -> None:
        self.slow_share, self.slow_s = self.rng.choice(_SLOW_SHARES), self.rng.choice(_SLOW_S)

    def serve(self, address: str, party: Party, app: web.Application) -> None:
        app.freeze()
        self.servers[address] = Server(party, app)

    def note(self, message: Message) -> None:
        for told in self.on_message:
            told(message)

    def is_cut(self, source: str, destination: str) -> bool:
        return source != destination and (source, destination) in self.cuts

    def latency_s(self) -> float:
        if self.rng.random() < self.slow_share:
            return self.rng.uniform(0.0, self.slow_s)
        return self.rng.uniform(*_LATENCY_S)

    async def is_refused(self, url: str) -> bool:
        """Replaces `loadmanager.net.liveness.is_refused`: true if the host refuses the connection."""
        address, party = URL(url).authority, current_party()
        source, destination = party.host if party else "", _host_of(address)
        await asyncio.sleep(self.latency_s())
        if self.is_cut(source, destination) or self.is_cut(destination, source):
            await asyncio.sleep(1.0)
            return False
        return self._is_refused(source, address)

    def _is_refused(self, source: str, address: str) -> bool:
        server = self.servers.get(address)
        return server is None or server.party.is_dead or (source, _host_of(address)) in self.rejects

    async def exchange(
        self, method: str, url: URL, headers: CIMultiDict[str], body: bytes, limits: aiohttp.ClientTimeout
    ) -> web.StreamResponse:
        """Send a request of the running party and return the answer, within the timeouts of the sockets."""
        party = current_party()
        assert party is not None, "only parties send requests"
        address = url.authority
        try:
            async with asyncio.timeout(limits.sock_connect):
                server = await self._connect(party.host, address)
        except aiohttp.ClientConnectorError:
            self.note(Message(party, address, method, url, failure="refused"))
            raise
        except TimeoutError:
            self.note(Message(party, address, method, url, failure="no connection"))
            raise aiohttp.ConnectionTimeoutError(address) from None
        answer: asyncio.Future[web.StreamResponse] = self.loop.create_future()

        def broken() -> None:
            if not self.is_cut(server.party.host, party.host):
                self.loop.as_party(party, self.latency_s(), _fail, answer)

        self.waiting[answer] = party
        server.party.on_death.append(broken)
        deliver = _Delivery(self, party, server, method, url, headers, body, answer)
        deliver.later()
        if self.rng.random() < _TWICE_SHARE:
            deliver.later()
        try:
            async with asyncio.timeout(limits.sock_read):
                return await answer
        except aiohttp.ServerDisconnectedError:
            self.note(Message(party, server.party.name, method, url, failure="the connection broke"))
            raise
        finally:
            self.waiting.pop(answer, None)
            if broken in server.party.on_death:
                server.party.on_death.remove(broken)

    def break_connections(self, host: str) -> None:
        """End open requests with an error; the requested operations are carried out nevertheless."""
        for awaited, party in self.waiting.items():
            if party.host == host:
                self.loop.as_party(party, 0.0, _fail, awaited)
        for stream in self.streams:
            if stream.client.host == host:
                self.loop.as_party(stream.client, 0.0, stream.broken)

    async def _connect(self, host: str, address: str) -> Server:
        await asyncio.sleep(self.latency_s())
        destination = _host_of(address)
        while self.is_cut(host, destination) or self.is_cut(destination, host):  # noqa: ASYNC110 - as TCP does
            await asyncio.sleep(_TRY_AGAIN_S)
        if self._is_refused(host, address):
            raise aiohttp.ClientConnectorError(_NOWHERE, ConnectionRefusedError(f"{address} refuses connections"))
        return self.servers[address]


@dataclass(eq=False, slots=True)
class _Delivery:
    """Delivery of one request and its answer; the first of several answers counts."""

    network: Network
    client: Party
    server: Server
    method: str
    url: URL
    headers: CIMultiDict[str]
    body: bytes
    answer: asyncio.Future[web.StreamResponse]

    def later(self) -> None:
        self._send(self.client.host, self.server.party, self._arrive)

    def _send(self, source: str, to: Party, arrive: Callable[[], None]) -> None:
        network = self.network

        def hop() -> None:
            if network.is_cut(source, to.host):
                network.loop.as_party(to, _TRY_AGAIN_S, hop)
            else:
                arrive()

        network.loop.as_party(to, network.latency_s(), hop)

    def _message(self, response: web.StreamResponse | None = None) -> Message:
        return Message(self.client, self.server.party.name, self.method, self.url, self.headers, self.body, response)

    def _arrive(self) -> None:
        self.network.delivered["request"] += 1
        self.network.note(self._message())
        self.network.loop.create_task(self._handle())

    async def _handle(self) -> None:
        protocol = _Protocol(self.network, self.server.party, self.client, self._reply)
        obey = partial(respond, self.server.app, self.method, self.url, self.headers, self.body, protocol)
        response = await (answer(self.server.manner, obey) if self.url.path.endswith(COMMANDS) else obey())
        if response is None or not response.prepared:
            self._reply(response)

    def _reply(self, response: web.StreamResponse | None) -> None:
        self._send(self.server.party.host, self.client, lambda: self._answered(response))

    def _answered(self, response: web.StreamResponse | None) -> None:
        self.network.delivered["answer"] += 1
        if response is None:
            _fail(self.answer)
        elif not self.answer.done():
            self.network.note(self._message(response))
            self.network.tell(
                f"{self.client} ◀ {self.server.party}: {response.status} to {self.method} {self.url.path}"
            )
            self.answer.set_result(response)
        elif isinstance(response, StreamedResponse):
            response.protocol.leave()


async def respond(
    app: web.Application, method: str, url: URL, headers: CIMultiDict[str], body: bytes, protocol: _Protocol
) -> web.StreamResponse:
    """Response of the application, including aiohttp's errors and failures of handlers."""
    loop = asyncio.get_running_loop()
    payload = streams.StreamReader(BaseProtocol(loop), 2**16, loop=loop)
    payload.feed_data(body)
    payload.feed_eof()
    raw = tuple((name.encode(), value.encode()) for name, value in headers.items())
    message = RawRequestMessage(
        method,
        url.raw_path_qs,
        HttpVersion11,
        CIMultiDictProxy(headers),
        raw,
        should_close=False,
        compression=None,
        upgrade=False,
        chunked=False,
        url=url.relative(),
    )
    task = asyncio.current_task()
    assert task is not None
    request = web.Request(message, payload, protocol, protocol.writer, task, loop)  # type: ignore[arg-type]  # stand-ins
    try:
        return await app._handle(request)
    except web.HTTPException as error:
        return web.Response(status=error.status, text=error.reason)
    except Exception as error:  # noqa: BLE001 - aiohttp answers so
        return web.Response(status=500, text=f"{type(error).__name__}: {error}")


class StreamedResponse(web.StreamResponse):
    """Status and headers of a streamed answer, for its client."""

    def __init__(self, status: int, headers: CIMultiDict[str], protocol: _Protocol) -> None:
        super().__init__(status=status, headers=headers)
        self.protocol = protocol


class _Protocol:
    """Part of a connection that requests use: the peer, and the stream to it."""

    ssl_context = None
    peername = ("10.0.0.1", 1)
    sockname = ("10.0.0.2", 1)

    def __init__(
        self, network: Network, server: Party, client: Party, reply: Callable[[web.StreamResponse], None]
    ) -> None:
        self.stream = Stream(network, server, client)
        self.transport: StreamTransport | None = StreamTransport(client, self.stream)
        self.writer = StreamWriter(
            self.stream, lambda status, headers: reply(StreamedResponse(status, headers.copy(), self))
        )

    def leave(self) -> None:
        self.stream.leave(self._left)

    def _left(self) -> None:
        self.transport = None


_NOWHERE = ConnectionKey("nowhere", 0, is_ssl=False, ssl=True, proxy=None, proxy_auth=None, proxy_headers_hash=None)


class ClientSession:
    """Replaces `aiohttp.ClientSession`, as far as the product uses it."""

    network: Network
    """Set during a run: see `world`."""

    def __init__(self, *, timeout: aiohttp.ClientTimeout | None = None, **_: object) -> None:
        self._timeout = timeout or aiohttp.ClientTimeout(total=300)
        self.closed = False

    async def close(self) -> None:
        self.closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def request(self, method: str, url: str | URL, **options: Any) -> _Call:  # noqa: ANN401 - aiohttp's options
        return _Call(self.network, method, URL(url), options, options.pop("timeout", None) or self._timeout)

    def get(self, url: str | URL, **options: Any) -> _Call:  # noqa: ANN401 - as above
        return self.request("GET", url, **options)

    def put(self, url: str | URL, **options: Any) -> _Call:  # noqa: ANN401 - as above
        return self.request("PUT", url, **options)

    def post(self, url: str | URL, **options: Any) -> _Call:  # noqa: ANN401 - as above
        return self.request("POST", url, **options)


class _Call:
    """A request that is made when it is awaited, or entered."""

    def __init__(
        self,
        network: Network,
        method: str,
        url: URL,
        options: Mapping[str, Any],
        timeout: aiohttp.ClientTimeout,
    ) -> None:
        self._network = network
        self._method = method
        self._url = url.update_query(options.get("params") or {})
        self._options = options
        self._timeout = timeout
        self._streamed: StreamedResponse | None = None

    def __await__(self) -> Generator[Any, None, _Answer]:
        return self._make().__await__()

    async def _make(self) -> _Answer:
        headers = CIMultiDict(self._options.get("headers") or {})
        body = self._options.get("data") or b""
        if "json" in self._options:
            body = orjson.dumps(self._options["json"])
            headers["Content-Type"] = "application/json"
        async with asyncio.timeout(self._timeout.total):
            response = await self._network.exchange(self._method, self._url, headers, body, self._timeout)
            if response.status == _REDIRECTS and self._options.get("allow_redirects", True):
                response = web.Response(status=204)
            if isinstance(response, StreamedResponse):
                self._network.streams.append(response.protocol.stream)
                self._streamed = response
            return _Answer(self._url, response, self._timeout.sock_read)

    async def __aenter__(self) -> _Answer:
        return await self._make()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._streamed is not None:
            self._network.streams.remove(self._streamed.protocol.stream)
            self._streamed.protocol.leave()


class _Answer:
    """Replaces `aiohttp.ClientResponse`: complete unless streamed."""

    def __init__(self, url: URL, response: web.StreamResponse, silence_s: float | None = None) -> None:
        body = response.body if isinstance(response, web.Response) else None
        self.url = url
        self.status = response.status
        self.headers = response.headers
        self.content = _Content(bytes(body) if isinstance(body, (bytes, bytearray)) else b"")
        if isinstance(response, StreamedResponse):
            self.content = _Streamed(response.protocol.stream, silence_s)
        self.content_type = response.content_type

    async def read(self) -> bytes:
        return await self.content.read()

    async def text(self) -> str:
        return (await self.read()).decode()

    async def json(self, **_: object) -> Any:  # noqa: ANN401 - whatever was answered
        return orjson.loads(await self.read())

    def release(self) -> None: ...


class _Content:
    def __init__(self, body: bytes) -> None:
        self._body = body

    async def read(self, most: int = -1) -> bytes:
        taken = self._body if most < 0 else self._body[:most]
        self._body = self._body[len(taken) :]
        return taken

    async def iter_any(self) -> AsyncIterator[bytes]:
        if self._body:
            yield await self.read()


class _Streamed(_Content):
    def __init__(self, stream: Stream, silence_s: float | None) -> None:
        super().__init__(b"")
        self._stream = stream
        self._silence_s = silence_s

    def iter_any(self) -> AsyncIterator[bytes]:
        return self._stream.chunks(self._silence_s)


def _host_of(address: str) -> str:
    return address.rpartition(":")[0]


def _fail(answer: asyncio.Future[web.StreamResponse]) -> None:
    if not answer.done():
        answer.set_exception(aiohttp.ServerDisconnectedError())
