from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.allocated_arrays import held_arrays
from support.builders import broker, bundle, report, throughput
from support.delays import a_memory_cluster
from support.memory_store import MemoryStore
from support.nodes import Cluster, FakeAgent, Reply, RunningNode, a_leader, a_planner, in_memory, settings
from support.registrations import MIB, a_record, load_of, register
from support.waiting import eventually

from loadmanager.core.domain.names import BrokerId, BundleName
from loadmanager.core.domain.ownership import Ownership, Stamp, complete, release
from loadmanager.errors import StoreUnavailableError, UnloadCancelledError
from loadmanager.leader.loops.plan_driver import RequestedPlans
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.store.metadata_store import MetadataStore
from loadmanager.wire.plan_bodies import PlanRequest

PLANS = "/loadbalance/v1/plans"


async def compute(node: RunningNode, **wanted: object) -> dict[str, Any]:
    reply = await node.ask("POST", PLANS, json=wanted)
    assert reply.status == 200, reply
    answer = reply.json()
    assert isinstance(answer, dict)
    return answer


async def execute(node: RunningNode, plan: Mapping[str, Any], query: str = "") -> Reply:
    return await node.ask("POST", f"{PLANS}/{plan['hash']}/execute{query}")


async def two_brokers(
    cluster: Cluster, leader: RunningNode, bundles: int = 4
) -> tuple[FakeAgent, FakeAgent, list[str]]:
    """Start b1, which owns and reports all bundles of a namespace, and b2 with none."""
    first = await cluster.a_broker("b1:8080")
    names = await cluster.a_namespace("t/ns", bundles={"numBundles": bundles})
    await asyncio.gather(*(leader.node.assigner.request(name) for name in names))
    second = await cluster.a_broker("b2:8080")
    loads = {name: load_of(1.0 + number, topics=2) for number, name in enumerate(names)}
    await first.report(a_record("b1:8080", loads, agent_url=first.url, cpu=95))
    await eventually(lambda: leader.node.planner.snapshot().bundles.movable.sum() == bundles)
    return first, second, names


def owners(node: RunningNode, bundles: Sequence[str]) -> list[str | None]:
    found = [node.ownership(bundle).owner for bundle in bundles]
    return [owner.broker if owner else None for owner in found]


def moves(bundles: Sequence[str], destination: str = "b2:8080") -> dict[str, object]:
    return {"kind": "moves", "moves": [{"bundle": bundle, "destination": destination} for bundle in bundles]}


def outcomes(reply: Reply) -> list[str]:
    return [step["outcome"] for step in reply.json()["steps"]]


async def test_requested_moves_are_planned_with_their_effect_and_executed() -> None:
    async with a_leader() as (cluster, leader):
        first, _, bundles = await two_brokers(cluster, leader)
        plan = await compute(leader, **moves(bundles[:3]))
        assert owners(leader, bundles) == ["b1:8080"] * 4
        assert first.unloads == []
        assert plan["state"] == "computed"
        assert [(s["bundle"], s["version"], s["source"], s["destination"]) for s in plan["steps"]] == [
            (bundle, 1, "b1:8080", "b2:8080") for bundle in bundles[:3]
        ]
        assert plan["effect"] == {
            "imbalanceBefore": pytest.approx(2.0),
            "imbalanceAfter": pytest.approx(12 / 10),
            "loadMovedBytesPerS": pytest.approx(12 * MIB),
            "loadMovedPercent": pytest.approx(60.0),
            "bundlesMoved": 3,
            "clientsDisturbed": 12,
        }
        assert plan["brokers"]["id"] == ["b1:8080", "b2:8080"]
        assert plan["brokers"]["before"] == pytest.approx([20 * MIB, 0.0])
        assert plan["brokers"]["after"] == pytest.approx([8 * MIB, 12 * MIB])
        assert sum(step["loadBytesPerS"] for step in plan["steps"]) == pytest.approx(12 * MIB)
        assert [step["clients"] for step in plan["steps"]] == [4, 4, 4]
        done = await execute(leader, plan)
        assert (done.status, done.json()["executed"], outcomes(done)) == (200, 3, ["done"] * 3)
        assert owners(leader, bundles) == ["b2:8080"] * 3 + ["b1:8080"]
        assert leader.ownership(bundles[0]).reason == "plan_executed"
        assert (await leader.get(f"{PLANS}/{plan['hash']}")).json()["state"] == "executed"
        (listed,) = (await leader.get(PLANS)).json()["plans"]
        assert (listed["hash"], listed["state"], listed["bundlesMoved"], listed["done"]) == (
            plan["hash"],
            "executed",
            3,
            3,
        )
        assert (listed["imbalanceBefore"], listed["reason"]) == (plan["effect"]["imbalanceBefore"], None)


