from __future__ import annotations

import pytest

from loadmanager.core.domain.bundles import (
    MAX_BUNDLES,
    BoundariesError,
    HashFunction,
    NamespaceBundles,
    equal_boundaries,
    validate_boundaries,
)
from loadmanager.core.domain.names import BundleRange, InvalidNameError


def test_last_of_equal_bundles_takes_the_remainder() -> None:
    assert equal_boundaries(1) == (0, 0xFFFFFFFF)
    assert equal_boundaries(2) == (0, 0x80000000, 0xFFFFFFFF)
    assert equal_boundaries(3) == (0, 0x55555555, 0xAAAAAAAA, 0xFFFFFFFF)


def test_range_texts_equal_the_text_of_each_range() -> None:
    bundles = NamespaceBundles((0, 5, 0x80000000, 0xFFFFFFFF))
    assert bundles.range_texts() == tuple(str(each) for each in bundles.ranges())


@pytest.mark.parametrize("bundles", [0, -1, MAX_BUNDLES + 1])
def test_bundle_count_out_of_bounds_is_refused(bundles: int) -> None:
    with pytest.raises(InvalidNameError, match="numBundles"):
        equal_boundaries(bundles)


@pytest.mark.parametrize(
    ("boundaries", "complaint"),
    [
        ((0,), "at least 2"),
        ((1, 0xFFFFFFFF), "to span"),
        ((0, 0xFFFFFFFE), "to span"),
        ((0, 5, 5, 0xFFFFFFFF), "0x00000005 does not ascend"),
    ],
)
def test_boundaries_that_do_not_cover_the_hash_space_are_refused(boundaries: tuple[int, ...], complaint: str) -> None:
    with pytest.raises(InvalidNameError, match=complaint):
        validate_boundaries(boundaries)


def test_topic_is_located_by_the_hash_function_of_its_namespace() -> None:
    crc = NamespaceBundles(equal_boundaries(4), HashFunction.CRC32)
    murmur = NamespaceBundles(equal_boundaries(4))
    assert crc.index_of_topic("persistent://public/default/test") == 2
    assert murmur.index_of_topic("hello") == 0
    assert len(crc) == 4


def test_only_the_exact_range_of_a_bundle_is_found() -> None:
    bundles = NamespaceBundles(equal_boundaries(4))
    assert bundles.find_index(BundleRange(0x40000000, 0x80000000)) == 1
    assert bundles.find_index(BundleRange(0x40000000, 0x50000000)) is None
    assert bundles.find_index(BundleRange(0x30000000, 0x80000000)) is None


HALVES = NamespaceBundles(equal_boundaries(2), HashFunction.CRC32)


def test_a_split_cuts_one_bundle_and_leaves_the_others() -> None:
    cut = HALVES.split(1, [0x90000000, 0xA0000000])
    assert cut.boundaries == (0, 0x80000000, 0x90000000, 0xA0000000, 0xFFFFFFFF)
    assert cut.hash_function is HashFunction.CRC32


@pytest.mark.parametrize(
    ("boundaries", "complaint"),
    [
        ([], "at least one inside 0x80000000_0xffffffff"),
        ([0x80000000], "0x80000000 does not ascend after 0x80000000"),
        ([0xFFFFFFFF], "0xffffffff does not ascend after 0xffffffff"),
        ([0x7FFFFFFF], "0x7fffffff does not ascend after 0x80000000"),
        ([0xA0000000, 0x90000000], "0x90000000 does not ascend after 0xa0000000"),
        ([0x90000000, 0x90000000], "0x90000000 does not ascend after 0x90000000"),
    ],
)
def test_split_outside_the_bundle_or_out_of_order_is_refused(boundaries: list[int], complaint: str) -> None:
    with pytest.raises(BoundariesError, match=complaint):
        HALVES.split(1, boundaries)


def test_split_beyond_the_maximum_of_bundles_is_refused() -> None:
    with pytest.raises(BoundariesError, match=f"more than the {MAX_BUNDLES}"):
        NamespaceBundles(equal_boundaries(MAX_BUNDLES)).split(0, [1])


def test_a_merge_undoes_a_split() -> None:
    assert HALVES.split(0, [0x40000000]).merge(0) == HALVES
    assert HALVES.merge(0).boundaries == (0, 0xFFFFFFFF)


def test_merge_of_the_last_bundle_is_refused() -> None:
    with pytest.raises(BoundariesError, match="0x80000000_0xffffffff is the last one"):
        HALVES.merge(1)
