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
from typing import Literal, Protocol, Self

import numpy as np
from pydantic import Field, model_validator

from loadmanager.core.domain.names import HASH_SPACE_END, BundleRange
from loadmanager.core.model.load import METRICS, FloatArray, IntArray, read_only
from loadmanager.lab.simulate.run_rules import BundleRefs, Duration, Factor, Part, Seconds


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

    `find_topics` returns the topics of a bundle, None if unknown: its load is then spread evenly over its range.
    """

    def __len__(self) -> int: ...

    def load_at(self, t_s: float) -> FloatArray: ...

    def topics_at(self, t_s: float) -> IntArray: ...

    def sessions_at(self, t_s: float) -> IntArray: ...

    def find_topics(self, bundle: int) -> BundleTopics | None: ...


@dataclass(frozen=True, slots=True, eq=False)
class WorkloadBundles:
    """Bundles of a workload: the row of each by name, the number of its namespace (N,), and the seed of all draws."""

    row_of: Mapping[str, int]
    namespace: IntArray
    seed: int

    def __len__(self) -> int:
        return len(self.namespace)


class LoadShape(Protocol):
    """Function of time that returns factors of the loads: (N,), or one for all bundles."""

    def factors_at(self, t_s: float, bundles: WorkloadBundles) -> FloatArray | float: ...


@dataclass(frozen=True, slots=True, eq=False)
class ShapedWorkload:
    """A base `load` (N, 4) multiplied by all `shapes`; `topics` (N,) and `sessions` (N,) are constant.

    For a bundle (a row) in `contents`, the number of its topics there replaces the one in `topics`.
    """

    bundles: WorkloadBundles
    load: FloatArray
    topics: IntArray
    sessions: IntArray
    shapes: tuple[LoadShape, ...] = ()
    contents: Mapping[int, BundleTopics] = field(default_factory=dict)

    def __post_init__(self) -> None:
        bundles = len(self.bundles)
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
            factors = np.asarray(shape.factors_at(t_s, self.bundles))
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


class NoiseShape(Part):
    """Each bundle's load deviates at random.

    The deviation is the sum of three uniform variates, and so at most three times `spread`.
    """

    kind: Literal["noise"] = "noise"
    spread: float = Field(ge=0, le=1, allow_inf_nan=False, description="Standard deviation, as a fraction.")
    period_s: Duration = Field(60, description="Interval at which deviations are drawn.")

    def factors_at(self, t_s: float, bundles: WorkloadBundles) -> FloatArray:
        drawn = generator(bundles.seed, Purpose.NOISE, int(t_s // self.period_s)).random((3, len(bundles)))
        return np.asarray(np.maximum(1.0 + (drawn.sum(axis=0) - 1.5) * (2.0 * self.spread), 0.0))


class DiurnalShape(Part):
    """A daily wave."""

    kind: Literal["diurnal"] = "diurnal"
    amplitude: float = Field(ge=0, le=1, allow_inf_nan=False, description="Maximum deviation, a fraction.")
    period_s: Duration = Field(86_400, description="Period of the wave.")
    phases: Literal["together", "namespaces", "spread"] = Field(
        "together",
        description="spread: each bundle has its wave at a time of its own, drawn by the seed; namespaces: all bundles"
        " of a namespace together, each namespace as if in a time zone of its own.",
    )

    def factors_at(self, t_s: float, bundles: WorkloadBundles) -> FloatArray:
        turn = np.mod(t_s / self.period_s + self._phase(bundles), 1.0)
        half = np.mod(turn, 0.5)
        bow = half * (0.5 - half)
        wave = 64.0 * bow / (5.0 - 16.0 * bow)  # Bhaskara's sine, off by less than 0.002
        return np.asarray(np.maximum(1.0 + self.amplitude * np.where(turn < 0.5, wave, -wave), 0.0))  # noqa: PLR2004

    def _phase(self, bundles: WorkloadBundles) -> FloatArray:
        """Return the phase in parts of a period, (N,) or one for all."""
        if self.phases == "together":
            return np.zeros(())
        drawn = generator(bundles.seed, Purpose.FLEET)
        if self.phases == "spread":
            return drawn.random(len(bundles))
        return drawn.random(int(bundles.namespace.max()) + 1)[bundles.namespace]


class RampShape(Part):
    """The load of some bundles grows or shrinks linearly, then stays constant. In a workload, `bundles` are names."""

    kind: Literal["ramp"] = "ramp"
    bundles: BundleRefs | None = Field(None, description="Bundles; without it all.")
    factor: Factor = Field(description="Final factor.")
    from_s: Seconds = Field(0, description="Start of the change.")
    until_s: Seconds = Field(description="End of the change; the same as fromS for a jump.")

    def factors_at(self, t_s: float, bundles: WorkloadBundles) -> FloatArray:
        risen = float(t_s >= self.from_s)
        if self.until_s > self.from_s:
            risen = min(max((t_s - self.from_s) / (self.until_s - self.from_s), 0.0), 1.0)
        factor = 1.0 + (self.factor - 1.0) * risen
        if self.bundles is None:
            return np.full(len(bundles), factor)
        factors = np.ones(len(bundles))
        factors[[bundles.row_of[name] for name in self.bundles]] = factor
        return factors


class DriftShape(Part):
    """Each bundle's load drifts slowly and independently. Half of the drawn factors are below 1."""

    kind: Literal["drift"] = "drift"
    factor: float = Field(ge=1, le=1000, allow_inf_nan=False, description="Maximum factor, up or down.")
    period_s: Duration = Field(description="Interval between drawn factors; linear in between.")

    def factors_at(self, t_s: float, bundles: WorkloadBundles) -> FloatArray:
        place = int(t_s // self.period_s)
        part = t_s / self.period_s - place
        return self._draw(place, bundles) * (1.0 - part) + self._draw(place + 1, bundles) * part

    def _draw(self, number: int, bundles: WorkloadBundles) -> FloatArray:
        drawn = 2.0 * generator(bundles.seed, Purpose.DRIFT, number).random(len(bundles)) - 1.0
        off = 1.0 + (self.factor - 1.0) * np.abs(drawn)
        return np.where(drawn < 0, 1.0 / off, off)


class BurstsShape(Part):
    """All bundles of a namespace have repeated short bursts of load, at times that differ between namespaces."""

    kind: Literal["bursts"] = "bursts"
    factor: Factor = Field(description="Factor of the load.")
    lasts_s: Duration = Field(description="Duration.")
    every_s: Duration = Field(description="Interval with one burst each.")

    @model_validator(mode="after")
    def _over_before_the_next(self) -> Self:
        if self.lasts_s > self.every_s:
            raise ValueError("lastsS: expected at most everyS")
        return self

    def factors_at(self, t_s: float, bundles: WorkloadBundles) -> FloatArray:
        number = int(t_s // self.every_s)
        drawn = generator(bundles.seed, Purpose.BURSTS, number).random(int(bundles.namespace.max()) + 1)
        since_s = t_s - number * self.every_s - drawn * (self.every_s - self.lasts_s)
        return np.where((since_s >= 0) & (since_s < self.lasts_s), self.factor, 1.0)[bundles.namespace]


@dataclass(frozen=True, slots=True, eq=False)
class FollowedSeries:
    """Each bundle follows one recorded series, `which` (N,), from an offset of its own, `shift_s` (N,).

    A series has a value every `interval_s`, is interpolated linearly, and repeats after its end.
    """

    series: tuple[FloatArray, ...]
    interval_s: float
    which: IntArray
    shift_s: FloatArray

    def factors_at(self, t_s: float, bundles: WorkloadBundles) -> FloatArray:
        factors = np.empty(len(bundles))
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
