"""Leadership check for standbys: whether this node leads, and can write."""

from __future__ import annotations

import asyncio

from aiohttp import web

from loadmanager.http.openapi import Operation, Parameter
from loadmanager.http.request_bodies import parse_number
from loadmanager.http.responses import json_bytes
from loadmanager.leader.node_port import LeadershipPort
from loadmanager.net.auth.roles import AccessRole
from loadmanager.wire.http_bodies import LONGEST_HOLD_MS, TermAnswer


class TermHandlers:
    """`/loadbalance/v1/term`; never forwarded: it is about the node that is asked."""

    def __init__(self, leadership: LeadershipPort) -> None:
        self._leadership = leadership

    def operations(self) -> list[Operation]:
        hold: dict[str, object] = {"type": "integer", "minimum": 0, "maximum": LONGEST_HOLD_MS, "default": 0}
        return [
            Operation(
                "GET",
                "/loadbalance/v1/term",
                "the epoch of this node's term, once the store has said that it is still the last one",
                self.term,
                (Parameter("holdMs", "answer so much later, or as soon as who leads changes", hold),),
                role=AccessRole.ANYONE,
                response_model=TermAnswer,
                statuses=(200, 400, 503),
            )
        ]

    async def term(self, request: web.Request) -> web.Response:
        """Answer after the hold, which limits the rate of standbys and gives them a pending request that ends with the
        process.
        """
        hold_ms = parse_number(request, "holdMs", 0, 0, LONGEST_HOLD_MS)
        if hold_ms:
            await asyncio.wait({self._leadership.leader_changed}, timeout=hold_ms / 1000)
        term = await self._leadership.prove_term()
        return json_bytes(TermAnswer(epoch=term.epoch).to_json())
