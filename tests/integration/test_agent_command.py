"""`loadmanager agent` as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import orjson
import pytest
import yaml
from support.agents import BROKER_ID
from support.fake_broker import FakeBroker
from support.fake_node import FakeNode
from support.processes import ended
from support.servers import closed_port, listen
from support.tcp_proxy import TcpProxy
from support.waiting import eventually, patience

from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.dev.embedded.server_files import free_ports
from loadmanager.store import paths
from loadmanager.store.zookeeper_store import ZooKeeperStore

TOPIC = "persistent://t/ns/orders"
COMMAND = "from loadmanager.cli import main; main()"


@contextlib.asynccontextmanager
async def agent_process(folder: Path, settings: Mapping[str, object], command: str = COMMAND) -> AsyncIterator[Process]:
    """The command with a configuration file of these keys; killed at the end if it still runs."""
    config = folder / "agent.yaml"
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        command,
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
    }


async def test_invalid_configuration_ends_with_2_and_names_the_key(tmp_path: Path) -> None:
    settings = {**some_settings("zk:127.0.0.1:1"), "brokerLeaseMs": 5, "loadManagerUrls": []}
    async with agent_process(tmp_path, settings) as process:
        code, _, errors = await ended(process)
    assert code == 2
    assert "brokerLeaseMs" in errors
    assert "loadManagerUrls" in errors
    assert "Traceback" not in errors


async def test_unreachable_zookeeper_ends_with_1_and_names_the_address(tmp_path: Path) -> None:
    address = f"zk:127.0.0.1:{closed_port()}"
    async with agent_process(tmp_path, some_settings(address)) as process:
        code, _, errors = await ended(process)
    assert code == 1
    assert f"metadataStoreUrl {address}" in errors
    assert "Traceback" not in errors


async def test_port_in_use_ends_with_1_and_names_the_port(tmp_path: Path) -> None:
    with listen() as taken:
        port = taken.getsockname()[1]
        settings = {**some_settings("zk:127.0.0.1:1"), "agentPort": port}
        async with agent_process(tmp_path, settings) as process:
            code, _, errors = await ended(process)
    assert code == 1
    assert f"agentPort {port} on 127.0.0.1: Address already in use" in errors
    assert "Traceback" not in errors


@pytest.mark.zookeeper
async def test_start_waits_through_zookeeper_hiccups(zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path) -> None:
    store = ZooKeeperStore(zookeeper.connect_string, session_timeout_s=600.0, chroot=chroot)
    await store.start()
    async with FakeBroker() as broker, FakeNode() as node, TcpProxy(zookeeper.port) as network:
        network.cuts.extend(range(50, 650, 60))
        settings = some_settings(f"zk:{network.address}{chroot}", broker.url, node.url)
        settings["metadataStoreSessionTimeoutMillis"] = 60_000
        async with agent_process(tmp_path, settings) as process:

            async def registered() -> bool:
                assert process.returncode is None, "it ended at its start"
                return await store.get(paths.broker(BROKER_ID)) is not None

            await eventually(registered)
            process.terminate()
            code, _, errors = await ended(process)
        assert not network.cuts, "every one of them was met"
    await store.close()
    assert code == 0, errors
    assert "Traceback" not in errors


@pytest.mark.zookeeper
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
async def test_stop_closes_topics_and_deregisters_the_broker(
    zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path, stop: signal.Signals
) -> None:
    store = ZooKeeperStore(zookeeper.connect_string, session_timeout_s=600.0, chroot=chroot)
    await store.start()
    async with FakeBroker() as broker, FakeNode() as node, aiohttp.ClientSession() as http:
        node.create_namespace("t/ns")
        settings = some_settings(f"zk:{zookeeper.connect_string}{chroot}", broker.url, node.url)
        async with agent_process(tmp_path, settings) as process:
            await eventually((tmp_path / "ready.json").exists)
            url = orjson.loads((tmp_path / "ready.json").read_bytes())["url"]

            async def has_lease() -> bool:
                async with http.get(f"{url}/loadmanager/v1/lease") as lease:
                    return lease.status == 200

            await eventually(has_lease)
            znode = await store.get(paths.broker(BROKER_ID))
            assert znode is not None
            node.own(node.bundle_of(TOPIC), BROKER_ID, znode.czxid)
            async with http.get(f"{url}/loadmanager/v1/owner", params={"topic": TOPIC}) as answer:
                assert (await answer.json())["owned"]
            broker.open(TOPIC)
            process.send_signal(stop)
            code, _, errors = await ended(process)
    assert code == 0, errors
    assert [unload.topics for unload in broker.unloads] == [[TOPIC]]
    assert await store.get(paths.broker(BROKER_ID)) is None
    await store.close()


FAILING = """
from pathlib import Path
from loadmanager.agent.reporter import Reporter
from loadmanager.cli import main

tick = Reporter.tick

async def fail(self, registration):
    if Path("{flag}").exists():
        raise RuntimeError("nobody foresaw this")
    await tick(self, registration)

