"""Cut into parts that each keep within the limits of a bundle.

Source: Pulsar's FlowOrQpsEquallyDivideBundleSplitAlgorithm.

As in Pulsar, topics without load do not count; for topics with the same hash, the figures of the last one count once
for each of them. Differs from Pulsar: it gets the load of topics whichever algorithm is the default; Pulsar fails
unless this one is the default.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from loadmanager.core.domain.bundles import TopicLoad
from loadmanager.core.domain.names import BundleRange
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.strategies.splitting.split_algorithm import MIB, MIN_TOPICS, halfway


def flow_or_qps_equally_divide(
    bundle_range: BundleRange, topics: Sequence[TopicLoad], positions: Sequence[int], settings: PlannerSettings
) -> list[int] | None:
    """Return the boundaries; may be empty if the bundle is above the limits but cannot be cut."""
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
            boundaries.append(halfway(left, right) + 1)
            rate, throughput = topic.msg_rate, topic.throughput
        else:
            rate += topic.msg_rate
            throughput += topic.throughput
    return boundaries
