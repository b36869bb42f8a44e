"""HTTP servers of a test's own, on loopback ports that the kernel chose."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Self

from aiohttp import web
from support.leaks import CLOSED_LAST

from loadmanager.dev.embedded.server_files import free_ports
from loadmanager.net.http_server import ServerLimits, serve_within

_TURNS_UNTIL_ACCEPTED = 3


@dataclass(slots=True)
class LoopbackServer:
    """Serves `routes()` between `start` and `stop`; started again it comes back on the same port, which is none that a
    connection of somebody else may be given meanwhile.
    """

    port: int = 0
    listener: socket.socket = field(init=False, repr=False)
    _runner: web.AppRunner | None = field(default=None, init=False, repr=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def routes(self) -> list[web.RouteDef]:
        raise NotImplementedError

    async def start(self) -> None:
        app = web.Application()
        app.add_routes(self.routes())
        # Requests that are held back must not hold up the end of the server (0 would mean: without limit).
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
        await self._runner.setup()
        self.listener = listen(self.port or free_ports(1)[0])
        self.port = self.listener.getsockname()[1]
        await web.SockSite(self._runner, self.listener).start()

    async def stop(self) -> None:
        """Close the port and every connection, as the end of the process would."""
        if self._runner is not None:
            await end_app(self._runner)
            self._runner = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


LIMITS = ServerLimits(head_s=60.0, body_s=60.0, idle_s=60.0, connections=2_048)


async def serve_app(app: web.Application, listener: socket.socket, limits: ServerLimits = LIMITS) -> web.AppRunner:
    """Serve `app` on a socket that listens already, as nodes and agents do; end it with `end_app`."""
    runner = await serve_within(app, limits, 0.01)
    await web.SockSite(runner, listener).start()
    return runner


@asynccontextmanager
async def serving(routes: list[web.RouteDef]) -> AsyncIterator[str]:
    """Serve these routes on a free port; the URL."""
    app, listener = web.Application(), listen()
    app.add_routes(routes)
    runner = await serve_app(app, listener)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        await end_app(runner)


async def end_app(runner: web.AppRunner) -> None:
    """Close the port and every connection. Nothing is accepted any more before that: asyncio loses a connection that it
    accepts while a server closes.
    """
    loop = asyncio.get_running_loop()
    for site in runner.sites:
        for listener in site._server.sockets if isinstance(site._server, asyncio.Server) else ():
            loop.remove_reader(listener.fileno())
    for _ in range(_TURNS_UNTIL_ACCEPTED):
        await asyncio.sleep(0)
    await runner.cleanup()


def listen(port: int = 0) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(64)
    return listener


def closed_port() -> int:
    """A loopback port on which nothing listens, nor will: it is held as long as tests run."""
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    CLOSED_LAST.append(held)
    port: int = held.getsockname()[1]
    return port