async def test_plan_has_a_certificate() -> None:
    async with a_leader() as (cluster, leader):
        _, _, bundles = await two_brokers(cluster, leader)
        plan = await compute(leader, **moves(bundles[:3]))
        certificate = plan["certificate"]
        assert certificate["heatBefore"] == pytest.approx(2.0)
        assert certificate["bound"] >= 1 - 1e-6
        assert certificate["gap"] == pytest.approx(certificate["heatAfter"] / certificate["bound"])
        assert certificate["loadMovedPercent"] == pytest.approx(60.0)
        assert 0 < certificate["leastLoadPercent"] < 60
        assert "best possible 1" in certificate["sentence"]


@pytest.mark.parametrize("kind", ["shed", "drain"])
async def test_rounds_and_drains_have_certificates(kind: str) -> None:
    async with a_leader(load_balancer_load_shedding_strategy="OverloadShedder") as (cluster, leader):
        await two_brokers(cluster, leader)
        plan = await compute(leader, kind=kind, **({"broker": "b1:8080"} if kind == "drain" else {}))
        assert plan["steps"]
        assert plan["certificate"]["bundlesMoved"] == len(plan["steps"])
        assert plan["certificate"]["gap"] >= 1


async def test_clients_are_those_of_the_last_accepted_report() -> None:
    async with a_leader() as (cluster, leader):
        first, _, bundles = await two_brokers(cluster, leader)
        crowded = load_of(1.0)
        crowded["consumerCount"] = 1000
        record = a_record("b1:8080", dict.fromkeys(bundles, crowded), agent_url=first.url, cpu=95)
        await first.report({**record, "lastUpdate": 1_700_000_000_000})
        await eventually(lambda: leader.node.mirror.gate.find_fault(BrokerId("b1:8080")) is not None)
        assert (await compute(leader, **moves(bundles[:3])))["effect"]["clientsDisturbed"] == 12


async def test_equal_plans_have_equal_hashes() -> None:
    async with a_leader() as (cluster, leader):
        first, second, bundles = await two_brokers(cluster, leader)
        one, again = await compute(leader, **moves(bundles[:2])), await compute(leader, **moves(bundles[:2]))
        assert one["hash"] == again["hash"]
        assert (await compute(leader, **moves(bundles[:1])))["hash"] != one["hash"]
        for destination in (second.registration, first.registration):
            await leader.unload(bundles[0], destination)
        assert (await compute(leader, **moves(bundles[:2])))["hash"] != one["hash"], "at another version"


async def test_empty_plans_of_two_clusters_have_different_hashes() -> None:
    hashes = set()
    for name in ("east", "west"):
        async with a_leader(cluster_name=name, load_balancer_broker_threshold_shedder_percentage=100) as (
            cluster,
            leader,
        ):
            await two_brokers(cluster, leader)
            plan = await compute(leader, kind="shed")
            assert plan["steps"] == []
            hashes.add(plan["hash"])
    assert len(hashes) == 2


