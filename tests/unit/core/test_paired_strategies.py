from __future__ import annotations

from pathlib import Path

import pytest

from loadmanager.config.node_settings import Settings
from loadmanager.config.settings_loader import load_settings
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.strategies.shedding import (
    PAIRED_STRATEGIES,
    UnpairedStrategyError,
    require_pair,
)
from loadmanager.errors import ConfigurationError

PACKAGE = "org.apache.pulsar.broker.loadbalance.impl."
BOTH_KEYS = r"loadBalancerLoadSheddingStrategy '.*' and loadBalancerLoadPlacementStrategy '.*AvgShedder has to be both"
HALVES = pytest.mark.parametrize(
    ("shedding", "placement"),
    [("AvgShedder", "LeastLongTermMessageRate"), ("ThresholdShedder", PACKAGE + "AvgShedder")],
)


@HALVES
def test_unpaired_strategy_is_refused_with_both_keys(shedding: str, placement: str) -> None:
    with pytest.raises(UnpairedStrategyError, match=BOTH_KEYS):
        require_pair(PlannerSettings(shedding_strategy=shedding, placement_strategy=placement))


def test_paired_and_independent_strategies_are_accepted() -> None:
    require_pair(PlannerSettings())
    for name in PAIRED_STRATEGIES:
        require_pair(PlannerSettings(shedding_strategy=PACKAGE + name, placement_strategy=name))
    assert "AvgShedder" in PAIRED_STRATEGIES


@HALVES
def test_node_refuses_to_start_with_an_unpaired_strategy(tmp_path: Path, shedding: str, placement: str) -> None:
    path = tmp_path / "loadmanager.yaml"
    path.write_text(f"loadBalancerLoadSheddingStrategy: {shedding}\nloadBalancerLoadPlacementStrategy: {placement}\n")
    with pytest.raises(ConfigurationError, match=BOTH_KEYS) as refused:
        load_settings(Settings, path)
    assert "loadBalancerEnabled" not in str(refused.value)


def test_pulsars_keys_reach_the_planner() -> None:
    settings = load_settings(
        Settings,
        None,
        {
            "loadBalancerLoadSheddingStrategy": "AvgShedder",
            "loadBalancerLoadPlacementStrategy": "AvgShedder",
            "loadBalancerMsgRateDifferenceShedderThreshold": 51,
            "loadBalancerMsgThroughputMultiplierDifferenceShedderThreshold": 5,
            "minUnloadMessage": 1001,
            "minUnloadMessageThroughput": 1002,
            "maxUnloadPercentage": 0.5,
            "maxUnloadBundleNumPerShedding": 3,
            "loadBalancerAvgShedderLowThreshold": 16,
            "loadBalancerAvgShedderHighThreshold": 41,
            "loadBalancerAvgShedderHitCountLowThreshold": 9,
            "loadBalancerAvgShedderHitCountHighThreshold": 4,
        },
    )
    planner = settings.planner_settings()
    assert planner.msg_rate_difference_shedder_threshold == 51
    assert planner.msg_throughput_multiplier_difference_shedder_threshold == 5
    assert (planner.min_unload_message, planner.min_unload_message_throughput) == (1001, 1002)
    assert (planner.max_unload_percentage, planner.max_unload_bundle_num_per_shedding) == (0.5, 3)
    assert (planner.avg_shedder_low_threshold, planner.avg_shedder_high_threshold) == (16, 41)
    assert planner.avg_shedder_hit_count_low_threshold == 9
    assert planner.avg_shedder_hit_count_high_threshold == 4
