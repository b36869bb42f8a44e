"""Settings of a process beside a Pulsar, which observes its brokers and can move their bundles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import re2
from pydantic import AfterValidator, Field, model_validator

from loadmanager.config.auth_settings import AuthSettings
from loadmanager.config.node_settings import SheddingName
from loadmanager.config.settings_base import Port, PositiveMs
from loadmanager.config.shared_settings import AuditSettings, HttpSettings, SessionSettings


def _pattern(text: str) -> str:
    try:
        re2.compile(text)
    except re2.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return text


_Url = Annotated[str, Field(pattern=r"^https?://[^/]+/?$")]
_Suffix = Annotated[str, Field(pattern=r"^\.[^/:]+$")]
_Pattern = Annotated[str, AfterValidator(_pattern)]


class PulsarServiceSettings(AuditSettings, HttpSettings, AuthSettings, SessionSettings):
    """Settings of a process beside a Pulsar."""

    title: ClassVar[str] = "loadmanager pulsar"

    admin_urls: tuple[_Url, ...] = Field(
        min_length=1,
        description="URLs of brokers' web services, such as [http://broker-1:8080]; the other brokers are discovered."
        " The token goes to these hosts, and to those of tokenHostSuffixes.",
    )
    token_host_suffixes: tuple[_Suffix, ...] = Field(
        (),
        description="Further hosts that get the token, by the end of their names, such as [.pulsar.svc.cluster.local];"
        " only over https with verified certificates.",
    )
    poll_interval_seconds: float = Field(
        5, ge=0.01, le=600, description="How often all brokers are asked for their load and bundles."
    )
    cluster_name: str = Field("", description="Pulsar cluster with the policies to apply. Empty: that of the brokers.")
    mode: Literal["observe", "act"] = Field(
        "observe", description="observe: plan and compare; change nothing. act: move bundles as well."
    )
    state_store_url: str = Field(
        "",
        description="ZooKeeper with a chroot of its own, zk:host:port/loadmanager, for leader election and"
        " operator config. Empty: in memory, only to observe.",
    )
    metadata_store_session_timeout_millis: int = Field(
        10_000, ge=1_000, le=600_000, description="Session timeout in stateStoreUrl."
    )
    folder: Path = Field(
        Path("loadmanager-pulsar"), description="Directory of the diary, the scores and the recorded history."
    )
    overrides: dict[str, str] = Field(
        default_factory=dict,
        description="Balancer settings that override those of the brokers, as text by key, such as"
        " {loadBalancerLoadSheddingStrategy: TransferShedder}.",
    )
    strategies: tuple[SheddingName, ...] = Field(
        (), description="Further shedding strategies to compare with Pulsar's moves."
    )
    take_over: bool = Field(
        False,
        description="With mode act: disable shedding and automatic splits of the brokers by dynamic"
        " configuration, and restore them at the end.",
    )
    included_namespaces: tuple[_Pattern, ...] = Field(
        (), description="Regular expressions (RE2) over tenant/namespace: only these are moved. Empty: all."
    )
    excluded_namespaces: tuple[_Pattern, ...] = Field(
        (), description="Regular expressions (RE2) over tenant/namespace: these are never moved; neither is pulsar/.*."
    )
    move_timeout_ms: PositiveMs = Field(
        30_000, description="A move fails if the bundle has not arrived after this time."
    )
    moves_at_once: int = Field(2, ge=1, le=1_000, description="Maximum number of concurrent moves.")
    moves_per_round: int = Field(10, ge=1, le=100_000, description="Maximum number of moves in a round of shedding.")
    moves_per_hour: int = Field(
        60, ge=1, le=1_000_000, description="Maximum number of shedding's moves within an hour."
    )
    settling_seconds: float = Field(
        60, ge=0, le=86_400, description="No round begins for this time after a broker joined or left."
    )
    splits_enabled: bool = Field(
        False,
        description="Split bundles that are above the brokers' limits, by our rules and Pulsar's call. Only with"
        " range_equally_divide as defaultNamespaceBundleSplitAlgorithm: the others need the load of single topics.",
    )
    token_file: Path | None = Field(None, description="File with the token for brokers. A changed file is read again.")
    tls_trust_certs_file_path: Path | None = Field(
        None, description="Trusted authorities of brokers' certificates (PEM). Empty: those of the system."
    )
    tls_certificate_file_path: Path | None = Field(None, description="Client certificate for brokers.")
    tls_key_file_path: Path | None = Field(None, description="Private key of that certificate.")
    tls_allow_insecure_connection: bool = Field(False, description="Accept any certificate of a broker.")
    tls_hostname_verification_enable: bool = Field(True, description="A broker's certificate must name its host.")
    bind_address: str = Field(
        "127.0.0.1", description="Listen address of the HTTP server. Whoever reaches it may move bundles."
    )
    web_service_port: Port = Field(8085, description="HTTP port; 0: any free port.")
    advertised_address: str = Field("", description="Host of this process for its peers. Empty: the listen address.")
    history_retention_hours: float = Field(
        168, ge=0, le=1_000_000, description="Age after which recorded hours are deleted; 0: never."
    )
    history_max_bytes: int = Field(
        2_147_483_648, ge=0, description="Maximum size of the history; the oldest hours are deleted. 0: no limit."
    )

    @model_validator(mode="after")
    def _acting_needs_a_state_store(self) -> Self:
        if self.mode == "act" and not self.state_store_url:
            raise ValueError(
                "stateStoreUrl: is required to act, or two of these processes could act at once; give a chroot of its"
                " own, such as zk:host:2181/loadmanager"
            )
        if self.token_host_suffixes and self.tls_allow_insecure_connection:
            raise ValueError("tokenHostSuffixes: not with tlsAllowInsecureConnection; anybody could take the token")
        if self.take_over and self.mode != "act":
            raise ValueError("takeOver: only with mode: act; observe changes nothing")
        return self
