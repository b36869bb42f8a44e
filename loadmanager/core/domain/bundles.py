"""Hashes of topics, and division of a namespace's hash space into bundles.

Source: Pulsar's NamespaceBundles and NamespaceBundleFactory. Differs from Pulsar: the hash 0xffffffff is found in the
last bundle, where Pulsar's search runs over the end of its boundary list.
"""

from __future__ import annotations

import enum
import zlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import mmh3

from loadmanager.core.domain.names import HASH_SPACE_END, BundleRange, InvalidNameError


class HashFunction(enum.StrEnum):
    """`MURMUR3_32` (x86, seed 0, unsigned) is ours and the default; `CRC32` (IEEE) places topics as Pulsar does.

    The function is chosen per namespace and stored with it.
    """

    MURMUR3_32 = "murmur3_32"
    CRC32 = "crc32"


_FUNCTIONS: dict[HashFunction, Callable[[str], int]] = {
    HashFunction.MURMUR3_32: lambda topic: mmh3.hash(topic, 0, signed=False),
    HashFunction.CRC32: lambda topic: zlib.crc32(topic.encode()),
}


def topic_hash(topic: str, function: HashFunction) -> int:
    """Return the hash of a full topic name (`persistent://tenant/namespace/topic`), 0..0xffffffff."""
    return _FUNCTIONS[function](topic)


_HASHES = HASH_SPACE_END + 1
_TEXTS_KEPT = 1_024
MAX_BUNDLES = 1 << 14
"""Maximum bundles per namespace: its record, with an owner for each, has to fit into one znode."""


class BoundariesError(InvalidNameError):
    """Boundaries at which a bundle cannot be cut; the message names the first fault."""


def equal_boundaries(bundles: int) -> tuple[int, ...]:
    """Return the boundaries of `bundles` equal ranges; the last one takes the remainder, as in Pulsar."""
    if not 1 <= bundles <= MAX_BUNDLES:
        raise InvalidNameError(f"numBundles {bundles}: expected 1 to {MAX_BUNDLES}")
    width = _HASHES // bundles
    return (*(i * width for i in range(bundles)), HASH_SPACE_END)


@dataclass(frozen=True, slots=True)
class NamespaceBundles:
    """The bundles of one namespace: `boundaries` ascend from 0 to 0xffffffff and bundle i is `[b[i], b[i+1])`.

    Only the last range is closed at the top, so that every hash has exactly one bundle.
    """

    boundaries: tuple[int, ...]
    hash_function: HashFunction = HashFunction.MURMUR3_32

    def __post_init__(self) -> None:
        validate_boundaries(self.boundaries)

    def __len__(self) -> int:
        return len(self.boundaries) - 1

    def index_of_hash(self, value: int) -> int:
        return min(bisect_right(self.boundaries, value), len(self.boundaries) - 1) - 1

    def index_of_topic(self, topic: str) -> int:
        return self.index_of_hash(topic_hash(topic, self.hash_function))

    def range_at(self, index: int) -> BundleRange:
        return BundleRange(self.boundaries[index], self.boundaries[index + 1])

    def find_index(self, bundle_range: BundleRange) -> int | None:
        """Find the index of `bundle_range`, None if it is not exactly one of the current bundles."""
        index = self.index_of_hash(bundle_range.lower)
        return index if self.range_at(index) == bundle_range else None

    def ranges(self) -> list[BundleRange]:
        return [self.range_at(i) for i in range(len(self))]

    def range_texts(self) -> tuple[str, ...]:
        """Return the ranges as written in names and records."""
        return _texts_of(self.boundaries)

    def split(self, index: int, boundaries: Sequence[int]) -> NamespaceBundles:
        """Return the bundles after bundle `index` is cut at `boundaries`: inside its range, ascending, distinct.

        Raises `BoundariesError`, also if the namespace would exceed `MAX_BUNDLES`.
        """
        own = self.range_at(index)
        if not boundaries:
            raise BoundariesError(f"boundaries: expected at least one inside {own}")
        for lower, upper in pairwise((own.lower, *boundaries, own.upper)):
            if lower >= upper:
                raise BoundariesError(
                    f"boundaries: 0x{upper:08x} does not ascend after 0x{lower:08x}; expected boundaries inside {own},"
                    " ascending, each of them once"
                )
        if len(self) + len(boundaries) > MAX_BUNDLES:
            raise BoundariesError(
                f"boundaries: {len(self) + len(boundaries)} bundles would be more than the {MAX_BUNDLES} of a namespace"
            )
        cut = (*self.boundaries[: index + 1], *boundaries, *self.boundaries[index + 1 :])
        return replace(self, boundaries=cut)

    def merge(self, index: int) -> NamespaceBundles:
        """Return the bundles after merging bundle `index` with the one above; `BoundariesError` for the last one."""
        if index + 1 >= len(self):
            raise BoundariesError(f"bundle {self.range_at(index)} is the last one: there is none above to merge with")
        return replace(self, boundaries=self.boundaries[: index + 1] + self.boundaries[index + 2 :])


@lru_cache(maxsize=_TEXTS_KEPT)
def _texts_of(boundaries: tuple[int, ...]) -> tuple[str, ...]:
    """Return the ranges as text. Cached, since most namespaces have the same boundaries and are written often."""
    return tuple(str(BundleRange(lower, upper)) for lower, upper in pairwise(boundaries))


def validate_boundaries(boundaries: Sequence[int]) -> None:
    """Raise `InvalidNameError` unless the boundaries ascend strictly from 0 to 0xffffffff."""
    if len(boundaries) < 2:  # noqa: PLR2004 - one bundle has two boundaries
        raise InvalidNameError(f"boundaries: expected at least 2, got {len(boundaries)}")
    if boundaries[0] != 0 or boundaries[-1] != HASH_SPACE_END:
        raise InvalidNameError(
            "boundaries: expected them to span 0x00000000..0xffffffff,"
            f" got 0x{boundaries[0]:08x}..0x{boundaries[-1]:08x}"
        )
    for lower, upper in pairwise(boundaries):
        if lower >= upper:
            raise InvalidNameError(f"boundaries: 0x{upper:08x} does not ascend after 0x{lower:08x}")


class TopicLoad(NamedTuple):
    """A topic of the bundle: its hash, messages/s and bytes/s, in and out together. The name is for explanations,
    `load` (4,) for dividing the bundle's history; empty if not used for that.
    """

    hash: int
    msg_rate: float = 0.0
    throughput: float = 0.0
    name: str = ""
    load: tuple[float, ...] = ()
