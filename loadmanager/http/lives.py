"""What became of a bundle, by the history: decisions, moves, orders and leaders, also of before this leader."""

from __future__ import annotations

import time

from aiohttp import web

from loadmanager.auth.roles import Role
from loadmanager.core.names import BundleName, BundleRange, NamespaceName
from loadmanager.http.bodies import number_of, time_of
from loadmanager.http.forwarding import Forwarder
from loadmanager.http.openapi import TIME, Operation, Parameter
from loadmanager.http.responses import json_response
from loadmanager.leader.port import LifePort
from loadmanager.wire.lives import BundleLife

_LIFE = "/loadbalance/v1/history/bundle/{tenant}/{namespace}/{range}"
_HALF_A_DAY_MS = 43_200_000
_MOST = 1_000
_READING_TIMEOUT_S = 60.0


class LifeHandlers:
    def __init__(self, lives: LifePort, forwarder: Forwarder) -> None:
        self._lives = lives
        self._forwarder = forwarder

    def operations(self) -> list[Operation]:
        limit: dict[str, object] = {"type": "integer", "minimum": 1, "maximum": _MOST, "default": _MOST}
        return [
            Operation(
                "GET",
                _LIFE,
                "what became of a bundle, and of those whose ranges overlap with its, by the history, oldest first",
                self.bundle,
                (
                    Parameter("since", "from this time on, in ms since 1970; none: of the last 12 hours", TIME),
                    Parameter("until", "before this time, in ms since 1970; none: up to now", TIME),
                    Parameter("limit", "so many of the newest", limit),
                ),
                role=Role.READ,
                response_model=BundleLife,
                statuses=(200, 400, 404, 412),
            ),
        ]

    async def bundle(self, request: web.Request) -> web.Response:
        """`?since=&until=&limit=`; the range need not be one of today's bundles."""
        namespace = NamespaceName.of(request.match_info["tenant"], request.match_info["namespace"])
        name = BundleName(namespace, BundleRange.parse(request.match_info["range"].lower()))
        now_ms = time.time_ns() // 1_000_000
        given_since_ms, given_until_ms = time_of(request, "since"), time_of(request, "until")
        until_ms = now_ms + 1 if given_until_ms is None else given_until_ms
        since_ms = max(0, min(until_ms, now_ms) - _HALF_A_DAY_MS) if given_since_ms is None else given_since_ms
        limit = number_of(request, "limit", _MOST, 1, _MOST)

        async def act() -> web.Response:
            life = await self._lives.of(name, since_ms, until_ms, limit)
            return json_response(life.model_dump(by_alias=True))

        return await self._forwarder.once_it_leads(request, act, _READING_TIMEOUT_S)
