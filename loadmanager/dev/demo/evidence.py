"""Logs of the demo's processes, as JSON lines, the ownership intervals computed from them, and the summary of a run.

A line is in the kernel when `append` returns. Overlapping intervals are double ownership.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from typing import Any


class DemoJournal(FileIO):
    """One log file, without a buffer; its lines survive a SIGKILL of the process."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "a")

    def append(self, record: Mapping[str, object]) -> None:
        self.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file, which may be missing. An incomplete last line is left out."""
    if not path.exists():
        return []
    *lines, _cut_off = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in lines]


def read_journals(paths: Iterable[Path]) -> list[dict[str, Any]]:
    return [record for path in paths for record in read_journal(path)]


def find_json(path: Path) -> Any:  # noqa: ANN401 - whatever JSON can hold
    """Return the content of a file that another process writes (`write_json`); None before its first write."""
    return json.loads(path.read_bytes()) if path.exists() else None


@dataclass(frozen=True, slots=True, order=True)
class ServingInterval:
    """Interval in which one broker process had a topic open. Times are on the clock of leases."""

    topic: str
    from_s: float
    to_s: float
    instance: str


@dataclass(frozen=True, slots=True)
class Overlap:
    """Double ownership: two broker processes served one topic at the same time, for `overlap_s`."""

    topic: str
    first: str
    second: str
    from_s: float
    overlap_s: float


def serving_intervals(records: Iterable[Mapping[str, Any]], ended_at_s: Mapping[str, float]) -> list[ServingInterval]:
    """Return the intervals in serving-log `records`.

    `ended_at_s` has the times at which broker processes were killed, which closed their topics. A topic that another
    process did not close is open for ever.
    """
    opened: dict[tuple[str, str], float] = {}
    intervals = []
    for record in records:
        key = record.get("topic", ""), record["instance"]
        if record["event"] == "opened":
            opened[key] = record["at_s"]
        elif record["event"] == "closed":
            intervals.append(ServingInterval(key[0], opened.pop(key), record["at_s"], key[1]))
    for (topic, instance), from_s in opened.items():
        intervals.append(ServingInterval(topic, from_s, ended_at_s.get(instance, math.inf), instance))
    return sorted(intervals)


def find_overlaps(intervals: Iterable[ServingInterval]) -> list[Overlap]:
    """Return the overlaps of intervals of different processes."""
    by_topic: dict[str, list[ServingInterval]] = defaultdict(list)
    for interval in sorted(intervals):
        by_topic[interval.topic].append(interval)
    overlaps = []
    for topic, history in by_topic.items():
        for i, later in enumerate(history):
            for earlier in history[:i]:
                overlap_s = min(earlier.to_s, later.to_s) - later.from_s
                if overlap_s > 0 and earlier.instance != later.instance:
                    overlaps.append(Overlap(topic, earlier.instance, later.instance, later.from_s, overlap_s))
    return overlaps


def topics_without_owner(
    topics: Iterable[str], accounts: Iterable[Mapping[str, Any]], intervals: Iterable[ServingInterval]
) -> list[str]:
    """Return the topics whose clients had no owner at the end, or one that did not serve the topic.

    The owner took the last batch between its sending and its answer, which a busy machine may delay. So a topic that
    moved in between has an owner.
    """
    serving = defaultdict(list)
    for interval in intervals:
        serving[interval.topic, interval.instance].append(interval)
    served = {
        account["topic"]
        for account in accounts
        if any(
            interval.from_s <= account["taken_at_s"] and account["sent_at_s"] <= interval.to_s
            for interval in serving[account["topic"], account["owner"]]
        )
    }
    return sorted(set(topics) - served)


MOVED = "moved"
BROKER_KILLED = "broker_killed"
SAME_BROKER = "same_broker"


@dataclass(frozen=True, slots=True)
class GapSummary:
    """Seconds for which batches waited for a new owner, for one cause."""

    gaps: int
    topics: int
    p50_s: float
    p99_s: float
    max_s: float


def summarize_gaps(gaps: Iterable[Mapping[str, Any]], killed: Iterable[str]) -> dict[str, GapSummary]:
    """Summarize gaps by cause; `killed` are the killed broker processes."""
    killed = frozenset(killed)
    durations: dict[str, list[float]] = defaultdict(list)
    topics: dict[str, set[str]] = defaultdict(set)
    for gap in gaps:
        before, after = gap["from_instance"], gap["to_instance"]
        cause = BROKER_KILLED if before in killed else SAME_BROKER if before == after else MOVED
        durations[cause].append(gap["to_s"] - gap["from_s"])
        topics[cause].add(gap["topic"])
    return {
        cause: GapSummary(
            len(found), len(topics[cause]), percentile(found, 50), percentile(found, 99), round(max(found), 3)
        )
        for cause, found in sorted(durations.items())
    }


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile."""
    ordered = sorted(values)
    return round(ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)], 3)


@dataclass(frozen=True, slots=True)
class RateSample:
    """Messages per second of each live broker at a time on the clock of leases."""

    at_s: float
    by_broker: Mapping[str, float]


def imbalance(samples: Iterable[RateSample], from_s: float, to_s: float) -> float | None:
    """Return the highest divided by the mean of the brokers' mean rates in a window; None without traffic.

    Only brokers that were alive during the whole window count.
    """
    window = [sample.by_broker for sample in samples if from_s <= sample.at_s < to_s]
    if not window:
        return None
    alive = frozenset.intersection(*(frozenset(rates) for rates in window))
    totals = [sum(rates[broker] for rates in window) for broker in sorted(alive)]
    return round(max(totals) * len(totals) / sum(totals), 3) if sum(totals) > 0 else None


@dataclass(frozen=True, slots=True)
class DemoSummary:
    """Output of `loadmanager demo --json`. `was_completed` is False if the script was interrupted.

    `leader_failover_s` is the time from the SIGKILL of the leader until a new bundle had an owner.
    """

    was_completed: bool
    duration_s: float
    brokers: int
    topics: int
    imbalance: Mapping[str, float | None]
    bundles_moved: int
    gaps: Mapping[str, GapSummary]
    leader_failover_s: float | None
    messages: int
    two_owners: Sequence[Overlap]
    topics_without_owner: Sequence[str]
    died_unexpectedly: Sequence[str]

    @property
    def failures(self) -> list[str]:
        """All failures; empty after a successful run."""
        return [
            *(f"{o.topic} had two owners for {o.overlap_s:.3f} s: {o.first}, {o.second}" for o in self.two_owners),
            *(f"{name} ended by itself" for name in self.died_unexpectedly),
            *(["no message was published"] if self.was_completed and not self.messages else []),
            *(["nobody took over from the leader"] if self.was_completed and self.leader_failover_s is None else []),
            *(f"{topic} ended without an owner" for topic in self.topics_without_owner),
        ]

    def to_record(self) -> dict[str, Any]:
        return {"ok": not self.failures, "failures": self.failures, **asdict(self)}
