"""Noise of broker load: its usual relative deviation from the average. A smaller imbalance proves nothing.

It is the higher of two estimates. The first sums the deviations of the bundles, as if independent, and is known after a
few reports. It counts by half, as averages over time deviate less than single reports. The second is the deviation of
the broker's own reports, which includes correlated bundles; it is learned slowly
(`core/strategies/level/hysteresis.py`). A broker with little data gets the typical noise.
"""

from __future__ import annotations

import numpy as np

from loadmanager.core.model.extensible_load import throughput_of
from loadmanager.core.model.load import FloatArray
from loadmanager.core.model.snapshot import Snapshot, sum_by_broker
from loadmanager.core.strategies.level.level_load import LevelLoads

_OF_MEAN = 0.5
"""Deviation of a mean over 15 minutes relative to that of a report, if each deviation lasts for five minutes."""
_SILENT_S = 75.0
"""Age from which a report is not new: a broker measures every minute, and reports changes."""
_MS_PER_S = 1000.0


def noise_of_bundles(snapshot: Snapshot, loads: LevelLoads) -> FloatArray:
    """Return the noise (M,) from the deviations of each broker's bundles, for its most used resource."""
    bundles, brokers = snapshot.bundles, len(snapshot.brokers)
    square = sum_by_broker(bundles.assigned, ((loads.need * bundles.sigma[:, None]) ** 2).T, brokers)
    usual = _OF_MEAN * (np.sqrt(square) * loads.per_need).max(axis=1, initial=0.0)
    used = loads.usage.max(axis=1, initial=0.0)
    noise = np.divide(usual, used, out=np.zeros(brokers), where=used > 0)
    return np.asarray(np.where(noise > 0, noise, noise.mean())) if brokers else noise


def find_deviation(snapshot: Snapshot) -> FloatArray:
    """Return the relative deviation (M,) of each broker's report from the average of its bundles, in bytes/s; NaN for
    brokers without a new report, and for those whose report includes a bundle that left.
    """
    bundles, brokers = snapshot.bundles, snapshot.brokers
    averaged = sum_by_broker(bundles.broker, (throughput_of(bundles.present),), len(brokers))[:, 0]
    reported = throughput_of(brokers.load)
    is_silent = snapshot.taken_at_s - brokers.last_update_ms / _MS_PER_S >= _SILENT_S
    known = brokers.settled & ~is_silent & (averaged > 0) & np.isfinite(reported)
    off = np.divide(np.abs(reported - averaged), averaged, out=np.full(len(brokers), np.nan), where=known)
    return np.asarray(off)
