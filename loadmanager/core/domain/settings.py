"""Settings of decisions, with Pulsar's names and units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from loadmanager.core.domain.resources import ResourceWeights
from loadmanager.core.domain.setting_declaration import (
    BY_USAGE,
    INT_MAX,
    Fit,
    count,
    declared_in,
    percent,
    setting,
    weight,
)

_MIB = 1024 * 1024

SUPPORTED_SPLIT_ALGORITHMS = (
    "range_equally_divide",
    "topic_count_equally_divide",
    "specified_positions_divide",
    "flow_or_qps_equally_divide",
)

SICK_AFTER_S = 180.0
"""Three reports by default, since one outlier proves nothing. A broker recovers after twice that time."""


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """All settings that decisions depend on, with Pulsar's defaults. Percentages are whole, as Pulsar writes them.

    Each field has the name of its key, most without `loadBalancer`.
    """

    load_balancer_enabled: bool = setting(
        "loadBalancerEnabled", True, "Off: no shedding and no periodic writes; bundles are still assigned at lookup."
    )
    load_manager_class_name: str = setting(
        "loadManagerClassName",
        "",
        (
            "ExtensibleLoadManagerImpl: filter brokers as Pulsar's extensible load manager does; else as its modular"
            " one. If some brokers report this class, the others get no bundle. SimpleLoadManagerImpl: place, shed and"
            " filter as that one does, by loadBalancerPlacementStrategy."
        ),
    )
    placement_strategy: str = setting(
        "loadBalancerLoadPlacementStrategy",
        "LeastLongTermMessageRate",
        "How an owner is chosen; Pulsar's full class names work too.",
    )
    simple_placement_strategy: str = setting(
        "loadBalancerPlacementStrategy",
        "leastLoadedServer",
        (
            "SimpleLoadManagerImpl: leastLoadedServer or leastMsgPerSecond; any other text stands for"
            " weightedRandomSelection."
        ),
    )
    broker_underloaded_threshold_percentage: int = percent(
        "loadBalancerBrokerUnderloadedThresholdPercentage",
        50,
        "leastLoadedServer, leastMsgPerSecond: brokers are filled up to here before an idle one.",
    )
    broker_comfort_load_level_percentage: int = percent(
        "loadBalancerBrokerComfortLoadLevelPercentage",
        65,
        "SimpleLoadManagerImpl: sheds only if some broker is below this usage.",
    )
    resource_quota_update_interval_minutes: float = setting(
        "loadBalancerResourceQuotaUpdateIntervalMinutes",
        15,
        "How often the leader writes the averages of bundles and brokers, if they changed.",
        gt=0,
        le=100_000,
    )
    shedding_enabled: bool = setting("loadBalancerSheddingEnabled", True, "The switch of all automatic unloading.")
    shedding_strategy: str = setting(
        "loadBalancerLoadSheddingStrategy",
        "ThresholdShedder",
        "How bundles are chosen that have to leave their broker.",
    )
    shedding_excluded_namespaces: frozenset[str] = setting(
        "loadBalancerSheddingExcludedNamespaces",
        frozenset(),
        "Namespaces (tenant/namespace) whose bundles are never shed.",
    )
    distribute_bundles_evenly_enabled: bool = setting(
        "loadBalancerDistributeBundlesEvenlyEnabled",
        True,
        "Prefer brokers that hold the fewest bundles of the same namespace.",
    )
    broker_max_topics: int = count(
        "loadBalancerBrokerMaxTopics", 50_000, "Brokers with more topics than this get no further bundle."
    )
    broker_overloaded_threshold_percentage: int = percent(
        "loadBalancerBrokerOverloadedThresholdPercentage",
        85,
        "From this usage on OverloadShedder sheds; above it a broker gets no bundle if another can.",
    )
    broker_threshold_shedder_percentage: int = percent(
        "loadBalancerBrokerThresholdShedderPercentage",
        10,
        "ThresholdShedder: sheds from brokers this many points above the average usage.",
        fits=BY_USAGE,
    )
    lower_boundary_shedding_enabled: bool = setting(
        "lowerBoundarySheddingEnabled",
        False,
        "ThresholdShedder: also shed from the busiest broker when one lies far below the average.",
    )
    bundle_unload_min_throughput_threshold: float = setting(
        "loadBalancerBundleUnloadMinThroughputThreshold",
        10,
        "ThresholdShedder: MiB/s below which moving bundles is not worth it.",
        ge=0,
        fits=Fit("bytes/s", 200 * _MIB),
    )
    history_resource_percentage: float = setting(
        "loadBalancerHistoryResourcePercentage", 0.9, "Weight of the past in a broker's averaged usage.", ge=0, le=1
    )
    msg_rate_difference_shedder_threshold: float = setting(
        "loadBalancerMsgRateDifferenceShedderThreshold",
        50,
        (
            "UniformLoadShedder: sheds when the highest message rate is this many per cent above the lowest; 0 or"
            " less: message rates are not compared."
        ),
    )
    msg_throughput_multiplier_difference_shedder_threshold: float = setting(
        "loadBalancerMsgThroughputMultiplierDifferenceShedderThreshold",
        4,
        (
            "UniformLoadShedder: sheds when the highest throughput is this many times the lowest; 0 or less:"
            " throughputs are not compared."
        ),
    )
    min_unload_message: int = count(
        "minUnloadMessage",
        1_000,
        "UniformLoadShedder, AvgShedder: messages/s below which moving bundles is not worth it.",
        fits=Fit("messages/s", 20_000),
    )
    min_unload_message_throughput: int = count(
        "minUnloadMessageThroughput",
        _MIB,
        "UniformLoadShedder, AvgShedder: bytes/s below which moving bundles is not worth it.",
        fits=Fit("bytes/s", 20 * _MIB),
    )
    max_unload_percentage: float = setting(
        "maxUnloadPercentage",
        0.2,
        "UniformLoadShedder, AvgShedder: the part of a difference that is moved; 0.5 makes both equal.",
        ge=0,
        le=1,
    )
    max_unload_bundle_num_per_shedding: int = setting(
        "maxUnloadBundleNumPerShedding",
        -1,
        "UniformLoadShedder: bundles that may be shed in a round; -1: any number.",
        ge=-1,
    )
    avg_shedder_low_threshold: int = percent(
        "loadBalancerAvgShedderLowThreshold",
        15,
        "AvgShedder: points between two brokers' usages from which on a round is a low hit.",
        fits=BY_USAGE,
    )
    avg_shedder_high_threshold: int = percent(
        "loadBalancerAvgShedderHighThreshold",
        40,
        "AvgShedder: points between two brokers' usages from which on a round is a high hit too.",
        fits=BY_USAGE,
    )
    avg_shedder_hit_count_low_threshold: int = setting(
        "loadBalancerAvgShedderHitCountLowThreshold",
        8,
        "AvgShedder: low hits in a row after which a broker sheds to its partner.",
        ge=0,
        le=1_000_000,
    )
    avg_shedder_hit_count_high_threshold: int = setting(
        "loadBalancerAvgShedderHitCountHighThreshold",
        2,
        "AvgShedder: high hits in a row after which a broker sheds to its partner.",
        ge=0,
        le=1_000_000,
    )
    average_resource_usage_difference_threshold_percentage: int = percent(
        "loadBalancerAverageResourceUsageDifferenceThresholdPercentage",
        10,
        "LeastResourceUsageWithWeight: prefer brokers at least this many points below the average usage.",
        fits=BY_USAGE,
    )
    prefer_later_versions: bool = setting(
        "preferLaterVersions", False, "Prefer the brokers that run the latest version."
    )
    failure_domains_enabled: bool = setting(
        "failureDomainsEnabled", False, "Spread the namespaces of an anti-affinity group over failure domains first."
    )
    broker_load_target_std: float = setting(
        "loadBalancerBrokerLoadTargetStd",
        0.25,
        (
            "TransferShedder: acts when the standard deviation of brokers' averaged usage (a fraction) is above this;"
            " half of it is the part of the average below which a broker counts as underloaded."
        ),
        ge=0,
        fits=BY_USAGE,
    )
    shedding_condition_hit_count_threshold: int = setting(
        "loadBalancerSheddingConditionHitCountThreshold",
        3,
        "TransferShedder: acts when loads were apart in more rounds in a row than this.",
        ge=0,
        le=1_000_000,
    )
    transfer_enabled: bool = setting(
        "loadBalancerTransferEnabled",
        True,
        (
            "TransferShedder: fixes where a bundle goes, and exchanges bundles; off: placement chooses, and nothing"
            " is exchanged."
        ),
    )
    max_number_of_broker_shedding_per_cycle: int = setting(
        "loadBalancerMaxNumberOfBrokerSheddingPerCycle",
        3,
        "TransferShedder: brokers that may be relieved in a round.",
        ge=0,
        le=1_000_000,
    )
    shedding_delay_in_seconds: int = setting(
        "loadBalanceSheddingDelayInSeconds",  # without the r, as in Pulsar
        180,
        "TransferShedder: nothing is moved until each broker has reported so much later than the last unload from it.",
        ge=0,
        le=86_400_000,
    )
    broker_load_data_ttl_in_seconds: int = setting(
        "loadBalancerBrokerLoadDataTTLInSeconds",
        1_800,
        "TransferShedder: a broker whose report is older than this is left out.",
        ge=0,
        le=86_400_000,
    )
    max_number_of_bundles_in_bundle_load_report: int = setting(
        "loadBalancerMaxNumberOfBundlesInBundleLoadReport",
        10,
        "TransferShedder: only so many of a broker's busiest bundles may be moved; 0 or less: none.",
        ge=-1,
        le=1_000_000,
    )
    shedding_bundles_with_policies_enabled: bool = setting(
        "loadBalancerSheddingBundlesWithPoliciesEnabled",
        False,
        "TransferShedder: also moves bundles of namespaces with an isolation policy or an anti-affinity group.",
    )
    memory_resource_weight: float = weight(
        "loadBalancerMemoryResourceWeight", 0.0, "TransferShedder: weight of heap memory in a broker's averaged usage."
    )
    auto_bundle_split_enabled: bool = setting(
        "loadBalancerAutoBundleSplitEnabled",
        True,
        "The leader splits bundles that are above a limit; off: only by command.",
    )
    namespace_bundle_max_topics: int = count(
        "loadBalancerNamespaceBundleMaxTopics", 1_000, "A bundle with more topics is split."
    )
    namespace_bundle_max_sessions: int = setting(
        "loadBalancerNamespaceBundleMaxSessions",
        1_000,
        "A bundle with more consumers and producers is split; 0 or less: no limit.",
        ge=-INT_MAX - 1,
        le=INT_MAX,
    )
    namespace_bundle_max_msg_rate: int = count(
        "loadBalancerNamespaceBundleMaxMsgRate", 30_000, "A bundle with more messages/s, in and out, is split."
    )
    namespace_bundle_max_bandwidth_mbytes: int = count(
        "loadBalancerNamespaceBundleMaxBandwidthMbytes", 100, "A bundle with more MiB/s, in and out, is split."
    )
    namespace_maximum_bundles: int = count(
        "loadBalancerNamespaceMaximumBundles", 128, "With so many bundles a namespace gets no more by itself."
    )
    namespace_bundle_split_algorithm: str = setting(
        "defaultNamespaceBundleSplitAlgorithm",
        "range_equally_divide",
        "Where a bundle is cut, unless the command says otherwise.",
    )
    supported_split_algorithms: tuple[str, ...] = setting(
        "supportedNamespaceBundleSplitAlgorithms",
        SUPPORTED_SPLIT_ALGORITHMS,
        "Split algorithms that may be asked for, the default one included.",
    )
    flow_or_qps_difference_threshold_percentage: int = count(
        "flowOrQpsDifferenceThresholdPercentage",
        10,
        "flow_or_qps_equally_divide cuts a bundle that is this many per cent above a limit.",
    )
    max_number_of_bundles_to_split_per_cycle: int = setting(
        "loadBalancerMaxNumberOfBundlesToSplitPerCycle",
        10,
        "ExtensibleLoadManagerImpl: splits of one broker at a time.",
        ge=1,
        le=INT_MAX,
    )
    namespace_bundle_split_condition_hit_count_threshold: int = count(
        "loadBalancerNamespaceBundleSplitConditionHitCountThreshold",
        3,
        "ExtensibleLoadManagerImpl: a bundle is split when it was above a limit more often than this in succession.",
    )
    # From here on they are ours: Pulsar merges no bundles, and does not limit churn.
    auto_bundle_merge_enabled: bool = setting(
        "loadBalancerAutoBundleMergeEnabled",
        False,
        "The leader merges cold neighbours of one owner; off: only by command.",
    )
    sick_broker_quarantine_enabled: bool = setting(
        "loadBalancerSickBrokerQuarantineEnabled",
        True,
        (
            "Nothing is moved to a broker whose latency, share of errors or queue, where brokers say them, is far off"
            " that of its peers."
        ),
    )
    max_load_moved_per_cycle_percentage: float = percent(
        "loadBalancerMaxLoadMovedPerCyclePercentage",
        50,
        (
            "Shedding moves at most this much of all load (bytes/s, in and out) in a round, or one bundle that is"
            " heavier; 0: nothing, 100: no limit."
        ),
    )
    max_load_moved_per_hour_percentage: float = setting(
        "loadBalancerMaxLoadMovedPerHourPercentage",
        100,
        "Shedding moves at most this much of all load (bytes/s, in and out) within an hour.",
        ge=0,
        le=1_000_000,
    )
    return_cool_down_minutes: float = setting(
        "loadBalancerReturnCoolDownMinutes",
        60,
        (
            "Shedding does not return a bundle to a broker that it has left within this time. A circuit breaker stops"
            " repeated returns. A bundle that returns twice within four hours is not shed for an hour."
            " Shedding stops for half an hour when 20 % of all load returned within four hours, or 50 % moved again"
            " within two. 0: no cool-down and no circuit breaker."
        ),
        ge=0,
        le=100_000,
    )
    resource_weights: ResourceWeights = field(default_factory=ResourceWeights)
    fitted: frozenset[str] = frozenset()
    """Fields without a configured value: scaled with the load of the fleet, up to their default."""

    @property
    def has_churn_breaker(self) -> bool:
        """Return True unless bundles may return at any time."""
        return self.return_cool_down_minutes > 0

    @property
    def sick_after_s(self) -> float | None:
        """Seconds for which a broker must be an outlier to count as sick; None without quarantine."""
        return SICK_AFTER_S if self.sick_broker_quarantine_enabled else None

    def as_figures(self, *names: str) -> dict[str, Any]:
        """Return the settings of these fields for a verdict, by key."""
        return {KEYS[name]: getattr(self, name) for name in names}


KEYS: Mapping[str, str] = {name: declared.key for name, declared in declared_in(PlannerSettings).items()}
"""Configuration key of each field."""

NAMING_NAMESPACES = (KEYS["shedding_excluded_namespaces"], "availableNamespaces")
"""Keys of the settings that name namespaces."""

AS_PULSAR: dict[str, str] = {
    declared.key: str(declared.default)
    for declared in declared_in(PlannerSettings).values()
    if declared.fits is not None
}
"""Keys that differ in a new installation, with the values, as text, at which strategies decide as Pulsar's do."""


