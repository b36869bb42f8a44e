from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import pytest
from support.nodes import Cluster, a_leader, topics_by_bundle
from support.registrations import a_record, load_of
from support.waiting import eventually

from loadmanager.core.domain.names import BrokerId, TopicName
from loadmanager.core.domain.ownership import OwnershipState
from loadmanager.core.domain.plan import Plan, Unload, Verdict
from loadmanager.core.domain.reasons import ChurnReason, GuardrailReason, SheddingReason
from loadmanager.errors import NamespaceNotFoundError, NoBrokerAvailableError, NotLeaderError
from loadmanager.leader.execution import executor
from loadmanager.leader.loops.shedding_loop import SheddingLoop
from loadmanager.leader.node import Node
from loadmanager.store import paths
from loadmanager.store.metadata_store import Delete, Put

TOPIC = TopicName.parse("persistent://t/ns/x")


def version_of(node: Node, topic: TopicName) -> int:
    """Return the ownership version of a topic's bundle in the node's mirror."""
    entry, index = node.mirror.bundle_of_topic(topic)
    return entry.state.ownerships[index].version


async def test_concurrent_lookups_of_one_bundle_share_one_assignment() -> None:
    async with a_leader() as (cluster, leader):
        await cluster.a_broker("b1:8080")
        await cluster.a_broker("b2:8080")
        await cluster.a_namespace()
        answers = await asyncio.gather(*(leader.node.lookups.lookup(TOPIC) for _ in range(100)))
        assert len({answer.registration for answer in answers}) == 1
        assert version_of(leader.node, TOPIC) == 1
        assert leader.node.assigner.assignments == 1


async def test_burst_of_lookups_is_spread_over_the_brokers() -> None:
    async with a_leader() as (cluster, leader):
        for number in range(4):
            await cluster.a_broker(f"b{number}:8080")
        await cluster.a_namespace("t/ns", bundles={"numBundles": 64})
        topics = topics_by_bundle(leader, "t/ns", 64)
        answers = await asyncio.gather(
            *(leader.node.lookups.lookup(TopicName.parse(topic)) for topic in topics.values())
        )
        owners = Counter(answer.registration.broker for answer in answers)
        assert sorted(owners.values()) == [16, 16, 16, 16]


async def test_consecutive_lookups_are_spread_over_the_brokers() -> None:
    async with a_leader() as (cluster, leader):
        for number in range(4):
            await cluster.a_broker(f"b{number}:8080")
        await cluster.a_namespace("t/ns", bundles={"numBundles": 16})
        owners: Counter[str] = Counter()
        for topic in topics_by_bundle(leader, "t/ns", 16).values():
            owners[(await leader.node.lookups.lookup(TopicName.parse(topic))).registration.broker] += 1
        assert sorted(owners.values()) == [4, 4, 4, 4]


async def test_lookup_without_brokers_fails_with_a_logged_reason() -> None:
    async with a_leader() as (cluster, leader):
        (bundle, *_) = await cluster.a_namespace("t/ns", bundles={"numBundles": 1})
        with pytest.raises(NoBrokerAvailableError, match="none of 0 registered brokers"):
            await leader.node.lookups.lookup(TOPIC)
        (entry,) = leader.node.decision_log.recent(10)
        assert (entry["subject"], entry["reason"], entry["acted"]) == (bundle, "no_broker_available", False)


async def test_request_for_a_deleted_namespace_fails_alone() -> None:
    async with a_leader() as (cluster, leader):
        bundle = "t/gone/0x00000000_0xffffffff"
        with pytest.raises(NamespaceNotFoundError):
            await leader.node.assigner.request(bundle)
        await cluster.a_broker()
        await cluster.a_namespace()
        assert (await leader.node.lookups.lookup(TOPIC)).registration.broker in cluster.brokers


async def test_failed_decision_is_reported_and_blocks_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_leader() as (cluster, leader):
        await cluster.a_broker()
        await cluster.a_namespace()
        with monkeypatch.context() as broken:
            broken.setattr(leader.node.planner, "place", _fails)
            with pytest.raises(NoBrokerAvailableError, match="the decision failed: no idea"):
                await leader.node.lookups.lookup(TOPIC)
        assert (await leader.node.lookups.lookup(TOPIC)).registration.broker in cluster.brokers


async def _fails(*_: object) -> None:
    raise ValueError("no idea")


