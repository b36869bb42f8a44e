from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp import web
from support.servers import closed_port, listen, serve_app

from loadmanager.agent import peers
from loadmanager.agent.peers import PeerUnavailableError, call
from loadmanager.errors import InvalidRecordError


async def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "LARGEST_ANSWER_BYTES", 10_000)

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 4096)
            await asyncio.sleep(0)

    app = web.Application()
    app.add_routes([web.get("/", endless)])
    listener = listen()
    server = await serve_app(app, listener)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    async with aiohttp.ClientSession() as session:
        with pytest.raises(InvalidRecordError, match="more than 10000 bytes"):
            await call(session, "GET", url, 5.0)
    await server.cleanup()


async def test_a_peer_that_is_not_there_is_named() -> None:
    url = f"http://127.0.0.1:{closed_port()}/x"
    async with aiohttp.ClientSession() as session:
        with pytest.raises(PeerUnavailableError, match=url):
            await call(session, "GET", url, 1.0)
