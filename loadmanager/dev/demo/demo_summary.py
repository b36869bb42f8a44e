"""Summary and verdict of a demo run, computed from the logs of its processes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from loadmanager.dev.demo.evidence import Overlap

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
