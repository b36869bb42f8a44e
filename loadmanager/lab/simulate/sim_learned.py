"""Learned load profiles of a simulated leader: load by hour of the week, as a pipeline learns it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from loadmanager.core.model.learned_loads import PROFILE_HOURS, Learned, hour_of_week
from loadmanager.core.model.load import FloatArray, IntArray
from loadmanager.lab.simulate.workload import Diurnal
from loadmanager.lab.simulate.world_state import START_S

_HOUR_S = 3600.0


def learned_of_waves(
    loads: Mapping[str, FloatArray], waves: Sequence[Diurnal], namespace: IntArray, run: str
) -> Learned:
    """`loads` (4,) are of a bundle of each namespace, in the order of the numbers (N,) of the bundles' namespaces."""
    profiles = np.ones((len(loads), PROFILE_HOURS))
    of_namespace = np.bincount(namespace)
    for hour in range(PROFILE_HOURS):
        middle_s = (hour + 0.5) * _HOUR_S
        place = int(hour_of_week(START_S + middle_s))
        for wave in waves:
            factors = np.broadcast_to(wave.factors_at(middle_s), namespace.shape)
            profiles[:, place] *= np.bincount(namespace, weights=factors) / of_namespace
    return Learned(loads, run, 0, dict(zip(loads, profiles, strict=True)))
