"""Settings: frozen models with bounds, Pulsar's keys and defaults wherever Pulsar has one.

Sources, the later one wins: defaults, the YAML file, environment variables (`LOADMANAGER_` and the key, in any case).
Settings are resolved once, where a process starts, and passed down; nothing reads them globally.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

import yaml
from pydantic import AfterValidator, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from loadmanager.core.binding import require_bound
from loadmanager.core.bundles import MAX_BUNDLES
from loadmanager.core.hashing import HashFunction
from loadmanager.core.load import ResourceWeights
from loadmanager.core.names import parse_broker_id
from loadmanager.core.placement import PLACEMENT_STRATEGIES
from loadmanager.core.settings import (
    SUPPORTED_SPLIT_ALGORITHMS,
    PlannerSettings,
    UnknownStrategyError,
    get_by_name,
)
from loadmanager.core.shedding import SHEDDING_STRATEGIES
from loadmanager.core.splitting import DEFAULT_KEY, SPLIT_ALGORITHMS, SUPPORTED_KEY, split_algorithm
from loadmanager.errors import ConfigurationError

ENVIRONMENT_PREFIX = "LOADMANAGER_"
_NO_WIDTH = 10_000
"""A line of YAML is never broken."""
_OTHER_VARIABLES = frozenset({"LOADMANAGER_ADMIN_URL", "LOADMANAGER_JAVA", "LOADMANAGER_SHARED"})

Percent = Annotated[int, Field(ge=0, le=100)]
Weight = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
PositiveMs = Annotated[int, Field(ge=1, le=86_400_000)]
Port = Annotated[int, Field(ge=0, le=65_535)]
Minutes = Annotated[float, Field(gt=0, le=100_000, allow_inf_nan=False)]


def _known_placement(name: str) -> str:
    return _known("loadBalancerLoadPlacementStrategy", name, PLACEMENT_STRATEGIES)


def _known_shedding(name: str) -> str:
    return _known("loadBalancerLoadSheddingStrategy", name, SHEDDING_STRATEGIES)


def _known_split_algorithm(name: str) -> str:
    return _known(DEFAULT_KEY, name, SPLIT_ALGORITHMS)


def _known_split_algorithms(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_known(SUPPORTED_KEY, name, SPLIT_ALGORITHMS) for name in names)


def _known(key: str, name: str, strategies: Mapping[str, object]) -> str:
    try:
        get_by_name(key, name, strategies)
    except UnknownStrategyError:
        raise ValueError(f"unknown strategy; known are {', '.join(sorted(strategies))}") from None
    return name


class _Settings(BaseSettings):
    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        env_prefix=ENVIRONMENT_PREFIX,
        env_prefix_target="all",
    )
    title: ClassVar[str]

    @classmethod
    def settings_customise_sources(  # the order is documented at the top of the module
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - not a source of ours
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - not a source of ours
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        del settings_cls
        return env_settings, init_settings

    @classmethod
    def key(cls, name: str) -> str:
        """The configuration key of a field."""
        return cls.model_fields[name].alias or name


class StoreSettings(_Settings):
    """How to reach the metadata store."""

    metadata_store_url: str = Field(
        "zk:127.0.0.1:2181",
        min_length=1,
        description="ZooKeeper servers (3.6 or newer) and an optional chroot: zk:host:port,host:port/chroot.",
    )
    metadata_store_session_timeout_millis: int = Field(
        10_000,
        ge=1_000,
        le=600_000,
        description="Session timeout. A broker that vanished without a word keeps its bundles for this long"
        " (Pulsar's default is 30000).",
    )
    metadata_store_connect_timeout_millis: PositiveMs = Field(
        15_000, description="How long a process waits at its start for ZooKeeper before it gives up."
    )

    @property
    def zookeeper_hosts(self) -> str:
        return self.metadata_store_url.removeprefix("zk:").partition("/")[0]

    @property
    def zookeeper_chroot(self) -> str:
        _, slash, chroot = self.metadata_store_url.removeprefix("zk:").partition("/")
        return slash + chroot.rstrip("/") if chroot else ""

    @property
    def session_timeout_s(self) -> float:
        return self.metadata_store_session_timeout_millis / 1000


class HttpSettings(_Settings):
    """What a connection to the HTTP server may take, so that none can keep others from being answered."""

    max_http_server_connections: int = Field(
        2_048,
        ge=1,
        le=1_000_000,
        description="HTTP connections that may be open at a time; for one more the one that was silent for longest is"
        " closed. Half of the files that the process may open is the limit above it (ulimit -n).",
    )
    http_request_head_timeout_ms: PositiveMs = Field(
        10_000, description="The head of an HTTP request has to arrive within this time of its first byte."
    )
    http_request_body_timeout_ms: PositiveMs = Field(
        30_000, description="The body of an HTTP request has to arrive within this time of its head, or it is a 408."
    )
    http_idle_timeout_ms: PositiveMs = Field(
        120_000,
        description="An HTTP connection without a request is closed after this time; clients' is to be shorter.",
    )


class WeightSettings(_Settings):
    """How much each resource counts in a broker's usage, which is the maximum over its resources."""

    load_balancer_cpu_resource_weight: Weight = Field(
        1.0, alias="loadBalancerCPUResourceWeight", description="Weight of CPU in a broker's usage."
    )
    load_balancer_direct_memory_resource_weight: Weight = Field(
        0.0, description="Weight of direct memory in a broker's usage."
    )
    load_balancer_bandwidth_in_resource_weight: Weight = Field(
        1.0, description="Weight of incoming bandwidth in a broker's usage."
    )
    load_balancer_bandwidth_out_resource_weight: Weight = Field(
        1.0, description="Weight of outgoing bandwidth in a broker's usage."
    )

    @property
    def resource_weights(self) -> ResourceWeights:
        return ResourceWeights(
            cpu=self.load_balancer_cpu_resource_weight,
            direct_memory=self.load_balancer_direct_memory_resource_weight,
            bandwidth_in=self.load_balancer_bandwidth_in_resource_weight,
            bandwidth_out=self.load_balancer_bandwidth_out_resource_weight,
        )


