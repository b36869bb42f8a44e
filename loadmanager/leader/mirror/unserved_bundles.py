"""Unserved bundles: bundles of brokers whose agents report them as stuck."""

from __future__ import annotations

from typing import Any

from loadmanager.core.domain.names import BrokerId
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror


def stuck_brokers(mirror: ClusterMirror) -> dict[BrokerId, str]:
    """Return the brokers that serve nothing of what they own, each with the reason that its agent reports."""
    found = {broker: known.record.get("stuck", "") for broker, known in sorted(mirror.brokers.items())}
    return {broker: why for broker, why in found.items() if why}


def unserved_bundles(mirror: ClusterMirror) -> list[dict[str, Any]]:
    """Return the number of bundles that no client can use, by their owner: a list of `wire.fleet_bodies.Unserved`."""
    stuck = stuck_brokers(mirror)
    if not stuck:
        return []
    summary = mirror.model.summary()
    owned = dict(zip(summary.brokers, summary.owned.tolist(), strict=True))
    return [
        {
            "broker": broker,
            "bundles": owned.get(broker, 0),
            "why": why,
            "remedy": f"restart {broker}, or drain it: loadmanager admin brokers drain {broker}",
        }
        for broker, why in stuck.items()
    ]
