"""What a leader writes down for the next one, and what the next one makes of it."""

from __future__ import annotations

import orjson
import pytest
from support.nodes import Cluster, RunningNode, a_leader
from support.registrations import a_record, load_of, read, write
from support.waiting import eventually

from loadmanager.core.names import BundleName, TopicName
from loadmanager.core.plan import Reason
from loadmanager.errors import NotLeaderError, StoreError
from loadmanager.store import paths
from loadmanager.store.base import Delete, Put

BUNDLE = "t/ns/0x00000000_0xffffffff"


async def _loaded(cluster: Cluster, leader: RunningNode, mib_per_s: float = 1.0) -> None:
    """A namespace of one bundle, which b1 reports."""
    if "t/ns" not in leader.node.view.namespaces:
        await cluster.a_broker("b1:8080")
        await cluster.a_namespace("t/ns", bundles={"numBundles": 1})
    applied = leader.node.intake.reports_applied
    broker = cluster.brokers["b1:8080"]
    await broker.report(a_record("b1:8080", {BUNDLE: load_of(mib_per_s)}, agent_url=broker.url))
    await eventually(lambda: leader.node.intake.reports_applied > applied)


async def test_the_averages_of_bundles_and_brokers_and_the_strategies_memory_are_written() -> None:
    async with a_leader() as (cluster, leader):
        await _loaded(cluster, leader)
        await leader.node.lookup(TopicName.parse("persistent://t/ns/x"))
        leader.node.desk.state = {"ThresholdShedder": {"usage": {"b1:8080": [5, 0.25]}}}
        leader.node.view.model.mark_unloaded(BUNDLE, 2_000_000_000.0)
        await leader.node.persistence.flush()
        data = orjson.loads(await read(cluster.store, paths.bundle_data("t/ns")))
        assert data["0x00000000_0xffffffff"]["shortTermData"]["msgThroughputIn"] == 1024 * 1024
        average = orjson.loads(await read(cluster.store, paths.broker_time_average("b1:8080")))
        assert average["shortTermMsgThroughputIn"] == 1024 * 1024
        state = orjson.loads(await read(cluster.store, paths.STRATEGY_STATE))
        assert state == {
            "states": {"ThresholdShedder": {"usage": {"b1:8080": [5, 0.25]}}},
            "recentlyUnloaded": {BUNDLE: 2_000_000_000.0},
            "lastUnloaded": {},
        }


async def test_what_did_not_change_is_not_written_again() -> None:
    async with a_leader() as (cluster, leader):
        await _loaded(cluster, leader)
        await leader.node.persistence.flush()
        written = leader.node.persistence.records_written
        await leader.node.persistence.flush()
        assert leader.node.persistence.records_written == written
        await _loaded(cluster, leader, mib_per_s=9.0)
        await leader.node.persistence.flush()
        assert leader.node.persistence.records_written > written


async def test_a_new_leader_goes_on_where_the_last_one_stopped() -> None:
    async with Cluster() as cluster:
        first = await cluster.start_leader()
        await _loaded(cluster, first)
        await _loaded(cluster, first, 3.0)
        first.node.desk.state = {"ThresholdShedder": {"usage": {"b1:8080": [5, 0.25]}}}
        first.node.view.model.mark_unloaded(BUNDLE, 2_000_000_000.0)
        await first.node.persistence.flush()
        await first.stop()
        cluster.nodes.clear()
        second = await cluster.start_leader()
        averages = second.node.view.model.bundle_averages("t/ns")[BUNDLE]
        assert (averages.long_samples, averages.short[2]) == (2, 2 * 1024 * 1024)
        assert second.node.desk.state == {"ThresholdShedder": {"usage": {"b1:8080": [5, 0.25]}}}
        assert second.node.view.model.recently_unloaded() == {BUNDLE: 2_000_000_000.0}


async def test_a_standby_that_started_before_anything_was_written_can_write_as_soon_as_it_leads() -> None:
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


