from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.builders import broker, bundle, report
from support.nodes import Cluster, FakeAgent, RunningNode, a_leader, a_planner, in_memory, settings
from support.registrations import a_record, load_of
from support.waiting import eventually

from loadmanager.core.domain.plan import Unload
from loadmanager.core.planning.churn import MoveMemory, noted
from loadmanager.core.planning.repeated_moves import is_back
from loadmanager.core.strategies.shedding.overload_shedder import OverloadReason
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.leader.persistence import pack_within_limit
from loadmanager.store import paths

FLAPPING = {
    "load_balancer_load_shedding_strategy": "OverloadShedder",
    "load_balancer_return_cool_down_minutes": 1e-6,  # 0 switches the breaker off
    "load_balancer_shedding_grace_period_minutes": 0.0,
}


async def two_brokers(
    cluster: Cluster, leader: RunningNode, mib_per_s: tuple[float, float] = (9.0, 1.0)
) -> tuple[FakeAgent, FakeAgent, list[str]]:
    """Start overloaded b1 with two bundles, and b2 with none."""
    first = await cluster.a_broker("b1:8080")
    bundles = await cluster.a_namespace("t/ns", bundles={"numBundles": 2})
    await asyncio.gather(*(leader.node.assigner.request(bundle) for bundle in bundles))
    second = await cluster.a_broker("b2:8080")
    loads = {bundle: load_of(mib) for bundle, mib in zip(bundles, mib_per_s, strict=True)}
    await first.report(a_record("b1:8080", loads, agent_url=first.url, cpu=95))
    await eventually(lambda: leader.node.planner.snapshot().bundles.movable.sum() == 2)
    return first, second, bundles


def memory(node: RunningNode) -> MoveMemory:
    return MoveMemory.of(node.node.planner.churn.state)


async def shed(leader: RunningNode, bundle: str, source: FakeAgent, destination: FakeAgent) -> None:
    """Execute a move as a round of shedding does."""
    step = Unload(bundle, source.registration, destination.registration, OverloadReason.BROKER_OVERLOADED)
    await leader.node.executor.execute(step)


async def churn_of(node: RunningNode) -> dict[str, Any]:
    answer = (await node.get("/loadbalance/v1/churn")).json()
    assert isinstance(answer, dict)
    return answer


async def test_shedding_round_respects_churn_limits_with_a_verdict() -> None:
    async with a_leader(load_balancer_max_load_moved_per_cycle_percentage=0, **FLAPPING) as (cluster, leader):
        _, _, bundles = await two_brokers(cluster, leader)
        plan = await leader.node.shedding.run_round()
        assert plan.steps == ()
        (entry,) = leader.node.decision_log.recent(9, bundles[0])[:1]
        assert (entry["kind"], entry["reason"], entry["acted"]) == ("shed", "moved_enough_this_round", False)
        assert entry["why"]["loadBalancerMaxLoadMovedPerCyclePercentage"] == 0
        (giver,) = leader.node.decision_log.recent(9, "b1:8080")[:1]
        assert (giver["reason"], giver["acted"]) == ("chosen_bundles_stay", False)
        assert f"{bundles[0]}: {entry['sentence']}" in giver["sentence"]
        assert leader.ownership(bundles[0]).version == 1


async def test_only_completed_moves_count() -> None:
    async with a_leader(namespace_bundle_unloading_timeout_ms=50, **FLAPPING) as (cluster, leader):
        first, second, bundles = await two_brokers(cluster, leader)
        first.status = 503
        await shed(leader, bundles[0], first, second)
        assert memory(leader).moves == ()
        first.status = 204
        leader.node.live.apply({"namespaceBundleUnloadingTimeoutMs": "20000"})
        await shed(leader, bundles[0], first, second)
        (move,) = memory(leader).moves
        assert (move.bundle, move.source, move.is_own, is_back(move)) == (bundles[0], "b1:8080", True, False)
        assert round(move.share, 6) == 0.9
        assert round((await churn_of(leader))["movedWithinHourPercent"], 3) == 90


async def test_moves_of_operators_are_not_own_moves() -> None:
    async with a_leader(**FLAPPING) as (cluster, leader):
        _, second, bundles = await two_brokers(cluster, leader)
        await leader.unload(bundles[0], second.registration)
        (move,) = memory(leader).moves
        assert not move.is_own
        assert (await churn_of(leader))["movedWithinHourPercent"] == 0


