from __future__ import annotations

import pytest

from loadmanager.core.domain.bundles import HashFunction, topic_hash


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 0), ("hello", 0x248BFA47), ("The quick brown fox jumps over the lazy dog", 0x2E4FF723)],
)
def test_murmur3_32_with_seed_0_equals_published_values(text: str, expected: int) -> None:
    assert topic_hash(text, HashFunction.MURMUR3_32) == expected


def test_crc32_equals_its_check_value() -> None:
    assert topic_hash("123456789", HashFunction.CRC32) == 0xCBF43926


@pytest.mark.parametrize("function", HashFunction)
def test_hash_is_an_unsigned_32_bit_number(function: HashFunction) -> None:
    assert all(0 <= topic_hash(f"persistent://t/ns/ü-{i}", function) <= 0xFFFFFFFF for i in range(100))
