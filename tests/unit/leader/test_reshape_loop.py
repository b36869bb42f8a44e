from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from support.builders import Load
from support.nodes import Cluster, FakeAgent, RunningNode, in_memory
from support.registrations import a_record, load_of
from support.waiting import eventually

from loadmanager.core.domain.controls import Controls
from loadmanager.core.domain.names import BrokerId
from loadmanager.store import metadata_store
from loadmanager.wire.broker_data import NamespaceBundleStats

WHOLE = "t/ns/0x00000000_0xffffffff"
CUT = ["0x00000000_0x7fffffff", "0x7fffffff_0xffffffff"]
TOPICS = [f"persistent://t/ns/topic-{number}" for number in range(40)]
EXTENSIBLE = "org.apache.pulsar.broker.loadbalance.extensions.ExtensibleLoadManagerImpl"


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(in_memory()) as cluster:
        await cluster.start_leader(load_balancer_auto_unload_split_bundles_enabled=False)
        yield cluster


async def two_brokers(cluster: Cluster, number_of_bundles: int = 1, load: Load = (1.0, 1.0, 1.0, 1.0)) -> FakeAgent:
    """Start b1 and b2; b1 owns all bundles of namespace t/ns and has the topics."""
    agent = await cluster.a_broker("b1:8080")
    agent.topics = dict.fromkeys(TOPICS, load)
    await cluster.a_namespace("t/ns", bundles={"numBundles": number_of_bundles})
    for topic in TOPICS:
        assert (await cluster.nodes[0].lookup(topic)).status == 200
    await cluster.a_broker("b2:8080")
    return agent


async def reported(cluster: Cluster, stats: dict[str, NamespaceBundleStats]) -> None:
    """Have b1 report this and wait until the leader has applied it."""
    agent, intake = cluster.brokers["b1:8080"], cluster.nodes[0].node.intake
    before = intake.reports_applied
    await agent.report(a_record("b1:8080", stats, agent_url=agent.url))
    await eventually(lambda: intake.reports_applied > before)


def configure(node: RunningNode, **values: str) -> None:
    assert node.node.live.apply({**node.node.live.overrides, **values}) == []


def journalled(node: RunningNode, kind: str, subject: str) -> dict[str, Any]:
    """The newest entry of that kind about the subject."""
    return next(e for e in node.node.decision_log.recent(200) if (e["kind"], e["subject"]) == (kind, subject))


def control(node: RunningNode, controls: Controls) -> None:
    node.node.mirror.operator_config = replace(node.node.mirror.operator_config, controls=controls)


MANY = load_of(0.1, topics=600) | {"topics": 1_001, "consumerCount": 1, "producerCount": 1}


async def test_reported_bundle_above_a_limit_is_split(cluster: Cluster, leader: RunningNode) -> None:
    await two_brokers(cluster)
    await leader.node.reshaping.round()
    assert journalled(leader, "split", "cluster")["reason"] == "nothing_to_split"
    await reported(cluster, {WHOLE: MANY})
    await leader.node.reshaping.round()
    assert leader.ranges_of() == CUT
    entry = journalled(leader, "split", WHOLE)
    assert (entry["reason"], entry["acted"]) == ("topics", True)
    assert entry["sentence"] == (
        "Split into 2 because its 1001 topics are more than loadBalancerNamespaceBundleMaxTopics 1000"
    )
    assert ("pulsar_lb_bundles_split", 1.0) in {(name, value) for name, _, _, value in leader.node.scrape().counters}
    metrics = (await leader.get("/metrics")).body.decode()
    assert 'pulsar_lb_bundles_split_total{cluster="standalone",metric="bundlesSplit"} 1.0' in metrics
    label = 'metric="bundlesSplit",reason="Topics",result="Success"'
    assert f'pulsar_lb_bundles_split_breakdown_total{{cluster="standalone",{label}}} 1.0' in metrics


async def test_round_without_new_reports_does_nothing(cluster: Cluster, leader: RunningNode) -> None:
    await two_brokers(cluster)
    await leader.node.reshaping.round()
    await leader.node.reshaping.round()
    assert journalled(leader, "split", "cluster")["times"] == 1
    await reported(cluster, {WHOLE: load_of(0.1)})
    await leader.node.reshaping.round()
    entry = journalled(leader, "split", "cluster")
    assert entry["times"] == 2
    assert entry["sentence"] == "No split because none of 1 bundles that 2 brokers report is above a limit"


