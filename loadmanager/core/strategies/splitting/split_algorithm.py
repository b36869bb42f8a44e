"""Split algorithms: they choose the boundaries, independent of the reason for a split. To add one, add a line to
`SPLIT_ALGORITHMS` too.

Sources: Pulsar's RangeEquallyDivideBundleSplitAlgorithm, TopicCountEquallyDivideBundleSplitAlgorithm,
SpecifiedPositionsBundleSplitAlgorithm and FlowOrQpsEquallyDivideBundleSplitAlgorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from loadmanager.core.domain.bundles import TopicLoad
from loadmanager.core.domain.names import BundleRange
from loadmanager.core.domain.settings import PlannerSettings

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
