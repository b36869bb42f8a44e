"""docs/backup.md as it is written: an export of one cluster, and its restore into an empty ZooKeeper."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path

import pytest
import yaml
from structlog.testing import capture_logs
from support.nodes import Cluster, on_zookeeper
from typer.testing import CliRunner

from loadmanager.cli import service_runner
from loadmanager.cli.admin_command import admin
from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.store import paths
from loadmanager.store.metadata_store import Put

pytestmark = pytest.mark.zookeeper

TEXT = (Path(__file__).parents[2] / "docs" / "backup.md").read_text(encoding="utf-8")
EXPORT, TO_STANDARD_OUTPUT, SHOW, IMPORT = re.findall(r"^\$ loadmanager admin (.+)$", TEXT, re.MULTILINE)
EXAMPLE = re.search(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
TOPIC = "persistent://docs/example/topic"


class Operator:
    """Runs commands where the files are, against the node there is."""

    def __init__(self, folder: Path, zookeeper: EmbeddedZooKeeper) -> None:
        self.folder = folder
        self._zookeeper = zookeeper
        self._environment: dict[str, str] = {}

    def works_on(self, cluster: Cluster, chroot: str) -> None:
        url = f"zk:{self._zookeeper.connect_string}{chroot}"
        (self.folder / "loadmanager.yaml").write_text(yaml.safe_dump({"metadataStoreUrl": url}))
        self._environment = {"LOADMANAGER_ADMIN_URL": cluster.nodes[0].node.service_url}

    async def run(self, command: str, code: int = 0) -> str:
        with capture_logs():  # what nodes log meanwhile is not the command's
            done = await asyncio.to_thread(CliRunner(env=self._environment).invoke, admin, shlex.split(command))
        assert done.exit_code == code, done.output
        return done.output

    async def exported(self) -> dict[str, object]:
        assert "format: loadmanager export\n" in await self.run(TO_STANDARD_OUTPUT)
        await self.run(EXPORT.replace("backup", "now"))
        content = yaml.safe_load((self.folder / "now.yaml").read_text())
        return {key: content[key] for key in content if not key.startswith("exported")}


@pytest.fixture
def operator(zookeeper: EmbeddedZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Operator:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(service_runner, "configure_logging", lambda **_: None)
    return Operator(tmp_path, zookeeper)


async def test_import_into_an_empty_zookeeper(operator: Operator, zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
    assert EXAMPLE is not None
    (operator.folder / "example.yaml").write_text(EXAMPLE[1])
    async with Cluster(on_zookeeper(zookeeper, f"{chroot}/first")) as cluster:
        node = await cluster.start_leader()
        await cluster.a_broker("broker-1:8080")
        operator.works_on(cluster, f"{chroot}/first")
        assert "create  namespace docs/example" in await operator.run("import example.yaml --yes")
        assert (await node.lookup(TOPIC)).status == 200
        assert (await node.put("/loadbalance/v1/brokers/broker-1:8080/drain")).status in {200, 202, 204}
        await operator.run(EXPORT)
        before = await operator.exported()
        assert "draining" not in str(before)

    async with Cluster(on_zookeeper(zookeeper, f"{chroot}/second")) as cluster:
        node = await cluster.start_leader()
        await cluster.a_broker("broker-1:8080")
        operator.works_on(cluster, f"{chroot}/second")
        shown = await operator.run(SHOW)
        assert shown.endswith("Nothing was changed. With --yes it is.\n")
        assert (await node.lookup(TOPIC)).status == 404
        done = await operator.run(IMPORT)
        assert shown.startswith(done)
        assert await operator.run(IMPORT) == "Everything is as the file says.\n"
        last, did, looked = (await node.get("/loadbalance/v1/audit?limit=3")).json()["entries"]
        assert "create namespace docs/example" in did["after"]
        assert (last["after"], looked["after"]) == (None, None)
        assert await operator.exported() == before
        assert (await node.lookup(TOPIC)).status == 200

        await node.put("/admin/v2/namespaces/docs/other", json={})
        bundle = node.bundle_of(TOPIC)
        assert (await node.put(f"/admin/v2/namespaces/{bundle}/split")).status == 204
        again = await operator.run(SHOW)
        assert again == (
            "left as it is: namespace docs/example, which is cut otherwise\nEverything is as the file says.\n"
        )


async def test_invalid_file_changes_nothing(operator: Operator, zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
    document = {"format": "loadmanager export", "version": 1, "namespaces": {"t/ns": {"bundles": 4}}}
    file = operator.folder / "backup.yaml"
    async with Cluster(on_zookeeper(zookeeper, chroot)) as cluster:
        node = await cluster.start_leader()
        operator.works_on(cluster, chroot)
        for mistake, says in (
            ({"controls": {"frozen": 5}}, "controls.frozen: Input should be a valid string"),
            ({"configuration": {"noSuchKey": "5"}}, "noSuchKey: no such key"),
            ({"configuration": {"loadBalancerSheddingIntervalMinutes": "-1"}}, "loadBalancerSheddingIntervalMinutes"),
        ):
            file.write_text(yaml.safe_dump({**document, **mistake}))
            assert says in await operator.run(IMPORT, code=1)
        file.write_bytes(b"\xff\xfe")
        assert "not what `loadmanager admin export FILE` writes" in await operator.run(IMPORT, code=1)
        assert node.node.mirror.namespaces == {}


async def test_export_names_what_is_unreadable(operator: Operator, zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
    async with Cluster(on_zookeeper(zookeeper, chroot)) as cluster:
        await cluster.start_leader()
        await cluster.a_namespace("t/ns")
        await cluster.a_namespace("t/damaged")
        operator.works_on(cluster, chroot)
        await cluster.store.commit([Put(paths.namespace("t/damaged"), b"{")])
        said = await operator.run(EXPORT, code=1)
        assert f"left out: {paths.namespace('t/damaged')}: " in said
    assert list(yaml.safe_load((operator.folder / "backup.yaml").read_text())["namespaces"]) == ["t/ns"]
