"""An event loop in virtual time, with a network of its own: an hour of waiting takes a moment, and the same each time.

Time stands still while anything is ready and jumps to the next timer when nothing is. Nothing leaves the process:
aiohttp's clients, and probes of a port, reach the servers of `serve` over connections in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import socket
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar
from unittest import mock

import aiohttp
from aiohttp import web
from aiohttp.client_proto import ResponseHandler

_Result = TypeVar("_Result")
_STARTED_S = 1_000.0
_WALL_CLOCK_S = 1_800_000_000.0
_MOST_TURNS = 20_000
"""Highest number of turns of the loop without time passing: only an endless loop takes as many."""
_TURNS_OF_A_MICROSECOND = 1_000


class VirtualLoop(asyncio.SelectorEventLoop):
    """`servers` are the protocols behind each port of 127.0.0.1."""

    def __init__(self) -> None:
        self.now_s = _STARTED_S
        self.servers: dict[int, Callable[[], asyncio.Protocol]] = {}
        super().__init__(_Jumping(self))

    def time(self) -> float:
        return self.now_s

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """`run_until_complete` while the clocks of the process show virtual time, and aiohttp connects in here."""

        async def connect(_: object, request: aiohttp.ClientRequest, *__: object) -> ResponseHandler:
            return self._connect(request)

        with contextlib.ExitStack() as stack:
            for name, clock in self._clocks().items():
                stack.enter_context(mock.patch.object(time, name, clock))
            stack.enter_context(mock.patch.object(aiohttp.TCPConnector, "_create_connection", connect))
            return self.run_until_complete(work)

    def end(self) -> None:
        """Cancel all tasks."""

        async def end_all() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.run(end_all())
        self.close()

    def _clocks(self) -> Mapping[str, Callable[..., float]]:
        def wall_s() -> float:
            return self.now_s + _WALL_CLOCK_S

        return {
            "monotonic": self.time,
            "clock_gettime": lambda _: self.time(),
            "time": wall_s,
            "time_ns": lambda: int(wall_s() * 1e9),
        }

    def run_in_executor(self, _: object, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]  # noqa: ANN401
        """Run it at once, without a thread."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - it is the caller's
            future.set_exception(error)
        return future

    async def sock_connect(self, _: socket.socket, address: tuple[str, int]) -> None:  # type: ignore[override]
        if address[1] not in self.servers:
            raise ConnectionRefusedError(f"nothing listens at {address}")

    def _connect(self, request: aiohttp.ClientRequest) -> ResponseHandler:
        make_server = self.servers.get(request.url.port or 0)
        if make_server is None:
            raise aiohttp.ClientConnectorError(request.connection_key, ConnectionRefusedError(str(request.url)))
        client = ResponseHandler(loop=self)
        near, far = _Wire(self, client), _Wire(self, make_server())
        near.peer, far.peer = far, near
        for wire in (far, near):
            wire.protocol.connection_made(wire)
        return client


class _Jumping(selectors.SelectSelector):
    """Waits for nothing: what would be slept through has passed."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop
        self._turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everybody waits, and nothing is due any more")
        self._turns = 0 if timeout > 0 else self._turns + 1
        if self._turns > _MOST_TURNS:
            self._turns = 0
            raise RuntimeError(f"somebody is busy without end: {asyncio.all_tasks(self._loop)}")
        # A timer is due up to a nanosecond early. Tasks that set theirs again in turn would keep time from passing.
        is_stalled = self._turns > 0 and self._turns % _TURNS_OF_A_MICROSECOND == 0
        self._loop.now_s += 1e-6 if is_stalled else max(0.0, timeout)
        return []


class _Wire(asyncio.Transport):
    """One end of a connection; what is written arrives in the loop's next turn, in its order."""

    peer: _Wire

    def __init__(self, loop: VirtualLoop, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._loop = loop
        self.protocol = protocol
        self._is_closing = False
        self._is_paused = False
        self._held: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._is_closing:
            self._loop.call_soon(self.peer.arrive, bytes(data))

    def arrive(self, data: bytes) -> None:
        if self._is_paused:
            self._held.append(data)
        elif not self._is_closing:
            self.protocol.data_received(data)

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        self._loop.call_soon(self.protocol.connection_lost, None)
        self._loop.call_soon(self.peer.end)

    abort = close

    def end(self) -> None:
        """The other end has closed."""
        if not self._is_closing:
            self.protocol.eof_received()
            self.close()

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        held, self._held = self._held, []
        for data in held:
            self._loop.call_soon(self.arrive, data)

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is no buffer."""


async def serve(app: web.Application, port: int) -> web.AppRunner:
    """Serve `app` on a port of the running loop's network."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
    await runner.setup()
    assert runner.server is not None
    network().servers[port] = runner.server
    return runner


async def close_port(port: int) -> None:
    """Nobody is listened to any more; connections that there are stay."""
    network().servers.pop(port, None)


def network() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop
