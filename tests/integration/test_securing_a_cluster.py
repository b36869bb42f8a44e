"""A running cluster is given credentials, and then secured, one process after the other, and lookups go on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from kazoo.security import OPEN_ACL_UNSAFE
from support.agents import BROKER_ID, agent_settings, running_agent
from support.fake_broker import FakeBroker
from support.nodes import Cluster, Connect, RunningNode
from support.waiting import eventually
from support.zookeeper import a_session
from typer.testing import CliRunner, Result

from loadmanager.cli import service_runner
from loadmanager.cli.service_runner import store_of
from loadmanager.cli.zookeeper_command import zookeeper as command
from loadmanager.config.node_settings import Settings
from loadmanager.config.settings_loader import load_settings
from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.errors import StoreError
from loadmanager.store import paths
from loadmanager.store.acl_update import AclProcess, refuse_strangers
from loadmanager.store.metadata_store import MetadataStore, Put

pytestmark = pytest.mark.zookeeper

TOPIC = "persistent://t/ns/topic"
NODE_ID, AGENT_ID = "digest:lm:/g/X0gVRm5i8Xfli9a3xWhDHZck=", "digest:agent:3SeC/Pom/WBf3IL2UKO4MNx7qJs="


class Configured:
    """Processes as their configuration has them at that step."""

    def __init__(self, folder: Path, url: str) -> None:
        self.file = folder / "loadmanager.yaml"
        self._folder = folder
        self._url = url

    def keys_of(self, user: str) -> dict[str, object]:
        path = self._folder / user
        path.write_text(f"{user}:{user}-secret\n")
        return {
            "metadataStoreCredentials": f"file://{path}",
            "metadataStoreNodeIds": [NODE_ID],
            "metadataStoreAgentIds": [AGENT_ID],
        }

    def connect(self, process: AclProcess, keys: Mapping[str, object]) -> Connect:
        self.file.write_text(yaml.safe_dump({"metadataStoreUrl": self._url, **keys}))
        settings = load_settings(Settings, self.file)

        async def connect() -> MetadataStore:
            store = store_of(self._url, settings)
            await store.start()
            await refuse_strangers(store, process)
            return store

        return connect

    async def secure(self, *options: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, command, ["secure", f"--config={self.file}", *options])


async def restart(cluster: Cluster, node: RunningNode) -> None:
    """End a node, and start another that connects as the cluster does by now; lookups are answered meanwhile."""
    await node.stop()
    cluster.nodes.remove(node)
    (other,) = cluster.nodes
    await eventually(lambda: other.leads)
    assert (await other.lookup(TOPIC)).status == 200
    await cluster.start_node()
    assert (await cluster.nodes[-1].lookup(TOPIC)).status == 200


async def an_agent_lives_and_leaves(cluster: Cluster) -> None:
    """It registers its broker, reports, hears of what the broker may serve, and takes the registration back."""
    node = cluster.nodes[0]
    store = await cluster.connect()
    async with FakeBroker() as broker:
        settings = agent_settings(broker, loadManagerUrls=[node.node.service_url])
        async with running_agent(settings, store, highest_epoch=0) as agent:
            await agent.registered()
            broker.open(TOPIC)
            await eventually(lambda: BROKER_ID in node.node.mirror.brokers)
            await eventually(lambda: agent.metric("reports_total", outcome="written") > 0)
            assert (await agent.owner(TOPIC))[0] == 200
    assert await store.get(paths.broker(BROKER_ID)) is None
    assert store.denied == {}
    await store.close()


async def test_running_cluster_is_secured_and_opened_again(
    zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_runner, "configure_logging", lambda **_: None)
    configured = Configured(tmp_path, f"zk:{zookeeper.connect_string}{chroot}")
    async with Cluster(configured.connect(AclProcess.NODE, {})) as cluster:
        await cluster.start_nodes(2)
        before = await cluster.a_broker("before:8080")
        await cluster.a_namespace("t/ns")

        assert "would lock us out" in (await configured.secure("--yes")).stderr

        configured.connect(AclProcess.NODE, {"metadataStoreNodeIds": ["world:anyone"]})
        assert "name the identities of nodes" in (await configured.secure("--yes")).stderr

        own_alone = {key: value for key, value in configured.keys_of("agent").items() if not key.endswith("NodeIds")}
        for keys in (own_alone, {"metadataStoreCredentials": own_alone["metadataStoreCredentials"]}):
            configured.connect(AclProcess.AGENT, keys)
            for options in ([], ["--yes"]):
                refused = await configured.secure(*options)
                assert (refused.exit_code, "metadataStoreNodeIds  " in refused.stdout) == (2, False)
                assert f"these credentials are {AGENT_ID}, which belongs there if nodes" in refused.stderr

        of_node = configured.keys_of("lm")
        for acl, keys in (("open", {**of_node, "metadataStoreNodeIds": ["world:anyone"]}), ("secure", of_node)):
            cluster.connect = configured.connect(AclProcess.NODE, keys)
            for node in list(cluster.nodes):
                await restart(cluster, node)
                await cluster.a_namespace(f"t/{acl}-{node.node.node_id.rpartition(':')[2]}")
        assert all(node.node.denied == {} for node in cluster.nodes)

        shown = await configured.secure()
        assert shown.exit_code == 0
        assert "Nothing was changed" in shown.stdout
        assert f"metadataStoreAgentIds  {AGENT_ID}" in shown.stdout
        done = await configured.secure("--yes")
        assert done.stdout.count("changed: world:anyone:cdrwa -> ") == 3
        again = await configured.secure("--yes")
        assert (again.exit_code, "changed" in again.stdout) == (0, False)

        assert before.store is not None
        with pytest.raises(StoreError):
            await before.store.commit([Put(paths.broker("before:8080"), b"{}")])
        cluster.connect = configured.connect(AclProcess.AGENT, configured.keys_of("agent"))
        await cluster.a_namespace("t/after")
        await an_agent_lives_and_leaves(cluster)
        assert (await cluster.nodes[0].lookup(TOPIC)).status == 200
        assert [(await node.get("/readyz")).json()["faults"] for node in cluster.nodes] == [{}, {}]

        as_agent = await configured.secure("--yes")
        assert (as_agent.exit_code, "would lock us out" in as_agent.stderr) == (2, True)
        configured.connect(AclProcess.NODE, of_node)
        assert (await configured.secure("--open", "--yes")).exit_code == 0
        with a_session(f"{zookeeper.connect_string}{chroot}") as anybody:
            assert anybody.get_acls(paths.EPOCH)[0] == OPEN_ACL_UNSAFE
