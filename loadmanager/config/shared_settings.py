"""Settings that more than one kind of process has."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from loadmanager.config.settings_base import (
    Finite,
    KeyedSettings,
    Minutes,
    OptionalPath,
    Percent,
    PositiveMs,
    of_core,
)
from loadmanager.core.domain.resources import ResourceWeights
from loadmanager.core.domain.setting_declaration import declared_in

_DECLARED = declared_in(ResourceWeights)


def _weight(name: str) -> Any:  # noqa: ANN401 - as `of_core`
    return of_core(_DECLARED[name])


def zookeeper_parts(url: str) -> tuple[str, str]:
    """The servers and the chroot of zk:host:port,host:port/chroot; the chroot is empty where there is none."""
    hosts, slash, chroot = url.removeprefix("zk:").partition("/")
    return hosts, slash + chroot.rstrip("/") if chroot else ""


class SessionSettings(KeyedSettings):
    """A session with a metadata store, and who we are there."""

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

    metadata_store_credentials: str = Field(
        "",
        description="Who we are to ZooKeeper: file:///path of a file with user:password, or env:VARIABLE; empty:"
        " nobody, and all that we write there can be read and written by anybody.",
    )
    metadata_store_auth_scheme: Literal["digest", "sasl"] = Field(
        "digest",
        description="How ZooKeeper is told who we are. digest: it takes any user and password, and access lists know"
        " them by a hash. sasl: DIGEST-MD5, with the users in its JAAS file; needs the extra loadmanager[sasl].",
    )
    metadata_store_acl: Literal["secure", "open"] = Field(
        "secure",
        description="With credentials or metadataStoreNodeIds. secure: what is created in ZooKeeper is for nodes and"
        " agents alone. open: for anybody; for the time in which some processes have no credentials yet.",
    )
    metadata_store_node_ids: tuple[str, ...] = Field(
        (),
        description="Who may write all of ours in ZooKeeper, as a list of identities: digest:user:hash, sasl:user,"
        " x509:subject. Empty: whose credentials these are. Agents with credentials of their own need it.",
    )
    metadata_store_agent_ids: tuple[str, ...] = Field(
        (),
        description="Who may read all of ours in ZooKeeper and register brokers, as such a list. Empty: agents have the"
        " credentials of nodes.",
    )
    metadata_store_tls_enabled: bool = Field(
        False, description="Speak TLS to ZooKeeper; the port in metadataStoreUrl is then its secureClientPort."
    )
    metadata_store_tls_trust_certs_file_path: OptionalPath = Field(
        None, description="Certificates of the authorities that ZooKeeper's own are signed by; empty: the system's."
    )
    metadata_store_tls_certificate_file_path: OptionalPath = Field(
        None, description="The certificate shown to ZooKeeper, which may know us by it (x509)."
    )
    metadata_store_tls_key_file_path: OptionalPath = Field(None, description="The key of that certificate.")
    metadata_store_tls_hostname_verification_enable: bool = Field(
        True, description="ZooKeeper's certificate has to name the host that was asked."
    )

    @property
    def session_timeout_s(self) -> float:
        return self.metadata_store_session_timeout_millis / 1000


class StoreSettings(SessionSettings):
    """How to reach the metadata store."""

    metadata_store_url: str = Field(
        "zk:127.0.0.1:2181",
        min_length=1,
        description="ZooKeeper servers (3.6 or newer) and an optional chroot: zk:host:port,host:port/chroot.",
    )


class HttpSettings(KeyedSettings):
    """What a connection to the HTTP server may take, so that none can keep others from being answered."""

    max_http_server_connections: int = Field(
        2_048,
        ge=1,
        le=1_000_000,
        description="HTTP connections that may be open at a time; for one more the one that was silent for longest is"
        " closed. Half of the files that the process may open is the limit above it (ulimit -n).",
    )


class TracingSettings(KeyedSettings):
    """Whether a collector of OpenTelemetry is told what is done."""

    otlp_endpoint: str = Field(
        "",
        pattern=r"^(https?://[^/\s]+/?)?$",
        description="Collector that is told of lookups, decisions and moves as traces, over OTLP with HTTP, such as"
        " http://collector:4318; empty: none. Takes the extra `otel`.",
    )
    otlp_lookup_sample_ratio: float = Field(
        0.01,
        ge=0,
        le=1,
        description="Part of the requests that begin a trace where the client began none; rounds and moves always do.",
    )


class AuditSettings(KeyedSettings):
    """Where it is written down who changed what."""

    audit_log_file: str = Field(
        "",
        description="A file to which a line of JSON is written for each operation that changes something: who, from"
        " where, what, from what to what. Empty: they are in the ordinary log, as the event `operation`.",
    )


class WeightSettings(KeyedSettings):
    """How much each resource counts in a broker's usage, which is the maximum over its resources."""

    load_balancer_cpu_resource_weight: Finite = _weight("cpu")
    load_balancer_direct_memory_resource_weight: Finite = _weight("direct_memory")
    load_balancer_bandwidth_in_resource_weight: Finite = _weight("bandwidth_in")
    load_balancer_bandwidth_out_resource_weight: Finite = _weight("bandwidth_out")

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
