"""A broker under load for tests of the whole: it opens a topic when its agent lets it, and counts messages since."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from aiohttp import web
from support.agents import RunningAgent, agent_settings, running_agent
from support.fake_broker import FakeBroker
from support.nodes import Cluster, RunningNode
from support.waiting import eventually

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import NamespaceState


@dataclass(slots=True)
class LoadedBroker(FakeBroker):
    """Each open topic takes in `rates` messages per second (1000 unless told), of 100 bytes each."""

    rates: dict[str, float] = field(default_factory=dict)
    opened_s: dict[str, float] = field(default_factory=dict)
    openings: list[str] = field(default_factory=list)
    """Topics in the order in which they were opened; one that had to be opened again is in it twice."""

    def start_serving(self, topic: str) -> None:
        if topic not in self.topics:
            self.opened_s[topic] = time.monotonic()
            self.openings.append(topic)
            self.open(topic)

    async def _stats(self, request: web.Request) -> web.Response:
        now_s = time.monotonic()
        for topic in self.topics:
            messages = int((now_s - self.opened_s[topic]) * self.rates.get(topic, 1_000.0))
            self.open(topic, messages_in=messages, bytes_in=100 * messages, producers=1)
        return await FakeBroker._stats(self, request)


@dataclass(slots=True)
class Fleet:
    """Nodes on one metadata store, and brokers with real agents, by broker id."""

    cluster: Cluster
    brokers: dict[str, LoadedBroker] = field(default_factory=dict)
    agents: dict[str, RunningAgent] = field(default_factory=dict)
    endings: dict[str, AsyncExitStack] = field(default_factory=dict)

    @property
    def leader(self) -> RunningNode:
        return next(node for node in self.cluster.nodes if node.leads)

    def state(self, namespace: str = "t/ns") -> NamespaceState:
        return self.leader.node.mirror.namespaces[namespace].state

    async def start_broker(self, broker_id: str) -> LoadedBroker:
        """A broker and its agent, registered and known to every node."""
        ending = self.endings[broker_id] = AsyncExitStack()
        broker = await ending.enter_async_context(LoadedBroker())
        store = await self.cluster.connect()
        ending.push_async_callback(store.close)
        urls = [node.node.service_url for node in self.cluster.nodes]
        settings = agent_settings(broker, brokerId=broker_id, loadManagerUrls=urls)
        agent = await ending.enter_async_context(running_agent(settings, store, highest_epoch=0))
        await agent.registered()
        self.brokers[broker_id], self.agents[broker_id] = broker, agent
        await self.cluster.known_everywhere(lambda node: BrokerId(broker_id) in node.node.mirror.brokers)
        return broker

    async def stop_broker(self, broker_id: str) -> None:
        """Its agent leaves in good order, and the broker with it."""
        del self.brokers[broker_id], self.agents[broker_id]
        await self.endings.pop(broker_id).aclose()

    async def serve(self, topics: Sequence[str]) -> None:
        """Look each topic up, like a client, until the broker it is sent to serves it."""

        async def is_served(topic: str) -> bool:
            reply = await self.leader.lookup(topic)
            if reply.status != 200:
                return False
            broker_id = reply.json()["brokerId"]
            status, answer = await self.agents[broker_id].owner(topic)
            if status != 200 or not answer["owned"]:
                return False
            self.brokers[broker_id].start_serving(topic)
            return True

        for topic in topics:

            async def served(topic: str = topic) -> bool:
                return await is_served(topic)

            await eventually(served, what=f"{topic} is served")

    def holders(self, topic: str) -> list[str]:
        """The brokers that have the topic open; at most one is correct."""
        return [broker_id for broker_id, broker in self.brokers.items() if topic in broker.topics]

    def reported(self) -> set[str]:
        """Every bundle in any broker's last report."""
        reports = self.leader.node.mirror.model.latest_reports().values()
        return {name for report in reports for name in report.bundle_names}


@contextlib.asynccontextmanager
async def a_fleet(cluster: Cluster, *broker_ids: str) -> AsyncIterator[Fleet]:
    """Brokers for the nodes of a cluster that are started already."""
    fleet = Fleet(cluster)
    try:
        for broker_id in broker_ids:
            await fleet.start_broker(broker_id)
        yield fleet
    finally:
        for broker_id in list(fleet.endings):
            await fleet.endings.pop(broker_id).aclose()