async def test_rounds_follow_the_split_interval(cluster: Cluster, leader: RunningNode) -> None:
    await two_brokers(cluster)
    await reported(cluster, {WHOLE: MANY})
    configure(leader, loadBalancerSplitIntervalMinutes="0.0001")
    await eventually(lambda: leader.ranges_of() == CUT)


async def test_long_term_rate_and_several_boundaries(cluster: Cluster, leader: RunningNode) -> None:
    await two_brokers(cluster, load=(1_250.0, 1_250.0, 1.0, 1.0))
    configure(leader, defaultNamespaceBundleSplitAlgorithm="flow_or_qps_equally_divide")
    await reported(cluster, {WHOLE: load_of(0.1, msg_rate=50_000.0, topics=40)})
    await leader.node.reshaping.round()
    assert len(leader.ranges_of()) == 4
    assert journalled(leader, "split", WHOLE)["why"]["parts"] == 4
    history = leader.node.mirror.model.bundle_averages("t/ns")
    assert sum(each.long[0] for each in history.values()) == pytest.approx(50_000)


async def test_bundle_with_one_hot_topic_is_not_split(cluster: Cluster, leader: RunningNode) -> None:
    agent = await two_brokers(cluster)
    agent.topics[TOPICS[0]] = (49_000.0, 49_000.0, 1.0, 1.0)
    await reported(cluster, {WHOLE: load_of(0.1, msg_rate=50_000.0, topics=40)})
    await leader.node.reshaping.round()
    assert len(leader.ranges_of()) == 1
    entry = journalled(leader, "split", WHOLE)
    assert (entry["reason"], entry["acted"]) == ("one_hot_topic", False)
    assert "partition the topic" in entry["sentence"]


async def test_rejected_report_splits_nothing(cluster: Cluster, leader: RunningNode) -> None:
    agent = await two_brokers(cluster)
    record = a_record("b1:8080", {WHOLE: MANY}, agent_url=agent.url)
    await agent.report({**record, "lastUpdate": 1_700_000_000_000})
    gate = leader.node.mirror.gate
    await eventually(lambda: gate.find_fault(BrokerId("b1:8080")) is not None)
    await leader.node.reshaping.round()
    assert len(leader.ranges_of()) == 1
    entry = journalled(leader, "split", "b1:8080")
    assert entry["reason"] == "report_not_believed"
    assert " s old" in entry["sentence"]


async def test_bundle_limit_names_the_exceeded_limit(cluster: Cluster, leader: RunningNode) -> None:
    await two_brokers(cluster)
    configure(leader, loadBalancerNamespaceMaximumBundles="1")
    await reported(cluster, {WHOLE: MANY})
    await leader.node.reshaping.round()
    assert len(leader.ranges_of()) == 1
    entry = journalled(leader, "split", WHOLE)
    assert entry["reason"] == "namespace_has_maximum_bundles"
    assert "though it is above loadBalancerNamespaceBundleMaxTopics" in entry["sentence"]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"loadBalancerAutoBundleSplitEnabled": "false"}, "splitting_disabled"),
        ({"defaultNamespaceBundleSplitAlgorithm": "specified_positions_divide"}, "split_failed"),
    ],
)
async def test_round_without_splits(cluster: Cluster, leader: RunningNode, values: dict[str, str], reason: str) -> None:
    await two_brokers(cluster)
    configure(leader, **values)
    await reported(cluster, {WHOLE: MANY})
    await leader.node.reshaping.round()
    assert len(leader.ranges_of()) == 1
    assert journalled(leader, "split", "cluster")["reason"] == reason


async def test_split_needs_two_brokers(cluster: Cluster, leader: RunningNode) -> None:
    await two_brokers(cluster)
    await cluster.brokers["b2:8080"].leave()
    await eventually(lambda: len(leader.node.mirror.brokers) == 1)
    await reported(cluster, {WHOLE: MANY})
    await leader.node.reshaping.round()
    entry = journalled(leader, "split", "cluster")
    assert entry["sentence"] == "No split because two brokers are needed, and 1 are registered"