async def test_bundle_of_a_lost_broker_moves_at_its_next_lookup() -> None:
    async with a_leader() as (cluster, leader):
        first = await cluster.a_broker("b1:8080")
        await cluster.a_namespace()
        assert (await leader.node.lookups.lookup(TOPIC)).registration.broker in cluster.brokers
        await first.leave()
        await eventually(lambda: "b1:8080" not in leader.node.mirror.brokers)
        await cluster.a_broker("b2:8080")
        found = await leader.node.lookups.lookup(TOPIC)
        assert found.registration.broker == "b2:8080"
        assert version_of(leader.node, TOPIC) > 1


async def test_waiting_requests_fail_at_the_end_of_the_term() -> None:
    async with a_leader() as (cluster, leader):
        await cluster.a_namespace()
        waiting = leader.node.assigner.request("t/ns/0x00000000_0x40000000")
        await cluster.store.commit([Put(paths.EPOCH, b"another"), Delete(paths.LEADER)])
        leader.node.election.deposed()
        with pytest.raises((NotLeaderError, NoBrokerAvailableError)):
            await waiting
        await eventually(lambda: leader.node.election.terms_won == 2)


async def test_background_placement_runs_in_batches_after_lookups() -> None:
    async with a_leader() as (cluster, leader):
        await cluster.a_broker()
        names = await cluster.a_namespace("t/ns", bundles={"numBundles": 2_500})
        batches: list[list[str]] = []
        place = leader.node.planner.place

        async def noted(bundles: list[str], non_persistent: Collection[str] = ()) -> Plan:
            batches.append(bundles)
            return await place(bundles, non_persistent)

        leader.node.planner.place = noted  # type: ignore[method-assign]  # the same, noted
        leader.node.assigner.place_soon(names[:-1])
        asked = [names[2_000], names[-1]]
        await asyncio.gather(*(leader.node.assigner.request(bundle) for bundle in asked))
        assert [len(batches), batches[0][:2], len(batches[0])] == [1, asked, 1_000]
        await eventually(lambda: leader.node.assigner.assignments == len(names))
        assert [len(batch) for batch in batches] == [1_000, 1_000, 500]
        assert Counter(name for batch in batches for name in batch) == Counter(names)


async def test_bundle_with_topics_of_both_domains_gets_a_broker_for_both() -> None:
    async with a_leader() as (cluster, leader):
        await cluster.a_broker("b1:8080", {**a_record("b1:8080"), "nonPersistentTopicsEnabled": False})
        await cluster.a_broker("b2:8080", a_record("b2:8080", cpu=90.0))
        for bundle in await cluster.a_namespace("t/ns", bundles={"numBundles": 4}):
            of_both = [leader.node.assigner.request(bundle, non_persistent=each) for each in (False, True)]
            for ownership in await asyncio.gather(*of_both):
                assert ownership.owner == cluster.brokers["b2:8080"].registration


async def _hot_and_cold(cluster: Cluster) -> list[str]:
    """Start hot b1 with two bundles and idle b2; return the bundles."""
    hot = await cluster.a_broker("b1:8080")
    bundles = await cluster.a_namespace("t/ns", bundles={"numBundles": 2})
    leader = cluster.nodes[0]
    for topic in topics_by_bundle(leader, "t/ns", 2).values():
        await leader.node.lookups.lookup(TopicName.parse(topic))
    await cluster.a_broker("b2:8080", a_record("b2:8080", cpu=5.0))
    stats = {bundle: load_of(100.0) for bundle in bundles}
    await hot.report(a_record("b1:8080", stats, agent_url=hot.url, cpu=95.0))
    await eventually(lambda: len(leader.node.mirror.model.bundle_averages("t/ns")) == 2)
    return bundles


async def test_shedding_round_moves_a_bundle_from_hot_to_cold() -> None:
    async with a_leader() as (cluster, leader):
        bundles = await _hot_and_cold(cluster)
        plan = await leader.node.shedding.run_round()
        assert len(plan.steps) == 1
        owners = {leader.ownership(bundle).owner for bundle in bundles}
        assert owners == {cluster.brokers["b1:8080"].registration, cluster.brokers["b2:8080"].registration}
        assert len(cluster.brokers["b1:8080"].unloads) == 1
        assert leader.node.shedding.brokers_shed == 1
        kinds = [entry["kind"] for entry in leader.node.decision_log.recent(3)]
        assert set(kinds) >= {"unload", "unloaded"}


async def test_move_has_the_reasons_of_shedding_and_placement() -> None:
    async with a_leader(loadBalancerBundleUnloadMinThroughputThreshold=0) as (cluster, leader):
        await _hot_and_cold(cluster)
        await leader.node.shedding.run_round()
        moves = [entry for entry in leader.node.decision_log.recent(100) if entry["kind"] == "unload"]
        assert moves
        for move in moves:
            assert move["reason"] == "broker_above_average"
            assert "is not below average" in move["sentence"]
            assert "has the least long-term message rate" in move["sentence"]
            assert {"usage_percent", "average_percent", "msg_rate_per_s"} <= move["why"].keys()


