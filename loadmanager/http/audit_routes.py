"""Audit log: recent operations, and those in the recorded history."""

from __future__ import annotations

from aiohttp import web

from loadmanager.http.leader_proxy import Forwarder
from loadmanager.http.openapi import Operation, Parameter
from loadmanager.http.request_bodies import parse_number, parse_time
from loadmanager.http.responses import json_bytes
from loadmanager.leader.node_port import AuditPort, LeadershipPort
from loadmanager.net.auth.roles import AccessRole
from loadmanager.util import clock
from loadmanager.wire.audit_entry import AuditAnswer

_LIMIT = 100
_MOST = 2_000
_LATEST_MS = 10**15 - 1
_DAY_MS = 86_400_000


class AuditHandlers:
    """Audit log, answered by the leader, which executes operator commands."""

    def __init__(self, leadership: LeadershipPort, audit: AuditPort, forwarder: Forwarder) -> None:
        self._leadership = leadership
        self._audit = audit
        self._forwarder = forwarder

    def operations(self) -> list[Operation]:
        time_ms: dict[str, object] = {"type": "integer", "minimum": 0, "maximum": _LATEST_MS}
        most: dict[str, object] = {"type": "integer", "minimum": 1, "maximum": _MOST, "default": _LIMIT}
        return [
            Operation(
                "GET",
                "/loadbalance/v1/audit",
                "who changed what, newest first: what the leader did, and from the history what its predecessors did",
                self.show,
                (
                    Parameter("since", "from this time on, in ms since 1970; none: of the last 24 hours", time_ms),
                    Parameter("until", "before this time, in ms since 1970; none: up to now", time_ms),
                    Parameter("limit", "how many at most", most),
                ),
                role=AccessRole.READ,
                response_model=AuditAnswer,
                statuses=(200, 400),
            )
        ]

    async def show(self, request: web.Request) -> web.Response:
        now_ms = clock.now_ms()
        given_since_ms, given_until_ms = parse_time(request, "since"), parse_time(request, "until")
        until_ms = now_ms + 1 if given_until_ms is None else given_until_ms
        since_ms = min(until_ms, now_ms) - _DAY_MS if given_since_ms is None else given_since_ms
        limit = parse_number(request, "limit", _LIMIT, 1, _MOST)

        async def act() -> web.Response:
            self._leadership.get_term()
            entries = await self._audit.recent(since_ms, until_ms, limit)
            return json_bytes(AuditAnswer(entries=entries).model_dump_json(by_alias=True).encode())

        return await self._forwarder.on_leader(request, act)
