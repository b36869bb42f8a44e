"""Cut between the two middle topics. Source: Pulsar's TopicCountEquallyDivideBundleSplitAlgorithm.

As in Pulsar, the boundary is the hash of the left topic if both hashes are equal or adjacent. That topic then belongs
to the right part; if its hash is the first of the bundle, there is no cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadmanager.core.domain.bundles import TopicLoad
from loadmanager.core.domain.names import BundleRange
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.strategies.splitting.split_algorithm import MIN_TOPICS, halfway


def topic_count_equally_divide(
    bundle_range: BundleRange, topics: Sequence[TopicLoad], positions: Sequence[int], settings: PlannerSettings
) -> list[int] | None:
    del bundle_range, positions, settings
    if len(topics) < MIN_TOPICS:
        return None
    hashes = sorted(topic.hash for topic in topics)
    middle = len(hashes) // 2
    return [halfway(hashes[middle - 1], hashes[middle])]
