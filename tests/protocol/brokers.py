"""A broker's process in a run, and who serves what at every moment: a topic with two owners shows here at once.

The broker is the demo's, without its sockets for clients. It is as eager as the contract allows: whoever asks for a
topic has it opened, and so has whoever says that it is about to come; it serves until it has to stop.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web
from protocol.parties import Party, VirtualLoop

from loadmanager.calling import HttpClient
from loadmanager.demo.broker import AgentClient, AgentInterface, renew_lease
from loadmanager.demo.hosting import TopicHost
from loadmanager.demo.lease import Lease
from loadmanager.demo.vitals import Vitals
from loadmanager.wire.http import LeaseAnswer, OwnerAnswer, TopicsOfBundle

_WAIT_MS = 2_000
_PREPARES_S = (0.0, 0.0, 0.0, 0.1, 1.0, 3.0)
"""How long it takes to prepare; the last is longer than anybody waits for it."""


@dataclass(slots=True)
class Served:
    """Who may serve each topic now, by the name of the broker's process; `violations` are moments with two of them."""

    loop: VirtualLoop
    hosts: dict[str, tuple[Party, Lease]] = field(default_factory=dict)
    open: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    violations: list[str] = field(default_factory=list)
    on_change: Callable[[], None] = lambda: None
    is_owner: Callable[[str, str, int | None], bool] = lambda *_: True
    """Whether the record gives a topic to a host in an incarnation, or does not take it away yet."""

    def joined(self, instance: str, party: Party, lease: Lease) -> None:
        self.hosts[instance] = party, lease

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
            party, lease = self.hosts[instance]
            if not self.is_owner(topic, party.host, lease.incarnation):
                self.violations.append(f"{topic} is served by {instance}, and its record says otherwise")

    def serving(self, topic: str) -> list[str]:
        """The processes that have it open, live, and have a lease by their own clock; a stopped one may go on."""
        return sorted(instance for instance in self.open[topic] if self.has_lease(instance))

    def has_lease(self, instance: str) -> bool:
        party, lease = self.hosts[instance]
        return not party.is_dead and party.context.copy().run(lease.is_valid)


class _Log:
    """In place of the file of openings and closings."""

    def __init__(self, served: Served) -> None:
        self._served = served

    def append(self, record: Mapping[str, Any]) -> None:
        match record["event"]:
            case "opened":
                self._served.opened(record["instance"], record["topic"])
            case "closed":
                self._served.closed(record["instance"], record["topic"])


class _WatchedLease(Lease):
    """The broker's lease; with a longer one it may serve what is open."""

    def __init__(self, instance: str, served: Served) -> None:
        super().__init__(served.loop.time)
        self._instance = instance
        self._served = served

    def renew(self, asked_at_s: float, answer: LeaseAnswer) -> None:
        super().renew(asked_at_s, answer)
        self._served.renewed(self._instance)


@dataclass(frozen=True, slots=True)
class _AgentFile:
    """In place of the file that says where the agent is."""

    url: str

    def read_bytes(self) -> bytes:
        return orjson.dumps({"url": self.url})


class _PatientAgent(AgentClient):
    """Asked about topics that were announced, to be told once they have come."""

    async def find_owner(self, topic: str) -> OwnerAnswer | None:
        status, body = await self._get("/loadmanager/v1/owner", {"topic": topic, "waitMs": str(_WAIT_MS)})
        return OwnerAnswer.model_validate_json(body) if status == web.HTTPOk.status_code else None


class Broker:
    """To be made, and run, as its party. Some lives of it do not know how to prepare."""

    def __init__(self, party: Party, agent_url: str, served: Served) -> None:
        self._agent = _PatientAgent(_AgentFile(agent_url), HttpClient())  # type: ignore[arg-type]  # a file
        self._rng = random.Random(party.name)
        self._can_prepare = self._rng.random() < 0.75
        self._openings: set[asyncio.Task[object]] = set()
        self._lease = _WatchedLease(party.name, served)
        self.host = TopicHost(party.name, self._lease, self._agent, _Log(served), served.loop.time)  # type: ignore[arg-type]  # a log
        served.joined(party.name, party, self._lease)

    def app(self) -> web.Application:
        app = AgentInterface(self.host, Vitals()).application()
        app.router.add_get("/serve", self._serve)
        if self._can_prepare:
            app.router.add_post("/loadmanager/v1/prepare", self._prepare)
        return app

    async def run(self) -> None:
        await renew_lease(self.host, self._agent)

    async def _serve(self, request: web.Request) -> web.Response:
        """A client wants to use a topic: 204 when it can here."""
        topic = await self.host.find_or_open(request.query["topic"])
        return web.Response(status=204 if topic is not None else 409)

    async def _prepare(self, request: web.Request) -> web.Response:
        """Opens what is about to come as soon as it may: by then it has asked for it."""
        for topic in TopicsOfBundle.model_validate_json(await request.read()).topics:
            opening: asyncio.Task[object] = asyncio.create_task(self.host.find_or_open(topic))
            self._openings.add(opening)
            opening.add_done_callback(self._openings.discard)
        await asyncio.sleep(self._rng.choice(_PREPARES_S))
        return web.Response(status=204)
