"""Current load of bundles: exponential means over time, weighted by the duration of each reported load.

Brokers report changes, so the last reported load continues: at a time t the mean is

    last + (mean as it was reported - last) * exp(-(t - reported) / TAU_S)

which converges to the last report. A load whose deviation exceeds the usual one, and `_LEAST_JUMP`, may be a jump. Then
the mean restarts, unless it is a spike:

    last report              the next report comes before `STOOD_S`             no report for `STOOD_S`
    -----------------------  -------------------------------------------------  ------------------------------
    is no jump               continues                                          continues
    may be a jump            may be one in the same direction: restarts at it;  restarts at the last report;
                             else continues                                     for readers after `BELIEVED_S`

The deviation is the logarithm of the ratio of bytes/s, in and out together, to the mean. Small deviations are about
relative ones, and doubling deviates as far as halving. A bundle's usual deviation is its `sigma`, over about `_SAMPLES`
reports. In `sigma`, a jump counts as the largest deviation that is not a jump. So bursty bundles have a large sigma and
hardly ever restart, since a burst does not predict their future load.

Times are those of reports, by the brokers' clocks. A clock that goes backwards counts as no time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadmanager.core.model.extensible_load import throughput_of
from loadmanager.core.model.load import METRICS, BoolArray, Float32Array, FloatArray, read_only

TAU_S = 900.0
"""Time constant: after this time a load makes up 63 % of the mean."""
STOOD_S = 75.0
"""A broker measures every minute: by then it has measured again without a change to report."""
BELIEVED_S = 45.0
"""Readers accept a jump after this time, so that an overload is relieved in the next round. If the next report does not
confirm it, the mean continues as if there had been no jump.
"""
_LEAST_JUMP = math.log(1.30)
_SIGMAS = 3.0
_SAMPLES = 20
_MOST_OFF = 20.0
"""Upper limit of the ratio to the mean, up or down."""
_A_BYTE = np.float32(1)
"""Added to both compared values, so that the ratio of a small value to 0 stays finite."""
_MOST = 1e18
"""Upper limit of a plausible load."""

SecondsArray = npt.NDArray[np.uint32]
_LATEST_S = 2**32 - 1


@dataclass(frozen=True, slots=True, eq=False)
class TimeMeans:
    """Time means of n bundles: `mean` (n, 4) at the last report, the reported load `last` (n, 4), its time `reported_s`
    (n,), seconds since 1970, and `sigma` (n,).
    """

    mean: Float32Array
    last: Float32Array
    reported_s: SecondsArray
    sigma: Float32Array

    def __post_init__(self) -> None:
        bundles = len(self.sigma)
        read_only(self.mean, bundles, METRICS)
        read_only(self.last, bundles, METRICS)
        read_only(self.reported_s, bundles)
        read_only(self.sigma, bundles)

    def present(self, now_s: float) -> FloatArray:
        """Return the means (n, 4) at that time."""
        return self._after(self._silent_s(now_s), self._jump(), BELIEVED_S)

    def only(self, kept: BoolArray) -> TimeMeans:
        return TimeMeans(self.mean[kept], self.last[kept], self.reported_s[kept], self.sigma[kept])

    def at_latest_report(self) -> TimeMeans:
        """Return the means as if all bundles had been reported again, unchanged, at the time of the latest report."""
        latest_s = self.reported_s.max(initial=0)
        mean = self._after(self._silent_s(float(latest_s)), self._jump(), STOOD_S).astype(np.float32)
        return TimeMeans(mean, self.last, np.full_like(self.reported_s, latest_s), self.sigma)

    def reported(self, load: FloatArray, at_s: float, samples: npt.NDArray[np.int16]) -> TimeMeans:
        """Return the means after these loads (n, 4) were reported; `samples` (n,) reports came before."""
        now_s = seconds_of(at_s)
        last, silent_s, jump = as_amounts(load).astype(np.float32), self._silent_s(now_s), self._jump()
        mean = self._after(silent_s, jump, STOOD_S).astype(np.float32)
        off, least = _off(last, mean), self._least_jump()
        begins = (np.abs(off) > least) & (off * jump > 0) & (silent_s < STOOD_S) | (samples == 0)
        mean[begins] = last[begins]
        weight = np.where(samples > 0, 1 / np.clip(samples, 1, _SAMPLES), 0.0)
        sigma = np.sqrt(self.sigma**2 * (1 - weight) + np.minimum(np.abs(off), least) ** 2 * weight)
        return TimeMeans(mean, last, np.full_like(self.reported_s, now_s), sigma.astype(np.float32))

    def _after(self, silent_s: FloatArray, jump: Float32Array, stood_s: float) -> FloatArray:
        """Return the means (n, 4) after `silent_s` (n,) without a report. A `jump` (n,) in the last report restarts the
        mean once it has lasted for `stood_s`.
        """
        stays = np.exp(silent_s / -TAU_S)
        stays[(silent_s >= stood_s) & (jump != 0)] = 0.0
        return np.asarray(self.last + (self.mean - self.last) * stays[:, None])

    def _silent_s(self, now_s: float) -> FloatArray:
        return np.maximum(now_s - self.reported_s.astype(np.float64), 0.0)

    def _jump(self) -> Float32Array:
        """Return the deviation of the last report (n,), 0 if it is no jump."""
        off = _off(self.last, self.mean)
        return np.where(np.abs(off) > self._least_jump(), off, np.float32(0))

    def _least_jump(self) -> Float32Array:
        """Return the minimum deviation of a jump (n,)."""
        return np.asarray(np.maximum(np.float32(_SIGMAS) * self.sigma, np.float32(_LEAST_JUMP)))


def _off(load: Float32Array, mean: Float32Array) -> Float32Array:
    """Return the logarithm (n,) of the ratio of bytes/s to the mean."""
    ratio = (throughput_of(load) + _A_BYTE) / (throughput_of(mean) + _A_BYTE)
    return np.asarray(np.log(ratio.clip(1 / _MOST_OFF, _MOST_OFF)))


def as_amounts(load: FloatArray) -> FloatArray:
    """Clamp loads to valid amounts."""
    return np.asarray(np.fmin(np.fmax(load, 0.0), _MOST))


def seconds_of(time_s: float) -> int:
    """Return the time in whole seconds, clamped to the column's range."""
    return int(min(max(time_s, 0.0), _LATEST_S))
