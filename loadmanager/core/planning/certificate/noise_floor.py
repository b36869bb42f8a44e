"""Noise floor: the heat that a perfect assignment without moves would still show, given the noise of the load.

Each broker has its part of all load at the level. Bundles vary independently, each by its `sigma`, so a broker varies
by s_b = sqrt(V / g_b) / W, where g_b is its part of all capacity, W all load and V the sum of (sigma w)^2. The floor is
the expected maximum over independent normal variables of all brokers. Variation common to all, as by day and night, is
not noise.
"""

from __future__ import annotations

import numpy as np

from loadmanager.core.model.load import FloatArray
from loadmanager.core.planning.certificate.balancing_problem import BalancingProblem

_SPAN, _POINTS = 8.0, 512
"""Integration range in standard deviations, and number of points."""
_NONE = 1e-9
_DIGITS = 2
"""Digits to which deviations are rounded, so that equal ones share a computation."""


def noise_floor(problem: BalancingProblem, sigma: FloatArray) -> float:
    """Return the mean heat of the hottest broker over time; `sigma` (N,) are parts of each bundle's load."""
    counts = problem.owner >= 0
    need = problem.need[counts]
    total, varying = need.sum(axis=0), np.square(need * sigma[counts, None]).sum(axis=0)
    capacity, floor = problem.capacity, 0.0
    for resource in range(need.shape[1]):
        having = float(capacity[:, resource].sum())
        if 0 < having < np.inf and total[resource] > 0:
            deviation = np.sqrt(varying[resource] / (capacity[:, resource] / having)) / total[resource]
            floor = max(floor, float(total[resource]) / having / problem.level * (1 + highest_of(deviation)))
    return floor


def highest_of(deviation: FloatArray) -> float:
    """Return the expected maximum of independent normal variables of mean 0 with these standard deviations."""
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
    """Return the standard normal distribution function, to 1e-7 (Abramowitz and Stegun, 26.2.17)."""
    t = 1 / (1 + 0.2316419 * np.abs(at))
    powers = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    above = np.exp(-at * at / 2) / np.sqrt(2 * np.pi) * powers
    return np.asarray(np.clip(np.where(at >= 0, 1 - above, above), 1e-300, 1.0))
