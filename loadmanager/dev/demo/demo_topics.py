"""One open topic of a broker: its channels, the messages it has accepted and not yet delivered, and its counters."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from loadmanager.broker import Topic as Hosted
from loadmanager.dev.demo.data_protocol import ChannelCloseReason, Frame, Kind
from loadmanager.dev.demo.number_ranges import NumberRanges

Clock = Callable[[], float]

MAX_RETAINED_BYTES = 8 << 20
"""A topic with more than this to deliver takes no further message."""


class ClientConnection(Protocol):
    """A client's connection."""

    def send(self, frame: Frame) -> None: ...

    def is_congested(self) -> bool:
        """Tell if the client reads more slowly than the broker writes."""
        ...


@dataclass(eq=False, frozen=True, slots=True)
class Channel:
    """One producer or subscriber of a topic: a number on a client's connection."""

    link: ClientConnection
    number: int

    def send(self, kind: Kind, first: int = 0, count: int = 0, body: bytes = b"") -> None:
        self.link.send(Frame(kind, self.number, first, count, body))


@dataclass(eq=False, slots=True)
class _TopicBatch:
    first: int
    count: int
    body: bytes
    unconfirmed: set[Channel] = field(default_factory=set)
    was_received: bool = False


class DemoTopic:
    """Accepts batches and delivers each to every subscriber; what nobody has confirmed yet is retained.

    A batch is gone once every subscriber it was sent to has confirmed it or left, and at least one has confirmed it.
    """

    def __init__(self, hosted: Hosted, clock: Clock) -> None:
        self.hosted = hosted
        self.is_closed = False
        self.drained = asyncio.Event()
        self.drained.set()
        self._clock = clock
        self.opened_at_s = self.last_served_s = clock()
        self._publishers: set[Channel] = set()
        self._subscribers: set[Channel] = set()
        self._retained: deque[_TopicBatch] = deque()
        self._retained_bytes = 0

    @property
    def name(self) -> str:
        return self.hosted.name

    @property
    def waiting(self) -> int:
        """The batches that are not delivered to everybody yet."""
        return len(self._retained)

    def attach_producer(self, channel: Channel) -> None:
        self._publishers.add(channel)
        self._count_channels()

    def attach_subscriber(self, channel: Channel) -> None:
        """Add a subscriber; it gets what is retained first."""
        self._subscribers.add(channel)
        self._count_channels()
        for batch in self._retained:
            self._deliver(batch, channel)

    def detach(self, channel: Channel) -> None:
        self._publishers.discard(channel)
        self._subscribers.discard(channel)
        self._count_channels()
        for batch in self._retained:
            batch.unconfirmed.discard(channel)
        self._forget_delivered()

    def accept(self, first: int, count: int, body: bytes) -> bool:
        """Take a batch and deliver it; False when it cannot be taken now."""
        full = self._retained_bytes + len(body) > MAX_RETAINED_BYTES
        congested = any(subscriber.link.is_congested() for subscriber in self._subscribers)
        if full or congested:
            return False
        batch = _TopicBatch(first, count, body)
        self._retained.append(batch)
        self._retained_bytes += len(body)
        self.drained.clear()
        self.hosted.messages_in += count
        self.hosted.bytes_in += len(body)
        for subscriber in self._subscribers:
            self._deliver(batch, subscriber)
        self.last_served_s = self._clock()
        return True

    def confirm(self, channel: Channel, first: int, count: int) -> None:
        """A subscriber has received a batch."""
        for batch in self._retained:
            if batch.first == first and batch.count == count and channel in batch.unconfirmed:
                batch.unconfirmed.discard(channel)
                batch.was_received = True
                break
        self._forget_delivered()

    def undelivered(self) -> NumberRanges:
        """The numbers that were accepted and that no subscriber has confirmed."""
        return NumberRanges(
            (batch.first, batch.first + batch.count) for batch in self._retained if not batch.was_received
        )

    def tell_closed(self, reason: ChannelCloseReason) -> None:
        for channel in self._publishers | self._subscribers:
            channel.send(Kind.CLOSED, body=reason.encode())

    def _deliver(self, batch: _TopicBatch, channel: Channel) -> None:
        batch.unconfirmed.add(channel)
        channel.send(Kind.MESSAGES, batch.first, batch.count, batch.body)
        self.hosted.messages_out += batch.count
        self.hosted.bytes_out += len(batch.body)
        self.last_served_s = self._clock()

    def _forget_delivered(self) -> None:
        kept = deque(batch for batch in self._retained if batch.unconfirmed or not batch.was_received)
        self._retained_bytes -= sum(len(b.body) for b in self._retained) - sum(len(b.body) for b in kept)
        self._retained = kept
        if not kept:
            self.drained.set()

    def _count_channels(self) -> None:
        self.hosted.producers, self.hosted.consumers = len(self._publishers), len(self._subscribers)