async def test_recently_moved_bundle_is_not_moved_again() -> None:
    async with a_leader() as (cluster, leader):
        bundles = await _hot_and_cold(cluster)
        await leader.node.shedding.run_round()
        (moved,) = (b for b in bundles if leader.ownership(b).version > 1)
        cold, hot = cluster.brokers["b1:8080"], cluster.brokers["b2:8080"]
        applied = leader.node.intake.reports_applied
        (stayed,) = set(bundles) - {moved}
        await cold.report(a_record("b1:8080", {stayed: load_of(1.0)}, agent_url=cold.url, cpu=1.0))
        await hot.report(a_record("b2:8080", {moved: load_of(100.0)}, agent_url=hot.url, cpu=99.0))
        await eventually(lambda: leader.node.intake.reports_applied == applied + 2)
        plan = await leader.node.shedding.run_round()
        assert plan.steps == ()


async def test_grace_period_ends_without_cluster_changes() -> None:
    async with a_leader(load_balancer_shedding_grace_period_minutes=0.001) as (cluster, leader):
        (bundle, *_) = await cluster.a_namespace()
        leader.node.mirror.model.mark_unloaded(bundle, 0.0)
        await leader.node.planner.shed()
        assert leader.node.mirror.model.unloads.of_bundles == {}


async def test_invalid_strategy_state_fails_only_one_round() -> None:
    async with a_leader(load_balancer_shedding_interval_minutes=0.001) as (cluster, leader):
        await _hot_and_cold(cluster)
        shedding = leader.node.shedding

        def has_failed() -> bool:
            if not shedding.rounds_failed:  # a running round would overwrite it
                leader.node.planner.state = {"ThresholdShedder": "nonsense"}
            return shedding.rounds_failed > 0

        await eventually(has_failed)
        cycles, failed = shedding.rounds, shedding.rounds_failed
        await eventually(lambda: shedding.rounds > cycles)
        assert shedding.rounds_failed == failed


OVERLOAD = {
    "load_balancer_load_shedding_strategy": "OverloadShedder",
    "namespace_bundle_unloading_timeout_ms": 3_600_000,
}


async def _two_full_and_one_empty(cluster: Cluster) -> dict[str, list[str]]:
    """Start b1 (hot) and b2 with four bundles each, and b3; return the bundles by broker."""
    node = cluster.nodes[0].node
    owned = {}
    for broker_id in ("b1:8080", "b2:8080"):
        await cluster.a_broker(broker_id)
        owned[broker_id] = await cluster.a_namespace(f"t/{broker_id[:2]}", bundles={"numBundles": 4})
        await _exclude(node, cluster.brokers.keys() - {broker_id})
        await asyncio.gather(*map(node.assigner.request, owned[broker_id]))
    await _exclude(node, ())
    await cluster.a_broker("b3:8080", a_record("b3:8080", cpu=5.0))
    await _report(cluster, owned, hot={"b1:8080"})
    return owned


async def _exclude(node: Node, brokers: Collection[str]) -> None:
    excluded = frozenset(map(BrokerId, brokers))
    await node.operators.update_controls(lambda now: replace(now, excluded=excluded))


async def _report(cluster: Cluster, owned: Mapping[str, Collection[str]], hot: Collection[str]) -> None:
    """Have brokers report their bundles and usage, and wait until the leader has applied it."""
    intake = cluster.nodes[0].node.intake
    applied = intake.reports_applied
    for broker_id, bundles in owned.items():
        agent, stats = cluster.brokers[broker_id], {bundle: load_of(10.0) for bundle in bundles}
        await agent.report(a_record(broker_id, stats, agent_url=agent.url, cpu=95.0 if broker_id in hot else 50.0))
    await eventually(lambda: intake.reports_applied >= applied + len(owned))


async def test_hanging_broker_does_not_block_relief_of_others() -> None:
    async with a_leader(**OVERLOAD, load_balancer_shedding_interval_minutes=0.002) as (cluster, leader):
        owned = await _two_full_and_one_empty(cluster)
        hangs, other = cluster.brokers["b1:8080"], cluster.brokers["b2:8080"]
        hangs.may_answer.clear()
        await eventually(lambda: hangs.unloads)
        await _report(cluster, owned, hot=owned.keys())
        await eventually(lambda: other.unloads, what="b2 is relieved while b1 hangs")
        cycles, asked = leader.node.shedding.rounds, len(hangs.unloads)
        await eventually(lambda: leader.node.shedding.rounds > cycles + 3)
        assert len(hangs.unloads) == asked, "no further move from b1 until it reports"
        hangs.may_answer.set()