async def test_shed_plan_equals_the_next_round_and_stores_nothing() -> None:
    settings = {"load_balancer_load_shedding_strategy": "OverloadShedder"}
    async with a_leader(**settings) as (cluster, leader):
        _, _, bundles = await two_brokers(cluster, leader)
        before = leader.node.planner.memory
        plan = await compute(leader, kind="shed")
        assert plan["steps"]
        assert plan["effect"]["imbalanceAfter"] < plan["effect"]["imbalanceBefore"]
        assert "b1:8080" in [verdict["subject"] for verdict in plan["verdicts"]]
        assert leader.node.planner.memory == before
        shed = await leader.node.shedding.run_round()
        assert [step.bundle for step in shed.steps] == [step["bundle"] for step in plan["steps"]]
        moved = [step["bundle"] for step in plan["steps"]]
        assert [o for b, o in zip(bundles, owners(leader, bundles), strict=True) if b in moved] == ["b2:8080"]


async def test_drain_plan_empties_the_broker() -> None:
    async with a_leader() as (cluster, leader):
        _, _, bundles = await two_brokers(cluster, leader)
        await cluster.a_broker("b3:8080")
        plan = await compute(leader, kind="drain", broker="b1:8080")
        assert [step["bundle"] for step in plan["steps"]] == bundles[::-1], "heaviest first"
        assert plan["effect"]["imbalanceBefore"] == pytest.approx(2.0), "b1 does not count for the mean"
        assert (await execute(leader, plan)).json()["executed"] == 4
        assert sorted(filter(None, owners(leader, bundles))) == ["b2:8080"] * 2 + ["b3:8080"] * 2


async def test_plan_with_a_stale_step_does_nothing() -> None:
    async with a_leader() as (cluster, leader):
        first, second, bundles = await two_brokers(cluster, leader)
        plan = await compute(leader, **moves(bundles))
        await leader.unload(bundles[3], second.registration)
        refused = await execute(leader, plan)
        assert refused.status == 409
        answer = refused.json()
        assert answer["reason"] == (
            f"nothing was done: {bundles[3]}: it is Owned by {second.registration} at version 3,"
            f" and not owned by {first.registration}"
        )
        assert (answer["executed"], outcomes(refused)) == (0, ["planned"] * 4)
        assert len(first.unloads) == 1
        assert (await leader.get(f"{PLANS}/{plan['hash']}")).json()["state"] == "stopped"


async def test_bundle_that_moved_away_and_back_makes_the_plan_stale() -> None:
    async with a_leader() as (cluster, leader):
        first, second, bundles = await two_brokers(cluster, leader)
        plan = await compute(leader, **moves(bundles[:1]))
        for destination in (second.registration, first.registration):
            await leader.unload(bundles[0], destination)
        assert "it is at version 5, and not at 1" in (await execute(leader, plan)).json()["reason"]


async def test_re_registered_destination_makes_the_plan_stale() -> None:
    async with a_leader() as (cluster, leader):
        _, second, bundles = await two_brokers(cluster, leader)
        plan = await compute(leader, **moves(bundles[:1]))
        assert second.store is not None
        await second.store.close()
        await eventually(lambda: not leader.node.mirror.is_registered(second.registration))
        second.store = await cluster.connect()
        await register(second.store, "b2:8080", second.record)
        await eventually(lambda: "b2:8080" in leader.node.mirror.brokers)
        assert "destination b2:8080 (incarnation" in (await execute(leader, plan)).json()["reason"]
        await second.store.close()


async def test_excluded_destination_makes_the_plan_stale() -> None:
    async with a_leader() as (cluster, leader):
        _, _, bundles = await two_brokers(cluster, leader)
        plan = await compute(leader, **moves(bundles[:1]))
        assert (await leader.put("/loadbalance/v1/brokers/b2:8080/exclusion")).status == 204
        assert "b2:8080 may not own it: broker excluded" in (await execute(leader, plan)).json()["reason"]


