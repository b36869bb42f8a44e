"""Znode encoding: JSON that an operator can read with `get`, compressed only if it is large."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

from loadmanager.core.domain.resources import ALL_DIGITS
from loadmanager.errors import InvalidRecordError
from loadmanager.store.metadata_store import MAX_ZNODE_BYTES

COMPRESS_ABOVE_BYTES = 256 * 1024
MAX_DECODED_BYTES = 64 * 1024 * 1024

_DIGITS = (ALL_DIGITS, 3, 2)
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW_BITS = 16 + zlib.MAX_WBITS


def pack(data: bytes) -> bytes:
    """Encode JSON for a znode: gzip above `COMPRESS_ABOVE_BYTES`. Equal records give equal bytes."""
    return gzip.compress(data, mtime=0) if len(data) > COMPRESS_ABOVE_BYTES else data


def pack_rounded(encode: Callable[[int], bytes]) -> bytes:
    """Pack with the most significant digits that fit into a znode; `encode` gets their number."""
    for digits in _DIGITS:
        data = pack(encode(digits))
        if len(data) <= MAX_ZNODE_BYTES:
            break
    return data


def is_packed(data: bytes) -> bool:
    return data.startswith(_GZIP_MAGIC)


def decode(data: bytes, where: str) -> bytes:
    """Return the UTF-8 text in `data`, which may be compressed; raises `InvalidRecordError`, which names `where`.

    `MAX_DECODED_BYTES` limits the decompressed size, so that a small record cannot fill the memory.
    """
    if is_packed(data):
        data = _decompress(data, where)
    if not data:
        raise InvalidRecordError(f"{where}: empty")
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRecordError(f"{where}: not UTF-8: {error}") from error
    return data


def _decompress(data: bytes, where: str) -> bytes:
    decompressor = zlib.decompressobj(_GZIP_WINDOW_BITS)
    try:
        text = decompressor.decompress(data, MAX_DECODED_BYTES + 1)
    except zlib.error as error:
        raise InvalidRecordError(f"{where}: damaged gzip: {error}") from error
    if len(text) > MAX_DECODED_BYTES:
        raise InvalidRecordError(f"{where}: decompresses to more than {MAX_DECODED_BYTES} bytes")
    if not decompressor.eof or decompressor.unused_data:
        raise InvalidRecordError(f"{where}: gzip that is cut off, or is followed by something else")
    return text
