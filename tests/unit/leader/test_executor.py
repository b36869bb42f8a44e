from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs
from support.nodes import Cluster, FakeAgent, RunningNode, a_leader, the_next_refusal_is_the_last
from support.servers import closed_port
from support.waiting import eventually, patience

from loadmanager.core.domain.names import BrokerId, BundleName, TopicName
from loadmanager.core.domain.ownership import (
    IllegalTransitionError,
    Ownership,
    OwnershipState,
    Registration,
    Stamp,
    complete,
    release,
)
from loadmanager.core.domain.plan import Unload
from loadmanager.core.domain.reasons import OwnershipReason
from loadmanager.core.protocol import move_machine
from loadmanager.core.strategies.shedding.overload_shedder import OverloadReason
from loadmanager.errors import NotLeaderError, NoUnloadError, UnloadCancelledError, UnloadFailedError
from loadmanager.leader.execution import executor as executor_module
from loadmanager.leader.execution.agent_calls import AgentCalls, OwnerRefusal
from loadmanager.leader.execution.executor import Batch
from loadmanager.store import paths
from loadmanager.store.metadata_store import Delete, Put
from loadmanager.wire.broker_data import AGENT_PROTOCOL
from loadmanager.wire.http_bodies import (
    BUNDLE_VERSION_HEADER,
    DESTINATION_HEADER,
    EPOCH_HEADER,
    INCARNATION_HEADER,
    OWNER_HEADER,
)

