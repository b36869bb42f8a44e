"""Timeline of the last hours for the heat map, from this node's memory."""

from __future__ import annotations

from typing import Literal

from aiohttp import web

from loadmanager.errors import BadRequestError
from loadmanager.http.openapi import TIME, Operation, Parameter
from loadmanager.http.request_bodies import parse_number, parse_time
from loadmanager.http.responses import json_response
from loadmanager.leader.node_port import TimelinePort, Window
from loadmanager.net.auth.roles import AccessRole
from loadmanager.util import clock
from loadmanager.wire.fleet_bodies import Timeline

_MOST = 2_000
_COLUMNS, _ROWS = 240, 200
_OF = {"type": "string", "enum": ["brokers", "bundles"], "default": "brokers"}


class TimelineHandlers:
    def __init__(self, timeline_memory: TimelinePort) -> None:
        self._timeline_memory = timeline_memory

    def operations(self) -> list[Operation]:
        number: dict[str, object] = {"type": "integer", "minimum": 1, "maximum": _MOST}
        return [
            Operation(
                "GET",
                "/loadbalance/v1/timeline",
                "usage of brokers, or load of bundles by namespace and hash, over time, with moves, splits and leaders",
                self.timeline,
                (
                    Parameter(
                        "of",
                        "brokers or bundles",
                        {"type": "string", "enum": ["brokers", "bundles"], "default": "brokers"},
                    ),
                    Parameter("since", "from when on, ms since 1970; else a day before `until`", TIME),
                    Parameter("until", "until when, ms since 1970; else now", TIME),
                    Parameter("columns", "how many at most", {**number, "default": _COLUMNS}),
                    Parameter("rows", "how many at most; neighbours by name share one", {**number, "default": _ROWS}),
                ),
                role=AccessRole.READ,
                response_model=Timeline,
                statuses=(200, 400),
            )
        ]

    async def timeline(self, request: web.Request) -> web.Response:
        of = _of(request)
        until_ms = parse_time(request, "until")
        until_ms = clock.now_ms() if until_ms is None else until_ms
        since_ms = parse_time(request, "since")
        since_ms = max(until_ms - self._timeline_memory.span_ms, 0) if since_ms is None else since_ms
        if since_ms >= until_ms:
            raise BadRequestError(f"since {since_ms}: expected a time before until, {until_ms}")
        columns, rows = (
            parse_number(request, "columns", _COLUMNS, 1, _MOST),
            parse_number(request, "rows", _ROWS, 1, _MOST),
        )
        return json_response(await self._timeline_memory.draw(of, Window(since_ms, until_ms, columns, rows)))


def _of(request: web.Request) -> Literal["brokers", "bundles"]:
    match request.query.get("of", "brokers"):
        case "brokers":
            return "brokers"
        case "bundles":
            return "bundles"
        case other:
            raise BadRequestError(f"of {other[:40]!r}: expected brokers or bundles")
