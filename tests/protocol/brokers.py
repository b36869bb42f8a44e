"""A broker's process in a run, and the brokers that serve each topic: detects two owners at once.

The broker is the demo's, without its sockets for clients. It is as eager as the contract allows: it opens topics on
requests and on warm-ups, and serves them until it must stop.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from protocol.parties import Party, VirtualLoop

from loadmanager.broker import CloseReason, Closing, Hosting, RefusedError, Topic
from loadmanager.broker.contract import Contract
from loadmanager.dev.demo.demo_broker import TopicHost
from loadmanager.util.clock import now_s

_PREPARES_S = (0.0, 0.0, 0.0, 0.1, 1.0, 3.0)
"""Durations of a warm-up; the last exceeds every timeout."""


@dataclass(slots=True)
class Served:
    """Brokers that may serve each topic now; `violations` lists topics with two of them."""

    loop: VirtualLoop
    hosts: dict[str, tuple[Party, Hosting]] = field(default_factory=dict)
    open: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    violations: list[str] = field(default_factory=list)
    closes_s: Sequence[float] = (0.0,)
    """Durations of closing a topic; one is drawn each time."""
    on_change: Callable[[], None] = lambda: None
    on_event: Callable[[Mapping[str, Any]], None] = lambda _: None
    """Called with each opening and closing, in the format of the demo's broker log."""
    is_owner: Callable[[str, str, int | None], bool] = lambda *_: True
    """Returns true if the record names this host and incarnation as the owner of a topic, releasing included."""

    def joined(self, instance: str, party: Party, hosting: Hosting) -> None:
        self.hosts[instance] = party, hosting

    def opened(self, instance: str, topic: str) -> None:
        self.open[topic].add(instance)
        self.on_change()
        self.check(topic)

    def closed(self, instance: str, topic: str) -> None:
        self.open[topic].discard(instance)
        self.on_change()

    def renewed(self, instance: str) -> None:
        for topic, instances in self.open.items():
            if instance in instances:
                self.check(topic)

    def check(self, topic: str) -> None:
        serving = self.serving(topic)
        if len(serving) > 1:
            self.violations.append(f"{topic} is served by {' and '.join(serving)}")
        for instance in serving:
            party, hosting = self.hosts[instance]
            if not self.is_owner(topic, party.host, hosting.incarnation):
                self.violations.append(f"{topic} is served by {instance}, and its record says otherwise")

    def serving(self, topic: str) -> list[str]:
        """Return live processes that have the topic open and a lease by their own clock; paused ones count."""
        return sorted(instance for instance in self.open[topic] if self.has_lease(instance))

    def has_lease(self, instance: str) -> bool:
        party, hosting = self.hosts[instance]
        return not party.is_dead and party.context.copy().run(lambda: hosting.has_lease)


class _Log:
    """Replaces the file of openings and closings."""

    def __init__(self, served: Served) -> None:
        self._served = served

    def append(self, record: Mapping[str, Any]) -> None:
        self._served.on_event(record)
        match record["event"]:
            case "opened":
                self._served.opened(record["instance"], record["topic"])
            case "closed":
                self._served.closed(record["instance"], record["topic"])


class _WatchedContract(Contract):
    """A contract that reports renewed leases."""

    def __init__(self, on_lease: Callable[[], None]) -> None:
        super().__init__()
        self._on_lease = on_lease

    def _use_lease(self) -> None:
        super()._use_lease()
        self._on_lease()


class Broker:
    """A broker that is created and run as its party. Some instances do not support warm-ups."""

    def __init__(self, party: Party, agent_url: str, served: Served, rng: random.Random) -> None:
        self.host = TopicHost(agent_url, _Log(served), clock=now_s)  # type: ignore[arg-type]  # a log
        self.host.instance = party.name
        self.hosting = self.host.hosting
        self.hosting._contract = _WatchedContract(lambda: served.renewed(party.name))
        self.hosting._on_prepare = self._prepare
        self.hosting._on_close = self._close
        self._rng = rng
        self._can_prepare = self._rng.random() < 0.75
        self._party, self._loop, self._served = party, served.loop, served
        self._openings: set[asyncio.Task[object]] = set()
        served.joined(party.name, party, self.hosting)

    def app(self) -> web.Application:
        app = web.Application()
        routes = [each for each in self.hosting.routes() if self._can_prepare or not each.path.endswith("/prepare")]
        app.add_routes([*routes, web.get("/serve", self._serve)])
        return app

    async def _serve(self, request: web.Request) -> web.Response:
        """Answer a client that wants to use a topic: 204 if this broker serves it."""
        return web.Response(status=204 if await self._open(request.query["topic"]) else 409)

    async def _open(self, topic: str) -> bool:
        try:
            await self.hosting.open(topic)
        except RefusedError:
            return False
        return True

    async def _close(self, hosted: Topic, closing: Closing) -> None:
        """Close a topic. With a lease, first wait for a disk write, which continues while this process is paused."""
        if closing.reason is not CloseReason.LAPSED:
            written: asyncio.Future[None] = self._loop.create_future()
            self._loop.as_party(self._party, self._rng.choice(self._served.closes_s), _finish, written)
            await written
        await self.host._close(hosted, closing)

    async def _prepare(self, _bundle: str, topics: Sequence[str]) -> None:
        """Request and open the topics of a coming bundle early."""
        for topic in topics:
            opening: asyncio.Task[object] = asyncio.create_task(self._open(topic))
            self._openings.add(opening)
            opening.add_done_callback(self._openings.discard)
        await asyncio.sleep(self._rng.choice(_PREPARES_S))


def _finish(written: asyncio.Future[None]) -> None:
    if not written.done():
        written.set_result(None)
