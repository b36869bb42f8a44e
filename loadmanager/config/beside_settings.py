"""Settings of a process beside a Pulsar, which looks at its brokers and, if it is told to, moves their bundles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import re2
from pydantic import AfterValidator, Field, model_validator

from loadmanager.config.auth_settings import AuthSettings
from loadmanager.config.node_settings import known_shedding
from loadmanager.config.settings_base import Port, PositiveMs
from loadmanager.config.shared_settings import (
    AuditSettings,
    HttpSettings,
    SessionSettings,
    TracingSettings,
    zookeeper_parts,
)


def _pattern(text: str) -> str:
    try:
        re2.compile(text)
    except re2.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return text


_Url = Annotated[str, Field(pattern=r"^https?://[^/]+/?$")]
_Pattern = Annotated[str, AfterValidator(_pattern)]


class BesideSettings(AuditSettings, HttpSettings, AuthSettings, TracingSettings, SessionSettings):
    """Settings of a process beside a Pulsar."""

    title: ClassVar[str] = "loadmanager beside"

    pulsar_metadata_store_url: str = Field(
        min_length=1, description="The ZooKeeper of the brokers, which is only read: zk:host:port,host:port/chroot."
    )
    pulsar_metadata_store_credentials: str = Field(
        "",
        description="Who we are to the brokers' ZooKeeper; metadataStoreCredentials are for stateStoreUrl alone.",
    )
    pulsar_metadata_store_auth_scheme: Literal["digest", "sasl"] = Field(
        "digest", description="As metadataStoreAuthScheme, for the brokers' ZooKeeper."
    )
    pulsar_metadata_store_tls_enabled: bool = Field(
        False, description="Speak TLS to the brokers' ZooKeeper, with the files of metadataStoreTls*."
    )
    admin_urls: tuple[_Url, ...] = Field(
        min_length=1,
        description="A list of URLs of brokers' web services, such as [http://broker-1:8080, http://broker-2:8080];"
        " they are asked in turn. The token goes to these hosts only.",
    )
    cluster_name: str = Field(
        "", description="The Pulsar cluster whose policies hold; empty: that of the brokers that are asked."
    )
    mode: Literal["shadow", "act"] = Field(
        "shadow", description="shadow: look, plan, judge, and change nothing. act: move bundles, too."
    )
    state_store_url: str = Field(
        "",
        description="A ZooKeeper and a chroot of our own, zk:host:port/loadmanager: where several of these processes"
        " elect the one that acts, and keep what operators tell them. Empty: in memory, which is for shadow only.",
    )
    metadata_store_session_timeout_millis: int = Field(
        10_000, ge=1_000, le=600_000, description="Session timeout in both stores."
    )
    folder: Path = Field(
        Path("loadmanager-beside"), description="Where the diary, the scores and the recorded history are kept."
    )
    overrides: dict[str, str] = Field(
        default_factory=dict,
        description="Settings of the balancer that win over the brokers' own, by key and as text, such as"
        " {loadBalancerLoadSheddingStrategy: TransferShedder}.",
    )
    strategies: tuple[Annotated[str, AfterValidator(known_shedding)], ...] = Field(
        (), description="Further shedding strategies whose plans are scored beside Pulsar's moves."
    )
    take_over: bool = Field(
        False,
        description="When it acts, switch shedding and automatic splits off at the brokers by dynamic configuration,"
        " and give them back at the end.",
    )
    included_namespaces: tuple[_Pattern, ...] = Field(
        (), description="Regular expressions (RE2) over tenant/namespace: only these are moved; none: all are."
    )
    excluded_namespaces: tuple[_Pattern, ...] = Field(
        (), description="Regular expressions (RE2) over tenant/namespace: these are never moved; pulsar/.* never is."
    )
    move_timeout_ms: PositiveMs = Field(
        30_000, description="A bundle that has not arrived after this long counts as a move that failed."
    )
    moves_at_once: int = Field(2, ge=1, le=1_000, description="Moves that may be under way at a time.")
    moves_per_round: int = Field(10, ge=1, le=100_000, description="Moves that a round of shedding may make.")
    moves_per_hour: int = Field(60, ge=1, le=1_000_000, description="Moves that shedding may make within an hour.")
    failures_until_stop: int = Field(
        3, ge=1, le=1_000, description="So many moves that fail in succession stop acting until an operator says go on."
    )
    settling_seconds: float = Field(
        60, ge=0, le=86_400, description="No round begins for this long after a broker has joined or left."
    )
    splits_enabled: bool = Field(
        False,
        description="Split bundles that are above the brokers' limits, by our rules and Pulsar's call. Only with"
        " range_equally_divide as defaultNamespaceBundleSplitAlgorithm: the others need the load of single topics.",
    )
    admin_timeout_ms: PositiveMs = Field(10_000, description="How long one request to a broker may take.")
    token_file: Path | None = Field(
        None, description="A file with the token that brokers want; read again if it changes."
    )
    tls_trust_certs_file_path: Path | None = Field(
        None, description="Certificates of the authorities that brokers' own are signed by; empty: the system's."
    )
    tls_certificate_file_path: Path | None = Field(None, description="The certificate shown to brokers that want one.")
    tls_key_file_path: Path | None = Field(None, description="The key of that certificate.")
    tls_allow_insecure_connection: bool = Field(False, description="Take any certificate that a broker shows.")
    tls_hostname_verification_enable: bool = Field(
        True, description="A broker's certificate has to name the host that was asked."
    )
    bind_address: str = Field(
        "127.0.0.1", description="Address the HTTP server listens on; whoever reaches it may move bundles."
    )
    web_service_port: Port = Field(8085, description="HTTP port; 0 lets the kernel choose a free one.")
    advertised_address: str = Field(
        "", description="Host under which others of these processes reach this one; empty: the address it listens on."
    )
    history_retention_hours: float = Field(
        168, ge=0, le=1_000_000, description="Recorded hours older than this are deleted; 0: never for their age."
    )
    history_max_bytes: int = Field(
        2_147_483_648, ge=0, description="The oldest recorded hours are deleted while the history is larger; 0: never."
    )

    @model_validator(mode="after")
    def _acting_needs_a_state_store(self) -> Self:
        if self.mode == "act" and not self.state_store_url:
            raise ValueError(
                "stateStoreUrl: is required to act, or two of these processes could act at once; give a chroot of its"
                " own, such as zk:host:2181/loadmanager"
            )
        if self.take_over and self.mode != "act":
            raise ValueError("takeOver: only with mode: act; shadow changes nothing")
        return self

    @model_validator(mode="after")
    def _stores_are_apart(self) -> Self:
        if self.state_store_url and zookeeper_parts(self.state_store_url) == zookeeper_parts(
            self.pulsar_metadata_store_url
        ):
            raise ValueError(
                "stateStoreUrl: is the Pulsar's own; give a chroot of its own, as zk:host:2181/loadmanager"
            )
        return self