@pytest.mark.parametrize("look_ahead", [1, 256])
async def test_next_round_cancels_queued_moves(monkeypatch: pytest.MonkeyPatch, look_ahead: int) -> None:
    monkeypatch.setattr(executor, "_LOOK_AHEAD", look_ahead)
    limits = {"load_balancer_broker_overloaded_threshold_percentage": 60, "max_concurrent_unloads_per_broker": 1}
    async with a_leader(**OVERLOAD, **limits) as (cluster, leader):
        await _two_full_and_one_empty(cluster)
        hangs, shedding, churn = cluster.brokers["b1:8080"], leader.node.shedding, leader.node.planner.churn
        hangs.may_answer.clear()
        first = await shedding.begin_round()
        await eventually(lambda: hangs.unloads)
        assert len(first.steps) > 1
        assert churn.share_in_progress > 0
        second = await shedding.begin_round()
        assert second.steps == (), "b1 has not reported since, and nobody else is hot"
        hangs.may_answer.set()
        await eventually(lambda: not shedding._moving)
        assert len(hangs.unloads) == 1
        stayed = [step for step in first.steps if leader.ownership(step.bundle).owner == hangs.registration]
        assert len(stayed) == len(first.steps) - 1
        assert churn.share_in_progress == 0


async def test_moves_in_progress_count_against_the_hourly_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_leader(**OVERLOAD, load_balancer_max_load_moved_per_hour_percentage=20) as (cluster, leader):
        owned = await _two_full_and_one_empty(cluster)
        planner, hangs = leader.node.planner, cluster.brokers["b1:8080"]
        recorded: list[float] = []
        monkeypatch.setattr(planner.recorder, "decided", lambda *_, **detail: recorded.append(detail["inProgress"]))
        hangs.may_answer.clear()
        assert len((await leader.node.shedding.begin_round()).steps) == 1
        await eventually(lambda: hangs.unloads)
        await _report(cluster, owned, hot=owned.keys())
        preview, _ = await planner.preview_shed()
        for plan in (preview, await leader.node.shedding.begin_round()):
            assert plan.steps == ()
            assert ChurnReason.MOVED_ENOUGH_THIS_HOUR in [verdict.verdict for verdict in plan.verdicts]
        assert recorded == [0, pytest.approx(1 / 8), pytest.approx(1 / 8)]
        hangs.may_answer.set()


async def test_blocking_limit_is_shown_by_the_leader_only() -> None:
    async with a_leader(**OVERLOAD, load_balancer_max_load_moved_per_hour_percentage=20) as (cluster, leader):
        owned = await _two_full_and_one_empty(cluster)
        assert (await leader.get("/readyz")).json()["limits"] == []
        assert (await leader.node.shedding.run_round()).steps
        await _report(cluster, owned, hot=owned.keys())
        before_ms = time.time() * 1000
        await leader.node.shedding.run_round()
        (limit,) = (await leader.get("/readyz")).json()["limits"]
        assert limit["reason"] == ChurnReason.MOVED_ENOUGH_THIS_HOUR
        assert before_ms < limit["until"] <= time.time() * 1000 + 3_600_000
        assert (await leader.get("/loadbalance/v1/fleet")).json()["balancing"]["limits"] == [limit]
        assert (await (await cluster.start_node()).get("/readyz")).json()["limits"] == []


async def test_dry_run_logs_decisions_and_moves_nothing() -> None:
    async with a_leader() as (cluster, leader):
        await _hot_and_cold(cluster)
        await leader.node.operators.update_controls(lambda controls: replace(controls, dry_run=True))
        plan = await leader.node.shedding.run_round()
        (step,) = plan.steps
        (entry,) = [each for each in leader.node.decision_log.recent(100) if each["kind"] == "would_unload"]
        assert (entry["subject"], entry["acted"]) == (step.bundle, False)
        assert (entry["source"], entry["destination"]) == ("b1:8080", "b2:8080")
        assert entry["sentence"].startswith("Shed 1 of 2 bundles because usage 95 %")
        assert leader.ownership(step.bundle).state is OwnershipState.OWNED
        assert cluster.brokers["b1:8080"].unloads == []
        assert leader.node.shedding.brokers_shed == 0
        await leader.node.operators.update_controls(lambda controls: replace(controls, dry_run=False))
        await leader.node.shedding.run_round()
        assert leader.ownership(step.bundle).owner == cluster.brokers["b2:8080"].registration


