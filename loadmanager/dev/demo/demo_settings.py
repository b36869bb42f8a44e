"""The demo's sizes and times, and the configuration of its processes: seconds where real life has minutes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadmanager.dev.demo.demo_workload import DemoWorkload

NIC_GBPS = 0.015
"""The bandwidth each broker claims to have, so small that the demo's traffic is a load worth balancing."""

_BY_LATEST_REPORTS = {
    "loadBalancerLoadSheddingStrategy": "TransferShedder",
    "loadBalancerLoadPlacementStrategy": "LeastResourceUsageWithWeight",
    "loadBalancerBrokerLoadTargetStd": 0.02,
    "loadBalancerSheddingConditionHitCountThreshold": 0,
    "loadBalanceSheddingDelayInSeconds": 0,
    "loadBalancerHistoryResourcePercentage": 0.1,
}
"""Level believes a jump once it has stood for a minute, and ThresholdShedder goes by ten reports: both are for days."""

_HOURS_IN_MINUTES = {
    "loadBalancerReturnCoolDownMinutes": 0.5,
    "loadBalancerMaxLoadMovedPerHourPercentage": 1_000,
    "loadBalancerChurnBreakerEnabled": False,
}
"""Limits on churn are for hours, in which the load of the demo's minutes would be everywhere."""

_REPORT_S = 2
"""Rates over less than this would be noise."""
_SESSION_TIMEOUT_MS = 3_000
_SECONDS_PER_MINUTE = 60


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """`duration_s` is the length of the script, from the start of the traffic to its end."""

    duration_s: float = 90.0
    nodes: int = 3
    brokers: int = 5
    client_processes: int = 2
    bundles_per_namespace: int = 16
    workload: DemoWorkload = field(default_factory=DemoWorkload)

    def at_s(self, share: float) -> float:
        """A moment of the script, as a share of its length, in seconds from the start of the traffic."""
        return share * self.duration_s

    @property
    def shedding_interval_s(self) -> float:
        return self.duration_s / 30

    @property
    def shedding_grace_s(self) -> float:
        return self.duration_s / 6


def node_configuration(settings: DemoSettings, connect_string: str, history: Path) -> dict[str, Any]:
    return {
        **_store(connect_string),
        **_weights(),
        "clusterName": "demo",
        "historyUrl": str(history),
        "historyFlushIntervalS": 5,
        "bindAddress": "127.0.0.1",
        "advertisedAddress": "127.0.0.1",
        "webServicePort": 0,
        **_BY_LATEST_REPORTS,
        "loadBalancerSheddingIntervalMinutes": settings.shedding_interval_s / _SECONDS_PER_MINUTE,
        "loadBalancerSheddingGracePeriodMinutes": settings.shedding_grace_s / _SECONDS_PER_MINUTE,
        **_HOURS_IN_MINUTES,
    }


def agent_configuration(connect_string: str, broker_ready: dict[str, Any], node_urls: Sequence[str]) -> dict[str, Any]:
    """`broker_ready` is what the broker wrote when it was ready."""
    return {
        **_store(connect_string),
        **_weights(),
        "brokerId": broker_ready["broker_id"],
        "brokerUrl": broker_ready["url"],
        "brokerServiceUrl": broker_ready["data_url"],
        "loadManagerUrls": list(node_urls),
        "bindAddress": "127.0.0.1",
        "agentPort": 0,
        "agentLocalPort": 0,
        "brokerLeaseMs": 2_000,
        "hostUsageScope": "process",
        "cpuLimitCores": 1.0,
        "loadBalancerOverrideBrokerNicSpeedGbps": NIC_GBPS,
        "loadBalancerReportUpdateMinIntervalMillis": _REPORT_S * 1_000,
        "loadBalancerReportUpdateThresholdPercentage": 0,
        "loadBalancerHostUsageCheckIntervalMinutes": _REPORT_S / _SECONDS_PER_MINUTE,
        "statsUpdateFrequencyInSecs": _REPORT_S,
    }


def _store(connect_string: str) -> dict[str, Any]:
    return {
        "metadataStoreUrl": f"zk:{connect_string}",
        "metadataStoreSessionTimeoutMillis": _SESSION_TIMEOUT_MS,
    }


def _weights() -> dict[str, Any]:
    """Only bandwidth counts: the CPU of the machine is shared by all the brokers, and by whatever else runs on it."""
    return {"loadBalancerCPUResourceWeight": 0.0}
