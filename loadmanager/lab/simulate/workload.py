"""Workloads of bundles over time: base loads, multiplied by load shapes.

Row i belongs to bundle i of the simulation: the bundles of the initial namespaces in order, each in the order of the
ranges, then those of namespaces that are created later. A workload is a pure function of time. All random numbers come
from its seed: integers and uniform fractions, used only in arithmetic for which IEEE 754 defines the exact result.
Functions of libm and of vectorised numpy (`exp`, `sin`, normal variates) differ between machines.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from loadmanager.core.domain.names import HASH_SPACE_END, BundleRange
from loadmanager.core.model.load import METRICS, FloatArray, IntArray, read_only


class Purpose(enum.IntEnum):
    """Purpose of a random stream. The numbers must not change, or a seed gives other results: append new ones."""

    PLANNER = 0
    REPORTS = 1
    LOADS = 2
    NOISE = 3
    TOPICS = 4
    FLEET = 5
    DRIFT = 6
    BURSTS = 7


def generator(seed: int, purpose: Purpose, *more: int) -> np.random.Generator:
    """Return the generator for a purpose, a child of the seed's sequence; `more` distinguishes several per purpose."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(purpose, *more))))


DAY_S = 86_400.0
_DIGITS = 9
"""Significant digits of drawn weights, rounded so that differences between implementations of `pow` do not matter."""


@dataclass(frozen=True, slots=True, eq=False)
class BundleTopics:
    """Topics of one bundle: their hashes (k,), ascending, and the share (k,) of each in the bundle's load."""

    hashes: IntArray
    share: FloatArray

    def __post_init__(self) -> None:
        read_only(self.hashes, len(self.hashes))
        read_only(self.share, len(self.hashes))

    def __len__(self) -> int:
        return len(self.hashes)


class Workload(Protocol):
    """Load (N, 4), topics (N,) and sessions (N,) of all bundles at a time, in seconds since the start.

    While topics or sessions are unchanged, return the same array object, which is then read only once. `find_topics`
    returns the topics of a bundle, None if unknown: its load is then spread evenly over its range.
    """

    def __len__(self) -> int: ...

    def load_at(self, t_s: float) -> FloatArray: ...

    def topics_at(self, t_s: float) -> IntArray: ...

    def sessions_at(self, t_s: float) -> IntArray: ...

    def find_topics(self, bundle: int) -> BundleTopics | None: ...


class LoadShape(Protocol):
    """Function of time that returns factors of the loads: (N,), or one for all bundles."""

    def factors_at(self, t_s: float) -> FloatArray | float: ...


@dataclass(frozen=True, slots=True, eq=False)
class ShapedWorkload:
    """A base `load` (N, 4) multiplied by all `shapes`; `topics` (N,) and `sessions` (N,) are constant.

    For a bundle (a row) in `contents`, the number of its topics there replaces the one in `topics`.
    """

    load: FloatArray
    topics: IntArray
    sessions: IntArray
    shapes: tuple[LoadShape, ...] = ()
    contents: Mapping[int, BundleTopics] = field(default_factory=dict)

    def __post_init__(self) -> None:
        bundles = len(self.load)
        known = self.topics.copy()
        for row, topics in self.contents.items():
            known[row] = len(topics)
        object.__setattr__(self, "topics", read_only(known, bundles))
        read_only(self.load, bundles, METRICS)
        read_only(self.sessions, bundles)

    def __len__(self) -> int:
        return len(self.load)

    def load_at(self, t_s: float) -> FloatArray:
        load: FloatArray = self.load
        for shape in self.shapes:
            factors = np.asarray(shape.factors_at(t_s))
            product: FloatArray = load * (factors[:, np.newaxis] if factors.ndim else factors)
            load = product
        return load

    def topics_at(self, t_s: float) -> IntArray:
        del t_s
        return self.topics

    def sessions_at(self, t_s: float) -> IntArray:
        del t_s
        return self.sessions

    def find_topics(self, bundle: int) -> BundleTopics | None:
        return self.contents.get(bundle)


