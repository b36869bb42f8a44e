"""Hashing of full topic names to 32 bits. The function is chosen per namespace and stored with it."""

from __future__ import annotations

import enum
import zlib
from collections.abc import Callable

import mmh3


class HashFunction(enum.StrEnum):
    """`MURMUR3_32` (x86, seed 0, unsigned) is ours and the default; `CRC32` (IEEE) places topics as Pulsar does."""

    MURMUR3_32 = "murmur3_32"
    CRC32 = "crc32"


def _murmur3_32(topic: str) -> int:
    return mmh3.hash(topic, 0, signed=False)


def _crc32(topic: str) -> int:
    return zlib.crc32(topic.encode())


_FUNCTIONS: dict[HashFunction, Callable[[str], int]] = {
    HashFunction.MURMUR3_32: _murmur3_32,
    HashFunction.CRC32: _crc32,
}


def topic_hash(topic: str, function: HashFunction) -> int:
    """Return the hash of a full topic name (`persistent://tenant/namespace/topic`), 0..0xffffffff."""
    return _FUNCTIONS[function](topic)