async def test_tripped_breaker_is_reported_and_can_be_lifted() -> None:
    async with a_leader(**FLAPPING) as (cluster, leader):
        first, second, bundles = await two_brokers(cluster, leader)
        await shed(leader, bundles[0], first, second)
        await shed(leader, bundles[0], second, first)
        churn = await churn_of(leader)
        assert [round(churn[key], 3) for key in ("movedBackPercent", "movedAgainPercent")] == [90] * 2
        assert churn["sheddingStopped"] is True
        assert 1700 < churn["sheddingStoppedSecondsLeft"] <= 1800
        said = [e["sentence"] for e in leader.node.decision_log.recent(9, "cluster") if e["kind"] == "breaker"]
        assert said[0].startswith("Nothing is shed for half an hour: of all load 90 % (")
        samples = {
            sample.name: sample.value
            for family in text_string_to_metric_families((await leader.get("/metrics")).body.decode())
            for sample in family.samples
        }
        assert samples["loadmanager_shedding_stopped"] == 1
        assert [round(samples[f"loadmanager_{name}_ratio"], 6) for name in ("moved_back", "moved_again")] == [0.9] * 2
        assert samples["pulsar_lb_unload_bundle_total"] == 2
        assert leader.node.decision_log.counts["breaker", "shedding_stopped", True] == 1
        assert (await leader.ask("DELETE", "/loadbalance/v1/churn/breaker")).status == 204
        assert (await churn_of(leader))["sheddingStopped"] is False
        (lifted,) = [e for e in leader.node.decision_log.recent(9, "cluster") if e["reason"] == "breaker_lifted"]
        assert lifted["sentence"] == "The breaker was lifted by an operator"


async def test_returning_bundle_is_frozen_and_can_be_lifted_alone() -> None:
    async with a_leader(**FLAPPING) as (cluster, leader):
        first, second, bundles = await two_brokers(cluster, leader, (9.5, 0.5))
        for _ in range(2):
            await shed(leader, bundles[1], first, second)
            await shed(leader, bundles[1], second, first)
        (frozen,) = (await churn_of(leader))["frozenBundles"]
        assert frozen["bundle"] == bundles[1]
        assert (await churn_of(leader))["sheddingStopped"] is False
        refused = await leader.ask("DELETE", "/loadbalance/v1/churn/breaker?bundle=nonsense")
        assert refused.status == 412
        assert (await leader.ask("DELETE", f"/loadbalance/v1/churn/breaker?bundle={bundles[1]}")).status == 204
        assert (await churn_of(leader))["frozenBundles"] == []


async def test_tripped_breaker_survives_a_change_of_leader() -> None:
    async with Cluster(in_memory()) as cluster:
        leader, standby = await cluster.start_nodes(2, **FLAPPING)
        first, second, bundles = await two_brokers(cluster, leader)
        await shed(leader, bundles[0], first, second)
        await shed(leader, bundles[0], second, first)
        persistence = leader.node.persistence
        await eventually(
            lambda: persistence._written.get(paths.STRATEGY_STATE) == pack_within_limit(persistence._strategy_state()),
            what="both moves are written",
        )
        await leader.node.stop()
        await eventually(lambda: standby.leads)
        assert (await churn_of(standby))["sheddingStopped"] is True
        assert memory(standby).moves == memory(leader).moves


@pytest.mark.parametrize("ends", [0, 1, 10])
async def test_moves_ending_during_a_round_are_remembered(monkeypatch: pytest.MonkeyPatch, ends: int) -> None:
    mirror, live = ClusterMirror(), LiveSettings(settings())
    mirror.model.apply_report(broker("a"), report([bundle(0)], cpu=95))
    planner = a_planner(mirror, live)
    run, looked = planner._worker.run, list[bool]()

    async def run_while_moves_end(work: Callable[..., object], *given: object) -> object:
        found = await run(work, *given)
        looked.append(len(looked) < ends)
        if looked[-1]:
            now = noted(
                planner.churn.state,
                bundle(0),
                broker("a"),
                broker("b"),
                0.1,
                live.planner,
                at_s=time.time(),
                is_own=True,
            )
            planner.churn.state, _ = now
        return found

    monkeypatch.setattr(planner._worker, "run", run_while_moves_end)
    await planner.shed()
    assert len(MoveMemory.of(planner.churn.state).moves) == sum(looked) == min(ends, 2)
