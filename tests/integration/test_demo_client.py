"""A client process against two real brokers and a load manager that says what the test wants."""

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

from loadmanager.dev.demo.demo_client import ClientConfig
from loadmanager.dev.demo.demo_settings import DemoWorkload
from loadmanager.dev.demo.demo_summary import TopicAccount, dropped_ranges, summarize_messages
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

    async def delivered_by(self, name: str) -> int:
        return sum(topic["messagesOut"] for topic in (await self.brokers[name].stats()).values())

    async def stop_client(self) -> list[TopicAccount]:
        assert self.client is not None
        self.client.terminate()
        assert (await ended(self.client))[0] == 0
        records = self.journal("account")
        assert all(record["owner"] is not None for record in records)
        return [TopicAccount.of_record(record) for record in records]

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
    path.write_text(config.to_json())
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
        await eventually(lambda: _has_delivered(world, "a", 200))
        yield world


async def _has_delivered(world: TwoBrokers, name: str, messages: int) -> bool:
    return await world.delivered_by(name) >= messages


async def test_a_client_publishes_and_receives_every_message(world: TwoBrokers) -> None:
    accounts = await world.stop_client()
    summary = summarize_messages(accounts, [], {})
    assert summary.published == summary.acknowledged == summary.delivered >= 200
    assert summary.duplicates == summary.unaccounted == 0
    assert sorted(account.topic for account in accounts) == sorted(TOPICS)
    assert world.journal("gap") == []


async def test_topics_that_move_lose_nothing_and_their_gaps_are_measured(world: TwoBrokers) -> None:
    await world.plane.move("b", *TOPICS)
    await eventually(lambda: _has_delivered(world, "b", 200))
    summary = summarize_messages(await world.stop_client(), [], {})
    assert summary.published == summary.delivered > 400
    assert summary.unaccounted == summary.never_acknowledged == 0
    gaps = world.journal("gap")
    assert sorted(gap["topic"] for gap in gaps) == sorted(TOPICS)
    for gap in gaps:
        assert gap["cause"] == "unloaded"
        assert (gap["from_instance"], gap["to_instance"]) == (world.brokers["a"].instance, world.brokers["b"].instance)
        assert gap["from_s"] < gap["to_s"]
    assert find_overlaps(serving_intervals(world.serving_records(), {})) == []


async def test_a_killed_broker_takes_only_what_it_had_accepted_and_everything_is_explained(world: TwoBrokers) -> None:
    world.brokers["a"].process.kill()
    await world.brokers["a"].process.wait()
    world.plane.assign("b", *TOPICS)
    await eventually(lambda: _has_delivered(world, "b", 200))
    accounts = await world.stop_client()
    summary = summarize_messages(accounts, [world.brokers["a"].instance], {})
    assert summary.unaccounted == summary.never_acknowledged == 0
    assert summary.delivered + summary.lost_with_killed_broker == summary.published
    gaps = world.journal("gap")
    assert sorted(gap["topic"] for gap in gaps) == sorted(TOPICS)
    assert {gap["from_instance"] for gap in gaps} == {world.brokers["a"].instance}


async def test_a_broker_that_was_stopped_past_its_lease_never_overlaps_with_the_next_owner(world: TwoBrokers) -> None:
    stopped = world.brokers["a"]
    stopped.process.send_signal(signal.SIGSTOP)
    world.plane.crash("a")
    await asyncio.sleep(LEASE_S)  # what the load manager waits for is time
    world.plane.assign("b", *TOPICS)
    await eventually(lambda: _has_delivered(world, "b", 200))
    stopped.process.send_signal(signal.SIGCONT)
    await eventually(lambda: len(stopped.serving_log("closed")) == len(TOPICS))
    assert find_overlaps(serving_intervals(world.serving_records(), {})) == []
    summary = summarize_messages(await world.stop_client(), [], dropped_ranges(world.serving_records()))
    assert summary.unaccounted == summary.never_acknowledged == 0


async def test_a_broker_that_lost_its_lease_is_left_and_what_it_dropped_is_on_record(world: TwoBrokers) -> None:
    world.plane.crash("a")
    await eventually(lambda: world.brokers["a"].serving_log("closed"))
    world.plane.assign("b", *TOPICS)
    await eventually(lambda: _has_delivered(world, "b", 200))
    summary = summarize_messages(await world.stop_client(), [], dropped_ranges(world.serving_records()))
    assert summary.unaccounted == summary.never_acknowledged == 0
    assert {gap["cause"] for gap in world.journal("gap")} == {"lease_lapsed"}
