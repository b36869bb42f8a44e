"""A client process: publishes and consumes many topics, and writes down what became of every message.

Run as `python -m loadmanager.dev.demo.demo_client CONFIG`. Each topic is looked up with `loadmanager.client`, its
subscriber is opened before its producer, and both move to the new owner when the topic moves. A batch that was not
acknowledged is published again there, so a message may arrive twice but none is forgotten without a trace.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from loadmanager.client import LookupClient
from loadmanager.dev.demo.data_protocol import BrokerConnection, ConnectionPool, Frame, Kind
from loadmanager.dev.demo.demo_settings import DemoWorkload, HotSpotFile
from loadmanager.dev.demo.demo_summary import TopicAccount
from loadmanager.dev.demo.evidence import DemoJournal, write_ready_file
from loadmanager.errors import LoadManagerError
from loadmanager.util import clock

SETTLE_TIMEOUT_S = 12.0
ACKNOWLEDGE_TIMEOUT_S = 3.0
_MAX_BATCH = 512
_MAX_UNACKNOWLEDGED_BATCHES = 16
_BATCH_AIM = 40
_TICK_BOUNDS_S = (0.1, 1.0)
_LOOKUP_TIMEOUT_S = 10.0
_PAUSE_BOUNDS_S = (0.25, 0.5)
"""Bounds of the pause after a failed lookup."""
_HOT_SPOT_INTERVAL_S = 0.25


@dataclass(frozen=True, slots=True)
class ClientServices:
    """Shared services of all topic clients of the process."""

    lookups: LookupClient
    pool: ConnectionPool
    journal: DemoJournal
    payload: bytes
    message_bytes: int


@dataclass(slots=True)
class _SentBatch:
    first: int
    messages: int
    sent_at_s: float | None = None


@dataclass(eq=False, slots=True)
class _Attachment:
    """A subscriber and a producer at the topic's owner."""

    connection: BrokerConnection
    broker_id: str
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    subscriber: int | None = None
    producer: int | None = None
    busy_since_s: float | None = None
    has_served: bool = False


@dataclass(frozen=True, slots=True)
class _Gap:
    """The topic has had no owner that we could use since `from_s`."""

    from_s: float
    cause: str
    instance: str


