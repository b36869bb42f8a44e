from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
import structlog
from support.nodes import (
    Cluster,
    FakeAgent,
    RunningNode,
    a_leader,
    in_memory,
    the_next_refusal_is_the_last,
)
from support.registrations import a_record, load_of, register, write
from support.waiting import eventually

from loadmanager.core.domain.controls import Controls, DrainOrder
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import OwnershipState
from loadmanager.core.domain.plan import Plan
from loadmanager.core.protocol import drain_machine
from loadmanager.errors import BrokerNotFoundError
from loadmanager.store import paths
from loadmanager.wire.control_records import encode_controls


async def owned_by_b1(cluster: Cluster, leader: RunningNode, bundles: int = 8) -> tuple[FakeAgent, list[str]]:
    """Start b1, which owns all bundles of a namespace."""
    broker = await cluster.a_broker("b1:8080")
    names = await cluster.a_namespace("t/ns", bundles={"numBundles": bundles})
    await asyncio.gather(*(leader.node.assigner.request(name) for name in names))
    return broker, names


def owners(node: RunningNode, bundles: Sequence[str]) -> list[str | None]:
    found = [node.ownership(bundle) for bundle in bundles]
    return [o.owner.broker if o.owner and o.state is OwnershipState.OWNED else None for o in found]


async def test_drained_broker_loses_all_bundles_and_gets_none_until_lifted() -> None:
    async with a_leader() as (cluster, leader):
        broker, bundles = await owned_by_b1(cluster, leader)
        for name in ("b2:8080", "b3:8080"):
            await cluster.a_broker(name)
        begun = await leader.put("/loadbalance/v1/brokers/b1:8080/drain")
        assert (begun.status, begun.json()["state"], begun.json()["bundlesLeft"]) == (202, "draining", 8)
        await eventually(lambda: leader.node.drains.progress(broker.registration.broker).state == "done")
        assert sorted(filter(None, owners(leader, bundles))) == ["b2:8080"] * 4 + ["b3:8080"] * 4
        done = (await leader.get("/loadbalance/v1/brokers/b1:8080/drain")).json()
        assert (done["state"], done["bundlesLeft"], done["moved"], done["failed"], done["etaS"]) == ("done", 0, 8, 0, 0)
        assert all(leader.ownership(bundle).reason == "drain" for bundle in bundles)
        for name in ("b2:8080", "b3:8080"):
            assert (await leader.put(f"/loadbalance/v1/brokers/{name}/exclusion")).status == 204
        (another,) = await cluster.a_namespace("t/other", bundles={"numBundles": 1})
        assert (await leader.lookup("persistent://t/other/x")).status == 503
        assert (await leader.ask("DELETE", "/loadbalance/v1/brokers/b1:8080/drain")).status == 204
        assert (await leader.lookup("persistent://t/other/x")).status == 200
        assert owners(leader, [another]) == ["b1:8080"]
        assert (await leader.get("/loadbalance/v1/brokers/b1:8080/drain")).reason == (
            "broker b1:8080 is not being drained"
        )


async def test_heaviest_bundles_leave_first() -> None:
    async with a_leader(max_concurrent_unloads=1) as (cluster, leader):
        broker, bundles = await owned_by_b1(cluster, leader, bundles=4)
        loads = dict(zip(bundles, (2.0, 9.0, 1.0, 5.0), strict=True))
        await broker.report(a_record("b1:8080", {b: load_of(m) for b, m in loads.items()}, agent_url=broker.url))
        await eventually(lambda: leader.node.planner.snapshot().bundles.movable.sum() == 4)
        await cluster.a_broker("b2:8080")
        await leader.put("/loadbalance/v1/brokers/b1:8080/drain")
        await eventually(lambda: len(broker.unloads) == 4)
        left = [path.removeprefix("/admin/v2/namespaces/").removesuffix("/unload") for path, _ in broker.unloads]
        assert [loads[bundle] for bundle in left] == [9.0, 5.0, 2.0, 1.0]


async def test_unload_limits_apply_to_drains() -> None:
    async with a_leader(max_concurrent_unloads=8, max_concurrent_unloads_per_broker=3) as (cluster, leader):
        broker, bundles = await owned_by_b1(cluster, leader)
        for name in ("b2:8080", "b3:8080"):
            await cluster.a_broker(name)
        broker.may_answer.clear()
        await leader.put("/loadbalance/v1/brokers/b1:8080/drain")
        await eventually(lambda: len(broker.unloads) == 3)
        states = [leader.ownership(bundle).state for bundle in bundles]
        assert states.count(OwnershipState.RELEASING) == 3
        progress = leader.node.drains.progress(broker.registration.broker)
        assert (progress.state, progress.bundles_left, progress.eta_s) == ("draining", 8, None)
        broker.may_answer.set()
        await eventually(lambda: leader.node.drains.progress(broker.registration.broker).state == "done")


