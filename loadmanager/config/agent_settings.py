"""Settings of the agent beside a broker."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from loadmanager.config.auth_settings import AuthSettings
from loadmanager.config.settings_base import Minutes, OptionalPath, OptionalPort
from loadmanager.config.shared_settings import HttpSettings, ReportSettings, StoreSettings, TracingSettings
from loadmanager.config.tls_settings import TlsSettings
from loadmanager.core.domain.names import parse_broker_id


class AgentSettings(TlsSettings, HttpSettings, AuthSettings, TracingSettings, StoreSettings, ReportSettings):
    """Settings of the agent beside a broker."""

    title: ClassVar[str] = "loadmanager agent"

    broker_id: Annotated[str, AfterValidator(parse_broker_id)] = Field(
        description="host:port under which the broker is known; what lookups and znodes name."
    )
    broker_url: str = Field(pattern=r"^https?://", description="URL of the broker's HTTP interface towards this agent.")
    broker_service_url: str = Field(
        "", description="URL that clients connect to after a lookup, such as pulsar://host:6650."
    )
    broker_service_url_tls: str = Field(
        "", description="URL for clients that come by TLS, such as pulsar+ssl://host:6651; empty: none."
    )
    broker_web_service_url: str = Field("", description="HTTP URL in lookup answers; empty: http:// and the broker id.")
    broker_web_service_url_tls: str = Field("", description="HTTPS URL in lookup answers; empty: none.")
    load_manager_urls: tuple[Annotated[str, Field(pattern=r"^https?://.+")], ...] = Field(
        min_length=1,
        description="A list of URLs of load-manager nodes, such as [http://lm-1:8080, http://lm-2:8080]; they are asked"
        " in turn, and the first that answers is kept.",
    )
    bind_address: str = Field(
        "0.0.0.0",  # noqa: S104 - load-manager nodes call it from other hosts
        description="Address on which nodes and operators reach the agent: unloads, bundles, health and metrics.",
    )
    agent_port: OptionalPort = Field(
        9090, description="The agent's HTTP port on it; 0 lets the kernel choose a free one; empty: TLS alone."
    )
    agent_port_tls: OptionalPort = Field(None, description="The agent's HTTPS port on it; empty: none.")
    agent_local_port: OptionalPort = Field(
        None,
        description="Port on 127.0.0.1 where the broker asks for its lease and for owners; 0: any free one. Empty,"
        " without a brokerSocketPath: agentPort, which answers these questions to this host only.",
    )
    broker_socket_path: OptionalPath = Field(
        None, description="A unix socket (mode 660) for the broker in place of agentLocalPort."
    )
    agent_url: str = Field(
        "", description="URL under which load-manager nodes reach this agent; empty: from the above."
    )
    metadata_store_session_timeout_millis: int = Field(
        2_700,
        ge=1_000,
        le=600_000,
        description="Session timeout: for so long, and one of ZooKeeper's ticks, the bundles of a machine that is lost"
        " have no owner; for two thirds of it brokers serve without ZooKeeper. Its tickTime should be 200 ms, and must"
        " be a third of this at most.",
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
    host_usage_scope: Literal["auto", "host", "process"] = Field(
        "auto",
        description="What is measured: the whole machine, or the broker's process. auto: the machine where the broker"
        " is alone on it, in no container and without limits of its own, else the process.",
    )
    cpu_limit_cores: float | None = Field(
        None,
        gt=0,
        le=100_000,
        description="Cores the broker may use; empty: as its control group, cpuset and affinity say.",
    )
    load_balancer_override_broker_nic_speed_gbps: float | None = Field(
        None, gt=0, le=100_000, allow_inf_nan=False, description="NIC speed in Gbit/s where it cannot be detected."
    )

    @property
    def shares_a_port(self) -> bool:
        """Whether the broker asks where nodes and operators do."""
        return self.agent_local_port is None and self.broker_socket_path is None

    @model_validator(mode="after")
    def _listeners_are_set(self) -> Self:
        self.check_ports("agent_port", "agent_port_tls")
        if self.agent_port is None and self.shares_a_port:
            raise ValueError("agentLocalPort: where the broker is to ask is required, as there is no plain agentPort")
        if self.agent_port is None and self.agent_url.startswith("http:"):
            raise ValueError("agentUrl: nodes cannot come by http, as there is no plain agentPort: give one of https")
        if self.agent_local_port is not None and self.broker_socket_path is not None:
            raise ValueError("agentLocalPort, brokerSocketPath: the broker asks at one of them; leave the other out")
        return self
