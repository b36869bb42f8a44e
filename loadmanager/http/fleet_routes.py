"""Fleet status of the cluster: as one answer, or as a stream of server-sent events that survives a change of leader."""

from __future__ import annotations

import asyncio
import contextlib
import time
from http import HTTPStatus

from aiohttp import web
from pydantic import ValidationError

from loadmanager.errors import BadRequestError, NoLeaderError, NotLeaderError
from loadmanager.http.fleet_feed import Feed
from loadmanager.http.leader_proxy import Forwarder
from loadmanager.http.openapi import EVENTS, Operation, Parameter
from loadmanager.http.responses import json_response, problem
from loadmanager.http.server_sent_events import NOTHING_NEW, event_stream
from loadmanager.leader.node_port import FleetStatusPort
from loadmanager.net.auth.gate import AuthGate
from loadmanager.net.auth.roles import AccessRole
from loadmanager.util import clock
from loadmanager.wire.fleet_bodies import Briefing, FleetBody, Mark

_BRIEFING = "/loadbalance/v1/briefing"
_LAST_SEEN = "Last-Event-ID"
_MAX_STREAMS = 100
"""Open pages. Each takes 90 KiB/s, so so many take 9 MiB/s."""
_ASK_S = 3.0
"""Timeout of the leader's briefing; meanwhile the page shows this node's mirror."""
_IDLE_S = 10.0
_LOOK_S = 1.0
"""Interval at which a stream checks that its reader is connected."""
_SLOW_S = 30.0
"""Timeout after which a reader that takes no frame counts as gone."""


class LiveHandlers:
    """Fleet status on any node: its own mirror, and the leader's briefing, requested once a second for all streams
    together.
    """

    def __init__(self, fleet_status: FleetStatusPort, forwarder: Forwarder, gate: AuthGate) -> None:
        self._fleet_status = fleet_status
        self._forwarder = forwarder
        self._gate = gate
        self._feed = Feed(fleet_status.fleet, self._ask)

    def operations(self) -> list[Operation]:
        after = Parameter("after", "the mark up to which all is known; none: no decisions, and no operations")
        return [
            Operation(
                "GET",
                "/loadbalance/v1/fleet",
                "the cluster as it is shown: brokers with their usage, what moves, what keeps the balancer from moving",
                self.fleet,
                role=AccessRole.READ,
                response_model=FleetBody,
            ),
            Operation(
                "GET",
                "/loadbalance/v1/live",
                "the same as a stream: fleet when it has changed, each decision, each operation, from Last-Event-ID on",
                self.stream,
                role=AccessRole.READ,
                media_type=EVENTS,
            ),
            Operation(
                "GET",
                _BRIEFING,
                "what only the leader knows of that, for the other nodes",
                self.briefing,
                (after,),
                role=AccessRole.PEER,
                response_model=Briefing,
                statuses=(200, 400),
            ),
        ]

    def close(self) -> None:
        """End all streams."""
        self._feed.close()

    async def fleet(self, request: web.Request) -> web.Response:
        del request
        at_ms = clock.now_ms()
        return json_response({"at": at_ms, **self._fleet_status.fleet(await self._ask(None))})

    async def briefing(self, request: web.Request) -> web.Response:
        """`?after=`: the leader's briefing for other nodes."""
        text = request.query.get("after")
        after = None if text is None else Mark.parse(text)
        if text is not None and after is None:
            raise BadRequestError(f"after {text[:40]!r}: expected the mark of an answer, three numbers with colons")

        async def act() -> web.Response:
            return json_response(self._fleet_status.briefing(after).model_dump(by_alias=True))

        return await self._forwarder.once_it_leads(request, act)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        if self._feed.readers >= _MAX_STREAMS:
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, f"{_MAX_STREAMS} streams are open: ask another node")
        response = event_stream()
        with self._feed.reading():
            await response.prepare(request)
            try:
                if request.method != "HEAD":
                    await self._send(request, response)
            except (ConnectionError, TimeoutError):
                if request.transport is not None:
                    request.transport.abort()
        return response

    async def _send(self, request: web.Request, response: web.StreamResponse) -> None:
        """Send snapshots and events until the node ends, or the reader is gone or not permitted any more."""
        feed, place, sent_s = self._feed, self._feed.frames.beginning, time.monotonic()
        seen = Mark.parse(request.headers.get(_LAST_SEEN, ""))
        if seen is not None:
            missed, seen = await feed.events_after(seen)
            await _write(response, missed)
        while (
            not feed.is_closed and request.transport is not None and self._gate.still_permits(request, AccessRole.READ)
        ):
            changed = feed.changed
            frames, place = feed.frames.after(place, seen)
            if not frames and time.monotonic() - sent_s > _IDLE_S:
                frames = NOTHING_NEW
            if frames:
                await _write(response, frames)
                sent_s = time.monotonic()
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await changed.wait()
        await response.write_eof()

    async def _ask(self, after: Mark | None) -> Briefing | None:
        """Request the leader's briefing, which may be this node's; None when there is no leader, or it does not
        answer.
        """
        try:
            return self._fleet_status.briefing(after)
        except (NotLeaderError, NoLeaderError):
            query = "" if after is None else f"?after={after}"
            said = await self._forwarder.ask_leader(f"{_BRIEFING}{query}", _ASK_S)
        try:
            return None if said is None else Briefing.model_validate_json(said)
        except ValidationError:  # a node of another version
            return None


async def _write(response: web.StreamResponse, frames: bytes) -> None:
    async with asyncio.timeout(_SLOW_S):
        await response.write(frames)
