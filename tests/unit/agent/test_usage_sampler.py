from __future__ import annotations

import asyncio
import os
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from support.agents import agent_settings, running_agent
from support.delays import a_memory_cluster
from support.fake_broker import FakeBroker
from support.fake_node import FakeNode
from support.waiting import eventually

from loadmanager.agent.broker import BrokerClient
from loadmanager.agent.broker_watch import BrokerWatch
from loadmanager.agent.grants import Grants
from loadmanager.agent.host_readings import Roots
from loadmanager.agent.metrics import AgentMetrics
from loadmanager.agent.neighbours import Neighbours
from loadmanager.agent.usage_sampler import UsageSampler
from loadmanager.calling import HttpClient
from loadmanager.core.names import BrokerId
from loadmanager.store import paths
from loadmanager.store.base import Create
from loadmanager.store.memory import MemoryStore

TOPIC = "persistent://t/ns/x"


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as broker:
        yield broker


async def test_of_several_brokers_on_one_host_each_is_measured_by_its_own_process_and_traffic(
    broker: FakeBroker,
) -> None:
    settings = agent_settings(
        broker,
        FakeNode(port=1),
        hostUsageScope="process",
        cpuLimitCores=0.5,
        loadBalancerOverrideBrokerNicSpeedGbps=1.0,
    )
    store = MemoryStore(a_memory_cluster())
    await store.start()
    started_s = time.monotonic()
    async with running_agent(settings, store) as beside:

        def is_measured() -> bool:
            broker.open(TOPIC, bytes_in=int((time.monotonic() - started_s) * 1_000_000))
            usage = beside.agent.sampler.usage
            return usage.cpu.usage > 0 and 4_000 < usage.bandwidth_in.usage < 16_000

        await eventually(is_measured, what="about 8000 kbit/s, and some CPU")
        usage = beside.agent.sampler.usage
        assert usage.cpu.limit == 50.0
        assert usage.memory.usage > 1.0
        assert usage.bandwidth_out.usage == 0.0
    await store.close()


@asynccontextmanager
async def sampling(
    broker: FakeBroker, nics: Path, brokers_on_host: list[int] | None = None, **settings: object
) -> AsyncIterator[UsageSampler]:
    """A sampler that knows the broker; the brokers on its host are as many as the list says last."""
    metrics = AgentMetrics(BrokerId("a:1"))

    async def count() -> int:
        return (brokers_on_host or [1])[-1]

    async with HttpClient() as http:
        watch = BrokerWatch(
            BrokerClient(http, broker.url),
            Grants(BrokerId("a:1")),
            metrics,
            time.monotonic,
            stats_interval_s=1,
            probe_interval_s=1,
            silence_s=1,
            last_lease_at_s=lambda: None,
            on_change=lambda: None,
        )
        await watch.look()
        given = agent_settings(broker, FakeNode(port=1), **settings)
        yield UsageSampler(given, watch, metrics, time.monotonic, Roots(nics=nics), count)


async def test_unknown_limits_are_said_once_and_again_only_when_they_change(broker: FakeBroker, tmp_path: Path) -> None:
    async with sampling(broker, tmp_path) as sampler:
        with capture_logs() as logs:
            for _ in range(3):
                await sampler.sample()
    said = [entry for entry in logs if entry["event"] == "resource_limits_unknown"]
    assert [entry["resources"] for entry in said] == [("directMemory", "bandwidthIn", "bandwidthOut")]
    (bandwidth,) = [entry for entry in logs if entry["event"] == "bandwidth_limit_unknown"]
    assert bandwidth["log_level"] == "warning"
    assert bandwidth["why"] == "there is no physical network card, as in a container"
    assert bandwidth["to_change"] == "loadBalancerOverrideBrokerNicSpeedGbps"


@asynccontextmanager
async def a_process_of_its_own() -> AsyncIterator[int]:
    """The number of a process without children."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "import sys; sys.stdin.read()", stdin=PIPE)
    try:
        yield process.pid
    finally:
        process.kill()
        await process.wait()


async def test_where_other_brokers_are_on_the_host_each_is_measured_by_its_process(
    broker: FakeBroker, tmp_path: Path
) -> None:
    brokers = [1]
    async with a_process_of_its_own() as broker.pid, sampling(broker, tmp_path, brokers) as sampler:
        await sampler.sample()
        await sampler.sample()
        whole = sampler.usage
        assert sampler.scope == "host"
        with capture_logs() as logs:
            brokers.append(3)
            await sampler.sample()
            assert sampler.usage is whole, "one reading of a process says nothing of rates"
            await sampler.sample()
            await sampler.sample()
        own = sampler.usage
        assert sampler.scope == "process"
        assert (own.cpu.limit, own.memory.limit) == (whole.cpu.limit, whole.memory.limit)
        assert 0 < own.memory.usage < whole.memory.usage
        told = [(entry["brokers"], entry["measured"]) for entry in logs if entry["event"] == "host_shared"]
        brokers.append(1)
        with capture_logs() as logs:
            for _ in range(3):
                await sampler.sample()
        told += [(entry["brokers"], entry["measured"]) for entry in logs if entry["event"] == "host_shared"]
        assert told == [(3, "process"), (1, "host")]
        assert sampler.usage.cpu.limit == whole.cpu.limit


@pytest.mark.parametrize("pid", [os.getpid(), 2**22 + 1], ids=["its number is ours", "there is none of its number"])
async def test_a_process_that_cannot_be_seen_is_not_taken_for_another_one_and_it_is_said_what_is_measured(
    broker: FakeBroker, tmp_path: Path, pid: int
) -> None:
    broker.pid = pid
    async with sampling(broker, tmp_path, [2]) as sampler:
        with capture_logs() as logs:
            for _ in range(3):
                await sampler.sample()
        assert sampler.scope == "host"
        assert sampler.usage.cpu.limit > 0
    (said,) = [entry for entry in logs if entry["event"] == "shared_host_measured_as_a_whole"]
    assert (said["log_level"], said["brokers"]) == ("warning", 2)


async def test_neighbours_are_the_brokers_registered_on_the_same_host() -> None:
    memory = a_memory_cluster()
    store = MemoryStore(memory)
    await store.start()
    neighbours = Neighbours(store, BrokerId("a:1"))
    assert await neighbours.look() == 1
    await store.ensure_path(paths.BROKERS)
    for broker in ("a:1", "a:2", "a", "b:1", "aa:1"):
        await store.commit([Create(paths.broker(broker), b"")])
    assert await neighbours.look() == 3
    await store.close()
    assert await neighbours.look() == 3, "as it was read last"
