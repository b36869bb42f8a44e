"""Split algorithms and their registry: they choose the boundaries, independent of the reason for a split.

To add one, add a line to `SPLIT_ALGORITHMS` too. `Divider` applies the requested or configured one.

Sources: Pulsar's RangeEquallyDivideBundleSplitAlgorithm, TopicCountEquallyDivideBundleSplitAlgorithm,
SpecifiedPositionsBundleSplitAlgorithm and FlowOrQpsEquallyDivideBundleSplitAlgorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from loadmanager.core.domain.bundles import TopicLoad
from loadmanager.core.domain.names import BundleRange
from loadmanager.core.domain.reasons import SplitReason
from loadmanager.core.domain.settings import KEYS, PlannerSettings, UnknownStrategyError, get_by_name

MIB = 1024 * 1024

MIN_TOPICS = 2
"""Minimum number of topics: a split cannot relieve a bundle with fewer."""


class PositionsRequiredError(ValueError):
    """The algorithm requires positions and got none."""


SplitAlgorithm = Callable[[BundleRange, Sequence[TopicLoad], Sequence[int], PlannerSettings], list[int] | None]
"""Function from the bundle's range, all its topics, the requested positions and the settings to boundaries, or None for
"do not split".

Boundaries ascend; they may repeat or be outside the range: see `usable`.
"""


def range_equally_divide(
    bundle_range: BundleRange, topics: Sequence[TopicLoad], positions: Sequence[int], settings: PlannerSettings
) -> list[int] | None:
    """Halve the range, regardless of topics."""
    del topics, positions, settings
    return [_halfway(bundle_range.lower, bundle_range.upper)]


def topic_count_equally_divide(
    bundle_range: BundleRange, topics: Sequence[TopicLoad], positions: Sequence[int], settings: PlannerSettings
) -> list[int] | None:
    """Cut between the two middle topics.

    As in Pulsar, the boundary is the hash of the left topic if both hashes are equal or adjacent. That topic then
    belongs to the right part; if its hash is the first of the bundle, there is no cut.
    """
    del bundle_range, positions, settings
    if len(topics) < MIN_TOPICS:
        return None
    hashes = sorted(topic.hash for topic in topics)
    middle = len(hashes) // 2
    return [_halfway(hashes[middle - 1], hashes[middle])]


def specified_positions_divide(
    bundle_range: BundleRange, topics: Sequence[TopicLoad], positions: Sequence[int], settings: PlannerSettings
) -> list[int] | None:
    """Cut at given positions; those outside the bundle are ignored. Raises `PositionsRequiredError` without any.

    As in Pulsar, duplicates stay; the caller cuts once per position, while Pulsar's split fails. Differs from Pulsar:
    the caller's list is not sorted in place.
    """
    del settings
    return divide_at(bundle_range, positions, topics=len(topics))


def divide_at(bundle_range: BundleRange, positions: Sequence[int], *, topics: int = MIN_TOPICS) -> list[int] | None:
    """Return the positions inside the range; without `topics`, regardless of the bundle's topics."""
    if not positions:
        raise PositionsRequiredError("specified_positions_divide: expected positions at which to split")
    if topics < MIN_TOPICS:
        return None
    inside = sorted(position for position in positions if bundle_range.lower < position < bundle_range.upper)
    return inside or None


def flow_or_qps_equally_divide(
    bundle_range: BundleRange, topics: Sequence[TopicLoad], positions: Sequence[int], settings: PlannerSettings
) -> list[int] | None:
    """Cut into parts that each keep within the limits of a bundle; no boundaries if such a bundle cannot be cut.

    As in Pulsar, topics without load do not count; for topics with the same hash, the figures of the last one count
    once for each of them. Differs from Pulsar: it gets the load of topics whichever algorithm is the default; Pulsar
    fails unless this one is the default.
    """
    del bundle_range, positions
    busy = [topic for topic in topics if topic.msg_rate > 0 or topic.throughput > 0]
    by_hash = {topic.hash: topic for topic in busy}
    max_rate, max_bytes = settings.namespace_bundle_max_msg_rate, settings.namespace_bundle_max_bandwidth_mbytes * MIB
    margin = 1 + settings.flow_or_qps_difference_threshold_percentage / 100
    total_rate, total_bytes = sum(topic.msg_rate for topic in busy), sum(topic.throughput for topic in busy)
    if len(by_hash) < MIN_TOPICS or (total_rate < max_rate * margin and total_bytes < max_bytes * margin):
        return None
    hashes = sorted(topic.hash for topic in busy)
    boundaries: list[int] = []
    rate, throughput = by_hash[hashes[0]].msg_rate, by_hash[hashes[0]].throughput
    for left, right in pairwise(hashes):
        topic = by_hash[right]
        if rate + topic.msg_rate > max_rate or throughput + topic.throughput > max_bytes:
            boundaries.append(_halfway(left, right) + 1)
            rate, throughput = topic.msg_rate, topic.throughput
        else:
            rate += topic.msg_rate
            throughput += topic.throughput
    return boundaries