async def test_no_split_without_needed_topics(cluster: Cluster, leader: RunningNode) -> None:
    agent = await two_brokers(cluster)
    agent.topics_status = 503
    configure(leader, defaultNamespaceBundleSplitAlgorithm="topic_count_equally_divide")
    await reported(cluster, {WHOLE: MANY})
    await leader.node.reshaping.round()
    entry = journalled(leader, "split", WHOLE)
    assert entry["reason"] == "owner_silent"
    assert "answered 503" in entry["sentence"]
    configure(leader, defaultNamespaceBundleSplitAlgorithm="range_equally_divide")
    await reported(cluster, {WHOLE: MANY})
    await leader.node.reshaping.round()
    assert leader.ranges_of() == CUT


@pytest.mark.parametrize(
    ("controls", "subject", "sentence"),
    [
        (Controls(frozen="maintenance"), "cluster", "No split or merge because the balancer is frozen: maintenance"),
        (
            Controls(pinned={WHOLE: BrokerId("b1:8080")}),
            WHOLE,
            "No split because an operator pinned it to b1:8080",
        ),
        (Controls(frozen_bundles={WHOLE: "slow disks"}), WHOLE, "No split because an operator froze it: slow disks"),
    ],
)
async def test_held_bundle_is_not_split(
    cluster: Cluster, leader: RunningNode, controls: Controls, subject: str, sentence: str
) -> None:
    await two_brokers(cluster)
    control(leader, controls)
    await reported(cluster, {WHOLE: MANY})
    await leader.node.reshaping.round()
    assert len(leader.ranges_of()) == 1
    assert journalled(leader, "split", subject)["sentence"] == sentence


async def test_dry_run_logs_the_split(cluster: Cluster, leader: RunningNode) -> None:
    await two_brokers(cluster)
    control(leader, Controls(dry_run=True))
    await reported(cluster, {WHOLE: MANY})
    await leader.node.reshaping.round()
    assert len(leader.ranges_of()) == 1
    entry = journalled(leader, "would_split", WHOLE)
    assert (entry["acted"], entry["reason"], entry["source"]) == (False, "topics", "b1:8080")


async def test_part_moves_to_its_placement(cluster: Cluster, leader: RunningNode) -> None:
    await two_brokers(cluster)
    configure(leader, loadBalancerAutoUnloadSplitBundlesEnabled="true")
    await reported(cluster, {WHOLE: load_of(0.1, msg_rate=100_000.0, topics=40)})
    await leader.node.reshaping.round()
    state = leader.node.mirror.namespaces["t/ns"].state
    owners = [str(each.owner.broker) for each in state.ownerships if each.owner]
    assert len(owners) == 2
    assert "b2:8080" in owners
    moved = next(name for name, owner in zip(state.bundle_names(), owners, strict=True) if owner == "b2:8080")
    assert journalled(leader, "unload", moved)["sentence"].startswith("Moved because it is part of a split bundle")
    stays = [name for name, owner in zip(state.bundle_names(), owners, strict=True) if owner == "b1:8080"]
    assert all(journalled(leader, "split", name)["reason"] == "split_part_stays" for name in stays)


async def test_churn_limits_keep_a_part(cluster: Cluster, leader: RunningNode) -> None:
    await two_brokers(cluster)
    configure(leader, loadBalancerAutoUnloadSplitBundlesEnabled="true", loadBalancerMaxLoadMovedPerCyclePercentage="0")
    await reported(cluster, {WHOLE: load_of(0.1, msg_rate=100_000.0, topics=40)})
    await leader.node.reshaping.round()
    state = leader.node.mirror.namespaces["t/ns"].state
    assert {each.owner.broker for each in state.ownerships if each.owner} == {"b1:8080"}
    assert "moved_enough_this_round" in {journalled(leader, "split", name)["reason"] for name in state.bundle_names()}