async def test_bundle_without_another_broker_blocks_the_drain_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain_machine, "REST_S", 0.05)
    monkeypatch.setattr(drain_machine, "PAUSE_S", 0.05)
    async with a_leader() as (cluster, leader):
        _, bundles = await owned_by_b1(cluster, leader, bundles=2)
        await leader.put("/loadbalance/v1/brokers/b1:8080/drain")
        await eventually(lambda: leader.node.drains.progress(BrokerId("b1:8080")).state == "blocked")
        progress = (await leader.get("/loadbalance/v1/brokers/b1:8080/drain")).json()
        assert [entry["bundle"] for entry in progress["blocked"]] == bundles
        assert progress["blocked"][0]["why"].startswith("No move because none of the other of 1 registered brokers")
        assert progress["etaS"] is None
        await cluster.a_broker("b2:8080")
        await eventually(lambda: owners(leader, bundles) == ["b2:8080"] * 2)


async def test_unreleased_bundle_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain_machine, "REST_S", 0.05)
    monkeypatch.setattr(drain_machine, "PAUSE_S", 0.05)
    the_next_refusal_is_the_last(monkeypatch)
    async with a_leader() as (cluster, leader):
        broker, bundles = await owned_by_b1(cluster, leader, bundles=1)
        await cluster.a_broker("b2:8080")
        broker.status = 503
        await leader.put("/loadbalance/v1/brokers/b1:8080/drain")
        await eventually(lambda: leader.node.drains.progress(BrokerId("b1:8080")).failed >= 2)
        (blocked,) = leader.node.drains.progress(BrokerId("b1:8080")).blocked
        assert "answered 503" in blocked.why
        broker.status = 204
        await eventually(lambda: owners(leader, bundles) == ["b2:8080"])


async def test_cancelled_drain_begins_no_further_move() -> None:
    async with a_leader(max_concurrent_unloads=1) as (cluster, leader):
        broker, bundles = await owned_by_b1(cluster, leader)
        await cluster.a_broker("b2:8080")
        broker.may_answer.clear()
        await leader.put("/loadbalance/v1/brokers/b1:8080/drain")
        await eventually(lambda: broker.unloads)
        await leader.ask("DELETE", "/loadbalance/v1/brokers/b1:8080/drain")
        await eventually(lambda: len(leader.node.drains._drains._moving) == 1)
        broker.may_answer.set()
        await eventually(lambda: not leader.node.drains._drains._moving)
        assert sorted(filter(None, owners(leader, bundles))) == ["b1:8080"] * 7 + ["b2:8080"]
        assert len(broker.unloads) == 1


async def comes_back(cluster: Cluster, broker: FakeAgent, started_ms: int) -> None:
    """Register again, as a process that was started then."""
    broker.store = await cluster.connect()
    broker.record["startTimestamp"] = started_ms
    broker.registration = await register(broker.store, broker.registration.broker, broker.record)


async def test_drain_survives_a_lost_session_and_ends_with_a_new_process() -> None:
    async with a_leader() as (cluster, leader):
        drain, broker_id = "/loadbalance/v1/brokers/b1:8080/drain", BrokerId("b1:8080")
        broker = await cluster.a_broker("b1:8080", a_record("b1:8080") | {"startTimestamp": 1_000})
        await leader.put(drain)
        await eventually(lambda: leader.node.drains._drains.find(broker_id))
        await broker.leave()
        await eventually(lambda: broker_id not in leader.node.mirror.registrations)
        away = await leader.get(drain)
        assert (away.status, away.json()["state"], away.json()["bundlesLeft"]) == (200, "done", 0)
        assert (await leader.put(drain)).json()["since"] == away.json()["since"], "it is being drained already"
        await comes_back(cluster, broker, 1_000)
        drained = leader.node.drains._drains.find
        await eventually(lambda: (found := drained(broker_id)) and found.registration == broker.registration)
        await cluster.a_namespace("t/ns", bundles={"numBundles": 1})
        assert (await leader.lookup("persistent://t/ns/x")).status == 503, "no other broker is there"
        await broker.leave()
        await comes_back(cluster, broker, 2_000)
        await eventually(lambda: not leader.node.mirror.operator_config.controls.draining)
        assert (await leader.lookup("persistent://t/ns/x")).status == 200
        await eventually(lambda: any(e["kind"] == "drain" and e["acted"] for e in leader.node.decision_log.recent(100)))
        (entry,) = [e for e in leader.node.decision_log.recent(100, "b1:8080") if e["kind"] == "drain" and e["acted"]]
        assert entry["sentence"] == "Drain ended because another process of the broker has registered"
        await broker.leave()


async def test_drain_with_return_gives_bundles_back_after_a_restart() -> None:
    async with a_leader() as (cluster, leader):
        drain, broker_id = "/loadbalance/v1/brokers/b1:8080/drain", BrokerId("b1:8080")
        broker, bundles = await owned_by_b1(cluster, leader)
        await broker.report(a_record("b1:8080", agent_url=broker.url) | {"startTimestamp": 1_000})
        await eventually(lambda: leader.node.mirror.process_of(broker_id) == 1_000)
        await cluster.a_broker("b2:8080")
        assert (await leader.put(f"{drain}?andReturn=true")).status == 202
        await eventually(lambda: leader.node.drains.progress(broker_id).state == "done")
        await broker.leave()
        await eventually(lambda: broker_id not in leader.node.mirror.registrations)
        await comes_back(cluster, broker, 2_000)
        states: set[str] = set()

        async def is_over() -> bool:
            found = await leader.get(drain)
            states.update([found.json()["state"]] if found.status == 200 else [])
            return found.status == 404

        await eventually(is_over)
        assert owners(leader, bundles) == ["b1:8080"] * len(bundles)
        assert "returning" in states
        assert {leader.ownership(bundle).reason for bundle in bundles} == {"returned_after_drain"}
        await broker.leave()


async def test_drain_without_start_times_ends_with_a_new_registration() -> None:
    async with a_leader() as (cluster, leader):
        broker, _ = await owned_by_b1(cluster, leader)
        await leader.put("/loadbalance/v1/brokers/b1:8080/drain")
        await eventually(lambda: leader.node.drains._drains.find(broker.registration.broker))
        await broker.leave()
        await comes_back(cluster, broker, 0)
        await eventually(lambda: not leader.node.mirror.operator_config.controls.draining)
        await broker.leave()


async def test_leader_survives_the_end_of_a_drain_with_unreadable_controls() -> None:
    async with a_leader() as (cluster, leader):
        broker, _ = await owned_by_b1(cluster, leader)
        await leader.put("/loadbalance/v1/brokers/b1:8080/drain")
        await eventually(lambda: leader.node.drains._drains.find(broker.registration.broker))
        await write(cluster.store, paths.CONTROLS, b"garbage")
        await eventually(lambda: paths.CONTROLS in leader.node.mirror.faults)
        with structlog.testing.capture_logs() as logs:
            await broker.leave()
            await comes_back(cluster, broker, 2_000)
            await eventually(lambda: "drain_not_ended" in [entry["event"] for entry in logs])
        assert leader.leads
        draining = {BrokerId("b1:8080"): DrainOrder(5.0, 1_000)}
        await write(cluster.store, paths.CONTROLS, encode_controls(Controls(draining=draining)))
        await eventually(lambda: leader.node.mirror.operator_config.controls == Controls())
        await broker.leave()


async def test_planning_error_ends_neither_drain_nor_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain_machine, "PAUSE_S", 0.02)
    async with a_leader() as (cluster, leader):
        _, bundles = await owned_by_b1(cluster, leader, bundles=2)
        await cluster.a_broker("b2:8080")
        plan_drain, planned = leader.node.planner.drain, 0

        async def drain(brokers: list[BrokerId], most: int, leave: frozenset[str]) -> Plan:
            nonlocal planned
            planned += 1
            if planned == 1:
                raise ZeroDivisionError
            return await plan_drain(brokers, most, leave)

        monkeypatch.setattr(leader.node.planner, "drain", drain)
        with structlog.testing.capture_logs() as logs:
            await leader.put("/loadbalance/v1/brokers/b1:8080/drain")
            await eventually(lambda: owners(leader, bundles) == ["b2:8080"] * 2)
        assert "drain_round_failed" in [entry["event"] for entry in logs]


async def test_new_leader_continues_a_drain() -> None:
    async with Cluster(in_memory()) as cluster:
        leader, standby = await cluster.start_nodes(2, max_concurrent_unloads=2)
        broker, bundles = await owned_by_b1(cluster, leader)
        await cluster.a_broker("b2:8080")
        broker.may_answer.clear()
        await standby.put("/loadbalance/v1/brokers/b1:8080/drain")
        await eventually(lambda: len(broker.unloads) == 2)
        await leader.node.stop()
        await eventually(lambda: standby.leads)
        broker.may_answer.set()
        await eventually(lambda: owners(standby, bundles) == ["b2:8080"] * 8)
        await eventually(lambda: standby.node.drains.progress(broker.registration.broker).state == "done")
        assert (await standby.get("/loadbalance/v1/brokers/b1:8080/drain")).json()["state"] == "done"


async def test_only_a_registered_broker_can_be_drained() -> None:
    async with a_leader() as (cluster, leader):
        await cluster.a_broker("b1:8080")
        for method in ("PUT", "GET"):
            refused = await leader.ask(method, "/loadbalance/v1/brokers/b9:8080/drain")
            assert (refused.status, refused.reason) == (404, "broker 'b9:8080' is not registered; known: b1:8080")
        assert (await leader.ask("DELETE", "/loadbalance/v1/brokers/b9:8080/drain")).status == 204
        with pytest.raises(BrokerNotFoundError, match="b1:8080 is not being drained"):
            leader.node.drains.progress(BrokerId("b1:8080"))


async def test_concurrent_drain_requests_start_one_drain() -> None:
    async with a_leader() as (cluster, leader):
        broker = await cluster.a_broker("b1:8080")
        first, second = await asyncio.gather(*(leader.node.drains.start(broker.registration.broker) for _ in range(2)))
        assert first.since == second.since


async def test_pinned_bundle_moves_home_when_its_broker_registers() -> None:
    async with a_leader() as (cluster, leader):
        _, bundles = await owned_by_b1(cluster, leader, bundles=2)
        await leader.node.operators.update_controls(
            lambda controls: replace(controls, pinned={bundles[1]: BrokerId("b2:8080")})
        )
        await cluster.a_broker("b2:8080")
        await eventually(lambda: owners(leader, bundles) == ["b1:8080", "b2:8080"])
        assert leader.ownership(bundles[1]).reason == "pinned_to_broker"


async def test_pinned_bundle_does_not_move_to_an_excluded_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain_machine, "PAUSE_S", 0.02)
    async with a_leader() as (cluster, leader):
        _, bundles = await owned_by_b1(cluster, leader, bundles=1)
        await cluster.a_broker("b2:8080")
        home = BrokerId("b2:8080")
        await leader.node.operators.update_controls(
            lambda controls: replace(controls, pinned={bundles[0]: home}, excluded=frozenset({home}))
        )
        said = "No move because b2:8080 may not own it: broker excluded"
        await eventually(lambda: said in [e["sentence"] for e in leader.node.decision_log.recent(9, bundles[0])])
        assert owners(leader, bundles) == ["b1:8080"]


async def test_drained_broker_gets_its_pinned_bundles_back_afterwards() -> None:
    async with a_leader() as (cluster, leader):
        broker, bundles = await owned_by_b1(cluster, leader, bundles=2)
        await cluster.a_broker("b2:8080")
        await leader.node.operators.update_controls(
            lambda controls: replace(controls, pinned={bundles[0]: broker.registration.broker})
        )
        await leader.put("/loadbalance/v1/brokers/b1:8080/drain")
        await eventually(lambda: owners(leader, bundles) == ["b2:8080"] * 2)
        await leader.ask("DELETE", "/loadbalance/v1/brokers/b1:8080/drain")
        await eventually(lambda: owners(leader, bundles) == ["b1:8080", "b2:8080"])


async def test_cancel_validates_the_bundle_and_works_on_any_node() -> None:
    async with Cluster(in_memory()) as cluster:
        leader, standby = await cluster.start_nodes(2, namespace_bundle_unloading_timeout_ms=360_000)
        broker, bundles = await owned_by_b1(cluster, leader, bundles=1)
        path = "/loadbalance/v1/bundles/{}/unload"
        for bundle, status in (
            ("t/gone/0x00000000_0xffffffff", 404),
            ("t/ns/0x00000000_0x00000001", 412),
            ("t/ns/x", 412),
        ):
            assert (await standby.ask("DELETE", path.format(bundle))).status == status
        broker.may_answer.clear()
        unload = asyncio.create_task(standby.put(f"/admin/v2/namespaces/{bundles[0]}/unload"))
        await eventually(lambda: broker.unloads)
        assert (await standby.ask("DELETE", path.format(bundles[0]))).status == 204
        cancelled = await unload
        assert (cancelled.status, "it was cancelled" in cancelled.reason) == (409, True)
        broker.may_answer.set()
