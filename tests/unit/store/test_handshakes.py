from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from unittest.mock import Mock

import pytest
from support.waiting import eventually

from loadmanager.store.kazoo_client import PromptClient
from loadmanager.store.store_session import Connected, Event, GivenUp, HungUp, SessionSignal
from loadmanager.store.zookeeper_acl import Access, Credentials

TIMEOUT_S = 3.0
OURS = 7


@dataclass
class Heard:
    words: list[str] = field(default_factory=list)
    asked_at_s: float = 0.0

    def on_session(self, event: Event) -> None:
        match event:
            case Connected(session_id, _, asked_at_s):
                self.asked_at_s = asked_at_s
                self.words.append(f"session {session_id}")
            case HungUp(address):
                assert address.startswith("127.0.0.1:")
                self.words.append("hung up")
            case GivenUp():
                self.words.append("given up")
            case _:
                self.words.append("lost" if event is SessionSignal.EXPIRED else "suspended")

    def on_change(self, full_path: str) -> None: ...


@dataclass
class ScriptedServer:
    """Grants a session where `grants()` says so of the handshake's session id, and hangs up elsewhere."""

    grants: Callable[[int], bool] = lambda _: True
    asked: list[tuple[int, int]] = field(default_factory=list)
    """The session id and the last transaction id of each handshake."""
    connections: set[asyncio.StreamWriter] = field(default_factory=set)
    port: int = 0

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (length,) = struct.unpack("!i", await reader.readexactly(4))
        _, last_zxid, _, session_id = struct.unpack_from("!iqiq", await reader.readexactly(length))
        self.asked.append((session_id, last_zxid))
        if self.grants(session_id):
            self.connections.add(writer)
            granted = session_id or OURS + len(self.asked) - 1
            answer = struct.pack("!iiqi16sB", 0, int(TIMEOUT_S * 1000), granted, 16, bytes(16), 0)
            writer.write(struct.pack("!i", len(answer)) + answer)
            await reader.read(1)  # nothing that comes then is answered
        self.connections.discard(writer)
        writer.close()

    def hang_up(self) -> None:
        for connection in self.connections:
            connection.transport.abort()


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    server = ScriptedServer()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    async with listening:
        yield server
        server.hang_up()


async def test_hang_up_during_sasl_is_no_refusal(server: ScriptedServer) -> None:
    heard = Heard()
    access = Access(Credentials("sasl", "node", "secret", "file:///run/zk"))
    client = PromptClient(server.hosts, TIMEOUT_S, time.monotonic, heard, access)
    client.start_async()
    try:
        await eventually(lambda: heard.words)
        assert heard.words[0] == "hung up"
    finally:
        await asyncio.get_running_loop().run_in_executor(None, client.shut_down)


@contextlib.asynccontextmanager
async def a_client(server: ScriptedServer, *, is_over: bool = True) -> AsyncIterator[Heard]:
    """A client that has its session, and has seen a transaction."""
    heard = Heard()
    client = PromptClient(server.hosts, TIMEOUT_S, time.monotonic, heard)
    client.start_async()
    await eventually(lambda: heard.words == [f"session {OURS}"])
    client.last_zxid = 99
    if is_over:
        client.give_up(heard.asked_at_s)
    try:
        yield heard
    finally:
        ending = asyncio.get_running_loop().run_in_executor(None, client.shut_down)
        while not ending.done():
            client.drop()
            await asyncio.sleep(0.01)


async def test_session_refused_while_others_are_granted_is_given_up(server: ScriptedServer) -> None:
    async with a_client(server) as heard:
        server.grants = lambda session_id: session_id == 0
        server.hang_up()
        await eventually(lambda: heard.words[-1].startswith("session") and len(heard.words) > 1)
        assert heard.words[1:-1] == ["suspended", "hung up", "given up", "lost"]
        nothing_seen = (0, 0)
        assert server.asked == [nothing_seen, (OURS, 99), nothing_seen, (OURS, 99), nothing_seen]


async def test_session_that_may_be_alive_is_offered_until_granted(server: ScriptedServer) -> None:
    async with a_client(server, is_over=False) as heard:
        server.grants = lambda session_id: session_id == 0
        server.hang_up()
        await eventually(lambda: heard.words.count("hung up") > 2)
        server.grants = lambda _: True
        await eventually(lambda: heard.words[-1] == f"session {OURS}")
        assert set(heard.words[2:-1]) == {"hung up"}


async def test_session_granted_since_is_not_given_up(server: ScriptedServer) -> None:
    async with a_client(server) as heard:
        server.hang_up()
        await eventually(lambda: heard.words[1:] == ["suspended", f"session {OURS}"])
        server.grants = lambda session_id: session_id == 0
        server.hang_up()
        await eventually(lambda: heard.words.count("hung up") > 2)
        assert set(heard.words[4:]) == {"hung up"}


async def test_session_is_kept_when_the_server_grants_none(server: ScriptedServer) -> None:
    async with a_client(server) as heard:
        server.grants = lambda _: False
        server.hang_up()
        await eventually(lambda: heard.words.count("hung up") > 1)
        server.grants = lambda _: True
        await eventually(lambda: heard.words[-1] == f"session {OURS}")
        assert set(heard.words[2:-1]) == {"hung up"}


async def test_session_is_offered_again_after_a_first_refusal(server: ScriptedServer) -> None:
    async with a_client(server) as heard:
        server.grants = lambda session_id: session_id == 0 or len(server.asked) > 3
        server.hang_up()
        await eventually(lambda: len(heard.words) == 4)
        assert heard.words[1:] == ["suspended", "hung up", f"session {OURS}"]


async def test_client_without_a_session_gives_none_up(server: ScriptedServer) -> None:
    server.grants = lambda _: False
    heard = Heard()
    client = PromptClient(server.hosts, TIMEOUT_S, time.monotonic, heard)
    client.give_up(0.0)
    client.start_async()
    await eventually(lambda: len(server.asked) > 2)
    await asyncio.get_running_loop().run_in_executor(None, client.shut_down)
    assert set(heard.words) <= {"hung up"}
    assert heard.words.count("hung up") >= len(server.asked) - 1, "no handshake was a trial for a session"


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "too many files"), UnicodeError("a label"), MemoryError()])
async def test_failed_name_lookup(server: ScriptedServer, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_client(server) as heard:
        found = socket.getaddrinfo("127.0.0.1", server.port)
        monkeypatch.setattr(socket, "getaddrinfo", Mock(side_effect=[error, error, *[found] * 9]))
        server.hang_up()
        await eventually(lambda: heard.words[1:] == ["suspended", f"session {OURS}"])