def is_extensible(settings: PlannerSettings) -> bool:
    """Return True if Pulsar's ExtensibleLoadManagerImpl is configured."""
    return short_class_name(settings.load_manager_class_name) == "ExtensibleLoadManagerImpl"


def is_simple(settings: PlannerSettings) -> bool:
    """Return True if Pulsar's SimpleLoadManagerImpl is configured, with its own strategies and filters."""
    return short_class_name(settings.load_manager_class_name) == "SimpleLoadManagerImpl"


class UnknownStrategyError(ValueError):
    """An unknown strategy in the configuration; the message lists the known ones."""


_Factory = TypeVar("_Factory")


def short_class_name(name: str) -> str:
    """Return a Java class name without its package."""
    return name.rpartition(".")[2]


def get_by_name(key: str, name: str, factories: Mapping[str, _Factory]) -> tuple[str, _Factory]:
    """Return the strategy by its short name, or by a Java class name that ends in it
    (`org.apache....ThresholdShedder`).

    Pulsar has two classes of one short name: that of the package `extensions` is called `<short name>Extensible` here.
    Raises `UnknownStrategyError`, naming the configuration `key`.
    """
    package, _, short = name.rpartition(".")
    if "extensions" in package.split(".") and f"{short}Extensible" in factories:
        short = f"{short}Extensible"
    if short not in factories:
        raise UnknownStrategyError(f"{key} {name!r}: expected one of {', '.join(factories)}")
    return short, factories[short]
