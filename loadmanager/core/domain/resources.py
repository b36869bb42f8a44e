"""Usage and health of one broker in plain numbers, as computed by its agent without arrays.

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
"""Usage above which a broker has little headroom. Equal to Pulsar's default for an overloaded broker."""


@dataclass(frozen=True, slots=True)
class ResourceWeights:
    """Weight of each resource in a broker's usage, the weighted maximum over its resources."""

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
    """Health of a broker as it reports it, None if not reported: a latency in milliseconds, such as the 99th percentile
    of publishing, the share of failed requests, and the queue length.
    """

    latency_ms: float | None = None
    error_share: float | None = None
    queue: float | None = None

    def by_name(self) -> dict[str, float]:
        """Return the reported figures by name."""
        return {name: value for name, value in self._asdict().items() if value is not None}


class UsedResources(NamedTuple):
    """Rated resources of a broker, each in per cent of its limit."""

    cpu: float
    direct_memory: float
    bandwidth_in: float
    bandwidth_out: float

    @classmethod
    def of(cls, usage: Iterable[Iterable[float]]) -> UsedResources:
        """Compute from used and limit of CPU, memory, direct memory and bandwidth in and out, in any units."""
        cpu, _, direct_memory, bandwidth_in, bandwidth_out = (percent_of(*map(float, each)) for each in usage)
        return cls(cpu, direct_memory, bandwidth_in, bandwidth_out)

    def most(self) -> float:
        """Return the maximum as a fraction in 32-bit floats."""
        return _single(_highest(self) / _single(100))

    def most_weighted(self, weights: ResourceWeights) -> float:
        """Return the weighted maximum as a fraction (1.0 is 100 %), unclamped."""
        factors = (weights.cpu, weights.direct_memory, weights.bandwidth_in, weights.bandwidth_out)
        return _highest([each * factor for each, factor in zip(self, factors, strict=True)]) / 100


def percent_of(usage: float, limit: float) -> float:
    """Compute `core.model.load.percent_usage` of one resource, bitwise equal."""
    if not limit > 0:
        return 0.0
    used, limit = _single(usage), _single(limit)
    ratio = used / limit if limit else used * math.inf
    return _single(_single(ratio) * _single(100))


def _highest(values: Sequence[float]) -> float:
    """Return the maximum without NaN; minus infinity if there is nothing else."""
    return max((each for each in values if not math.isnan(each)), default=-math.inf)


def _single(value: float) -> float:
    """Round to the nearest 32-bit float: exact for quotients and products of two such."""
    return c_float(value).value


MAX_AMOUNT = 1e18
"""Maximum plausible rate, bytes per second or usage; larger values would overflow in sums."""

ALL_DIGITS = 17
"""Significant digits of a float."""


def rounded(figure: float, digits: int) -> float:
    """Round the figure to this many significant digits."""
    return figure if digits >= ALL_DIGITS else float(f"{figure:.{digits}g}")
