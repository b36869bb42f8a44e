"""A broker's process in a run, and who serves what at every moment: a topic with two owners shows here at once.

The broker is the demo's, without its sockets for clients: `loadmanager.demo.hosting` decides what it serves. It is as
eager as the contract allows: whoever asks for a topic has it opened, and it serves until it has to stop.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web
from protocol.network import ClientSession
from protocol.parties import Party, VirtualLoop
from pydantic import ValidationError

from loadmanager.demo.hosting import TopicHost
from loadmanager.demo.lease import Lease
from loadmanager.wire.http import BrokerStats, LeaseAnswer, OwnerAnswer, UnloadRequest

_RENEW_S = 0.7
_TIMEOUT = aiohttp.ClientTimeout(total=2.0)


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


class Broker:
    """To be made, and run, as its party."""

    def __init__(self, instance: str, pid: int, agent_url: str, served: Served) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._http = ClientSession()
        self._agent_url = agent_url
        self._pid = pid
        self._served = served
        self.lease = Lease(loop.time)
        self.host = TopicHost(instance, self.lease, self, _Log(served), loop.time)  # type: ignore[arg-type]  # a log

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/loadmanager/v1/stats", self._stats)
        app.router.add_post("/loadmanager/v1/unload", self._unload)
        app.router.add_get("/serve", self._serve)
        return app

    async def run(self) -> None:
        while True:
            asked_at_s = self._loop.time()
            status, body = await self._get("/loadmanager/v1/lease", {})
            if status == 200:
                self.host.renew_lease(asked_at_s, LeaseAnswer.model_validate_json(body))
                self._served.renewed(self.host.instance)
            elif status is not None:
                self.host.end_lease()
            self.host.may_serve()
            await asyncio.sleep(_RENEW_S)

    async def find_owner(self, topic: str) -> OwnerAnswer | None:
        status, body = await self._get("/loadmanager/v1/owner", {"topic": topic})
        return OwnerAnswer.model_validate_json(body) if status == 200 else None

    async def _get(self, path: str, query: Mapping[str, str]) -> tuple[int | None, bytes]:
        try:
            async with self._http.get(f"{self._agent_url}{path}", params=query, timeout=_TIMEOUT) as answer:
                return answer.status, await answer.read()
        except (aiohttp.ClientError, TimeoutError):
            return None, b""

    async def _stats(self, _: web.Request) -> web.Response:
        self.host.may_serve()
        stats = BrokerStats(
            pid=self._pid,
            version="1",
            start_timestamp=self._pid,
            monotonic_s=self._loop.time(),
            topics=[topic.stats() for topic in self.host.topics()],
            opening=self.host.opening(),
        )
        return web.Response(body=stats.to_json(), content_type="application/json")

    async def _unload(self, request: web.Request) -> web.Response:
        try:
            wanted = UnloadRequest.model_validate_json(await request.read())
        except ValidationError as error:
            return web.json_response({"reason": str(error)}, status=400)
        await self.host.unload(wanted.bundle, wanted.topics)
        return web.Response(status=204)

    async def _serve(self, request: web.Request) -> web.Response:
        """A client wants to use a topic: 204 when it can here."""
        topic = await self.host.find_or_open(request.query["topic"])
        return web.Response(status=204 if topic is not None else 409)
