"""How used a broker is, and how it serves, in plain numbers: what its agent works out without any array.

`core.model.load` has the same for all brokers at once. Source: Pulsar's LocalBrokerData and ResourceUsage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from ctypes import c_float
from dataclasses import dataclass
from typing import NamedTuple

from loadmanager.core.domain.setting_declaration import weight

HOT = 0.85
"""A broker that uses more than this part of what it has is hot: little room is left. Pulsar's default for a broker that
is overloaded is the same.
"""


@dataclass(frozen=True, slots=True)
class ResourceWeights:
    """How much each resource counts when a broker's usage is taken as the maximum over its resources."""

    cpu: float = weight("loadBalancerCPUResourceWeight", 1.0, "Weight of CPU in a broker's usage.")
    direct_memory: float = weight(
        "loadBalancerDirectMemoryResourceWeight", 0.0, "Weight of direct memory in a broker's usage."
    )
    bandwidth_in: float = weight(
        "loadBalancerBandwidthInResourceWeight", 1.0, "Weight of incoming bandwidth in a broker's usage."
    )
    bandwidth_out: float = weight(
        "loadBalancerBandwidthOutResourceWeight", 1.0, "Weight of outgoing bandwidth in a broker's usage."
    )


class HealthFigures(NamedTuple):
    """How a broker serves, as it says itself, None for what it does not say: a latency in milliseconds, such as the
    99th percentile of publishing, the share of requests that failed, and how many wait.
    """

    latency_ms: float | None = None
    error_share: float | None = None
    queue: float | None = None

    def said(self) -> dict[str, float]:
        """What it says, by name."""
        return {name: value for name, value in self._asdict().items() if value is not None}


class UsedResources(NamedTuple):
    """The resources that a broker is judged by, each in per cent of its limit."""

    cpu: float
    direct_memory: float
    bandwidth_in: float
    bandwidth_out: float

    @classmethod
    def of(cls, usage: Iterable[Iterable[float]]) -> UsedResources:
        """Of how much is used and the limit of CPU, memory, direct memory and bandwidth in and out, in any units."""
        cpu, _, direct_memory, bandwidth_in, bandwidth_out = (percent_of(*map(float, each)) for each in usage)
        return cls(cpu, direct_memory, bandwidth_in, bandwidth_out)

    def most(self) -> float:
        """The highest of them as a fraction in 32-bit floats."""
        return _single(_highest(self) / _single(100))

    def most_weighted(self, weights: ResourceWeights) -> float:
        """The highest of them by weight, as a fraction (1.0 is 100 %), not clamped."""
        factors = (weights.cpu, weights.direct_memory, weights.bandwidth_in, weights.bandwidth_out)
        return _highest([each * factor for each, factor in zip(self, factors, strict=True)]) / 100


def percent_of(usage: float, limit: float) -> float:
    """`core.model.load.percent_usage` of one resource, to the bit."""
    if not limit > 0:
        return 0.0
    used, limit = _single(usage), _single(limit)
    ratio = used / limit if limit else used * math.inf
    return _single(_single(ratio) * _single(100))


def _highest(values: Sequence[float]) -> float:
    """Whatever is not a number is ignored; nothing but such gives minus infinity."""
    return max((each for each in values if not math.isnan(each)), default=-math.inf)


def _single(value: float) -> float:
    """The nearest 32-bit float: of a quotient or product of two such it is what 32-bit arithmetic gives."""
    return c_float(value).value
