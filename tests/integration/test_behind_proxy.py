"""A node behind a reverse proxy that has it under a path: agents, clients and the command line ask below that path."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator

import pytest
from support.command_line import run
from support.nodes import Cluster
from support.prefix_proxy import a_proxy
from support.waiting import eventually

from loadmanager.agent.agent_metrics import AgentMetrics
from loadmanager.agent.node_queries import LoadManagerNodes
from loadmanager.client import LookupClient
from loadmanager.core.domain.names import BrokerId, NamespaceName
from loadmanager.net.http_client import HttpClient

TOPIC = "persistent://t/ns/a%2Fb?c"


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster() as cluster:
        await cluster.start_leader()
        await cluster.a_broker()
        await cluster.a_namespace()
        yield cluster


@pytest.fixture
async def url(cluster: Cluster) -> AsyncIterator[str]:
    async with a_proxy(cluster.nodes[0].node.service_url) as url:
        yield url


@pytest.mark.parametrize("end", ["", "/"])
async def test_client_works_behind_a_path_prefix(cluster: Cluster, url: str, end: str) -> None:
    async with LookupClient([url + end], chance=random.Random(7), namespaces=["t/ns"]) as client:
        assert (await client.lookup(TOPIC)).broker_id == "b1:8080"
        await cluster.nodes[0].node.bundles.unload_namespace(NamespaceName("t", "ns"))
        await eventually(lambda: client.resolve(TOPIC) is None, what="it is pushed that nobody owns the topic")


async def test_agent_works_behind_a_path_prefix(cluster: Cluster, url: str) -> None:
    async with HttpClient() as http:
        nodes = LoadManagerNodes(http, [f"{url}/"], AgentMetrics(BrokerId("b1:8080")))
        bundles = cluster.nodes[0].node.mirror.namespaces["t/ns"].state.bundles
        assert await nodes.find_namespace(NamespaceName("t", "ns")) == (bundles, False)
        assert await nodes.find_namespace(NamespaceName("t", "none")) is None


async def test_admin_command_works_behind_a_path_prefix(cluster: Cluster, url: str) -> None:
    def admin(*words: str) -> str:
        done = run("admin", *words, "--json", "--url", f"{url}/")
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    assert json.loads(await asyncio.to_thread(admin, "brokers", "list")) == ["b1:8080"]
    await asyncio.to_thread(admin, "namespaces", "create", "t/other")
    assert "t/other" in cluster.nodes[0].node.mirror.namespaces