async def test_extensible_rule_splits_after_enough_hits(cluster: Cluster, leader: RunningNode) -> None:
    await two_brokers(cluster)
    configure(leader, loadManagerClassName=EXTENSIBLE, loadBalancerNamespaceBundleSplitConditionHitCountThreshold="2")
    await reported(cluster, {WHOLE: MANY})
    for hits in (1, 2):
        await leader.node.reshaping.round()
        entry = journalled(leader, "split", WHOLE)
        assert (entry["reason"], entry["why"]["hits"]) == ("too_few_split_hits", hits)
    incarnation = cluster.brokers["b1:8080"].registration.incarnation
    remembered = {"hits": {"b1:8080": [incarnation, {WHOLE: 2}]}}
    assert leader.node.planner.memory["DefaultNamespaceBundleSplitStrategyImpl"] == remembered
    memory = leader.node.planner.forget()
    assert leader.node.planner.split_state == {}
    await leader.node.planner.restore(memory)
    await leader.node.reshaping.round()
    assert leader.ranges_of() == CUT
    assert leader.node.planner.split_state == {"hits": {}}


async def test_simple_load_manager_splits_by_latest_rates(cluster: Cluster, leader: RunningNode) -> None:
    await two_brokers(cluster)
    configure(leader, loadManagerClassName="org.apache.pulsar.broker.loadbalance.impl.SimpleLoadManagerImpl")
    for _ in range(3):
        await reported(cluster, {WHOLE: load_of(0.1, msg_rate=10_000.0, topics=40)})
    await leader.node.reshaping.round()
    assert len(leader.ranges_of()) == 1
    await reported(cluster, {WHOLE: load_of(0.1, msg_rate=16_000.0, topics=40)})
    await leader.node.reshaping.round()
    assert journalled(leader, "split", WHOLE)["why"]["msg_rate_per_s"] == 32_000.0
    assert leader.ranges_of() == CUT


async def test_bundle_below_the_limits_again_loses_its_hits(cluster: Cluster, leader: RunningNode) -> None:
    await two_brokers(cluster)
    configure(leader, loadManagerClassName=EXTENSIBLE)
    await reported(cluster, {WHOLE: MANY})
    await leader.node.reshaping.round()
    await reported(cluster, {WHOLE: load_of(0.1, topics=5)})
    await leader.node.reshaping.round()
    assert leader.node.planner.split_state == {"hits": {}}
    assert journalled(leader, "split", WHOLE)["reason"] == "below_split_limits"


async def test_invalid_hits_are_dropped(cluster: Cluster, leader: RunningNode) -> None:
    await two_brokers(cluster)
    configure(leader, loadManagerClassName=EXTENSIBLE)
    leader.node.planner.split_state = {"hits": {"b1:8080": "garbage"}}
    await reported(cluster, {WHOLE: MANY})
    with pytest.raises(ValueError, match="unpack"):
        await leader.node.reshaping.round()
    await leader.node.reshaping.round()
    assert journalled(leader, "split", WHOLE)["reason"] == "too_few_split_hits"


async def test_bundle_reported_by_another_broker_is_not_split(cluster: Cluster, leader: RunningNode) -> None:
    await two_brokers(cluster)
    other = cluster.brokers["b2:8080"]
    configure(leader, loadManagerClassName=EXTENSIBLE)
    await other.report(a_record("b2:8080", {WHOLE: MANY}, agent_url=other.url))
    await eventually(lambda: any(each.bundle_names for each in leader.node.mirror.model.latest_reports().values()))
    await leader.node.reshaping.round()
    assert journalled(leader, "split", WHOLE)["reason"] == "not_owned"


async def test_agent_with_outdated_bundles_gets_the_boundaries(cluster: Cluster, leader: RunningNode) -> None:
    agent = await two_brokers(cluster, number_of_bundles=2)
    assert agent.boundaries == []
    await reported(cluster, {WHOLE: load_of(0.1)})
    assert leader.node.mirror.model.bundles_ignored == 1
    await leader.node.reshaping.round()
    await eventually(lambda: agent.boundaries == [("t/ns", ["0x00000000", "0x80000000", "0xffffffff"])])