async def test_lost_owner_makes_the_plan_stale() -> None:
    async with a_leader() as (cluster, leader):
        first, _, bundles = await two_brokers(cluster, leader)
        plan = await compute(leader, **moves(bundles[:1]))
        leader.node.mirror.drop_broker(first.registration.broker)
        assert f"its owner {first.registration} is gone" in (await execute(leader, plan)).json()["reason"]


async def test_plan_stops_at_the_first_unreleased_bundle() -> None:
    settings = {"max_concurrent_unloads": 1, "namespace_bundle_unloading_timeout_ms": 200}
    async with a_leader(**settings) as (cluster, leader):
        first, _, bundles = await two_brokers(cluster, leader)
        plan = await compute(leader, **moves(bundles))
        first.may_answer.clear()
        executing = asyncio.create_task(execute(leader, plan))
        await eventually(lambda: first.unloads)
        first.status = 503
        first.may_answer.set()
        stopped = await executing
        assert stopped.status == 409
        assert f"stopped at {bundles[0]}: {bundles[0]} stays with b1:8080" in stopped.json()["reason"]
        assert (stopped.json()["executed"], outcomes(stopped)) == (0, ["failed"] + ["not_begun"] * 3)
        assert owners(leader, bundles) == ["b1:8080"] * 4


async def test_queued_steps_do_not_begin_after_a_plan_stops() -> None:
    settings = {"max_concurrent_unloads_per_broker": 1, "namespace_bundle_unloading_timeout_ms": 200}
    async with a_leader(**settings) as (cluster, leader):
        first, _, bundles = await two_brokers(cluster, leader)
        plan = await compute(leader, **moves(bundles))
        first.status = 503
        stopped = await execute(leader, plan)
        assert sorted(outcomes(stopped)) == ["failed", "not_begun", "not_begun", "not_begun"]
        assert len({path for path, _ in first.unloads}) == 1


@pytest.mark.parametrize("lost", ["release", "outcome"])
async def test_step_with_a_lost_answer_counts_as_begun(lost: str) -> None:
    """The outcome is unknown until the store answers or, as here, the term ends."""
    memory = a_memory_cluster()

    async def connect() -> MetadataStore:
        store = MemoryStore(memory, session_timeout_s=1.5)
        await store.start()
        return store

    async with Cluster(connect) as cluster:
        leader = await cluster.start_leader(max_concurrent_unloads=1)
        first, _, bundles = await two_brokers(cluster, leader)
        plan = await compute(leader, **moves(bundles[:2]))
        store = leader.store
        assert isinstance(store, MemoryStore)
        first.may_answer.clear()
        if lost == "release":
            memory.lose_answer(store)
        executing = asyncio.create_task(execute(leader, plan))
        if lost == "outcome":
            await eventually(lambda: first.unloads)
            memory.lose_answer(store)
            first.may_answer.set()
        stopped = await executing
        assert (stopped.status, outcomes(stopped)) == (409, ["unknown", "not_begun"])
        assert "the term ended before the unload did" in stopped.json()["steps"][0]["error"]
        first.may_answer.set()
        memory.heal(store)
        await eventually(lambda: owners(leader, bundles[:2]) == ["b2:8080", "b1:8080"])


async def test_step_with_an_unsent_write_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_leader() as (cluster, leader):
        _, _, bundles = await two_brokers(cluster, leader)
        plan = await compute(leader, **moves(bundles[:1]))

        async def refuse(*_: object, **__: object) -> list[int]:
            raise StoreUnavailableError("no session")

        with monkeypatch.context() as broken:
            broken.setattr(leader.store, "commit", refuse)
            stopped = await execute(leader, plan)
        assert (stopped.status, outcomes(stopped)) == (409, ["not_begun"])
        assert leader.ownership(bundles[0]).version == 1


