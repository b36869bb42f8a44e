"""Name of a topic whose hash lies in a given bundle. A lookup needs one, and only the owner knows the real topics.

Pulsar hashes topics with CRC-32, which is linear: each bit of a name contributes to the hash independently. So the
name, 32 digits `0` and `1`, is computed by Gaussian elimination instead of a search. Each digit contributes a power of
x^8 modulo the polynomial of CRC-32. That polynomial is irreducible, so the 32 contributions are independent, and every
hash has a name.
"""

from __future__ import annotations

import zlib

from loadmanager.core.domain.names import BundleName

_DIGITS = 32
_PREFIX = "loadmanager-lookup-"


def topic_in(bundle: BundleName, domain: str) -> str:
    """Return the local name of a topic of `domain` (`persistent`, `non-persistent`) whose hash is in the bundle."""
    start = f"{domain}://{bundle.namespace}/{_PREFIX}"
    plain = _hash(start, 0)
    digits = _solve([_hash(start, 1 << bit) ^ plain for bit in range(_DIGITS)], plain ^ bundle.range.lower)
    return f"{_PREFIX}{digits:0{_DIGITS}b}"


def _hash(start: str, digits: int) -> int:
    return zlib.crc32(f"{start}{digits:0{_DIGITS}b}".encode())


def _solve(contributions: list[int], wanted: int) -> int:
    """Return the digits, as bits, whose contributions sum to `wanted`: Gaussian elimination over XOR."""
    by_highest_bit: dict[int, tuple[int, int]] = {}
    for number, contribution in enumerate(contributions):
        rest, digits = _reduce(contribution, 1 << number, by_highest_bit)
        by_highest_bit[rest.bit_length()] = (rest, digits)
    return _reduce(wanted, 0, by_highest_bit)[1]


def _reduce(rest: int, digits: int, by_highest_bit: dict[int, tuple[int, int]]) -> tuple[int, int]:
    while rest and rest.bit_length() in by_highest_bit:
        known, its_digits = by_highest_bit[rest.bit_length()]
        rest, digits = rest ^ known, digits ^ its_digits
    return rest, digits
