"""Summary and verdict of a demo run, computed from the evidence that its processes left.

Every message number ends in exactly one place: delivered, lost with a broker process that was killed, dropped by one
that said so (its lease lapsed, or its drain took too long), never acknowledged, or unaccounted for, which must not be.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from loadmanager.dev.demo.busy_machine import TOO_BUSY
from loadmanager.dev.demo.data_protocol import ChannelCloseReason
from loadmanager.dev.demo.evidence import Overlap

MOVED = "moved"
BROKER_KILLED = "broker_killed"
_MOST_TOLD = 5


@dataclass(frozen=True, slots=True)
class MessageSummary:
    """Counts of distinct messages, except `duplicates`: deliveries of a message beyond its first."""

    published: int
    acknowledged: int
    delivered: int
    duplicates: int
    lost_with_killed_broker: int
    dropped_by_broker: int
    never_acknowledged: int
    unaccounted: int


def summarize_messages(
    accounts: Iterable[TopicAccount], killed: Iterable[str], dropped: Mapping[tuple[str, str], NumberRanges]
) -> MessageSummary:
    """`killed` names broker processes; `dropped` is what a process (topic, instance) says it accepted and dropped."""
    counts = dict.fromkeys(MessageSummary.__slots__, 0)
    killed = frozenset(killed)
    for account in accounts:
        published = NumberRanges([(0, account.published)])
        acknowledged = NumberRanges()
        lost = NumberRanges()
        said_dropped = NumberRanges()
        for instance, ranges in account.acknowledged.items():
            acknowledged = acknowledged.union(ranges)
            missing = ranges.difference(account.delivered)
            if instance in killed:
                lost = lost.union(missing)
            elif (account.topic, instance) in dropped:
                said_dropped = said_dropped.union(missing.intersection(dropped[account.topic, instance]))
        said_dropped = said_dropped.difference(lost)
        missing = acknowledged.difference(account.delivered)
        counts["published"] += len(published)
        counts["acknowledged"] += len(acknowledged)
        counts["delivered"] += len(account.delivered)
        counts["duplicates"] += account.duplicates
        counts["lost_with_killed_broker"] += len(lost)
        counts["dropped_by_broker"] += len(said_dropped)
        counts["never_acknowledged"] += len(published.difference(acknowledged).difference(account.delivered))
        # Delivered numbers that were never published would be as wrong as missing ones.
        unknown = len(missing.difference(lost).difference(said_dropped)) + len(account.delivered.difference(published))
        counts["unaccounted"] += unknown
    return MessageSummary(**counts)


def dropped_ranges(serving_records: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], NumberRanges]:
    dropped: dict[tuple[str, str], NumberRanges] = defaultdict(NumberRanges)
    for record in serving_records:
        if record["event"] == "dropped":
            for start, end in record["ranges"]:
                dropped[record["topic"], record["instance"]].add(start, end)
    return dict(dropped)


@dataclass(frozen=True, slots=True)
class GapSummary:
    """Seconds during which topics had no owner that their clients could use, for one cause."""

    gaps: int
    topics: int
    p50_s: float
    p99_s: float
    max_s: float


def summarize_gaps(gaps: Iterable[Mapping[str, Any]], killed: Iterable[str]) -> dict[str, GapSummary]:
    """By cause; a connection that broke because the broker process was in `killed` has that cause."""
    killed = frozenset(killed)
    durations: dict[str, list[float]] = defaultdict(list)
    topics: dict[str, set[str]] = defaultdict(set)
    for gap in gaps:
        cause = gap["cause"]
        if cause == ChannelCloseReason.UNLOADED:
            cause = MOVED
        elif gap["from_instance"] in killed:
            cause = BROKER_KILLED
        durations[cause].append(gap["to_s"] - gap["from_s"])
        topics[cause].add(gap["topic"])
    return {
        cause: GapSummary(
            len(found), len(topics[cause]), percentile(found, 50), percentile(found, 99), round(max(found), 3)
        )
        for cause, found in sorted(durations.items())
    }


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest of the values that at least `percent` per cent of them do not exceed."""
    ordered = sorted(values)
    return round(ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)], 3)


@dataclass(frozen=True, slots=True)
class RateSample:
    """Messages per second, in and out, of each broker that was alive, at a moment of the clock of leases."""

    at_s: float
    by_broker: Mapping[str, float]


def imbalance(samples: Iterable[RateSample], from_s: float, to_s: float) -> float | None:
    """The busiest broker's mean rate over the mean of all brokers' in a window; None without traffic in it.

    Only brokers that were alive through the whole window count.
    """
    window = [sample.by_broker for sample in samples if from_s <= sample.at_s < to_s]
    if not window:
        return None
    alive = frozenset.intersection(*(frozenset(rates) for rates in window))
    totals = [sum(rates[broker] for rates in window) for broker in sorted(alive)]
    return round(max(totals) * len(totals) / sum(totals), 3) if sum(totals) > 0 else None


@dataclass(frozen=True, slots=True)
class LeaderFailover:
    """`to_next_assignment_s`: from SIGKILL of the leader until a fresh bundle had an owner, of a later epoch."""

    epoch_before: int
    epoch_after: int
    to_next_assignment_s: float


