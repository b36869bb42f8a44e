"""What a perfect assignment that stands still would show all the same, with the noise that is in the load.

Each broker has its part of all load at the level; its bundles vary by themselves, each by its `sigma`, so the broker
varies by s_b = sqrt(V / g_b) / W, where g_b is its part of all capacity, W all load and V the sum of (sigma w)^2. Of
many brokers one is always high: the floor is the mean of the highest of them, if they vary as normal numbers do, one
by one. What moves with all others at once, as by day and by night, does not count as noise.
"""

from __future__ import annotations

import numpy as np

from loadmanager.core.model.load import FloatArray
from loadmanager.core.planning.certificate.balancing_problem import BalancingProblem

_SPAN, _POINTS = 8.0, 512
"""How many deviations are looked at, at how many points."""
_NONE = 1e-9
_DIGITS = 2
"""Deviations that are equal in so many digits are as one."""


def noise_floor(instance: BalancingProblem, sigma: FloatArray) -> float:
    """The heat of the hottest broker in the mean over time; `sigma` (N,) are parts of what each bundle carries."""
    counts = instance.owner >= 0
    need = instance.need[counts]
    total, varying = need.sum(axis=0), np.square(need * sigma[counts, None]).sum(axis=0)
    capacity, floor = instance.capacity, 0.0
    for resource in range(need.shape[1]):
        having = float(capacity[:, resource].sum())
        if 0 < having < np.inf and total[resource] > 0:
            deviation = np.sqrt(varying[resource] / (capacity[:, resource] / having)) / total[resource]
            floor = max(floor, float(total[resource]) / having / instance.level * (1 + highest_of(deviation)))
    return floor


def highest_of(deviation: FloatArray) -> float:
    """The mean of the highest of independent normal numbers with these standard deviations, and a mean of 0."""
    largest = float(deviation.max(initial=0.0))
    if largest < _NONE:
        return 0.0
    scale = 10.0 ** (np.floor(np.log10(np.maximum(deviation, largest * 1e-6))) - _DIGITS + 1)
    distinct, times = np.unique(np.round(np.maximum(deviation, largest * 1e-6) / scale) * scale, return_counts=True)
    at = np.linspace(-_SPAN * largest, _SPAN * largest, _POINTS)
    below = np.exp((times * np.log(_normal(at[:, None] / distinct))).sum(axis=1))
    density = np.where(at >= 0, 1 - below, -below)
    return max(0.0, float(np.trapezoid(density, at)))


def _normal(at: FloatArray) -> FloatArray:
    """How much of a normal distribution is below these points: to 1e-7 (Abramowitz and Stegun, 26.2.17)."""
    t = 1 / (1 + 0.2316419 * np.abs(at))
    powers = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    above = np.exp(-at * at / 2) / np.sqrt(2 * np.pi) * powers
    return np.asarray(np.clip(np.where(at >= 0, 1 - above, above), 1e-300, 1.0))
