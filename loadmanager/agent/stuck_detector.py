"""Detector of a stuck broker: it answers its agent, but serves nothing of what it owns.

A passive state machine. The broker is stuck

- while it asks for no lease, although it has before: without a lease it serves nothing;
- when topics were granted to it, and several statistics in a row had nothing open or opening;
- when it has refused to close a bundle, again and again, for a minute.

The last two count until the broker opens a topic, or closes that bundle, or has not failed for `KEPT_S`: then it is
tried again. A new process of the broker is not stuck.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from loadmanager.wire.http_bodies import BrokerStats

NO_LEASE_S = 10.0
"""A broker asks three times as often as its lease is long, which is 3 s at most unless it is configured."""
STATISTICS = 3
REFUSED_S = 45.0
"""The leader gives up after a minute (`namespaceBundleUnloadingTimeoutMs`), and its calls lie seconds apart."""
KEPT_S = 600.0
_APART_S = 30.0
"""Refusals that lie further apart belong to different moves."""


@dataclass(slots=True)
class StuckDetector:
    """All times are seconds on the agent's clock."""

    longest_lease_s: float
    _process: tuple[int, int] | None = None
    _asked_s: float | None = None
    _granted_in_time: int = 0
    """Topics granted when the broker was last seen to open or have one."""
    _opened: int | None = None
    _without_topics: int = 0
    _failed_to_open_s: float = -math.inf
    _refused: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By bundle, the first and the last refusal in a row."""

    def ask_for_lease(self, now_s: float) -> None:
        self._asked_s = now_s

    def read_statistics(self, stats: BrokerStats, granted: int, now_s: float) -> None:
        """Take statistics, and how many topics were granted so far.

        Statistics without `opening` do not say what is being opened: nothing is concluded from them.
        """
        if self._process != (stats.pid, stats.start_timestamp):
            self._begin_anew(stats, granted)
        has_opened = self._opened is not None and stats.opened is not None and stats.opened > self._opened
        self._opened = stats.opened
        if stats.topics or stats.opening or has_opened or stats.opening is None:
            self._without_topics, self._granted_in_time = 0, granted
            self._failed_to_open_s = -math.inf
        elif granted > self._granted_in_time:
            self._without_topics += 1
            if self._without_topics >= STATISTICS:
                self._failed_to_open_s, self._granted_in_time = now_s, granted

    def _begin_anew(self, stats: BrokerStats, granted: int) -> None:
        self._process, self._asked_s, self._opened = (stats.pid, stats.start_timestamp), None, None
        self._without_topics, self._granted_in_time = 0, granted
        self._failed_to_open_s = -math.inf
        self._refused.clear()

    def close_bundle(self, bundle: str) -> None:
        self._refused.pop(bundle, None)

    def refuse_to_close(self, bundle: str, now_s: float) -> None:
        first_s, last_s = self._refused.get(bundle, (now_s, now_s))
        self._refused[bundle] = (first_s if now_s - last_s <= _APART_S else now_s), now_s

    def asks_for_no_lease(self, now_s: float) -> bool:
        patience_s = max(NO_LEASE_S, 3 * self.longest_lease_s)
        return self._asked_s is not None and now_s - self._asked_s > patience_s

    def find_fault(self, now_s: float) -> str | None:
        """Return why the broker is stuck, as a sentence without a subject; None while it is not."""
        if self._asked_s is not None and self.asks_for_no_lease(now_s):
            return f"it answers, and has asked for no lease for {now_s - self._asked_s:.0f} s"
        if now_s - self._failed_to_open_s <= KEPT_S:
            return "it was granted topics, and opens none"
        for bundle, (first_s, last_s) in self._refused.items():
            if last_s - first_s >= REFUSED_S and now_s - last_s <= KEPT_S:
                return f"it has refused to close {bundle} for {last_s - first_s:.0f} s"
        return None