class ReportSettings(WeightSettings):
    """Pulsar's rules for when a broker's load report is written again."""

    load_balancer_report_update_min_interval_millis: PositiveMs = Field(
        5_000, description="How often a broker's agent checks whether its load report has to be written again."
    )
    load_balancer_report_update_max_interval_minutes: Minutes = Field(
        15, description="A load report is written at least this often."
    )
    load_balancer_report_update_threshold_percentage: Percent = Field(
        10, description="A load report is written when something in it changed by more than this many per cent."
    )


class Settings(HttpSettings, StoreSettings, WeightSettings):
    """Settings of a load-manager node."""

    title: ClassVar[str] = "loadmanager serve"

    cluster_name: str = Field("standalone", min_length=1, description="Value of the `cluster` label of every metric.")
    bind_address: str = Field("0.0.0.0", description="Address the HTTP server listens on.")  # noqa: S104 - a service
    web_service_port: Port = Field(8080, description="HTTP port; 0 lets the kernel choose a free one.")
    advertised_address: str = Field(
        "", description="Host under which others reach this node; empty: the host's own name."
    )

    load_balancer_enabled: bool = Field(
        True, description="Off: no shedding and no periodic writes; bundles are still assigned at lookup."
    )
    load_balancer_load_placement_strategy: Annotated[str, AfterValidator(_known_placement)] = Field(
        "LeastLongTermMessageRate", description="How an owner is chosen; Pulsar's full class names work too."
    )
    load_balancer_load_shedding_strategy: Annotated[str, AfterValidator(_known_shedding)] = Field(
        "ThresholdShedder", description="How bundles are chosen that have to leave their broker."
    )
    load_balancer_distribute_bundles_evenly_enabled: bool = Field(
        True, description="Prefer brokers that hold the fewest bundles of the same namespace."
    )
    load_balancer_broker_max_topics: int = Field(
        50_000, ge=0, le=2**31 - 1, description="Brokers with more topics than this get no further bundle."
    )
    load_balancer_broker_overloaded_threshold_percentage: Percent = Field(
        85, description="From this usage on OverloadShedder sheds; above it a broker gets no bundle if another can."
    )
    load_balancer_shedding_enabled: bool = Field(True, description="The switch of all automatic unloading.")
    load_balancer_shedding_interval_minutes: Minutes = Field(
        1, description="Pause between two rounds of shedding; fractions are allowed."
    )
    load_balancer_shedding_grace_period_minutes: float = Field(
        30, ge=0, le=100_000, allow_inf_nan=False, description="A bundle that moved is not moved again for this long."
    )
    load_balancer_shedding_excluded_namespaces: frozenset[str] = Field(
        frozenset(), description="Namespaces (tenant/namespace) whose bundles are never shed."
    )
    load_balancer_broker_threshold_shedder_percentage: Percent = Field(
        10, description="ThresholdShedder: sheds from brokers this many points above the average usage."
    )
    lower_boundary_shedding_enabled: bool = Field(
        False, description="ThresholdShedder: also shed from the busiest broker when one lies far below the average."
    )
    load_balancer_history_resource_percentage: float = Field(
        0.9, ge=0, le=1, allow_inf_nan=False, description="Weight of the past in a broker's averaged usage."
    )
    load_balancer_average_resource_usage_difference_threshold_percentage: Percent = Field(
        10,
        description="LeastResourceUsageWithWeight: prefer brokers at least this many points below the average usage.",
    )
    load_manager_class_name: str = Field(
        "",
        description="ExtensibleLoadManagerImpl: filter brokers as Pulsar's extensible load manager does; else as its"
        " modular one. If some brokers report this class, the others get no bundle. SimpleLoadManagerImpl: place, shed"
        " and filter as that one does, by loadBalancerPlacementStrategy.",
    )
    load_balancer_placement_strategy: str = Field(
        "leastLoadedServer",
        description="SimpleLoadManagerImpl: leastLoadedServer or leastMsgPerSecond; any other text stands for"
        " weightedRandomSelection.",
    )
    load_balancer_broker_underloaded_threshold_percentage: Percent = Field(
        50, description="leastLoadedServer, leastMsgPerSecond: brokers are filled up to here before an idle one."
    )
    load_balancer_broker_comfort_load_level_percentage: Percent = Field(
        65, description="SimpleLoadManagerImpl: sheds only if some broker is below this usage."
    )
    prefer_later_versions: bool = Field(False, description="Prefer the brokers that run the latest version.")
    failure_domains_enabled: bool = Field(
        False, description="Spread the namespaces of an anti-affinity group over failure domains first."
    )
    load_balancer_bundle_unload_min_throughput_threshold: float = Field(
        10, ge=0, allow_inf_nan=False, description="ThresholdShedder: MiB/s below which moving bundles is not worth it."
    )
    load_balancer_msg_rate_difference_shedder_threshold: float = Field(
        50,
        allow_inf_nan=False,
        description="UniformLoadShedder: sheds when the highest message rate is this many per cent above the lowest;"
        " 0 or less: message rates are not compared.",
    )
    load_balancer_msg_throughput_multiplier_difference_shedder_threshold: float = Field(
        4,
        allow_inf_nan=False,
        description="UniformLoadShedder: sheds when the highest throughput is this many times the lowest; 0 or less:"
        " throughputs are not compared.",
    )
    min_unload_message: int = Field(
        1_000,
        ge=0,
        le=2**31 - 1,
        description="UniformLoadShedder, AvgShedder: messages/s below which moving bundles is not worth it.",
    )
    min_unload_message_throughput: int = Field(
        1024 * 1024,
        ge=0,
        le=2**31 - 1,
        description="UniformLoadShedder, AvgShedder: bytes/s below which moving bundles is not worth it.",
    )
    max_unload_percentage: float = Field(
        0.2,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="UniformLoadShedder, AvgShedder: the part of a difference that is moved; 0.5 makes both equal.",
    )
    max_unload_bundle_num_per_shedding: int = Field(
        -1, ge=-1, description="UniformLoadShedder: bundles that may be shed in a round; -1: any number."
    )
    load_balancer_avg_shedder_low_threshold: Percent = Field(
        15, description="AvgShedder: points between two brokers' usages from which on a round is a low hit."
    )
    load_balancer_avg_shedder_high_threshold: Percent = Field(
        40, description="AvgShedder: points between two brokers' usages from which on a round is a high hit too."
    )
    load_balancer_avg_shedder_hit_count_low_threshold: int = Field(
        8, ge=0, le=1_000_000, description="AvgShedder: low hits in a row after which a broker sheds to its partner."
    )
    load_balancer_avg_shedder_hit_count_high_threshold: int = Field(
        2, ge=0, le=1_000_000, description="AvgShedder: high hits in a row after which a broker sheds to its partner."
    )
    load_balancer_broker_load_target_std: float = Field(
        0.25,
        ge=0,
        allow_inf_nan=False,
        description="TransferShedder: acts when the standard deviation of brokers' averaged usage (a fraction) is above"
        " this; half of it is the part of the average below which a broker counts as underloaded.",
    )
    load_balancer_shedding_condition_hit_count_threshold: int = Field(
        3,
        ge=0,
        le=1_000_000,
        description="TransferShedder: acts when loads were apart in more cycles in a row than this.",
    )
    load_balancer_transfer_enabled: bool = Field(
        True,
        description="TransferShedder: fixes where a bundle goes, and exchanges bundles; off: placement chooses, and"
        " nothing is exchanged.",
    )
    load_balancer_max_number_of_broker_shedding_per_cycle: int = Field(
        3, ge=0, le=1_000_000, description="TransferShedder: brokers that may be relieved in a round."
    )
    load_balance_shedding_delay_in_seconds: int = Field(
        180,
        ge=0,
        le=86_400_000,
        description="TransferShedder: nothing is moved until each broker has reported so much later than the last"
        " unload from it.",
    )
    load_balancer_broker_load_data_ttl_in_seconds: int = Field(
        1_800,
        ge=0,
        le=86_400_000,
        alias="loadBalancerBrokerLoadDataTTLInSeconds",
        description="TransferShedder: a broker whose report is older than this is left out.",
    )
    load_balancer_max_number_of_bundles_in_bundle_load_report: int = Field(
        10,
        ge=-1,
        le=1_000_000,
        description="TransferShedder: only so many of a broker's busiest bundles may be moved; 0 or less: none.",
    )
    max_bundles_per_load_report: int = Field(
        50_000,
        ge=1,
        le=1_000_000,
        description="A load report of more bundles is not taken in, and its znode is listed as faulty: reading it would"
        " hold up a node.",
    )
    load_balancer_shedding_bundles_with_policies_enabled: bool = Field(
        False,
        description="TransferShedder: also moves bundles of namespaces with an isolation policy or an anti-affinity"
        " group.",
    )
    load_balancer_memory_resource_weight: Weight = Field(
        0.0, description="TransferShedder: weight of heap memory in a broker's averaged usage."
    )
    load_balancer_auto_bundle_split_enabled: bool = Field(
        True, description="The leader splits bundles that are above a limit; off: only by command."
    )
    load_balancer_auto_unload_split_bundles_enabled: bool = Field(
        True, description="The parts of a bundle that the leader has split move to where placement would put them."
    )
    load_balancer_split_interval_minutes: Minutes = Field(
        1, description="How often the leader looks for bundles to split and to merge, if brokers have reported since."
    )
    load_balancer_namespace_bundle_max_topics: int = Field(
        1_000, ge=0, le=2**31 - 1, description="A bundle with more topics is split."
    )
    load_balancer_namespace_bundle_max_sessions: int = Field(
        1_000,
        ge=-(2**31),
        le=2**31 - 1,
        description="A bundle with more consumers and producers is split; 0 or less: no limit.",
    )
    load_balancer_namespace_bundle_max_msg_rate: int = Field(
        30_000,
        ge=0,
        le=2**31 - 1,
        description="A bundle with more messages/s, in and out, is split.",
    )
    load_balancer_namespace_bundle_max_bandwidth_mbytes: int = Field(
        100,
        ge=0,
        le=2**31 - 1,
        description="A bundle with more MiB/s, in and out, is split.",
    )
    load_balancer_namespace_maximum_bundles: int = Field(
        128,
        ge=0,
        le=2**31 - 1,
        description="With so many bundles a namespace gets no more by itself.",
    )
    default_namespace_bundle_split_algorithm: Annotated[str, AfterValidator(_known_split_algorithm)] = Field(
        "range_equally_divide", description="Where a bundle is cut, unless the command says otherwise."
    )
    supported_namespace_bundle_split_algorithms: Annotated[tuple[str, ...], AfterValidator(_known_split_algorithms)] = (
        Field(
            SUPPORTED_SPLIT_ALGORITHMS,
            description="Split algorithms that may be asked for, the default one included.",
        )
    )
    flow_or_qps_difference_threshold_percentage: int = Field(
        10,
        ge=0,
        le=2**31 - 1,
        description="flow_or_qps_equally_divide cuts a bundle that is this many per cent above a limit.",
    )
    load_balancer_max_number_of_bundles_to_split_per_cycle: int = Field(
        10,
        ge=1,
        le=2**31 - 1,
        description="ExtensibleLoadManagerImpl: splits of one broker at a time.",
    )
    load_balancer_namespace_bundle_split_condition_hit_count_threshold: int = Field(
        3,
        ge=0,
        le=2**31 - 1,
        description="ExtensibleLoadManagerImpl: a bundle is split when it was above a limit more often than this in"
        " succession.",
    )
    load_balancer_auto_bundle_merge_enabled: bool = Field(
        False, description="The leader merges cold neighbours of one owner; off: only by command."
    )
    load_balancer_bundle_merge_max_topics: int = Field(
        100,
        ge=0,
        le=2**31 - 1,
        description="Neighbours are merged with at most so many topics together, and half of what is split.",
    )
    load_balancer_bundle_merge_max_sessions: int = Field(
        100,
        ge=0,
        le=2**31 - 1,
        description="Neighbours are merged with at most so many consumers and producers, and half of what is split.",
    )
    load_balancer_bundle_merge_max_msg_rate: int = Field(
        1_000,
        ge=0,
        le=2**31 - 1,
        description="Neighbours are merged with at most so many messages/s together, and half of what is split.",
    )
    load_balancer_bundle_merge_max_bandwidth_mbytes: int = Field(
        5,
        ge=0,
        le=2**31 - 1,
        description="Neighbours are merged with at most so many MiB/s together, and half of what is split.",
    )
    load_balancer_bundle_merge_min_age_minutes: float = Field(
        60,
        ge=0,
        le=100_000,
        allow_inf_nan=False,
        description="Neighbours are merged only when neither has changed its owner or its shape for so long.",
    )
    load_balancer_namespace_minimum_bundles: int = Field(
        4, ge=1, le=MAX_BUNDLES, description="With so few bundles a namespace gets no fewer by itself."
    )
    load_balancer_debug_mode_enabled: bool = Field(
        False, description="Understood for Pulsar's sake and without effect: every decision is explained anyway."
    )
    default_number_of_namespace_bundles: int = Field(
        4, ge=1, le=MAX_BUNDLES, description="Bundles of a namespace created without a number."
    )
    default_hash_function: HashFunction = Field(
        HashFunction.MURMUR3_32,
        description="Hash from topic to bundle for new namespaces: murmur3_32, or crc32 as in Pulsar.",
    )
    namespace_bundle_unloading_timeout_ms: PositiveMs = Field(
        60_000, description="An owner that has not released a bundle after this long keeps it, and it is reported."
    )
    unload_attempt_timeout_ms: PositiveMs = Field(
        10_000, description="How long one unload call to a broker may take before it is repeated."
    )
    max_concurrent_unloads: int = Field(16, ge=1, le=10_000, description="Unloads that may be under way at a time.")
    max_concurrent_unloads_per_broker: int = Field(
        8, ge=1, le=10_000, description="Unloads that may be under way from one broker, and to one broker, at a time."
    )
    load_balancer_max_load_moved_per_cycle_percentage: float = Field(
        50,
        ge=0,
        le=100,
        allow_inf_nan=False,
        description="Shedding moves at most this much of all load (bytes/s, in and out) in a round, or one bundle that"
        " is heavier; 0: nothing, 100: no limit.",
    )
    load_balancer_max_load_moved_per_hour_percentage: float = Field(
        100,
        ge=0,
        le=1_000_000,
        allow_inf_nan=False,
        description="Shedding moves at most this much of all load (bytes/s, in and out) within an hour.",
    )
    load_balancer_return_cool_down_minutes: float = Field(
        60,
        ge=0,
        le=100_000,
        allow_inf_nan=False,
        description="Shedding does not return a bundle to a broker that it has left within this time; 0: it may.",
    )
    load_balancer_thrash_window_minutes: float = Field(
        60,
        ge=0,
        le=100_000,
        allow_inf_nan=False,
        description="A bundle that shedding moves back to where it was within this time counts as returned.",
    )
    load_balancer_max_bundle_returns: int = Field(
        2, ge=1, le=1_000_000, description="A bundle returned so often within the window is not shed for a time."
    )
    load_balancer_thrash_bundle_freeze_minutes: float = Field(
        60, ge=0, le=100_000, allow_inf_nan=False, description="How long such a bundle is not shed."
    )
    load_balancer_thrash_threshold_percentage: float = Field(
        20,
        ge=0,
        le=1_000_000,
        allow_inf_nan=False,
        description="When more than this much of all load was returned within the window, shedding stops for a time.",
    )
    load_balancer_thrash_shedding_stop_minutes: float = Field(
        30, ge=0, le=100_000, allow_inf_nan=False, description="How long shedding stops then; an operator can lift it."
    )
    plans_kept: int = Field(
        20, ge=1, le=10_000, description="Plans that the leader keeps in memory for operators to execute."
    )
    load_balancer_resource_quota_update_interval_minutes: Minutes = Field(
        15, description="How often the leader writes the averages of bundles and brokers, if they changed."
    )
    reassign_bundles_of_dead_brokers_at_once: bool = Field(
        False, description="Place the bundles of a broker that is gone at once instead of at their next lookup."
    )
    lookup_timeout_ms: PositiveMs = Field(
        5_000, description="How long a lookup waits for the assignment of its bundle before it answers 503."
    )
    leader_probe_interval_ms: PositiveMs = Field(
        300, description="How often a standby tries to connect to the leader; a refused connection starts an election."
    )
    decisions_kept: int = Field(
        2_000,
        ge=1,
        le=1_000_000,
        description="Decisions and non-decisions kept in memory for /loadbalance/v1/decisions.",
    )
    history_url: str = Field(
        "",
        description="Where the leader records what it sees and does: a directory, or a URL of a filesystem that Arrow"
        " knows, such as s3://bucket/prefix; all nodes name the same one. Empty: nothing is recorded.",
    )
    history_flush_interval_s: float = Field(
        60, ge=1, le=3_600, description="How long recorded rows wait in memory; a leader that dies loses these."
    )
    history_rows_per_file: int = Field(
        250_000, ge=1_000, le=100_000_000, description="Recorded rows that are written at once, without waiting longer."
    )
    history_queue_rows: int = Field(
        500_000,
        ge=1_000,
        le=100_000_000,
        description="Recorded rows that wait in memory while they cannot be written; more are dropped, and a gap is"
        " marked.",
    )
    history_checkpoint_interval_minutes: Minutes = Field(
        60, description="How often all that decisions depend on is recorded; a replay begins at such a checkpoint."
    )
    history_retention_hours: float = Field(
        168, ge=0, le=1_000_000, description="Recorded hours older than this are deleted; 0: never for their age."
    )
    history_max_bytes: int = Field(
        10_737_418_240,
        ge=0,
        description="The oldest recorded hours are deleted while the history is larger; 0: however large it is.",
    )

    @model_validator(mode="after")
    def _strategies_are_bound(self) -> Self:
        require_bound(self.planner_settings())
        return self

    @model_validator(mode="after")
    def _split_algorithm_is_supported(self) -> Self:
        split_algorithm(self.planner_settings())
        return self

    def planner_settings(self) -> PlannerSettings:
        """What the core needs of these settings."""
        return PlannerSettings(**{name: getattr(self, source) for name, source in _PLANNER_SOURCES.items()})