async def test_a_leader_that_leads_again_writes_what_another_one_wrote_over() -> None:
    async with a_leader() as (cluster, leader):
        await _loaded(cluster, leader)
        await leader.node.persistence.flush()
        own = await read(cluster.store, paths.bundle_data("t/ns"))
        written_over = Put(paths.bundle_data("t/ns"), b"{}")
        await cluster.store.commit([Put(paths.EPOCH, b"another"), written_over, Delete(paths.LEADER)])
        await eventually(lambda: leader.node.election.terms_won == 2 and leader.leads)
        await leader.node.persistence.flush()
        assert await read(cluster.store, paths.bundle_data("t/ns")) == own


async def test_the_averages_of_a_broker_that_left_are_deleted() -> None:
    async with a_leader() as (cluster, leader):
        await _loaded(cluster, leader)
        await leader.node.persistence.flush()
        await cluster.brokers["b1:8080"].leave()
        await eventually(lambda: not leader.node.view.registrations)
        await leader.node.persistence.flush()
        assert await cluster.store.get(paths.broker_time_average("b1:8080")) is None


async def test_a_deposed_leader_writes_no_history_and_steps_down() -> None:
    async with a_leader() as (cluster, leader):
        await _loaded(cluster, leader)
        leader.node.election._resigned = True  # else it might lead again before it writes
        await cluster.store.commit([Put(paths.EPOCH, b"another")])
        with pytest.raises((StoreError, NotLeaderError)):  # it may have heard of the other one before it writes
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
async def test_garbage_instead_of_the_strategies_memory_is_a_listed_fault_until_it_is_written_over(
    garbage: bytes, complaint: str
) -> None:
    async with Cluster() as cluster:
        await write(cluster.store, paths.STRATEGY_STATE, garbage)
        leader = await cluster.start_leader()
        assert complaint in leader.node.view.faults[paths.STRATEGY_STATE]
        assert leader.node.desk.state == {}
        leader.node.intake.mark_dirty(paths.ROOT)
        await leader.node.intake.settled()
        assert paths.STRATEGY_STATE in leader.node.view.faults
        await leader.node.persistence.flush()
        assert leader.node.view.faults == {}


async def test_a_standby_too_hears_that_spoiled_history_was_written_over() -> None:
    async with Cluster() as cluster:
        await write(cluster.store, paths.bundle_data("t/ns"), b"{garbage")
        first, second = await cluster.start_nodes(2)
        assert list(second.node.view.faults) == [paths.bundle_data("t/ns")]
        await _loaded(cluster, first)
        await first.node.persistence.flush()
        await cluster.known_everywhere(lambda node: not node.node.view.faults)


async def test_a_failure_to_write_history_does_not_end_the_term(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_leader(load_balancer_resource_quota_update_interval_minutes=0.0005) as (_, leader):
        failures = []

        async def fail() -> None:
            failures.append(1)
            raise ValueError("cannot be written")

        monkeypatch.setattr(leader.node.persistence, "flush", fail)
        await eventually(lambda: len(failures) > 2)
        assert leader.leads
        assert not leader.node.failure.done()


async def test_the_history_of_split_bundles_is_written_alone_and_again_after_a_failure() -> None:
    async with a_leader() as (cluster, leader):
        await _loaded(cluster, leader)
        await leader.node.persistence.flush()
        written = leader.node.persistence.records_written
        await leader.node.reshaper.split(BundleName.parse(BUNDLE))
        await eventually(lambda: leader.node.persistence.records_written == written + 1)
        data = orjson.loads(await read(cluster.store, paths.bundle_data("t/ns")))
        assert set(data) == {"0x00000000_0x7fffffff", "0x7fffffff_0xffffffff"}
        await cluster.store.commit([Delete(paths.bundle_data("t/ns"))])
        await leader.node.reshaper.merge(BundleName.parse("t/ns/0x00000000_0x7fffffff"), None, Reason.ADMIN_MERGE)
        await eventually(lambda: leader.node.persistence.records_written == written + 2)
        data = orjson.loads(await read(cluster.store, paths.bundle_data("t/ns")))
        assert set(data) == {"0x00000000_0xffffffff"}
