"""`loadmanager agent` as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import orjson
import pytest
import yaml
from support.agents import BROKER_ID
from support.fake_broker import FakeBroker
from support.fake_node import FakeNode
from support.servers import closed_port, listen
from support.tcp_proxy import TcpProxy
from support.waiting import eventually

from loadmanager.embedded.zookeeper import EmbeddedZooKeeper
from loadmanager.store import paths
from loadmanager.store.zookeeper import ZooKeeperStore

TOPIC = "persistent://t/ns/orders"
COMMAND = "from loadmanager.cli import main; main()"


@contextlib.asynccontextmanager
async def agent_process(folder: Path, **settings: object) -> AsyncIterator[Process]:
    """The command with a configuration file of these keys; killed at the end if it still runs."""
    config = folder / "agent.yaml"
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        COMMAND,
        "agent",
        f"--config={config}",
        f"--ready-file={folder / 'ready.json'}",
        stdout=PIPE,
        stderr=PIPE,
        env={key: value for key, value in os.environ.items() if not key.startswith("LOADMANAGER_")},
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


def some_settings(store_url: str, broker_url: str = "http://127.0.0.1:1", node_url: str = "") -> dict[str, object]:
    return {
        "metadataStoreUrl": store_url,
        "brokerId": BROKER_ID,
        "brokerUrl": broker_url,
        "loadManagerUrls": [node_url or broker_url],
        "bindAddress": "127.0.0.1",
        "agentPort": 0,
        "brokerLeaseMs": 60_000,
        "statsUpdateFrequencyInSecs": 0.1,
        "metadataStoreConnectTimeoutMillis": 300,
    }


async def ended(process: Process) -> tuple[int, str]:
    async with asyncio.timeout(120):
        _, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, errors.decode()


async def test_a_configuration_error_ends_it_with_2_and_names_the_key(tmp_path: Path) -> None:
    settings = {**some_settings("zk:127.0.0.1:1"), "brokerLeaseMs": 5, "loadManagerUrls": []}
    async with agent_process(tmp_path, **settings) as process:
        code, errors = await ended(process)
    assert code == 2
    assert "brokerLeaseMs" in errors
    assert "loadManagerUrls" in errors
    assert "Traceback" not in errors


async def test_a_zookeeper_that_is_not_there_ends_it_with_1_and_names_the_address(tmp_path: Path) -> None:
    address = f"zk:127.0.0.1:{closed_port()}"
    async with agent_process(tmp_path, **some_settings(address)) as process:
        code, errors = await ended(process)
    assert code == 1
    assert f"metadataStoreUrl {address}" in errors
    assert "Traceback" not in errors


async def test_a_port_that_is_taken_ends_it_with_1_and_names_the_port(tmp_path: Path) -> None:
    with listen() as taken:
        port = taken.getsockname()[1]
        settings = {**some_settings("zk:127.0.0.1:1"), "agentPort": port}
        async with agent_process(tmp_path, **settings) as process:
            code, errors = await ended(process)
    assert code == 1
    assert f"agentPort {port} on 127.0.0.1: Address already in use" in errors
    assert "Traceback" not in errors


@pytest.mark.zookeeper
async def test_hiccups_of_zookeeper_while_it_starts_are_waited_through(
    zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path
) -> None:
    store = ZooKeeperStore(zookeeper.connect_string, session_timeout_s=30.0, chroot=chroot)
    await store.start()
    async with FakeBroker() as broker, FakeNode() as node, TcpProxy(zookeeper.port) as network:
        network.cuts.extend(range(50, 650, 60))
        settings = some_settings(f"zk:{network.address}{chroot}", broker.url, node.url)
        settings |= {"metadataStoreConnectTimeoutMillis": 60_000, "metadataStoreSessionTimeoutMillis": 30_000}
        async with agent_process(tmp_path, **settings) as process:

            async def registered() -> bool:
                assert process.returncode is None, "it ended at its start"
                return await store.get(paths.broker(BROKER_ID)) is not None

            await eventually(registered, timeout_s=60)
            process.terminate()
            code, errors = await ended(process)
        assert not network.cuts, "every one of them was met"
    await store.close()
    assert code == 0, errors
    assert "Traceback" not in errors


@pytest.mark.zookeeper
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
async def test_told_to_stop_it_has_the_broker_close_everything_and_leaves_nothing_behind(
    zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path, stop: signal.Signals
) -> None:
    store = ZooKeeperStore(zookeeper.connect_string, session_timeout_s=30.0, chroot=chroot)
    await store.start()
    async with FakeBroker() as broker, FakeNode() as node, aiohttp.ClientSession() as http:
        node.create_namespace("t/ns")
        settings = some_settings(f"zk:{zookeeper.connect_string}{chroot}", broker.url, node.url)
        settings["metadataStoreConnectTimeoutMillis"] = 15_000
        async with agent_process(tmp_path, **settings) as process:
            await eventually((tmp_path / "ready.json").exists, timeout_s=60)
            url = orjson.loads((tmp_path / "ready.json").read_bytes())["url"]

            async def has_lease() -> bool:
                async with http.get(f"{url}/loadmanager/v1/lease") as lease:
                    return lease.status == 200

            await eventually(has_lease, timeout_s=60)
            znode = await store.get(paths.broker(BROKER_ID))
            assert znode is not None
            node.own(node.bundle_of(TOPIC), BROKER_ID, znode.czxid)
            async with http.get(f"{url}/loadmanager/v1/owner", params={"topic": TOPIC}) as answer:
                assert (await answer.json())["owned"]
            broker.open(TOPIC)
            process.send_signal(stop)
            code, errors = await ended(process)
    assert code == 0, errors
    assert [unload.topics for unload in broker.unloads] == [[TOPIC]]
    assert await store.get(paths.broker(BROKER_ID)) is None
    await store.close()
