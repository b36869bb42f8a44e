from __future__ import annotations

import asyncio
import struct

import pytest

from loadmanager.dev.demo.data_protocol import MAX_BODY_BYTES, Frame, Kind, ProtocolError, encode, read_frame


def a_stream(*chunks: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    for chunk in chunks:
        reader.feed_data(chunk)
    reader.feed_eof()
    return reader


@pytest.mark.parametrize(
    "frame",
    [
        Frame(Kind.HELLO, body=b"127.0.0.1:8080#17"),
        Frame(Kind.SUBSCRIBE, 1, body="persistent://demo/orders/été".encode()),
        Frame(Kind.PUBLISH, 2**32 - 1, 2**64 - 1, 2**32 - 1, b"\0" * 1000),
        Frame(Kind.ACCEPTED, 3, 40, 10),
    ],
)
async def test_a_frame_survives_the_wire(frame: Frame) -> None:
    assert await read_frame(a_stream(encode(frame))) == frame


async def test_frames_follow_each_other_and_may_come_in_pieces() -> None:
    frames = [Frame(Kind.PUBLISH, 1, i, 1, b"abc") for i in range(3)]
    data = b"".join(map(encode, frames))
    reader = a_stream(data[:5], data[5:30], data[30:])
    assert [await read_frame(reader) for _ in frames] == frames
    assert await read_frame(reader) is None


@pytest.mark.parametrize("kept", [0, 3, 20, 22])
async def test_a_connection_that_ends_within_a_frame_ends_the_frames(kept: int) -> None:
    assert await read_frame(a_stream(encode(Frame(Kind.PUBLISH, 1, 2, 3, b"abc"))[:kept])) is None


async def test_an_unknown_kind_is_refused() -> None:
    data = bytearray(encode(Frame(Kind.HELLO)))
    data[4] = 99
    with pytest.raises(ProtocolError, match="99"):
        await read_frame(a_stream(bytes(data)))


async def test_an_announced_body_that_is_too_long_is_refused_before_it_is_read() -> None:
    with pytest.raises(ProtocolError, match=str(MAX_BODY_BYTES + 1)):
        await read_frame(a_stream(struct.pack(">IBIQI", MAX_BODY_BYTES + 1, Kind.PUBLISH, 1, 0, 1)))


def test_a_body_that_is_too_long_is_not_sent() -> None:
    with pytest.raises(ProtocolError):
        encode(Frame(Kind.PUBLISH, body=bytes(MAX_BODY_BYTES + 1)))
