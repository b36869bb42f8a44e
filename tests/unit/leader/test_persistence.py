from __future__ import annotations

import time

import orjson
import pytest
from structlog.testing import capture_logs
from support.delays import a_memory_cluster
from support.nodes import Cluster, RunningNode, a_leader, in_memory
from support.registrations import a_record, load_of, read, write
from support.waiting import eventually

from loadmanager.core.domain.names import BundleName, TopicName
from loadmanager.core.domain.reasons import MergeReason
from loadmanager.core.planning.churn import FREEZE_S, STOP_S, MoveMemory
from loadmanager.core.planning.planner import State
from loadmanager.core.planning.repeated_moves import PastMove
from loadmanager.errors import InvalidRecordError, NotLeaderError, StoreError, StoreUnavailableError
from loadmanager.leader import persistence
from loadmanager.store import paths
from loadmanager.store.metadata_store import MAX_ZNODE_BYTES, Delete, MetadataStore, Put, Znode
from loadmanager.wire.strategy_state import StrategyStateRecord, parse_strategy_state

BUNDLE = "t/ns/0x00000000_0xffffffff"


async def _loaded(cluster: Cluster, leader: RunningNode, mib_per_s: float = 1.0) -> None:
    """Have b1 report the one bundle of a namespace."""
    if "t/ns" not in leader.node.mirror.namespaces:
        await cluster.a_broker("b1:8080")
        await cluster.a_namespace("t/ns", bundles={"numBundles": 1})
    applied = leader.node.intake.reports_applied
    broker = cluster.brokers["b1:8080"]
    await broker.report(a_record("b1:8080", {BUNDLE: load_of(mib_per_s)}, agent_url=broker.url))
    await eventually(lambda: leader.node.intake.reports_applied > applied)


async def test_averages_and_strategy_state_are_written() -> None:
    async with a_leader() as (cluster, leader):
        await _loaded(cluster, leader)
        await leader.node.lookups.lookup(TopicName.parse("persistent://t/ns/x"))
        leader.node.planner.state = {"ThresholdShedder": {"usage": {"b1:8080": [5, 0.25]}}}
        leader.node.mirror.model.mark_unloaded(BUNDLE, 1_700_000_000.0)
        await leader.node.persistence.flush()
        data = orjson.loads(await read(cluster.store, paths.bundle_data("t/ns")))
        assert data["0x00000000_0xffffffff"]["shortTermData"]["msgThroughputIn"] == 1024 * 1024
        average = orjson.loads(await read(cluster.store, paths.broker_time_average("b1:8080")))
        assert average["shortTermMsgThroughputIn"] == 1024 * 1024
        state = orjson.loads(await read(cluster.store, paths.STRATEGY_STATE))
        assert state == {
            "states": {"ThresholdShedder": {"usage": {"b1:8080": [5, 0.25]}}},
            "recentlyUnloaded": {BUNDLE: 1_700_000_000.0},
            "lastUnloaded": {},
        }


async def test_unchanged_records_are_not_written_again() -> None:
    async with a_leader() as (cluster, leader):
        await _loaded(cluster, leader)
        await leader.node.persistence.flush()
        written = leader.node.persistence.records_written
        await leader.node.persistence.flush()
        assert leader.node.persistence.records_written == written
        await _loaded(cluster, leader, mib_per_s=9.0)
        await leader.node.persistence.flush()
        assert leader.node.persistence.records_written > written


async def test_new_leader_restores_averages_and_strategy_state() -> None:
    async with Cluster() as cluster:
        first = await cluster.start_leader()
        await _loaded(cluster, first)
        await _loaded(cluster, first, 3.0)
        first.node.planner.state = {"ThresholdShedder": {"usage": {"b1:8080": [5, 0.25]}}}
        first.node.mirror.model.mark_unloaded(BUNDLE, 1_700_000_000.0)
        await first.node.persistence.flush()
        await first.stop()
        cluster.nodes.clear()
        second = await cluster.start_leader()
        averages = second.node.mirror.model.bundle_averages("t/ns")[BUNDLE]
        assert (averages.long_samples, averages.short[2]) == (2, 2 * 1024 * 1024)
        assert second.node.planner.state == {"ThresholdShedder": {"usage": {"b1:8080": [5, 0.25]}}}
        assert second.node.mirror.model.unloads.of_bundles == {BUNDLE: 1_700_000_000.0}


