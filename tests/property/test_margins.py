from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from support.deep import at_most
from support.random_clusters import Build, SomeCluster, clusters

from loadmanager.core.domain.reasons import SheddingReason
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import CPU, MSG_RATE_IN, THROUGHPUT_IN
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.strategies.shedding import shedding_strategy
from loadmanager.core.strategies.shedding.avg_shedder import AvgSheddingReason
from loadmanager.core.strategies.shedding.shedding_strategy import MIB, Shed, SheddingStrategy
from loadmanager.core.strategies.shedding.threshold_shedder import ThresholdReason
from loadmanager.core.strategies.shedding.transfer_shedder import TransferReason
from loadmanager.core.strategies.shedding.uniform_shedder import UniformReason

examples = hypothesis_settings(
    at_most(50),
    # Many drawn clusters have no waiting broker or none above a threshold and are discarded.
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)

_NEAR = 0.01
"""Tolerance in points: usage is a 32-bit float, and margins have a resolution of 0.001."""
_BELOW = {
    SheddingReason.BELOW_THRESHOLD,
    AvgSheddingReason.CLOSE_TO_PARTNER,
    AvgSheddingReason.LESS_USED_PARTNER,
    ThresholdReason.CLUSTER_IDLE,
    UniformReason.DIFFERENCES_SMALL,
    UniformReason.NOT_THE_BUSIEST,
}


def strategy_of(name: str) -> SheddingStrategy:
    return shedding_strategy(PlannerSettings(shedding_strategy=name))[1]


def with_more_usage(snapshot: Snapshot, broker: int, points: float) -> Snapshot:
    percent = snapshot.brokers.usage_percent.copy()
    percent[broker, CPU] += points
    assert snapshot.broker_load is not None
    average = snapshot.broker_load.weighted_max_ema.copy()
    average[broker] += points / 100
    return replace(
        snapshot,
        brokers=replace(snapshot.brokers, usage_percent=percent),
        broker_load=replace(snapshot.broker_load, weighted_max_ema=average),
        _derived={},
    )


def with_more_load(snapshot: Snapshot, broker: int, metric: int, amount: float) -> Snapshot:
    load = snapshot.brokers.load.copy()
    load[broker, metric] += amount
    return replace(snapshot, brokers=replace(snapshot.brokers, load=load), _derived={})


def reaches(strategy: SheddingStrategy, snapshot: Snapshot, broker: int) -> bool:
    """Return true if the verdict says that this broker has reached its threshold."""
    verdicts = strategy.find_bundles_for_unloading(snapshot, {}).verdicts
    about = [each for each in verdicts if each.subject in (snapshot.brokers.ids[broker], "cluster")]
    return all(each.verdict not in _BELOW for each in about)


@pytest.mark.parametrize("name", ["OverloadShedder", "ThresholdShedder", "AvgShedder", "SimpleLoadManagerImpl"])
@examples
@given(cluster=clusters(settled=True, fewest_brokers=2), data=st.data())
def test_broker_sheds_from_its_margin_on(name: str, cluster: SomeCluster, data: st.DataObject) -> None:
    strategy, snapshot = strategy_of(name), Build().snapshot(cluster)
    broker = data.draw(st.integers(0, len(snapshot.brokers) - 1))
    margin = strategy.find_margin(snapshot, {}, broker)
    if reaches(strategy, snapshot, broker):
        assert "usage_points" not in margin
        return
    points = float(margin["usage_points"])
    assert reaches(strategy, with_more_usage(snapshot, broker, points + _NEAR), broker)
    assert points < _NEAR or not reaches(strategy, with_more_usage(snapshot, broker, points - _NEAR), broker)


