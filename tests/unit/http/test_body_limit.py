from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from support.agents import agent_settings, running_agent
from support.delays import a_memory_cluster
from support.fake_broker import FakeBroker
from support.fake_node import FakeNode
from support.memory_store import MemoryStore
from support.nodes import Cluster, RunningNode
from support.servers import LoopbackServer
from support.tokens import CLOSED
from support.waiting import eventually
from yarl import URL

from loadmanager.errors import BodyTooLargeError
from loadmanager.net.http_server import SMALL_BYTES, BodyLimit, _whole

PLANS = "/loadbalance/v1/plans"
LARGE = b"x" * (SMALL_BYTES + 1)


class Reading(LoopbackServer):
    """Reads bodies under the limits, and keeps each until it may go."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = 0
        self.may_go = asyncio.Event()
        self.room = BodyLimit()

    def routes(self) -> list[web.RouteDef]:
        return [web.put("/", self.keep)]

    async def keep(self, request: web.Request) -> web.Response:
        async with self.room.read(request, 10 * SMALL_BYTES):
            self.inside += 1
            await self.may_go.wait()
            self.inside -= 1
        return web.Response()


async def in_chunks(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def test_eight_large_bodies_are_read_at_a_time_and_small_ones_do_not_wait() -> None:
    async with Reading() as server, aiohttp.ClientSession() as http:
        large = [asyncio.create_task(http.put(server.url, data=LARGE)) for _ in range(6)]
        large += [asyncio.create_task(http.put(server.url, data=in_chunks(LARGE))) for _ in range(6)]
        await eventually(lambda: server.inside == 8)
        small = [asyncio.create_task(http.put(server.url, data=b"x")) for _ in range(3)]
        await eventually(lambda: server.inside == 11)
        server.may_go.set()
        assert {(await answer).status for answer in [*large, *small]} == {200}


async def test_body_with_a_too_large_content_length_is_refused_unread() -> None:
    request: Any = SimpleNamespace(headers={}, content_length=1_000, can_read_body=True)  # of which nothing can be read
    with pytest.raises(BodyTooLargeError, match="larger than 999 bytes"):
        async with BodyLimit().read(request, 999):
            pass


async def test_partial_body_is_freed_when_the_connection_breaks() -> None:
    class Ended:
        async def read(self) -> bytes:
            body = bytearray(LARGE)
            await asyncio.sleep(0)
            raise ConnectionResetError(len(body))

    with pytest.raises(ConnectionResetError) as error:
        await _whole(Ended())  # type: ignore[arg-type]  # all of a request that is asked for
    *_, (frame, _) = traceback.walk_tb(error.tb)
    assert frame.f_code.co_name == "read"
    assert frame.f_locals == {}


async def raw(node: RunningNode, request: bytes) -> bytes:
    return await first_line(node.node.service_url, request)


async def first_line(url: str, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(URL(url).host, URL(url).port)
    try:
        writer.write(request)
        return await reader.readline()
    finally:
        writer.close()


async def test_body_of_100_mb_is_refused_unread(node: RunningNode) -> None:
    head = f"POST {PLANS} HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n"
    assert b" 413 " in await raw(node, head.encode())


async def test_agent_refuses_a_body_of_100_mb_unread() -> None:
    store = MemoryStore(a_memory_cluster())
    await store.start()
    async with FakeBroker() as broker, FakeNode() as fake, running_agent(agent_settings(broker, fake), store) as agent:
        head = "PUT /loadmanager/v1/namespaces/t/ns/bundles HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n"
        assert b" 413 " in await first_line(agent.url, head.encode())
    await store.close()


async def test_deep_or_wide_json_is_400(node: RunningNode) -> None:
    for body in (
        b"[" * 500_000,
        b'{"a":' * 200_000,
        b"[" + b"1," * 500_000 + b"1]",
        b'{"kind":' + b"9" * 10_000 + b"}",
    ):
        for method, path in (("POST", PLANS), ("PUT", "/loadbalance/v1/learned"), ("PUT", "/admin/v2/namespaces/t/n")):
            reply = await node.ask(method, path, data=body)
            assert reply.status == 400, (path, body[:10], reply)
            assert len(reply.reason) < 1_000


async def test_garbage_after_a_request_affects_only_its_connection(node: RunningNode) -> None:
    asked = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    for garbage in (b"\x00" * 100, b"GET\r\n\r\n" * 50, asked[:-2] + b"\xff: \xff\r\n\r\n", b"A" * 70_000):
        line = await raw(node, asked + garbage)
        assert b" 200 " in line or b" 400 " in line
    assert (await node.get("/healthz")).status == 200


async def test_body_of_an_unauthenticated_request_is_not_read() -> None:
    async with Cluster() as cluster:
        node = await cluster.start_leader(**CLOSED)
        head = f"PUT /loadbalance/v1/learned HTTP/1.1\r\nHost: x\r\nContent-Length: {len(LARGE)}\r\n\r\n"
        assert b" 401 " in await raw(node, head.encode())