_PLANNER_NAMES = {
    "placement_strategy": "load_balancer_load_placement_strategy",
    "simple_placement_strategy": "load_balancer_placement_strategy",
    "shedding_strategy": "load_balancer_load_shedding_strategy",
    "shedding_delay_in_seconds": "load_balance_shedding_delay_in_seconds",
    "namespace_bundle_split_algorithm": "default_namespace_bundle_split_algorithm",
    "supported_split_algorithms": "supported_namespace_bundle_split_algorithms",
}
"""Where a field of the core's settings does not have the name of the setting, with or without `load_balancer_`."""


def _planner_source(name: str) -> str:
    """The attribute of `Settings` that a field of the core's settings is taken from."""
    full = _PLANNER_NAMES.get(name, f"load_balancer_{name}")
    return full if full in Settings.model_fields else name


_PLANNER_SOURCES = {each.name: _planner_source(each.name) for each in dataclasses.fields(PlannerSettings)}


class AgentSettings(HttpSettings, StoreSettings, ReportSettings):
    """Settings of the agent beside a broker."""

    title: ClassVar[str] = "loadmanager agent"

    broker_id: Annotated[str, AfterValidator(parse_broker_id)] = Field(
        description="host:port under which the broker is known; what lookups and znodes name."
    )
    broker_url: str = Field(pattern=r"^https?://", description="URL of the broker's HTTP interface towards this agent.")
    broker_service_url: str = Field(
        "", description="URL that clients connect to after a lookup, such as pulsar://host:6650."
    )
    broker_web_service_url: str = Field("", description="HTTP URL in lookup answers; empty: http:// and the broker id.")
    load_manager_urls: tuple[Annotated[str, Field(pattern=r"^https?://.+")], ...] = Field(
        min_length=1,
        description="A list of URLs of load-manager nodes, such as [http://lm-1:8080, http://lm-2:8080]; they are asked"
        " in turn, and the first that answers is kept.",
    )
    bind_address: str = Field(
        "0.0.0.0",  # noqa: S104 - load-manager nodes call it from other hosts
        description="Address the agent's HTTP server listens on; load-manager nodes have to reach it.",
    )
    agent_port: Port = Field(9090, description="The agent's HTTP port; 0 lets the kernel choose a free one.")
    agent_url: str = Field(
        "", description="URL under which load-manager nodes reach this agent; empty: from the above."
    )
    broker_lease_ms: int = Field(
        3_000, ge=100, le=60_000, description="A broker stops serving when it could not renew for this long."
    )
    load_balancer_host_usage_check_interval_minutes: Minutes = Field(
        1, description="How often CPU, memory and network usage are measured; fractions are allowed."
    )
    stats_update_frequency_in_secs: float = Field(
        60, gt=0, le=86_400, description="How often topic statistics are taken from the broker."
    )
    host_usage_scope: Literal["host", "process"] = Field(
        "host", description="Measure the whole host (or container), or only the broker's process: several on one host."
    )
    cpu_limit_cores: float | None = Field(
        None, gt=0, le=100_000, description="Cores the broker may use; empty: the container's limit, else the host's."
    )
    load_balancer_override_broker_nic_speed_gbps: float | None = Field(
        None, gt=0, le=100_000, allow_inf_nan=False, description="NIC speed in Gbit/s where it cannot be detected."
    )