@dataclass(frozen=True, slots=True)
class DemoSummary:
    """Everything `loadmanager demo --json` prints. The script was not completed when it was interrupted."""

    was_completed: bool
    duration_s: float
    brokers: int
    topics: int
    imbalance: Mapping[str, float | None]
    bundles_moved: int
    gaps: Mapping[str, GapSummary]
    leader_failover: LeaderFailover | None
    messages: MessageSummary
    two_owners: Sequence[Overlap]
    topics_without_owner: Sequence[str]
    died_unexpectedly: Sequence[str]
    machine_too_busy: bool = False

    @property
    def failures(self) -> list[str]:
        """All failures; empty for a good run."""
        return [*self._broken, *self._not_in_time]

    @property
    def told_failures(self) -> list[str]:
        """Those to be shown to people: of a machine that is too busy one says what was not done in time."""
        late = self._not_in_time
        if not self.machine_too_busy or not late:
            more = [f"and {len(late) - _MOST_TOLD} more of the kind: see --json"] if len(late) > _MOST_TOLD else []
            return [*self._broken, *late[:_MOST_TOLD], *more]
        because = f"{TOO_BUSY}, so not all was done in time ({len(late)} findings, with --json)"
        return [*self._broken, f"{because}: have it do less, or run the demo with a longer --duration"]

    @property
    def _broken(self) -> list[str]:
        """Failures that a busy machine does not excuse."""
        return [
            *(f"{o.topic} had two owners for {o.overlap_s:.3f} s: {o.first}, {o.second}" for o in self.two_owners),
            *([f"{self.messages.unaccounted} messages are unaccounted for"] if self.messages.unaccounted else []),
        ]

    @property
    def _not_in_time(self) -> list[str]:
        messages = self.messages
        return [
            *(f"{topic} ended without an owner" for topic in self.topics_without_owner),
            *(f"{name} ended by itself" for name in self.died_unexpectedly),
            *([f"{messages.never_acknowledged} messages were never taken"] if messages.never_acknowledged else []),
            *(["no message was delivered"] if self.was_completed and not messages.delivered else []),
            *(["nobody took over from the leader"] if self.was_completed and self.leader_failover is None else []),
        ]

    def to_record(self) -> dict[str, Any]:
        return {"ok": not self.failures, "failures": self.failures, **asdict(self)}


class NumberRanges:
    """A set of numbers; each range is `[start, end)`."""

    def __init__(self, ranges: Iterable[Iterable[int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in ranges:
            self.add(start, end)

    def add(self, start: int, end: int) -> int:
        """Add the numbers `start .. end - 1`; how many of them were not there before."""
        if end <= start:
            return 0
        left = bisect_left(self._ends, start)
        right = bisect_right(self._starts, end)
        touched = sum(self._ends[i] - self._starts[i] for i in range(left, right))
        if left < right:
            start = min(start, self._starts[left])
            end = max(end, self._ends[right - 1])
        self._starts[left:right] = [start]
        self._ends[left:right] = [end]
        return end - start - touched

    def union(self, other: NumberRanges) -> NumberRanges:
        return NumberRanges([*self, *other])

    def difference(self, other: NumberRanges) -> NumberRanges:
        """The numbers that are not in `other`."""
        rest = NumberRanges()
        for start, end in self:
            begin = start
            for other_start, other_end in other.overlapping(start, end):
                rest.add(begin, other_start)
                begin = max(begin, other_end)
            rest.add(begin, end)
        return rest

    def intersection(self, other: NumberRanges) -> NumberRanges:
        return self.difference(self.difference(other))

    def overlapping(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The ranges that share a number with `[start, end)`, in order."""
        for i in range(bisect_right(self._ends, start), bisect_left(self._starts, end)):
            yield self._starts[i], self._ends[i]

    def as_lists(self) -> list[list[int]]:
        return [[start, end] for start, end in self]

    def __len__(self) -> int:
        return sum(self._ends) - sum(self._starts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._starts, self._ends, strict=True))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NumberRanges) and list(self) == list(other)

    def __repr__(self) -> str:
        return f"NumberRanges({list(self)})"

    __hash__ = None  # type: ignore[assignment]  # it changes, so it must not be a key


@dataclass(slots=True)
class TopicAccount:
    """Messages `0 .. published - 1` were sent at least once. `acknowledged` is by the broker process that took them."""

    topic: str
    published: int = 0
    acknowledged: dict[str, NumberRanges] = field(default_factory=dict)
    delivered: NumberRanges = field(default_factory=NumberRanges)
    duplicates: int = 0

    def acknowledge(self, instance: str, first: int, messages: int) -> None:
        self.acknowledged.setdefault(instance, NumberRanges()).add(first, first + messages)

    def deliver(self, first: int, messages: int) -> None:
        self.duplicates += messages - self.delivered.add(first, first + messages)

    def undelivered(self, instance: str) -> NumberRanges:
        """Return the numbers that this broker process took and nobody received."""
        return self.acknowledged.get(instance, NumberRanges()).difference(self.delivered)

    def to_record(self) -> dict[str, object]:
        return {
            "topic": self.topic,
            "published": self.published,
            "acknowledged": {instance: ranges.as_lists() for instance, ranges in self.acknowledged.items()},
            "delivered": self.delivered.as_lists(),
            "duplicates": self.duplicates,
        }

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> TopicAccount:
        acknowledged = {instance: NumberRanges(ranges) for instance, ranges in record["acknowledged"].items()}
        delivered = NumberRanges(record["delivered"])
        return cls(record["topic"], record["published"], acknowledged, delivered, record["duplicates"])
