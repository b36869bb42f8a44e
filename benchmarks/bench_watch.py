"""Cost and delay of a change pushed to all watchers of a namespace: 1,000 and 10,000 watchers of a standby, compared
with streams that each write for themselves. Also the cost of watchers that never read.

A change is a write of the namespace's record to a metadata store in memory. It has arrived when the last byte of its
event is read. All clients are in one process, whose work is part of that time.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple, cast
from urllib.parse import urlsplit

import aiohttp
from bench_lookup import Server, a_server
from measure import Measured, percentile, show

from loadmanager.cli.service_runner import install_fast_loop

FEW, MANY = 1_000, 10_000
SILENT = 200
ROUNDS = 20
IDLE_S = 10.0
WATCHED, LARGE = (f"/loadbalance/v1/watch?namespace=tenant/{name}" for name in ("watched", "large"))
MOVE = "/bench/move?namespace=tenant/watched"
TARGET_P99_MS = 100.0
TARGET_SILENT_KIB = 256.0
_BETWEEN_S = 0.3
_TIMEOUT_S = 120.0
_SETTLED_S = 2.0
_OPENED_AT_A_TIME = 200


class Arrivals:
    """Arrival times of a number of events."""

    def __init__(self) -> None:
        self.at_s: list[float] = []
        self._wanted = 0
        self._all = asyncio.Event()

    def expect(self, events: int) -> None:
        self.at_s, self._wanted = [], events
        self._all.clear()

    def note(self) -> None:
        self.at_s.append(time.monotonic())
        if len(self.at_s) == self._wanted:
            self._all.set()

    async def all(self) -> list[float]:
        async with asyncio.timeout(_TIMEOUT_S):
            await self._all.wait()
        return sorted(self.at_s)


class Reader(asyncio.Protocol):
    """Records the arrival of the first event, and of each later one."""

    def __init__(self, request: bytes, arrivals: Arrivals) -> None:
        self._request = request
        self._arrivals = arrivals
        self.transport: asyncio.Transport | None = None
        self.began: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if b"event: change\n" in data:
            self._arrivals.note()
        elif b"event: snapshot\n" in data and not self.began.done():
            self.began.set_result(None)


class Pushed(NamedTuple):
    """99th percentile of the time from the write to the reader, in the median and the worst round, and the server's CPU
    time per reader and round.
    """

    p99_ms: float
    worst_ms: float
    cpu_us: float


class Bench:
    """Readers of one server, and their measurements."""

    def __init__(self, server: Server, http: aiohttp.ClientSession) -> None:
        self._server = server
        self._http = http
        self._arrivals = Arrivals()

    @property
    def url(self) -> str:
        return self._server.url

    async def open(self, path: str, count: int) -> list[Reader]:
        url = urlsplit(self._server.url)
        request = f"GET {path} HTTP/1.1\r\nHost: {url.netloc}\r\n\r\n".encode()
        loop, opened = asyncio.get_running_loop(), list[Reader]()
        while len(opened) < count:
            some = [
                loop.create_connection(lambda: Reader(request, self._arrivals), url.hostname or "", url.port or 0)
                for _ in range(min(_OPENED_AT_A_TIME, count - len(opened)))
            ]
            readers = [reader for _, reader in await asyncio.gather(*some)]
            await asyncio.gather(*(reader.began for reader in readers))
            opened += readers
        return opened

    async def close(self, readers: list[Reader]) -> None:
        for reader in readers:
            if reader.transport is not None:
                reader.transport.abort()
        await asyncio.sleep(_SETTLED_S)

    async def push(self, readers: int, path: str, beside: Callable[[], Awaitable[None]] | None = None) -> Pushed:
        """Push one change per round; `beside` runs before each."""
        p99_s, cpu_s = list[float](), 0.0
        for _ in range(ROUNDS):
            if beside is not None:
                await beside()
            self._arrivals.expect(readers)
            before_s = self.cpu_s
            async with self._http.post(path) as response:
                told_s = (await response.json())["at"]
            p99_s.append(percentile(await self._arrivals.all(), 99) - told_s)
            cpu_s += self.cpu_s - before_s
            await asyncio.sleep(_BETWEEN_S)
        return Pushed(statistics.median(p99_s) * 1e3, max(p99_s) * 1e3, cpu_s / (readers * ROUNDS) * 1e6)

    async def move(self, namespace: str) -> None:
        async with self._http.post(f"/bench/move?namespace={namespace}") as response:
            response.raise_for_status()

    @property
    def cpu_s(self) -> float:
        return float(sum(self._server.process.cpu_times()[:2]))

    @property
    def kib(self) -> float:
        """Return the server's memory in KiB."""
        return float(self._server.process.memory_info().rss) / 1024