S = TypeVar("S", bound=_Settings)


def load_settings(model: type[S], path: Path | None, overrides: Mapping[str, Any] | None = None) -> S:
    """Settings from the file (if any), `overrides` by key, and the environment.

    Raises `ConfigurationError` naming the source, the key and what is allowed.
    """
    _refuse_unknown_variables(model)
    values = {**(_read_yaml(path) if path else {}), **(overrides or {})}
    _refuse_unknown_keys(model, values, str(path or "settings"))
    try:
        return model(**values)
    except SettingsError as error:
        keys = [model.key(name) for name in model.model_fields if f'"{name}"' in str(error)]
        variables = " ".join(filter(None, map(_find_variable, keys)))
        raise ConfigurationError(f'environment variable {variables}: expected JSON, such as ["a", "b"]') from None
    except ValidationError as error:
        raise ConfigurationError(_faults(model, error, str(path or "settings"))) from None


class _SettingsAlone(Settings):
    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)


def settings_of(values: Mapping[str, Any], where: str) -> Settings:
    """Settings from these keys and values alone, whatever the environment says.

    Raises `ConfigurationError` naming `where`, the key and what is allowed.
    """
    _refuse_unknown_keys(_SettingsAlone, values, where)
    try:
        return _SettingsAlone(**values)
    except ValidationError as error:
        raise ConfigurationError(_faults(_SettingsAlone, error, where)) from None


