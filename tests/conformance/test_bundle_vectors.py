"""Pulsar's bundle ranges and hashes (rows N)."""

from __future__ import annotations

import pytest

from loadmanager.core.domain.bundles import HashFunction, NamespaceBundles, topic_hash
from loadmanager.core.domain.names import BundleName, BundleRange, InvalidNameError, NamespaceName

BOUNDARIES = (0, 0x10000000, 0x40000000, 0xFFFFFFFF)


def test_n1_bundles_lie_between_neighbouring_boundaries() -> None:
    ranges = NamespaceBundles(BOUNDARIES).ranges()
    assert ranges == [
        BundleRange(0, 0x10000000),
        BundleRange(0x10000000, 0x40000000),
        BundleRange(0x40000000, 0xFFFFFFFF),
    ]
    assert [0xFFFFFFFF in bundle_range for bundle_range in ranges] == [False, False, True]


def test_n5_bundle_name_is_its_namespace_and_bounds() -> None:
    namespace = NamespaceName.parse("pulsar/ns1")
    assert str(BundleName(namespace, BundleRange(0, 0x10000000))) == "pulsar/ns1/0x00000000_0x10000000"
    assert str(BundleName(namespace, BundleRange(0x10000000, 0xFFFFFFFF))) == "pulsar/ns1/0x10000000_0xffffffff"


def test_n6_empty_range_is_invalid_and_bundles_sort_by_namespace_and_range() -> None:
    with pytest.raises(InvalidNameError, match="lower < upper"):
        BundleRange(0x10, 0x10)
    first, second = NamespaceName.parse("a/z"), NamespaceName.parse("b/a")
    low, high = BundleRange(0, 0x10), BundleRange(0x10, 0x20)
    names = [BundleName(second, low), BundleName(first, high), BundleName(first, low)]
    assert sorted(names) == [BundleName(first, low), BundleName(first, high), BundleName(second, low)]


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("a", 0xE8B7BE43),
        ("b", 0x71BEEFF9),
        ("c", 0x06B9DF6F),
        ("persistent://my-tenant/my-ns/my-topic", 0x6F5A849B),
        ("persistent://my-tenant/my-ns/my-topic-partition-0", 0x01DA55E7),
        ("persistent://my-tenant/my-ns/my-topic-partition-1", 0x76DD6571),
        ("non-persistent://my-tenant/my-ns/my-topic", 0xDA22F8CE),
        ("persistent://public/default/test", 0xAA2E30F5),
        ("persistent://pulsar/ns2/topic-2", 0xD10EA167),
    ],
)
def test_n8_crc32_hashes_topics_as_pulsar_does(topic: str, expected: int) -> None:
    assert topic_hash(topic, HashFunction.CRC32) == expected


def test_q13_highest_hash_is_in_the_last_bundle_unlike_in_pulsar() -> None:
    assert NamespaceBundles(BOUNDARIES).index_of_hash(0xFFFFFFFF) == 2
