from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.agents import RunningAgent, agent_settings, running_agent
from support.delays import a_memory_cluster
from support.fake_broker import FakeBroker
from support.fake_node import FakeNode
from support.tokens import CLOSED, PRINCIPALS, bearer, token_of

from loadmanager.net.auth.roles import AccessRole
from loadmanager.store.memory_store import MemoryStore

ROLES = {
    ("GET", "/loadmanager/v1/topics"): AccessRole.PEER,
    ("POST", "/loadmanager/v1/prepare"): AccessRole.PEER,
    ("PUT", "/loadmanager/v1/namespaces/t/ns/bundles"): AccessRole.PEER,
    ("PUT", "/admin/v2/namespaces/t/ns/0x00000000_0x40000000/unload"): AccessRole.PEER,
    ("GET", "/healthz"): AccessRole.ANYONE,
    ("GET", "/metrics"): AccessRole.READ,
}
OF_THE_BROKER = ["/loadmanager/v1/lease", "/loadmanager/v1/owner?topic=persistent://t/ns/x"]


@pytest.fixture
async def node() -> AsyncIterator[FakeNode]:
    async with FakeNode() as node:
        node.create_namespace("t/ns")
        yield node


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as broker:
        yield broker


@pytest.fixture
async def beside(broker: FakeBroker, node: FakeNode) -> AsyncIterator[RunningAgent]:
    """A registered agent that asks for tokens."""
    store = MemoryStore(a_memory_cluster())
    await store.start()
    async with running_agent(agent_settings(broker, node, **CLOSED), store) as agent:
        await agent.registered()
        yield agent
    await store.close()


async def _status(beside: RunningAgent, method: str, path: str, headers: dict[str, str]) -> int:
    url = beside.local_url if path in OF_THE_BROKER else beside.url
    async with beside.http.request(method, url + path, headers=headers) as answer:
        if answer.status in (401, 403):
            assert list(await answer.json()) == ["reason"]
            assert (answer.status == 401) == (answer.headers.get("WWW-Authenticate") == "Bearer")
        return answer.status


async def test_every_operation_of_an_agent_asks_for_its_role(beside: RunningAgent) -> None:
    server = beside.agent.server
    for paths, app in ((ROLES, server.app()), (OF_THE_BROKER, server.broker_app())):
        assert len(paths) == len({each.canonical.rstrip("/") for each in app.router.resources()})
    for (method, path), role in ROLES.items():
        for principal, roles in {**PRINCIPALS, "stranger": set()}.items():
            status = await _status(beside, method, path, bearer(token_of(principal)))
            assert (status == 403) == (role not in {*roles, AccessRole.ANYONE}), (method, path, principal, status)
            assert status != 401
        assert (await _status(beside, method, path, {}) == 401) == (role is not AccessRole.ANYONE)


async def test_the_broker_needs_no_token(beside: RunningAgent) -> None:
    for path in OF_THE_BROKER:
        assert await _status(beside, "GET", path, {}) not in (401, 403)


async def test_nodes_are_shown_the_agents_token_and_the_broker_is_not(
    beside: RunningAgent, broker: FakeBroker, node: FakeNode
) -> None:
    await _status(beside, "GET", OF_THE_BROKER[1], {})
    assert set(node.authorizations) == {f"Bearer {token_of('node')}"}
    assert broker.authorizations == {""}
