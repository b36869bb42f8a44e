"""A TCP proxy that can become a network that loses everything.

While `blackhole` is in force nothing passes, in either direction, and that includes the end of a connection: each side
keeps a connection that looks open and stays silent, as behind dropped packets. What was held back passes on
`heal`, as TCP would have sent it again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from types import TracebackType
from typing import Self

_READ_BYTES = 65_536


class TcpProxy:
    """Forwards connections to `127.0.0.1:port`. Use it with `async with`; `address` is where it listens, `accepted`
    how many connections were made to it. Each of the next ones ends after the client's bytes that `cuts` allows it."""

    def __init__(self, port: int) -> None:
        self.accepted = 0
        self.cuts: deque[int] = deque()
        self._target_port = port
        self._passing = asyncio.Event()
        self._passing.set()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def blackhole(self) -> None:
        self._passing.clear()

    def heal(self) -> None:
        self._passing.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self.accepted += 1
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._serve(reader, writer)
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._passing.wait()
        most_bytes = self.cuts.popleft() if self.cuts else None
        target_reader, target_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        pumps = {
            asyncio.create_task(self._pump(reader, target_writer, most_bytes)),
            asyncio.create_task(self._pump(target_reader, writer)),
        }
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            target_writer.transport.abort()

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, most_bytes: int | None = None
    ) -> None:
        """Pass bytes on until the source ends; the end itself, too, is withheld while nothing passes."""
        passed = 0
        while data := await source.read(_READ_BYTES):
            await self._passing.wait()
            passed += len(data)
            if most_bytes is not None and passed > most_bytes:
                return
            sink.write(data)
            await sink.drain()
        await self._passing.wait()
        sink.close()
        await sink.wait_closed()
