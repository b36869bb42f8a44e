"""Nodes and agents of the version before run beside those of this one, as while a cluster is upgraded, or taken back.

The version before is a commit of this repository. Once versions are released it is the tag of the last one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from support.fake_broker import FakeBroker
from support.nodes import Cluster, RunningNode, on_zookeeper
from support.waiting import eventually, patience

from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper

pytestmark = pytest.mark.zookeeper

BEFORE = "9e9c19a8b8"
TOP = Path(__file__).parents[2]
OLD, NEW = "127.0.0.1:11", "127.0.0.1:12"
"""Brokers, by the version of their agent."""

TOPIC = "persistent://t/ns/topic"


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The version before, unpacked."""
    folder = tmp_path_factory.mktemp("before")
    archive = subprocess.run(["git", "-C", TOP, "archive", BEFORE, "loadmanager"], capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"no history with {BEFORE}: {archive.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    return folder


class Versions:
    """Processes of either version: the one before is in its folder, this one in the sources that are tested."""

    def __init__(self, before: Path, folder: Path, store_url: str) -> None:
        self._before = before
        self._folder = folder
        self._common = {"metadataStoreUrl": store_url, "bindAddress": "127.0.0.1"}

    @contextlib.asynccontextmanager
    async def running(self, command: str, *, is_old: bool, **settings: Any) -> AsyncIterator[str]:  # noqa: ANN401 - keys
        """Run the command of that version, and stop it at the end; yields its URL."""
        name = f"{command}-{'old' if is_old else 'new'}"
        config, ready, log = (self._folder / f"{name}.{kind}" for kind in ("yaml", "json", "log"))
        config.write_text(yaml.safe_dump({**self._common, **settings}))
        ready.unlink(missing_ok=True)
        sources = self._before if is_old else TOP
        with log.open("w") as written:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "loadmanager", command, f"--config={config}", f"--ready-file={ready}"),
                cwd=sources,
                env=_environment(sources),
                stdout=written,
                stderr=written,
            )
        try:
            await eventually(lambda: ready.exists() or process.returncode is not None)
            assert process.returncode is None, log.read_text()
            yield orjson.loads(ready.read_bytes())["url"]
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await asyncio.wait_for(process.wait(), patience())

    def node_before(self) -> contextlib.AbstractAsyncContextManager[str]:
        return self.running("serve", is_old=True, webServicePort=0, advertisedAddress="127.0.0.1")

    def agent(
        self, broker: str, beside: FakeBroker, nodes: list[str], *, is_old: bool
    ) -> contextlib.AbstractAsyncContextManager[str]:
        return self.running(
            "agent",
            is_old=is_old,
            brokerId=broker,
            brokerUrl=beside.url,
            brokerServiceUrl=f"pulsar://{broker}",
            loadManagerUrls=nodes,
            agentPort=0,
        )


def _environment(sources: Path) -> Mapping[str, str]:
    ours = {key: value for key, value in os.environ.items() if not key.startswith("LOADMANAGER_")}
    return {**ours, "PYTHONPATH": str(sources)}


async def owner_by(node: RunningNode, url: str) -> str:
    async with node.http.get(f"{url}/lookup/v2/topic/{TOPIC.replace('://', '/')}") as answer:
        content = await answer.json()
        assert answer.status == 200, content
        return str(content["brokerUrl"]).removeprefix("pulsar://")


async def hand_over(node: RunningNode, url: str, to: str) -> None:
    """Have the topic's bundle given to a broker, by the node at that URL."""
    path = f"/admin/v2/namespaces/{node.bundle_of(TOPIC)}/unload?destinationBroker={to}"
    async with node.http.put(f"{url}{path}") as answer:
        assert answer.status == 204, await answer.text()


async def ready_without_fault(node: RunningNode, url: str) -> bool:
    async with node.http.get(f"{url}/readyz") as answer:
        return answer.status == 200 and (await answer.json())["faults"] == {}


async def everybody_names(new: RunningNode, urls: tuple[str, ...], owner: str) -> None:
    """Return once all of these nodes, which hear of it one after the other, name that owner."""

    async def do_all() -> bool:
        return all([await owner_by(new, url) == owner for url in urls])

    await eventually(do_all, what=f"all nodes name {owner}")


@pytest.mark.deep
async def test_versions_work_together_in_upgrade_and_downgrade(
    before: Path, zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path
) -> None:
    versions = Versions(before, tmp_path, f"zk:{zookeeper.connect_string}{chroot}")
    async with (
        Cluster(on_zookeeper(zookeeper, chroot)) as cluster,
        FakeBroker() as of_old,
        FakeBroker() as of_new,
        contextlib.AsyncExitStack() as agents,
    ):
        async with versions.node_before() as old_url:
            new = await cluster.start_node()
            new_url = new.node.service_url
            assert not new.leads, "the older one leads"
            for broker, beside, is_old in ((OLD, of_old, True), (NEW, of_new, False)):
                urls = [old_url, new_url]
                await agents.enter_async_context(versions.agent(broker, beside, urls, is_old=is_old))
            await eventually(lambda: len(new.node.mirror.brokers) == 2)
            await cluster.a_namespace("t/ns")
            assert await owner_by(new, old_url) == await owner_by(new, new_url)
            of_old.open(TOPIC)
            for owner in (OLD, NEW):
                await hand_over(new, new_url, owner)
                await everybody_names(new, (old_url, new_url), owner)
            assert of_old.unloads
            assert await ready_without_fault(new, new_url)

        await eventually(lambda: new.leads, what="the newer one leads")
        assert await owner_by(new, new_url) == NEW
        assert new.ownership(new.bundle_of(TOPIC)).epoch == 1, "nothing was moved by the change of leader"

        async with versions.node_before() as old_url:
            assert new.leads
            for owner in (OLD, NEW):
                await hand_over(new, old_url, owner)
                await everybody_names(new, (old_url, new_url), owner)
            assert await ready_without_fault(new, old_url)