@examples
@given(cluster=clusters(settled=True, fewest_brokers=2), data=st.data())
def test_transfer_shedder_counts_from_the_margin_on(cluster: SomeCluster, data: st.DataObject) -> None:
    strategy, snapshot = strategy_of("TransferShedder"), Build().snapshot(cluster)
    broker = data.draw(st.integers(0, len(snapshot.brokers) - 1))
    margin = strategy.find_margin(snapshot, {}, broker)
    assume("usage_points" in margin)

    def counts(points: float) -> bool:
        raised = with_more_usage(snapshot, broker, points)
        assert raised.broker_load is not None
        usage = raised.broker_load.weighted_max_ema
        is_most_used = int(np.flatnonzero(usage == usage.max())[-1]) == broker
        return is_most_used and strategy.find_bundles_for_unloading(raised, {}).state["hits"] == 1

    points = float(margin["usage_points"])
    assert margin["rounds"] == PlannerSettings().shedding_condition_hit_count_threshold + 1
    assert counts(points + _NEAR)
    assert points < _NEAR or not counts(points - _NEAR)


@examples
@given(cluster=clusters(settled=True, fewest_brokers=2), data=st.data())
def test_uniform_shedder_chooses_a_broker_from_its_margin_on(cluster: SomeCluster, data: st.DataObject) -> None:
    strategy, snapshot = strategy_of("UniformLoadShedder"), Build().snapshot(cluster)
    broker = data.draw(st.integers(0, len(snapshot.brokers) - 1))
    assume(not reaches(strategy, snapshot, broker))
    margin = strategy.find_margin(snapshot, {}, broker)
    for name, metric, unit in (("msg_rate_per_s", MSG_RATE_IN, 1), ("mib_per_s", THROUGHPUT_IN, MIB)):
        if name in margin:
            amount = float(margin[name]) * unit
            near = max(1.0, amount * 1e-6)
            assert rule_of(strategy, with_more_load(snapshot, broker, metric, amount + near), broker, name)
            assert not rule_of(strategy, with_more_load(snapshot, broker, metric, amount - near), broker, name)


def rule_of(strategy: SheddingStrategy, snapshot: Snapshot, broker: int, name: str) -> bool:
    """Return true if the rule of that measure selects this broker."""
    shed: Shed = strategy.find_bundles_for_unloading(snapshot, {})
    need = "need_msg_rate_per_s" if name == "msg_rate_per_s" else "need_mib_per_s"
    chosen = [each.subject for each in shed.verdicts if need in each.why]
    by_rate = any("need_msg_rate_per_s" in each.why for each in shed.verdicts)
    assume(name == "msg_rate_per_s" or not by_rate)
    return chosen == [snapshot.brokers.ids[broker]]


@pytest.mark.parametrize("name", ["AvgShedder", "TransferShedder"])
@examples
@given(cluster=clusters(settled=True, fewest_brokers=2, fewest_bundles=4), data=st.data())
def test_margin_in_rounds_counts_until_the_broker_sheds(name: str, cluster: SomeCluster, data: st.DataObject) -> None:
    strategy, snapshot = strategy_of(name), Build().snapshot(cluster)
    margins = [strategy.find_margin(snapshot, {}, broker) for broker in range(len(snapshot.brokers))]
    waiting_brokers = [row for row, margin in enumerate(margins) if "rounds" in margin and "usage_points" not in margin]
    assume(waiting_brokers)
    broker = data.draw(st.sampled_from(waiting_brokers))
    margin = margins[broker]
    waiting = {AvgSheddingReason.TOO_FEW_HITS, TransferReason.HIT_COUNT}
    state: dict[str, object] = {}
    for rounds_left in range(int(margin["rounds"]), 0, -1):
        assert strategy.find_margin(snapshot, state, broker) == {"rounds": rounds_left}
        shed = strategy.find_bundles_for_unloading(snapshot, state)
        subject = snapshot.brokers.ids[broker]
        waits = any(each.verdict in waiting and each.subject in (subject, "cluster") for each in shed.verdicts)
        if rounds_left > 1:
            assert waits
            state = shed.state
        elif name == "AvgShedder":
            assert not waits
