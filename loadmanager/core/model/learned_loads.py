"""Expected loads learned from history: of bundles before their first report, and of namespaces by hour of the week.

Differs from Pulsar, which gives every unreported bundle the same default load; here only namespaces without learned
loads get that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from loadmanager.core.model.load import DEFAULT_LOAD, BundleAverages, FloatArray

PROFILE_HOURS = 168
"""Hours of a profile: one figure per hour of a week, from Monday 00:00 UTC."""
_MONDAY_HOUR = 72
"""Offset of the epoch: 1970 began on a Thursday."""
_HOUR_S = 3600.0
_STEP_H = 0.25
"""Sampling step of the expected mean, in hours."""
_NOTHING = 1e-6
"""Part of the mean below which a profile counts as 0."""
_MOST_CHANGE = 4.0
"""Limit of the expected change, up or down, since ratios to a profile near 0 are unreliable."""


@dataclass(frozen=True, slots=True, eq=False)
class LearnedLoads:
    """Expected load (4,) per bundle, by namespace; `run` and `at_ms` identify the pipeline run that learned them.

    `profiles` (168,), by namespace, are expected loads per hour of the week, as parts of the mean; only of namespaces
    whose forecast beat the last observation.
    """

    loads: Mapping[str, FloatArray] = field(default_factory=dict)
    run: str = ""
    at_ms: int = 0
    profiles: Mapping[str, FloatArray] = field(default_factory=dict)

    def load_of(self, namespace: str) -> FloatArray:
        """Return the expected load of a bundle without history."""
        return self.loads.get(namespace, DEFAULT_LOAD)

    def no_history(self, namespace: str) -> BundleAverages:
        load = self.load_of(namespace)
        return BundleAverages(load, load, 0, 0, 0)

    def change(self, namespace: str, at_s: float, hours: float) -> float:
        """Return the expected mean load of a namespace over the next `hours`, relative to its load at `at_s`, seconds
        since 1970; 1 if unknown.
        """
        profile = self.profiles.get(namespace)
        if profile is None or hours <= 0:
            return 1.0
        ahead_h = np.arange(0.0, hours + _STEP_H / 2, _STEP_H)
        expected = _interpolate(profile, hour_of_week(at_s + ahead_h * _HOUR_S))
        if expected[0] < _NOTHING:
            return 1.0
        return float((expected.mean() / expected[0]).clip(1 / _MOST_CHANGE, _MOST_CHANGE))


def hour_of_week(at_s: float | FloatArray) -> FloatArray:
    """Return hours since Monday 00:00 UTC, 0 to 168, of times in seconds since 1970."""
    return np.asarray((np.asarray(at_s) / _HOUR_S + _MONDAY_HOUR) % PROFILE_HOURS)


def _interpolate(profile: FloatArray, at_h: FloatArray) -> FloatArray:
    """Interpolate the profile at these hours of the week; a figure applies to the middle of its hour."""
    middles = np.arange(-0.5, PROFILE_HOURS + 1)
    around = np.concatenate((profile[-1:], profile, profile[:1]))
    return np.interp(at_h, middles, around)


NOTHING_LEARNED = LearnedLoads()
