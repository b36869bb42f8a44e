"""Data protocol between the demo's clients and brokers, and a client's connections: one per broker.

Frames go over TCP, with batches of numbered messages in a frame.

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
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import urlsplit

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


CONNECT_TIMEOUT_S = 2.0
OPEN_TIMEOUT_S = 8.0
OnFrame = Callable[[Frame], None]


class BrokerConnection:
    """Frames of many channels on one connection. `instance` is the name of the broker's process."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, instance: str) -> None:
        self.instance = instance
        self._reader = reader
        self._writer = writer
        self._handlers: dict[int, OnFrame] = {}
        self._openings: dict[int, asyncio.Future[bool]] = {}
        self._last_channel = 0
        self._task = asyncio.create_task(self._read())

    @classmethod
    async def connect(cls, url: str) -> BrokerConnection | None:
        """A connection on which the broker said who it is; None when nobody is there."""
        address = urlsplit(url)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=MAX_BODY_BYTES)
                hello = await read_frame(reader)
        except (OSError, TimeoutError, ProtocolError):
            return None
        if hello is None or hello.kind is not Kind.HELLO:
            writer.close()
            return None
        return cls(reader, writer, hello.text)

    @property
    def is_closed(self) -> bool:
        return self._task.done()

    async def open_channel(self, kind: Kind, topic: str, on_frame: OnFrame) -> int | None:
        """The number of the new channel; None when the broker refuses, or is gone."""
        if self.is_closed:
            return None
        self._last_channel += 1
        number = self._last_channel
        opening = self._openings[number] = asyncio.get_running_loop().create_future()
        self._handlers[number] = on_frame
        self.send(Frame(kind, number, body=topic.encode()))
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                opened = await opening
        except TimeoutError:
            self.close()  # a late OPENED would leave a subscriber behind that confirms nothing
            opened = False
        finally:
            self._openings.pop(number, None)
        if not opened:
            self.forget(number)
        return number if opened else None

    def forget(self, channel: int) -> None:
        """Frames of this channel are of no interest any more."""
        self._handlers.pop(channel, None)

    def send(self, frame: Frame) -> None:
        if not self._writer.is_closing():
            self._writer.write(encode(frame))

    def close(self) -> None:
        self._task.cancel()

    async def _read(self) -> None:
        try:
            while (frame := await read_frame(self._reader)) is not None:
                self._dispatch(frame)
        except ProtocolError:
            pass  # as good as gone
        finally:
            self._writer.close()
            for opening in self._openings.values():
                if not opening.done():
                    opening.set_result(False)
            for channel, on_frame in list(self._handlers.items()):
                on_frame(Frame(Kind.CLOSED, channel, body=b"disconnected"))

    def _dispatch(self, frame: Frame) -> None:
        opening = self._openings.get(frame.channel)
        if opening is not None and not opening.done():
            opening.set_result(frame.kind is Kind.OPENED)
        elif frame.channel in self._handlers:
            self._handlers[frame.channel](frame)


class ConnectionPool:
    """At most one connection to each broker; those who want it at the same time wait for the same attempt."""

    def __init__(self) -> None:
        self._attempts: dict[str, asyncio.Task[BrokerConnection | None]] = {}

    async def find(self, url: str) -> BrokerConnection | None:
        """An open connection, or None when the broker cannot be reached."""
        attempt = self._attempts.get(url)
        if attempt is None or (attempt.done() and not _is_open(attempt.result())):
            attempt = self._attempts[url] = asyncio.create_task(BrokerConnection.connect(url))
        return await asyncio.shield(attempt)

    def close(self) -> None:
        for attempt in self._attempts.values():
            connection = attempt.result() if attempt.done() else None
            if connection is not None:
                connection.close()
            attempt.cancel()


def _is_open(connection: BrokerConnection | None) -> bool:
    return connection is not None and not connection.is_closed
