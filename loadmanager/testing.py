"""Control plane for tests of brokers and clients: a node and agents in the test's process; the test assigns topics.

Nothing is measured, balanced or stored. `loadmanager check-broker` tests a broker against each rule of the contract.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Self

import aiohttp
from aiohttp import web


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass(eq=False, slots=True)
class ControlledAgent:
    """Agent of one broker; its fields control its answers.

    It calls its broker at `broker_url`, and lookups send clients to `client_url`. Leases last `valid_for_ms`; with None
    it grants none. A question about an owner is decided when it arrives, and answered when `may_answer` is set.
    """

    broker_id: str = "127.0.0.1:1"
    client_url: str = ""
    broker_url: str = ""
    url: str = ""
    incarnation: int = 7
    valid_for_ms: int | None = 3_000
    owned: set[str] = field(default_factory=set)
    may_answer: asyncio.Event = field(default_factory=_set_event)
    leases: int = 0
    questions: int = 0
    answers_held: int = 0

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/loadmanager/v1/lease", self._lease), web.get("/loadmanager/v1/owner", self._owner)]

    async def unload(self, topics: Iterable[str], destination: str | None = None) -> None:
        """Have the broker close these topics. Raises `aiohttp.ClientResponseError` unless it confirms."""
        body = {"bundle": "test/topics/0x00000000_0xffffffff", "topics": list(topics), "destination": destination}
        url = f"{self.broker_url}/loadmanager/v1/unload"
        async with aiohttp.request("POST", url, json=body, raise_for_status=True):
            pass

    async def _lease(self, _request: web.Request) -> web.Response:
        self.leases += 1
        if self.valid_for_ms is None:
            return web.json_response({"reason": "not registered"}, status=503)
        lease = {"brokerId": self.broker_id, "incarnation": self.incarnation, "validForMs": self.valid_for_ms}
        return web.json_response(lease)

    async def _owner(self, request: web.Request) -> web.Response:
        self.questions += 1
        answer = {"owned": request.query["topic"] in self.owned, "incarnation": self.incarnation}
        self.answers_held += not self.may_answer.is_set()
        await self.may_answer.wait()
        return web.json_response(answer)


class ControlPlane:
    """A node at `url`, and the `agents` of brokers by id. Use it with `async with`.

    The answer to a lookup of an unassigned topic is 503. Clear `may_answer` to delay the answers to lookups.
    """

    def __init__(self) -> None:
        self.url = ""
        self.agents: dict[str, ControlledAgent] = {}
        self.may_answer = _set_event()
        self._servers = AsyncExitStack()

    async def __aenter__(self) -> Self:
        routes = [
            web.get("/lookup/v2/topic/{domain}/{topic:.+}", self._lookup),
            web.get("/loadbalance/v1/watch", self._refuse_watch),
        ]
        self.url = await self._serve(routes)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._servers.aclose()

    async def add_broker(self, broker_id: str, client_url: str = "", broker_url: str = "") -> ControlledAgent:
        """Start the agent of a broker. The broker reaches it at `url`."""
        agent = self.agents[broker_id] = ControlledAgent(broker_id, client_url, broker_url)
        agent.url = await self._serve(agent.routes())
        return agent

    def assign(self, broker_id: str, *topics: str) -> None:
        """Assign topics without notifying their current owners, as after a crash."""
        for agent in self.agents.values():
            agent.owned.difference_update(topics)
        self.agents[broker_id].owned.update(topics)

    async def move(self, broker_id: str, *topics: str) -> None:
        """Have the owners close topics, then assign them.

        Raises `aiohttp.ClientResponseError` if an owner refuses, which then keeps its topics.
        """
        for agent in self.agents.values():
            leaving = agent.owned.intersection(topics)
            if leaving and agent.broker_id != broker_id:
                agent.owned -= leaving
                try:
                    await agent.unload(leaving, broker_id)
                except aiohttp.ClientResponseError:
                    agent.owned |= leaving
                    raise
        self.assign(broker_id, *topics)

    def crash(self, broker_id: str) -> None:
        """End the registration of a broker: it gets no lease and owns nothing."""
        self.agents[broker_id].valid_for_ms = None
        self.agents[broker_id].owned.clear()

    async def _lookup(self, request: web.Request) -> web.Response:
        topic = f"{request.match_info['domain']}://{request.match_info['topic']}"
        owner = next((agent for agent in self.agents.values() if topic in agent.owned), None)
        await self.may_answer.wait()
        if owner is None:
            return web.json_response({"reason": f"{topic}: not assigned"}, status=503, headers={"Retry-After": "0"})
        url = owner.client_url
        return web.json_response({"brokerId": owner.broker_id, "brokerUrl": url, "nativeUrl": url})

    async def _refuse_watch(self, _request: web.Request) -> web.Response:
        return web.json_response({"reason": "assignments are looked up, not pushed"}, status=404)

    async def _serve(self, routes: list[web.RouteDef]) -> str:
        app = web.Application()
        app.add_routes(routes)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
        await runner.setup()
        self._servers.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        return f"http://{host}:{port}"
