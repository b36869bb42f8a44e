"""Nodes that push a namespace, as far as a client sees them: their real encoding, and how far each of them has come."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aiohttp import web
from support.registrations import a_record
from support.virtual_loop import close_port, serve

from loadmanager.client.push_events import EventReader, StreamEvent
from loadmanager.core.domain.bundles import HashFunction, NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import BrokerId, NamespaceName
from loadmanager.core.domain.ownership import (
    IllegalTransitionError,
    NamespaceState,
    OwnershipState,
    Registration,
    Stamp,
    abandon,
    assign,
    complete,
    inherit,
    owner_gone,
    release,
)
from loadmanager.http.watch_sheet import Sheet
from loadmanager.leader.mirror.cluster_mirror import BrokerEntry, NamespaceEntry, lookup_answer

NAMESPACE = "t/ns"
STAMP = Stamp(1, 1, "test")
BROKERS = tuple(Registration(BrokerId(f"b{number}:8080"), number) for number in range(1, 4))


def an_entry(registration: Registration) -> BrokerEntry:
    record = a_record(registration.broker)
    answer = lookup_answer(registration.broker, record)
    assert answer is not None
    return BrokerEntry(registration, 0, record, answer.to_json())


ENTRIES = {registration.broker: an_entry(registration) for registration in BROKERS}


def unowned(bundles: int = 4, function: HashFunction = HashFunction.MURMUR3_32) -> NamespaceState:
    name = NamespaceName.parse(NAMESPACE)
    return NamespaceState.unowned(name, NamespaceBundles(equal_boundaries(bundles), function))


def assigned(state: NamespaceState, index: int, broker: Registration = BROKERS[0]) -> NamespaceState:
    return state.with_ownerships({index: assign(state.ownerships[index], broker, STAMP)})


def moved_on(state: NamespaceState, chance: random.Random) -> NamespaceState:
    """One legal transition of any bundle, or another shape."""
    index = chance.randrange(len(state.bundles))
    now = state.ownerships[index]
    if chance.random() < 0.25 and now.state is not OwnershipState.RELEASING:
        bundle_range = state.bundles.range_at(index)
        middle = (bundle_range.lower + bundle_range.upper) // 2
        try:
            return (
                state.split(index, [middle], STAMP)
                if chance.random() < 0.5 and middle > bundle_range.lower and len(state.bundles) < 12
                else state.merge(index, STAMP)
            )
        except (IllegalTransitionError, ValueError):
            return state
    choices = {
        OwnershipState.FREE: [assign(now, chance.choice(BROKERS), STAMP)] if now.state is OwnershipState.FREE else [],
    }
    if now.state is OwnershipState.OWNED:
        destination = chance.choice([None, *BROKERS])
        choices[now.state] = [
            release(now, destination, STAMP),
            inherit(now, chance.choice(BROKERS), STAMP),
            owner_gone(now, STAMP),
        ]
    if now.state is OwnershipState.RELEASING:
        choices[now.state] = [complete(now, STAMP), abandon(now, STAMP)]
    return state.with_ownerships({index: chance.choice(choices[now.state])})


_HEARTBEAT_S = 10.0
"""Interval of a node's heartbeats: clients leave a node that is silent for three times as long."""


@dataclass
class PushingNode:
    """A node that has read `history` up to `at`."""

    history: Sequence[NamespaceState]
    at: int = 0
    brokers: Mapping[BrokerId, BrokerEntry] = field(default_factory=lambda: ENTRIES)
    sheet: Sheet = field(default_factory=lambda: Sheet(NAMESPACE))

    def __post_init__(self) -> None:
        self.look(self.at)

    def look(self, at: int) -> None:
        self.at = at
        self.sheet.look(NamespaceEntry(self.history[at], at, 1, 1), self.brokers)

    def event(self, mark: str = "") -> StreamEvent | None:
        """Event that brings a client with this mark up to date; None when it is."""
        place = self.sheet.place_of(mark)
        return None if place == self.sheet.place else event_of(self.sheet.since(place))


@dataclass
class ScriptedNode:
    """Scripted node with a watch: on a loop in virtual time, at port `port`."""

    port: int
    node: PushingNode
    is_old: bool = False
    """True for a version without a watch."""
    protocol: int = 1
    nonsense: bytes = b""
    """Invalid bytes that it pushes first."""
    is_silent: bool = False
    """True if it sends nothing more on its streams."""
    owner: str | None = "b1:8080"
    """Owner in the answer to every lookup; None: 503, with a `Retry-After` of 1."""
    status: int = 0
    """Status of every answer, if it is not 0."""
    reason: str = "because"
    asked: list[str] = field(default_factory=list)
    """The topics that were looked up."""
    watched_at_s: list[float] = field(default_factory=list)
    """Times of the requests for streams."""
    heads: list[int] = field(default_factory=list)
    """Length of the first line of each of these requests."""
    streams: int = 0
    _runner: web.AppRunner | None = None
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}", self._lookup)
        app.router.add_get("/loadbalance/v1/watch", self._no_watch if self.is_old else self._watch)
        self._runner = await serve(app, self.port)

    async def stop(self) -> None:
        """Close the port and all connections, like a killed process."""
        assert self._runner is not None
        await close_port(self.port)
        await self._runner.cleanup()

    def look(self) -> None:
        """Read all of the history, and push it."""
        self.node.look(len(self.node.history) - 1)
        self._news.set()
        self._news = asyncio.Event()

    async def _lookup(self, request: web.Request) -> web.Response:
        names = request.match_info
        self.asked.append(f"{names['domain']}://{names['tenant']}/{names['namespace']}/{names['topic']}")
        await asyncio.sleep(0.01)
        if self.status or self.owner is None:
            status = self.status or 503
            return web.json_response({"reason": self.reason}, status=status, headers={"Retry-After": "1"})
        return web.Response(body=ENTRIES[BrokerId(self.owner)].lookup_body, content_type="application/json")

    async def _no_watch(self, _: web.Request) -> web.Response:
        return web.json_response({"reason": "no such path"}, status=404)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        self.watched_at_s.append(asyncio.get_running_loop().time())
        self.heads.append(len(request.raw_path))
        if self.status:
            return web.json_response({"reason": self.reason}, status=self.status)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self.streams += 1
        try:
            await self._push(response, request.headers.get("Last-Event-ID", ""))
        finally:
            self.streams -= 1
        return response

    async def _push(self, response: web.StreamResponse, mark: str) -> None:
        await response.write(b'event: hello\ndata: {"protocol":%d}\n\n' % self.protocol + self.nonsense)
        place = self.node.sheet.place_of(mark)
        while True:
            update = self._news
            if place != self.node.sheet.place and not self.is_silent:
                await response.write(self.node.sheet.since(place).partition(b"\r\n")[2].removesuffix(b"\r\n"))
                place = self.node.sheet.place
            try:
                async with asyncio.timeout(_HEARTBEAT_S):
                    await update.wait()
            except TimeoutError:
                if not self.is_silent:
                    await response.write(b": nothing new\n\n")


def event_of(chunk: bytes) -> StreamEvent:
    """The event in a chunk of HTTP."""
    (event,) = EventReader().feed(chunk.partition(b"\r\n")[2])
    return event
