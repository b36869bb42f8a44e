"""Halve the range, regardless of topics. Source: Pulsar's RangeEquallyDivideBundleSplitAlgorithm."""

from __future__ import annotations

from collections.abc import Sequence

from loadmanager.core.domain.bundles import TopicLoad
from loadmanager.core.domain.names import BundleRange
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.strategies.splitting.split_algorithm import halfway


def range_equally_divide(
    bundle_range: BundleRange, topics: Sequence[TopicLoad], positions: Sequence[int], settings: PlannerSettings
) -> list[int] | None:
    del topics, positions, settings
    return [halfway(bundle_range.lower, bundle_range.upper)]
