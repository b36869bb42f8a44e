"""A broker of the kit, its agent and a node on a ZooKeeper that stops for a while."""

from __future__ import annotations

import asyncio
import contextlib
from typing import cast

import aiohttp
import pytest
from support.agents import agent_settings, running_agent
from support.fake_broker import FakeBroker
from support.fake_node import FakeNode
from support.lm_node import a_local_node, get_json
from support.stores import started
from support.waiting import eventually
from support.zookeeper import ZooKeeperFactory

from loadmanager.broker import Hosting, RefusedError
from loadmanager.core.domain.bundles import NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import NamespaceName
from loadmanager.store.zookeeper_store import ZooKeeperStore

pytestmark = pytest.mark.zookeeper

_SESSION_S = 9.0
"""Leases lapse after two thirds of it without ZooKeeper."""
CACHE, LOG = "persistent://t/cache/topic", "persistent://t/log/topic"


async def test_only_an_available_namespace_is_served_without_zookeeper(start_zookeeper: ZooKeeperFactory) -> None:
    server = await asyncio.to_thread(start_zookeeper)
    stores = [ZooKeeperStore(server.connect_string, session_timeout_s=_SESSION_S) for _ in range(2)]
    agent_url = ""
    async with (
        started(stores[0]) as of_node,
        started(stores[1]) as of_agent,
        aiohttp.ClientSession() as http,
        a_local_node(of_node, {"availableNamespaces": ["t/cache"]}) as node,
        Hosting(lambda: agent_url) as hosting,
    ):
        await node.node.leading.wait()
        for name in ("cache", "log"):
            await node.node.bundles.create_namespace(NamespaceName("t", name), NamespaceBundles(equal_boundaries(1)))
        settings = agent_settings(cast("FakeBroker", hosting), cast("FakeNode", node))
        async with running_agent(settings, of_agent, highest_epoch=0) as agent:
            agent_url = agent.local_url
            await agent.registered()
            await eventually(lambda: hosting.has_lease and bool(node.node.mirror.brokers))

            async def are_served() -> bool:
                for topic in (CACHE, LOG):
                    await get_json(http, f"{node.url}/lookup/v2/topic/{topic.replace('://', '/')}")
                    with contextlib.suppress(RefusedError):
                        await hosting.open(topic)
                return hosting.serving(CACHE) is not None and hosting.serving(LOG) is not None

            await eventually(are_served)
            await eventually(lambda: agent.agent.namespaces.available == ["t/cache"])
            granted = agent.metric("leases_total", outcome="granted")
            await eventually(lambda: agent.metric("leases_total", outcome="granted") > granted + 1)
            server.pause()
            try:
                await eventually(lambda: not hosting.has_lease)
                await eventually(lambda: [topic.name for topic in hosting.topics] == [CACHE])
                assert hosting.serving(CACHE) is not None
            finally:
                server.resume()
            await eventually(are_served)
            assert hosting.has_lease
