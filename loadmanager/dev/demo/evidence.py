"""Logs of the demo's processes, as JSON lines, and the ownership intervals computed from them.

A line is in the kernel when `append` returns. Overlapping intervals are double ownership.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from loadmanager.util.atomic_write import whole


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


def write_ready_file(path: Path, content: Mapping[str, object]) -> None:
    """Write the ready file of this process atomically."""
    with whole(path) as partial:
        partial.write_text(json.dumps(content), encoding="utf-8")


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
