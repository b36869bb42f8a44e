"""Load in numbers: reports, usage of brokers, and running means of bundles.

Columns always have the same order: the four metrics of a load, and the five resources of a broker, as below. Source:
Pulsar's LocalBrokerData, ResourceUsage and TimeAverageMessageData.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from loadmanager.core.domain.resources import HealthFigures, ResourceWeights

MSG_RATE_IN, MSG_RATE_OUT, THROUGHPUT_IN, THROUGHPUT_OUT = range(4)
"""Columns of a load: messages/s in and out, bytes/s in and out."""

CPU, MEMORY, DIRECT_MEMORY, BANDWIDTH_IN, BANDWIDTH_OUT = range(5)
"""Columns of a broker's resources."""

RATED = {CPU: "CPU", DIRECT_MEMORY: "direct memory", BANDWIDTH_IN: "bandwidth in", BANDWIDTH_OUT: "bandwidth out"}
"""Names of the resources with a weight in a broker's usage. Heap memory has none: a JVM's heap normally looks full."""

_RATED = tuple(RATED)

METRICS = 4
RESOURCES = 5

SHORT_WINDOW = 10
LONG_WINDOW = 1000
"""Window of the long-term mean: after that number of samples it is an exponential mean with weight 1/window."""

FloatArray = npt.NDArray[np.float64]
Float32Array = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
RowArray = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]

_Scalar = TypeVar("_Scalar", bound=np.generic)
_Integer = TypeVar("_Integer", np.int8, np.int16)

DEFAULT_LOAD: FloatArray = np.array([50.0, 50.0, 50_000.0, 50_000.0])
"""Default load of a bundle without history: 50 messages/s and 50,000 bytes/s, each way."""
DEFAULT_LOAD.setflags(write=False)


def read_only(array: npt.NDArray[_Scalar], *shape: int) -> npt.NDArray[_Scalar]:
    """Make `array` read-only, check its shape, and return it."""
    assert array.shape == shape, f"shape {array.shape}: expected {shape}"
    array.setflags(write=False)
    return array


_BUNDLE_COLUMNS = ("bundle_load", "bundle_topics", "bundle_sessions", "bundle_cache_bytes")
"""Columns of a report that belong to its `bundle_names`."""


@dataclass(frozen=True, slots=True, eq=False)
class BrokerReport:
    """One report of a broker.

    `usage` is (5, 2): used and limit per resource, in any common unit. `load` is the broker's reported totals.
    `bundle_load` (k, 4), `bundle_topics`, `bundle_sessions` (k,; consumers and producers) and `bundle_cache_bytes` (k,)
    belong to `bundle_names`, the bundles with at least one loaded topic. `health` is None if not reported. `stuck` is
    the reason why the broker serves none of its bundles; empty if it serves.
    """

    usage: FloatArray
    load: FloatArray
    num_topics: int
    num_bundles: int
    num_consumers: int
    num_producers: int
    bundle_names: tuple[str, ...]
    bundle_load: FloatArray
    bundle_topics: IntArray
    bundle_sessions: IntArray
    bundle_cache_bytes: IntArray
    last_update_ms: int
    start_timestamp_ms: int
    version: str
    load_manager_class: str
    persistent_enabled: bool
    non_persistent_enabled: bool
    health: HealthFigures | None = None
    stuck: str = ""

    def __post_init__(self) -> None:
        bundles = len(self.bundle_names)
        assert len(set(self.bundle_names)) == bundles, "a bundle is reported once"
        read_only(self.usage, RESOURCES, 2)
        read_only(self.load, METRICS)
        read_only(self.bundle_load, bundles, METRICS)
        read_only(self.bundle_topics, bundles)
        read_only(self.bundle_sessions, bundles)
        read_only(self.bundle_cache_bytes, bundles)

    def with_bundles(self, loads: Mapping[str, FloatArray]) -> BrokerReport:
        """Add bundles of which only the load (4,) is known."""
        unknown = np.zeros(len(loads), dtype=np.int64)
        return self._and(tuple(loads), np.array(list(loads.values())).reshape(-1, METRICS), unknown, unknown, unknown)

    def with_bundles_of(self, more: BrokerReport) -> BrokerReport:
        """Add the bundles of another report of the broker."""
        return self._and(more.bundle_names, *(getattr(more, name) for name in _BUNDLE_COLUMNS))

    def _and(self, names: tuple[str, ...], *columns: npt.NDArray[Any]) -> BrokerReport:
        more = zip(_BUNDLE_COLUMNS, columns, strict=True)
        joined: dict[str, Any] = {name: np.concatenate([getattr(self, name), column]) for name, column in more}
        return replace(self, bundle_names=self.bundle_names + names, **joined)

    def only(self, kept: BoolArray) -> BrokerReport:
        """Keep only these (k,) bundles; the broker's own figures stay."""
        names = tuple(name for name, is_kept in zip(self.bundle_names, kept.tolist(), strict=True) if is_kept)
        columns: dict[str, Any] = {name: getattr(self, name)[kept] for name in _BUNDLE_COLUMNS}
        return replace(self, bundle_names=names, **columns)

    def clients(self) -> dict[str, int]:
        """Return the number of consumers and producers of each bundle."""
        return dict(zip(self.bundle_names, self.bundle_sessions.tolist(), strict=True))

    def without_bundles(self) -> BrokerReport:
        """Return the broker's own figures, without bundles."""
        return self.only(np.zeros(len(self.bundle_names), dtype=bool))


