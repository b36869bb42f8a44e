"""A client's connections to brokers: one per broker, shared by all topics of the process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from urllib.parse import urlsplit

from loadmanager.dev.demo.data_protocol import MAX_BODY_BYTES, Frame, Kind, ProtocolError, encode, read_frame

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
