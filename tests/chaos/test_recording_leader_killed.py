"""SIGKILL of a recording leader: written rows stay, the rest is a gap, and the next leader continues."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import ClientError
from support.cluster import a_cluster, topics_of_bundles
from support.waiting import eventually

from loadmanager.cli.replay_command import find_start, planner_settings_of, recorded_items
from loadmanager.core.domain.ownership import OwnershipState
from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.history.gaps import find_gaps
from loadmanager.history.reader import History
from loadmanager.history.table_schemas import DECISIONS, MOVES
from loadmanager.lab.replay.replayer import replay

pytestmark = pytest.mark.zookeeper


def decisions(folder: Path, epoch: int) -> list[int]:
    """Return the sequences of the written decisions of a term."""
    return [row["sequence"] for row in History(str(folder)).rows(DECISIONS) if row["epoch"] == epoch]


async def test_killed_leader_loses_only_the_tail(zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path) -> None:
    folder = tmp_path / "history"
    settings = {"historyUrl": str(folder), "historyFlushIntervalS": 1, "namespaceBundleUnloadingTimeoutMs": 600_000}
    async with a_cluster(zookeeper.connect_string, chroot, tmp_path) as cluster:
        for name in ("n1", "n2"):
            await cluster.start_node(name, settings)
        broker = await cluster.start_broker()
        url = cluster.nodes["n1"].url
        await cluster.brokers_are_seen(url, 1)
        await cluster.create_namespace(url, bundles=16)
        topics = topics_of_bundles(await cluster.state())
        for topic in topics[:8]:
            assert (await cluster.lookup(url, topic))[0] == 200
        leader = await cluster.leader()
        bundle, another, *_ = (await cluster.state()).bundle_names()
        assert await cluster.unload(url, bundle) == 204
        broker.unload_status = 503
        unload = asyncio.create_task(cluster.unload(leader.url, another))
        await eventually(lambda: [row["kind"] for row in History(str(folder)).rows(MOVES)].count("began") == 2)
        await eventually(lambda: len(decisions(folder, 1)) >= 8)
        written = decisions(folder, 1)
        leader.kill()
        with pytest.raises(ClientError):
            await unload
        broker.unload_status = 204
        (other,) = (node for node in cluster.nodes.values() if node is not leader)

        async def is_placed(topic: str) -> bool:
            return (await cluster.lookup(other.url, topic))[0] == 200

        for topic in topics[8:]:
            await eventually(lambda topic=topic: is_placed(topic))  # type: ignore[misc]
        await eventually(lambda: len(decisions(folder, 2)) >= 8)

        async def is_let_go() -> bool:
            return (await cluster.ownership(another)).state is not OwnershipState.RELEASING

        await eventually(is_let_go)
        other.terminate()
        await eventually(lambda: not other.is_running)
    history = History(str(folder))
    assert decisions(folder, 1)[: len(written)] == written, "what was written stays"
    (gap,) = find_gaps(history)
    assert (gap.epoch, "did not end its term" in gap.why) == (2, True)
    items = recorded_items(history, find_start(history, None), None)
    outcome = await asyncio.to_thread(replay, items, planner_settings_of)
    assert outcome.is_equal, outcome
    assert outcome.compared["place"] >= len(written) + 8
