"""How far from its average the load of a broker usually is, as a part of it: what is less uneven says nothing.

Of two figures the higher counts. What is usual for its bundles adds up to one, as if each went its own way; it is known
after a few reports. How far off the broker's reports have been is the other, in which bundles that go together show; it
is learned slowly (`core/strategies/level/hysteresis.py`). A broker of which little is known has as much as most.
"""

from __future__ import annotations

import numpy as np

from loadmanager.core.model.extensible_load import throughput_of
from loadmanager.core.model.load import FloatArray
from loadmanager.core.model.snapshot import Snapshot, sum_by_broker
from loadmanager.core.strategies.level.level_load import LevelLoads

_SILENT_S = 75.0
"""A broker measures every minute, and reports what has changed: what it said before that is no news."""
_MS_PER_S = 1000.0


def noise_of_bundles(snapshot: Snapshot, loads: LevelLoads) -> FloatArray:
    """(M,): by what is usual for the bundles of each broker, of its most used resource."""
    bundles, brokers = snapshot.bundles, len(snapshot.brokers)
    square = sum_by_broker(bundles.assigned, ((loads.need * bundles.sigma[:, None]) ** 2).T, brokers)
    usual = (np.sqrt(square) * loads.per_need).max(axis=1, initial=0.0)
    used = loads.usage.max(axis=1, initial=0.0)
    noise = np.divide(usual, used, out=np.zeros(brokers), where=used > 0)
    return np.asarray(np.where(noise > 0, noise, noise.mean())) if brokers else noise


def find_deviation(snapshot: Snapshot) -> FloatArray:
    """(M,): how far what each broker reports is from the average of its bundles, in bytes/s, as a part of that; not a
    number for those that have nothing new to say.
    """
    bundles, brokers = snapshot.bundles, snapshot.brokers
    averaged = sum_by_broker(bundles.broker, (throughput_of(bundles.present),), len(brokers))[:, 0]
    reported = throughput_of(brokers.load)
    is_silent = snapshot.taken_at_s - brokers.last_update_ms / _MS_PER_S >= _SILENT_S
    known = ~is_silent & (averaged > 0) & np.isfinite(reported)
    off = np.divide(np.abs(reported - averaged), averaged, out=np.full(len(brokers), np.nan), where=known)
    return np.asarray(off)
