"""The agent on a real ZooKeeper: registration, incarnations, and what happens when somebody dies."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from structlog.testing import capture_logs
from support.agents import BROKER_ID, RunningAgent, agent_settings, running_agent
from support.fake_broker import FakeBroker
from support.fake_node import FakeNode
from support.stores import drop_connection, expire_session, started
from support.waiting import eventually

from loadmanager.agent.host_usage import NOTHING_KNOWN
from loadmanager.agent.usage_sampler import UsageSampler
from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.store import paths
from loadmanager.store.metadata_store import Create, MetadataStore, Put
from loadmanager.store.znode_codec import decode
from loadmanager.store.zookeeper_store import ZooKeeperStore
from loadmanager.wire.broker_data import decode_local_broker_data
from loadmanager.wire.http_bodies import HealthStats

pytestmark = pytest.mark.zookeeper

PATH = paths.broker(BROKER_ID)
TOPIC = "persistent://t/ns/orders"
LEASE_S = 0.6


@dataclass
class Place:
    """A ZooKeeper, a node, and a broker that may come and go."""

    server: EmbeddedZooKeeper
    chroot: str
    node: FakeNode
    broker: FakeBroker

    def store(self) -> contextlib.AbstractAsyncContextManager[ZooKeeperStore]:
        return started(ZooKeeperStore(self.server.connect_string, session_timeout_s=60.0, chroot=self.chroot))

    @contextlib.asynccontextmanager
    async def agent(self, **settings: object) -> AsyncIterator[RunningAgent]:
        async with (
            self.store() as store,
            running_agent(agent_settings(self.broker, self.node, **settings), store) as it,
        ):
            yield it


@pytest.fixture
async def place(zookeeper: EmbeddedZooKeeper, chroot: str) -> AsyncIterator[Place]:
    async with FakeNode() as node, FakeBroker() as broker:
        node.create_namespace("t/ns")
        yield Place(zookeeper, chroot, node, broker)


async def is_registered(store: MetadataStore) -> bool:
    return await store.get(PATH) is not None


async def test_czxid_of_the_ephemeral_znode_is_the_incarnation(place: Place) -> None:
    async with place.agent() as beside, place.store() as observer:
        incarnation = await beside.registered()
        await observer.sync()
        znode = await observer.get(PATH)
        assert znode is not None
        assert (znode.czxid, znode.ephemeral_owner) == (incarnation, beside.store.session_id)
        record = await beside.record()
        assert record is not None
        assert (record.get("brokerId"), record.get("brokerVersionString")) == (BROKER_ID, "1.2.3")
        assert record.get("protocols") == {"loadmanager-agent": beside.url}
        assert (await beside.lease())[1]["incarnation"] == incarnation


async def test_stop_deregisters_before_the_session_ends(place: Place) -> None:
    async with place.store() as observer, place.store() as store:
        async with running_agent(agent_settings(place.broker, place.node), store) as beside:
            await beside.registered()
        assert not await is_registered(store)
        await observer.sync()
        assert not await is_registered(observer)


async def test_new_incarnation_after_a_lost_session(place: Place, zookeeper: EmbeddedZooKeeper) -> None:
    async with place.agent() as beside:
        first = await beside.registered()
        bundle = place.node.bundle_of(TOPIC)
        place.node.own(bundle, BROKER_ID, first)
        assert (await beside.owner(TOPIC))[1]["owned"]
        assert isinstance(beside.store, ZooKeeperStore)
        await expire_session(beside.store, zookeeper.connect_string)
        second = await beside.registered(after=first)
        assert (await beside.lease())[1]["incarnation"] == second
        assert not (await beside.owner(TOPIC))[1]["owned"], "the node still names the old incarnation"
        place.node.own(bundle, BROKER_ID, second, version=3)
        assert (await beside.owner(TOPIC))[1]["owned"]
        assert beside.metric("withdrawals_total", reason="session_lost") == 1


async def test_record_overwritten_by_another_client_is_written_again(place: Place) -> None:
    async with place.agent() as beside, place.store() as vandal:
        await beside.registered()
        await vandal.commit([Put(PATH, b"garbage")])

        async def is_mended() -> bool:
            znode = await beside.store.get(PATH)
            return znode is not None and znode.data.startswith(b"{")

        await eventually(is_mended)


async def test_dropped_connection_keeps_the_incarnation(place: Place) -> None:
    async with place.agent() as beside:
        first = await beside.registered()
        assert isinstance(beside.store, ZooKeeperStore)
        await drop_connection(beside.store)
        await beside.agent.registration.step(beside.agent.watch.process)
        assert await beside.registered() == first


async def test_exited_broker_is_withdrawn_after_its_last_lease_lapsed(place: Place) -> None:
    lease_s = 3.0  # long enough to look around before it has lapsed
    async with place.agent(brokerLeaseMs=lease_s * 1000) as beside, place.store() as observer:
        await beside.registered()
        asked_s = time.monotonic()
        _, lease = await beside.lease()
        await place.broker.stop()
        await eventually(lambda: beside.agent.registration.phase == "withdrawing")
        assert (await beside.lease())[0] == 503
        assert (await beside.unload(place.node.bundle_of(TOPIC), version=2))[0] == 503

        async def is_gone() -> bool:
            await observer.sync()
            return not await is_registered(observer)

        await eventually(is_gone)
        assert time.monotonic() >= asked_s + lease["validForMs"] / 1000


async def test_returning_broker_is_a_new_incarnation(place: Place) -> None:
    async with place.agent() as beside:
        first = await beside.registered()
        await beside.lease()
        await place.broker.stop()
        await eventually(lambda: beside.agent.registration.phase == "absent")
        await place.broker.start()
        assert await beside.registered(after=first) > first


async def test_restarted_broker_is_a_new_incarnation(place: Place) -> None:
    async with place.agent() as beside:
        first = await beside.registered()
        place.broker.start_timestamp += 1
        assert await beside.registered(after=first) > first
        assert beside.metric("withdrawals_total", reason="broker_restarted") == 1


async def test_slow_broker_stays_registered(place: Place) -> None:
    async with place.agent() as beside:
        first = await beside.registered()
        beside.agent._broker._stats_timeout_s = 0.05
        place.broker.may_answer_stats.clear()
        await eventually(lambda: not beside.agent.watch.is_answering)
        assert (await beside.lease())[0] == 200
        assert await beside.registered() == first
        beside.agent._broker._stats_timeout_s = 5.0
        place.broker.may_answer_stats.set()
        await eventually(lambda: beside.agent.watch.is_answering)
        assert await beside.registered() == first


async def test_silent_broker_without_lease_requests_is_withdrawn(place: Place) -> None:
    async with place.agent() as beside:
        first = await beside.registered()
        beside.agent._broker._stats_timeout_s = 0.05
        beside.agent.watch.silence_s = 0.3
        place.broker.may_answer_stats.clear()
        await eventually(lambda: beside.agent.registration.phase == "absent")
        beside.agent._broker._stats_timeout_s = 5.0
        place.broker.may_answer_stats.set()
        assert await beside.registered(after=first) > first


async def test_agent_takes_over_from_an_exited_one_after_its_leases(place: Place) -> None:
    async with place.store() as dead:
        former = running_agent(agent_settings(place.broker, place.node), dead)
        async with contextlib.AsyncExitStack() as gone:
            beside = await gone.enter_async_context(former)
            first = await beside.registered()
            asked_s, (_, lease) = time.monotonic(), await beside.lease()
            znode = await dead.get(PATH)
            assert znode is not None
        # What a killed agent leaves behind: its znode, held by a session that nobody keeps.
        await dead.commit([Create(PATH, znode.data, ephemeral=True)])
        leftover = await dead.get(PATH)
        assert leftover is not None
        async with place.agent() as next_life:
            second = await next_life.registered(after=first)
            assert time.monotonic() >= asked_s + lease["validForMs"] / 1000
            assert second > leftover.czxid


async def test_second_agent_with_the_same_broker_id_does_not_take_over(place: Place) -> None:
    async with place.agent() as holder:
        first = await holder.registered()
        with capture_logs() as logs:
            async with place.agent() as latecomer:
                await eventually(lambda: any(entry["event"] == "broker_id_in_use" for entry in logs))
                assert (await latecomer.lease())[0] == 503
                assert (await latecomer.get("/healthz"))[1]["phase"] == "absent"
        assert await holder.registered() == first
        assert await is_registered(holder.store)


async def test_limits_are_reported_once_known_at_any_load(place: Place) -> None:
    async with place.agent(loadBalancerReportUpdateThresholdPercentage=100) as beside:

        async def is_known() -> bool:
            znode = await beside.store.get(PATH)
            report = decode_local_broker_data(decode(znode.data, PATH), PATH) if znode else {}
            return all(report[name]["limit"] > 0 for name in ("cpu", "memory")) if report else False

        await eventually(is_known)


async def test_changed_health_is_reported_at_any_load(place: Place) -> None:
    async with place.agent(loadBalancerReportUpdateThresholdPercentage=100) as beside:
        await beside.registered()
        for health in (HealthStats(latency_ms=5.5, queue=0), HealthStats(latency_ms=900.0, error_share=0.5)):
            place.broker.health = health

            async def is_reported(wanted: HealthStats = health) -> bool:
                record = await beside.record()
                return record is not None and record.get("health") == wanted.model_dump(
                    by_alias=True, exclude_none=True
                )

            await eventually(is_reported)


async def measured_the_same(sampler: UsageSampler) -> None:
    """Instead of a measurement: what the host does is not up to the test."""
    sampler.usage = {
        **NOTHING_KNOWN,
        "cpu": {"usage": 150.0, "limit": 200.0},
        "memory": {"usage": 3_000.0, "limit": 4_000.0},
    }
    sampler.measured_at_s = sampler.clock()


async def test_nothing_is_written_without_changes(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UsageSampler, "sample", measured_the_same)
    async with place.agent() as beside:
        await beside.registered()
        before = await beside.store.get(PATH)
        checks = 0

        async def a_few_checks() -> bool:
            nonlocal checks
            await beside.agent.reporter.tick(beside.agent.registration)
            checks += 1
            return checks > 20

        await eventually(a_few_checks)
        after = await beside.store.get(PATH)
        assert before is not None
        assert after is not None
        assert decode_local_broker_data(decode(after.data, PATH), PATH)["cpu"] == {"usage": 150.0, "limit": 200.0}
        assert after == before
