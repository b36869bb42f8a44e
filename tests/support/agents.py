"""An agent that runs in the test's own process, between a fake broker and fake nodes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from support.fake_broker import FakeBroker
from support.fake_node import FakeNode
from support.servers import end_app, listen, serve_app
from support.waiting import eventually

from loadmanager.agent.agent_service import Agent
from loadmanager.config.agent_settings import AgentSettings
from loadmanager.config.settings_loader import load_settings
from loadmanager.net.liveness import Life
from loadmanager.store import paths, znode_codec
from loadmanager.store.metadata_store import MetadataStore, Put
from loadmanager.util.clock import now_s
from loadmanager.wire.broker_data import LocalBrokerData, decode_local_broker_data
from loadmanager.wire.http_bodies import BUNDLE_VERSION_HEADER, EPOCH_HEADER, INCARNATION_HEADER, OWNER_HEADER

BROKER_ID = "broker-1.example:8080"
HIGHEST_EPOCH = 5
"""Number of elections before an agent starts beside a fake node."""

Reply = tuple[int, Any]


@dataclass
class RunningAgent:
    """The agent and its two addresses: the broker uses `local_url`, all others use `url`."""

    agent: Agent
    url: str
    local_url: str
    store: MetadataStore
    http: aiohttp.ClientSession
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] = field(init=False)
    """Ends with the agent, with the error that ended it."""

    async def get(self, path: str, **query: str) -> Reply:
        return await self._get(self.url + path, query)

    async def owner(self, topic: str, **query: str) -> Reply:
        return await self._get(f"{self.local_url}/loadmanager/v1/owner", {"topic": topic, **query})

    async def lease(self) -> Reply:
        return await self._get(f"{self.local_url}/loadmanager/v1/lease", {})

    async def _get(self, url: str, query: dict[str, str]) -> Reply:
        async with self.http.get(url, params=query) as answer:
            is_json = answer.content_type == "application/json"
            return answer.status, await answer.json() if is_json else await answer.text()

    async def prepare(self, body: bytes, *, incarnation: int | None = None) -> Reply:
        """Send the leader's warm-up request for a bundle of this broker, or of another incarnation."""
        life = self.agent.registration.incarnation or 0 if incarnation is None else incarnation
        headers = {OWNER_HEADER: BROKER_ID, INCARNATION_HEADER: str(life)}
        async with self.http.post(f"{self.url}/loadmanager/v1/prepare", data=body, headers=headers) as answer:
            return answer.status, await answer.json() if await answer.read() else None

    async def unload(self, bundle: str, version: int, epoch: int = 1) -> Reply:
        return await self.unload_with(
            bundle,
            {
                EPOCH_HEADER: str(epoch),
                BUNDLE_VERSION_HEADER: str(version),
                OWNER_HEADER: BROKER_ID,
                INCARNATION_HEADER: str(self.agent.registration.incarnation or 0),
            },
        )

    async def unload_with(self, bundle: str, headers: dict[str, str]) -> Reply:
        async with self.http.put(f"{self.url}/admin/v2/namespaces/{bundle}/unload", headers=headers) as answer:
            return answer.status, await answer.json() if await answer.read() else None

    async def registered(self, *, after: int = 0) -> int:
        """Wait for an incarnation newer than `after`, and return it."""
        await eventually(lambda: (self.agent.registration.incarnation or 0) > after)
        incarnation = self.agent.registration.incarnation
        assert incarnation is not None
        return incarnation

    async def record(self) -> LocalBrokerData | None:
        """Return the broker's record in the store."""
        znode = await self.store.get(paths.broker(BROKER_ID))
        return decode_local_broker_data(znode_codec.decode(znode.data, "znode"), "znode") if znode else None

    def metric(self, name: str, **labels: str) -> float:
        return self.agent.metrics.registry.get_sample_value(f"loadmanager_agent_{name}", labels) or 0.0


def agent_settings(broker: FakeBroker, *nodes: FakeNode, **settings: object) -> AgentSettings:
    """Settings with short intervals, to keep tests fast."""
    values = {
        "brokerId": BROKER_ID,
        "brokerUrl": broker.url,
        "brokerServiceUrl": "pulsar://broker-1.example:6650",
        "loadManagerUrls": [node.url for node in nodes],
        "agentPort": 0,
        "brokerLeaseMs": 600,
        "statsUpdateFrequencyInSecs": 0.1,
        "loadBalancerReportUpdateMinIntervalMillis": 50,
        "loadBalancerHostUsageCheckIntervalMinutes": 0.01,
        "hostUsageScope": "host",  # agent and broker are one process
        **settings,
    }
    return load_settings(AgentSettings, None, values)


@contextlib.asynccontextmanager
async def running_agent(
    settings: AgentSettings,
    store: MetadataStore,
    clock: Callable[[], float] = now_s,
    unload_timeout_s: float = 10.0,
    life: Life | None = None,
    highest_epoch: int = HIGHEST_EPOCH,
) -> AsyncIterator[RunningAgent]:
    """The agent on a started store; it is stopped gracefully at the end, unless the test did so before.

    Real nodes are elected by themselves, and deposed by any other epoch: `highest_epoch` is 0 beside them.
    An error that ended the agent is raised after the test, unless that has failed.
    """
    await elect(store, highest_epoch)
    listener, of_broker = listen(), listen()
    url, local_url = (f"http://127.0.0.1:{each.getsockname()[1]}" for each in (listener, of_broker))
    agent = Agent(settings, store, url, life=life, clock=clock)
    agent._broker._unload_timeout_s = unload_timeout_s
    servers = [await serve_app(agent.server.app(), listener), await serve_app(agent.server.broker_app(), of_broker)]
    async with aiohttp.ClientSession() as http:
        running = RunningAgent(agent, url, local_url, store, http)
        running.task = asyncio.create_task(agent.run(running.stop))
        try:
            yield running
        finally:
            running.stop.set()
            await asyncio.wait([running.task])
            await agent.close()
            for server in servers:
                await end_app(server)
        await running.task


async def elect(store: MetadataStore, epoch: int) -> None:
    """Have leaders elected up to this epoch."""
    await store.ensure_path(paths.EPOCH)
    while (znode := await store.get(paths.EPOCH)) is None or znode.version < epoch:
        await store.commit([Put(paths.EPOCH, b"a:8080")])
