"""What bundles carry at present: means over time, in which a load counts for as long as it stood.

Brokers report when something has changed, so what was reported last goes on: at a time t the mean is

    last + (mean as it was reported - last) * exp(-(t - reported) / TAU_S)

which comes to what was reported last. A load that is off from the mean by more than it usually is, and by more than
`_LEAST_JUMP`, may be a jump. Then the mean begins anew, when that is no spike:

    what was reported last   the next report comes before `STOOD_S`             nothing comes for `STOOD_S`
    -----------------------  -------------------------------------------------  ------------------------------
    is no jump               goes on                                            goes on
    may be a jump            may be one to the same side: begins anew at it;    begins anew at what was
                             else goes on                                       reported last; to who looks,
                                                                                after `BELIEVED_S` already

How far off means the logarithm of how many times the mean the bytes/s are, in and out together: what is little is the
relative deviation, and to have doubled is as far as to be halved. How far off a bundle usually is, is its `sigma`, over
some `_SAMPLES` reports. A jump does not count for more than the most that would have been none. So bundles that burst
have a large sigma, and begin anew hardly ever: what they burst to says little of what they will carry.

Times are those of reports, by their brokers' clocks; while one goes backwards, no time passes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadmanager.core.model.extensible_load import throughput_of
from loadmanager.core.model.load import METRICS, BoolArray, Float32Array, FloatArray, read_only

TAU_S = 900.0
"""After so long a load makes 63 % of the mean."""
STOOD_S = 75.0
"""A broker measures every minute: by then it has measured again, and had nothing to add."""
BELIEVED_S = 45.0
"""Who looks takes a jump for one after so long already, so that an overload is relieved in the round after it. If the
next report denies it, the mean goes on as if it had not been.
"""
_LEAST_JUMP = math.log(1.30)
_SIGMAS = 3.0
_SAMPLES = 20
_MOST_OFF = 20.0
"""More than so many times the mean, or less than the mean divided by it, is no further off."""
_A_BYTE = np.float32(1)
"""As many bytes/s are added to both that are compared, so that nothing is not infinitely far from next to nothing."""
_MOST = 1e18
"""More than this is no load."""

SecondsArray = npt.NDArray[np.uint32]
_LATEST_S = 2**32 - 1


@dataclass(frozen=True, slots=True, eq=False)
class TimeMeans:
    """Of n bundles: `mean` (n, 4) as it was when they were reported, what was reported then, `last` (n, 4), when that
    was, `reported_s` (n,), seconds since 1970, and `sigma` (n,).
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

    @classmethod
    def steady(cls, load: FloatArray) -> TimeMeans:
        """Of bundles that have always carried this (n, 4), for all that is known."""
        mean = as_amounts(load).astype(np.float32)
        return cls(mean, mean, np.zeros(len(load), dtype=np.uint32), np.zeros(len(load), dtype=np.float32))

    def present(self, now_s: float) -> FloatArray:
        """(n, 4): the means at that time."""
        return self._after(self._silent_s(now_s), self._jump(), BELIEVED_S)

    def only(self, kept: BoolArray) -> TimeMeans:
        return TimeMeans(self.mean[kept], self.last[kept], self.reported_s[kept], self.sigma[kept])

    def at_latest_report(self) -> TimeMeans:
        """As if all had been reported once more, with the same load, when the last of them was."""
        latest_s = self.reported_s.max(initial=0)
        mean = self._after(self._silent_s(float(latest_s)), self._jump(), STOOD_S).astype(np.float32)
        return TimeMeans(mean, self.last, np.full_like(self.reported_s, latest_s), self.sigma)

    def reported(self, load: FloatArray, at_s: float, samples: npt.NDArray[np.int16]) -> TimeMeans:
        """The means after these loads (n, 4) were reported; `samples` (n,) reports had been before."""
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
        """The means (n, 4) after so much silence (n,), when what was reported last is so far off (n,) that it may be a
        jump; it is one when it has stood for so long.
        """
        stays = np.exp(silent_s / -TAU_S)
        stays[(silent_s >= stood_s) & (jump != 0)] = 0.0
        return np.asarray(self.last + (self.mean - self.last) * stays[:, None])

    def _silent_s(self, now_s: float) -> FloatArray:
        return np.asarray(np.maximum(now_s - self.reported_s, 0.0))

    def _jump(self) -> Float32Array:
        """(n,): how far off what was reported last is, 0 where that is no jump."""
        off = _off(self.last, self.mean)
        return np.where(np.abs(off) > self._least_jump(), off, np.float32(0))

    def _least_jump(self) -> Float32Array:
        """(n,): how far off a load is that may be a jump."""
        return np.asarray(np.maximum(np.float32(_SIGMAS) * self.sigma, np.float32(_LEAST_JUMP)))


def _off(load: Float32Array, mean: Float32Array) -> Float32Array:
    """(n,): how far bytes/s are off from the mean, as the logarithm of how many times that they are."""
    ratio = (throughput_of(load) + _A_BYTE) / (throughput_of(mean) + _A_BYTE)
    return np.asarray(np.log(ratio.clip(1 / _MOST_OFF, _MOST_OFF)))


def as_amounts(load: FloatArray) -> FloatArray:
    """The loads without what is no amount of anything."""
    return np.asarray(np.fmin(np.fmax(load, 0.0), _MOST))


def seconds_of(time_s: float) -> int:
    """The time as a whole number of seconds that the columns have room for."""
    return int(min(max(time_s, 0.0), _LATEST_S))
