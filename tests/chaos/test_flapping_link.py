"""A leader with a flapping link to ZooKeeper, and a standby with a stable one."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cluster import Cluster, a_cluster
from support.lm_node import NodeProcess, get_json
from support.tcp_proxy import TcpProxy
from support.waiting import eventually

from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper

pytestmark = pytest.mark.zookeeper

SETTINGS = {"metadataStoreSessionTimeoutMillis": 6_000}
FLAPS = 2


@pytest.mark.deep
async def test_standby_with_a_sound_link_is_elected(zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path) -> None:
    """The link is down for the length of the lease each time, and up before the session expires."""
    async with TcpProxy(zookeeper.port) as link, a_cluster(zookeeper.connect_string, chroot, tmp_path) as cluster:
        far = await cluster.start_node("far", SETTINGS, via=link.address)
        assert await cluster.leader() is far
        near = await cluster.start_node("near", SETTINGS)
        await _flap(cluster, link, far)
        assert far.events("stepped_down")
        await eventually(lambda: _leads(cluster, near), what="the standby is elected")
        epoch = await cluster.epoch()
        for _ in range(FLAPS):
            await _flap(cluster, link, far)
        assert await cluster.leader() is near
        assert await cluster.epoch() == epoch
        assert len(far.events("elected")) == 1


async def _flap(cluster: Cluster, link: TcpProxy, far: NodeProcess) -> None:
    link.blackhole()
    await eventually(lambda: _trusts_no_session(cluster, far), what="the far node trusts its session no longer")
    link.heal()
    await eventually(lambda: cluster.is_ready(far.url), what="the link is up again")


async def _trusts_no_session(cluster: Cluster, node: NodeProcess) -> bool:
    """The client closes the connection when the lease lapses or slightly earlier; a leader checks the lease itself."""
    leads = len(node.events("elected")) > len(node.events("stepped_down"))
    return not leads and not await cluster.is_ready(node.url)


async def _leads(cluster: Cluster, node: NodeProcess) -> bool:
    return (await get_json(cluster.http, f"{node.url}/healthz"))[1].get("leading") is True
