"""Fleet size: the least number of brokers that carry the current peak after a loss.

Load is counted in brokers: the usages of all brokers, added up for each resource. The fleet is large enough if the
brokers that remain after the loss of any one broker stay within `loadBalancerBrokerOverloadedThresholdPercentage`; with
failure domains, after the loss of any one domain, brokers being spread evenly over them. Brokers count as alike, and
load as divisible.

Hysteresis: the number rises at once. It falls once load has been watched for `WINDOW_S`, and only to what carries the
peak of that time and a tenth more. So a new leader, or a short pause of the load, never takes brokers away.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from loadmanager.core.domain.policies import DEFAULT_DOMAIN
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import BANDWIDTH_IN, BANDWIDTH_OUT, CPU, DIRECT_MEMORY, FloatArray
from loadmanager.core.model.snapshot import Snapshot

WINDOW_S = 600.0
_SLACK = 1.1
"""Multiple of the peak that a smaller fleet must carry."""
_FEWEST = 2
_MOST_PERCENT = 1000
_DECIMALS = 4
_RESOURCES = {
    "CPU": CPU,
    "direct memory": DIRECT_MEMORY,
    "network in": BANDWIDTH_IN,
    "network out": BANDWIDTH_OUT,
}


@dataclass(frozen=True, slots=True)
class FleetSize:
    """Number of brokers `needed`, and its reason."""

    needed: int
    sentence: str


@dataclass(frozen=True, slots=True)
class SizeMemory:
    """Memory between two calls: the last number, the begin of the watch, and the load of the last `WINDOW_S`, each with
    its time.
    """

    needed: int
    since_s: float
    loads: tuple[tuple[float, FloatArray], ...]


def size_fleet(
    snapshot: Snapshot, settings: PlannerSettings, memory: SizeMemory | None
) -> tuple[FleetSize, SizeMemory] | None:
    """Return the fleet size and the memory for the next call; None while no broker has reported."""
    now_s, brokers = snapshot.taken_at_s, len(snapshot.brokers.ids)
    if not brokers:
        return None
    before = memory or SizeMemory(brokers, now_s, ())
    recent = (each for each in before.loads if each[0] > now_s - WINDOW_S)
    loads = (*recent, (now_s, _load_in_brokers(snapshot, settings)))
    peaks = np.max([load for _, load in loads], axis=0)
    peak, resource = float(peaks.max()), list(_RESOURCES)[int(peaks.argmax())]
    domains = _count_domains(snapshot)
    limit_percent = max(settings.broker_overloaded_threshold_percentage, 1)
    least, most = (count_brokers(100 * load / limit_percent, domains) for load in (peak, _SLACK * peak))
    needed = max(before.needed, least)
    if now_s - before.since_s >= WINDOW_S:
        needed = min(needed, most)
    loss = "a failure domain" if domains > 1 else "a broker"
    sentence = (
        f"{needed} brokers carry the peak of the last {WINDOW_S / 60:.0f} min, {peak:.3g} brokers of {resource}, and"
        f" stay within {limit_percent:g} % after the loss of {loss}"
    )
    return FleetSize(needed, sentence), SizeMemory(needed, before.since_s, loads)


def count_brokers(load: float, domains: int) -> int:
    """Return the least number of brokers of which those that remain after a loss carry a load of so many brokers."""
    count = max(_FEWEST, math.ceil(load))
    while count - (math.ceil(count / domains) if domains > 1 else 1) < load:
        count += 1
    return count


def _load_in_brokers(snapshot: Snapshot, settings: PlannerSettings) -> FloatArray:
    """Return the weighted load of all brokers, in brokers, (4,) by rated resource."""
    weights = settings.resource_weights
    usage = np.nan_to_num(snapshot.brokers.usage_percent[:, list(_RESOURCES.values())].astype(np.float64))
    factors = np.array([weights.cpu, weights.direct_memory, weights.bandwidth_in, weights.bandwidth_out])
    return np.asarray(np.round(np.clip(usage, 0, _MOST_PERCENT).sum(axis=0) * factors / 100, _DECIMALS))


def _count_domains(snapshot: Snapshot) -> int:
    return len({snapshot.policies.failure_domain(broker) for broker in snapshot.brokers.ids} - {DEFAULT_DOMAIN})
