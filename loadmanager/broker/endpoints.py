"""HTTP endpoints of a broker for its agent: statistics, unload, preparation."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from loadmanager.broker.bounded_bodies import read

_MOST_BYTES = 64 << 20
"""An unload names all topics of a bundle that may be open. The list is whole, or of no use: so it is read whatever an
application that has these routes allows.
"""


class NotDoneError(Exception):
    """The request was not carried out; the agent will ask again."""


@dataclass(frozen=True, slots=True)
class Named:
    """The topics of an unload or a preparation; `bundle` is for logs, `destination` gets the bundle next, if known."""

    bundle: str
    topics: tuple[str, ...]
    destination: str | None

    @classmethod
    def parse(cls, text: bytes) -> Named:
        """Raises `ValueError`, which names the field."""
        body = json.loads(text)
        if not isinstance(body, dict):
            raise ValueError('expected {"bundle":"...","topics":["..."]}')  # noqa: TRY004 - of a value like any other
        bundle, topics, destination = body.get("bundle"), body.get("topics"), body.get("destination")
        if not isinstance(bundle, str):
            raise ValueError("bundle: expected a name")  # noqa: TRY004 - as above
        if not isinstance(topics, list) or not all(isinstance(topic, str) for topic in topics):
            raise ValueError("topics: expected a list of names")
        return cls(bundle, tuple(topics), destination if isinstance(destination, str) else None)


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Handlers of the endpoints. `unload` and `prepare` return when done, or raise `NotDoneError`."""

    stats: Callable[[], Mapping[str, Any]]
    unload: Callable[[Named], Awaitable[None]]
    prepare: Callable[[Named], Awaitable[None]]

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/loadmanager/v1/stats", self._stats),
            web.post("/loadmanager/v1/unload", self._unload),
            web.post("/loadmanager/v1/prepare", self._prepare),
        ]

    async def _stats(self, _request: web.Request) -> web.Response:
        return web.json_response(self.stats())

    async def _unload(self, request: web.Request) -> web.Response:
        return await _do(self.unload, request)

    async def _prepare(self, request: web.Request) -> web.Response:
        return await _do(self.prepare, request)


async def _do(what: Callable[[Named], Awaitable[None]], request: web.Request) -> web.Response:
    try:
        named = Named.parse(await read(request.content, _MOST_BYTES))
    except ValueError as error:
        return web.json_response({"reason": f"{request.path}: {error}"}, status=400)
    try:
        await what(named)
    except NotDoneError as error:
        return web.json_response({"reason": str(error)}, status=500)
    return web.Response(status=204)
