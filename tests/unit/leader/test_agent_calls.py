from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.nodes import FakeAgent, RunningNode, a_leader

from loadmanager.core.domain.names import BundleName
from loadmanager.errors import OwnerSilentError
from loadmanager.net import http_client

BUNDLE = BundleName.parse("t/ns/0x00000000_0xffffffff")
LOAD = (1.0, 1.0, 1.0, 1.0)


@pytest.fixture
async def leader_with_agents() -> AsyncIterator[tuple[RunningNode, FakeAgent, FakeAgent]]:
    """A leader and the agents of two brokers; the first agent redirects to the second."""
    async with a_leader() as (cluster, leader):
        await cluster.a_namespace("t/ns", bundles={"numBundles": 1})
        agent, other = await cluster.a_broker("b1:8080"), await cluster.a_broker("b2:8080")
        agent.location = other.url
        other.topics = {"persistent://t/ns/x": LOAD}
        yield leader, agent, other


@pytest.mark.parametrize("status", [202, 204, 301, 302, 303, 307, 308, 404, 503])
async def test_topics_with_an_unexpected_status_are_refused(
    leader_with_agents: tuple[RunningNode, FakeAgent, FakeAgent], status: int
) -> None:
    leader, agent, _ = leader_with_agents
    agent.topics_status = status
    with pytest.raises(OwnerSilentError, match=f"answered {status}"):
        await leader.node.agents.get_topics(agent.registration, BUNDLE)


@pytest.mark.parametrize("status", [200, 202, 301, 302, 303, 307, 308, 404, 503])
async def test_boundaries_with_an_unexpected_status_are_refused(
    leader_with_agents: tuple[RunningNode, FakeAgent, FakeAgent], status: int
) -> None:
    leader, agent, other = leader_with_agents
    agent.boundaries_status = status
    with pytest.raises(OwnerSilentError, match=f"answered {status}"):
        await leader.node.agents.tell_bundles(agent.registration, leader.node.mirror.namespaces["t/ns"].state)
    assert (len(agent.boundaries), other.boundaries) == (1, [])


async def test_too_large_answer_of_an_agent_is_refused(
    leader_with_agents: tuple[RunningNode, FakeAgent, FakeAgent], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, agent, _ = leader_with_agents
    agent.topics = {f"persistent://t/ns/{number}": LOAD for number in range(100)}
    assert len(await leader.node.agents.get_topics(agent.registration, BUNDLE)) == 100
    monkeypatch.setattr(http_client, "LARGEST_ANSWER_BYTES", 1_000)
    with pytest.raises(OwnerSilentError, match="an answer of more than 1000 bytes"):
        await leader.node.agents.get_topics(agent.registration, BUNDLE)
