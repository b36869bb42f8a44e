"""HTTP/1.1 load generator that costs much less CPU than the servers: requests are prebuilt bytes, answers have a known
length, and only the status line is parsed.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterable, Sequence
from typing import cast
from urllib.parse import urlsplit

_OK = b"HTTP/1.1 200 "
_END_OF_HEAD = b"\r\n\r\n"


def request_bytes(url: str, paths: Iterable[str], more: str = "") -> list[bytes]:
    """Build the requests. `more` are additional header lines, each with its line end."""
    head = f"Host: {urlsplit(url).netloc}\r\nAccept: application/json\r\n{more}\r\n"
    return [f"GET {path} HTTP/1.1\r\n{head}".encode() for path in paths]


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 80


async def fetch(url: str, path: str, more: str = "") -> tuple[bytes, int]:
    """Return the body of an answer with status 200, and the length of the answer in bytes with its head."""
    reader, writer = await asyncio.open_connection(*_address(url))
    writer.write(request_bytes(url, [path], more)[0])
    head = await reader.readuntil(_END_OF_HEAD)
    if not head.startswith(_OK):
        raise RuntimeError(f"{url}{path}: {head.splitlines()[0].decode()}")
    lengths = [line for line in head.lower().splitlines() if line.startswith(b"content-length:")]
    body = await reader.readexactly(int(lengths[0].partition(b":")[2]))
    writer.close()
    await writer.wait_closed()
    return body, len(head) + len(body)


class Connection(asyncio.Protocol):
    """Connection that sends the next request when an answer is complete. `latencies_s` has all latencies."""

    def __init__(self, requests: Sequence[bytes], first: int, answer_bytes: int) -> None:
        self._requests = itertools.cycle([*requests[first:], *requests[:first]])
        self._answer_bytes = answer_bytes
        self._missing = 0
        self._sent_at_s = 0.0
        self._stopping = False
        self._transport: asyncio.Transport | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.latencies_s: list[float] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # transports of uvloop have no class of asyncio
        self._send()

    def data_received(self, data: bytes) -> None:
        if self._missing == self._answer_bytes and not data.startswith(_OK):
            self.closed.set_exception(RuntimeError(f"unexpected answer: {data[:200]!r}"))
            return
        self._missing -= len(data)
        if self._missing > 0:
            return
        self.latencies_s.append(time.perf_counter() - self._sent_at_s)
        assert self._transport is not None
        if self._stopping:
            self._transport.close()
        else:
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            if self._stopping and exc is None:
                self.closed.set_result(None)
            else:
                self.closed.set_exception(exc or RuntimeError("the server closed the connection"))

    def stop(self) -> None:
        """Close after the pending answer."""
        self._stopping = True

    def _send(self) -> None:
        assert self._transport is not None
        self._missing = self._answer_bytes
        self._sent_at_s = time.perf_counter()
        self._transport.write(next(self._requests))


async def load(
    url: str, paths: Sequence[str], connections: int, duration_s: float, more: str = ""
) -> tuple[float, list[float]]:
    """Return the requests per second over `duration_s`, and their latencies in seconds, ascending.

    Each connection requests all `paths` in turn, from a different start. All answers must have the same length.
    """
    _, answer_bytes = await fetch(url, paths[0], more)
    loop = asyncio.get_running_loop()
    requests = request_bytes(url, paths, more)
    started_s = time.perf_counter()
    opened: list[Connection] = []
    for number in range(connections):
        first = number * len(requests) // connections
        _, connection = await loop.create_connection(
            lambda first=first: Connection(requests, first, answer_bytes),  # type: ignore[misc]  # a default binds it now
            *_address(url),
        )
        opened.append(connection)
    done, _ = await asyncio.wait(
        [connection.closed for connection in opened], timeout=duration_s, return_when=asyncio.FIRST_EXCEPTION
    )
    for future in done:
        future.result()
    took_s = time.perf_counter() - started_s
    latencies_s = sorted(latency_s for connection in opened for latency_s in connection.latencies_s)
    for connection in opened:
        connection.stop()
    await asyncio.gather(*(connection.closed for connection in opened))
    return len(latencies_s) / took_s, latencies_s