NEEDS_RESTART = frozenset(
    {
        *StoreSettings.model_fields,  # the session is opened once
        *HttpSettings.model_fields,  # and so is the port
        "cluster_name",  # a label of every metric, and the cluster that admin paths name
        "bind_address",
        "web_service_port",
        "advertised_address",  # the node is registered under it
        "load_balancer_enabled",  # as in Pulsar
        "load_balancer_load_placement_strategy",  # as in Pulsar
        "load_balancer_placement_strategy",  # as in Pulsar
        "load_balancer_broker_underloaded_threshold_percentage",  # as in Pulsar
        "load_balancer_broker_comfort_load_level_percentage",  # as in Pulsar
        "lower_boundary_shedding_enabled",  # as in Pulsar
        "lookup_timeout_ms",  # how long nodes wait for each other goes by it
        "leader_probe_interval_ms",  # standbys go by their own, whoever leads
        "decisions_kept",  # the size of a buffer
        "history_url",  # the history is opened once, and so for all about it
        "history_flush_interval_s",
        "history_rows_per_file",
        "history_queue_rows",
        "history_checkpoint_interval_minutes",
        "history_retention_hours",
        "history_max_bytes",
    }
)
"""The settings of a node that are not dynamic: all others may be changed while it runs, on all nodes at once.

Pulsar's dynamic keys are dynamic here too, and so are our own.
"""


