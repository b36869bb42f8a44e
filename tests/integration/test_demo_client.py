"""A client process of the demo against two real brokers and a load manager that says what the test wants."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.demo import BrokerProcess, a_broker
from support.processes import ended
from support.waiting import eventually

from loadmanager.dev.demo.demo_client import CLIENT_CONFIG, ClientConfig
from loadmanager.dev.demo.demo_settings import DemoWorkload
from loadmanager.dev.demo.evidence import find_overlaps, read_journal, read_journals, serving_intervals
from loadmanager.testing import ControlPlane

WORKLOAD = DemoWorkload(topics=6, messages_per_s=600, message_bytes=64, namespaces=("orders",))
LEASE_S = 3.0
TOPICS = WORKLOAD.topic_names()


class TwoBrokers:
    """Brokers `a` and `b`, a client process, and the plane that assigns topics."""

    def __init__(self, folder: Path, plane: ControlPlane) -> None:
        self.folder = folder
        self.plane = plane
        self.brokers: dict[str, BrokerProcess] = {}
        self.client: asyncio.subprocess.Process | None = None

    async def has_taken(self, name: str, messages: int) -> bool:
        taken: int = sum(topic["messagesIn"] for topic in (await self.brokers[name].stats()).values())
        return taken >= messages

    async def stop_client(self) -> int:
        """The messages that were published."""
        assert self.client is not None
        self.client.terminate()
        assert (await ended(self.client))[0] == 0
        accounts = self.journal("account")
        assert sorted(account["topic"] for account in accounts) == sorted(TOPICS)
        assert all(account["owner"] is not None for account in accounts)
        return sum(account["messages"] for account in accounts)

    def journal(self, event: str) -> list[dict[str, Any]]:
        return [record for record in read_journal(self.folder / "client.jsonl") if record["event"] == event]

    def serving_records(self) -> list[dict[str, Any]]:
        return read_journals(sorted(self.folder.glob("*-serving-log.json")))


@asynccontextmanager
async def a_client(folder: Path, node_url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    config = ClientConfig(
        index=0,
        processes=1,
        node_urls=[node_url],
        workload=WORKLOAD,
        hot_spot_file=folder / "hot-spot.json",
        journal_file=folder / "client.jsonl",
        ready_file=folder / "client.ready",
    )
    path = folder / "client.json"
    path.write_bytes(CLIENT_CONFIG.dump_json(config))
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "loadmanager.dev.demo.demo_client", str(path))
    try:
        await eventually(config.ready_file.exists)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[TwoBrokers]:
    async with ControlPlane() as plane, AsyncExitStack() as stack:
        world = TwoBrokers(tmp_path, plane)
        for name in ("a", "b"):
            agent = await plane.add_broker(name)
            world.brokers[name] = await stack.enter_async_context(a_broker(agent, tmp_path, name))
        plane.assign("a", *TOPICS)
        world.client = await stack.enter_async_context(a_client(tmp_path, plane.url))
        await eventually(lambda: world.has_taken("a", 200))
        yield world


async def test_client_publishes(world: TwoBrokers) -> None:
    assert await world.stop_client() >= 200
    assert world.journal("gap") == []


async def test_moved_topics_are_followed_and_their_gaps_measured(world: TwoBrokers) -> None:
    await world.plane.move("b", *TOPICS)
    await eventually(lambda: world.has_taken("b", 200))
    assert await world.stop_client() > 400
    assert_all_moved(world)
    assert find_overlaps(serving_intervals(world.serving_records(), {})) == []


def assert_all_moved(world: TwoBrokers) -> None:
    gaps = world.journal("gap")
    assert sorted(gap["topic"] for gap in gaps) == sorted(TOPICS)
    for gap in gaps:
        assert (gap["from_instance"], gap["to_instance"]) == (world.brokers["a"].instance, world.brokers["b"].instance)
        assert gap["from_s"] < gap["to_s"]


async def test_client_leaves_a_killed_broker(world: TwoBrokers) -> None:
    world.brokers["a"].process.kill()
    await world.brokers["a"].process.wait()
    world.plane.assign("b", *TOPICS)
    await eventually(lambda: world.has_taken("b", 200))
    assert await world.stop_client() > 400
    assert_all_moved(world)


async def test_broker_stopped_past_its_lease_never_overlaps_the_next_owner(world: TwoBrokers) -> None:
    stopped = world.brokers["a"]
    stopped.process.send_signal(signal.SIGSTOP)
    world.plane.crash("a")
    await asyncio.sleep(LEASE_S)  # what the load manager waits for is time
    world.plane.assign("b", *TOPICS)
    await eventually(lambda: world.has_taken("b", 200))
    stopped.process.send_signal(signal.SIGCONT)
    await eventually(lambda: len(stopped.serving_log("closed")) == len(TOPICS))
    assert find_overlaps(serving_intervals(world.serving_records(), {})) == []
    assert await world.stop_client() > 400


async def test_client_leaves_a_broker_without_a_lease(world: TwoBrokers) -> None:
    world.plane.crash("a")
    await eventually(lambda: world.brokers["a"].serving_log("closed"))
    world.plane.assign("b", *TOPICS)
    await eventually(lambda: world.has_taken("b", 200))
    assert await world.stop_client() > 400
    assert_all_moved(world)
