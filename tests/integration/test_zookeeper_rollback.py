"""A node and an agent as processes, whose ZooKeeper loses its data, or is set back to older ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
import yaml
from support.agents import BROKER_ID
from support.fake_broker import FakeBroker
from support.lm_node import NodeProcess, get_json
from support.processes import Processes
from support.waiting import eventually
from support.zookeeper import ZooKeeperFactory, save, set_back, wipe

from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper

pytestmark = pytest.mark.zookeeper

SESSION = {"metadataStoreSessionTimeoutMillis": 2_000}
GIVEN_UP = "session_given_up"


@dataclass
class Pair:
    """A node and an agent beside a broker, on one ZooKeeper."""

    server: EmbeddedZooKeeper
    node: NodeProcess
    agent_log: Path
    broker: FakeBroker
    http: aiohttp.ClientSession

    async def serves(self) -> bool:
        """Return True if the node is ready, leads, and assigns a bundle to the broker."""
        if (await get_json(self.http, f"{self.node.url}/readyz"))[0] != 200:
            return False
        async with self.http.put(f"{self.node.url}/admin/v2/namespaces/t/ns") as answer:
            if answer.status not in {204, 409}:
                return False
        status, body = await get_json(self.http, f"{self.node.url}/lookup/v2/topic/persistent/t/ns/x")
        return status == 200 and body["brokerId"] == BROKER_ID

    async def sessions_given_up(self) -> float:
        async with self.http.get(f"{self.node.url}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        (value,) = [
            line.rpartition(" ")[2] for line in lines if line.startswith("loadmanager_sessions_given_up_total{")
        ]
        return float(value)

    async def goes_far(self) -> None:
        """Return once both have seen more transactions than there are until both are back. With fewer a server that is
        behind can have caught up with one of them when that comes.
        """
        for number in range(20):
            async with self.http.put(f"{self.node.url}/admin/v2/namespaces/t/later-{number}") as answer:
                assert answer.status == 204
        written = self.agent_log.read_text().count("report_written")
        for number in range(100):
            self.broker.open(f"persistent://t/ns/topic-{number}")
        await eventually(lambda: self.agent_log.read_text().count("report_written") > written)

    async def recover(self) -> None:
        await eventually(lambda: self.node.events(GIVEN_UP), what="the node gives its session up")
        await eventually(lambda: GIVEN_UP in self.agent_log.read_text(), what="the agent gives its session up")
        await eventually(self.serves, what="both are at work again")
        assert await self.sessions_given_up() == 1
        assert self.node.events("zookeeper_hangs_up")[-1]["address"] == self.server.connect_string


@asynccontextmanager
async def a_pair(server: EmbeddedZooKeeper, folder: Path) -> AsyncIterator[Pair]:
    store = {"metadataStoreUrl": f"zk:{server.connect_string}/app", **SESSION}
    async with FakeBroker() as broker, aiohttp.ClientSession() as http:
        with Processes(folder) as processes:
            node = NodeProcess("n1", folder, processes, store)
            await node.start()
            config, log = folder / "agent.yaml", folder / "agent.log"
            beside = {"brokerId": BROKER_ID, "brokerUrl": broker.url, "loadManagerUrls": [node.url]}
            local = {
                "bindAddress": "127.0.0.1",
                "agentPort": 0,
                "brokerLeaseMs": 1_000,
                "statsUpdateFrequencyInSecs": 0.1,
            }
            addresses = {
                "loadBalancerReportUpdateMinIntervalMillis": 50,
                "brokerServiceUrl": "pulsar://broker-1.example:6650",
            }
            config.write_text(yaml.safe_dump({**store, **beside, **local, **addresses}))
            processes.start("agent", ["-m", "loadmanager", "agent", f"--config={config}", "--log-json"], log)
            pair = Pair(server, node, log, broker, http)
            await eventually(pair.serves, what="both are at work")
            yield pair
            assert node.is_running
            assert processes.is_running("agent")


async def test_node_and_agent_survive_an_empty_zookeeper(start_zookeeper: ZooKeeperFactory, tmp_path: Path) -> None:
    server = await asyncio.to_thread(start_zookeeper)
    async with a_pair(server, tmp_path) as pair:
        await pair.goes_far()
        await asyncio.to_thread(wipe, server)
        await pair.recover()


@pytest.mark.deep
async def test_node_and_agent_survive_a_zookeeper_rollback(start_zookeeper: ZooKeeperFactory, tmp_path: Path) -> None:
    server = await asyncio.to_thread(start_zookeeper)
    async with a_pair(server, tmp_path) as pair:
        await asyncio.to_thread(save, server, tmp_path / "saved")
        await eventually(pair.serves)
        await pair.goes_far()
        await asyncio.to_thread(set_back, server, tmp_path / "saved")
        await pair.recover()
        assert (await get_json(pair.http, f"{pair.node.url}/admin/v2/namespaces/t/later-1"))[0] == 404
