"""Cut at given positions. Source: Pulsar's SpecifiedPositionsBundleSplitAlgorithm.

Positions outside the bundle are ignored. As in Pulsar, duplicates stay; the caller cuts once per position, while
Pulsar's split fails. Differs from Pulsar: the caller's list is not sorted in place.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadmanager.core.domain.bundles import TopicLoad
from loadmanager.core.domain.names import BundleRange
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.strategies.splitting.split_algorithm import MIN_TOPICS, PositionsRequiredError


def specified_positions_divide(
    bundle_range: BundleRange, topics: Sequence[TopicLoad], positions: Sequence[int], settings: PlannerSettings
) -> list[int] | None:
    """Raises `PositionsRequiredError` without any positions."""
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