class TopicClient:
    """One topic: its producer, its subscriber, and the account of its messages."""

    def __init__(self, topic: str, rate: Callable[[], float], services: ClientServices) -> None:
        self.account = TopicAccount(topic)
        self.is_stopping = False
        self._topic = topic
        self._rate = rate
        self._services = services
        self._attachment: _Attachment | None = None
        self._unacknowledged: dict[int, _SentBatch] = {}
        self._due = 0.0
        self._gap: _Gap | None = None

    @property
    def owner(self) -> str | None:
        """The broker process that serves the topic for us."""
        return self._attachment.connection.instance if self._attachment is not None else None

    def is_settled(self) -> bool:
        """Tell if all published messages are acknowledged, and all that the present owner took are delivered."""
        owner = self.owner
        return owner is not None and not self._unacknowledged and not self.account.undelivered(owner)

    async def run(self) -> None:
        """Attach, produce, and attach again, until cancelled."""
        while True:
            try:
                await self._attach()
            except LoadManagerError:  # it is looked up again, as long as it takes
                await asyncio.sleep(random.uniform(*_PAUSE_BOUNDS_S))  # noqa: S311 - only jitter
            if self._attachment is not None:
                await self._produce(self._attachment)
                self._attachment = None

    async def _attach(self) -> None:
        """Try once to become attached to the owner."""
        lookups = self._services.lookups
        owner = await lookups.lookup(self._topic, _LOOKUP_TIMEOUT_S)
        connection = None if owner.broker_url is None else await self._services.pool.find(owner.broker_url)
        if connection is None:
            lookups.refused(self._topic, owner.broker_id)
            return
        attachment = _Attachment(connection, owner.broker_id)
        on_frame = self._frame_handler(attachment)
        attachment.subscriber = await connection.open_channel(Kind.SUBSCRIBE, self._topic, on_frame)
        if attachment.subscriber is not None:
            attachment.producer = await connection.open_channel(Kind.PRODUCE, self._topic, on_frame)
        if attachment.producer is None:
            lookups.refused(self._topic, owner.broker_id)
        elif not attachment.lost.is_set():
            self._attachment = attachment

    async def _produce(self, attachment: _Attachment) -> None:
        """Publish until the attachment is lost; first of all what is not acknowledged yet, or else a new message."""
        then_s = clock.now_s()
        for batch in self._unacknowledged.values():
            batch.sent_at_s = None
        if not self._unacknowledged and (self._gap is not None or not self.is_stopping):
            self._due = max(self._due, 1.0)
            self._publish(attachment, then_s)
        while not attachment.lost.is_set():
            now_s, rate = clock.now_s(), self._rate()
            self._due = min(self._due + rate * (now_s - then_s), max(rate, 1.0) + _BATCH_AIM)
            then_s = now_s
            self._send_unsent(attachment, now_s)
            if not self.is_stopping and len(self._unacknowledged) < _MAX_UNACKNOWLEDGED_BATCHES:
                self._publish(attachment, now_s)
            if self._is_acknowledgement_overdue(now_s):
                attachment.connection.close()
            shortest_s, longest_s = _TICK_BOUNDS_S
            tick_s = min(max(_BATCH_AIM / max(rate, 1e-9), shortest_s), longest_s)
            await _wait(attachment.lost, tick_s)

    def _publish(self, attachment: _Attachment, now_s: float) -> None:
        messages = min(int(self._due), _MAX_BATCH)
        if messages:
            self._due -= messages
            batch = self._unacknowledged[self.account.published] = _SentBatch(self.account.published, messages)
            self.account.published += messages
            self._send(attachment, batch, now_s)

    def _send_unsent(self, attachment: _Attachment, now_s: float) -> None:
        for batch in self._unacknowledged.values():
            if batch.sent_at_s is None:
                self._send(attachment, batch, now_s)

    def _send(self, attachment: _Attachment, batch: _SentBatch, now_s: float) -> None:
        assert attachment.producer is not None, "publishing starts once the producer is open"
        body = self._services.payload[: batch.messages * self._services.message_bytes]
        batch.sent_at_s = now_s
        attachment.connection.send(Frame(Kind.PUBLISH, attachment.producer, batch.first, batch.messages, body))

    def _is_acknowledgement_overdue(self, now_s: float) -> bool:
        oldest = next(iter(self._unacknowledged.values()), None)
        sent_at_s = oldest.sent_at_s if oldest is not None else None
        return sent_at_s is not None and now_s - sent_at_s > ACKNOWLEDGE_TIMEOUT_S

    def _frame_handler(self, attachment: _Attachment) -> Callable[[Frame], None]:
        def on_frame(frame: Frame) -> None:
            match frame.kind:
                case Kind.MESSAGES:
                    self._on_messages(attachment, frame)
                case Kind.ACCEPTED:
                    self._on_accepted(attachment, frame)
                case Kind.BUSY:
                    self._on_busy(attachment, frame)
                case Kind.CLOSED:
                    self._on_closed(attachment, frame.text)

        return on_frame

    def _on_messages(self, attachment: _Attachment, frame: Frame) -> None:
        attachment.connection.send(Frame(Kind.RECEIVED, frame.channel, frame.first, frame.messages))
        self.account.deliver(frame.first, frame.messages)
        self._end_gap(attachment)

    def _on_accepted(self, attachment: _Attachment, frame: Frame) -> None:
        self._unacknowledged.pop(frame.first, None)
        self.account.acknowledge(attachment.connection.instance, frame.first, frame.messages)
        attachment.busy_since_s = None
        self._end_gap(attachment)

    def _on_busy(self, attachment: _Attachment, frame: Frame) -> None:
        if frame.first in self._unacknowledged:
            self._unacknowledged[frame.first].sent_at_s = None
        if attachment.busy_since_s is None:
            attachment.busy_since_s = clock.now_s()

    def _on_closed(self, attachment: _Attachment, cause: str) -> None:
        if attachment.lost.is_set():
            return
        attachment.lost.set()
        self._services.lookups.refused(self._topic, attachment.broker_id)
        for channel in (attachment.subscriber, attachment.producer):
            if channel is not None:
                attachment.connection.forget(channel)
        if self._gap is None and (attachment.has_served or attachment is self._attachment):
            # A broker that refused messages just before it closed the topic was of no use from then on.
            from_s = attachment.busy_since_s if attachment.busy_since_s is not None else clock.now_s()
            self._gap = _Gap(from_s, cause, attachment.connection.instance)

    def _end_gap(self, attachment: _Attachment) -> None:
        attachment.has_served = True
        if self._gap is None or attachment.lost.is_set():
            return
        gap, self._gap = self._gap, None
        self._services.journal.append(
            {
                "event": "gap",
                "topic": self._topic,
                "from_s": gap.from_s,
                "to_s": clock.now_s(),
                "cause": gap.cause,
                "from_instance": gap.instance,
                "to_instance": attachment.connection.instance,
            }
        )


