"""A scripted broker in virtual time whose agent answers unloads in every way an agent, or what is between, can."""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass

from aiohttp import web
from support.scripted_broker import ScriptedBroker
from support.virtual_loop import close_port, serve


class Manner(enum.Enum):
    """How unloads are answered."""

    OBEYS = "obeys"
    REFUSES = "412, and serves on"
    FAILS = "503, and serves on"
    REDIRECTS = "307 to somebody who says 204, and serves on"
    CREEPS = "obeys, but after the call has timed out"
    STUTTERS = "obeys, and says so twice"
    BREAKS_OFF = "ends in the middle of a 204, and serves on"
    IS_SILENT = "never, and serves on"


_STATUSES = {Manner.REFUSES: 412, Manner.FAILS: 503, Manner.REDIRECTS: 307}
YES_MAN = 9_999
"""The port of somebody who says 204 to everything."""


@dataclass
class FickleBroker(ScriptedBroker):
    manner: Manner = Manner.OBEYS
    creeps_s: float = 1.5

    async def start(self) -> None:
        app = web.Application()
        app.add_routes(self.routes())
        self._runner = await serve(app, self.port)

    async def stop(self) -> None:
        await close_port(self.port)
        await super().stop()

    async def _unload(self, request: web.Request) -> web.Response:
        manner = self.manner
        if manner is Manner.IS_SILENT:
            await asyncio.Event().wait()
        if manner is Manner.BREAKS_OFF:
            assert request.transport is not None
            request.transport.write(b"HTTP/1.1 204 No Con")
            request.transport.close()
        if manner in _STATUSES:
            headers = {"Location": f"http://127.0.0.1:{YES_MAN}{request.path}"}
            return web.json_response({"reason": "scripted"}, status=_STATUSES[manner], headers=headers)
        if manner is Manner.BREAKS_OFF:
            return web.Response(status=503)
        if manner is Manner.CREEPS:
            await asyncio.sleep(self.creeps_s)
        response = await super()._unload(request)
        if manner is Manner.STUTTERS and response.status == web.HTTPNoContent.status_code:
            assert request.transport is not None
            request.transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        return response


async def serve_yes_man() -> web.AppRunner:
    async def say_yes(_: web.Request) -> web.Response:
        return web.Response(status=204)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", say_yes)
    return await serve(app, YES_MAN)
