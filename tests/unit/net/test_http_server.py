from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import orjson
import pytest
from aiohttp import web
from structlog.testing import capture_logs
from support.servers import LIMITS, end_app, listen, serve_app
from support.waiting import eventually

from loadmanager.config.agent_settings import AgentSettings
from loadmanager.config.node_settings import Settings
from loadmanager.config.settings_loader import load_settings
from loadmanager.net.http_server import FAST_PATH, ServerLimits, _LimitedConnection

SHORT_S = 0.2
HELLO = b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"
HALF = HELLO[:-2]
QUICKLY = HELLO.replace(b"/hello", b"/fast_path")
BODY = b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\n"


@dataclass(slots=True)
class Client:
    """One connection, byte by byte."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, request: bytes) -> tuple[int, dict[str, str]]:
        """Status and JSON body of the answer."""
        self.writer.write(request)
        return await self.answer()

    async def answer(self) -> tuple[int, dict[str, str]]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert "content-type: application/json" in head, head
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        return int(head.split()[1]), orjson.loads(await self.reader.readexactly(length))

    async def is_closed(self) -> bool:
        """Wait until the server has closed the connection without a word."""
        try:
            return await self.reader.read() == b""
        except ConnectionError:
            return True


class Served:
    """A small application behind the server, and connections to it."""

    def __init__(self, port: int, stack: AsyncExitStack) -> None:
        self._port = port
        self._stack = stack
        self.runner: web.AppRunner | None = None
        self.asked = 0
        self.answered_quickly = 0
        self.may_answer = asyncio.Event()

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self._port))
        self._stack.callback(client.writer.close)
        return client

    @property
    def server(self) -> web.Server:
        assert self.runner is not None
        assert self.runner.server is not None
        return self.runner.server

    @property
    def connections(self) -> int:
        return len(self.server.connections)

    @property
    def heads_begun(self) -> int:
        """Number of connections with an incomplete head."""
        return sum(
            each._head_timer is not None for each in self.server.connections if isinstance(each, _LimitedConnection)
        )

    def app(self) -> web.Application:
        app = web.Application()
        app[FAST_PATH] = self._fast_path
        app.router.add_get("/hello", self._hello)
        app.router.add_get("/fast_path", self._hello)
        app.router.add_get("/held", self._held)
        app.router.add_get("/broken", self._broken)
        app.router.add_post("/body", self._body)
        return app

    def _fast_path(self, received: bytes) -> bytes | None:
        if received != QUICKLY:
            return None
        self.answered_quickly += 1
        return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"

    async def _hello(self, _: web.Request) -> web.Response:
        return web.json_response({})

    async def _held(self, _: web.Request) -> web.Response:
        self.asked += 1
        await self.may_answer.wait()
        return web.json_response({})

    async def _broken(self, _: web.Request) -> web.Response:
        raise KeyError("what was there")

    async def _body(self, request: web.Request) -> web.Response:
        self.asked += 1
        try:
            return web.json_response({"body": (await request.read()).decode()})
        except web.HTTPException as error:
            return web.json_response({"reason": error.reason}, status=error.status)


@asynccontextmanager
async def serving(limits: ServerLimits = LIMITS) -> AsyncIterator[Served]:
    async with AsyncExitStack() as stack:
        listener = listen()
        served = Served(listener.getsockname()[1], stack)
        served.runner = await serve_app(served.app(), listener, limits)
        stack.push_async_callback(end_app, served.runner)
        stack.callback(served.may_answer.set)
        yield served


async def test_incomplete_head_times_out() -> None:
    async with serving(replace(LIMITS, head_s=SHORT_S)) as served:
        half, less = await served.connect(), await served.connect()
        half.writer.write(HALF)
        less.writer.write(b"G")
        assert await half.is_closed()
        assert await less.is_closed()


async def test_slow_head_times_out_on_a_reused_connection() -> None:
    async with serving(replace(LIMITS, head_s=SHORT_S)) as served:
        client = await served.connect()
        assert await client.ask(HELLO) == (200, {})
        closed = asyncio.create_task(client.is_closed())
        client.writer.write(HALF + b"X-Slow: ")
        while not closed.done():
            client.writer.write(b"x")
            await asyncio.sleep(SHORT_S / 10)
        assert closed.result()


async def test_head_in_two_chunks_is_answered_and_so_is_the_next_request() -> None:
    async with serving() as served:
        client = await served.connect()
        client.writer.write(HALF)
        await eventually(lambda: served.heads_begun)
        assert await client.ask(b"\r\n") == (200, {})
        assert served.heads_begun == 0
        assert await client.ask(HELLO) == (200, {})


async def test_missing_body_is_408_and_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(replace(LIMITS, body_s=SHORT_S)) as served:
        client = await served.connect()
        status, answer = await client.ask(BODY + b"1234")
        assert (status, answer["reason"]) == (408, "the body took longer than 0.2 s")
        assert await client.is_closed()
    assert caplog.records == []


async def test_body_in_chunks_is_read() -> None:
    async with serving() as served:
        client = await served.connect()
        client.writer.write(BODY + b"1234")
        await eventually(lambda: served.asked)
        assert await client.ask(b"5678") == (200, {"body": "12345678"})


async def test_slow_answer_is_not_limited() -> None:
    async with serving(ServerLimits(head_s=SHORT_S, body_s=SHORT_S, idle_s=SHORT_S, connections=1)) as served:
        client = await served.connect()
        client.writer.write(HELLO.replace(b"hello", b"held"))
        await eventually(lambda: served.asked)
        assert await (await served.connect()).is_closed()  # there is room for one, and it is busy
        started_s = asyncio.get_running_loop().time()
        await eventually(lambda: asyncio.get_running_loop().time() > started_s + 2 * SHORT_S)
        served.may_answer.set()
        assert await client.answer() == (200, {})


async def test_idle_connection_is_closed_before_and_after_a_request() -> None:
    async with serving(replace(LIMITS, idle_s=SHORT_S)) as served:
        mute, former = await served.connect(), await served.connect()
        assert await former.ask(HELLO) == (200, {})
        assert await mute.is_closed()
        assert await former.is_closed()


async def test_thousand_incomplete_requests_do_not_block_the_server() -> None:
    async with serving(replace(LIMITS, connections=100)) as served:
        regular = await served.connect()
        for _ in range(1_000):
            half = await served.connect()
            half.writer.write(HALF)
            await half.writer.drain()
            if _ % 50 == 0:
                assert await regular.ask(HELLO) == (200, {})
        assert await (await served.connect()).ask(HELLO) == (200, {})
        assert await regular.ask(HELLO) == (200, {})


async def test_longest_idle_connection_is_closed_for_a_new_one_and_logged_once() -> None:
    async with serving(replace(LIMITS, connections=2)) as served:
        first, second = await served.connect(), await served.connect()
        assert await first.ask(HELLO) == await second.ask(HELLO) == await first.ask(HELLO) == (200, {})
        with capture_logs() as logs:
            third = await served.connect()
            assert await third.ask(HELLO) == (200, {})
            assert await second.is_closed()
            assert await (await served.connect()).ask(HELLO) == (200, {})
            assert await first.is_closed()
        assert [entry["event"] for entry in logs] == ["connections_exhausted"]


async def test_fast_answer_counts_as_activity_of_its_connection() -> None:
    async with serving(replace(LIMITS, connections=2)) as served:
        first, second = await served.connect(), await served.connect()
        assert await first.ask(HELLO) == await second.ask(HELLO) == (200, {})
        ends_s = {each: each._next_keepalive_close_time for each in served.server.connections}
        assert await first.ask(QUICKLY) == (200, {})
        assert served.answered_quickly == 1
        assert sum(each._next_keepalive_close_time > at_s for each, at_s in ends_s.items()) == 1
        assert await (await served.connect()).ask(HELLO) == (200, {})
        assert await second.is_closed()
        assert await first.ask(QUICKLY) == (200, {})


async def test_fast_answer_is_not_given_out_of_turn() -> None:
    """Not behind another request, nor in its midst, nor to somebody who reads nothing."""
    async with serving() as served:
        client = await served.connect()
        client.writer.write(HELLO.replace(b"/hello", b"/held"))
        await eventually(lambda: served.asked == 1)
        client.writer.write(QUICKLY)
        (connection,) = served.server.connections
        await eventually(lambda: connection._request_count == 2)
        served.may_answer.set()
        assert await client.answer() == await client.answer() == (200, {})
        client.writer.write(HALF)
        await eventually(lambda: served.heads_begun == 1)
        client.writer.write(QUICKLY)
        assert (await client.answer())[0] == 400
        reader = await served.connect()
        assert await reader.ask(HELLO) == (200, {})
        own = reader.writer.get_extra_info("sockname")
        (connection,) = (each for each in served.server.connections if each.peername == own)
        connection.pause_writing()
        reader.writer.write(QUICKLY)
        await eventually(lambda: connection._request_count == 2)
        connection.resume_writing()
        assert await reader.answer() == (200, {})
        assert served.answered_quickly == 0


async def test_closed_connections_free_their_slots() -> None:
    async with serving(replace(LIMITS, connections=1)) as served:
        for _ in range(3):
            client = await served.connect()
            assert await client.ask(HELLO) == (200, {})
            client.writer.close()
            await eventually(lambda: served.connections == 0)


async def test_malformed_request_is_400_in_json(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as served:
        for request in (b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"G" * 9000 + b"\r\n\r\n"):
            with capture_logs() as logs:
                client = await served.connect()
                status, answer = await client.ask(request)
                assert (status, list(answer)) == (400, ["reason"])
                assert "\n" not in answer["reason"]
            assert (logs, caplog.records) == ([], [])


async def test_unknown_expectation_is_417_in_json() -> None:
    async with serving() as served:
        client = await served.connect()
        status, body = await client.ask(HELLO[:-2] + b"Expect: a miracle\r\n\r\n")
        assert (status, body) == (417, {"reason": "Unknown Expect: a miracle"})


async def test_unexpected_error_is_500_in_json_and_logged() -> None:
    async with serving() as served:
        with capture_logs() as logs:
            assert await (await served.connect()).ask(HELLO.replace(b"hello", b"broken")) == (
                500,
                {"reason": "KeyError: 'what was there'"},
            )
        assert [(entry["event"], entry["log_level"]) for entry in logs] == [("request_failed", "error")]


async def test_body_is_not_decompressed() -> None:
    """A few bytes could become as many as anybody likes."""
    async with serving() as served:
        head = BODY.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
        assert await (await served.connect()).ask(head + b"no gzip!") == (200, {"body": "no gzip!"})


async def test_client_disconnect_within_a_body_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as served:
        with capture_logs() as logs:
            client = await served.connect()
            client.writer.write(BODY + b"1234")
            await eventually(lambda: served.asked)
            client.writer.close()
            await client.writer.wait_closed()
            await asyncio.sleep(0)
            assert await (await served.connect()).ask(HELLO) == (200, {})
        assert (logs, caplog.records) == ([], [])


def test_connection_limit_is_configurable() -> None:
    settings = load_settings(Settings, None, {"maxHttpServerConnections": 7})
    assert ServerLimits.of(settings) == ServerLimits(connections=7)


def test_connection_limit_stays_below_the_file_limit_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(100, 1_000)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    required = {"brokerId": "b:1", "brokerUrl": "http://b:1", "loadManagerUrls": ["http://lm:1"]}
    with capture_logs() as logs:
        assert ServerLimits.of(load_settings(AgentSettings, None, required)).connections == 500
    assert limits[-1] == (1_000, 1_000)
    assert [entry["event"] for entry in logs] == ["connections_limited"]
