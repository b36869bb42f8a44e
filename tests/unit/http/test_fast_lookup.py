from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpRequestParser
from prometheus_client import CollectorRegistry
from support.nodes import RunningNode, a_leader
from support.tokens import CLOSED, bearer, expired_token_of, token_of
from support.waiting import eventually

from loadmanager.config.auth_settings import AuthSettings
from loadmanager.core.domain.names import TopicName
from loadmanager.http.lookup_routes import FastLookups
from loadmanager.http.metrics_text import LookupMetrics
from loadmanager.net.auth.gate import AuthGate
from loadmanager.net.http_server import FAST_PATH, FastPath, _LimitedConnection
from loadmanager.net.tracing import ENDPOINT

PATH = "/lookup/v2/topic/persistent/t/ns/x"
HEAD = "Host: 127.0.0.1:8080\r\nAccept: application/json\r\n"
PLAIN = f"GET {PATH} HTTP/1.1\r\n{HEAD}\r\n"

OTHERS = {
    "another method": PLAIN.replace("GET", "HEAD"),
    "another version": PLAIN.replace("HTTP/1.1", "HTTP/1.0"),
    "another path": PLAIN.replace("/x ", "/x/bundle "),
    "a query": PLAIN.replace("/x ", "/x?listenerName=internal "),
    "a name that is escaped": PLAIN.replace("/x ", "/a%2Fb "),
    "a name that browsers leave out": PLAIN.replace("/x ", "/.. "),
    "another domain": PLAIN.replace("/persistent/", "/transient/"),
    "a name too long": PLAIN.replace("/x ", f"/{'x' * 3_000} "),
    "no such namespace": PLAIN.replace("/ns/", "/elsewhere/"),
    "a bundle of nobody": PLAIN.replace("/t/ns/", "/t/free/"),
    "a listener": PLAIN.replace(HEAD, f"{HEAD}X-Pulsar-ListenerName: internal\r\n"),
    "an id of its own": PLAIN.replace(HEAD, f"{HEAD}X-Request-ID: mine\r\n"),
    "the last on its connection": PLAIN.replace(HEAD, f"{HEAD}Connection: close\r\n"),
    "a body": PLAIN.replace(HEAD, f"{HEAD}Content-Length: 2\r\n") + "{}",
    "another protocol": PLAIN.replace(HEAD, f"{HEAD}Connection: Upgrade\r\nUpgrade: websocket\r\n"),
    "a line of which nothing is known": PLAIN.replace(HEAD, f"{HEAD}X-Whatever: 1\r\n"),
    "a line that goes on": PLAIN.replace(HEAD, f"{HEAD}Accept: a,\r\n b\r\n"),
    "no host": PLAIN.replace("Host", "Accept"),
    "two hosts": PLAIN.replace(HEAD, HEAD + HEAD),
    "a head without end": PLAIN[:-2],
    "two at once": PLAIN + PLAIN,
    "nothing": "",
}


