"""What a leader says to those who watch it, and what they do when it is gone."""

from __future__ import annotations

import pytest
from support.delays import a_memory_cluster
from support.nodes import Cluster, in_memory
from support.waiting import eventually

from loadmanager.errors import NotLeaderError
from loadmanager.store import paths
from loadmanager.store.base import Create, MetadataStore, Put
from loadmanager.wire.http import NOT_LEADER_HEADER

TERM = "/loadbalance/v1/term"
LONG_MS = 3_600_000


async def test_a_leader_says_its_epoch_and_whoever_does_not_lead_that_it_does_not() -> None:
    async with Cluster() as cluster:
        leader, standby = await cluster.start_nodes(2)
        for query in ("", "?holdMs=1"):
            reply = await leader.get(TERM + query)
            assert (reply.status, reply.json()) == (200, {"epoch": 1})
            reply = await standby.get(TERM + query)
            assert (reply.status, reply.headers[NOT_LEADER_HEADER]) == (503, "true")
        assert (await leader.get(TERM + "?holdMs=1001")).status == 400


async def test_a_leader_that_was_replaced_unawares_learns_of_it_when_it_is_asked() -> None:
    connect = in_memory(a_memory_cluster())
    async with Cluster(connect) as cluster:
        leader = await cluster.start_leader()
        witness = await connect()
        await witness.commit([Put(paths.EPOCH, b"another")])
        with pytest.raises(NotLeaderError):
            await leader.node.prove_term()
        assert leader.node.election.term is None
        await witness.close()


async def test_a_leader_takes_a_doubt_away_and_goes_on() -> None:
    connect = in_memory(a_memory_cluster())
    async with Cluster(connect) as cluster:
        leader = await cluster.start_leader()
        witness = await connect()
        for _ in range(3):
            await witness.commit([Create(paths.DOUBT, b"", ephemeral=True)])
            await eventually(lambda: _is_gone(witness))
        assert (leader.leads, leader.node.view.epoch) == (True, 1)
        await witness.close()


async def test_a_leader_is_watched_on_while_it_is_to_be_replaced() -> None:
    """It may be heard yet, or take the doubt away; then nobody else would tell the standby to go on."""
    async with Cluster() as cluster:
        first, second = await cluster.start_nodes(2)
        leader = second.node.view.leader
        assert leader is not None
        second.node.election._silent_czxid = leader.czxid
        assert second.node.election.find_other_leader() == leader
        second.node.election._silent_czxid = None
        assert first.node.election.find_other_leader() is None


async def test_a_leader_whose_store_was_set_back_does_not_say_that_it_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster() as cluster:
        leader = await cluster.start_leader()

        async def before_the_election() -> int:
            return 0

        monkeypatch.setattr(leader.node, "_ask_epoch", before_the_election)
        assert (await leader.get(TERM)).status == 503


async def _is_gone(witness: MetadataStore) -> bool:
    return await witness.get(paths.DOUBT) is None


async def test_a_process_that_is_gone_is_known_by_its_connection_however_seldom_its_port_is_tried() -> None:
    async with Cluster() as cluster:
        first, second = await cluster.start_nodes(2, leader_probe_interval_ms=LONG_MS, leader_silence_ms=LONG_MS)
        assert second.node.vigil is not None
        await eventually(lambda: len(first.connections) > 0)
        await first.vanish()
        await eventually(lambda: second.leads)
        assert second.node.vigil.found_silent == 0
