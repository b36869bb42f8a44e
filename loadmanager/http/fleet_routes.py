"""Fleet status of the cluster: as one answer, or as a stream of server-sent events that survives a change of leader.

`Feed` samples the fleet once a second for all streams; `LiveHandlers` has the routes.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from itertools import islice
from typing import Any, Literal

import orjson
import structlog
from aiohttp import web
from pydantic import ValidationError

from loadmanager.errors import BadRequestError, NoLeaderError, NotLeaderError
from loadmanager.http.leader_proxy import Forwarder
from loadmanager.http.messages import EVENTS, NOTHING_NEW, encode_event, event_stream, json_response, problem
from loadmanager.http.openapi import Operation, Parameter, read
from loadmanager.leader.fleet_status import FleetStatus
from loadmanager.net.auth.gate import AccessRole, AuthGate
from loadmanager.util import clock
from loadmanager.util.timed_wait import wait_at_most
from loadmanager.wire.fleet_bodies import Briefing, FleetBody, Mark

log = structlog.get_logger(__name__)

_EVENTS_KEPT = 1_000
_UNHEARD_S = 5.0
"""Time for which the leader's last briefing stays valid if it does not answer."""


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """Position of a stream: the number of its last snapshot and of its last event."""

    snapshot: int = 0
    event: int = 0


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """A `decision` or an `operation`, with its frame and the mark of a reader that has received it."""

    kind: Literal["decision", "operation"]
    frame: bytes
    mark: Mark

    @classmethod
    def of(cls, kind: Literal["decision", "operation"], data: bytes, mark: Mark) -> FeedEvent:
        return cls(kind, encode_event(kind, data, mark), mark)

    def is_after(self, seen: Mark) -> bool:
        """Return True if the event is later than the mark. Decisions and operations have separate counters, which
        restart in each term.
        """
        if self.kind == "decision":
            return (self.mark.epoch, self.mark.place) > (seen.epoch, seen.place)
        return (self.mark.epoch, self.mark.operations) > (seen.epoch, seen.operations)


class Frames:
    """The newest snapshot and the last events, encoded."""

    def __init__(self, kept: int = _EVENTS_KEPT) -> None:
        self._events = deque[FeedEvent](maxlen=kept)
        self._newest = StreamPosition()
        self._body = self._snapshot = b""

    @property
    def newest(self) -> StreamPosition:
        return self._newest

    @property
    def beginning(self) -> StreamPosition:
        """Position of a new stream: the newest snapshot follows, and future events."""
        return replace(self._newest, snapshot=0)

    def forget_snapshot(self) -> None:
        self._body = self._snapshot = b""

    def show(self, snapshot: dict[str, Any], at_ms: int) -> None:
        """Store a snapshot of the fleet if more than its time has changed."""
        body = orjson.dumps(snapshot)
        if body != self._body:
            self._body, self._snapshot = body, encode_event("fleet", b'{"at":%d,%b' % (at_ms, body[1:]))
            self._newest = replace(self._newest, snapshot=self._newest.snapshot + 1)

    def put(self, event: FeedEvent) -> None:
        self._newest = replace(self._newest, event=self._newest.event + 1)
        self._events.append(event)

    def after(self, place: StreamPosition, seen: Mark | None = None) -> tuple[bytes, StreamPosition]:
        """Return the frames after a position, without events up to `seen`, and the new position."""
        if place == self._newest:
            return b"", place
        known = max(0, len(self._events) - (self._newest.event - place.event))
        new = islice(self._events, known, None)
        frames = [each.frame for each in new if seen is None or each.is_after(seen)]
        snapshot = self._snapshot if self._newest.snapshot > place.snapshot else b""
        return snapshot + b"".join(frames), self._newest


