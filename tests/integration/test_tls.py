"""A cluster that speaks TLS alone, and shows and wants certificates everywhere: nodes and an agent as processes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
import yaml
from support.agents import BROKER_ID
from support.certificates import Authority, Signed
from support.fake_broker import FakeBroker
from support.lm_node import NodeProcess
from support.processes import Processes
from support.servers import listen
from support.waiting import eventually, patience
from typer.testing import CliRunner, Result

from loadmanager.cli.admin_command import admin
from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.net.tls_contexts import TlsOptions

pytestmark = pytest.mark.zookeeper

TOPIC = "persistent://public/default/orders"
PRODUCER = """
import sys, pulsar
_, url, trust, certificate, key, topic = sys.argv
client = pulsar.Client(
    url,
    authentication=pulsar.AuthenticationTLS(certificate, key),
    tls_trust_certs_file_path=trust,
    tls_validate_hostname=True,
    operation_timeout_seconds=15,
)
client.create_producer(topic)
"""
CLIENT_HELLO = b"\x16\x03"


@dataclass
class Closed:
    """Two nodes, and an agent beside a broker; the broker says that its clients reach it at `port`."""

    folder: Path
    authority: Authority
    operator: Signed
    nodes: list[NodeProcess]
    broker: FakeBroker
    agent_url: str
    socket: str
    port: asyncio.Server
    heard: asyncio.Queue[bytes]

    async def admin(self, line: str, *, url: str = "", with_certificate: bool = True) -> Result:
        environment = {"LOADMANAGER_ADMIN_URL": url or ",".join(node.url for node in self.nodes), "NO_COLOR": "1"}
        if with_certificate:
            environment |= {
                "LOADMANAGER_TLS_TRUST_CERT_PATH": str(self.authority.certificate),
                "LOADMANAGER_TLS_CERTIFICATE_PATH": str(self.operator.certificate),
                "LOADMANAGER_TLS_KEY_PATH": str(self.operator.key),
            }
        return await asyncio.to_thread(CliRunner(env=environment).invoke, admin, line.split())

    async def ask_agent(self, path: str, **query: str) -> tuple[int, Any]:
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(self.socket)) as http,
            http.get(f"http://agent{path}", params=query) as answer,
        ):
            return answer.status, await answer.json()


def shown(authority: Authority, name: str) -> dict[str, object]:
    """A process by this name shows its certificate to everybody, and wants one of everybody."""
    own, trust = authority.sign(name), str(authority.certificate)
    return {
        "tlsCertificateFilePath": str(own.certificate),
        "tlsKeyFilePath": str(own.key),
        "tlsTrustCertsFilePath": trust,
        "tlsRequireTrustedClientCertOnConnect": True,
        "brokerClientTrustCertsFilePath": trust,
        "brokerClientCertificateFilePath": str(own.certificate),
        "brokerClientKeyFilePath": str(own.key),
    }


@pytest.fixture
async def closed(zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path) -> AsyncIterator[Closed]:
    authority, heard = Authority(tmp_path), asyncio.Queue[bytes]()
    store = {"metadataStoreUrl": f"zk:{zookeeper.connect_string}{chroot}"}

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await heard.put(await reader.read(2))
        writer.close()

    port = await asyncio.start_server(hear, sock=listen())
    with Processes(tmp_path) as processes:
        nodes = []
        for name in ("lm-1", "lm-2"):
            alone = {"webServicePort": None, "webServicePortTls": 0, **shown(authority, name), **store}
            nodes.append(NodeProcess(name, tmp_path, processes, alone))
            await nodes[-1].start()
        async with FakeBroker() as broker, port:
            settings = {
                **shown(authority, "agent-1"),
                **store,
                "brokerId": BROKER_ID,
                "brokerUrl": broker.url,
                "brokerServiceUrl": "pulsar://127.0.0.1:1",
                "brokerServiceUrlTls": f"pulsar+ssl://127.0.0.1:{port.sockets[0].getsockname()[1]}",
                "loadManagerUrls": [node.url for node in nodes],
                "bindAddress": "127.0.0.1",
                "agentPort": None,
                "agentPortTls": 0,
                "brokerSocketPath": str(tmp_path / "s"),
                "statsUpdateFrequencyInSecs": 0.1,
            }
            config, ready = tmp_path / "agent.yaml", tmp_path / "agent.json"
            config.write_text(yaml.safe_dump(settings))
            arguments = ["-m", "loadmanager", "agent", "--config", str(config), "--ready-file", str(ready)]
            processes.start("agent", arguments, tmp_path / "agent.log")
            await eventually(ready.exists)
            told = orjson.loads(ready.read_bytes())
            assert told["localUrl"] == f"unix:{tmp_path / 's'}"
            closed = Closed(
                tmp_path, authority, authority.sign("operator"), nodes, broker, told["url"], "", port, heard
            )
            closed.socket = str(tmp_path / "s")
            yield closed


async def test_cluster_works_over_tls_alone(closed: Closed) -> None:
    first, second = (node.url for node in closed.nodes)
    assert all(url.startswith("https://127.0.0.1:") for url in (first, second, closed.agent_url))
    refused = await closed.admin("brokers list", with_certificate=False)
    assert refused.exit_code == 3
    assert "--tls-trust-cert-path names who signs the nodes' certificates" in refused.stderr

    async def has_lease() -> bool:
        return (await closed.ask_agent("/loadmanager/v1/lease"))[0] == 200

    await eventually(has_lease)
    for number, url in enumerate((first, second)):  # one of them passes it on to the leader
        created = await closed.admin(f"namespaces create public/ns-{number}", url=url)
        assert created.exit_code == 0, created.stderr
    leader = await closed.admin("brokers leader-broker --json")
    assert orjson.loads(leader.stdout)["serviceUrl"] in (first, second)

    assert (await closed.admin("namespaces create public/default")).exit_code == 0
    assert await dialled(closed, second) == CLIENT_HELLO, "a client of Pulsar's goes where TLS is spoken"
    status, answer = await closed.ask_agent("/loadmanager/v1/owner", topic=TOPIC)
    assert (status, answer["owned"]) == (200, True)
    closed.broker.open(TOPIC)
    unloaded = await closed.admin("namespaces unload public/default", url=first)
    assert unloaded.exit_code == 0, unloaded.stderr
    assert [TOPIC] in [unload.topics for unload in closed.broker.unloads]

    own = Signed(closed.folder / "authority-lm-1.pem", closed.folder / "authority-lm-1.key")
    closed.authority.sign("renewed").put_in_place_of(own)
    assert await shown_by(closed, first) == "renewed", "without a restart"
    own.key.write_text("no key")
    assert await shown_by(closed, first) == "renewed", "the last good one stays"
    *_, error = closed.nodes[0].events("tls_files_unusable")  # the new certificate and the old key were, too
    assert str(own.key) in error["error"]
    assert "does not go with" not in error["error"], error


async def shown_by(closed: Closed, url: str) -> str:
    """The common name in the certificate that the process there shows to a new connection."""
    context = TlsOptions(closed.authority.certificate, closed.operator.certificate, closed.operator.key).context()
    _, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]), ssl=context)
    subject = writer.get_extra_info("peercert")["subject"]
    writer.close()
    return str(next(value for part in subject for name, value in part if name == "commonName"))


async def dialled(closed: Closed, url: str) -> bytes:
    """First bytes that a Pulsar client sends to the owner of the topic."""
    given = (url, closed.authority.certificate, closed.operator.certificate, closed.operator.key, TOPIC)
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PRODUCER, *map(str, given)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    talking = asyncio.create_task(client.communicate())
    hearing = asyncio.create_task(closed.heard.get())
    try:
        await asyncio.wait({talking, hearing}, timeout=patience(), return_when=asyncio.FIRST_COMPLETED)
        assert hearing.done(), (await talking)[0].decode()[-3000:] if talking.done() else "the client dialled nobody"
        return hearing.result()
    finally:
        hearing.cancel()
        if client.returncode is None:
            client.kill()
        await talking
