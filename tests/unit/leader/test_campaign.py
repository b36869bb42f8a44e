from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

import orjson
import pytest
import structlog
from support.delays import a_memory_cluster
from support.memory_store import MemoryCluster, MemoryStore
from support.nodes import Cluster, Connect, RunningNode, a_leader, in_memory
from support.registrations import a_record, read, register, write
from support.waiting import eventually, patience

from loadmanager.errors import StoreError, StoreUnavailableError
from loadmanager.store import paths
from loadmanager.store.metadata_store import Create, Delete, MetadataStore, Op, Put
from loadmanager.wire.store_records import LeaderRecord


async def test_one_of_several_nodes_leads_and_the_others_know_its_url() -> None:
    async with Cluster() as cluster:
        nodes = await cluster.start_nodes(3)
        assert [node.leads for node in nodes] == [True, False, False]
        await cluster.known_everywhere(lambda node: node.node.leader_url == nodes[0].node.service_url)
        record = orjson.loads(await read(cluster.store, paths.LEADER))
        leader = nodes[0].node
        life = leader._life.name
        assert record == {"brokerId": leader.node_id, "serviceUrl": leader.service_url, "epoch": 1, "life": life}


async def test_node_registers_itself_until_it_stops() -> None:
    async with Cluster() as cluster:
        first, second = await cluster.start_nodes(2)
        await cluster.known_everywhere(lambda node: len(node.node.mirror.nodes) == 2)
        await second.stop()
        await eventually(lambda: list(first.node.mirror.nodes) == [first.node.node_id])


async def test_stopping_leader_hands_over_at_once() -> None:
    async with Cluster() as cluster:
        first, second = await cluster.start_nodes(2)
        await first.stop()
        await eventually(lambda: second.leads)
        assert second.node.mirror.epoch == 2


async def test_standby_takes_over_from_an_ended_process_before_its_session_expires() -> None:
    async with Cluster() as cluster:
        first, second = await cluster.start_nodes(2)
        await first.kill()
        await eventually(lambda: second.leads)
        assert first.store.session_id != 0
        await eventually(lambda: first.node.election.term is None)
        assert not first.leads


async def test_leader_steps_down_when_its_lease_lapses() -> None:
    memory = a_memory_cluster()
    async with Cluster(_with_sessions_of(memory, 0.6)) as cluster:
        leader = await cluster.start_leader()
        assert isinstance(leader.store, MemoryStore)
        memory.partition(leader.store)
        await eventually(lambda: not leader.leads)
        assert leader.node.election.term is None
        memory.heal(leader.store)
        await eventually(lambda: leader.leads)


async def test_leader_survives_missing_answers() -> None:
    memory = a_memory_cluster()
    async with Cluster(in_memory(memory)) as cluster:
        leader = await cluster.start_leader()
        await cluster.a_broker()
        assert isinstance(leader.store, MemoryStore)
        for number in range(20):
            memory.leave_out_answer(leader.store)
            reply = await leader.put(f"/admin/v2/namespaces/t/ns{number}", json={})
            assert reply.status in {204, 409, 503, 504}, reply
        await cluster.a_namespace("t/last")
        assert leader.leads
        assert not leader.node.failure.done()


async def test_standby_with_a_sound_link_is_elected_before_the_broken_leader() -> None:
    memory = a_memory_cluster()
    async with Cluster(_with_sessions_of(memory, 3.0)) as cluster:
        first, second = await cluster.start_nodes(2)
        await _lapse(memory, first)
        assert first.store.session_id, "its session and its znode still exist"
        _heal(memory, first)
        await eventually(lambda: second.leads)
        assert (first.node.election.terms_won, second.node.election.terms_won) == (1, 1)


async def test_leader_with_a_broken_link_is_re_elected_without_a_standby() -> None:
    memory = a_memory_cluster()
    async with Cluster(_with_sessions_of(memory, 3.0)) as cluster:
        first, second = await cluster.start_nodes(2)
        assert isinstance(second.store, MemoryStore)
        memory.partition(second.store, noticed=True)
        await _lapse(memory, first)
        _heal(memory, first)
        await eventually(lambda: first.leads)
        assert first.node.election.terms_won == 2


