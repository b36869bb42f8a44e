from __future__ import annotations

import pytest

from loadmanager.core.domain.settings import PlannerSettings, UnknownStrategyError
from loadmanager.core.strategies.placement import PLACEMENT_STRATEGIES, placement_strategy
from loadmanager.core.strategies.placement.least_long_term_message_rate import LeastLongTermMessageRate
from loadmanager.core.strategies.placement.least_resource_usage import LeastResourceUsageWithWeight
from loadmanager.core.strategies.placement.least_resource_usage_extensible import (
    LeastResourceUsageWithWeightExtensible,
)
from loadmanager.core.strategies.shedding import SHEDDING_STRATEGIES, shedding_strategy
from loadmanager.core.strategies.shedding.threshold_shedder import ThresholdShedder


def test_pulsars_java_class_names_are_accepted() -> None:
    settings = PlannerSettings(
        shedding_strategy="org.apache.pulsar.broker.loadbalance.impl.ThresholdShedder",
        placement_strategy="org.apache.pulsar.broker.loadbalance.impl.LeastLongTermMessageRate",
    )
    assert shedding_strategy(settings) == ("ThresholdShedder", ThresholdShedder(settings))
    assert placement_strategy(settings) == ("LeastLongTermMessageRate", LeastLongTermMessageRate(settings))


def test_every_strategy_can_be_configured_by_its_short_name() -> None:
    assert [shedding_strategy(PlannerSettings(shedding_strategy=name))[0] for name in SHEDDING_STRATEGIES] == [
        *SHEDDING_STRATEGIES
    ]
    assert [placement_strategy(PlannerSettings(placement_strategy=name))[0] for name in PLACEMENT_STRATEGIES] == [
        *PLACEMENT_STRATEGIES
    ]


def test_java_package_selects_the_extensible_class() -> None:
    name = "LeastResourceUsageWithWeight"
    modular = PlannerSettings(placement_strategy=f"org.apache.pulsar.broker.loadbalance.impl.{name}")
    extensible = PlannerSettings(placement_strategy=f"org.apache.pulsar.broker.loadbalance.extensions.strategy.{name}")
    assert placement_strategy(modular) == (name, LeastResourceUsageWithWeight(modular))
    assert placement_strategy(extensible) == (
        f"{name}Extensible",
        LeastResourceUsageWithWeightExtensible(extensible),
    )


def test_unknown_strategy_is_refused_with_key_and_alternatives() -> None:
    with pytest.raises(UnknownStrategyError, match=r"loadBalancerLoadSheddingStrategy 'Best': .*ThresholdShedder"):
        shedding_strategy(PlannerSettings(shedding_strategy="Best"))
    with pytest.raises(UnknownStrategyError, match="loadBalancerLoadPlacementStrategy"):
        placement_strategy(PlannerSettings(placement_strategy="Best"))
