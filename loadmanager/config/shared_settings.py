"""Settings shared by several kinds of processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from loadmanager.config.settings_base import Finite, KeyedSettings, Minutes, OptionalPath, Percent, PositiveMs, of_core
from loadmanager.core.domain.resources import ResourceWeights
from loadmanager.core.domain.setting_declaration import declared_in
from loadmanager.errors import ConfigurationError

_DECLARED = declared_in(ResourceWeights)


def _weight(name: str) -> Any:  # noqa: ANN401 - as `of_core`
    return of_core(_DECLARED[name])


def zookeeper_parts(url: str) -> tuple[str, str]:
    """Split zk:host:port,host:port/chroot into servers and chroot; the chroot may be empty."""
    hosts, slash, chroot = url.removeprefix("zk:").partition("/")
    return hosts, slash + chroot.rstrip("/") if chroot else ""


class SessionSettings(KeyedSettings):
    """Session with a metadata store: timeouts, credentials, access lists and TLS."""

    metadata_store_session_timeout_millis: int = Field(
        10_000,
        ge=1_000,
        le=600_000,
        description="Session timeout. A broker whose machine is lost keeps its bundles for this long (Pulsar's"
        " default is 30000).",
    )
    metadata_store_credentials: str = Field(
        "",
        description="Credentials for ZooKeeper: file:///path of a file with user:password, or env:VARIABLE."
        " Empty: none, and everybody can read and write all znodes. ZooKeeper accepts any user and password, and"
        " access lists have their hash. With sasl: in front, such as sasl:file:///path, DIGEST-MD5 with the users"
        " in ZooKeeper's JAAS file; needs the extra loadmanager[sasl].",
    )
    metadata_store_node_ids: tuple[str, ...] = Field(
        (),
        description="Identities that may write all znodes: digest:user:hash, sasl:user, x509:subject. Empty:"
        " that of metadataStoreCredentials. Required if agents have credentials of their own. world:anyone alone:"
        " new znodes are open, while some processes have no credentials yet.",
    )
    metadata_store_agent_ids: tuple[str, ...] = Field(
        (),
        description="Identities that may read all znodes and register brokers. Empty: agents have the"
        " credentials of nodes.",
    )
    metadata_store_tls_trust_certs_file_path: OptionalPath = Field(
        None,
        description="Trusted authorities of ZooKeeper's certificates (PEM). With this file, or a client certificate,"
        " ZooKeeper is reached by TLS: metadataStoreUrl then has its secureClientPort.",
    )
    metadata_store_tls_certificate_file_path: OptionalPath = Field(
        None, description="Client certificate for ZooKeeper, which can be an identity (x509)."
    )
    metadata_store_tls_key_file_path: OptionalPath = Field(None, description="Private key of that certificate.")

    @property
    def session_timeout_s(self) -> float:
        return self.metadata_store_session_timeout_millis / 1000


class StoreSettings(SessionSettings):
    """Address of the metadata store."""

    metadata_store_url: str = Field(
        "zk:127.0.0.1:2181",
        min_length=1,
        description="ZooKeeper servers (3.6 or newer) and an optional chroot: zk:host:port,host:port/chroot.",
    )


class HttpSettings(KeyedSettings):
    """Limit of the HTTP server."""

    max_http_server_connections: int = Field(
        2_048,
        ge=1,
        le=1_000_000,
        description="Maximum number of open HTTP connections. A further one replaces the one that is idle for"
        " longest. At most half of the files that the process may open (ulimit -n).",
    )


def require_writable(path: str) -> None:
    """Raise `ConfigurationError` unless the file can be appended to; create it if missing. An empty path passes."""
    try:
        if path:
            Path(path).open("a").close()
    except OSError as error:
        raise ConfigurationError(f"auditLogFile {path}: {error.strerror}") from None


class AuditSettings(KeyedSettings):
    """File of the audit log."""

    audit_log_file: str = Field(
        "",
        description="File of the audit log: a JSON line with caller, operation, and values before and after for"
        " each change. Empty: the ordinary log, as the event `operation`.",
    )


class WeightSettings(KeyedSettings):
    """Weights of the resources in a broker's usage, which is the maximum over its resources."""

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
    """Pulsar's rules for writing a broker's load report."""

    load_balancer_report_update_min_interval_millis: PositiveMs = Field(
        5_000, description="Interval in which an agent checks whether its load report has to be written again."
    )
    load_balancer_report_update_max_interval_minutes: Minutes = Field(15, description="Maximum age of a load report.")
    load_balancer_report_update_threshold_percentage: Percent = Field(
        10, description="A load report is written when a value in it changed by more than this many per cent."
    )


class TlsSettings(KeyedSettings):
    """TLS of nodes and agents, by Pulsar's keys. Files are read again when they change."""

    tls_certificate_file_path: OptionalPath = Field(
        None, description="Certificate of the TLS port (PEM, with its chain). A changed file is read again."
    )
    tls_key_file_path: OptionalPath = Field(None, description="Private key of that certificate, without a password.")
    tls_trust_certs_file_path: OptionalPath = Field(
        None,
        description="Trusted authorities of client certificates (PEM); other certificates are refused. Empty:"
        " clients need none.",
    )
    tls_require_trusted_client_cert_on_connect: bool = Field(False, description="Refuse clients without a certificate.")
    tls_protocols: tuple[Literal["TLSv1.2", "TLSv1.3"], ...] = Field(
        (), description="TLS versions of the TLS port: TLSv1.2, TLSv1.3. Empty: both."
    )
    broker_client_tls_enabled: bool = Field(
        False, description="Advertise the TLS port to others, even if there is a plain port."
    )
    broker_client_trust_certs_file_path: OptionalPath = Field(
        None,
        description="Trusted authorities of the certificates of nodes and agents (PEM). Empty: those of the system.",
    )
    broker_client_certificate_file_path: OptionalPath = Field(
        None, description="Client certificate of this process for nodes and agents."
    )
    broker_client_key_file_path: OptionalPath = Field(None, description="Private key of that certificate.")
    tls_hostname_verification_enabled: bool = Field(
        True, description="The certificate of a node or an agent must name its host."
    )

    def check_ports(self, plain: str, tls: str) -> None:
        """Check that a port is set, and a certificate for a TLS port; raise `ValueError`."""
        plain_key, tls_key = self.key(plain), self.key(tls)
        if getattr(self, tls) is None:
            if getattr(self, plain) is None:
                raise ValueError(f"{plain_key}, {tls_key}: both are empty: give the port to listen on")
            if self.broker_client_tls_enabled:
                raise ValueError(f"brokerClientTlsEnabled: there is no TLS port: give {tls_key}")
        elif self.tls_certificate_file_path is None or self.tls_key_file_path is None:
            raise ValueError(f"{tls_key}: needs a tlsCertificateFilePath and a tlsKeyFilePath")
        if self.tls_require_trusted_client_cert_on_connect and self.tls_trust_certs_file_path is None:
            raise ValueError(
                "tlsRequireTrustedClientCertOnConnect: no certificate is trusted: give tlsTrustCertsFilePath"
            )
