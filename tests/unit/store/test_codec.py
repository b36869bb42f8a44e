"""How records become bytes and back."""

from __future__ import annotations

import gzip
import zlib

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from loadmanager.errors import InvalidRecordError
from loadmanager.store.codec import COMPRESS_ABOVE_BYTES, MAX_DECODED_BYTES, decode, encode_json


class Record(BaseModel):
    broker_id: str = Field(alias="brokerId")


def test_a_model_is_written_under_its_aliases_as_readable_utf_8() -> None:
    assert encode_json(Record(brokerId="größe:1")) == '{"brokerId":"größe:1"}'.encode()


def test_a_mapping_keeps_the_order_of_its_keys() -> None:
    assert encode_json({"b": 1, "a": [True, None]}) == b'{"b":1,"a":[true,null]}'


def test_a_large_record_is_compressed_and_always_to_the_same_bytes() -> None:
    text = "x" * (COMPRESS_ABOVE_BYTES - len('{"t":""}'))
    assert encode_json({"t": text}).startswith(b"{")
    large = {"t": text + "x"}
    assert encode_json(large).startswith(b"\x1f\x8b")
    assert encode_json(large) == encode_json(large)
    assert orjson.loads(decode(encode_json(large), "/r")) == large


@given(st.dictionaries(st.text(), st.integers(-(2**53), 2**53) | st.text() | st.none()))
def test_what_was_encoded_is_decoded(record: dict[str, object]) -> None:
    assert orjson.loads(decode(encode_json(record), "/r")) == record
    assert orjson.loads(decode(gzip.compress(encode_json(record)), "/r")) == record


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
def test_what_cannot_be_read_is_refused_with_the_place_it_was_found(data: bytes, what: str) -> None:
    with pytest.raises(InvalidRecordError, match=f"/brokers/b: .*{what}"):
        decode(data, "/brokers/b")


def test_a_small_record_that_decompresses_to_gigabytes_is_refused_without_doing_so() -> None:
    compressor = zlib.compressobj(9, zlib.DEFLATED, 31)
    chunk = bytes(1024 * 1024)
    bomb = b"".join(compressor.compress(chunk) for _ in range(MAX_DECODED_BYTES // len(chunk) + 1)) + compressor.flush()
    assert len(bomb) < 100_000
    with pytest.raises(InvalidRecordError, match=r"/r: decompresses to more than"):
        decode(bomb, "/r")


@given(st.binary())
def test_anything_is_either_decoded_or_refused(data: bytes) -> None:
    try:
        decode(data, "/r").decode("utf-8")
    except InvalidRecordError as error:
        assert str(error).startswith("/r: ")  # noqa: PT017 - either outcome is right
