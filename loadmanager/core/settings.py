"""What an operator can set about decisions; the names and units are Pulsar's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from loadmanager.core.load import ResourceWeights

SUPPORTED_SPLIT_ALGORITHMS = (
    "range_equally_divide",
    "topic_count_equally_divide",
    "specified_positions_divide",
    "flow_or_qps_equally_divide",
)


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """Every setting that a decision depends on, with Pulsar's defaults. Percentages are whole, as Pulsar writes them.

    Each field is Pulsar's key without `loadBalancer`, as its comment says.
    """

    load_balancer_enabled: bool = True  # loadBalancerEnabled
    load_manager_class_name: str = ""  # loadManagerClassName; empty: the modular rules, and brokers may run any class
    placement_strategy: str = "LeastLongTermMessageRate"  # loadBalancerLoadPlacementStrategy
    simple_placement_strategy: str = "leastLoadedServer"  # loadBalancerPlacementStrategy, of SimpleLoadManagerImpl
    broker_underloaded_threshold_percentage: float = 50  # loadBalancerBrokerUnderloadedThresholdPercentage
    broker_comfort_load_level_percentage: float = 65  # loadBalancerBrokerComfortLoadLevelPercentage
    resource_quota_update_interval_minutes: float = 15  # loadBalancerResourceQuotaUpdateIntervalMinutes
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
    msg_rate_difference_shedder_threshold: float = 50  # loadBalancerMsgRateDifferenceShedderThreshold
    msg_throughput_multiplier_difference_shedder_threshold: float = 4  # loadBalancerMsgThroughputMultiplierDiffer...
    min_unload_message: int = 1000  # minUnloadMessage, messages/s
    min_unload_message_throughput: int = 1024 * 1024  # minUnloadMessageThroughput, bytes/s
    max_unload_percentage: float = 0.2  # maxUnloadPercentage, a fraction
    max_unload_bundle_num_per_shedding: int = -1  # maxUnloadBundleNumPerShedding, -1 for no limit
    avg_shedder_low_threshold: float = 15  # loadBalancerAvgShedderLowThreshold, points
    avg_shedder_high_threshold: float = 40  # loadBalancerAvgShedderHighThreshold, points
    avg_shedder_hit_count_low_threshold: int = 8  # loadBalancerAvgShedderHitCountLowThreshold
    avg_shedder_hit_count_high_threshold: int = 2  # loadBalancerAvgShedderHitCountHighThreshold
    average_resource_usage_difference_threshold_percentage: float = 10  # loadBalancerAverageResourceUsageDifference...
    prefer_later_versions: bool = False  # preferLaterVersions
    failure_domains_enabled: bool = False  # failureDomainsEnabled
    broker_load_target_std: float = 0.25  # loadBalancerBrokerLoadTargetStd, a fraction
    shedding_condition_hit_count_threshold: int = 3  # loadBalancerSheddingConditionHitCountThreshold
    transfer_enabled: bool = True  # loadBalancerTransferEnabled
    max_number_of_broker_shedding_per_cycle: int = 3  # loadBalancerMaxNumberOfBrokerSheddingPerCycle
    shedding_delay_in_seconds: int = 180  # loadBalanceSheddingDelayInSeconds (without the r)
    broker_load_data_ttl_in_seconds: int = 1800  # loadBalancerBrokerLoadDataTTLInSeconds
    max_number_of_bundles_in_bundle_load_report: int = 10  # loadBalancerMaxNumberOfBundlesInBundleLoadReport
    shedding_bundles_with_policies_enabled: bool = False  # loadBalancerSheddingBundlesWithPoliciesEnabled
    auto_bundle_split_enabled: bool = True  # loadBalancerAutoBundleSplitEnabled
    namespace_bundle_max_topics: int = 1000  # loadBalancerNamespaceBundleMaxTopics
    namespace_bundle_max_sessions: int = 1000  # loadBalancerNamespaceBundleMaxSessions, 0 or less for no limit
    namespace_bundle_max_msg_rate: int = 30_000  # loadBalancerNamespaceBundleMaxMsgRate, messages/s
    namespace_bundle_max_bandwidth_mbytes: int = 100  # loadBalancerNamespaceBundleMaxBandwidthMbytes, MiB/s
    namespace_maximum_bundles: int = 128  # loadBalancerNamespaceMaximumBundles
    namespace_bundle_split_algorithm: str = "range_equally_divide"  # defaultNamespaceBundleSplitAlgorithm
    supported_split_algorithms: tuple[str, ...] = SUPPORTED_SPLIT_ALGORITHMS  # supportedNamespaceBundleSplitAlgorithms
    flow_or_qps_difference_threshold_percentage: float = 10  # flowOrQpsDifferenceThresholdPercentage
    max_number_of_bundles_to_split_per_cycle: int = 10  # loadBalancerMaxNumberOfBundlesToSplitPerCycle
    namespace_bundle_split_condition_hit_count_threshold: int = 3  # loadBalancerNamespaceBundleSplitConditionHit...
    auto_bundle_merge_enabled: bool = False  # loadBalancerAutoBundleMergeEnabled, ours
    bundle_merge_max_topics: int = 100  # loadBalancerBundleMergeMaxTopics, ours
    bundle_merge_max_sessions: int = 100  # loadBalancerBundleMergeMaxSessions, ours
    bundle_merge_max_msg_rate: int = 1_000  # loadBalancerBundleMergeMaxMsgRate, ours, messages/s
    bundle_merge_max_bandwidth_mbytes: int = 5  # loadBalancerBundleMergeMaxBandwidthMbytes, ours, MiB/s
    bundle_merge_min_age_minutes: float = 60  # loadBalancerBundleMergeMinAgeMinutes, ours
    namespace_minimum_bundles: int = 4  # loadBalancerNamespaceMinimumBundles, ours
    max_load_moved_per_cycle_percentage: float = 50  # loadBalancerMaxLoadMovedPerCyclePercentage
    max_load_moved_per_hour_percentage: float = 100  # loadBalancerMaxLoadMovedPerHourPercentage
    return_cool_down_minutes: float = 60  # loadBalancerReturnCoolDownMinutes
    thrash_window_minutes: float = 60  # loadBalancerThrashWindowMinutes
    max_bundle_returns: int = 2  # loadBalancerMaxBundleReturns
    thrash_bundle_freeze_minutes: float = 60  # loadBalancerThrashBundleFreezeMinutes
    thrash_threshold_percentage: float = 20  # loadBalancerThrashThresholdPercentage
    thrash_shedding_stop_minutes: float = 30  # loadBalancerThrashSheddingStopMinutes
    memory_resource_weight: float = 0.0  # loadBalancerMemoryResourceWeight, for averaged loads alone
    resource_weights: ResourceWeights = field(default_factory=ResourceWeights)  # loadBalancer*ResourceWeight


def is_extensible(settings: PlannerSettings) -> bool:
    """Whether Pulsar's ExtensibleLoadManagerImpl is configured."""
    return short_class_name(settings.load_manager_class_name) == "ExtensibleLoadManagerImpl"


def is_simple(settings: PlannerSettings) -> bool:
    """Whether the whole of Pulsar's SimpleLoadManagerImpl is configured: it brings its own strategies and filters."""
    return short_class_name(settings.load_manager_class_name) == "SimpleLoadManagerImpl"


class UnknownStrategyError(ValueError):
    """The configuration names a strategy that does not exist; the message lists those that do."""


_Factory = TypeVar("_Factory")


def short_class_name(name: str) -> str:
    """A Java class name without its package."""
    return name.rpartition(".")[2]


def get_by_name(key: str, name: str, factories: Mapping[str, _Factory]) -> tuple[str, _Factory]:
    """The strategy under its short name, or under a Java class name that ends in it (`org.apache....ThresholdShedder`).

    Pulsar has two classes of one short name: that of the package `extensions` is called `<short name>Extensible` here.
    Raises `UnknownStrategyError`, naming the configuration `key`.
    """
    package, _, short = name.rpartition(".")
    if "extensions" in package.split(".") and f"{short}Extensible" in factories:
        short = f"{short}Extensible"
    if short not in factories:
        raise UnknownStrategyError(f"{key} {name!r}: expected one of {', '.join(factories)}")
    return short, factories[short]