async def test_step_ended_by_another_client_counts_as_begun() -> None:
    async with a_leader(max_concurrent_unloads=1) as (cluster, leader):
        first, _, bundles = await two_brokers(cluster, leader)
        begun, waiting = await compute(leader, **moves(bundles[:1])), await compute(leader, **moves(bundles[1:2]))
        first.may_answer.clear()
        executing = [asyncio.create_task(execute(leader, plan)) for plan in (begun, waiting)]
        await eventually(lambda: first.unloads and leader.node.executor._moves.is_waiting(bundles[1]))
        other_hand = [(bundles[0], complete), (bundles[1], _released), (bundles[1], complete)]
        for bundle, step in other_hand:
            await leader.node.ledger.apply("t/ns", BundleName.parse(bundle).range, step, "another hand")
        first.may_answer.set()
        assert [outcomes(await each) for each in executing] == [["unknown"], ["not_begun"]]


def _released(current: Ownership, stamp: Stamp) -> Ownership:
    return release(current, None, stamp)


async def test_cancelled_steps_have_their_actual_outcomes() -> None:
    async with a_leader(max_concurrent_unloads=1, namespace_bundle_unloading_timeout_ms=360_000) as (cluster, leader):
        first, _, bundles = await two_brokers(cluster, leader)
        plan = await compute(leader, **moves(bundles[:1]))
        first.may_answer.clear()
        busy = asyncio.create_task(leader.unload(bundles[1]))
        await eventually(lambda: first.unloads)
        executing = asyncio.create_task(execute(leader, plan))
        await eventually(lambda: leader.node.executor.withdraw(bundles[0]))
        assert outcomes(await executing) == ["not_begun"]
        await leader.node.executor.cancel(BundleName.parse(bundles[1]))
        with pytest.raises(UnloadCancelledError):
            await busy
        executing = asyncio.create_task(execute(leader, plan))
        await eventually(lambda: len(first.unloads) > 1)
        await leader.node.executor.cancel(BundleName.parse(bundles[0]))
        assert outcomes(await executing) == ["failed"]
        first.may_answer.set()


async def test_unexpected_error_in_a_step_stops_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_leader(max_concurrent_unloads=1) as (cluster, leader):
        _, _, bundles = await two_brokers(cluster, leader)
        plan = await compute(leader, **moves(bundles[:2]))

        async def unload(*_: object, **__: object) -> Ownership:
            raise ZeroDivisionError("a mistake")

        monkeypatch.setattr(leader.node.executor, "unload", unload)
        stopped = await execute(leader, plan)
        assert (stopped.status, outcomes(stopped)) == (409, ["not_begun"] * 2)
        assert stopped.json()["steps"][0]["error"] == "a mistake"
        assert (await leader.get(f"{PLANS}/{plan['hash']}")).json()["state"] == "stopped"


async def test_error_of_a_step_is_cleared_when_it_succeeds() -> None:
    async with a_leader(max_concurrent_unloads=1) as (cluster, leader):
        first, _, bundles = await two_brokers(cluster, leader)
        plan = await compute(leader, **moves(bundles[:1]))
        first.may_answer.clear()
        busy = asyncio.create_task(leader.unload(bundles[1]))
        await eventually(lambda: first.unloads)
        executing = asyncio.create_task(execute(leader, plan))
        await eventually(lambda: leader.node.executor.withdraw(bundles[0]))
        assert (await executing).json()["steps"][0]["error"].endswith("cancelled before it began")
        first.may_answer.set()
        await busy
        (step,) = (await execute(leader, plan)).json()["steps"]
        assert (step["outcome"], step["error"]) == ("done", None)


async def test_frozen_balancer_executes_no_plan_unless_overridden() -> None:
    async with a_leader() as (cluster, leader):
        first, _, bundles = await two_brokers(cluster, leader)
        plan = await compute(leader, **moves(bundles[:2]))
        await leader.put("/loadbalance/v1/freeze", json={"reason": "incident 4711"})
        refused = await execute(leader, plan)
        assert (refused.status, refused.json()["executed"], outcomes(refused)) == (409, 0, ["planned"] * 2)
        assert refused.json()["reason"] == (
            "nothing was done: the balancer is frozen (incident 4711), so that nothing moves: unfreeze it, or execute"
            " the plan with evenIfFrozen=true"
        )
        assert (await execute(leader, plan, "?evenIfFrozen=perhaps")).status == 400
        assert first.unloads == []
        done = await execute(leader, plan, "?evenIfFrozen=true")
        assert (done.status, outcomes(done)) == (200, ["done"] * 2)


