from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from aiohttp import web
from support.servers import LoopbackServer, closed_port

from loadmanager.errors import InvalidRecordError
from loadmanager.net.http_client import HttpClient, PeerNotReachedError, PeerUnavailableError


@dataclass(slots=True)
class Peer(LoopbackServer):
    """Answers `/endless` without end, `/elsewhere` with a redirect to `/`, nothing at `/silent`; dies of `/dying`."""

    status: int = 307
    asked: list[str] = field(default_factory=list)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.route("*", "/", self._answer),
            web.get("/endless", self._answer_without_end),
            web.route("*", "/elsewhere", self._send_elsewhere),
            web.get("/silent", self._say_nothing),
            web.route("*", "/dying", self._die),
        ]

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.method)
        return web.Response(status=204)

    async def _answer_without_end(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=500)
        await response.prepare(request)
        while True:
            await response.write(b"x" * 4096)
            await asyncio.sleep(0)

    async def _die(self, request: web.Request) -> web.Response:
        self.asked.append(request.method)
        assert self._runner is not None
        for site in self._runner.sites:
            await site.stop()
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def _send_elsewhere(self, _: web.Request) -> web.Response:
        return web.Response(status=self.status, headers={"Location": "/"})

    async def _say_nothing(self, _: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    async with Peer() as peer:
        yield peer


@pytest.fixture
async def http() -> AsyncIterator[HttpClient]:
    async with HttpClient() as http:
        yield http


async def test_endless_answer_is_aborted_and_its_start_shown(peer: Peer, http: HttpClient) -> None:
    with pytest.raises(InvalidRecordError, match=r"answered 500 'xxx.*more than 10000 bytes") as refused:
        await http.call("GET", f"{peer.url}/endless", 60.0, most_bytes=10_000)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "DELETE"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirect_is_not_followed(peer: Peer, http: HttpClient, method: str, status: int) -> None:
    peer.status = status
    answer = await http.call(method, f"{peer.url}/elsewhere", 60.0)
    assert (answer.status, answer.headers["location"]) == (status, "/")
    assert peer.asked == []


async def test_unreachable_peer_is_named(http: HttpClient) -> None:
    url = f"http://127.0.0.1:{closed_port()}/x"
    with pytest.raises(PeerNotReachedError, match=url):
        await http.call("GET", url, 1.0)


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
async def test_command_is_not_repeated_after_a_lost_peer(peer: Peer, http: HttpClient, method: str) -> None:
    with pytest.raises(PeerUnavailableError) as death:
        await http.call(method, f"{peer.url}/dying", 60.0)
    assert not isinstance(death.value, PeerNotReachedError)
    assert peer.asked == [method]


@pytest.mark.parametrize("url", ["", "nonsense", "http://[", "http://a:99999999", f"http://{'x' * 300}:1"])
async def test_invalid_url_is_not_reached(http: HttpClient, url: str) -> None:
    with pytest.raises(PeerNotReachedError):
        await http.call("GET", url, 1.0)


async def test_timeout_may_mean_a_received_request(peer: Peer, http: HttpClient) -> None:
    with pytest.raises(PeerUnavailableError, match=r"did not answer within 0.1 s") as silence:
        await http.call("GET", f"{peer.url}/silent", 0.1)
    assert not isinstance(silence.value, PeerNotReachedError)