def dynamic_keys() -> list[str]:
    """The keys that may be changed while nodes run, sorted."""
    return sorted(Settings.key(name) for name in Settings.model_fields.keys() - NEEDS_RESTART)


def with_overrides(base: Settings, texts: Mapping[str, str], where: str) -> Settings:
    """`base` with other values for some keys, as text, lists with commas.

    Raises `ConfigurationError` naming `where`, the key and what is allowed.
    """
    _refuse_unknown_keys(Settings, texts, where)
    fields = {Settings.key(name): name for name in Settings.model_fields}
    values = base.model_dump() | {fields[key]: _parse_text(fields[key], text) for key, text in texts.items()}
    try:
        return _SettingsAlone(**values)
    except ValidationError as error:
        raise ConfigurationError(_said_by(_SettingsAlone, error, where)) from None


def values_as_text(settings: Settings) -> dict[str, str]:
    """All settings by key, as `with_overrides` reads them and a `broker.conf` has them."""
    return {Settings.key(name): text_of(value) for name, value in settings.model_dump().items()}


def text_of(value: object) -> str:
    """A setting as a `broker.conf` has it."""
    if isinstance(value, frozenset | list | tuple):
        return ",".join(sorted(value) if isinstance(value, frozenset) else map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parse_text(name: str, text: str) -> str | list[str]:
    default = Settings.model_fields[name].default
    if not isinstance(default, frozenset | tuple):
        return text
    return [part.strip() for part in text.split(",") if part.strip()]


def render_yaml(model: type[_Settings]) -> str:
    """The model's defaults as a YAML file with a comment on every key."""
    lines = [f"# {model.title}: every key with its default. Pulsar's broker.conf keys keep their names.", ""]
    for name, field in model.model_fields.items():
        lines.append(f"# {field.description}")
        bounds = _bounds(field)
        if bounds:
            lines.append(f"# Allowed: {bounds}.")
        value = None if field.is_required() else field.get_default(call_default_factory=True)
        prefix = "# " if field.is_required() or value is None else ""
        lines.append(f"{prefix}{model.key(name)}: {_yaml_value(value)}".rstrip())
        lines.append("")
    return "\n".join(lines)


def render_fields(settings: _Settings, names: Iterable[str]) -> str:
    """These fields as lines of YAML."""
    return "".join(f"{settings.key(name)}: {_yaml_value(getattr(settings, name))}\n" for name in names)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: not UTF-8 text") from None
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path}: not valid YAML: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigurationError(f"{path}: expected `key: value` lines, got a {type(content).__name__}")
    return {str(key): value for key, value in content.items()}