async def test_refused_plan_can_be_executed_after_the_freeze() -> None:
    async with a_leader() as (cluster, leader):
        _, _, bundles = await two_brokers(cluster, leader)
        plan = await compute(leader, **moves(bundles[:1]))
        await leader.put("/loadbalance/v1/freeze", json={"reason": "night"})
        assert (await execute(leader, plan)).status == 409
        await leader.ask("DELETE", "/loadbalance/v1/freeze")
        assert (await execute(leader, plan)).status == 200


@pytest.mark.parametrize(("query", "moved"), [("", 1), ("?evenIfFrozen=true", 4)])
async def test_freeze_stops_a_running_plan_before_its_next_step(query: str, moved: int) -> None:
    async with a_leader(max_concurrent_unloads=1) as (cluster, leader):
        first, _, bundles = await two_brokers(cluster, leader)
        plan = await compute(leader, **moves(bundles))
        first.may_answer.clear()
        executing = asyncio.create_task(execute(leader, plan, query))
        await eventually(lambda: first.unloads)
        await leader.put("/loadbalance/v1/freeze", json={"reason": "night"})
        first.may_answer.set()
        ended = await executing
        assert outcomes(ended) == ["done"] * moved + ["not_begun"] * (4 - moved)
        assert ("the balancer is frozen (night)" in str(ended.json()["reason"])) == (moved == 1)


async def test_pin_is_kept_even_if_the_freeze_is_overridden() -> None:
    async with a_leader() as (cluster, leader):
        _, _, bundles = await two_brokers(cluster, leader)
        plan = await compute(leader, **moves(bundles[:1]))
        pin = {bundles[0]: BrokerId("b1:8080")}
        await leader.node.operators.update_controls(lambda now: replace(now, pinned=pin, frozen="night"))
        refused = await execute(leader, plan, "?evenIfFrozen=true")
        assert (refused.status, "it is pinned to b1:8080" in refused.json()["reason"]) == (409, True)


async def test_plan_is_executed_only_once_at_a_time() -> None:
    async with a_leader() as (cluster, leader):
        first, _, bundles = await two_brokers(cluster, leader)
        plan = await compute(leader, **moves(bundles[:1]))
        first.may_answer.clear()
        executing = asyncio.create_task(execute(leader, plan))
        await eventually(lambda: first.unloads)
        busy = await execute(leader, plan)
        assert (busy.status, busy.reason) == (409, f"plan {plan['hash']} is being executed")
        first.may_answer.set()
        assert (await executing).status == 200
        assert (await execute(leader, plan)).status == 409, "its bundle has moved"


async def test_plan_ends_with_the_term_of_its_leader() -> None:
    async with Cluster(in_memory()) as cluster:
        leader, standby = await cluster.start_nodes(2, namespace_bundle_unloading_timeout_ms=12_000)
        first, _, bundles = await two_brokers(cluster, leader)
        plan, other = await compute(standby, **moves(bundles[:1])), await compute(standby, **moves(bundles[1:2]))
        assert (await standby.get(f"{PLANS}/{plan['hash']}")).status == 200, "any node forwards the request"
        first.may_answer.clear()
        executing = asyncio.create_task(execute(standby, plan))
        await eventually(lambda: first.unloads)
        await leader.node.election.resign()
        cut_short = await executing
        assert (cut_short.status, outcomes(cut_short)) == (409, ["unknown"])
        await eventually(lambda: standby.leads)
        gone = await execute(standby, other)
        assert gone.status == 404
        assert gone.reason == (
            f"no plan {other['hash']}: the leader, of epoch 2, keeps the last 20 plans that it computed itself; compute"
            " it anew"
        )
        first.may_answer.set()
        await eventually(lambda: owners(standby, bundles[:1]) == ["b2:8080"])