class Unreadable:
    """A store whose strategy state is unreadable until `mended`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: MetadataStore) -> None:
        self.mended = False
        self.asked = 0
        self._get = store.get
        monkeypatch.setattr(store, "get", self)

    async def __call__(self, path: str) -> Znode | None:
        if path == paths.STRATEGY_STATE:
            self.asked += 1
            if not self.mended:
                raise StoreUnavailableError("no answer")
        return await self._get(path)


BREAKER: State = {
    "churn": {
        "memory": {
            "moves": [[1.0, BUNDLE, "b1:8080", 5, 0.25, True, None, None]],
            "frozenUntilS": {BUNDLE: 1e15},
            "stoppedUntilS": 1e15,
        }
    }
}


def remembered(node: RunningNode) -> MoveMemory:
    return MoveMemory.of(node.node.planner.churn.state)


async def test_no_shedding_or_write_before_the_state_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persistence, "_AGAIN_S", 0.01)
    at_once = {
        "load_balancer_shedding_interval_minutes": 0.0001,
        "load_balancer_resource_quota_update_interval_minutes": 0.0001,
        "load_balancer_split_interval_minutes": 0.0001,
    }
    stored = StrategyStateRecord(states=BREAKER, recently_unloaded={BUNDLE: 3.0}).to_json()
    async with Cluster() as cluster:
        first = await cluster.start_leader()
        await _loaded(cluster, first)
        second = await cluster.start_node(**at_once)
        unreadable = Unreadable(monkeypatch, second.store)
        await first.node.persistence.flush()
        await write(cluster.store, paths.STRATEGY_STATE, stored)
        await first.stop()
        await eventually(lambda: second.leads and unreadable.asked > 3)
        with capture_logs() as logs:
            await second.node.lookups.lookup(TopicName.parse("persistent://t/ns/x"))
            second.node.planner.churn.memory_changed.set()
            asked = unreadable.asked
            await eventually(lambda: unreadable.asked > asked + 3)
        assert (
            second.node.shedding.rounds == second.node.reshaping.rounds == second.node.persistence.records_written == 0
        )
        assert await read(cluster.store, paths.STRATEGY_STATE) == stored
        assert {entry["event"] for entry in logs} >= {"memory_not_read"}
        unreadable.mended = True
        await eventually(lambda: second.node.shedding.rounds > 0 and second.node.persistence.records_written > 0)
        memory = remembered(second)
        assert memory.frozen_until_s.keys() == {BUNDLE}
        assert memory.stopped_until_s > 0
        assert BUNDLE in (await read(cluster.store, paths.STRATEGY_STATE)).decode()


async def test_restore_merges_stored_state_with_the_own_one() -> None:
    async with a_leader() as (cluster, leader):
        await _loaded(cluster, leader)
        planner = leader.node.planner
        planner.state = {"RoundRobinBrokerSelector": {"turn": 1, "order": ["b1:8080"]}}
        own = PastMove(2.0, BUNDLE, "b2:8080", 6, 0.5, is_own=False)
        planner.churn.state = MoveMemory((own,), {"t/ns/x": 5.0}, 1.0).into({})
        await planner.restore({**BREAKER, "ThresholdShedder": {"usage": {}}})
        assert planner.state.keys() == {"RoundRobinBrokerSelector", "ThresholdShedder"}
        memory = remembered(leader)
        assert [move.at_s for move in memory.moves] == [1.0, 2.0]
        assert memory.frozen_until_s.keys() == {BUNDLE, "t/ns/x"}


async def test_re_elected_leader_uses_the_stored_state() -> None:
    async with a_leader() as (cluster, leader):
        own = {"frozenUntilS": {BUNDLE: 1e15}}
        leader.node.planner.churn.state = {"churn": {"memory": own}}
        await write(cluster.store, paths.STRATEGY_STATE, b'{"states":{"RoundRobinBrokerSelector":{"turn":3}}}')
        await cluster.store.commit([Put(paths.EPOCH, b"another")])
        await cluster.store.commit([Delete(paths.LEADER)])
        await eventually(lambda: leader.node.election.terms_won == 2 and leader.leads)
        assert leader.node.planner.memory == {"RoundRobinBrokerSelector": {"turn": 3}}


@pytest.mark.parametrize("written", [None, b"{garbage"])
async def test_re_elected_leader_keeps_its_state_if_none_is_readable(written: bytes | None) -> None:
    async with a_leader() as (cluster, leader):
        leader.node.planner.state = own = {"RoundRobinBrokerSelector": {"turn": 3}}
        if written is not None:
            await write(cluster.store, paths.STRATEGY_STATE, written)
        await cluster.store.commit([Put(paths.EPOCH, b"another")])
        await cluster.store.commit([Delete(paths.LEADER)])
        await eventually(lambda: leader.node.election.terms_won == 2 and leader.leads)
        assert leader.node.planner.state == own


async def test_stored_times_in_the_future_are_cut_to_now() -> None:
    now_s = time.time()
    ahead_s = now_s + 86_400
    states: State = {
        "churn": {
            "memory": {
                "moves": [[ahead_s, BUNDLE, "b1:8080", 5, 0.25, True, None, None]],
                "frozenUntilS": {BUNDLE: ahead_s + 3_600},
                "stoppedUntilS": ahead_s + 3_600,
            }
        }
    }
    record = StrategyStateRecord(states=states, recently_unloaded={BUNDLE: ahead_s}, last_unloaded={"b1:8080": ahead_s})
    async with Cluster() as cluster:
        await write(cluster.store, paths.STRATEGY_STATE, record.to_json())
        leader = await cluster.start_leader()
        memory = remembered(leader)
        noted_s = time.time()
        stamps = [memory.moves[0].at_s, *leader.node.mirror.model.unloads.of_bundles.values()]
        stamps += leader.node.mirror.model.unloads.from_brokers.values()
        assert len(stamps) == 3
        assert all(now_s <= at_s <= noted_s for at_s in stamps)
        figures = leader.node.planner.churn.figures()
        assert 0 < figures.frozen_for_s[BUNDLE] <= FREEZE_S
        assert 0 < figures.shedding_stopped_for_s <= STOP_S


async def test_invalid_figures_are_faults_and_do_not_break_the_leader() -> None:
    stored = (
        b'{"states":{"ThresholdShedder":{"usage":{"b1:8080":[5,"NaN"]}},"AvgShedder":{"hits":{"b":[1,2]}},'
        b'"leastLoadedServer":{"model":{"default":[1,1e999,1,1,1]}},"RoundRobinBrokerSelector":{"turn":3},'
        b'"churn":{"memory":{"moves":[[1,"t/ns/x","b",1,1e999,true,false]],"frozenUntilS":{"t/ns/x":1e300}}}},'
        b'"recentlyUnloaded":{"t/ns/y":"soon","t/ns/x":7}}'
    )
    async with Cluster() as cluster:
        await write(cluster.store, paths.STRATEGY_STATE, stored)
        leader = await cluster.start_leader()
        await _loaded(cluster, leader)
        fault = leader.node.mirror.faults[paths.STRATEGY_STATE]
        for named in ("states.AvgShedder.hits.b", "churn.memory.moves.0.4", "states.ThresholdShedder.usage.b1:8080.1"):
            assert named in fault
        assert leader.node.planner.memory == {"RoundRobinBrokerSelector": {"turn": 3}}
        assert leader.node.mirror.model.unloads.of_bundles == {"t/ns/x": 7.0}
        await leader.node.planner.shed()
        for path in ("/metrics", "/loadbalance/v1/churn", f"/loadbalance/v1/explain/bundle/{BUNDLE}"):
            assert (await leader.get(path)).status == 200


@pytest.mark.parametrize(
    ("states", "field"),
    [
        (b'{"ThresholdShedder":{"usage":{"b1:8080":[5,1e999]}}}', "states.ThresholdShedder.usage.b1:8080.1: "),
        (b'{"ThresholdShedder":{"usage":{"b1:8080":[5,"NaN"]}}}', "states.ThresholdShedder.usage.b1:8080.1: "),
        (b'{"LeastResourceUsageWithWeight":{"usage":{"b1:8080":7}}}', "states.LeastResourceUsageWithWeight.usage."),
        (b'{"weightedRandomSelection":{"model":{"cpu_factor":NaN}}}', "states.weightedRandomSelection.model.cpu_fac"),
        (b'{"TransferShedder":{"hits":1,"statistics":[null,Infinity]}}', "states.TransferShedder.statistics.1: "),
        (b'{"churn":{"memory":{"stoppedUntilS":NaN}}}', "states.churn.memory.stoppedUntilS: "),
        (b'{"churn":{"memory":{"moves":[["x","t/ns/x","b",1,0.1,true,false]]}}}', "states.churn.memory.moves.0.0: "),
        (b'{"churn":{"memory":{"moves":[[1,"t/ns/x","b",1,Infinity,true,false]]}}}', "states.churn.memory.moves.0.4: "),
    ],
)
def test_invalid_figure_is_named_and_other_states_are_kept(states: bytes, field: str) -> None:
    kept = b'{"states":{"RoundRobinBrokerSelector":{"turn":3},' + states[1:] + b"}"
    record, fault = parse_strategy_state(kept, "here")
    assert fault is not None
    assert str(fault).startswith(f"here: {field}")
    assert record.states == {"RoundRobinBrokerSelector": {"turn": 3}}


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"[]", "here: Input should be an object"),
        (b"{", "here: Invalid JSON: "),
        (b'{"states":5,"recentlyUnloaded":{"t/ns/x":"y"}}', "here: states: Input should be an object"),
        (b'{"lastUnloaded":[1]}', "here: lastUnloaded: Input should be an object"),
    ],
)
def test_malformed_state_record_is_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(InvalidRecordError, match=complaint):
        parse_strategy_state(data, "here")


async def test_standby_started_before_the_first_write_can_write_as_leader() -> None:
    async with Cluster() as cluster:
        first, second = await cluster.start_nodes(2)
        await _loaded(cluster, first)
        await first.node.persistence.flush()
        await first.stop()
        await eventually(lambda: second.leads)
        await _loaded(cluster, second, 7.0)
        await second.node.persistence.flush()
        data = orjson.loads(await read(cluster.store, paths.bundle_data("t/ns")))
        assert data["0x00000000_0xffffffff"]["shortTermData"]["numSamples"] == 2


async def test_re_elected_leader_rewrites_overwritten_records() -> None:
    async with a_leader() as (cluster, leader):
        await _loaded(cluster, leader)
        await leader.node.persistence.flush()
        own = await read(cluster.store, paths.bundle_data("t/ns"))
        written_over = Put(paths.bundle_data("t/ns"), b"{}")
        await cluster.store.commit([Put(paths.EPOCH, b"another"), written_over, Delete(paths.LEADER)])
        await eventually(lambda: leader.node.election.terms_won == 2 and leader.leads)
        await leader.node.persistence.flush()
        assert await read(cluster.store, paths.bundle_data("t/ns")) == own


async def test_averages_of_a_lost_broker_are_deleted() -> None:
    async with a_leader() as (cluster, leader):
        await _loaded(cluster, leader)
        await leader.node.persistence.flush()
        await cluster.brokers["b1:8080"].leave()
        await eventually(lambda: not leader.node.mirror.registrations)
        await leader.node.persistence.flush()
        assert await cluster.store.get(paths.broker_time_average("b1:8080")) is None


async def test_deposed_leader_writes_no_history_and_steps_down() -> None:
    async with a_leader() as (cluster, leader):
        await _loaded(cluster, leader)
        leader.node.election._resigned = True  # otherwise it might be re-elected before it writes
        await cluster.store.commit([Put(paths.EPOCH, b"another")])
        with pytest.raises((StoreError, NotLeaderError)):  # it may know of the other leader before it writes
            await leader.node.persistence.flush()
        assert await cluster.store.get(paths.bundle_data("t/ns")) is None
        assert leader.node.election.term is None


@pytest.mark.parametrize(
    ("garbage", "complaint"),
    [
        (b"{garbage", "Invalid JSON"),
        (b"\xff", "not UTF-8"),
        (b'{"states":{"ThresholdShedder":5}}', "states.ThresholdShedder"),
        (b'{"recentlyUnloaded":{"t/ns/x":1e999}}', "recentlyUnloaded.t/ns/x: Input should be a finite number"),
    ],
)
async def test_garbage_as_strategy_memory_is_a_listed_fault(garbage: bytes, complaint: str) -> None:
    async with Cluster() as cluster:
        await write(cluster.store, paths.STRATEGY_STATE, garbage)
        leader = await cluster.start_leader()
        assert complaint in leader.node.mirror.faults[paths.STRATEGY_STATE]
        assert leader.node.planner.state == {}
        leader.node.intake.mark_dirty(paths.ROOT)
        await leader.node.intake.settled()
        assert paths.STRATEGY_STATE in leader.node.mirror.faults
        await leader.node.persistence.flush()
        assert leader.node.mirror.faults == {}


async def test_standby_clears_the_fault_of_rewritten_history() -> None:
    async with Cluster() as cluster:
        await write(cluster.store, paths.bundle_data("t/ns"), b"{garbage")
        first, second = await cluster.start_nodes(2)
        assert list(second.node.mirror.faults) == [paths.bundle_data("t/ns")]
        await _loaded(cluster, first)
        await first.node.persistence.flush()
        await cluster.known_everywhere(lambda node: not node.node.mirror.faults)


async def test_failed_history_write_does_not_end_the_term(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_leader(load_balancer_resource_quota_update_interval_minutes=0.0005) as (_, leader):
        failures = []

        async def fail() -> None:
            failures.append(1)
            raise ValueError("cannot be written")

        monkeypatch.setattr(leader.node.persistence, "flush", fail)
        await eventually(lambda: len(failures) > 2)
        assert leader.leads
        assert not leader.node.failure.done()


async def test_history_of_reshaped_bundles_is_written_at_once() -> None:
    async with a_leader() as (cluster, leader):
        await _loaded(cluster, leader)
        await leader.node.persistence.flush()
        written = leader.node.persistence.records_written
        await leader.node.reshaper.split(BundleName.parse(BUNDLE))
        await eventually(lambda: leader.node.persistence.records_written == written + 1)
        data = orjson.loads(await read(cluster.store, paths.bundle_data("t/ns")))
        assert set(data) == {"0x00000000_0x7fffffff", "0x7fffffff_0xffffffff"}
        await cluster.store.commit([Delete(paths.bundle_data("t/ns"))])
        await leader.node.reshaper.merge(BundleName.parse("t/ns/0x00000000_0x7fffffff"), None, MergeReason.ADMIN_MERGE)
        await eventually(lambda: leader.node.persistence.records_written == written + 2)
        data = orjson.loads(await read(cluster.store, paths.bundle_data("t/ns")))
        assert set(data) == {"0x00000000_0xffffffff"}


@pytest.mark.parametrize("is_shut", [False, True])
async def test_failed_write_blocks_no_other_record(
    monkeypatch: pytest.MonkeyPatch,
    is_shut: bool,  # noqa: FBT001 - a case: by an access list, or because it is too large
) -> None:
    memory = a_memory_cluster()
    path, pack = paths.bundle_data("t/ns"), persistence.pack_averages
    async with Cluster(in_memory(memory)) as cluster:
        leader = await cluster.start_leader()
        await _loaded(cluster, leader)
        await leader.node.persistence.flush()
        await _loaded(cluster, leader, mib_per_s=9.0)
        with monkeypatch.context() as patched:
            if is_shut:
                memory.shut[path] = "the access list says no"
            else:
                patched.setattr(persistence, "pack_averages", lambda of: pack(of) + bytes(MAX_ZNODE_BYTES))
            leader.node.planner.state = {"ThresholdShedder": {"usage": {"b1:8080": [6, 0.5]}}}
            with pytest.raises(StoreError, match="t/ns"):
                await leader.node.persistence.flush()
        assert b"[6,0.5]" in await read(cluster.store, paths.STRATEGY_STATE)
        assert path in (await leader.get("/readyz")).json()["faults"]
        memory.shut.clear()
        await leader.node.persistence.flush()
        await eventually(lambda: path not in leader.node.mirror.faults)
        data = orjson.loads(await read(cluster.store, path))
        assert data["0x00000000_0xffffffff"]["shortTermData"]["msgThroughputIn"] > 1024 * 1024
