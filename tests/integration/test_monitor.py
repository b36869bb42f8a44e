"""`loadmanager monitor` as an operator runs it: a process of its own, against a real ZooKeeper."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

import pytest
from support.command_line import run as run_command
from support.processes import ended
from support.servers import closed_port
from support.waiting import eventually, patience

from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.store import paths
from loadmanager.store.metadata_store import Create, Put
from loadmanager.store.zookeeper_store import ZooKeeperStore

pytestmark = pytest.mark.zookeeper

COMMAND = [sys.executable, "-m", "loadmanager", "monitor"]
RECORD = b'{"cpu":{"usage":50.0,"limit":200.0},"msgRateIn":10.0,"msgRateOut":20.0,"numBundles":3}'
AVERAGES = b'{"longTermMsgRateIn":40.0,"longTermMsgRateOut":2.0}'


@pytest.fixture
async def store(zookeeper: EmbeddedZooKeeper, chroot: str) -> AsyncIterator[ZooKeeperStore]:
    store = ZooKeeperStore(zookeeper.connect_string, session_timeout_s=60.0, chroot=chroot)
    await store.start()
    for path in (paths.BROKERS, paths.BROKER_TIME_AVERAGE):
        await store.ensure_path(path)
    yield store
    await store.close()


@pytest.fixture
def url(zookeeper: EmbeddedZooKeeper, chroot: str) -> str:
    return f"zk:{zookeeper.connect_string}{chroot}"


async def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(run_command, "monitor", *arguments)


async def test_once_prints_every_broker_and_the_total_and_exits(store: ZooKeeperStore, url: str) -> None:
    await store.commit([Create(paths.broker("b:1"), RECORD, ephemeral=True)])
    await store.commit([Create(paths.broker("b:2"), b"{", ephemeral=True)])
    await store.commit([Create(paths.broker_time_average("b:1"), AVERAGES)])

    done = await run("--once", "--metadata-store-url", url)

    assert done.returncode == 0, done.stderr
    assert "Broker b:1" in done.stdout
    rows = [line.strip("|").split("|") for line in done.stdout.splitlines()]
    cluster = [[cell.strip() for cell in row] for row in rows if row[0].strip() in {"b:1", "b:2", "TOTAL"}]
    assert cluster == [
        ["b:1", "3", "30.00", "42.00", "0.00", "25.00"],
        ["b:2", "-", "-", "-", "-", "-"],
        ["TOTAL", "3", "30.00", "42.00", "0.00", "25.00"],
    ]
    assert "! /loadbalance/brokers/b:2: " in done.stdout


async def test_json_is_one_line_for_scripts(store: ZooKeeperStore, url: str) -> None:
    await store.commit([Create(paths.broker("b:1"), RECORD, ephemeral=True)])
    done = await run("--once", "--json", "--metadata-store-url", url)
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    assert json.loads(line)["brokers"][0]["latest"]["msgRate"] == 30.0


async def test_address_from_the_configuration(store: ZooKeeperStore, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.commit([Create(paths.broker("b:1"), RECORD, ephemeral=True)])
    monkeypatch.setenv("LOADMANAGER_METADATASTOREURL", url)
    done = await run("--once")
    assert done.returncode == 0, done.stderr
    assert "Broker b:1" in done.stdout


async def test_into_a_pipe_it_prints_the_broker_that_changed(store: ZooKeeperStore, url: str) -> None:
    await store.commit([Create(paths.broker("b:1"), RECORD, ephemeral=True)])
    await store.commit([Create(paths.broker("b:2"), RECORD, ephemeral=True)])
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "--json", "--interval", "3600", "--metadata-store-url", url, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(patience()):
            first = json.loads(await process.stdout.readline())
            assert [broker["brokerId"] for broker in first["brokers"]] == ["b:1", "b:2"]
            await store.commit([Put(paths.broker("b:2"), b'{"msgRateIn":77.0}')])
            rates = []
            while 77.0 not in rates:
                line = json.loads(await process.stdout.readline())
                rates = [broker["latest"]["msgRateIn"] for broker in line["brokers"]]
        assert rates == [10.0, 77.0]
    finally:
        process.send_signal(signal.SIGINT)
        code, _, errors = await ended(process)
        assert code == 0, errors


async def test_in_the_background_it_ignores_ctrl_c_and_ends_at_sigterm(store: ZooKeeperStore, url: str) -> None:
    """A shell that has no job control starts what runs in the background with SIGINT ignored."""
    await store.commit([Create(paths.broker("b:1"), RECORD, ephemeral=True)])
    command = shlex.join([*COMMAND, "--json", "--interval", "3600", "--metadata-store-url", url])
    process = await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", f"trap '' INT; exec {command}", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(patience()):
            await process.stdout.readline()
            process.send_signal(signal.SIGINT)
            await store.commit([Put(paths.broker("b:1"), b'{"msgRateIn":77.0}')])
            assert json.loads(await process.stdout.readline())["brokers"][0]["latest"]["msgRateIn"] == 77.0
    finally:
        process.terminate()
        assert (await ended(process))[0] == -signal.SIGTERM


async def test_on_a_terminal_it_redraws_when_a_broker_changes(store: ZooKeeperStore, url: str) -> None:
    await store.commit([Create(paths.broker("b:1"), RECORD, ephemeral=True)])
    with a_terminal() as (ours, theirs):
        process = await asyncio.create_subprocess_exec(
            *COMMAND, "--interval", "3600", "--metadata-store-url", url, stdout=theirs, env=A_TERMINALS_ENVIRONMENT
        )
        try:
            await eventually(lambda: b"30.00" in ours.seen())
            await store.commit([Put(paths.broker("b:1"), b'{"msgRateIn":4711.0}')])
            await eventually(lambda: b"4711.00" in ours.seen())
        finally:
            process.send_signal(signal.SIGINT)
            assert (await ended(process))[0] == 0


async def test_an_unreachable_zookeeper_is_named() -> None:
    address = f"zk:127.0.0.1:{closed_port()}"
    done = await run("--once", "--metadata-store-url", address)
    assert done.returncode == 1
    assert done.stdout == ""
    assert f"metadataStoreUrl {address}: no ZooKeeper answered" in done.stderr
    assert "Traceback" not in done.stderr


async def test_a_chroot_that_does_not_exist_is_an_error_and_is_not_created(store: ZooKeeperStore, url: str) -> None:
    done = await run("--once", "--metadata-store-url", f"{url}/mistyped")
    assert done.returncode == 1
    assert "/mistyped does not exist" in done.stderr
    assert await store.get("/mistyped") is None


async def test_an_address_that_is_none_is_a_configuration_error() -> None:
    done = await run("--once", "--metadata-store-url", "zk:host:port:1")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


A_TERMINALS_ENVIRONMENT = {**os.environ, "TERM": "xterm", "COLUMNS": "140", "LINES": "60"}


class Screen:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._seen = b""

    def seen(self) -> bytes:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._descriptor, 65_536):
                self._seen += data
        return self._seen


@contextlib.contextmanager
def a_terminal() -> Iterator[tuple[Screen, int]]:
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    try:
        yield Screen(ours), theirs
    finally:
        os.close(theirs)
        os.close(ours)
