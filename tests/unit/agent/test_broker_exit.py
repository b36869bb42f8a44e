from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import sys
import threading
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from loadmanager.agent.broker_watch import BrokerExit
from loadmanager.agent.presence import BrokerProcess
from loadmanager.net import liveness
from loadmanager.net.liveness import has_socket, inode_at_other_end

_CLIENT = """
import socket, sys
host, port = sys.argv[1:]
if port:
    connection = socket.create_connection((host, int(port)))
else:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(host)
sys.stdin.read()
"""
WAYS = ["unix", "127.0.0.1", "::1"]
"""Addresses on which a broker listens; the last one maps IPv4 addresses to IPv6."""


class Asked:
    """A listener, and a process that has connected to it."""

    def __init__(self, process: Process, transport: asyncio.BaseTransport) -> None:
        self.process = process
        self.transport = transport

    @property
    def life(self) -> BrokerProcess:
        return self.process.pid, 1

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


@contextlib.asynccontextmanager
async def asked_by_a_process(way: str, folder: Path) -> AsyncIterator[Asked]:
    connected: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
    path = folder / "socket"

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set_result(writer)

    if way == "unix":
        server, where = await asyncio.start_unix_server(accept, path), (str(path), "")
    else:
        listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        server = await asyncio.start_server(accept, sock=listener)
        where = (way, str(listener.getsockname()[1]))
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _CLIENT, *where, stdin=PIPE)
    try:
        writer = await connected
        yield Asked(process, writer.transport)
        writer.close()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        server.close()


@contextlib.contextmanager
def following(told: asyncio.Queue[BrokerProcess]) -> Iterator[BrokerExit]:
    deaths = BrokerExit(told.put_nowait)
    try:
        yield deaths
    finally:
        deaths.close()


def kill_unheard(pid: int) -> None:
    """On return it has died, and the event loop had no turn."""
    pidfd = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([pidfd], [], [])
    os.close(pidfd)


@pytest.mark.parametrize("way", WAYS)
async def test_holder_of_a_connection_is_found_and_its_exit_reported_once(way: str, tmp_path: Path) -> None:
    told = asyncio.Queue[BrokerProcess]()
    async with asked_by_a_process(way, tmp_path) as asked:
        with following(told) as deaths:
            assert await deaths.holder(asked.transport) is None, "nobody is followed"
            deaths.follow(asked.life)
            assert [await deaths.holder(asked.transport) for _ in range(2)] == [asked.life, asked.life]
            assert await deaths.holder(None) is None
            deaths.follow(None)
            assert await deaths.holder(asked.transport) == asked.life, "that none is seen at present changes nothing"
            await asked.kill()
            assert await deaths.holder(asked.transport) is None, "also before it was told"
            assert await told.get() == asked.life
            assert await deaths.holder(asked.transport) is None
    assert told.empty()


@pytest.mark.parametrize("way", WAYS)
async def test_process_that_did_not_connect_is_not_the_holder(way: str, tmp_path: Path) -> None:
    """A number may mean another process in another pid namespace."""
    async with asked_by_a_process(way, tmp_path) as asked:
        with following(asyncio.Queue()) as deaths:
            deaths.follow((os.getppid(), 1))
            assert await deaths.holder(asked.transport) is None


async def test_unreported_exit_is_reported_when_another_process_is_followed(tmp_path: Path) -> None:
    told = asyncio.Queue[BrokerProcess]()
    async with asked_by_a_process("unix", tmp_path) as asked:
        with following(told) as deaths:
            deaths.follow(asked.life)
            kill_unheard(asked.process.pid)
            deaths.follow((os.getpid(), 1))
            assert told.get_nowait() == asked.life
            deaths.follow((os.getppid(), 1))
            assert told.empty(), "who lives is followed no more"


async def test_process_without_pidfd_or_already_exited_is_not_followed(tmp_path: Path) -> None:
    async with asked_by_a_process("unix", tmp_path) as asked:
        with following(asyncio.Queue()) as deaths:
            with patch("os.pidfd_open", side_effect=OSError("no such call")):
                deaths.follow(asked.life)
            assert await deaths.holder(asked.transport) is None
            await asked.kill()
            deaths.follow(asked.life)
            assert await deaths.holder(asked.transport) is None, "it was reaped, and so has no number any more"


async def test_connections_beyond_the_cache_are_looked_up_again(tmp_path: Path) -> None:
    async with asked_by_a_process("127.0.0.1", tmp_path) as asked:
        with following(asyncio.Queue()) as deaths, patch("loadmanager.agent.broker_watch._MOST_CONNECTIONS", 0):
            deaths.follow(asked.life)
            assert [await deaths.holder(asked.transport) for _ in range(2)] == [asked.life, asked.life]


def test_connection_unknown_to_the_kernel_has_no_inode() -> None:
    assert inode_at_other_end(("127.0.0.1", 1), ("127.0.0.1", 1)) is None
    with patch("socket.socket", side_effect=OSError("no such family")):
        assert inode_at_other_end(("127.0.0.1", 1), ("127.0.0.1", 1)) is None


def test_process_without_readable_descriptors_has_no_socket(tmp_path: Path) -> None:
    assert not has_socket(2**22 + 1, 1), "there is none with so high a number"
    gone = tmp_path / "gone"
    gone.symlink_to("nowhere")
    with os.scandir(tmp_path) as entries:
        assert not any(liveness._is_socket(each, 1) for each in entries)


async def test_descriptors_are_read_outside_the_event_loop(tmp_path: Path) -> None:
    threads: list[int] = []

    def look(*_: int) -> bool:
        threads.append(threading.get_ident())
        return True

    async with asked_by_a_process("127.0.0.1", tmp_path) as asked:
        with following(asyncio.Queue()) as deaths, patch("loadmanager.agent.broker_watch.has_socket", look):
            deaths.follow(asked.life)
            assert [await deaths.holder(asked.transport) for _ in range(2)] == [asked.life, asked.life]
    assert len(threads) == 1, "the connection is remembered"
    assert threads[0] != threading.get_ident()


async def test_process_holds_nothing_after_close(tmp_path: Path) -> None:
    looking, may_go_on = threading.Event(), threading.Event()

    def look(*_: int) -> bool:
        looking.set()
        return may_go_on.wait()

    async with asked_by_a_process("127.0.0.1", tmp_path) as asked:
        with following(asyncio.Queue()) as deaths, patch("loadmanager.agent.broker_watch.has_socket", look):
            deaths.follow(asked.life)
            holder = asyncio.create_task(deaths.holder(asked.transport))
            await asyncio.to_thread(looking.wait)
            deaths.close()
            may_go_on.set()
            assert await holder is None


async def test_transport_without_kernel_socket_has_no_holder() -> None:
    class Stub(asyncio.BaseTransport):
        pass

    with following(asyncio.Queue()) as deaths:
        deaths.follow((os.getpid(), 1))
        assert await deaths.holder(Stub()) is None