async def test_kept_plans_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmanager.leader.loops.plan_driver._PLANS_KEPT", 2)
    async with a_leader() as (cluster, leader):
        _, _, bundles = await two_brokers(cluster, leader)
        plans = [await compute(leader, **moves(bundles[:count])) for count in (1, 2, 3)]
        found = [(await leader.get(f"{PLANS}/{plan['hash']}")).status for plan in plans]
        assert found == [404, 200, 200]


async def test_invalid_plan_requests_are_refused_with_the_reason() -> None:
    async with a_leader() as (cluster, leader):
        _, _, bundles = await two_brokers(cluster, leader)
        (free,) = await cluster.a_namespace("t/free", bundles={"numBundles": 1})
        pin = {bundles[1]: BrokerId("b1:8080")}
        await leader.node.operators.update_controls(lambda controls: replace(controls, pinned=pin))
        wrong = [
            (moves(["t/ns/0x00000000_0x00000001"]), 412, "is not a current bundle of namespace t/ns"),
            (moves(["t/gone/0x00000000_0xffffffff"]), 404, "namespace t/gone not found"),
            (moves([free]), 409, f"{free} is Free: only an owned bundle can be moved"),
            (moves(bundles[:1], "b9:8080"), 409, "destination 'b9:8080'"),
            (moves(bundles[:1], "b1:8080"), 400, "is owned by b1:8080 already"),
            (moves(bundles[1:2]), 409, "it is pinned to b1:8080"),
            (moves([*bundles[:1], *bundles[:1]]), 400, "a bundle is named twice"),
            ({"kind": "drain", "broker": "b9:8080"}, 404, "broker 'b9:8080' is not registered"),
            ({"kind": "drain"}, 400, "broker: is needed for kind drain"),
            ({"kind": "shed", "broker": "b1:8080"}, 400, "broker: does not go with kind shed"),
            ({"kind": "moves"}, 400, "moves: is needed for kind moves"),
            ({"kind": "moves", "moves": []}, 400, "moves"),
            ({"kind": "shed", "colour": 1}, 400, "colour"),
            ({"kind": "stir"}, 400, "kind"),
            ({}, 400, "kind"),
        ]
        for body, status, said in wrong:
            refused = await leader.ask("POST", PLANS, json=body)
            assert (refused.status, said in refused.reason) == (status, True), (body, refused.status, refused.reason)
        assert (await leader.ask("POST", PLANS, data=b"no json")).status == 400
        assert (await leader.ask("POST", PLANS, data=io.BytesIO(b" " * 9_000_000))).status == 413
        assert (await leader.get(f"{PLANS}/nonsense")).status == 404


async def test_empty_plan_is_executed_without_effect() -> None:
    async with a_leader(load_balancer_shedding_enabled=False) as (cluster, leader):
        await two_brokers(cluster, leader)
        plan = await compute(leader, kind="shed")
        assert plan["steps"] == []
        assert [verdict["reason"] for verdict in plan["verdicts"]] == ["shedding_disabled"]
        assert (await execute(leader, plan)).json()["executed"] == 0


async def test_plan_keeps_no_arrays_beyond_the_snapshot() -> None:
    mirror, live = ClusterMirror(), LiveSettings(settings())
    for host in ("a", "b"):
        loads = {bundle(number, f"t/{host}"): throughput(1.0) for number in range(2_000)}
        mirror.model.apply_report(broker(host), report(loads, bandwidth_in=(90.0 if host == "a" else 10.0, 100.0)))
    planner = a_planner(mirror, live)
    planner.snapshot()  # the first snapshot computes the order of names
    with held_arrays() as held:
        plan = await RequestedPlans(mirror, planner).compute(PlanRequest(kind="shed"))
        assert plan.certificate is not None
        # A pool thread drops its result shortly after the loop has it.
        await eventually(lambda: held() < 160 * 4_000)
