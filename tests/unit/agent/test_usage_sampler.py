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
from support.memory_store import MemoryStore
from support.waiting import eventually

from loadmanager.agent.agent_metrics import AgentMetrics
from loadmanager.agent.broker_watch import BrokerWatch, StuckDetector
from loadmanager.agent.grants import Grants
from loadmanager.agent.host_readings import Roots
from loadmanager.agent.host_usage import NOTHING_KNOWN
from loadmanager.agent.usage_sampler import NOT_MEASURED, UsageSampler
from loadmanager.core.domain.names import BrokerId
from loadmanager.net.broker_client import BrokerClient
from loadmanager.net.http_client import HttpClient

TOPIC = "persistent://t/ns/x"


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as broker:
        yield broker


async def test_broker_is_measured_by_process_and_traffic(broker: FakeBroker) -> None:
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
            return usage["cpu"]["usage"] > 0 and 4_000 < usage["bandwidthIn"]["usage"] < 16_000

        await eventually(is_measured, what="about 8000 kbit/s, and some CPU")
        usage = beside.agent.sampler.usage
        assert usage["cpu"]["limit"] == 50.0
        assert usage["memory"]["usage"] > 1.0
        assert usage["bandwidthOut"]["usage"] == 0.0
    await store.close()


@asynccontextmanager
async def sampling(
    broker: FakeBroker, nics: Path, agents_on_host: list[int] | None = None, **settings: object
) -> AsyncIterator[UsageSampler]:
    """A sampler that knows the broker; the agents on its host are as many as the list says last."""
    metrics = AgentMetrics(BrokerId("a:1"))
    async with HttpClient() as http:
        watch = BrokerWatch(
            BrokerClient(http, broker.url),
            Grants(BrokerId("a:1")),
            metrics,
            StuckDetector(1.0),
            time.monotonic,
            stats_interval_s=1,
            probe_interval_s=1,
            silence_s=1,
            last_lease_at_s=lambda: None,
            on_change=lambda: None,
        )
        await watch.look()
        given = agent_settings(broker, FakeNode(port=1), **{"hostUsageScope": "auto", **settings})
        agents = agents_on_host or [1]
        yield UsageSampler(given, watch, metrics, time.monotonic, Roots(nics=nics), lambda: agents[-1])


@asynccontextmanager
async def a_process_of_its_own(broker: FakeBroker, *command: str) -> AsyncIterator[int]:
    """The pid of a process that listens at the broker's port."""
    words = [*command, sys.executable, "-c", "import sys; sys.stdin.read()"]
    process = await asyncio.create_subprocess_exec(*words, stdin=PIPE, pass_fds=[broker.listener.fileno()])
    try:
        yield process.pid
    finally:
        process.kill()
        await process.wait()


async def test_unknown_limits_are_logged_once_until_they_change(broker: FakeBroker, tmp_path: Path) -> None:
    async with sampling(broker, tmp_path, hostUsageScope="host") as sampler:
        with capture_logs() as logs:
            for _ in range(3):
                await sampler.sample()
    said = [entry for entry in logs if entry["event"] == "resource_limits_unknown"]
    assert [entry["resources"] for entry in said] == [("directMemory", "bandwidthIn", "bandwidthOut")]
    (bandwidth,) = [entry for entry in logs if entry["event"] == "bandwidth_limit_unknown"]
    assert bandwidth["log_level"] == "warning"
    assert bandwidth["why"] == "there is no physical network card, as in a container"
    assert bandwidth["to_change"] == "loadBalancerOverrideBrokerNicSpeedGbps"


async def test_broker_alone_on_a_host_is_measured_by_host_usage(broker: FakeBroker, tmp_path: Path) -> None:
    agents = [1]
    async with a_process_of_its_own(broker) as broker.pid, sampling(broker, tmp_path, agents) as sampler:
        assert (sampler.scope, sampler.usage["cpu"]["limit"]) == ("unknown", 0.0)
        await sampler.sample()
        assert sampler.usage == NOTHING_KNOWN, "usage needs two readings"
        await sampler.sample()
        whole = sampler.usage
        assert (sampler.scope, sampler.fault()) == ("host", "")
        agents.append(3)
        await sampler.sample()
        assert sampler.usage == NOTHING_KNOWN, "the usage of the machine is not the broker's"
        await sampler.sample()
        own = sampler.usage
        assert (sampler.scope, sampler.agents_on_host) == ("process", 3)
        assert (own["cpu"]["limit"], own["memory"]["limit"]) == (whole["cpu"]["limit"], whole["memory"]["limit"])
        assert 0 < own["memory"]["usage"] < whole["memory"]["usage"]
        agents.append(1)
        await sampler.sample()
        assert sampler.usage is own
        await sampler.sample()
        assert sampler.scope == "host"


async def test_new_neighbour_is_noticed(broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmanager.agent.usage_sampler._LOOK_INTERVAL_S", 0.01)
    agents = [1]
    async with a_process_of_its_own(broker) as broker.pid, sampling(broker, tmp_path, agents) as sampler:
        running = asyncio.create_task(sampler.run())
        await eventually(lambda: sampler.scope == "host" and sampler.usage["cpu"]["limit"] > 0)
        agents.append(2)
        await eventually(lambda: sampler.scope == "process" and sampler.usage["cpu"]["limit"] > 0)
        running.cancel()


async def test_limit_of_a_broker_bound_to_one_core(broker: FakeBroker, tmp_path: Path) -> None:
    core = str(min(os.sched_getaffinity(0)))
    async with (
        a_process_of_its_own(broker, "taskset", "-c", core) as broker.pid,
        sampling(broker, tmp_path) as sampler,
    ):
        await eventually(lambda: len(os.sched_getaffinity(broker.pid)) == 1)
        for _ in range(2):
            await sampler.sample()
        assert sampler.usage["cpu"]["limit"] == (100.0 if (os.cpu_count() or 1) > 1 else 100.0 * (os.cpu_count() or 1))


@pytest.mark.parametrize("case", ["the agent", "none", "init", "a process that listens elsewhere"])
async def test_invisible_broker_has_unknown_usage(broker: FakeBroker, tmp_path: Path, case: str) -> None:
    async with FakeBroker() as elsewhere, a_process_of_its_own(elsewhere) as pid:
        broker.pid = {"the agent": os.getpid(), "none": 2**22 + 1, "init": 1}.get(case, pid)
        async with sampling(broker, tmp_path) as sampler:
            with capture_logs() as logs:
                for _ in range(3):
                    await sampler.sample()
            assert sampler.scope == "unknown"
            assert (sampler.usage["cpu"]["limit"], sampler.usage["memory"]["limit"]) == (0.0, 0.0)
            assert sampler.fault() == NOT_MEASURED
        warnings = [entry for entry in logs if entry["log_level"] == "warning"]
        assert [entry["event"] for entry in warnings] == ["broker_not_measured"]
