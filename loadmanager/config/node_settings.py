"""Settings of a load-manager node. `core.domain.settings` declares those that affect decisions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, get_type_hints

from pydantic import AfterValidator, Field, create_model, model_validator
from pydantic.alias_generators import to_snake

from loadmanager.config.auth_settings import AuthSettings
from loadmanager.config.settings_base import (
    KeyedSettings,
    Minutes,
    OptionalPort,
    PositiveMs,
    of_core,
    type_of_core,
)
from loadmanager.config.shared_settings import (
    AuditSettings,
    HttpSettings,
    StoreSettings,
    TlsSettings,
    WeightSettings,
)
from loadmanager.core.domain.bundles import MAX_BUNDLES
from loadmanager.core.domain.names import NamespaceName
from loadmanager.core.domain.setting_declaration import declared_in
from loadmanager.core.domain.settings import PlannerSettings, UnknownStrategyError, get_by_name
from loadmanager.core.strategies.placement import PLACEMENT_STRATEGIES
from loadmanager.core.strategies.shedding import SHEDDING_STRATEGIES, require_pair
from loadmanager.core.strategies.splitting import SPLIT_ALGORITHMS, split_algorithm

AUTO_HISTORY = "auto"
"""Value of `historyUrl`: `cli.serve_command` chooses the place of the history."""

_DECLARED = declared_in(PlannerSettings)
_FIELDS = {name: to_snake(declared.key) for name, declared in _DECLARED.items()}
"""Field names of `Settings` by field names of `PlannerSettings`."""


def _require_known(name: str, strategies: Mapping[str, object]) -> str:
    try:
        get_by_name("", name, strategies)
    except UnknownStrategyError:
        raise ValueError(f"unknown strategy; known are {', '.join(sorted(strategies))}") from None
    return name


def _namespace(name: str) -> str:
    return str(NamespaceName.parse(name))


SheddingName = Annotated[str, AfterValidator(lambda name: _require_known(name, SHEDDING_STRATEGIES))]
_PlacementName = Annotated[str, AfterValidator(lambda name: _require_known(name, PLACEMENT_STRATEGIES))]
_AlgorithmName = Annotated[str, AfterValidator(lambda name: _require_known(name, SPLIT_ALGORITHMS))]

_CHECKED_TYPES: dict[str, Any] = {
    "placement_strategy": _PlacementName,
    "shedding_strategy": SheddingName,
    "namespace_bundle_split_algorithm": _AlgorithmName,
    "supported_split_algorithms": tuple[_AlgorithmName, ...],
}
"""Planner settings with checks that the core does not make, by field name of `PlannerSettings`."""


def _planner_fields() -> dict[str, Any]:
    """Return a pydantic field for each setting of `PlannerSettings`, by its field name in `Settings`."""
    hints = get_type_hints(PlannerSettings)
    types = {name: type_of_core(declared, hints[name]) for name, declared in _DECLARED.items()} | _CHECKED_TYPES
    return {_FIELDS[name]: (types[name], of_core(declared)) for name, declared in _DECLARED.items()}


if TYPE_CHECKING:

    class _PlannerFields(KeyedSettings): ...
else:
    _PlannerFields = create_model("_PlannerFields", __base__=KeyedSettings, **_planner_fields())


class Settings(
    _PlannerFields,
    AuditSettings,
    TlsSettings,
    HttpSettings,
    AuthSettings,
    StoreSettings,
    WeightSettings,
):
    """Settings of a load-manager node: those declared here, and those of `PlannerSettings`."""

    title: ClassVar[str] = "loadmanager serve"
    of_a_new_fleet: ClassVar[Mapping[str, Any]] = {
        "load_balancer_load_shedding_strategy": "Level",
        "load_balancer_load_placement_strategy": "Level",
        "load_balancer_shedding_interval_minutes": 0.25,
    }

    cluster_name: str = Field("standalone", min_length=1, description="Value of the `cluster` label of every metric.")
    bind_address: str = Field("0.0.0.0", description="Address the HTTP server listens on.")  # noqa: S104 - a service
    web_service_port: OptionalPort = Field(
        8080, description="HTTP port; 0 lets the kernel choose a free one; empty: TLS alone."
    )
    web_service_port_tls: OptionalPort = Field(None, description="HTTPS port; empty: none.")
    advertised_address: str = Field(
        "", description="Host under which others reach this node; empty: the host's own name."
    )

    load_balancer_shedding_interval_minutes: Minutes = Field(
        1, description="Interval between rounds of shedding; fractions are allowed."
    )
    load_balancer_shedding_grace_period_minutes: float = Field(
        30, ge=0, le=100_000, allow_inf_nan=False, description="A moved bundle does not move again for this time."
    )
    load_balancer_auto_unload_split_bundles_enabled: bool = Field(
        True, description="After an automatic split, move the parts to the brokers that placement chooses."
    )
    load_balancer_split_interval_minutes: Minutes = Field(
        1,
        description="Interval between checks for bundles to split and to merge. Without new load reports there"
        " is no check.",
    )
    default_number_of_namespace_bundles: int = Field(
        4, ge=1, le=MAX_BUNDLES, description="Bundles of a new namespace without a given number."
    )
    namespace_bundle_unloading_timeout_ms: PositiveMs = Field(
        60_000,
        description="Retries of an unload end after this time. The owner keeps the bundle, and the failure is"
        " reported. One call to a broker may take a sixth of it.",
    )
    max_concurrent_unloads: int = Field(16, ge=1, le=10_000, description="Maximum number of concurrent unloads.")
    max_concurrent_unloads_per_broker: int = Field(
        8, ge=1, le=10_000, description="Maximum number of concurrent unloads from one broker, and to one broker."
    )
    available_namespaces: frozenset[Annotated[str, AfterValidator(_namespace)]] = Field(
        frozenset(),
        description="Namespaces (tenant/namespace) whose open topics brokers keep serving while ZooKeeper is"
        " unreachable. A topic may then have two owners.",
    )
    leader_silence_ms: int = Field(
        800,
        ge=0,
        le=86_400_000,
        description="Time without contact to the leader after which a standby takes over, unless ZooKeeper"
        " still hears the leader. On a busy machine, and below 600 after a pause of half a second,"
        " it takes longer. 0: only at the end of the leader's session.",
    )
    history_url: str = Field(
        AUTO_HISTORY,
        description="Location of the history: a directory, or a URL of a filesystem that Arrow supports, such"
        " as s3://bucket/prefix. All nodes have the same one. auto: a directory on this machine"
        " with at most 1 GiB, in $STATE_DIRECTORY, $XDG_STATE_HOME, /var/lib/loadmanager or"
        " ~/.local/state. Empty: no history.",
    )
    history_flush_interval_s: float = Field(
        60,
        ge=1,
        le=3_600,
        description="Interval of writes to the history; a leader that dies loses the rows since the last one.",
    )
    history_retention_hours: float = Field(
        168, ge=0, le=1_000_000, description="Age after which recorded hours are deleted; 0: never."
    )
    history_max_bytes: int = Field(
        10_737_418_240,
        ge=0,
        description="Maximum size of the history; the oldest hours are deleted. 0: no limit.",
    )

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        self.check_ports("web_service_port", "web_service_port_tls")
        planner = self.planner_settings()
        require_pair(planner)
        split_algorithm(planner)
        return self

    def planner_settings(self) -> PlannerSettings:
        """Return the settings that affect decisions."""
        given = {name: getattr(self, field) for name, field in _FIELDS.items()}
        fitted = frozenset(name for name, value in given.items() if value is None)
        given = {name: value for name, value in given.items() if name not in fitted}
        return PlannerSettings(**given, fitted=fitted, resource_weights=self.resource_weights)


class SettingsAlone(Settings):
    """Settings without values from the environment."""

    reads_environment: ClassVar[bool] = False