@dataclass(frozen=True, slots=True, eq=False)
class TimeMean:
    """Mean load over time (4,) of one bundle at its last report, and its usual deviation."""

    load: FloatArray
    sigma: float

    def __post_init__(self) -> None:
        read_only(self.load, METRICS)


@dataclass(frozen=True, slots=True, eq=False)
class BundleAverages:
    """Running means of one bundle, `short` over 10 and `long` over 1,000 samples, and its latest topic count.

    `time_mean` is the mean over time; None if it was not stored: then the short one stands in.
    """

    short: FloatArray
    long: FloatArray
    short_samples: int
    long_samples: int
    topics: int
    time_mean: TimeMean | None = None

    def __post_init__(self) -> None:
        read_only(self.short, METRICS)
        read_only(self.long, METRICS)

    def by_time(self) -> TimeMean:
        return self.time_mean or TimeMean(self.short, 0.0)


def percent_usage(usage: npt.ArrayLike, limit: npt.ArrayLike) -> Float32Array:
    """Return usage in percent of the limit, 0 without a limit: in 32-bit floats, as Pulsar, so 30 of 100 is slightly
    above 30. It may exceed 100.
    """
    used, limits = np.asarray(usage, dtype=np.float64), np.asarray(limit, dtype=np.float64)
    ratio = np.zeros(np.broadcast_shapes(used.shape, limits.shape), dtype=np.float32)
    with np.errstate(all="ignore"):
        np.divide(used.astype(np.float32), limits.astype(np.float32), out=ratio, where=limits > 0)
        return ratio * np.float32(100)


def rated_weights(weights: ResourceWeights) -> dict[int, float]:
    """Return the weight of each rated resource, by column."""
    return dict(
        zip(RATED, (weights.cpu, weights.direct_memory, weights.bandwidth_in, weights.bandwidth_out), strict=True)
    )


def weighted_max_usage(percent: Float32Array, weights: ResourceWeights) -> FloatArray:
    """Return the weighted maximum of (M, 5) percentages over rated resources, as fractions (1.0 is 100 %), unclamped.

    NaN is ignored; only NaN gives minus infinity.
    """
    factors = np.array([*rated_weights(weights).values()])
    with np.errstate(invalid="ignore"):
        weighted = percent[..., _RATED].astype(np.float64) * factors
    return np.asarray(np.fmax.reduce(weighted, axis=-1, initial=-np.inf) / 100, dtype=np.float64)


def next_average(
    average: FloatArray, samples: npt.NDArray[_Integer], sample: FloatArray, window: int
) -> tuple[FloatArray, npt.NDArray[_Integer]]:
    """Return the running means (k, 4) and their sample counts (k,) after one more sample each.

    The first sample replaces the default.
    """
    count = np.minimum(samples + 1, window).astype(samples.dtype)
    n = count.astype(np.float64)[:, np.newaxis]
    return ((n - 1) * average + sample) / n, count