async def test_single_node_with_a_broken_link_does_not_wait() -> None:
    memory = a_memory_cluster()
    async with Cluster(_with_sessions_of(memory, 3.0)) as cluster:
        (node,) = await cluster.start_nodes(1)
        await _lapse(memory, node)
        with structlog.testing.capture_logs() as logs:
            _heal(memory, node)
            await eventually(lambda: node.leads)
        assert "candidacy_delayed" not in [entry["event"] for entry in logs]


def _with_sessions_of(memory: MemoryCluster, session_timeout_s: float) -> Connect:
    async def connect() -> MetadataStore:
        store = MemoryStore(memory, session_timeout_s=session_timeout_s)
        await store.start()
        return store

    return connect


async def _lapse(memory: MemoryCluster, leader: RunningNode) -> None:
    """Cut the leader off until it has stepped down."""
    assert isinstance(leader.store, MemoryStore)
    memory.partition(leader.store, noticed=True)
    await eventually(lambda: not leader.leads and leader.node.election.term is None)


def _heal(memory: MemoryCluster, node: RunningNode) -> None:
    assert isinstance(node.store, MemoryStore)
    memory.heal(node.store)


async def test_leader_with_an_expired_session_is_re_elected() -> None:
    memory = a_memory_cluster()
    async with Cluster(in_memory(memory)) as cluster:
        leader = await cluster.start_leader()
        assert isinstance(leader.store, MemoryStore)
        memory.expire(leader.store)
        await eventually(lambda: leader.leads and leader.node.election.terms_won == 2)
        await eventually(lambda: list(leader.node.mirror.nodes) == [leader.node.node_id])


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"{garbage",
        b"\xff",
        b"[]",
        b'{"brokerId":"x"}',
        LeaderRecord(broker_id="x:1", service_url="http://x:99999999", epoch=99).to_json(),
        LeaderRecord(broker_id="x:1", service_url="http://[", epoch=99).to_json(),
        LeaderRecord(broker_id="x:1", service_url=f"http://{'x' * 300}:1", epoch=99).to_json(),
        LeaderRecord(broker_id="x:1", service_url="", epoch=1).to_json(),
    ],
)
async def test_garbage_in_the_leader_znode_costs_one_election(garbage: bytes) -> None:
    async with Cluster() as cluster:
        nodes = await cluster.start_nodes(2)
        await write(cluster.store, paths.LEADER, garbage)
        await cluster.known_everywhere(lambda node: node.node.mirror.epoch >= (1 if b'"epoch":1,' in garbage else 2))
        await eventually(lambda: any(node.leads and node.node.mirror.faults == {} for node in nodes))
        assert not any(node.node.failure.done() for node in nodes)


async def test_planted_leader_znode_does_not_block_elections() -> None:
    async with Cluster() as cluster:
        await cluster.store.ensure_path(paths.ROOT)
        await cluster.store.commit([Create(paths.LEADER, b"me")])
        leader = await cluster.start_leader()
        assert leader.node.mirror.epoch == 1


async def test_leader_znode_with_children_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    campaigns = _campaigns(monkeypatch)
    async with Cluster() as cluster:
        await cluster.store.ensure_path(paths.ROOT)
        planted: list[Op] = [Create(paths.LEADER, b"me"), Create(f"{paths.LEADER}/child", b"")]
        await cluster.store.commit(planted)
        with structlog.testing.capture_logs() as logs:
            node = await cluster.start_node()
            await eventually(lambda: campaigns)
            await write(cluster.store, paths.namespace("t/ns"), b"[]")  # triggers another campaign
            await eventually(lambda: len(campaigns) > 1)
            await eventually(node.node.election.why_nobody_leads, what="it is said why nobody leads")
        (said,) = [entry for entry in logs if entry["event"] == "nobody_can_lead"]
        reply = await node.get("/readyz")
        assert reply.status == 503
        assert reply.reason.startswith("nobody can lead: /loadbalance/leader is persistent and has children: delete it")
        assert said["log_level"] == "error"
        assert said["why"] in reply.reason
        await cluster.store.commit([Delete(f"{paths.LEADER}/child"), Delete(paths.LEADER)])
        await eventually(lambda: node.leads)
        assert (await node.get("/readyz")).status == 200
        with structlog.testing.capture_logs() as logs:
            await cluster.store.commit([Delete(paths.LEADER), *planted])
            await eventually(lambda: "nobody_can_lead" in [entry["event"] for entry in logs], what="it is said again")


