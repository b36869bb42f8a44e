"""Topics that a demo broker serves. The kit decides which may be open; this module holds their content.

Every opening and closing goes into the serving log before anyone else can learn of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import structlog

from loadmanager.broker import CloseReason as Why
from loadmanager.broker import Closing, Health, Hosting, RefusedError
from loadmanager.broker import Topic as Hosted
from loadmanager.dev.demo.data_protocol import ChannelCloseReason, Frame, Kind
from loadmanager.dev.demo.demo_summary import NumberRanges
from loadmanager.dev.demo.evidence import DemoJournal
from loadmanager.util.clock import now_s

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


_MOST_KEPT = 10_000
_PERCENTILE = 99


class Vitals:
    """Counts publishes: how long each took, of the last ones, and how many could not be taken."""

    def __init__(self) -> None:
        self._took_s: deque[float] = deque(maxlen=_MOST_KEPT)
        self._done = 0
        self._refused = 0

    def published(self, took_s: float, *, taken: bool) -> None:
        self._took_s.append(took_s)
        self._done += 1
        self._refused += not taken

    def take(self, waiting: int) -> Health:
        """Return the figures and reset them; `waiting` batches are not delivered yet."""
        took_s, done, refused = list(self._took_s), self._done, self._refused
        self._took_s.clear()
        self._done = self._refused = 0
        if not done:
            return Health(queue=waiting)
        latency_ms = 1000 * float(np.percentile(took_s, _PERCENTILE))
        return Health(latency_ms=latency_ms, error_share=refused / done, queue=waiting)


log = structlog.get_logger(__name__)

VERSION = "demo-1"
DRAIN_TIMEOUT_S = 2.0
_REASONS = {
    Why.UNLOADED: ChannelCloseReason.UNLOADED,
    Why.LAPSED: ChannelCloseReason.LEASE_LAPSED,
    Why.ENDED: ChannelCloseReason.SHUTDOWN,
    Why.LEFT: ChannelCloseReason.LEFT,
}


def agent_in(agent_file: Path) -> Callable[[], str]:
    """Return a function that reads the agent's URL from a file, which may appear after the broker's start."""

    def find() -> str:
        agent = json.loads(agent_file.read_bytes())
        url: str = agent.get("localUrl") or agent["url"]
        return url

    return find


class TopicHost:
    """The open topics of one broker process; `instance` is its name in the serving log."""

    def __init__(
        self,
        agent: str | Callable[[], str],
        serving_log: DemoJournal,
        *,
        address: str = "127.0.0.1",
        port: int | None = None,
        clock: Clock = now_s,
    ) -> None:
        self.instance = ""
        self.vitals = Vitals()
        self.hosting = Hosting(
            agent,
            port=port,
            host=address,
            on_open=self._opened,
            on_close=self._close,
            health=self._health,
            version=VERSION,
            clock=clock,
        )
        self._serving_log = serving_log
        self._clock = clock
        self._topics: dict[str, DemoTopic] = {}

    async def find_or_open(self, name: str) -> DemoTopic | None:
        """The topic, opened if this broker owns it; None if it must not serve it."""
        try:
            await self.hosting.open(name)
        except (RefusedError, ValueError):
            return None
        return self._topics[name]

    def serves(self, topic: DemoTopic) -> bool:
        """Tell if this opening of the topic may be served now."""
        return self.hosting.serving(topic.name) is topic.hosted

    def _health(self) -> Health:
        return self.vitals.take(sum(topic.waiting for topic in self._topics.values()))

    async def _opened(self, hosted: Hosted) -> None:
        topic = self._topics[hosted.name] = DemoTopic(hosted, self._clock)
        self._record("opened", topic, at_s=topic.opened_at_s)

    async def _close(self, hosted: Hosted, closing: Closing) -> None:
        """With a lease what was accepted is delivered first, for a bounded time. Without one it is dropped at once, and
        the serving log says so.
        """
        topic = self._topics[hosted.name]
        if closing.reason is not Why.LAPSED:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_TIMEOUT_S):
                    await topic.drained.wait()
        # Without a lease nothing was served, so serving ended with the lease even if nobody could notice at once.
        # The last moment at which the topic did serve is the evidence that overrides that claim.
        now_s, reason = self._clock(), _REASONS[closing.reason]
        ended_at_s = max(topic.last_served_s, min(now_s, self.hosting.lease_until_s))
        del self._topics[topic.name]
        topic.is_closed = True
        self._record("closed", topic, at_s=ended_at_s, written_at_s=now_s, reason=reason, call=closing.call)
        if undelivered := topic.undelivered():
            self._record("dropped", topic, at_s=now_s, reason=reason, ranges=undelivered.as_lists())
        topic.tell_closed(reason)

    def _record(self, event: str, topic: DemoTopic, **more: object) -> None:
        incarnation = topic.hosted.incarnation
        self._serving_log.append(
            {"event": event, "topic": topic.name, "instance": self.instance, "incarnation": incarnation, **more}
        )
        log.debug("serving_changed", change=event, topic=topic.name, **more)
