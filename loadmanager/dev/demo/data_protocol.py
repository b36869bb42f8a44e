"""The data protocol between the demo's clients and brokers: frames over TCP, batches of numbered messages in a frame.

A frame is a header of 21 bytes, big-endian, and a body:

    length of the body  u32 | kind  u8 | channel  u32 | first  u64 | messages  u32 | body

A channel is a number the client chooses; it stands for one producer or one subscriber of one topic on this connection.
`first` and `messages` name the messages `first .. first + messages - 1`; the body of a batch is their payloads, one
after the other. Where a frame has no use for a field it is 0.

    HELLO      broker → client   once, at the start; the body names the broker's process
    SUBSCRIBE  client → broker   open a subscriber on the channel; the body is the topic
    PRODUCE    client → broker   open a producer on the channel; the body is the topic
    OPENED     broker → client   the channel is open
    REFUSED    broker → client   it is not; the body is the reason
    PUBLISH    client → broker   a batch
    ACCEPTED   broker → client   this batch is the broker's to deliver now
    BUSY       broker → client   this batch was not taken; send it again
    MESSAGES   broker → client   a batch for a subscriber
    RECEIVED   client → broker   the subscriber has it
    CLOSED     broker → client   the broker does not serve the topic any more; the body is the reason
"""

from __future__ import annotations

import asyncio
import enum
import struct
from typing import NamedTuple

_HEADER = struct.Struct(">IBIQI")
MAX_BODY_BYTES = 1 << 22


class Kind(enum.IntEnum):
    HELLO = 1
    SUBSCRIBE = 2
    PRODUCE = 3
    OPENED = 4
    REFUSED = 5
    PUBLISH = 6
    ACCEPTED = 7
    BUSY = 8
    MESSAGES = 9
    RECEIVED = 10
    CLOSED = 11


class ChannelCloseReason(enum.StrEnum):
    """Reason why a broker refuses or closes a topic."""

    NOT_OWNER = "not_owner"
    UNLOADED = "unloaded"
    LEASE_LAPSED = "lease_lapsed"
    SHUTDOWN = "shutdown"
    LEFT = "left"


class ProtocolError(Exception):
    """The other side sent what no frame is; the connection is of no further use."""


class Frame(NamedTuple):
    kind: Kind
    channel: int = 0
    first: int = 0
    messages: int = 0
    body: bytes = b""

    @property
    def text(self) -> str:
        return self.body.decode()


def encode(frame: Frame) -> bytes:
    if len(frame.body) > MAX_BODY_BYTES:
        raise ProtocolError(f"a body of {len(frame.body)} bytes; at most {MAX_BODY_BYTES} fit into a frame")
    return _HEADER.pack(len(frame.body), frame.kind, frame.channel, frame.first, frame.messages) + frame.body


async def read_frame(reader: asyncio.StreamReader) -> Frame | None:
    """The next frame; None once the connection has ended, in the middle of a frame or not."""
    try:
        length, kind, channel, first, messages = _HEADER.unpack(await reader.readexactly(_HEADER.size))
        if length > MAX_BODY_BYTES:
            raise ProtocolError(f"a frame announces {length} bytes; at most {MAX_BODY_BYTES} are allowed")
        body = await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    try:
        return Frame(Kind(kind), channel, first, messages, body)
    except ValueError:
        raise ProtocolError(f"unknown kind of frame {kind}") from None