def _keys(model: type[_Settings]) -> list[str]:
    return [model.key(name) for name in model.model_fields]


def _refuse_unknown_keys(model: type[_Settings], values: Mapping[str, Any], where: str) -> None:
    known = _keys(model)
    for key in values:
        if key not in known and key not in model.model_fields:
            raise ConfigurationError(f"{where}: unknown key {key!r}{_did_you_mean(key, known)}")


def _refuse_unknown_variables(model: type[_Settings]) -> None:
    known = {f"{ENVIRONMENT_PREFIX}{key}".lower(): key for key in _keys(model)}
    others = {variable.lower() for variable in _OTHER_VARIABLES}
    for variable in os.environ:
        lowered = variable.lower()
        if lowered.startswith(ENVIRONMENT_PREFIX.lower()) and lowered not in known and lowered not in others:
            key = variable[len(ENVIRONMENT_PREFIX) :]
            hint = _did_you_mean(key, list(known.values()))
            raise ConfigurationError(f"environment variable {variable}: no such key{hint}")


def _did_you_mean(key: str, known: list[str]) -> str:
    by_lowered = {name.lower(): name for name in known}
    close = difflib.get_close_matches(key.lower(), by_lowered, n=1)
    return f"; did you mean {by_lowered[close[0]]!r}?" if close else ""