class Feed:
    """Samples the fleet.

    `look` builds the snapshot from the leader's briefing. `ask` requests the briefing after a mark; None when the
    leader does not answer.

        the node, the leader ──once a second──▶ Feed ──▶ Frames ◀──each at its own pace── streams

    A stream holds only a position in the frames. A slow reader gets the newest snapshot and the events that still
    exist. So readers neither increase memory nor delay each other.
    """

    def __init__(
        self,
        look: Callable[[Briefing | None], dict[str, Any]],
        ask: Callable[[Mark | None], Awaitable[Briefing | None]],
        interval_s: float = 1.0,
    ) -> None:
        self.frames = Frames()
        self.changed = asyncio.Event()
        """Set, and replaced, on each change."""
        self.readers = 0
        self.is_closed = False
        self._look = look
        self._ask = ask
        self._interval_s = interval_s
        self._task: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._looked = asyncio.Event()
        self._briefing: Briefing | None = None
        self._heard_s = 0.0
        self._mark: Mark | None = None

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Count a reader; the feed samples while there is one."""
        self.readers += 1
        if self._task is None or self._task.done():
            self._looked.clear()
            self.frames.forget_snapshot()
            self._briefing = self._mark = None
            self._task = asyncio.create_task(self._run(), name="live feed")
        try:
            yield
        finally:
            self.readers -= 1

    async def events_after(self, mark: Mark) -> tuple[bytes, Mark]:
        """Return the events after the mark that the leader still has, and the mark of the last one. Later events are in
        the frames.
        """
        await self._looked.wait()
        briefing = await self._ask(mark)
        if briefing is None:
            return b"", mark
        return b"".join(event.frame for event in _events_of(briefing)), _mark_of(briefing.mark)

    def close(self) -> None:
        """End all streams."""
        self.is_closed = True
        self._looked.set()
        self._announce()
        for task in (self._task, self._asking):
            if task is not None:
                task.cancel()

    async def _run(self) -> None:
        """Sample until an interval has passed without a reader."""
        announced = self.frames.newest
        while self.readers:
            began_s = time.monotonic()
            if self._asking is None or self._asking.done():
                self._asking = asyncio.create_task(self._hear(), name="live feed asks")
            await asyncio.wait({self._asking}, timeout=self._interval_s)
            self._show()
            self._looked.set()
            if self.frames.newest != announced:
                announced = self.frames.newest
                self._announce()
            await asyncio.sleep(max(0.0, began_s + self._interval_s - time.monotonic()))

    def _show(self) -> None:
        if time.monotonic() - self._heard_s > _UNHEARD_S:
            self._briefing = None
        try:
            self.frames.show(self._look(self._briefing), clock.now_ms())
        except Exception:
            log.exception("fleet_snapshot_failed")

    async def _hear(self) -> None:
        """Request the leader's briefing, and store its new decisions and operations."""
        try:
            briefing = await self._ask(self._mark)
        except Exception:
            log.exception("leader_not_heard")
            return
        if briefing is not None:
            self._briefing, self._heard_s = briefing, time.monotonic()
            self._mark = _mark_of(briefing.mark)
            for event in _events_of(briefing):
                self.frames.put(event)

    def _announce(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


def _events_of(briefing: Briefing) -> Iterator[FeedEvent]:
    for decision in briefing.decisions:
        yield FeedEvent.of("decision", orjson.dumps(decision.decision), _mark_of(decision.mark))
    for operation in briefing.operations:
        body = orjson.dumps(operation.operation.model_dump(by_alias=True))
        yield FeedEvent.of("operation", body, _mark_of(operation.mark))


def _mark_of(text: str) -> Mark:
    mark = Mark.parse(text)
    assert mark is not None, "a briefing has no others"
    return mark


_BRIEFING = "/loadbalance/v1/briefing"
_LAST_SEEN = "Last-Event-ID"
_MAX_STREAMS = 100
"""Maximum number of open pages. Each takes 90 KiB/s, so together 9 MiB/s."""
_ASK_S = 3.0
"""Timeout of the leader's briefing. Meanwhile the page shows this node's mirror."""
_IDLE_S = 10.0
_LOOK_S = 1.0
"""Interval at which a stream checks that its reader is connected."""
_SLOW_S = 30.0
"""Timeout after which a reader that takes no frame counts as gone."""


class LiveHandlers:
    """Fleet status on any node: its own mirror, and the leader's briefing, which one request a second fetches."""

    def __init__(self, fleet_status: FleetStatus, forwarder: Forwarder, gate: AuthGate) -> None:
        self._fleet_status = fleet_status
        self._forwarder = forwarder
        self._gate = gate
        self._feed = Feed(fleet_status.fleet, self._ask)

    def operations(self) -> list[Operation]:
        after = Parameter("after", "the mark up to which all is known; none: no decisions, and no operations")
        return [
            read("/loadbalance/v1/fleet", self.fleet, FleetBody),
            read("/loadbalance/v1/live", self.stream, None, media_type=EVENTS),
            read(_BRIEFING, self.briefing, Briefing, after, role=AccessRole.PEER, statuses=(200, 400)),
        ]

    def close(self) -> None:
        """End all streams."""
        self._feed.close()

    async def fleet(self, _: web.Request) -> web.Response:
        """Return the fleet status: brokers with their usage, moves, and obstacles of the balancer."""
        at_ms = clock.now_ms()
        return json_response({"at": at_ms, **self._fleet_status.fleet(await self._ask(None))})

    async def briefing(self, request: web.Request) -> web.Response:
        """Return the part of the fleet status that only the leader knows, for the other nodes."""
        text = request.query.get("after")
        after = None if text is None else Mark.parse(text)
        if text is not None and after is None:
            raise BadRequestError(f"after {text[:40]!r}: expected the mark of an answer, three numbers with colons")
        return await self._forwarder.run_on_leader(request, lambda: self._fleet_status.briefing(after))

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Stream the fleet status when it has changed, each decision and each operation, from Last-Event-ID on."""
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
        """Send snapshots and events until the node stops, or the reader is gone or no longer permitted."""
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
            await wait_at_most(changed, _LOOK_S)
        await response.write_eof()

    async def _ask(self, after: Mark | None) -> Briefing | None:
        """Request the leader's briefing, possibly from this node; None if there is no leader, or no answer."""
        try:
            return self._fleet_status.briefing(after)
        except (NotLeaderError, NoLeaderError):
            query = "" if after is None else f"?after={after}"
            body = await self._forwarder.ask_leader(f"{_BRIEFING}{query}", _ASK_S)
        try:
            return None if body is None else Briefing.model_validate_json(body)
        except ValidationError:  # a node of another version
            return None


async def _write(response: web.StreamResponse, frames: bytes) -> None:
    async with asyncio.timeout(_SLOW_S):
        await response.write(frames)