async def test_node_without_a_leader_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster(_with_sessions_of(a_memory_cluster(), 0.5)) as cluster:
        with monkeypatch.context() as refusing:
            _campaigns(refusing, StoreUnavailableError("no campaign gets through"))
            node = await cluster.start_node()

            async def is_not_ready() -> bool:
                return (await node.get("/readyz")).status == 503

            await eventually(is_not_ready)
            said = re.match("nobody has led for ([0-9]+) s", (await node.get("/readyz")).reason)
            assert said is not None
            assert int(said[1]) >= 2
        await eventually(lambda: node.leads)
        assert (await node.get("/readyz")).status == 200


def _campaigns(monkeypatch: pytest.MonkeyPatch, refusal: StoreError | None = None) -> list[int]:
    """Record the session of each campaign; with `refusal` each campaign fails with it."""
    campaigns: list[int] = []
    commit = MemoryStore.commit

    async def note(store: MemoryStore, ops: Sequence[Op], *, session_id: int | None = None) -> list[int]:
        if ops[0].path == paths.EPOCH and isinstance(ops[0], Put):
            campaigns.append(store.session_id)
            if refusal is not None:
                raise refusal
        return await commit(store, ops, session_id=session_id)

    monkeypatch.setattr(MemoryStore, "commit", note)
    return campaigns


async def test_deleted_leader_znode_is_written_again() -> None:
    async with a_leader() as (cluster, leader):
        await cluster.store.commit([Delete(paths.LEADER)])
        await eventually(lambda: leader.node.election.terms_won == 2 and leader.leads)


async def test_busy_node_stops_at_once() -> None:
    """The end of the term may coincide with a wake-up of a task that it cancels."""
    for _ in range(10):
        async with Cluster() as cluster:
            leader = await cluster.start_leader()
            await cluster.a_broker()
            await cluster.a_namespace()
            await leader.lookup("persistent://t/ns/x")
            async with asyncio.timeout(patience()):
                await leader.stop()


async def test_deposed_leader_ends_its_term_during_a_cluster_change() -> None:
    async with a_leader() as (_, leader):
        for _ in range(10):
            leader.node.reconciler.wake()
            leader.node.election.deposed()
            assert not leader.leads
            await eventually(lambda: leader.leads, what="the next term")


async def test_new_leader_knows_every_registered_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would treat a bundle of that broker as an orphan and assign it twice."""
    async with Cluster() as cluster:
        first, second = await cluster.start_nodes(2)
        await cluster.a_namespace("t/ns", bundles={"numBundles": 1})
        assert isinstance(second.store, MemoryStore)
        tell = second.store.changed

        def late(changed: Sequence[str]) -> None:
            tell([path for path in changed if not path.startswith(paths.BROKERS)])

        monkeypatch.setattr(second.store, "changed", late)
        registration = await register(cluster.store, "b1:8080", a_record())
        await eventually(lambda: first.node.mirror.is_registered(registration))
        assert (await first.lookup("persistent://t/ns/x")).status == 200
        await first.stop()
        await eventually(lambda: second.leads)
        assert (await second.lookup("persistent://t/ns/x")).status == 200
        kept = second.ownership(second.bundle_of("persistent://t/ns/x"))
        assert (kept.owner, kept.version) == (registration, 1)


async def test_standby_with_a_stale_mirror_is_not_elected() -> None:
    memory = a_memory_cluster()
    async with Cluster(in_memory(memory)) as cluster:
        first, second = await cluster.start_nodes(2)
        assert isinstance(second.store, MemoryStore)
        memory.partition(second.store, noticed=True)
        await eventually(lambda: not second.node.mirror.is_fresh)
        await first.stop()
        await asyncio.sleep(0)
        assert second.node.election.term is None
        memory.heal(second.store)
        await eventually(lambda: second.leads)
        _assert_one_leader(cluster.nodes)


def _assert_one_leader(nodes: list[RunningNode]) -> None:
    assert sum(node.node.election.term is not None for node in nodes) == 1
