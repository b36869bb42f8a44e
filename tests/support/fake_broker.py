"""A fake broker for agents: a real HTTP server whose answers a test can corrupt, delay or refuse."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field

import orjson
from aiohttp import web
from support.servers import LoopbackServer

from loadmanager.wire.http_bodies import BrokerStats, HealthStats, TopicsOfBundle, TopicStats, UnloadRequest
from loadmanager.wire.validation import parse_model


@dataclass(slots=True)
class FakeBroker(LoopbackServer):
    """Serves `topics` (counters by full name). `pid` and `start_timestamp` make one process of it."""

    pid: int = field(default_factory=os.getpid)
    start_timestamp: int = 1_700_000_000_000
    topics: dict[str, TopicStats] = field(default_factory=dict)
    unloads: list[UnloadRequest] = field(default_factory=list)
    opening: list[str] | None = None
    """Topics that it reports as opening; None: it does not report them."""
    health: HealthStats | None = None
    """Health that it reports; None: it reports none."""
    spoiled_stats: bytes | None = None
    """Sent instead of the statistics."""
    stats_status: int = 200
    unload_status: int = 204
    prepare_status: int = 204
    prepared: list[TopicsOfBundle] = field(default_factory=list)
    redirect: str = ""
    """Location of answers with another status than these."""
    authorizations: set[str] = field(default_factory=set)
    """Authorization headers of requests for statistics."""
    asked_for_stats: int = 0
    may_answer_stats: asyncio.Event = field(default_factory=asyncio.Event)
    may_answer_unloads: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared: the call is taken, and not answered."""

    def __post_init__(self) -> None:
        self.may_answer_stats.set()
        self.may_answer_unloads.set()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/loadmanager/v1/stats", self._stats),
            web.post("/loadmanager/v1/prepare", self._prepare),
            web.post("/loadmanager/v1/unload", self._unload),
        ]

    def open(self, topic: str, **counters: int) -> None:
        self.topics[topic] = TopicStats(topic=topic, **counters)

    async def _stats(self, request: web.Request) -> web.Response:
        self.authorizations.add(request.headers.get("Authorization", ""))
        self.asked_for_stats += 1
        await self.may_answer_stats.wait()
        if self.spoiled_stats is not None:
            return web.Response(body=self.spoiled_stats, content_type="application/json")
        stats = BrokerStats(
            pid=self.pid,
            version="1.2.3",
            start_timestamp=self.start_timestamp,
            monotonic_s=time.monotonic(),
            topics=list(self.topics.values()),
            opening=self.opening,
            health=self.health,
        )
        return web.Response(
            status=self.stats_status,
            headers={"Location": self.redirect},
            body=stats.to_json(),
            content_type="application/json",
        )

    async def _prepare(self, request: web.Request) -> web.Response:
        self.prepared.append(parse_model(TopicsOfBundle, await request.read(), "prepare"))
        return web.Response(status=self.prepare_status)

    async def _unload(self, request: web.Request) -> web.Response:
        unload = parse_model(UnloadRequest, await request.read(), "unload")
        self.unloads.append(unload)
        await self.may_answer_unloads.wait()
        if self.unload_status != 204:
            body = orjson.dumps({"reason": "told to fail"})
            return web.Response(status=self.unload_status, headers={"Location": self.redirect}, body=body)
        for topic in unload.topics:
            self.topics.pop(topic, None)
        return web.Response(status=204)
