"""What an operator can set about decisions; the names and units are Pulsar's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from loadmanager.core.load import ResourceWeights


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """Every setting that a decision depends on, with Pulsar's defaults. Percentages are whole, as Pulsar writes them.

    Each field is Pulsar's key without `loadBalancer`, as its comment says.
    """

    load_balancer_enabled: bool = True  # loadBalancerEnabled
    placement_strategy: str = "LeastLongTermMessageRate"  # loadBalancerLoadPlacementStrategy
    shedding_enabled: bool = True  # loadBalancerSheddingEnabled
    shedding_strategy: str = "ThresholdShedder"  # loadBalancerLoadSheddingStrategy
    shedding_excluded_namespaces: frozenset[str] = frozenset()  # loadBalancerSheddingExcludedNamespaces
    distribute_bundles_evenly_enabled: bool = True  # loadBalancerDistributeBundlesEvenlyEnabled
    broker_max_topics: int = 50_000  # loadBalancerBrokerMaxTopics
    broker_overloaded_threshold_percentage: float = 85  # loadBalancerBrokerOverloadedThresholdPercentage
    broker_threshold_shedder_percentage: float = 10  # loadBalancerBrokerThresholdShedderPercentage
    lower_boundary_shedding_enabled: bool = False  # lowerBoundarySheddingEnabled
    bundle_unload_min_throughput_threshold: float = 10.0  # loadBalancerBundleUnloadMinThroughputThreshold, MiB/s
    history_resource_percentage: float = 0.9  # loadBalancerHistoryResourcePercentage, a fraction
    resource_weights: ResourceWeights = field(default_factory=ResourceWeights)  # loadBalancer*ResourceWeight


class UnknownStrategyError(ValueError):
    """The configuration names a strategy that does not exist; the message lists those that do."""


_Factory = TypeVar("_Factory")


def get_by_name(key: str, name: str, factories: Mapping[str, _Factory]) -> tuple[str, _Factory]:
    """The strategy under its short name, or under a Java class name that ends in it (`org.apache....ThresholdShedder`).

    Raises `UnknownStrategyError`, naming the configuration `key`.
    """
    short = name.rpartition(".")[2]
    if short not in factories:
        raise UnknownStrategyError(f"{key} {name!r}: expected one of {', '.join(factories)}")
    return short, factories[short]
