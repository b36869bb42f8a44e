"""A topic's name for any bundle: a lookup names a topic, and which topics a bundle has is known to its owner alone.

CRC-32, by which Pulsar places topics, is linear: of two names of one length the hashes differ by what the bits that
differ contribute, each for itself. So a name of thirty-two `0` and `1` is chosen digit by digit instead of being
searched for; each digit contributes a power of x to the eighth modulo the polynomial of CRC-32, and as that is
irreducible, the thirty-two are independent: every hash has its name.
"""

from __future__ import annotations

import zlib

from loadmanager.core.domain.names import BundleName

_DIGITS = 32
_PREFIX = "loadmanager-lookup-"


def topic_in(bundle: BundleName, domain: str) -> str:
    """The local name of a topic of `domain` (`persistent`, `non-persistent`) whose hash is in the bundle."""
    start = f"{domain}://{bundle.namespace}/{_PREFIX}"
    plain = _hash(start, 0)
    digits = _solve([_hash(start, 1 << bit) ^ plain for bit in range(_DIGITS)], plain ^ bundle.range.lower)
    return f"{_PREFIX}{digits:0{_DIGITS}b}"


def _hash(start: str, digits: int) -> int:
    return zlib.crc32(f"{start}{digits:0{_DIGITS}b}".encode())


def _solve(contributions: list[int], wanted: int) -> int:
    """The digits, as bits, whose contributions are `wanted` together: Gauss's elimination, in which adding is XOR."""
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
