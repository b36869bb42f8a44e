"""Process with producers and consumers of Pulsar's own client, which numbers and tracks each message.

`python -m examples.pulsar.load SERVICE_URL FILE`; the file is a JSON object with messages per second by topic. Each
second the process prints a line of JSON: the messages sent, acknowledged and received so far. At the end of its input
it stops sending, waits for in-flight messages, and prints the totals (`outcome`) as its last line.

Each topic has one producer, one consumer and its own counts. An acknowledged message that is never received is lost.
One that is received twice is a duplicate; Pulsar's clients produce duplicates when they reconnect. A stall is a time in
which a topic accepted no message: the wait of the first message that had to wait.
"""

from __future__ import annotations

import heapq
import json
import os
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulsar

_MESSAGE_BYTES = 1024
_STALL_S = 0.25
"""Wait above which a message counts as stalled. Shorter waits are the work of the bookie."""
_LATE_S = 1.0
"""Delay above which a topic skips messages instead of catching up, which would be another load."""
_PRINT_EVERY_S = 1.0
_SETTLE_TIMEOUT_S = 60.0
"""Maximum wait for in-flight messages at the end."""


@dataclass(slots=True)
class TopicLoad:
    """Messages of one topic, numbered from 0."""

    name: str
    period_s: float
    sent: int = 0
    refused: int = 0
    acknowledged: set[int] = field(default_factory=set)
    acknowledgements: int = 0
    received: set[int] = field(default_factory=set)
    receipts: int = 0
    stalls: list[tuple[float, float]] = field(default_factory=list)
    """Begin of each stall in seconds since 1970, and its duration in seconds."""
    producer: Any = None

    def send(self) -> None:
        """Send one more message, which is acknowledged later."""
        number, at_s = self.sent, time.time()
        self.sent += 1
        content = number.to_bytes(8, "big").ljust(_MESSAGE_BYTES, b".")
        try:
            self.producer.send_async(content, lambda result, _: self._on_answer(number, at_s, result))
        except pulsar.PulsarException:  # too many in-flight messages for the client
            self.refused += 1

    def receive(self, consumer: Any, message: Any) -> None:  # noqa: ANN401 - the client has no types
        number = int.from_bytes(message.data()[:8], "big")
        self.receipts += 1
        self.received.add(number)
        consumer.acknowledge(message)

    def is_settled(self) -> bool:
        """Tell if all sent messages were answered, and all acknowledged ones were received."""
        return self.acknowledgements + self.refused == self.sent and not self.lost()

    def lost(self) -> int:
        return len(self.acknowledged - self.received)

    def outcome(self) -> dict[str, object]:
        duplicates = self.receipts - len(self.received)
        counts = {"sent": self.sent, "acknowledged": self.acknowledgements, "refused": self.refused}
        return {**counts, "received": len(self.received), "lost": self.lost(), "duplicates": duplicates}

    def _on_answer(self, number: int, sent_s: float, result: Any) -> None:  # noqa: ANN401 - as above
        if result != pulsar.Result.Ok:
            self.refused += 1
            return
        self.acknowledgements += 1
        self.acknowledged.add(number)
        now_s = time.time()
        if now_s - sent_s > _STALL_S and (not self.stalls or sent_s > sum(self.stalls[-1])):
            self.stalls.append((sent_s, now_s - sent_s))


class Load:
    """All topics of one process."""

    def __init__(self, service_url: str, rates: dict[str, float], log: Path) -> None:
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(log))  # its console is our output
        self._client = pulsar.Client(service_url, logger=logger, operation_timeout_seconds=60)
        self._topics = [TopicLoad(name, 1 / rate) for name, rate in rates.items()]
        self._ended = threading.Event()

    def connect(self) -> None:
        for topic in self._topics:
            self._client.subscribe(
                topic.name,
                "load",
                message_listener=topic.receive,
                initial_position=pulsar.InitialPosition.Earliest,
            )
            topic.producer = self._client.create_producer(
                topic.name, batching_enabled=True, batching_max_publish_delay_ms=5, max_pending_messages=20_000
            )

    def send_until_ended(self) -> None:
        """Send at each topic's rate, and print the counts, until the input ends."""
        start_s = time.monotonic()
        due = [(start_s + topic.period_s * i / len(self._topics), i) for i, topic in enumerate(self._topics)]
        heapq.heapify(due)
        printed_s = start_s
        while not self._ended.is_set():
            now_s = time.monotonic()
            if now_s - printed_s >= _PRINT_EVERY_S:
                printed_s = now_s
                self._print_counts()
            at_s, i = due[0]
            if at_s > now_s:
                self._ended.wait(min(at_s - now_s, _PRINT_EVERY_S))
                continue
            self._topics[i].send()
            at_s = now_s if now_s - at_s > _LATE_S else at_s
            heapq.heapreplace(due, (at_s + self._topics[i].period_s, i))

    def end(self) -> None:
        self._ended.set()

    def settle(self) -> None:
        """Wait for in-flight messages."""
        deadline_s = time.monotonic() + _SETTLE_TIMEOUT_S
        while time.monotonic() < deadline_s and not all(topic.is_settled() for topic in self._topics):
            time.sleep(0.1)

    def outcome(self) -> dict[str, object]:
        """Return totals, figures by topic, and all stalls: topic, begin in seconds since 1970, and seconds."""
        topics = {topic.name: topic.outcome() for topic in self._topics}
        totals = {key: sum(int(str(each[key])) for each in topics.values()) for key in next(iter(topics.values()))}
        stalls = [(topic.name, *stall) for topic in self._topics for stall in topic.stalls]
        return {**totals, "stalls": stalls, "topics": topics}

    def _print_counts(self) -> None:
        sent = sum(topic.sent for topic in self._topics)
        acknowledged = sum(topic.acknowledgements for topic in self._topics)
        received = sum(topic.receipts for topic in self._topics)
        _print_line({"at_s": time.time(), "sent": sent, "acknowledged": acknowledged, "receipts": received})


def _print_line(content: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


def _end_with_input(load: Load) -> None:
    while sys.stdin.buffer.read(4096):
        pass
    load.end()


def main(service_url: str, file: str) -> None:
    path = Path(file)
    load = Load(service_url, json.loads(path.read_text(encoding="utf-8")), path.with_suffix(".log"))
    threading.Thread(target=_end_with_input, args=(load,), daemon=True).start()
    load.connect()
    load.send_until_ended()
    load.settle()
    _print_line({"outcome": load.outcome()})
    os._exit(0)  # the client's threads would delay the exit


if __name__ == "__main__":
    main(*sys.argv[1:])
