from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from support.servers import closed_port, serving

from loadmanager.broker.conformance.probes import ProbeResult, probe_of
from loadmanager.errors import ConfigurationError

TOPIC = "persistent://check/broker/a-1"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def a_broker(handler: Handler) -> AsyncIterator[str]:
    """Answers at /t/TOPIC, percent-encoded; where that is, without a scheme."""
    async with serving([web.route("*", "/t/{topic}", handler)]) as url:
        yield f"{url.removeprefix('http://')}/t"


async def tried(text: str, times: int = 1) -> list[ProbeResult]:
    probe = probe_of(text)
    try:
        return [await probe.try_once(TOPIC) for _ in range(times)]
    finally:
        await probe.close()


@pytest.mark.parametrize(("status", "served"), [(200, True), (204, True), (307, False), (421, False), (503, False)])
async def test_http_probe_is_served_by_a_2xx_answer(status: int, *, served: bool) -> None:
    asked = []

    async def answer(request: web.Request) -> web.Response:
        asked.append((request.method, request.match_info["topic"]))
        return web.Response(status=status, headers={"Location": "/"})

    async with a_broker(answer) as place:
        (by_post,) = await tried(f"http://{place}/{{topic}}")
        (by_get,) = await tried(f"GET http://{place}/{{topic}}")
    assert asked == [("POST", TOPIC), ("GET", TOPIC)]
    assert (by_post.served, by_get.served) == (served, served)


async def test_closed_port_serves_nothing() -> None:
    for scheme in ("http", "ws"):
        (each,) = await tried(f"{scheme}://127.0.0.1:{closed_port()}/{{topic}}")
        assert not each.served


async def test_websocket_probe_is_served_by_an_echo_on_one_connection() -> None:
    connections = 0

    async def chat(request: web.Request) -> web.WebSocketResponse:
        nonlocal connections
        connections += 1
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str("welcome")
        async for message in socket:
            await socket.send_str(f"somebody says: {message.data}")
        return socket

    async with a_broker(chat) as place:
        found = await tried(f"ws://{place}/{{topic}}", times=3)
    assert [each.served for each in found] == [True] * 3
    assert connections == 1


async def test_refused_or_closed_websocket_is_not_served() -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        if request.match_info["topic"].endswith("1"):
            return web.Response(status=421)
        raise AssertionError

    async def close(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.receive()
        await socket.send_str("somebody else says: hello")
        await socket.close(code=4_000, message=b"not served here")
        return socket

    for handler in (refuse, close):
        async with a_broker(handler) as place:
            (each,) = await tried(f"ws://{place}/{{topic}}")
            assert not each.served, each


async def test_command_with_the_topic_is_served_by_exit_status_0() -> None:
    assert await tried(f"sh -c 'test {{topic}} = {TOPIC}'") == [ProbeResult(served=True, reply="exit status 0")]
    assert await tried("sh -c 'echo first; echo not here; exit 3; # {topic}'") == [
        ProbeResult(served=False, reply="not here")
    ]


async def test_command_without_the_topic_answers_each_line() -> None:
    found = await tried("""sh -c 'read topic; echo served; read topic; echo "no: $topic"; read topic'""", times=2)
    assert found == [ProbeResult(served=True, reply="served"), ProbeResult(served=False, reply=f"no: {TOPIC}")]


async def test_cancelled_command_is_not_asked_again() -> None:
    probe = probe_of("sh -c 'read topic; read topic; echo served; read topic'")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(probe.try_once(TOPIC), 0.05)
    with pytest.raises(TimeoutError):  # by another process, which has not heard of the first topic
        await asyncio.wait_for(probe.try_once(TOPIC), 0.05)
    await probe.close()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("http://127.0.0.1/publish", "expected {topic}"),
        ("ws://127.0.0.1/chat", "expected {topic}"),
        ("", "expected a URL or a command"),
        ("sh -c 'no end", "No closing quotation"),
    ],
)
def test_invalid_probe_is_rejected_with_the_fix(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=f"--probe.*{says}"):
        probe_of(text)


@pytest.mark.parametrize("text", ["/no/such/command {topic}", "/no/such/command", "true"])
async def test_unusable_command_is_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"--probe '{text.split(maxsplit=1)[0]}'"):
        await tried(text)


async def test_probe_can_be_cancelled() -> None:
    async def wait(request: web.Request) -> web.StreamResponse:
        del request
        await asyncio.Event().wait()
        raise AssertionError

    async with a_broker(wait) as place:
        for text in (f"http://{place}/{{topic}}", f"ws://{place}/{{topic}}", "sh -c 'exec sleep 100; # {topic}'"):
            probe = probe_of(text)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(probe.try_once(TOPIC), 0.1)
            await probe.close()
