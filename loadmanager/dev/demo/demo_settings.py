"""Sizes, times and traffic of the demo, and the configuration of its processes: seconds instead of minutes.

Placement spreads topics well, so a hot spot on random topics would change little. The demo puts it on topics of one
broker, each in another bundle if possible. This is the case for which shedding exists.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TENANT = "demo"


@dataclass(frozen=True, slots=True)
class DemoWorkload:
    """Traffic. The topic of rank r has the weight `1 / r ** zipf_exponent`.

    During a hot spot, `hot_share` of all messages goes to `hot_topics` topics. The total stays the same, so only the
    distribution of the load changes.
    """

    seed: int = 7
    namespaces: tuple[str, ...] = ("orders", "clicks", "metrics")
    topics: int = 180
    messages_per_s: float = 6_000.0
    message_bytes: int = 512
    zipf_exponent: float = 0.7
    hot_share: float = 0.4
    hot_topics: int = 8

    def topic_names(self) -> tuple[str, ...]:
        """Full names of all topics, assigned to the namespaces in turn."""
        count = len(self.namespaces)
        return tuple(
            f"persistent://{TENANT}/{self.namespaces[i % count]}/topic-{i // count:03d}" for i in range(self.topics)
        )

    def rates(self, hot: tuple[int, ...] = ()) -> tuple[float, ...]:
        """Return the messages per second of each topic while the topics at the positions `hot` are hot."""
        weights = [1 / (rank + 1) ** self.zipf_exponent for rank in range(self.topics)]
        random.Random(f"{self.seed} weights").shuffle(weights)  # noqa: S311 - traffic, not a secret
        background = self.messages_per_s * (1 - self.hot_share if hot else 1) / sum(weights)
        rates = [weight * background for weight in weights]
        for i in hot:
            rates[i] += self.messages_per_s * self.hot_share / len(hot)
        return tuple(rates)

    def choose_hot_topics(
        self, candidates: Iterable[str], bundle_of: Callable[[str], Hashable], turn: int
    ) -> tuple[int, ...]:
        """Return the positions of the next hot topics among the `candidates`, as few as possible in the same bundle.
        Each `turn` chooses other topics, and up to twice as many.
        """
        positions = {name: i for i, name in enumerate(self.topic_names())}
        chance = random.Random(f"{self.seed} hot {turn}")  # noqa: S311 - traffic, not a secret
        shuffled = chance.sample(known := sorted(set(candidates) & positions.keys()), len(known))
        chosen_in: dict[Hashable, int] = defaultdict(int)
        ranked = []
        for name in shuffled:
            ranked.append((chosen_in[bundle_of(name)], positions[name]))
            chosen_in[bundle_of(name)] += 1
        ranked.sort(key=lambda item: item[0])
        number = self.hot_topics + (turn - 1) % 3 * (self.hot_topics // 2)
        return tuple(position for _, position in ranked[:number])


NIC_GBPS = 0.015
"""Configured bandwidth of each broker, so low that the demo's traffic is a significant load."""

_BY_LATEST_REPORTS = {
    "loadBalancerLoadSheddingStrategy": "TransferShedder",
    "loadBalancerLoadPlacementStrategy": "LeastResourceUsageWithWeight",
    "loadBalancerBrokerLoadTargetStd": 0.02,
    "loadBalancerSheddingConditionHitCountThreshold": 0,
    "loadBalanceSheddingDelayInSeconds": 0,
    "loadBalancerHistoryResourcePercentage": 0.1,
}
"""Strategies that react to the latest report. Level waits a minute before it acts on a jump, and ThresholdShedder uses
ten reports: both are too slow for the demo."""

_NO_HOURLY_LIMITS = {
    "loadBalancerReturnCoolDownMinutes": 0,
    "loadBalancerMaxLoadMovedPerHourPercentage": 1_000,
}
"""No limits on churn that count hours: the demo lasts minutes."""

_ONLY_BANDWIDTH = {"loadBalancerCPUResourceWeight": 0.0}
"""Only bandwidth counts: all brokers and other processes share the CPU of the machine."""

_REPORT_S = 2
"""Interval of reports. Rates over a shorter time would be noise."""
_SECONDS_PER_MINUTE = 60


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """Settings of the demo. `duration_s` is the length of the script, from the start of the traffic to its end."""

    duration_s: float = 90.0
    nodes: int = 3
    brokers: int = 5
    client_processes: int = 2
    bundles_per_namespace: int = 16
    workload: DemoWorkload = field(default_factory=DemoWorkload)

    def at_s(self, share: float) -> float:
        """Convert a share of the script's length to seconds from the start of the traffic."""
        return share * self.duration_s


def node_configuration(settings: DemoSettings, connect_string: str, history: Path) -> dict[str, Any]:
    return {
        "metadataStoreUrl": f"zk:{connect_string}",
        **_ONLY_BANDWIDTH,
        "clusterName": "demo",
        "historyUrl": str(history),
        "historyFlushIntervalS": 5,
        "bindAddress": "127.0.0.1",
        "advertisedAddress": "127.0.0.1",
        "webServicePort": 0,
        **_BY_LATEST_REPORTS,
        "loadBalancerSheddingIntervalMinutes": settings.at_s(1 / 30) / _SECONDS_PER_MINUTE,
        "loadBalancerSheddingGracePeriodMinutes": settings.at_s(1 / 6) / _SECONDS_PER_MINUTE,
        **_NO_HOURLY_LIMITS,
    }


def agent_configuration(connect_string: str, broker_ready: dict[str, Any], node_urls: Sequence[str]) -> dict[str, Any]:
    """Return the configuration of an agent. `broker_ready` is the content of its broker's ready file."""
    return {
        "metadataStoreUrl": f"zk:{connect_string}",
        **_ONLY_BANDWIDTH,
        "brokerId": broker_ready["broker_id"],
        "brokerUrl": broker_ready["url"],
        "brokerServiceUrl": broker_ready["data_url"],
        "loadManagerUrls": list(node_urls),
        "bindAddress": "127.0.0.1",
        "agentPort": 0,
        "agentLocalPort": 0,
        "metadataStoreSessionTimeoutMillis": 3_000,
        "brokerLeaseMs": 2_000,
        "hostUsageScope": "process",
        "cpuLimitCores": 1.0,
        "loadBalancerOverrideBrokerNicSpeedGbps": NIC_GBPS,
        "loadBalancerReportUpdateMinIntervalMillis": _REPORT_S * 1_000,
        "loadBalancerReportUpdateThresholdPercentage": 0,
        "loadBalancerHostUsageCheckIntervalMinutes": _REPORT_S / _SECONDS_PER_MINUTE,
        "statsUpdateFrequencyInSecs": _REPORT_S,
    }
