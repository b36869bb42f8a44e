"""Times and loads of the reports that are composed from a Pulsar broker's answers.

A broker measures its host once a minute, and its answers do not say when. Right after a move its CPU is still that of
the former bundles. With such figures a new owner looks cold and receives ever more bundles. Therefore the last report
stays, together with the expected effect of the moves, until the host was measured anew.

    bundles since the last report    its time becomes now when
    -----------------------------    -------------------------
    the same                         a figure changed, or it is a minute old
    others                           CPU changed twice (the first change may average over the move), or after 2 min

Somebody may have moved bundles just before a broker's first report. It counts, but its time is two measurements ago,
and the next one waits as after a move.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from loadmanager.core.domain.names import BrokerId
from loadmanager.pulsar.rest_answers import RATES, Record

HOST_MEASURED_MS = 60_000
"""Interval in which Pulsar measures a host (`loadBalancerHostUsageCheckIntervalMinutes`)."""
TOPICS_MEASURED_S = 60.0
"""Interval in which Pulsar measures the rates of topics (`statsUpdateFrequencyInSecs`)."""
MEASUREMENTS = 2


@dataclass(slots=True)
class _LastReport:
    figures: Record
    at_ms: int
    bundles: frozenset[str]
    cpu: object
    moved_ms: int | None = None
    """Time since which its bundles are others."""
    measurements: int = 0
    """Changes of CPU since then."""

    def is_outdated(self, figures: Record, now_ms: int) -> bool:
        if self.moved_ms is None:
            return figures != self.figures or now_ms - self.at_ms >= HOST_MEASURED_MS
        return self.measurements >= MEASUREMENTS or now_ms - self.moved_ms >= MEASUREMENTS * HOST_MEASURED_MS


class ReportDates:
    """The last report of each broker."""

    def __init__(self) -> None:
        self._last: dict[BrokerId, _LastReport] = {}

    def drop(self, broker: BrokerId) -> None:
        """Forget a broker that left or restarted: its next report is new."""
        self._last.pop(broker, None)

    def last_s(self, broker: BrokerId) -> float | None:
        """Return the time of a broker's last report in seconds; None without one."""
        last = self._last.get(broker)
        return None if last is None else last.at_ms / 1000

    def date(self, broker: BrokerId, record: Record, bundles: Iterable[str], now_ms: int) -> int | None:
        """Return the time of a record in milliseconds; None if the last report stays."""
        figures = {key: record.get(key) for key in ("cpu", "lastStats", "reported")}
        owned, last = frozenset(bundles), self._last.get(broker)
        if last is None:
            before_ms = now_ms - MEASUREMENTS * HOST_MEASURED_MS
            self._last[broker] = _LastReport(figures, before_ms, owned, record.get("cpu"), moved_ms=now_ms)
            return before_ms
        if record.get("cpu") != last.cpu:
            last.cpu, last.measurements = record.get("cpu"), last.measurements + 1
        if last.moved_ms is None and owned != last.bundles:
            last.moved_ms, last.measurements = now_ms, 0
        if not last.is_outdated(figures, now_ms):
            return None
        self._last[broker] = _LastReport(figures, now_ms, owned, record.get("cpu"))
        return now_ms


class TopicLoads:
    """Load of each bundle by name beside an extensible load manager: the sums over its topics.

    It comes from the last answer of the owner; until that, of the former owner. A bundle that just moved keeps its
    former rates for `TOPICS_MEASURED_S`: its new owner reports 0 until it has measured.
    """

    def __init__(self) -> None:
        self.by_bundle: dict[str, Record] = {}
        self._reported_by: dict[str, BrokerId] = {}
        self._moved: dict[str, tuple[float, Record]] = {}
        """Time of the new owner's first answer, and the former rates."""

    def put(self, broker: BrokerId, owned: Iterable[str], loads: Mapping[str, Record]) -> None:
        """Apply a broker's answer. A bundle that it owns, but that has no topics there, has no load."""
        now_s = time.monotonic()
        for name in owned:
            before, former_owner = self.by_bundle.pop(name, None), self._reported_by.pop(name, None)
            if before is not None and former_owner != broker:
                self._moved[name] = now_s, {key: before[key] for key in RATES}
        self._moved = {name: each for name, each in self._moved.items() if now_s - each[0] < TOPICS_MEASURED_S}
        for name, load in loads.items():
            _, former = self._moved.get(name, (now_s, {}))
            self.by_bundle[name] = {**load, **former}
            self._reported_by[name] = broker
