"""Credentials, TLS and access lists, on real ZooKeepers that ask for them."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from kazoo.security import ACL, OPEN_ACL_UNSAFE, Permissions
from structlog.testing import capture_logs
from support.stores import drop_connection

from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.dev.embedded.server_files import Security, free_ports
from loadmanager.errors import (
    AccessDeniedError,
    ConfigurationError,
    StoreUnavailableError,
    TransactionFailedError,
)
from loadmanager.store import paths
from loadmanager.store.acl_update import AclProcess, refuse_strangers, secure, why_locked_out
from loadmanager.store.metadata_store import Check, Create, Delete, Put
from loadmanager.store.zookeeper_acl import ANYBODY, Access, Acls, Credentials
from loadmanager.store.zookeeper_store import ZooKeeperStore

pytestmark = pytest.mark.zookeeper

JAAS = b"""\
Server {
  org.apache.zookeeper.server.auth.DigestLoginModule required
  user_node="node-secret"
  user_agent="agent-secret";
};
"""
Scheme = Literal["digest", "sasl"]


def credentials(scheme: Scheme, user: str, password: str | None = None) -> Credentials:
    return Credentials(scheme, user, password or f"{user}-secret", "metadataStoreCredentials file:///run/zk")


@dataclass(frozen=True)
class Secured:
    """A server that knows users by SASL, and speaks TLS, with client certificates, at another port."""

    server: EmbeddedZooKeeper
    tls_address: str
    ca: trustme.CA

    def tls(self, *names: str, ca: trustme.CA | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context()
        (ca or self.ca).configure_trust(context)
        if names:
            self.ca.issue_cert(*names).configure_cert(context)
        return context


@pytest.fixture(scope="module")
def secured() -> Iterator[Secured]:
    ca = trustme.CA()
    of_server = ca.issue_cert("127.0.0.1")
    key = serialization.load_pem_private_key(of_server.private_key_pem.bytes(), None)
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (port,) = free_ports(1)
    security = Security(
        {
            "secureClientPort": port,
            "secureClientPortAddress": "127.0.0.1",
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": "./server.pem",
            "ssl.keyStore.type": "PEM",
            "ssl.trustStore.location": "./ca.pem",
            "ssl.trustStore.type": "PEM",
            "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        },
        ["-Djava.security.auth.login.config=./jaas.conf"],
        {
            "server.pem": key_pem + b"".join(pem.bytes() for pem in of_server.cert_chain_pems),
            "ca.pem": ca.cert_pem.bytes(),
            "jaas.conf": JAAS,
        },
    )
    with EmbeddedZooKeeper(security=security) as server:
        yield Secured(server, f"127.0.0.1:{port}", ca)


Connect = Callable[..., contextlib.AbstractAsyncContextManager[ZooKeeperStore]]


@pytest.fixture
def connect(secured: Secured, chroot: str) -> Connect:
    @contextlib.asynccontextmanager
    async def connect(
        access: Access = ANYBODY, hosts: str | None = None, within_s: float = 10.0
    ) -> AsyncIterator[ZooKeeperStore]:
        store = ZooKeeperStore(
            hosts or secured.server.connect_string,
            session_timeout_s=60.0,
            chroot=chroot,
            connect_timeout_s=within_s,
            access=access,
        )
        try:
            await store.start()
            yield store
        finally:
            await store.close()

    return connect


def accesses(scheme: Scheme) -> tuple[Access, Access]:
    """A node's and an agent's."""
    node, agent = credentials(scheme, "node"), credentials(scheme, "agent")
    acls = Acls((node.identity,), (agent.identity,))
    return Access(node, acls=acls), Access(agent, acls=acls)


async def why_not(connect: Connect, access: Access, hosts: str) -> str:
    """Error of a refused connection; an attempt without an answer is repeated with more time."""
    for within_s in (1.0, 4.0, 16.0, 64.0):
        with capture_logs(), pytest.raises(StoreUnavailableError) as refused:
            async with connect(access, hosts, within_s=within_s):
                pytest.fail("it started")
        said = str(refused.value)
        if not said.endswith(f" within {within_s:g} s"):
            return said
    pytest.fail("the server was not heard of in a minute")


NEVER = 2_147_483_647
"""A version that no znode has: a write at it changes nothing, and says whether it would be allowed."""


async def may_write(store: ZooKeeperStore, op: Put | Create | Delete) -> bool:
    with pytest.raises(TransactionFailedError) as refused:
        await store.commit([op])
    return refused.value.cause != "no_access"


async def may_read(store: ZooKeeperStore, path: str) -> bool:
    try:
        await store.get(path)
    except AccessDeniedError:
        return False
    return True


@pytest.mark.parametrize("scheme", ["digest", "sasl"])
async def test_permissions_match_the_table(connect: Connect, scheme: Scheme) -> None:
    node, agent = accesses(scheme)
    stranger = Access(credentials("digest", "stranger"))
    registration, namespace = paths.broker("b1:8080"), paths.namespace("t/ns")
    async with connect(node) as nodes, connect(agent) as agents:
        for path in paths.PERSISTENT_PARENTS:
            await nodes.ensure_path(path)
        await nodes.ensure_path(namespace)
        await agents.commit([Create(registration, b"{}", ephemeral=True)])
        await agents.commit([Check(paths.EPOCH, 0), Put(registration, b"{1}")])
        assert await agents.children_many([paths.BROKERS]) == [["b1:8080"]]
        assert await nodes.get(registration) is not None
        assert await may_read(agents, paths.EPOCH)
        assert await may_read(agents, namespace)
        assert not await may_write(nodes, Put(registration, b"", NEVER))
        for path in (paths.ROOT, paths.EPOCH, namespace):
            assert await may_write(nodes, Put(path, b"", NEVER))
            assert not await may_write(agents, Put(path, b"", NEVER))
        assert not await may_write(agents, Create(paths.LEADER, b"", ephemeral=True))
        assert not await may_write(agents, Delete(namespace))
        with pytest.raises(AccessDeniedError):
            await agents.set_acl(paths.EPOCH, OPEN_ACL_UNSAFE)
        store = ZooKeeperStore(nodes._hosts, session_timeout_s=60.0, chroot=nodes._chroot, access=stranger)
        with pytest.raises(AccessDeniedError, match=r"digest:stranger .metadataStoreCredentials file:///run/zk"):
            await store.start()
        await agents.commit([Delete(registration)])


async def test_wrong_sasl_password_is_refused_at_start_and_not_shown(connect: Connect) -> None:
    wrong = Access(credentials("sasl", "node", "not-this-one"))
    with capture_logs() as logs, pytest.raises(StoreUnavailableError) as refused:
        async with connect(wrong, within_s=1.0):
            pytest.fail("it started")
    assert "refuses: it does not take sasl:node (metadataStoreCredentials file:///run/zk)" in str(refused.value)
    assert [entry["event"] for entry in logs] == ["zookeeper_refuses"], "it was connected at no time"
    assert "not-this-one" not in f"{refused.value} {logs} {wrong}"


@pytest.mark.parametrize("scheme", ["digest", "sasl"])
async def test_resumed_session_is_known(connect: Connect, scheme: Scheme, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    node, _ = accesses(scheme)
    async with connect(node) as store:
        await store.ensure_path(paths.EPOCH)
        await drop_connection(store)
        await store.commit([Put(paths.EPOCH, b"again")])
        assert node.acls.nodes[0] in await store.who_am_i()
    assert "node-secret" not in caplog.text


async def test_tls_client_is_identified_by_its_certificate(connect: Connect, secured: Secured) -> None:
    context = secured.tls("loadmanager")
    async with connect(Access(tls=lambda: context), secured.tls_address) as store:
        (ours,) = [each for each in await store.who_am_i() if each.scheme == "x509"]
        acls = Acls((ours,))
        assert await why_locked_out(store, acls.nodes) is None
        await secure(store, acls, do=True, progress=lambda _: None)
        assert await store.get_acl("/") == [ACL(Permissions.ALL, ours)]
    async with connect(Access(tls=lambda: context, acls=acls), secured.tls_address) as store:
        await store.ensure_path(paths.NAMESPACES)
        large = [Create(f"{paths.NAMESPACES}/n{number}", bytes(20_000)) for number in range(20)]
        await store.commit(large)
        answers = await asyncio.gather(*(store.get_many([op.path for op in large]) for _ in range(2)))
        assert [len(znode.data) for answer in answers for znode in answer if znode] == [20_000] * 40


@pytest.mark.parametrize("mistake", ["ca", "name", "no certificate", "plain port"])
async def test_tls_error_is_stated_at_start(connect: Connect, secured: Secured, mistake: str) -> None:
    context = secured.tls("loadmanager", ca=trustme.CA() if mistake == "ca" else None)
    hosts, says = secured.tls_address, "its certificate is not trusted"
    if mistake == "name":
        hosts = hosts.replace("127.0.0.1", "localhost")
    elif mistake == "no certificate":
        context, says = secured.tls(), "TLS: "
    elif mistake == "plain port":
        hosts, says = secured.server.connect_string, "may not speak TLS"
    assert says in await why_not(connect, Access(tls=lambda: context), hosts)


async def test_existing_znodes_are_secured_and_opened_again(connect: Connect) -> None:
    node, agent = accesses("sasl")
    async with connect(Access(node.credentials)) as early, connect(Access(agent.credentials)) as running:
        for path in paths.PERSISTENT_PARENTS:
            await early.ensure_path(path)
        await running.commit([Create(paths.broker("b:1"), b"{}", ephemeral=True)])
        seen: list[int] = []
        outcomes = [await secure(early, node.acls, do=do, progress=seen.append) for do in (False, True, True, False)]
        everything = len(paths.PERSISTENT_PARENTS) + 3
        assert seen.count(everything) == len(outcomes), "each ends with all of them seen"
        assert [outcome.right for outcome in outcomes] == [0, 0, everything, everything]
        assert [sum(outcome.changed.values()) for outcome in outcomes] == [everything, everything, 0, 0]
        assert outcomes[0].changed == outcomes[1].changed
        assert outcomes[1].changed["world:anyone:cdrwa -> sasl:node:ra, sasl:agent:rw"] == 1
        await running.commit([Put(paths.broker("b:1"), b"{1}")])

        denied = await secure(running, Acls(), do=True, progress=lambda _: None)
        assert len(denied.failed) == everything
        assert "sasl:agent" in denied.failed[paths.EPOCH]
        opened = await secure(early, Acls(), do=True, progress=lambda _: None)
        assert (sum(opened.changed.values()), opened.failed) == (everything, {})
        async with connect() as nobody:
            assert await may_read(nobody, paths.EPOCH)


async def test_securing_that_would_lock_oneself_out_is_detected(connect: Connect) -> None:
    node, agent = accesses("digest")
    async with connect() as nobody, connect(node) as store:
        assert await why_locked_out(store, node.acls.nodes) is None
        why = await why_locked_out(store, agent.acls.agents)
        assert why is not None
        assert "digest:node" in why
        assert await why_locked_out(nobody, node.acls.nodes) is not None


async def test_process_with_the_wrong_identity_is_refused_at_start(connect: Connect) -> None:
    node, agent = accesses("digest")
    own = agent.credentials
    assert own is not None
    alone = Access(own, acls=Acls((own.identity,)))
    async with connect(node) as of_node, connect(agent) as of_agent:
        await refuse_strangers(of_node, AclProcess.NODE)
        await of_node.ensure_path(paths.ROOT)
        await refuse_strangers(of_node, AclProcess.NODE)
        await refuse_strangers(of_agent, AclProcess.AGENT)
        with pytest.raises(ConfigurationError, match="a node has to write there; we are digest:agent"):
            await refuse_strangers(of_agent, AclProcess.NODE)
        async with connect(alone) as mistaken:
            with pytest.raises(ConfigurationError, match=r"digest:node:cdrwa.*than metadataStoreNodeIds says"):
                await refuse_strangers(mistaken, AclProcess.AGENT)
        await secure(of_node, Acls(), do=True, progress=lambda _: None)
        with capture_logs() as logs:
            await refuse_strangers(of_node, AclProcess.NODE)
        assert logs[0]["event"] == "zookeeper_is_open"


async def test_denied_access_is_remembered_until_permitted(connect: Connect) -> None:
    node, agent = accesses("digest")
    async with connect(node) as store, connect(agent) as agents:
        assert not await store.set_acl(paths.EPOCH, OPEN_ACL_UNSAFE)
        await store.ensure_path(paths.EPOCH)
        with capture_logs() as logs:
            for _ in range(3):
                assert not await may_write(agents, Put(paths.EPOCH, b"", NEVER))
        assert [entry["event"] for entry in logs] == ["zookeeper_denies_access"]
        await agents.get_many([paths.ROOT, paths.EPOCH])
        assert agents.denied[paths.EPOCH].startswith(
            f"the ACL of {paths.EPOCH}, or of its parent, does not let us write"
        )
        await store.set_acl(paths.EPOCH, [ACL(Permissions.ALL, each) for each in node.acls.nodes])
        with pytest.raises(AccessDeniedError, match=f"the ACL of {paths.EPOCH}"):
            await agents.get_many([paths.ROOT, paths.EPOCH])
        assert "read" in agents.denied[paths.EPOCH]
        assert await store.set_acl(paths.EPOCH, OPEN_ACL_UNSAFE)
        await agents.commit([Put(paths.EPOCH, b"")])
        await agents.get_many([paths.ROOT, paths.EPOCH])
        assert agents.denied == {}


async def test_znodes_above_the_chroot_stay_open(connect: Connect, secured: Secured, chroot: str) -> None:
    node, _ = accesses("digest")
    store = ZooKeeperStore(
        secured.server.connect_string, session_timeout_s=60.0, chroot=f"{chroot}/deep/down", access=node
    )
    await store.start()
    acl = await store.get_acl("/")
    await store.close()
    assert acl == node.acls.of("/")
    async with connect() as above:
        assert [await above.get_acl(path) for path in ("/", "/deep")] == [OPEN_ACL_UNSAFE] * 2