def is_splittable(bundle_range: BundleRange) -> bool:
    """Return True if there is a hash between its ends."""
    return bundle_range.upper - bundle_range.lower > 1


def usable(bundle_range: BundleRange, boundaries: Sequence[int]) -> list[int]:
    """Return the boundaries inside the range, ascending, without duplicates."""
    return sorted({boundary for boundary in boundaries if bundle_range.lower < boundary < bundle_range.upper})


def _halfway(lower: int, upper: int) -> int:
    """Return the integer midpoint, rounded down."""
    return lower + (upper - lower) // 2


SPECIFIED_POSITIONS = "specified_positions_divide"
"""The only algorithm that requires positions."""

SPLIT_ALGORITHMS: dict[str, SplitAlgorithm] = {
    "range_equally_divide": range_equally_divide,
    "topic_count_equally_divide": topic_count_equally_divide,
    SPECIFIED_POSITIONS: specified_positions_divide,
    "flow_or_qps_equally_divide": flow_or_qps_equally_divide,
}

PULSAR_REASONS = {
    SplitReason.TOPICS: "Topics",
    SplitReason.SESSIONS: "Sessions",
    SplitReason.MSG_RATE: "MsgRate",
    SplitReason.BANDWIDTH: "Bandwidth",
}
"""Split reasons in Pulsar's spelling."""

DEFAULT_KEY = KEYS["namespace_bundle_split_algorithm"]
SUPPORTED_KEY = KEYS["supported_split_algorithms"]


def split_algorithm(
    settings: PlannerSettings, asked: str = "", asked_by: str = DEFAULT_KEY
) -> tuple[str, SplitAlgorithm]:
    """Return the algorithm requested under the key or option `asked_by`, else the configured one, and its short name.

    Raises `UnknownStrategyError`, naming the key and the choices, if it does not exist or is not supported.
    """
    key, name = (asked_by, asked) if asked else (DEFAULT_KEY, settings.namespace_bundle_split_algorithm)
    short, algorithm = get_by_name(key, name, SPLIT_ALGORITHMS)
    supported = [get_by_name(SUPPORTED_KEY, each, SPLIT_ALGORITHMS)[0] for each in settings.supported_split_algorithms]
    if short not in supported:
        raise UnknownStrategyError(
            f"{key} {name!r}: not one of {SUPPORTED_KEY}, {', '.join(supported) or 'which is empty'}:"
            " add it there or choose another"
        )
    return short, algorithm


_WITHOUT_TOPICS = frozenset({"range_equally_divide", SPECIFIED_POSITIONS})
"""Algorithms that do not need topics."""


@dataclass(frozen=True, slots=True)
class Divider:
    """The requested or configured algorithm with its parameters."""

    name: str
    algorithm: SplitAlgorithm
    positions: tuple[int, ...]
    settings: PlannerSettings

    @classmethod
    def of(cls, settings: PlannerSettings, asked: str = "", positions: Sequence[int] = ()) -> Divider:
        """Choose the algorithm. Raises `UnknownStrategyError` if it is not supported or lacks a parameter."""
        name, algorithm = split_algorithm(settings, asked, "splitAlgorithmName")
        if name == SPECIFIED_POSITIONS and not positions:
            raise UnknownStrategyError(f"{SPECIFIED_POSITIONS} needs positions: a list of hashes as the body")
        if name != SPECIFIED_POSITIONS and positions:
            raise UnknownStrategyError(f"{name} takes no positions: they go with {SPECIFIED_POSITIONS}")
        return cls(name, algorithm, tuple(positions), settings)

    @property
    def needs_topics(self) -> bool:
        return self.name not in _WITHOUT_TOPICS

    def divide(self, own: BundleRange, topics: Sequence[TopicLoad]) -> list[int] | None:
        """Return the boundaries, None for "do not split"; see `SplitAlgorithm`."""
        if self.name == SPECIFIED_POSITIONS:
            return divide_at(own, self.positions)
        return self.algorithm(own, topics, (), self.settings)
