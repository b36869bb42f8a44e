"""What a history taught: the load that a bundle is taken to carry until it has been reported for the first time, and
how the load of a namespace goes by the hour of the week.

Differs from Pulsar, which takes every such bundle to carry the same. So does this one where nothing was learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from loadmanager.core.model.load import DEFAULT_LOAD, BundleAverages, FloatArray

PROFILE_HOURS = 168
"""A profile has a figure for each hour of a week, from Monday 00:00 UTC on."""
_MONDAY_HOUR = 72
"""1970 began on a Thursday."""
_HOUR_S = 3600.0
_A_LOOK_H = 0.25
"""What is expected of some hours is the mean of looks so far apart."""
_NOTHING = 1e-6
"""The part of the mean below which nothing is expected at all."""
_MOST_CHANGE = 4.0
"""Nothing is expected to grow, or to shrink, to more times as much: that close to nothing a profile says little."""


@dataclass(frozen=True, slots=True, eq=False)
class Learned:
    """`loads` are by namespace, (4,) of one bundle; `run` and `at_ms` say what it was learned by, and when.

    `profiles` (168,) by namespace are what is expected of each hour of the week, as parts of the mean: only of
    namespaces whose forecast has proven to be worth more than what was seen last.
    """

    loads: Mapping[str, FloatArray] = field(default_factory=dict)
    run: str = ""
    at_ms: int = 0
    profiles: Mapping[str, FloatArray] = field(default_factory=dict)

    def load_of(self, namespace: str) -> FloatArray:
        """What a bundle of the namespace without any history is taken to carry."""
        return self.loads.get(namespace, DEFAULT_LOAD)

    def no_history(self, namespace: str) -> BundleAverages:
        load = self.load_of(namespace)
        return BundleAverages(load, load, 0, 0, 0)

    def change(self, namespace: str, at_s: float, hours: float) -> float:
        """How many times its load at `at_s`, seconds since 1970, a namespace is expected to carry on the mean of the so
        many `hours` after it; 1 where nothing is known of that.
        """
        profile = self.profiles.get(namespace)
        if profile is None or hours <= 0:
            return 1.0
        ahead_h = np.arange(0.0, hours + _A_LOOK_H / 2, _A_LOOK_H)
        expected = _expected(profile, hour_of_week(at_s + ahead_h * _HOUR_S))
        if expected[0] < _NOTHING:
            return 1.0
        return float((expected.mean() / expected[0]).clip(1 / _MOST_CHANGE, _MOST_CHANGE))


def hour_of_week(at_s: float | FloatArray) -> FloatArray:
    """Hours since Monday 00:00 UTC of moments in seconds since 1970, from 0 to 168."""
    return np.asarray((np.asarray(at_s) / _HOUR_S + _MONDAY_HOUR) % PROFILE_HOURS)


def _expected(profile: FloatArray, at_h: FloatArray) -> FloatArray:
    """What is expected at these hours of the week: in the middle of an hour its figure, else between two."""
    middles = np.arange(-0.5, PROFILE_HOURS + 1)
    around = np.concatenate((profile[-1:], profile, profile[:1]))
    return np.interp(at_h, middles, around)


NOTHING_LEARNED = Learned()