TOPIC = TopicName.parse("persistent://t/ns/x")
UNHURRIED = {"namespace_bundle_unloading_timeout_ms": 600_000}
"""Settings that wait for any answer."""


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for any preparation."""
    monkeypatch.setattr(executor_module, "PREPARE_S", 60.0)


async def _start_owner(cluster: Cluster, leader: RunningNode) -> tuple[FakeAgent, str]:
    """Start b1 with one bundle; return both."""
    broker = await cluster.a_broker("b1:8080")
    await cluster.a_namespace("t/ns", bundles={"numBundles": 1})
    await leader.node.lookups.lookup(TOPIC)
    return broker, leader.bundle_of(str(TOPIC))


async def test_unload_asks_the_owner_with_epoch_and_version() -> None:
    async with a_leader() as (cluster, leader):
        broker, bundle = await _start_owner(cluster, leader)
        await leader.unload(bundle)
        ((path, headers),) = broker.unloads
        assert path == f"/admin/v2/namespaces/{bundle}/unload"
        assert (headers[EPOCH_HEADER], headers[BUNDLE_VERSION_HEADER]) == ("1", "2")
        assert (headers[OWNER_HEADER], headers[INCARNATION_HEADER]) == (
            broker.registration.broker,
            str(broker.registration.incarnation),
        )
        assert (leader.ownership(bundle).state, leader.ownership(bundle).version) == (OwnershipState.FREE, 3)
        model = leader.node.mirror.model
        assert (set(model.unloads.of_bundles), set(model.unloads.from_brokers)) == (
            {bundle},
            {broker.registration.broker},
        )


async def test_release_is_committed_before_the_owner_is_asked() -> None:
    async with a_leader() as (cluster, leader):
        broker, bundle = await _start_owner(cluster, leader)
        broker.may_answer.clear()
        standby = await cluster.start_node()
        unload = asyncio.create_task(leader.unload(bundle))
        await eventually(lambda: broker.unloads)
        await eventually(lambda: standby.ownership(bundle).state is OwnershipState.RELEASING)
        broker.may_answer.set()
        await unload


async def test_transfer_ends_with_the_destination_as_owner() -> None:
    async with a_leader() as (cluster, leader):
        _, bundle = await _start_owner(cluster, leader)
        target = await cluster.a_broker("b2:8080")
        await leader.unload(bundle, target.registration)
        assert leader.ownership(bundle).owner == target.registration
        assert (await leader.node.lookups.lookup(TOPIC)).registration == target.registration


async def test_lost_destination_gets_nothing() -> None:
    async with a_leader() as (cluster, leader):
        broker, bundle = await _start_owner(cluster, leader)
        target = await cluster.a_broker("b2:8080")
        broker.may_answer.clear()
        unload = asyncio.create_task(leader.unload(bundle, target.registration))
        await eventually(lambda: broker.unloads)
        await target.leave()
        await eventually(lambda: not leader.node.mirror.is_registered(target.registration))
        broker.may_answer.set()
        with pytest.raises(IllegalTransitionError, match=r"b2:8080 .* left while"):
            await unload
        assert leader.ownership(bundle).state is OwnershipState.FREE


async def test_lost_owner_need_not_answer() -> None:
    async with a_leader() as (cluster, leader):
        broker, bundle = await _start_owner(cluster, leader)
        broker.status = 503
        unload = asyncio.create_task(leader.unload(bundle))
        await eventually(lambda: broker.unloads)
        await broker.leave()
        await unload
        assert leader.ownership(bundle).state is OwnershipState.FREE


async def test_silent_broker_keeps_the_bundle_at_a_higher_version() -> None:
    async with a_leader(namespace_bundle_unloading_timeout_ms=300) as (cluster, leader):
        broker, bundle = await _start_owner(cluster, leader)
        broker.may_answer.clear()
        async with asyncio.timeout(patience()):
            with pytest.raises(UnloadFailedError, match=r"stays with b1:8080: .*/unload did not answer within 0.1 s"):
                await leader.unload(bundle)
        kept = leader.ownership(bundle)
        assert (kept.state, kept.owner, kept.version) == (OwnershipState.OWNED, broker.registration, 3)
        assert leader.node.executor.unloads_failed == 1
        assert (await leader.node.lookups.lookup(TOPIC)).registration == broker.registration


async def test_final_refusal_is_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Ownership] = []

    async def ask(_self: AgentCalls, _name: BundleName, released: Ownership, _timeout_s: float) -> OwnerRefusal:
        asked.append(released)
        return OwnerRefusal("it went to b3:8080", is_final=True)

    monkeypatch.setattr(AgentCalls, "ask", ask)
    async with a_leader() as (cluster, leader):
        broker, bundle = await _start_owner(cluster, leader)
        with pytest.raises(UnloadFailedError, match="stays with b1:8080: it went to b3:8080"):
            await leader.unload(bundle)
        assert [released.version for released in asked] == [2]
        kept = leader.ownership(bundle)
        assert (kept.state, kept.owner, kept.version) == (OwnershipState.OWNED, broker.registration, 3)


async def test_end_of_the_term_before_the_request_is_not_logged_as_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(*_: object) -> OwnerRefusal:
        raise NotLeaderError("this node does not lead")

    monkeypatch.setattr(AgentCalls, "ask", ask)
    async with a_leader() as (cluster, leader):
        _, bundle = await _start_owner(cluster, leader)
        with capture_logs() as logs, pytest.raises(NotLeaderError):
            await leader.unload(bundle)
        assert [each["event"] for each in logs if each["log_level"] == "error"] == []


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b'{"reason":"busy"}', "application/json"),
        (b"\xff\xfe\x00", "text/plain; charset=utf-8"),
        (b"x", "text/plain; charset=no-such-charset"),
        (b"x" * 5_000_000, "text/plain"),
    ],
    ids=["plain", "not-utf-8", "unknown-charset", "huge"],
)
async def test_other_answers_are_retried(body: bytes, content_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_leader(**UNHURRIED) as (cluster, leader):
        broker, bundle = await _start_owner(cluster, leader)
        broker.status, broker.body, broker.content_type = 500, body, content_type
        unload = asyncio.create_task(leader.unload(bundle))
        await eventually(lambda: len(broker.unloads) >= 2, what="it is asked again")
        the_next_refusal_is_the_last(monkeypatch)
        with pytest.raises(UnloadFailedError, match="answered 500") as failure:
            await unload
        assert len(str(failure.value)) < 500
        assert ("an answer of more than 65536 bytes" in str(failure.value)) == (len(body) > 65_536)


@pytest.mark.parametrize("status", [200, 201, 202, 205, 301, 302, 303, 304, 307, 308, 400, 404, 412, 499, 500, 503])
async def test_only_status_204_of_the_owners_agent_is_a_release(status: int) -> None:
    async with a_leader() as (cluster, leader):
        broker, bundle = await _start_owner(cluster, leader)
        other = await cluster.a_broker("b2:8080")
        broker.status, broker.location, name = status, other.url, BundleName.parse(bundle)
        unload = asyncio.create_task(leader.unload(bundle, other.registration))
        await eventually(
            lambda: len(broker.unloads) > 1, what="the answer was no release, and the owner is asked again"
        )
        assert leader.ownership(bundle).state is OwnershipState.RELEASING
        assert leader.ownership(bundle).owner == broker.registration
        await leader.node.executor.cancel(name)
        with pytest.raises(UnloadCancelledError):
            await unload
        assert other.unloads == [], "the redirect is not followed"


async def test_failing_owner_is_retried() -> None:
    async with a_leader() as (cluster, leader):
        broker, bundle = await _start_owner(cluster, leader)
        broker.status = 503
        unload = asyncio.create_task(leader.unload(bundle))
        await eventually(lambda: len(broker.unloads) >= 2)
        broker.status = 204
        await unload
        assert leader.ownership(bundle).state is OwnershipState.FREE


@pytest.mark.parametrize(
    "url", ["", "garbage", "ftp://b1:1", "http://", "http://[", "http://b1:99999999", f"http://{'x' * 300}:1", "closed"]
)
async def test_unusable_agent_url_fails_the_unload_only(url: str) -> None:
    async with a_leader(namespace_bundle_unloading_timeout_ms=50) as (cluster, leader):
        broker, bundle = await _start_owner(cluster, leader)
        url = f"http://127.0.0.1:{closed_port()}" if url == "closed" else url
        protocols = {AGENT_PROTOCOL: url}
        await broker.report({**broker.record, "protocols": protocols})
        await eventually(
            lambda: leader.node.mirror.brokers[broker.registration.broker].record.get("protocols") == protocols
        )
        with pytest.raises(UnloadFailedError, match="stays with b1:8080"):
            await leader.unload(bundle)
        assert not leader.node.failure.done()


async def test_broker_without_an_agent_is_not_asked() -> None:
    async with a_leader(namespace_bundle_unloading_timeout_ms=50) as (cluster, leader):
        broker, bundle = await _start_owner(cluster, leader)
        url = leader.node.mirror.brokers[broker.registration.broker].command_url
        await broker.report({**broker.record, "protocols": {}, "webServiceUrl": url or ""})
        await eventually(lambda: not leader.node.mirror.brokers[broker.registration.broker].record.get("protocols"))
        with pytest.raises(UnloadFailedError, match="names no URL to call"):
            await leader.unload(bundle)
        assert not broker.unloads


async def test_lookup_during_an_unload_waits_for_its_end() -> None:
    async with a_leader() as (cluster, leader):
        broker, bundle = await _start_owner(cluster, leader)
        target = await cluster.a_broker("b2:8080")
        broker.may_answer.clear()
        unload = asyncio.create_task(leader.unload(bundle, target.registration))
        await eventually(lambda: broker.unloads)
        lookup = asyncio.create_task(leader.node.lookups.lookup(TOPIC))
        broker.may_answer.set()
        assert (await lookup).registration == target.registration
        await unload


async def test_second_unload_of_a_bundle_joins_the_first() -> None:
    async with a_leader() as (cluster, leader):
        broker, bundle = await _start_owner(cluster, leader)
        broker.may_answer.clear()
        first = asyncio.create_task(leader.unload(bundle))
        await eventually(lambda: broker.unloads)
        second = asyncio.create_task(leader.unload(bundle))
        broker.may_answer.set()
        await asyncio.gather(first, second)
        asked = {headers[BUNDLE_VERSION_HEADER] for _, headers in broker.unloads}
        assert asked == {"2"}, "one release, however often the owner had to be asked for it"
        assert leader.ownership(bundle).version == 3


async def test_consecutive_unloads_are_all_executed() -> None:
    async with a_leader() as (cluster, leader):
        broker, bundle = await _start_owner(cluster, leader)
        for round_number in range(5):
            await leader.node.lookups.lookup(TOPIC)
            await leader.unload(bundle)
            asked = {headers[BUNDLE_VERSION_HEADER] for _, headers in broker.unloads}
            assert len(asked) == round_number + 1, "one release a round, however often the owner had to be asked for it"
        assert leader.ownership(bundle).version == 1 + 5 * 2 + 4


async def test_concurrent_unloads_are_limited() -> None:
    async with a_leader(max_concurrent_unloads=2) as (cluster, leader):
        broker = await cluster.a_broker("b1:8080")
        bundles = await cluster.a_namespace("t/ns", bundles={"numBundles": 5})
        await asyncio.gather(*(leader.node.assigner.request(bundle) for bundle in bundles))
        broker.may_answer.clear()
        unload = asyncio.create_task(leader.node.bundles.unload_namespace(BundleName.parse(bundles[0]).namespace))
        await eventually(lambda: len(broker.unloads) == 2)
        states = [leader.ownership(bundle).state for bundle in bundles]
        assert states.count(OwnershipState.RELEASING) == 2
        broker.may_answer.set()
        await unload
        assert len(broker.unloads) == 5


async def test_stale_step_is_refused_and_counted() -> None:
    async with a_leader() as (cluster, leader):
        broker, bundle = await _start_owner(cluster, leader)
        other = await cluster.a_broker("b2:8080")
        step = Unload(bundle, other.registration, broker.registration, OverloadReason.BROKER_OVERLOADED)
        await leader.node.executor.execute(step)
        assert leader.node.executor.stale_steps == 1
        assert broker.unloads == []


async def test_step_for_a_vanished_bundle_is_skipped() -> None:
    async with a_leader() as (cluster, leader):
        broker, _ = await _start_owner(cluster, leader)
        step = Unload("t/gone/0x00000000_0xffffffff", broker.registration, None, OverloadReason.BROKER_OVERLOADED)
        await leader.node.executor.execute(step)
        assert leader.node.executor.unloads_completed == 0


async def test_unload_interrupted_by_the_end_of_the_term_is_finished_in_the_next() -> None:
    async with a_leader() as (cluster, leader):
        broker, bundle = await _start_owner(cluster, leader)
        broker.may_answer.clear()
        unload = asyncio.create_task(leader.unload(bundle))
        await eventually(lambda: broker.unloads)
        await cluster.store.commit([Put(paths.EPOCH, b"another"), Delete(paths.LEADER)])
        with pytest.raises(NotLeaderError):
            await unload
        broker.may_answer.set()
        await eventually(lambda: leader.ownership(bundle).state is OwnershipState.FREE)
        assert leader.ownership(bundle).epoch == 3
        assert broker.unloads[-1][1][EPOCH_HEADER] == "3"


async def test_release_ended_by_another_client_is_not_ended_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_leader(**UNHURRIED) as (cluster, leader):
        broker, bundle = await _start_owner(cluster, leader)
        broker.status = 503
        name = BundleName.parse(bundle)
        unload = asyncio.create_task(leader.node.executor.unload(name, None, OwnershipReason.ADMIN_UNLOAD))
        await eventually(lambda: broker.unloads)
        await leader.node.ledger.apply("t/ns", name.range, complete, "another hand")
        the_next_refusal_is_the_last(monkeypatch)
        outcome = await asyncio.gather(unload, return_exceptions=True)
        assert isinstance(outcome[0], Exception)
        assert "is over" in str(outcome[0])
        assert leader.ownership(bundle).version == 3


async def test_limit_per_broker_does_not_delay_other_brokers() -> None:
    async with a_leader(max_concurrent_unloads=8, max_concurrent_unloads_per_broker=2) as (cluster, leader):
        busy, other = await cluster.a_broker("b1:8080"), await cluster.a_broker("b2:8080")
        bundles = await cluster.a_namespace("t/ns", bundles={"numBundles": 8})
        await asyncio.gather(*(leader.node.assigner.request(bundle) for bundle in bundles))
        steps = [Unload(bundle, _owner(leader, bundle), None, OverloadReason.BROKER_OVERLOADED) for bundle in bundles]
        steps.sort(key=lambda step: step.source.broker)  # steps of b1 first
        busy.may_answer.clear()
        shedding = asyncio.create_task(leader.node.executor.execute_all((step, []) for step in steps))
        await eventually(lambda: len(other.unloads) == 4)
        assert len(busy.unloads) == 2
        busy.may_answer.set()
        await shedding
        assert len(busy.unloads) == 4


async def test_queued_step_does_not_begin_after_its_batch_is_cancelled() -> None:
    async with a_leader(max_concurrent_unloads=1) as (cluster, leader):
        broker = await cluster.a_broker("b1:8080")
        bundles = await cluster.a_namespace("t/ns", bundles={"numBundles": 2})
        await asyncio.gather(*(leader.node.assigner.request(bundle) for bundle in bundles))
        steps = [Unload(each, broker.registration, None, OverloadReason.BROKER_OVERLOADED) for each in bundles]
        broker.may_answer.clear()
        executor, batch = leader.node.executor, Batch()
        shedding = asyncio.create_task(executor.execute_all(((step, []) for step in steps), batch))
        await eventually(lambda: broker.unloads and executor._moves.is_waiting(bundles[1]))
        executor.cancel_batch(batch)
        broker.may_answer.set()
        await shedding
        assert len(broker.unloads) == 1


async def test_queued_step_is_checked_again_before_it_begins() -> None:
    async with a_leader(max_concurrent_unloads=1) as (cluster, leader):
        broker = await cluster.a_broker("b1:8080")
        first, second = await cluster.a_namespace("t/ns", bundles={"numBundles": 2})
        await asyncio.gather(*(leader.node.assigner.request(bundle) for bundle in (first, second)))
        other = await cluster.a_broker("b2:8080")
        broker.may_answer.clear()
        steps = [
            Unload(bundle, broker.registration, None, OverloadReason.BROKER_OVERLOADED) for bundle in (first, second)
        ]
        shedding = asyncio.create_task(leader.node.executor.execute_all((step, []) for step in steps))
        await eventually(lambda: broker.unloads)
        await _change_owner(leader, second, other.registration)
        broker.may_answer.set()
        await shedding
        assert leader.node.executor.stale_steps == 1
        assert leader.ownership(second).owner == other.registration


async def test_unload_to_a_lost_destination_does_not_begin() -> None:
    async with a_leader() as (cluster, leader):
        broker, bundle = await _start_owner(cluster, leader)
        gone = Registration(BrokerId("b9:8080"), 1)
        with pytest.raises(IllegalTransitionError, match=r"b9:8080 .* left while"):
            await leader.unload(bundle, gone)
        assert (leader.ownership(bundle).owner, leader.ownership(bundle).version) == (broker.registration, 1)


async def test_cancelled_unload_keeps_the_owner_at_a_higher_version() -> None:
    async with a_leader(**UNHURRIED) as (cluster, leader):
        broker, bundle = await _start_owner(cluster, leader)
        broker.may_answer.clear()
        name = BundleName.parse(bundle)
        unload = asyncio.create_task(leader.unload(bundle))
        await eventually(lambda: broker.unloads)
        await leader.node.executor.cancel(name)
        with pytest.raises(UnloadCancelledError, match="stays with b1:8080: it was cancelled"):
            await unload
        kept = leader.ownership(bundle)
        assert (kept.state, kept.owner, kept.version) == (OwnershipState.OWNED, broker.registration, 3)
        assert kept.reason == "unload_cancelled"
        (entry,) = [e for e in leader.node.decision_log.recent(10, bundle) if e["kind"] == "unload_cancelled"]
        assert entry["why"] == {"error": "cancelled by an operator"}
        broker.may_answer.set()
        assert (await leader.node.lookups.lookup(TOPIC)).registration == broker.registration


async def test_unload_between_two_requests_is_cancelled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(move_machine, "_FIRST_PAUSE_S", 120.0)
    monkeypatch.setattr(move_machine, "_LONGEST_PAUSE_S", 120.0)
    async with a_leader(namespace_bundle_unloading_timeout_ms=600_000) as (cluster, leader):
        broker, bundle = await _start_owner(cluster, leader)
        broker.status = 503
        name = BundleName.parse(bundle)
        unload = asyncio.create_task(leader.unload(bundle))
        await eventually(lambda: broker.unloads)
        async with asyncio.timeout(patience()):
            await leader.node.executor.cancel(name)
        with pytest.raises(UnloadCancelledError):
            await unload
        assert leader.ownership(bundle).owner == broker.registration


async def test_release_of_a_former_term_can_be_cancelled() -> None:
    async with a_leader() as (cluster, leader):
        broker, bundle = await _start_owner(cluster, leader)
        broker.may_answer.clear()
        unload = asyncio.create_task(leader.unload(bundle))
        await eventually(lambda: broker.unloads)
        await leader.node.executor.abort()
        with pytest.raises(NotLeaderError):
            await unload
        await leader.node.executor.cancel(BundleName.parse(bundle))
        assert leader.ownership(bundle).owner == broker.registration


async def test_queued_unload_is_cancelled_without_a_write() -> None:
    async with a_leader(max_concurrent_unloads=1) as (cluster, leader):
        broker = await cluster.a_broker("b1:8080")
        first, second = await cluster.a_namespace("t/ns", bundles={"numBundles": 2})
        await asyncio.gather(*(leader.node.assigner.request(bundle) for bundle in (first, second)))
        broker.may_answer.clear()
        unloads = [asyncio.create_task(leader.unload(bundle)) for bundle in (first, second)]
        await eventually(lambda: broker.unloads)
        await leader.node.executor.cancel(BundleName.parse(second))
        broker.may_answer.set()
        await unloads[0]
        with pytest.raises(UnloadCancelledError, match="cancelled before it began"):
            await unloads[1]
        assert leader.ownership(second).version == 1


async def test_cancel_without_an_unload_is_refused() -> None:
    async with a_leader() as (cluster, leader):
        _, bundle = await _start_owner(cluster, leader)
        with pytest.raises(NoUnloadError, match="no unload of t/ns/0x00000000_0xffffffff is under way: it is Owned"):
            await leader.node.executor.cancel(BundleName.parse(bundle))


async def test_cancel_after_the_owner_is_lost_is_refused() -> None:
    async with a_leader() as (cluster, leader):
        broker, bundle = await _start_owner(cluster, leader)
        broker.may_answer.clear()
        name = BundleName.parse(bundle)
        unload = asyncio.create_task(leader.unload(bundle))
        await eventually(lambda: broker.unloads)
        leader.node.mirror.drop_broker(broker.registration.broker)
        with pytest.raises(NoUnloadError, match="too late"):
            await leader.node.executor.cancel(name)
        await unload
        broker.may_answer.set()


def _owner(leader: RunningNode, bundle: str) -> Registration:
    owner = leader.ownership(bundle).owner
    assert owner is not None
    return owner


async def _change_owner(leader: RunningNode, bundle: str, to: Registration) -> None:
    """Write another owner into the record, as if the bundle had moved."""
    name = BundleName.parse(bundle)

    def let_go(current: Ownership, stamp: Stamp) -> Ownership:
        return release(current, to, stamp)

    for step in (let_go, complete):
        await leader.node.ledger.apply(str(name.namespace), name.range, step, "test")


async def test_withdraw_of_a_bundle_without_a_queued_move_is_refused() -> None:
    async with a_leader(max_concurrent_unloads=1) as (cluster, leader):
        broker = await cluster.a_broker("b1:8080")
        bundles = await cluster.a_namespace("t/ns", bundles={"numBundles": 3})
        await asyncio.gather(*(leader.node.assigner.request(bundle) for bundle in bundles))
        broker.may_answer.clear()
        executor, names = leader.node.executor, [BundleName.parse(bundle) for bundle in bundles]
        unloads = [asyncio.create_task(executor.unload(name, None, OwnershipReason.ADMIN_UNLOAD)) for name in names[:2]]
        await eventually(lambda: broker.unloads)
        executor._moves._limiter._limits = lambda: (9, 9)  # an operator raises the limit
        assert not executor.withdraw(bundles[2])
        broker.may_answer.set()
        await asyncio.gather(*unloads)


@pytest.mark.usefixtures("patient")
async def test_destination_prepares_while_the_owner_has_the_bundle() -> None:
    async with a_leader() as (cluster, leader):
        owner, bundle = await _start_owner(cluster, leader)
        owner.topics[str(TOPIC)] = (0.0, 0.0, 0.0, 0.0)
        target = await cluster.a_broker("b2:8080")
        target.may_answer_prepares.clear()
        move = asyncio.create_task(leader.unload(bundle, target.registration))
        await eventually(lambda: target.prepared)
        assert [(each.bundle, each.topics) for each in target.prepared] == [(bundle, [str(TOPIC)])]
        assert (leader.ownership(bundle).state, owner.unloads) == (OwnershipState.OWNED, [])
        target.may_answer_prepares.set()
        assert (await move).owner == target.registration
        ((_, headers),) = owner.unloads
        assert headers[DESTINATION_HEADER] == target.broker_id


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(("status", "times"), [(204, 2), (500, 2), (404, 1), (405, 1), (501, 1)])
async def test_destination_without_warm_up_gets_bundles(status: int, times: int) -> None:
    async with a_leader() as (cluster, leader):
        owner, bundle = await _start_owner(cluster, leader)
        target = await cluster.a_broker("b2:8080")
        target.prepare_status = status
        assert (await leader.unload(bundle, target.registration)).owner == target.registration
        assert (await leader.unload(bundle, owner.registration)).owner == owner.registration
        assert (await leader.unload(bundle, target.registration)).owner == target.registration
        assert len(target.prepared) == times


async def test_silent_destination_or_owner_delays_preparation_only_briefly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(executor_module, "PREPARE_S", 0.05)
    async with a_leader() as (cluster, leader):
        owner, bundle = await _start_owner(cluster, leader)
        target = await cluster.a_broker("b2:8080")
        target.may_answer_prepares.clear()
        assert (await leader.unload(bundle, target.registration)).owner == target.registration
        owner.topics_status = target.topics_status = 503
        assert (await leader.unload(bundle, owner.registration)).owner == owner.registration
        assert owner.prepared == [], "its topics were unknown"


@pytest.mark.usefixtures("patient")
async def test_prepare_request_names_as_many_topics_as_fit() -> None:
    async with a_leader() as (cluster, leader):
        owner, bundle = await _start_owner(cluster, leader)
        names = [f"persistent://t/ns/{number:05}-{'x' * 170}" for number in range(2_000)]
        owner.topics = dict.fromkeys(names, (0.0, 0.0, 0.0, 0.0))
        target = await cluster.a_broker("b2:8080")
        await leader.unload(bundle, target.registration)
        (told,) = target.prepared
        assert told.topics == names[: len(told.topics)]
        assert 180_000 < len(told.to_json()) < 200_000