@contextlib.contextmanager
def silent_readers(url: str, path: str, count: int) -> Iterator[None]:
    """Open connections that request a stream and never read it."""
    parts = urlsplit(url)
    with contextlib.ExitStack() as closing:
        for _ in range(count):
            silent = closing.enter_context(socket.socket())
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            silent.connect((parts.hostname, parts.port))
            silent.sendall(f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
        yield


async def many(bench: Bench) -> list[Measured]:
    before_kib = bench.kib
    readers = await bench.open(WATCHED, MANY)
    watcher_kib = (bench.kib - before_kib) / MANY
    pushed = await bench.push(MANY, MOVE)
    before_s = bench.cpu_s
    await asyncio.sleep(IDLE_S)
    idle = (bench.cpu_s - before_s) / IDLE_S
    await bench.close(readers)
    readers = await bench.open("/bench/bare", MANY)
    bare = await bench.push(MANY, "/bench/tell")
    await bench.close(readers)
    return [
        Measured("99th percentile, median of the rounds", pushed.p99_ms, "ms"),
        Measured("the same of bare streams", bare.p99_ms, "ms"),
        Measured("processor time a watcher", pushed.cpu_us, "us"),
        Measured("the same of a bare stream", bare.cpu_us, "us"),
        Measured("while nothing happens", idle * 100, "% of a core"),
        Measured("memory of a watcher", watcher_kib, "KiB"),
    ]


async def few(bench: Bench) -> list[Measured]:
    readers = await bench.open("/bench/bare", FEW)
    bare = await bench.push(FEW, "/bench/tell")
    await bench.close(readers)
    readers = await bench.open(WATCHED, FEW)
    pushed = await bench.push(FEW, MOVE)

    async def move_in_large() -> None:
        await bench.move("tenant/large")

    beside = await bench.push(FEW, MOVE, move_in_large)
    before_kib = bench.kib
    with silent_readers(bench.url, LARGE, SILENT):
        await asyncio.sleep(_SETTLED_S)
        disturbed = await bench.push(FEW, MOVE, move_in_large)
        silent_kib = (bench.kib - before_kib) / SILENT
    await bench.close(readers)
    return [
        Measured("99th percentile, median of the rounds", pushed.p99_ms, "ms", TARGET_P99_MS),
        Measured("99th percentile, worst round", pushed.worst_ms, "ms"),
        Measured("the same of bare streams, median", bare.p99_ms, "ms"),
        Measured("processor time a watcher", pushed.cpu_us, "us"),
        Measured("with a change of 4,096 bundles just before", beside.p99_ms, "ms"),
        Measured(f"that and {SILENT} who watch these and never read", disturbed.p99_ms, "ms"),
        Measured("memory of each of them", silent_kib, "KiB", TARGET_SILENT_KIB),
    ]


async def measure(server: Server, part: Callable[[Bench], Awaitable[list[Measured]]], title: str) -> None:
    async with aiohttp.ClientSession(server.url, timeout=aiohttp.ClientTimeout(_TIMEOUT_S)) as http:
        bench = Bench(server, http)
        await bench.move("tenant/large")
        await bench.move("tenant/watched")
        show(f"A change pushed to {title} watchers, {ROUNDS} rounds", await part(bench))


def main() -> None:
    install_fast_loop()
    command = [str(Path(__file__).with_name("watch_server.py"))]
    for part, title in ((few, f"{FEW:,}"), (many, f"{MANY:,}")):
        with tempfile.TemporaryDirectory() as folder, a_server(Path(folder), "node", command) as server:
            asyncio.run(measure(server, part, title))


if __name__ == "__main__":
    main()
