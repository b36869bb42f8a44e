"""A node and an agent that both ask for tokens: a topic is looked up, owned, and moved by those who may."""

from __future__ import annotations

from contextlib import AsyncExitStack

from support.agents import BROKER_ID, agent_settings, running_agent
from support.fake_broker import FakeBroker
from support.nodes import Cluster
from support.tokens import CLOSED, bearer, token_of
from support.waiting import eventually

TOPIC = "persistent://t/ns/x"


async def test_a_closed_node_and_a_closed_agent_work_together() -> None:
    root, client = bearer(token_of("root")), bearer(token_of("client"))
    async with Cluster() as cluster, FakeBroker() as broker, AsyncExitStack() as stack:
        node = await cluster.start_leader(**CLOSED)
        settings = agent_settings(broker, **CLOSED, loadManagerUrls=[node.node.service_url])
        agent = await stack.enter_async_context(running_agent(settings, await cluster.connect(), highest_epoch=0))
        await eventually(lambda: BROKER_ID in node.node.view.brokers)
        policies = {"bundles": {"numBundles": 1}}
        assert (await node.put("/admin/v2/namespaces/t/ns", headers=root, json=policies)).status == 204
        assert (await node.lookup(TOPIC, headers=client)).status == 200
        assert (await agent.owner(TOPIC))[1]["owned"] is True
        unload = f"/admin/v2/namespaces/{node.bundle_of(TOPIC)}/unload"
        assert (await node.put(unload, headers=client)).status == 403
        assert not broker.unloads
        assert (await node.put(unload, headers=root)).status == 204
        assert [each.topics for each in broker.unloads] == [[TOPIC]]
        positions = f"/admin/v2/namespaces/{node.bundle_of(TOPIC)}/topicHashPositions"
        assert (await node.lookup(TOPIC, headers=client)).status == 200
        assert (await node.get(positions, headers=bearer(token_of("reader")))).status == 200
