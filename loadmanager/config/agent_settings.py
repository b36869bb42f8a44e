"""Settings of the agent beside a broker."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from loadmanager.config.auth_settings import AuthSettings
from loadmanager.config.settings_base import Minutes, OptionalPath, OptionalPort
from loadmanager.config.shared_settings import HttpSettings, ReportSettings, StoreSettings, TlsSettings
from loadmanager.core.domain.names import parse_broker_id


class AgentSettings(TlsSettings, HttpSettings, AuthSettings, StoreSettings, ReportSettings):
    """Settings of the agent beside a broker."""

    title: ClassVar[str] = "loadmanager agent"

    broker_id: Annotated[str, AfterValidator(parse_broker_id)] = Field(
        description="Name of the broker in lookups and znodes, as host:port."
    )
    broker_url: str = Field(pattern=r"^https?://", description="URL of the broker's HTTP interface for this agent.")
    broker_service_url: str = Field(
        "", description="URL that clients connect to after a lookup, such as pulsar://host:6650."
    )
    broker_service_url_tls: str = Field(
        "", description="URL for clients with TLS, such as pulsar+ssl://host:6651. Empty: none."
    )
    broker_web_service_url: str = Field("", description="HTTP URL in lookup answers; empty: http:// and the broker id.")
    broker_web_service_url_tls: str = Field("", description="HTTPS URL in lookup answers; empty: none.")
    load_manager_urls: tuple[Annotated[str, Field(pattern=r"^https?://.+")], ...] = Field(
        min_length=1,
        description="URLs of load-manager nodes, such as [http://lm-1:8080, http://lm-2:8080]. The agent uses"
        " the first that answers.",
    )
    bind_address: str = Field(
        "0.0.0.0",  # noqa: S104 - load-manager nodes call it from other hosts
        description="Listen address for nodes and operators: unloads, bundles, health and metrics.",
    )
    agent_port: OptionalPort = Field(9090, description="HTTP port of the agent; 0: any free port; empty: only TLS.")
    agent_port_tls: OptionalPort = Field(None, description="HTTPS port of the agent. Empty: none.")
    agent_local_port: OptionalPort = Field(
        None,
        description="Port on 127.0.0.1 for the broker's requests for its lease and for owners; 0: any free"
        " port. Empty, without a brokerSocketPath: agentPort, which answers such requests only from"
        " this host.",
    )
    broker_socket_path: OptionalPath = Field(
        None, description="Unix socket (mode 660) for the broker instead of agentLocalPort."
    )
    agent_url: str = Field(
        "", description="URL of this agent for load-manager nodes. Empty: derived from the settings above."
    )
    metadata_store_session_timeout_millis: int = Field(
        2_700,
        ge=1_000,
        le=600_000,
        description="Session timeout: the bundles of a lost machine have no owner for this time plus one tick"
        " of ZooKeeper. Brokers serve without ZooKeeper for two thirds of it. ZooKeeper's tickTime"
        " should be 200 ms, and at most a third of this.",
    )
    broker_lease_ms: int = Field(
        3_000,
        ge=100,
        le=60_000,
        description="Duration of a broker's lease: a broker that cannot renew it for this long stops serving.",
    )
    load_balancer_host_usage_check_interval_minutes: Minutes = Field(
        1, description="Interval between measurements of CPU, memory and network usage; fractions are allowed."
    )
    stats_update_frequency_in_secs: float = Field(
        60, gt=0, le=86_400, description="Interval between reads of topic statistics from the broker."
    )
    host_usage_scope: Literal["auto", "host", "process"] = Field(
        "auto",
        description="Scope of measured usage: the whole machine, or the broker's process. auto: the machine if"
        " the broker is alone on it, in no container and without limits of its own; otherwise the"
        " process.",
    )
    cpu_limit_cores: float | None = Field(
        None,
        gt=0,
        le=100_000,
        description="Number of cores of the broker. Empty: from its control group, cpuset and affinity.",
    )
    load_balancer_override_broker_nic_speed_gbps: float | None = Field(
        None, gt=0, le=100_000, allow_inf_nan=False, description="Network speed in Gbit/s, if it cannot be detected."
    )

    @property
    def shares_a_port(self) -> bool:
        """Return True if the broker uses the same port as nodes and operators."""
        return self.agent_local_port is None and self.broker_socket_path is None

    @model_validator(mode="after")
    def _listeners_are_set(self) -> Self:
        self.check_ports("agent_port", "agent_port_tls")
        if self.agent_port is None and self.shares_a_port:
            raise ValueError("agentLocalPort: required for the broker, because there is no plain agentPort")
        if self.agent_port is None and self.agent_url.startswith("http:"):
            raise ValueError("agentUrl: http needs a plain agentPort: give an https URL")
        if self.agent_local_port is not None and self.broker_socket_path is not None:
            raise ValueError("agentLocalPort, brokerSocketPath: the broker asks at one of them; leave the other out")
        return self