@dataclass(frozen=True, slots=True)
class ClientConfig:
    index: int
    processes: int
    node_urls: list[str]
    workload: DemoWorkload
    hot_spot_file: Path
    journal_file: Path
    ready_file: Path

    def to_json(self) -> str:
        return json.dumps(asdict(self), default=str)

    @classmethod
    def of_json(cls, text: str) -> ClientConfig:
        fields: dict[str, Any] = json.loads(text)
        traffic = fields.pop("workload")
        namespaces = tuple(traffic.pop("namespaces"))
        fields |= {name: Path(fields[name]) for name in ("hot_spot_file", "journal_file", "ready_file")}
        return cls(workload=DemoWorkload(namespaces=namespaces, **traffic), **fields)


class ClientProcess:
    """All topics of one process, and their final accounts."""

    def __init__(self, config: ClientConfig, lookups: LookupClient, journal: DemoJournal) -> None:
        self._config = config
        self._journal = journal
        self._pool = ConnectionPool()
        self._hot: tuple[int, ...] = ()
        workload = config.workload
        services = ClientServices(
            lookups=lookups,
            pool=self._pool,
            journal=journal,
            payload=os.urandom(_MAX_BATCH * workload.message_bytes),
            message_bytes=workload.message_bytes,
        )
        self._topics = [
            TopicClient(name, self._rate_of(i), services)
            for i, name in enumerate(workload.topic_names())
            if i % config.processes == config.index
        ]

    async def run(self, stopped: asyncio.Event) -> None:
        """Produce and consume until `stopped`, then let everything arrive, and write the account."""
        tasks = [asyncio.create_task(topic.run()) for topic in self._topics]
        tasks.append(asyncio.create_task(self._follow_hot_spot()))
        write_ready_file(self._config.ready_file, {"pid": os.getpid()})
        await first_of(asyncio.create_task(stopped.wait()), *tasks)
        for topic in self._topics:
            topic.is_stopping = True
        await self._settle()
        for topic in self._topics:
            now_s = clock.now_s()
            self._journal.append({"event": "account", "at_s": now_s, "owner": topic.owner, **topic.account.to_record()})
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pool.close()

    async def _settle(self) -> None:
        deadline_s = clock.now_s() + SETTLE_TIMEOUT_S
        while clock.now_s() < deadline_s:
            if all(topic.is_settled() for topic in self._topics):
                return
            await asyncio.sleep(_TICK_BOUNDS_S[0])

    def _rate_of(self, index: int) -> Callable[[], float]:
        return lambda: self._config.workload.rates(self._hot)[index]

    async def _follow_hot_spot(self) -> None:
        hot_spot = HotSpotFile(self._config.hot_spot_file)
        while True:
            self._hot = hot_spot.read()
            await asyncio.sleep(_HOT_SPOT_INTERVAL_S)


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        pass


async def run(config: ClientConfig) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    with DemoJournal(config.journal_file) as journal:
        async with LookupClient(config.node_urls) as lookups:
            await ClientProcess(config, lookups, journal).run(stopped)


async def first_of(awaited: asyncio.Task[Any], *others: asyncio.Task[Any]) -> None:
    """Return when `awaited` has ended, or raise the error of whichever task failed before."""
    done, _ = await asyncio.wait((awaited, *others), return_when=asyncio.FIRST_COMPLETED)
    awaited.cancel()
    for task in done:
        task.result()


if __name__ == "__main__":
    asyncio.run(run(ClientConfig.of_json(Path(sys.argv[1]).read_text(encoding="utf-8"))))
