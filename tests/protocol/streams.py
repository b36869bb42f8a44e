"""Streamed HTTP answers between parties: the server's writes, in order, to a client.

As over TCP: chunks arrive in order, late while the link is cut. The stream breaks when the server dies and its host can
reach the client. The client may leave at any time; the server notices a little later.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from multidict import CIMultiDict
from protocol.parties import Party

if TYPE_CHECKING:
    from protocol.network import Network

_TRY_AGAIN_S = 0.2


class Stream:
    """One streamed answer."""

    def __init__(self, network: Network, server: Party, client: Party) -> None:
        self.network = network
        self.server = server
        self.client = client
        self.is_open = True
        self._sent: deque[bytes | Exception | None] = deque()
        self._arrived: deque[bytes | Exception | None] = deque()
        self._news = asyncio.Event()

    def begin(self) -> None:
        """Tell the client when the server dies, from now on."""
        self.server.on_death.append(self._server_died)

    def send(self, chunk: bytes | Exception | None) -> None:
        """Send a chunk to the client; None ends the stream, an exception breaks it."""
        self._sent.append(chunk)
        self._deliver_later(self.network.latency_s())

    async def chunks(self, silence_s: float | None) -> AsyncIterator[bytes]:
        """Chunks that the client reads. Raises the error that broke the stream, or `TimeoutError` after a silence."""
        while True:
            while not self._arrived:
                self._news.clear()
                async with asyncio.timeout(silence_s):
                    await self._news.wait()
            chunk = self._arrived.popleft()
            if isinstance(chunk, Exception):
                raise chunk
            if chunk is None:
                return
            yield chunk

    def leave(self, on_left: Callable[[], None]) -> None:
        """Close the connection at the client's end; the server is notified."""
        self.is_open = False
        if self._server_died in self.server.on_death:
            self.server.on_death.remove(self._server_died)
        self.network.loop.as_party(self.server, self.network.latency_s(), on_left)

    def broken(self) -> None:
        """The connection breaks at the client's end."""
        if self.is_open:
            self._arrived.append(aiohttp.ClientPayloadError("the connection broke"))
            self._news.set()

    def _server_died(self) -> None:
        if not self.network.is_cut(self.server.host, self.client.host):
            self.send(aiohttp.ClientPayloadError("the server is gone"))

    def _deliver_later(self, delay_s: float) -> None:
        self.network.loop.as_party(self.client, delay_s, self._deliver)

    def _deliver(self) -> None:
        """Deliver the oldest pending chunk, which keeps the order."""
        if not self.is_open:
            return
        if self.network.is_cut(self.server.host, self.client.host):
            self._deliver_later(_TRY_AGAIN_S)
            return
        self.network.delivered["chunk"] += 1
        self._arrived.append(self._sent.popleft())
        self._news.set()


class StreamTransport:
    """A server's end of a connection, for writes that bypass the HTTP writer; `party` is the client."""

    def __init__(self, party: Party, stream: Stream) -> None:
        self.party = party
        self._stream = stream

    def write(self, chunk: bytes | memoryview) -> None:
        """Send the body of one HTTP/1.1 chunk."""
        self._stream.send(bytes(chunk).partition(b"\r\n")[2].removesuffix(b"\r\n"))

    def is_closing(self) -> bool:
        return not self._stream.is_open

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, **_: int) -> None: ...

    def get_extra_info(self, _: str) -> StreamTransport:
        """In place of the socket."""
        return self

    def setsockopt(self, *_: int) -> None: ...

    def abort(self) -> None:
        self._stream.send(aiohttp.ClientPayloadError("the server closed the connection"))


class StreamWriter(AbstractStreamWriter):
    """aiohttp's writer of an answer; `on_headers` is called with the status line's end and the headers."""

    def __init__(self, stream: Stream, on_headers: Callable[[int, CIMultiDict[str]], None]) -> None:
        self._stream = stream
        self._on_headers = on_headers

    async def write_headers(self, status_line: str, headers: CIMultiDict[str]) -> None:
        self._stream.begin()
        self._on_headers(int(status_line.split()[1]), headers)

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        self._stream.send(bytes(chunk))

    async def write_eof(self, chunk: bytes = b"") -> None:
        del chunk
        self._stream.send(None)

    async def drain(self) -> None: ...

    def enable_compression(self, *_: Any) -> None: ...  # noqa: ANN401 - aiohttp's

    def enable_chunking(self) -> None: ...