class Stopping:
    """Guardguardrails with given verdicts."""

    def __init__(self) -> None:
        self.rounds: list[Verdict] = []
        self.steps: dict[str, list[Verdict]] = {}

    def begin_round(self) -> Sequence[Verdict]:
        return self.rounds

    def check_steps(self, steps: Sequence[Unload]) -> Sequence[Sequence[Verdict]]:
        return [[*self.rounds, *self.steps.get(step.bundle, [])] for step in steps]


async def test_stopped_moves_are_logged_with_their_guardrail() -> None:
    async with a_leader() as (cluster, leader):
        await _hot_and_cold(cluster)
        guardrails, node = Stopping(), leader.node
        shedding = SheddingLoop(
            node.planner, node.executor, node.election, node.decision_log, node.mirror, node.live, guardrails
        )

        def shown() -> list[str]:
            return [each["sentence"] for each in node.decision_log.recent(100) if each["kind"] == "would_unload"]

        guardrails.rounds = [
            Verdict("cluster", GuardrailReason.CLUSTER_STATE_INCOMPLETE, acted=False),
            Verdict("cluster", GuardrailReason.MODE_IS_OBSERVE, acted=False),
        ]
        (step,) = (await shedding.run_round()).steps
        assert shown()[0].startswith("No move because not all brokers answered ")
        assert " because usage 95 %" in shown()[0]
        assert "observe" not in shown()[0], "the first verdict only"
        (said,) = [each for each in node.decision_log.recent(100) if each["kind"] == "guardrail"]
        assert (said["subject"], said["reason"]) == ("cluster", "cluster_state_incomplete")
        assert "mode is observe" in said["sentence"], "all verdicts"

        guardrails.rounds = []
        guardrails.steps = {step.bundle: [Verdict(step.bundle, GuardrailReason.ROUND_LIMIT_REACHED, acted=False)]}
        await shedding.run_round()
        assert [each.split(" because")[0] for each in shown()] == [
            "Round limit reached. Shed 1 of 2 bundles",
            "No move",
        ]
        assert (node.executor.unloads_completed, shedding.brokers_shed) == (0, 0)
        assert cluster.brokers["b1:8080"].unloads == []

        guardrails.steps = {"t/ns/another": guardrails.steps[step.bundle]}
        await shedding.run_round()
        assert leader.ownership(step.bundle).owner == cluster.brokers["b2:8080"].registration
        assert len(shown()) == 2


async def test_listener_gets_each_plan_before_its_execution() -> None:
    async with a_leader() as (cluster, leader):
        await _hot_and_cold(cluster)
        told: list[tuple[Plan, int]] = []
        node, owner = leader.node, cluster.brokers["b1:8080"]
        shedding = SheddingLoop(
            node.planner,
            node.executor,
            node.election,
            node.decision_log,
            node.mirror,
            node.live,
            on_plan=lambda plan: told.append((plan, len(owner.unloads))),
        )
        plan = await shedding.run_round()
        assert told == [(plan, 0)]
        assert len(owner.unloads) == len(plan.steps) == 1


async def test_disabled_shedding_moves_nothing_with_a_verdict() -> None:
    async with a_leader(load_balancer_shedding_enabled=False) as (cluster, leader):
        await _hot_and_cold(cluster)
        plan = await leader.node.shedding.run_round()
        assert plan.steps == ()
        assert [verdict.verdict for verdict in plan.verdicts] == [SheddingReason.SHEDDING_DISABLED]


async def test_broker_with_an_unreadable_report_keeps_its_bundles() -> None:
    async with a_leader() as (cluster, leader):
        broker = await cluster.a_broker("b1:8080")
        await cluster.a_namespace()
        await leader.node.lookups.lookup(TOPIC)
        await broker.report(b"{garbage")
        await cluster.a_broker("b2:8080")
        await eventually(lambda: leader.node.mirror.faults)
        assert (await leader.node.lookups.lookup(TOPIC)).registration == broker.registration


async def test_bundles_of_a_broker_with_an_unreadable_record_are_not_reassigned() -> None:
    async with Cluster() as cluster:
        node = await cluster.start_leader()
        broker = await cluster.a_broker("b1:8080")
        await cluster.a_namespace()
        await node.node.lookups.lookup(TOPIC)
        await broker.report(b"{garbage")
        await node.stop()
        cluster.nodes.clear()
        second = await cluster.start_leader()
        await cluster.a_broker("b2:8080")
        with pytest.raises(NoBrokerAvailableError, match="cannot be read"):
            await second.node.lookups.lookup(TOPIC)
        assert second.ownership(second.bundle_of(str(TOPIC))).state is OwnershipState.OWNED
