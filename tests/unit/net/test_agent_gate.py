from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from support.agents import BROKER_ID, RunningAgent, agent_settings, running_agent
from support.delays import a_memory_cluster
from support.fake_broker import FakeBroker
from support.fake_node import FakeNode
from support.memory_store import MemoryStore
from support.nodes import Cluster, Reply, a_leader
from support.pulsar_harness import pulsar_harness
from support.tokens import CLOSED, PRINCIPALS, bearer, expired_token_of, token_of
from support.waiting import eventually

from loadmanager.http.openapi import PATH
from loadmanager.net.auth.gate import AccessRole

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


async def test_every_agent_operation_requires_its_role(beside: RunningAgent) -> None:
    server = beside.agent.server
    for paths, app in ((ROLES, server.app()), (OF_THE_BROKER, server.broker_app())):
        assert len(paths) == len({each.canonical.rstrip("/") for each in app.router.resources()})
    for (method, path), role in ROLES.items():
        for principal, roles in {**PRINCIPALS, "stranger": set()}.items():
            status = await _status(beside, method, path, bearer(token_of(principal)))
            assert (status == 403) == (role not in {*roles, AccessRole.ANYONE}), (method, path, principal, status)
            assert status != 401
        assert (await _status(beside, method, path, {}) == 401) == (role is not AccessRole.ANYONE)


async def test_broker_needs_no_token(beside: RunningAgent) -> None:
    for path in OF_THE_BROKER:
        assert await _status(beside, "GET", path, {}) not in (401, 403)


async def test_agent_token_is_sent_to_nodes_only(beside: RunningAgent, broker: FakeBroker, node: FakeNode) -> None:
    await _status(beside, "GET", OF_THE_BROKER[1], {})
    assert set(node.authorizations) == {f"Bearer {token_of('node')}"}
    assert broker.authorizations == {""}


SAID = {
    "domain": "persistent",
    "tenant": "t",
    "namespace": "ns",
    "topic": "x",
    "range": "0x00000000_0x40000000",
    "cluster": "standalone",
    "broker": "b1:8080",
    "policy": "p",
    "failureDomain": "d",
    "group": "g",
    "key": "noSuchKey",
    "value": "1",
    "hash": "0" * 64,
}
TOKENS = {principal: token_of(principal) for principal in PRINCIPALS} | {"stranger": token_of("stranger")}


def operations_in(document: dict[str, Any]) -> Iterator[tuple[str, str, AccessRole]]:
    """Method, path and role of each operation that the document names."""
    for path, methods in document["paths"].items():
        for method, described in methods.items():
            filled = re.sub(r"\{(\w+)\}", lambda found: SAID.get(found[1], "x"), path)
            yield method.upper(), filled, AccessRole(described["x-role"])


def expected(principal: str, role: AccessRole) -> int | None:
    """The status with which the principal is refused; None for one that may."""
    return None if role in {*PRINCIPALS.get(principal, set()), AccessRole.ANYONE} else 403


async def walk(ask: Any, document: dict[str, Any]) -> int:  # noqa: ANN401 - asks a process
    """Try each operation as each principal; how many were tried."""
    tried = 0
    for method, path, role in operations_in(document):
        for principal, token in TOKENS.items():
            refused = expected(principal, role)
            is_endless = path.endswith("/live") and refused is None
            reply = await ask("HEAD" if is_endless else method, path, headers=bearer(token))
            assert (reply.status in (401, 403)) == (refused is not None), (method, path, principal, reply)
            tried += 1
            if refused is not None:
                assert reply.status == refused
                assert repr(principal) in reply.reason
                assert role.value.upper() in reply.reason
        for headers in ({}, bearer("no.token.this"), bearer(expired_token_of("root")), {"Authorization": "Basic eA=="}):
            reply = await ask(method, path, headers=headers)
            assert (reply.status == 401) == (role is not AccessRole.ANYONE), (method, path, reply)
            if reply.status == 401:
                assert reply.reason
                assert reply.headers["WWW-Authenticate"] == "Bearer"
    return tried


async def test_every_node_operation_requires_its_role() -> None:
    async with a_leader(**CLOSED) as (_, node):
        document = (await node.get(PATH, headers=bearer(TOKENS["root"]))).json()
        assert await walk(node.ask, document) > 300


async def test_every_operation_beside_a_pulsar_requires_its_role(tmp_path: Path) -> None:
    async with pulsar_harness(tmp_path) as harness:
        node = await harness.start(**CLOSED)

        async def ask(method: str, path: str, **options: Any) -> Reply:  # noqa: ANN401 - aiohttp's
            return await harness.ask(node, method, path, **options)

        document = (await ask("GET", PATH, headers=bearer(TOKENS["root"]))).json()
        assert await walk(ask, document) > 150


TOPIC = "persistent://t/ns/x"


async def test_node_and_agent_with_authentication_work_together() -> None:
    root, client = bearer(token_of("root")), bearer(token_of("client"))
    async with Cluster() as cluster, FakeBroker() as broker, AsyncExitStack() as stack:
        node = await cluster.start_leader(**CLOSED)
        settings = agent_settings(broker, **CLOSED, loadManagerUrls=[node.node.service_url])
        agent = await stack.enter_async_context(running_agent(settings, await cluster.connect(), highest_epoch=0))
        await eventually(lambda: BROKER_ID in node.node.mirror.brokers)
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