def _faults(model: type[_Settings], error: ValidationError, where: str) -> str:
    """What is wrong, and where it was said: the environment overrides the file, so it is to blame where both speak."""
    by_source: dict[str, list[str]] = {}
    for fault in error.errors(include_url=False):
        field = str(fault["loc"][0]) if fault["loc"] else ""
        variable = _find_variable(model.key(field)) if field in model.model_fields else _find_variable(field)
        source = f"environment variable {variable}" if variable else where
        by_source.setdefault(source, []).append(_fault(model, dict(fault)))
    return "; ".join(f"{source}: {'; '.join(faults)}" for source, faults in by_source.items())


def _said_by(model: type[_Settings], error: ValidationError, where: str) -> str:
    """What is wrong with values that no environment had a say in."""
    return f"{where}: {'; '.join(_fault(model, dict(fault)) for fault in error.errors(include_url=False))}"


def _find_variable(key: str) -> str | None:
    wanted = f"{ENVIRONMENT_PREFIX}{key}".lower()
    return next((variable for variable in os.environ if variable.lower() == wanted), None)


def _fault(model: type[_Settings], fault: dict[str, Any]) -> str:
    location = [str(part) for part in fault["loc"]]
    names = {model.key(name): name for name in model.model_fields}
    name = names.get(location[0], location[0]) if location else ""
    field = model.model_fields.get(name)
    key = ".".join([model.key(name), *location[1:]] if field else location)
    if fault["type"] == "missing":
        return f"{key}: is required"
    message = str(fault["msg"]).removeprefix("Value error, ").replace("Tuple", "A list").replace("tuple", "list")
    if not location:
        return message
    allowed = _bounds(field) if field else ""
    return f"{key}: {message} (got {fault['input']!r}{f'; allowed: {allowed}' if allowed else ''})"


_SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


def _bounds(field: FieldInfo) -> str:
    shown = [
        f"{sign} {getattr(constraint, name)}"
        for constraint in field.metadata
        for name, sign in _SIGNS.items()
        if getattr(constraint, name, None) is not None
    ]
    return ", ".join(shown)


def _yaml_value(value: Any) -> str:  # noqa: ANN401 - whatever a field's default is
    if value is None or value == "":
        return '""' if value == "" else ""
    plain = sorted(value) if isinstance(value, frozenset) else list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(
        str(plain) if isinstance(plain, HashFunction) else plain, default_flow_style=True, width=_NO_WIDTH
    ).splitlines()[0]
