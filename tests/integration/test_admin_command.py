"""`loadmanager admin`, as it is typed, against nodes on a real ZooKeeper."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from support.command_line import run
from support.nodes import Cluster, on_zookeeper
from support.waiting import eventually

from loadmanager import __version__
from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper

pytestmark = pytest.mark.zookeeper

LOWER, UPPER = "0x00000000_0x80000000", "0x80000000_0xffffffff"


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    out: str
    err: str

    def json(self) -> object:
        assert self.code == 0, self.err
        return json.loads(self.out)


@dataclass(slots=True)
class Shell:
    """Types commands; both nodes are known, the one that does not lead first."""

    cluster: Cluster

    async def type(self, line: str) -> Done:
        urls = [node.node.service_url for node in reversed(self.cluster.nodes)]
        environ = {"LOADMANAGER_ADMIN_URL": ",".join(urls), "NO_COLOR": "1", "TERM": "dumb"}
        done = await asyncio.to_thread(run, "admin", *shlex.split(line), environ=environ)
        return Done(done.returncode, done.stdout, done.stderr)

    async def done(self, line: str) -> str:
        """Output of the command, which must end with 0."""
        done = await self.type(line)
        assert done.code == 0, (line, done)
        return done.out


@pytest.fixture
async def shell(zookeeper: EmbeddedZooKeeper, chroot: str) -> AsyncIterator[Shell]:
    async with Cluster(on_zookeeper(zookeeper, chroot)) as cluster:
        await cluster.start_nodes(2)
        await cluster.a_broker("b1:8080")
        await cluster.a_broker("b2:8080")
        yield Shell(cluster)


async def test_namespace_is_created_looked_up_and_moved(shell: Shell) -> None:
    assert await shell.done("namespaces create t/ns -b 2") == ""
    await shell.cluster.known_everywhere(lambda node: "t/ns" in node.node.mirror.namespaces)
    assert await shell.done("namespaces list t") == "t/ns\n"
    bundles = await shell.type("namespaces bundles t/ns --json")
    assert bundles.json() == {"boundaries": ["0x00000000", "0x80000000", "0xffffffff"], "numBundles": 2}
    bundle_range = (await shell.done("topics bundle-range persistent://t/ns/x")).strip()
    assert bundle_range in (LOWER, UPPER)
    owner = (await shell.type("topics lookup persistent://t/ns/x --json")).json()
    assert isinstance(owner, dict)
    target = ({"b1:8080", "b2:8080"} - {owner["brokerId"]}).pop()
    assert await shell.done(f"namespaces unload t/ns -b {bundle_range} -d {target}") == ""
    owned = (await shell.type(f"brokers namespaces standalone -u {target} --json")).json()
    assert owned == {f"t/ns/{bundle_range}": {"broker_assignment": "shared", "is_controlled": False, "is_active": True}}
    decisions = await shell.done(f"decisions --bundle t/ns/{bundle_range}")
    assert "admin unload" in decisions


async def test_cluster_is_shown(shell: Shell) -> None:
    assert await shell.done("brokers list") == "b1:8080\nb2:8080\n"
    status = await shell.done("status")
    assert all(f"\n{broker}  " in status for broker in ("b1:8080", "b2:8080")), status
    leader = next(node for node in shell.cluster.nodes if node.leads)
    assert (await shell.type("brokers leader-broker --json")).json() == {
        "serviceUrl": leader.node.service_url,
        "brokerId": leader.node.node_id,
    }
    assert await shell.done("brokers healthcheck") == "ok\n"
    assert await shell.done("brokers version") == f"{__version__}\n"
    report = (await shell.type("broker-stats load-report b1:8080 --json")).json()
    assert isinstance(report, dict)
    assert report["webServiceUrl"] == "http://b1:8080"
    assert "b2:8080" in await shell.done("broker-stats monitoring-metrics")


async def test_configuration_and_policies_are_set_and_shown(shell: Shell) -> None:
    await shell.done("brokers update-dynamic-config -c loadBalancerSheddingEnabled -v false")
    leader = next(node.node for node in shell.cluster.nodes if node.leads)
    await eventually(lambda: not leader.live.planner.shedding_enabled)
    await shell.cluster.known_everywhere(lambda node: node.node.live.overrides)
    values = await shell.type("brokers get-all-dynamic-config --json")
    assert values.json() == {"loadBalancerSheddingEnabled": "false"}
    await shell.done("brokers delete-dynamic-config -c loadBalancerSheddingEnabled")
    await shell.cluster.known_everywhere(lambda node: not node.node.live.overrides)

    await shell.done("ns-isolation-policy set standalone p1 --namespaces 't/.*' --primary b1 --unload-scope none")
    await shell.cluster.known_everywhere(lambda node: node.node.planner.snapshot().policies.isolation)
    listed = (await shell.type("ns-isolation-policy list standalone --json")).json()
    assert isinstance(listed, dict)
    assert listed["p1"]["primary"] == ["b1"]
    assert "p1" in await shell.done("ns-isolation-policy brokers standalone")
    await shell.done("ns-isolation-policy delete standalone p1")


async def test_controls_are_set_and_shown(shell: Shell) -> None:
    await shell.done("brokers exclude b1:8080")
    await shell.done("balancer freeze --reason 'a test'")
    await shell.done("balancer dry-run on")
    await shell.cluster.known_everywhere(lambda node: node.node.planner.snapshot().controls.dry_run)
    controls = (await shell.type("balancer controls --json")).json()
    assert isinstance(controls, dict)
    assert (controls["excluded"], controls["frozen"], controls["dryRun"]) == (["b1:8080"], "a test", True)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("namespaces bundles t/none", "404 Not Found: namespace t/none not found"),
        (f"namespaces unload t/ns -b {UPPER.replace('8', '9')}", "412 Precondition Failed: "),
        (f"namespaces unload t/ns -b {UPPER} -d b9:8080", "409 Conflict: destinationBroker 'b9:8080'"),
        ("namespaces create t/ns", "409 Conflict: "),
        ("namespaces create t/other -b 99999999", "400 Bad Request: "),
        ("broker-stats load-report b9:8080", "404 Not Found: broker 'b9:8080' is not registered"),
        ("brokers exclude b9:8080", "404 Not Found: "),
        ("brokers update-dynamic-config -c metadataStoreUrl -v x", "412 Precondition Failed: "),
        ("brokers update-dynamic-config -c loadBalancerBrokerMaxTopics -v many", "400 Bad Request: "),
        ("plans execute 0123456789abcdef", "404 Not Found: "),
    ],
)
async def test_refusal_ends_with_1_and_the_reason(shell: Shell, line: str, complaint: str) -> None:
    await shell.cluster.a_namespace("t/ns", bundles={"numBundles": 2})
    done = await shell.type(line)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"loadmanager: {complaint}")
