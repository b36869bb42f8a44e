"""What a split algorithm is: it says where a bundle is to be cut, and knows nothing of why."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loadmanager.core.domain.bundles import TopicLoad
from loadmanager.core.domain.names import BundleRange
from loadmanager.core.domain.settings import PlannerSettings

MIB = 1024 * 1024

MIN_TOPICS = 2
"""A bundle with fewer topics cannot be relieved by a split."""


class PositionsRequiredError(ValueError):
    """The algorithm cuts where it is told to, and was not told."""


SplitAlgorithm = Callable[
    [BundleRange, Sequence[TopicLoad], Sequence[int], PlannerSettings],
    list[int] | None,
]
"""The range of the bundle, all its topics, the positions asked for, settings: the boundaries, None for "do not split".

Boundaries ascend, but nobody has checked that they differ and are inside the range: see `usable`.
"""


def is_splittable(bundle_range: BundleRange) -> bool:
    """Whether there is a hash between its ends."""
    return bundle_range.upper - bundle_range.lower > 1


def usable(bundle_range: BundleRange, boundaries: Sequence[int]) -> list[int]:
    """The boundaries at which the range can be cut, ascending and each of them once: its ends are no place to cut."""
    return sorted({boundary for boundary in boundaries if bundle_range.lower < boundary < bundle_range.upper})


def halfway(lower: int, upper: int) -> int:
    """The whole number in the middle, the lower of two."""
    return lower + (upper - lower) // 2
