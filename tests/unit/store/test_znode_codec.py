from __future__ import annotations

import gzip
import random
import zlib

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.domain.resources import ALL_DIGITS, rounded
from loadmanager.errors import InvalidRecordError
from loadmanager.store import znode_codec
from loadmanager.store.znode_codec import COMPRESS_ABOVE_BYTES, MAX_DECODED_BYTES, decode, pack, pack_rounded


def test_large_record_is_compressed_deterministically() -> None:
    small = b"x" * COMPRESS_ABOVE_BYTES
    assert pack(small) == small
    large = small + b"x"
    assert pack(large).startswith(b"\x1f\x8b")
    assert pack(large) == pack(large)
    assert decode(pack(large), "/r") == large


@given(st.dictionaries(st.text(), st.integers(-(2**53), 2**53) | st.text() | st.none()))
def test_encoded_record_is_decoded(record: dict[str, object]) -> None:
    data = orjson.dumps(record)
    assert orjson.loads(decode(pack(data), "/r")) == record
    assert orjson.loads(decode(gzip.compress(data), "/r")) == record


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "empty"),
        (gzip.compress(b"", mtime=0), "empty"),
        (b"\xff\xfe{}", "not UTF-8"),
        (gzip.compress(b"\xff", mtime=0), "not UTF-8"),
        (gzip.compress(b'{"a":1}', mtime=0)[:-1], "cut off"),
        (gzip.compress(b"{}", mtime=0) + b"{}", "followed by"),
        (b"\x1f\x8b", "cut off"),
        (b"\x1f\x8b rubbish", "damaged"),
        (gzip.compress(b"{}", mtime=0)[:-8] + bytes(8), "damaged"),
    ],
)
def test_undecodable_record_is_rejected_with_its_path(data: bytes, what: str) -> None:
    with pytest.raises(InvalidRecordError, match=f"/brokers/b: .*{what}"):
        decode(data, "/brokers/b")


def test_decompression_bomb_is_rejected() -> None:
    compressor = zlib.compressobj(9, zlib.DEFLATED, 31)
    chunk = bytes(1024 * 1024)
    bomb = b"".join(compressor.compress(chunk) for _ in range(MAX_DECODED_BYTES // len(chunk) + 1)) + compressor.flush()
    assert len(bomb) < 100_000
    with pytest.raises(InvalidRecordError, match=r"/r: decompresses to more than"):
        decode(bomb, "/r")


@given(st.binary())
def test_any_bytes_are_decoded_or_rejected(data: bytes) -> None:
    try:
        decode(data, "/r").decode("utf-8")
    except InvalidRecordError as error:
        assert str(error).startswith("/r: ")  # noqa: PT017 - either outcome is right


def test_figures_are_rounded_only_in_records_that_would_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 200_000
    monkeypatch.setattr(znode_codec, "MAX_ZNODE_BYTES", most)
    rng = random.Random(1)
    few, many = ([rng.random() for _ in range(count)] for count in (100, 60_000))

    def encode(figures: list[float], digits: int) -> bytes:
        return orjson.dumps([rounded(figure, digits) for figure in figures])

    assert orjson.loads(decode(pack_rounded(lambda digits: encode(few, digits)), "/r")) == few
    data = pack_rounded(lambda digits: encode(many, digits))
    assert len(data) <= most < len(pack(encode(many, ALL_DIGITS)))
    assert orjson.loads(decode(data, "/r")) == pytest.approx(many, rel=0.005)
    assert len(pack_rounded(lambda digits: random.Random(digits).randbytes(2 * most))) > most
