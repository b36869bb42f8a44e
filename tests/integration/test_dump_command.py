"""`loadmanager dump` against a real ZooKeeper."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

import pytest
from support.command_line import run as run_command
from support.registrations import a_record, load_of, register, write
from support.stores import ZooKeeperWorld
from support.zookeeper import a_session

from loadmanager.core.domain.settings import AS_PULSAR
from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.store import paths

pytestmark = pytest.mark.zookeeper

BUNDLES = ["t/ns/0x00000000_0x80000000", "t/ns/0x80000000_0xffffffff"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command(*arguments, environ={"TERM": "dumb", "COLUMNS": "200"})


@pytest.mark.parametrize("kind", [(), ("--pulsar",)])
async def test_dump_changes_nothing_and_can_be_decided_on(
    zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path, kind: tuple[str, ...]
) -> None:
    world = ZooKeeperWorld(zookeeper, chroot)
    try:
        store = await world.connect()
        await store.ensure_path(paths.BROKERS)
        await register(store, "b1:8080", a_record("b1:8080", {name: load_of(50) for name in BUNDLES}, cpu=95))
        await register(store, "b2:8080", a_record("b2:8080", cpu=5))
        await write(store, "/admin/configuration", b'{"loadBalancerBrokerThresholdShedderPercentage": "20"}')
        before = tree(zookeeper, chroot)
        url, file = f"zk:{zookeeper.connect_string}{chroot}", tmp_path / "dump.jsonl"
        for _ in range(2):
            done = await asyncio.to_thread(run, "dump", *kind, "--metadata-store-url", url, "--output", str(file))
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert tree(zookeeper, chroot) == before
    finally:
        await world.close()
    lines = [json.loads(text) for text in file.read_text(encoding="utf-8").splitlines()]
    assert [sorted(line["brokers"]) for line in lines] == [["b1:8080", "b2:8080"]] * 2
    theirs, ours = {"loadBalancerBrokerThresholdShedderPercentage"}, AS_PULSAR.keys()
    assert lines[0]["configuration"].keys() == (theirs if kind else ours)
    done = await asyncio.to_thread(run, "decide", str(file), "--shed", "ThresholdShedder", "--json")
    assert done.returncode == 0, done.stderr
    decided = [json.loads(text) for text in done.stdout.splitlines()]
    assert [each["decisions"][0]["bundle"] for each in decided] == [BUNDLES[0]] * 2


def test_dump_of_a_pulsar_needs_the_pulsar_option(zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
    url = f"zk:{zookeeper.connect_string}{chroot}"
    with a_session(zookeeper.connect_string) as client:
        client.ensure_path(f"{chroot}/admin/clusters")
    done = run("dump", "--metadata-store-url", url)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.strip() == (
        f"loadmanager: metadataStoreUrl {url}: this is a Pulsar's metadata (/admin/clusters): use --pulsar to read it"
    )
    assert run("dump", "--pulsar", "--metadata-store-url", url).returncode == 0


def test_missing_cluster_is_an_error_and_not_created(zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
    done = run("dump", "--metadata-store-url", f"zk:{zookeeper.connect_string}{chroot}")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("loadmanager: metadataStoreUrl ")
    with a_session(zookeeper.connect_string) as client:
        assert client.exists(chroot) is None


def test_invalid_configuration_ends_with_2(tmp_path: Path) -> None:
    path = tmp_path / "loadmanager.yaml"
    path.write_text("webServicPort: 1\n", encoding="utf-8")
    done = run("dump", "--config", str(path))
    assert (done.returncode, done.stdout) == (2, "")
    assert "webServicPort" in done.stderr


def tree(server: EmbeddedZooKeeper, path: str) -> dict[str, tuple[bytes, int]]:
    """Every znode below the path: its data, and the transaction that changed it last."""
    found: dict[str, tuple[bytes, int]] = {}
    with a_session(server.connect_string) as client:
        open_paths = [path]
        while open_paths:
            each = open_paths.pop()
            data, stat = client.get(each)
            found[each] = data, max(stat.mzxid, stat.pzxid)
            open_paths += [f"{each}/{child}" for child in client.get_children(each)]
    return found
