"""The unmodified Pulsar client finds the owner of a topic through any node, by HTTP, and dials it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from support.nodes import Cluster, FakeAgent, on_zookeeper
from support.tokens import CLOSED, bearer, token_of
from support.waiting import patience

from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper

pytestmark = pytest.mark.zookeeper

PRODUCER = """
import sys, pulsar
token = pulsar.AuthenticationToken(sys.argv[3]) if len(sys.argv) > 3 else None
client = pulsar.Client(sys.argv[1], token, operation_timeout_seconds=15, connection_timeout_ms=5000)
client.create_producer(sys.argv[2])
"""
CONNECT = b"\x08\x02"
"""First bytes of a BaseCommand of type CONNECT, after the sizes of the frame and of the command."""


@dataclass(slots=True)
class BrokerPort:
    """Listens where a broker's binary protocol would, and notes how each connection begins."""

    frames: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)
    port: int = 0

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[BrokerPort]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await self.frames.put(await reader.readexactly(10))
        writer.close()


async def _dials(broker: BrokerPort, service_url: str, topic: str, *token: str) -> bytes:
    """Run a Pulsar client against `service_url` and return how it first spoke to the broker."""
    client = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PRODUCER,
        service_url,
        topic,
        *token,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(patience()):
            return await broker.frames.get()
    except TimeoutError:
        client.kill()
        said, _ = await client.communicate()
        raise AssertionError(f"the client dialled nobody: {said.decode()[-3000:]}") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            client.kill()
        await client.communicate()


async def test_topic_is_resolved_through_any_node(zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
    async with Cluster(on_zookeeper(zookeeper, chroot)) as cluster:
        nodes = await cluster.start_nodes(3)
        agent = await cluster.a_broker("b1:8080")
        await cluster.a_namespace("public/default")
        for number, node in enumerate(nodes):
            topic = f"persistent://public/default/topic-{number}"
            async with BrokerPort().listening() as broker:  # of its own: the last client may have tried once more
                await _listens_at(cluster, agent, f"pulsar://127.0.0.1:{broker.port}")
                frame = await _dials(broker, node.node.service_url, topic)
            assert frame[8:] == CONNECT
            assert nodes[0].ownership(nodes[0].bundle_of(topic)).owner == agent.registration


async def test_client_with_a_token_resolves(zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
    async with Cluster(on_zookeeper(zookeeper, chroot)) as cluster:
        _, follower = await cluster.start_nodes(2, **CLOSED)
        agent = await cluster.a_broker("b1:8080")
        topic = "persistent://public/default/x"
        assert (
            await follower.put("/admin/v2/namespaces/public/default", headers=bearer(token_of("root")))
        ).status == 204
        await cluster.known_everywhere(lambda node: "public/default" in node.node.mirror.namespaces)
        assert (await follower.lookup(topic)).status == 401
        async with BrokerPort().listening() as broker:
            await _listens_at(cluster, agent, f"pulsar://127.0.0.1:{broker.port}")
            frame = await _dials(broker, follower.node.service_url, topic, token_of("client"))
        assert frame[8:] == CONNECT


async def _listens_at(cluster: Cluster, agent: FakeAgent, url: str) -> None:
    """Have the broker say that its clients reach it there, and wait until every node has heard."""
    await agent.report({**agent.record, "pulsarServiceUrl": url})
    broker = agent.registration.broker
    await cluster.known_everywhere(lambda node: node.node.mirror.brokers[broker].record.get("pulsarServiceUrl") == url)
