from __future__ import annotations

import asyncio
import gc
from dataclasses import replace
from unittest.mock import AsyncMock, Mock

import pytest
import structlog
from support.delays import a_memory_cluster
from support.nodes import Cluster, in_memory
from support.servers import closed_port
from support.waiting import eventually

from loadmanager.core.protocol.failure_detector import AskLeader, LeaderProcessEnded
from loadmanager.errors import NotLeaderError, StoreUnavailableError
from loadmanager.store import paths
from loadmanager.store.metadata_store import Create, MetadataStore, Put, Znode
from loadmanager.wire.http_bodies import NOT_LEADER_HEADER

TERM = "/loadbalance/v1/term"
LONG_MS = 3_600_000


async def test_term_route_answers_epoch_on_the_leader_only() -> None:
    async with Cluster() as cluster:
        leader, standby = await cluster.start_nodes(2)
        for query in ("", "?holdMs=1"):
            reply = await leader.get(TERM + query)
            assert (reply.status, reply.json()) == (200, {"epoch": 1})
            reply = await standby.get(TERM + query)
            assert (reply.status, reply.headers[NOT_LEADER_HEADER]) == (503, "true")
        assert (await leader.get(TERM + "?holdMs=1001")).status == 400


async def test_replaced_leader_steps_down_when_it_must_prove_its_term() -> None:
    connect = in_memory(a_memory_cluster())
    async with Cluster(connect) as cluster:
        leader = await cluster.start_leader()
        witness = await connect()
        await witness.commit([Put(paths.EPOCH, b"another")])
        with pytest.raises(NotLeaderError):
            await leader.node.prove_term()
        assert leader.node.election.term is None
        await witness.close()


async def test_leader_deletes_a_suspicion_and_keeps_leading() -> None:
    connect = in_memory(a_memory_cluster())
    async with Cluster(connect) as cluster:
        leader = await cluster.start_leader()
        witness = await connect()
        for _ in range(3):
            await witness.commit([Create(paths.SUSPICION, b"", ephemeral=True)])
            await eventually(lambda: _is_gone(witness))
        assert (leader.leads, leader.node.mirror.epoch) == (True, 1)
        await witness.close()


async def test_leader_is_watched_during_its_replacement() -> None:
    """The leader may still answer or delete the suspicion; only the watch can then cancel the take-over."""
    async with Cluster() as cluster:
        first, second = await cluster.start_nodes(2)
        leader = second.node.mirror.leader
        assert leader is not None
        second.node.election._silent_czxid = leader.czxid
        assert second.node.election.find_other_leader() == leader
        second.node.election._silent_czxid = None
        assert first.node.election.find_other_leader() is None


async def test_leader_does_not_confirm_its_term_after_a_store_rollback(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster() as cluster:
        leader = await cluster.start_leader()

        async def before_the_election() -> int:
            return 0

        monkeypatch.setattr(leader.node, "_ask_epoch", before_the_election)
        assert (await leader.get(TERM)).status == 503


async def test_error_after_a_timeout_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context["message"]))
    async with Cluster() as cluster:
        node = (await cluster.start_leader()).node
        answer: asyncio.Future[Znode] = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(node.store, "get", lambda _: answer)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await node.prove_term()
        answer.set_exception(StoreUnavailableError("no connection"))
        await asyncio.sleep(0)
        node._epoch_asked = None
        gc.collect()
        assert reports == []


async def _is_gone(witness: MetadataStore) -> bool:
    return await witness.get(paths.SUSPICION) is None


@pytest.mark.parametrize("silence_ms", [0, LONG_MS])
async def test_local_process_exit_is_detected_by_its_connection(silence_ms: int) -> None:
    async with Cluster() as cluster:
        first, second = await cluster.start_nodes(2, leader_silence_ms=silence_ms)
        await eventually(lambda: len(first.connections) > 0)
        await first.kill()
        await eventually(lambda: second.leads)
        assert second.node.leader_watch.found_silent == 0


async def test_unreachable_leader_with_a_session_keeps_leading() -> None:
    """A firewall may reject connections."""
    async with Cluster() as cluster:
        first, second = await cluster.start_nodes(2, leader_silence_ms=100)
        await eventually(lambda: second.node.leader_watch.hears)
        with structlog.testing.capture_logs() as said:
            await first.vanish()
            await eventually(lambda: "leader_has_zookeeper" in [entry["event"] for entry in said])
        assert {entry["event"] for entry in said if entry["log_level"] != "debug"} == {"leader_has_zookeeper"}
        assert (first.leads, first.node.mirror.epoch) == (True, 1)


@pytest.mark.parametrize(("is_over", "refuses"), [(True, True), (True, False), (False, True)])
async def test_process_exit_is_confirmed(monkeypatch: pytest.MonkeyPatch, *, is_over: bool, refuses: bool) -> None:
    async with Cluster() as cluster:
        _, second = await cluster.start_nodes(2)
        leader, keeper = second.node.mirror.leader, second.node.leader_watch
        await eventually(lambda: keeper.hears)
        assert leader is not None
        gone = replace(leader, service_url=f"http://127.0.0.1:{closed_port()}")
        monkeypatch.setattr(keeper, "_life", Mock(is_over=Mock(return_value=is_over)))
        monkeypatch.setattr("loadmanager.leader.election.leader_watch.is_refused", AsyncMock(return_value=refuses))
        ended = await keeper._ask(AskLeader(gone, 0.0, 10.0)) == LeaderProcessEnded(leader.czxid)
        assert ended == (is_over and refuses)
