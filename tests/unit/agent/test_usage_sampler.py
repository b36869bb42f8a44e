from __future__ import annotations

import time
from collections.abc import AsyncIterator
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
from loadmanager.agent.usage_sampler import UsageSampler
from loadmanager.calling import HttpClient
from loadmanager.core.names import BrokerId
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


async def test_unknown_limits_are_said_once_and_again_only_when_they_change(broker: FakeBroker, tmp_path: Path) -> None:
    metrics = AgentMetrics(BrokerId("a:1"))
    settings = agent_settings(broker, FakeNode(port=1))
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
        sampler = UsageSampler(settings, watch, metrics, time.monotonic, Roots(nics=tmp_path))
        with capture_logs() as logs:
            for _ in range(3):
                await sampler.sample()
    said = [entry for entry in logs if entry["event"] == "resource_limits_unknown"]
    assert [entry["resources"] for entry in said] == [("directMemory", "bandwidthIn", "bandwidthOut")]