async def test_failed_split_is_counted(cluster: Cluster, leader: RunningNode, monkeypatch: pytest.MonkeyPatch) -> None:
    await two_brokers(cluster)
    await reported(cluster, {WHOLE: MANY})
    monkeypatch.setattr(metadata_store, "MAX_ZNODE_BYTES", 300)
    await leader.node.reshaping.round()
    assert len(leader.ranges_of()) == 1
    entry = journalled(leader, "split", WHOLE)
    assert entry["sentence"].startswith("No split because it failed: ")
    metrics = (await leader.get("/metrics")).body.decode()
    label = 'metric="bundlesSplit",reason="Unknown",result="Failure"'
    assert f'pulsar_lb_bundles_split_breakdown_total{{cluster="standalone",{label}}} 1.0' in metrics


# Merging


@pytest.fixture(autouse=True)
def merges_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmanager.core.strategies.merging.MIN_AGE_S", 0.0)
    monkeypatch.setattr("loadmanager.core.strategies.merging.MIN_BUNDLES", 2)


async def cold_neighbours(cluster: Cluster, number_of_bundles: int = 4) -> RunningNode:
    await two_brokers(cluster, number_of_bundles)
    leader = cluster.nodes[0]
    configure(
        leader,
        loadBalancerAutoBundleMergeEnabled="true",
    )
    names = leader.node.mirror.namespaces["t/ns"].state.bundle_names()
    await reported(cluster, {name: load_of(0.01, msg_rate=1.0) for name in names[:-1]})
    return leader


async def test_cold_neighbours_are_merged_down_to_the_minimum_one_in_a_round(cluster: Cluster) -> None:
    leader = await cold_neighbours(cluster)
    await leader.node.reshaping.round()
    assert leader.ranges_of() == ["0x00000000_0x40000000", "0x40000000_0x80000000", "0x80000000_0xffffffff"]
    entry = journalled(leader, "merge", "t/ns/0x80000000_0xc0000000")
    assert (entry["reason"], entry["acted"], entry["source"]) == ("cold_neighbours", True, "b1:8080")
    await leader.node.reshaping.round()
    await leader.node.reshaping.round()
    assert len(leader.ranges_of()) == 2
    assert journalled(leader, "merge", "t/ns")["reason"] == "namespace_has_minimum_bundles"
    label = 'reason="cold_neighbours"'
    metrics = (await leader.get("/metrics")).body.decode()
    assert f'loadmanager_bundle_merges_total{{cluster="standalone",{label}}} 2.0' in metrics


async def test_nothing_is_merged_unless_enabled(cluster: Cluster, leader: RunningNode) -> None:
    await two_brokers(cluster, number_of_bundles=8)
    await leader.node.reshaping.round()
    assert len(leader.ranges_of()) == 8
    assert journalled(leader, "merge", "cluster")["sentence"] == (
        "No merge because loadBalancerAutoBundleMergeEnabled is false"
    )


async def test_recently_changed_neighbours_are_not_merged(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = await cold_neighbours(cluster)
    monkeypatch.setattr("loadmanager.core.strategies.merging.MIN_AGE_S", 3_600.0)
    await leader.node.reshaping.round()
    assert len(leader.ranges_of()) == 4
    entry = journalled(leader, "merge", "t/ns")
    assert (entry["reason"], entry["why"]["young"]) == ("no_cold_neighbours", 3)


async def test_held_neighbours_are_not_merged_and_a_dry_run_only_logs(cluster: Cluster) -> None:
    leader = await cold_neighbours(cluster)
    names = leader.node.mirror.namespaces["t/ns"].state.bundle_names()
    control(leader, Controls(frozen_bundles=dict.fromkeys(names[1:3], "slow disks")))
    await leader.node.reshaping.round()
    assert journalled(leader, "merge", "t/ns")["why"]["held"] == 3
    control(leader, Controls(dry_run=True))
    await reported(cluster, {})
    await leader.node.reshaping.round()
    assert len(leader.ranges_of()) == 4
    said = journalled(leader, "would_merge", names[0])
    assert (said["acted"], said["destination"]) == (False, said["source"])
    assert said["source"] is not None


async def test_failed_merge_is_logged(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = await cold_neighbours(cluster)
    monkeypatch.setattr(metadata_store, "MAX_ZNODE_BYTES", 300)
    await leader.node.reshaping.round()
    assert len(leader.ranges_of()) == 4
    entry = journalled(leader, "merge", "t/ns/0x80000000_0xc0000000")
    assert (entry["reason"], entry["acted"]) == ("merge_failed", False)