Reporter.tick = fail
main()
"""


@dataclass
class Place:
    """A ZooKeeper, a broker and a node for agents that are processes, and a session of the test's own."""

    settings: dict[str, object]
    store: ZooKeeperStore
    broker: FakeBroker
    node: FakeNode
    http: aiohttp.ClientSession
    folder: Path

    async def url(self, folder: Path) -> str:
        await eventually((folder / "ready.json").exists)
        return str(orjson.loads((folder / "ready.json").read_bytes())["url"])

    async def lease_until_s(self, url: str) -> float | None:
        """End of the lease that the agent grants now; None without a lease."""
        asked_s = time.monotonic()
        try:
            async with self.http.get(f"{url}/loadmanager/v1/lease") as answer:
                return asked_s + (await answer.json())["validForMs"] / 1000 if answer.status == 200 else None
        except aiohttp.ClientError:
            return None

    async def granted_until_s(self, url: str) -> float:
        """Wait for a lease, and return its end."""
        granted: list[float] = []

        async def is_granted() -> bool:
            granted.extend(filter(None, [await self.lease_until_s(url)]))
            return bool(granted)

        await eventually(is_granted)
        return granted[-1]

    async def incarnation(self) -> int | None:
        await self.store.sync()
        znode = await self.store.get(paths.broker(BROKER_ID))
        return znode.czxid if znode else None


@pytest.fixture
async def place(zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path) -> AsyncIterator[Place]:
    store = ZooKeeperStore(zookeeper.connect_string, session_timeout_s=600.0, chroot=chroot)
    await store.start()
    async with FakeBroker() as broker, FakeNode() as node, aiohttp.ClientSession() as http:
        settings = some_settings(f"zk:{zookeeper.connect_string}{chroot}", broker.url, node.url)
        settings |= {
            "metadataStoreSessionTimeoutMillis": 600_000,
            "loadBalancerReportUpdateMinIntervalMillis": 50,
        }
        yield Place(settings, store, broker, node, http, tmp_path)
    await store.close()


@pytest.mark.zookeeper
async def test_failing_agent_keeps_its_session_until_its_last_lease_lapsed(place: Place) -> None:
    place.node.create_namespace("t/ns")
    place.broker.unload_status = 500
    flag = place.folder / "fail"
    settings = {**place.settings, "brokerLeaseMs": 3_000}
    async with agent_process(place.folder, settings, FAILING.format(flag=flag)) as process:
        url = await place.url(place.folder)
        valid_until_s = await place.granted_until_s(url)
        place.node.own(place.node.bundle_of(TOPIC), BROKER_ID, await place.incarnation())
        async with place.http.get(f"{url}/loadmanager/v1/owner", params={"topic": TOPIC}) as answer:
            assert (await answer.json())["owned"]
        flag.touch()
        while (later_s := await place.lease_until_s(url)) is not None:
            valid_until_s = later_s
        while time.monotonic() < valid_until_s:
            is_there = await place.incarnation() is not None
            assert is_there or time.monotonic() >= valid_until_s, "the registration went while the lease was valid"
        code, _, errors = await ended(process)
    assert code == 1
    assert "the agent cannot go on: RuntimeError: nobody foresaw this" in errors
    assert await place.incarnation() is None


@pytest.mark.zookeeper
async def test_restarted_agent_waits_for_the_leases_of_its_former_life(place: Place) -> None:
    async with agent_process(place.folder, place.settings | {"brokerLeaseMs": 4_000}) as killed:
        first_url = await place.url(place.folder)
        valid_until_s = await place.granted_until_s(first_url)
        first = await place.incarnation()
        killed.kill()
        await killed.wait()
    async with agent_process(place.folder, place.settings | {"brokerLeaseMs": 100}):
        while time.monotonic() < valid_until_s:
            is_there = await place.incarnation() == first
            assert is_there or time.monotonic() >= valid_until_s

        async def is_another() -> bool:
            return await place.incarnation() not in (None, first)

        await eventually(is_another, "it does not wait for the session of the former life")


@pytest.mark.zookeeper
async def test_second_agent_with_the_same_configuration_waits_and_logs_it(place: Place) -> None:
    copied = {**place.settings, "brokerLeaseMs": 300, "agentUrl": f"http://127.0.0.1:{closed_port()}"}
    one, other = place.folder / "one", place.folder / "other"
    one.mkdir()
    other.mkdir()
    ports = free_ports(2)
    async with agent_process(one, copied | {"agentPort": ports[0]}) as holder:
        await place.granted_until_s(f"http://127.0.0.1:{ports[0]}")
        first = await place.incarnation()
        async with agent_process(other, copied | {"agentPort": ports[1]}) as second:
            url = f"http://127.0.0.1:{ports[1]}"
            assert second.stderr is not None
            said = b""
            while b"broker_id_in_use" not in said:
                async with asyncio.timeout(patience()):
                    said += await second.stderr.readline()
                assert await place.incarnation() == first
            assert await place.lease_until_s(url) is None, "the second was granted what the first one holds"
            holder.terminate()
            await ended(holder)
            await place.granted_until_s(url)
            second.terminate()
            await ended(second)