@dataclass(frozen=True, slots=True)
class Noise:
    """Random deviation of each bundle's load, drawn again every `period_s`.

    `spread` is its standard deviation, a fraction. The deviation is the sum of three uniform variates, and so at most
    three times that.
    """

    bundles: int
    spread: float
    seed: int
    period_s: float = 60.0

    def factors_at(self, t_s: float) -> FloatArray:
        drawn = generator(self.seed, Purpose.NOISE, int(t_s // self.period_s)).random((3, self.bundles))
        return np.asarray(np.maximum(1.0 + (drawn.sum(axis=0) - 1.5) * (2.0 * self.spread), 0.0))


@dataclass(frozen=True, slots=True, eq=False)
class Diurnal:
    """A wave around 1 with this `amplitude` and `period_s`; `phase` is in parts of a period, (N,) or one for all."""

    amplitude: float
    phase: FloatArray | float = 0.0
    period_s: float = DAY_S

    def factors_at(self, t_s: float) -> FloatArray | float:
        turn = np.mod(t_s / self.period_s + np.asarray(self.phase), 1.0)
        half = np.mod(turn, 0.5)
        bow = half * (0.5 - half)
        wave = 64.0 * bow / (5.0 - 16.0 * bow)  # Bhaskara's sine, off by less than 0.002
        return np.asarray(np.maximum(1.0 + self.amplitude * np.where(turn < 0.5, wave, -wave), 0.0))  # noqa: PLR2004


@dataclass(frozen=True, slots=True, eq=False)
class Ramp:
    """The factor of the `rows` changes linearly from 1 to `factor` between two times, at once if they are equal."""

    bundles: int
    rows: IntArray
    factor: float
    from_s: float
    until_s: float

    def factors_at(self, t_s: float) -> FloatArray:
        risen = float(t_s >= self.from_s)
        if self.until_s > self.from_s:
            risen = min(max((t_s - self.from_s) / (self.until_s - self.from_s), 0.0), 1.0)
        factors = np.ones(self.bundles)
        factors[self.rows] = 1.0 + (self.factor - 1.0) * risen
        return factors


@dataclass(frozen=True, slots=True)
class Drift:
    """Random drift of each bundle's load: a factor between 1 / `factor` and `factor`, drawn every `period_s`, and
    interpolated linearly in between. Half of the factors are below 1.
    """

    bundles: int
    factor: float
    seed: int
    period_s: float

    def factors_at(self, t_s: float) -> FloatArray:
        place = int(t_s // self.period_s)
        part = t_s / self.period_s - place
        return self._place(place) * (1.0 - part) + self._place(place + 1) * part

    def _place(self, number: int) -> FloatArray:
        drawn = 2.0 * generator(self.seed, Purpose.DRIFT, number).random(self.bundles) - 1.0
        off = 1.0 + (self.factor - 1.0) * np.abs(drawn)
        return np.where(drawn < 0, 1.0 / off, off)


@dataclass(frozen=True, slots=True, eq=False)
class Bursts:
    """Bursts of the bundles of each `group` (N,) together: `factor` times their load for `lasts_s`, once per `every_s`,
    at a random time for each group.
    """

    group: IntArray
    factor: float
    lasts_s: float
    every_s: float
    seed: int

    def factors_at(self, t_s: float) -> FloatArray:
        number = int(t_s // self.every_s)
        groups = int(self.group.max(initial=-1)) + 1
        drawn = generator(self.seed, Purpose.BURSTS, number).random(groups)
        since_s = t_s - number * self.every_s - drawn * (self.every_s - self.lasts_s)
        return np.where((since_s >= 0) & (since_s < self.lasts_s), self.factor, 1.0)[self.group]


@dataclass(frozen=True, slots=True, eq=False)
class FollowedSeries:
    """Each bundle follows one recorded series, `which` (N,), from an offset of its own, `shift_s` (N,).

    A series has a value every `interval_s`, is interpolated linearly, and repeats after its end.
    """

    series: tuple[FloatArray, ...]
    interval_s: float
    which: IntArray
    shift_s: FloatArray

    def factors_at(self, t_s: float) -> FloatArray:
        factors = np.empty(len(self.which))
        for number, values in enumerate(self.series):
            own = np.flatnonzero(self.which == number)
            position = np.mod((t_s + self.shift_s[own]) / self.interval_s, float(len(values)))
            before = np.minimum(position.astype(np.int64), len(values) - 1)
            after, part = (before + 1) % len(values), position - before
            factors[own] = values[before] * (1.0 - part) + values[after] * part
        return factors


def heavy_tailed(bundles: int, seed: int, alpha: float = 1.5, largest: float = 1000.0) -> FloatArray:
    """Return weights (N,) with mean 1, drawn from a Pareto distribution with exponent `alpha`.

    Before scaling, none is above `largest` times the smallest possible. A smaller `alpha` concentrates more of the
    total in a few weights.
    """
    drawn = generator(seed, Purpose.LOADS).random(bundles).tolist()
    weights = np.array([_round_significant(min((1.0 - each) ** (-1.0 / alpha), largest)) for each in drawn])
    return weights * (bundles / _sum(weights))


def zipf(bundles: int, seed: int, exponent: float = 1.0, number: int = 0) -> FloatArray:
    """Return weights (N,) with mean 1: that of rank k is 1 / k^exponent of the first. Ranks are drawn at random,
    independently for each `number`.
    """
    weights = np.array([_round_significant((rank + 1.0) ** -exponent) for rank in range(bundles)])
    ranks = generator(seed, Purpose.LOADS, number).permutation(bundles)
    return weights[ranks] * (bundles / _sum(weights))


def random_topics(
    own: BundleRange, count: int, seed: int, bundle: int, weight: Callable[[int], float] = lambda _: 1.0
) -> BundleTopics:
    """Place topics at random hashes of a bundle's range; `weight(i)` is the relative load of topic i."""
    drawn = generator(seed, Purpose.TOPICS, bundle)
    upper = own.upper + (own.upper == HASH_SPACE_END)
    hashes = np.sort(drawn.integers(own.lower, upper, count))
    weights = np.array([weight(number) for number in range(count)], dtype=np.float64)
    return BundleTopics(hashes, weights / _sum(weights))


def _round_significant(number: float) -> float:
    return float(f"{number:.{_DIGITS}g}")


def _sum(numbers: FloatArray) -> float:
    """Add up in order, so that the sum is the same on every machine."""
    return float(np.cumsum(numbers)[-1]) if len(numbers) else 0.0
