"""A recorded history of a real leader on an in-memory metadata store that balances an uneven load."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from support.nodes import Cluster, FakeAgent, RunningNode, topics_by_bundle
from support.waiting import eventually, patience

from loadmanager.core.domain.names import BrokerId
from loadmanager.leader.audit import history_recorder
from loadmanager.wire.broker_data import HealthData, LocalBrokerData, NamespaceBundleStats

NAMESPACE, OTHER = "t/ns", "t/other"
BUNDLES = 12
MIB = 1024 * 1024

OF_STRATEGY: dict[str, dict[str, Any]] = {
    "ThresholdShedder": {"load_balancer_load_shedding_strategy": "ThresholdShedder"},
    "TransferShedder": {
        "load_manager_class_name": "ExtensibleLoadManagerImpl",
        "load_balancer_load_shedding_strategy": "TransferShedder",
        "load_balancer_load_placement_strategy": "LeastResourceUsageWithWeight",
        "load_balancer_shedding_condition_hit_count_threshold": 0,
    },
    "AvgShedder": {
        "load_balancer_load_shedding_strategy": "AvgShedder",
        "load_balancer_load_placement_strategy": "AvgShedder",
        "load_balancer_avg_shedder_hit_count_high_threshold": 1,
        "load_balancer_avg_shedder_hit_count_low_threshold": 1,
    },
    "SimpleLoadManagerImpl": {"load_manager_class_name": "SimpleLoadManagerImpl"},
}


@dataclass(slots=True)
class Recorded:
    """A leader that records, and its cluster."""

    cluster: Cluster
    leader: RunningNode
    health: dict[str, HealthData] = field(default_factory=dict)

    async def own(self, namespace: str) -> None:
        """Create a namespace, and have all its bundles owned."""
        await self.cluster.a_namespace(namespace, bundles={"numBundles": BUNDLES})
        for topic in topics_by_bundle(self.leader, namespace, BUNDLES).values():
            assert (await self.leader.lookup(topic)).status == 200

    async def report(self, rounds: int = 0) -> None:
        """Every broker reports what it owns, and its `health`; b1 has most of the load, and is almost full."""
        for broker, agent in self.cluster.brokers.items():
            await self._report(agent, broker, rounds)

    async def live(self, rounds: int) -> int:
        """Run rounds of shedding and of splits, with new reports before each; return the number of moved bundles."""
        moves = 0
        for number in range(rounds):
            await self.report(number)
            plan = await self.leader.node.shedding.run_round()
            moves += len(plan.steps)
            await self.leader.node.reshaping.round()
        await self.report(rounds)
        return moves

    def owned_by(self, broker: str) -> list[str]:
        return [
            entry.state.bundle_name(index)
            for entry, index, ownership in self.leader.node.mirror.ownerships()
            if ownership.owner is not None and ownership.owner.broker == broker
        ]

    async def _report(self, agent: FakeAgent, broker: str, rounds: int) -> None:
        factor = 8 if broker == "b1:8080" else 1
        stats: dict[str, NamespaceBundleStats] = {
            name: {
                "msgRateIn": 100.1234567 * factor * (number + 1 + rounds % 3),
                "msgRateOut": 50.55555 * factor,
                "msgThroughputIn": MIB * factor * (number + 1.3),
                "msgThroughputOut": 0.7 * MIB * factor,
                "topics": 3 + number,
                "consumerCount": 2,
                "producerCount": 1,
            }
            for number, name in enumerate(self.owned_by(broker))
        }
        record: LocalBrokerData = {**agent.record}
        record["lastStats"] = stats
        record["bundles"], record["numBundles"] = list(stats), len(stats)
        record["numTopics"] = sum(each["topics"] for each in stats.values())
        record["lastUpdate"] = round(time.time() * 1000)
        for key in ("msgRateIn", "msgRateOut", "msgThroughputIn", "msgThroughputOut"):
            record[key] = sum(float(each[key]) for each in stats.values())
        used = {"b1:8080": 92.0, "b2:8080": 31.0 + rounds}.get(broker, 12.0)
        for resource in ("cpu", "bandwidthIn", "bandwidthOut"):
            record[resource] = {"usage": used, "limit": 100.0}
        if broker in self.health:
            record["health"] = self.health[broker]
        await agent.report(record)
        mirror = self.leader.node.mirror
        await eventually(lambda: mirror.brokers[BrokerId(broker)].record.get("lastUpdate") == record["lastUpdate"])


@asynccontextmanager
async def a_recorded_leader(folder: Path, **overrides: Any) -> AsyncIterator[Recorded]:  # noqa: ANN401 - any setting
    """A leader that records in the folder, three brokers, and two namespaces; one began when b1 was alone."""
    values: dict[str, Any] = {
        "history_url": str(folder),
        "history_flush_interval_s": 1,
        "load_balancer_shedding_grace_period_minutes": 0.001,
        "load_balancer_distribute_bundles_evenly_enabled": False,
        "load_balancer_max_load_moved_per_cycle_percentage": 100,
        "load_balancer_max_load_moved_per_hour_percentage": 10_000,
    }
    # A busy machine needs longer to write what is left at the end.
    with mock.patch.object(history_recorder, "_CLOSE_S", patience()):
        async with Cluster() as cluster:
            yield await _start(cluster, values | overrides)


async def _start(cluster: Cluster, settings: Mapping[str, Any]) -> Recorded:
    recorded = Recorded(cluster, await cluster.start_leader(**settings))
    await cluster.a_broker("b1:8080")
    await recorded.own(NAMESPACE)
    for broker in ("b2:8080", "b3:8080"):
        await cluster.a_broker(broker)
    await recorded.own(OTHER)
    return recorded