@dataclass(slots=True)
class Client:
    """One connection, byte by byte."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, request: str) -> tuple[bytes, bytes]:
        """The head of the answer, and its body."""
        self.writer.write(request.encode())
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return head, await self.reader.readexactly(length)


@asynccontextmanager
async def connected(node: RunningNode) -> AsyncIterator[Client]:
    client = Client(*await asyncio.open_connection("127.0.0.1", int(node.node.service_url.rpartition(":")[2])))
    yield client
    client.writer.close()


@asynccontextmanager
async def owned(**settings: Any) -> AsyncIterator[RunningNode]:  # noqa: ANN401 - any setting
    """A leader that has given the bundle of `t/ns` away, and none of `t/free`."""
    async with a_leader(**settings) as (cluster, leader):
        await cluster.a_broker()
        token = bearer(token_of("root")) if settings else {}
        for namespace in ("t/ns", "t/free"):
            path, body = f"/admin/v2/namespaces/{namespace}", {"bundles": {"numBundles": 1}}
            reply = await leader.put(path, json=body, headers=token)
            assert reply.status == 204
        assert (await leader.lookup("persistent://t/ns/x", headers=token)).status == 200
        yield leader


def find_fast_path(node: RunningNode) -> FastLookups:
    fast_path: FastPath = node.app[FAST_PATH]
    assert isinstance(fast_path, FastLookups)
    return fast_path


async def answers_counted(node: RunningNode, headers: dict[str, str] | None = None) -> float:
    text = (await node.get("/metrics", headers=headers)).body.decode()
    (line,) = (line for line in text.splitlines() if line.startswith("loadmanager_lookup_seconds_count"))
    return float(line.rpartition(" ")[2])


async def test_fast_answer_equals_the_usual_one_except_id_and_date(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[bytes | None] = []
    of_old = FastLookups.__call__

    def noting(self: FastLookups, received: bytes) -> bytes | None:
        answers.append(of_old(self, received))
        return answers[-1]

    monkeypatch.setattr(FastLookups, "__call__", noting)
    async with owned() as node:
        async with connected(node) as client:
            first, body = await client.ask(PLAIN.replace(HEAD, f"{HEAD}X-Whatever: 1\r\n"))
            assert not any(answers)
            second, same = await client.ask(PLAIN)
            assert answers[-1] == second + same
        counted = await answers_counted(node)
    assert body == same
    lines = [{line.partition(b": ")[0]: line for line in head.splitlines()} for head in (first, second)]
    assert lines[0].keys() == lines[1].keys() >= {b"Date", b"X-Request-ID", b"Server", b"Content-Type"}
    assert {name for name in lines[0] if lines[0][name] != lines[1][name]} - {b"Date"} == {b"X-Request-ID"}
    assert counted == 3, "the one that assigned, and these two"


@pytest.mark.parametrize("what", OTHERS)
async def test_unusual_request_gets_no_fast_answer(what: str) -> None:
    async with owned() as node:
        fast_path = find_fast_path(node)
        assert fast_path(PLAIN.encode()) is not None
        assert fast_path(OTHERS[what].encode()) is None


async def test_pipelined_and_fragmented_requests_are_answered_in_order() -> None:
    async with owned() as node, connected(node) as client:
        head, _ = await client.ask(PLAIN.replace(HEAD, f"{HEAD}X-Request-ID: a\r\n") + PLAIN)
        assert b"X-Request-ID: a\r\n" in head
        await client.ask("")  # that of the second
        client.writer.write(PLAIN[:30].encode())
        await eventually(
            lambda: any(isinstance(each, _LimitedConnection) and each._head_timer for each in node.connections)
        )
        head, _ = await client.ask(PLAIN[30:])
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        head, _ = await client.ask(PLAIN)
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")


async def test_fast_answer_needs_a_valid_token_seen_before() -> None:
    async with owned(**CLOSED) as node:
        fast_path = find_fast_path(node)

        def as_(token: str) -> str:
            return PLAIN.replace(HEAD, f"{HEAD}Authorization: Bearer {token}\r\n")

        async with connected(node) as client:
            for principal, status in (("client", 200), ("reader", 403), ("nobody", 403)):
                assert fast_path(as_(token_of(principal)).encode()) is None, "nobody has looked at it yet"
                head, _ = await client.ask(as_(token_of(principal)))
                assert int(head.split()[1]) == status
                assert (fast_path(as_(token_of(principal)).encode()) is not None) == (status == 200)
        assert fast_path(PLAIN.encode()) is None
        assert fast_path(as_(expired_token_of("client")).encode()) is None
        soon = token_of("client", exp=int(time.time()) + 2)
        async with connected(node) as client:
            await client.ask(as_(soon))
        await eventually(lambda: fast_path(as_(soon).encode()) is None)


async def test_fast_lookups_are_off_when_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    async with a_leader() as (_, leader):
        assert FAST_PATH not in leader.app


SEGMENTS = ["x", "a.b", "..", ".", "%41", "a/b", "a?b=1", "a#b", "a;b", "a=b", "a:b", "a b", "é", "~", "-", ""]
LINES = [
    "Host: a:1",
    "host: [::1]:80",
    "Host: a b",
    "HOST:a",
    "Accept: */*",
    "accept-encoding: gzip, br",
    "User-Agent: \t x",
    "User-Agent: ",
    "User-Agent : x",
    "Connection: keep-alive",
    "Connection: close",
    "Connection: keep-alive, upgrade",
    "Upgrade: websocket",
    "Authorization: Bearer x",
    "Authorization:  y ",
    "Content-Length: 0",
    "Content-Length: 3",
    "Transfer-Encoding: chunked",
    "Content-Encoding: gzip",
    "X-Request-ID: 1",
    "Accept: \x00",
    "Accept: \r",
    " folded",
    "",
]
VERSIONS = [" HTTP/1.1\r\n", " HTTP/1.0\r\n", "  HTTP/1.1\r\n", " HTTP/1.1\n", "\r\n"]
ENDS = ["\r\n", "\n", "", "\r\n\r\n", "\r\nGET / HTTP/1.1\r\n\r\n", "\r\nabc"]


def some_requests() -> Iterator[tuple[str, str]]:
    """Requests, and what each asks for after its domain; in all of them something may be wrong, in most two things."""
    for first, second in product([f"{line}\r\n" for line in LINES], repeat=2):
        yield PLAIN.replace(HEAD, first + second), "t/ns/x"
        yield PLAIN.replace(HEAD, HEAD + first + second), "t/ns/x"
    for names in product(SEGMENTS, repeat=3):
        yield PLAIN.replace("t/ns/x", "/".join(names)), "/".join(names)
    for version, end in product(VERSIONS, ENDS):
        yield f"GET {PATH}{version}{HEAD}{end}", "t/ns/x"


class OneOwner:
    """Everything belongs to one broker; who asked for what is noted."""

    lookup_body = b"{}"

    def __init__(self) -> None:
        self.asked = ""

    def find_owner(self, topic: TopicName) -> OneOwner:
        self.asked = str(topic)
        return self


def test_fast_answer_needs_one_whole_request_for_that_topic() -> None:
    """A fast answer needs what aiohttp would parse as one request without a body."""
    owner, answered = OneOwner(), 0
    fast_path = FastLookups(owner, LookupMetrics(CollectorRegistry(), "c"), AuthGate(AuthSettings()))  # type: ignore[arg-type]
    with closing(asyncio.new_event_loop()) as loop:
        for text, target in some_requests():
            received = text.encode()
            if fast_path(received) is None:
                continue
            messages, upgraded, tail = HttpRequestParser(BaseProtocol(loop), loop, 2**16).feed_data(received)
            ((message, body),) = messages
            assert (message.method, message.path) == ("GET", f"/lookup/v2/topic/persistent/{target}")
            assert owner.asked == f"persistent://{target}"
            assert body.is_eof()
            assert not any((message.should_close, message.upgrade, message.chunked, message.compression))
            assert not any((upgraded, tail))
            known = {"host", "accept", "accept-encoding", "user-agent", "connection", "authorization"}
            assert {name.lower() for name in message.headers} <= known
            answered += 1
    assert answered > 20, "hardly any was answered"
