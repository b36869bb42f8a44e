"""Interface of split algorithms: they choose the boundaries, independent of the reason for a split."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loadmanager.core.domain.bundles import TopicLoad
from loadmanager.core.domain.names import BundleRange
from loadmanager.core.domain.settings import PlannerSettings

MIB = 1024 * 1024

MIN_TOPICS = 2
"""Minimum number of topics: a split cannot relieve a bundle with fewer."""


class PositionsRequiredError(ValueError):
    """The algorithm requires positions and got none."""


SplitAlgorithm = Callable[
    [BundleRange, Sequence[TopicLoad], Sequence[int], PlannerSettings],
    list[int] | None,
]
"""Function from the bundle's range, all its topics, the requested positions and the settings to boundaries, or None for
"do not split".

Boundaries ascend; they may repeat or be outside the range: see `usable`.
"""


def is_splittable(bundle_range: BundleRange) -> bool:
    """Return True if there is a hash between its ends."""
    return bundle_range.upper - bundle_range.lower > 1


def usable(bundle_range: BundleRange, boundaries: Sequence[int]) -> list[int]:
    """Return the boundaries inside the range, ascending, without duplicates."""
    return sorted({boundary for boundary in boundaries if bundle_range.lower < boundary < bundle_range.upper})


def halfway(lower: int, upper: int) -> int:
    """Return the integer midpoint, rounded down."""
    return lower + (upper - lower) // 2
