"""A reporting broker and the bundle columns of its last report, by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from loadmanager.core.domain.ownership import Registration
from loadmanager.core.model.extensible_load import Listable, Listed, LoadAverage, find_busiest, throughput_of
from loadmanager.core.model.load import METRICS, BoolArray, BrokerReport, FloatArray, IntArray, RowArray
from loadmanager.core.model.snapshot import find_row


@dataclass(frozen=True, eq=False)
class LatestReport:
    """Bundle columns of a broker's last accepted report: see `BrokerReport`.

    `all_names` are the sorted names of all bundles, `places` (k,) the positions of the report's bundles among them. It
    is built without copying names, and immutable, so that worker threads may read it.
    """

    all_names: Sequence[str]
    places: RowArray
    bundle_topics: IntArray
    bundle_sessions: IntArray
    bundle_load: FloatArray
    bundle_cache_bytes: IntArray

    def __len__(self) -> int:
        return len(self.places)

    @cached_property
    def bundle_names(self) -> tuple[str, ...]:
        return tuple(map(self.all_names.__getitem__, self.places.tolist()))

    def find_sessions(self, bundle: str) -> int | None:
        """Find the number of consumers and producers of a bundle; None if it is not in the report."""
        place = find_row(self.all_names, bundle)
        found = () if place is None else self.bundle_sessions[self.places == place].tolist()
        return found[0] if found else None


def _no_rows() -> RowArray:
    return np.empty(0, dtype=np.int32)


@dataclass(slots=True, eq=False)
class ReportedLoad:
    """Bundle columns of a report for the bundles in `rows` (k,), read-only."""

    rows: RowArray
    topics: IntArray
    sessions: IntArray
    load: FloatArray
    cache_bytes: IntArray

    @classmethod
    def nothing(cls) -> ReportedLoad:
        none = np.empty(0, dtype=np.int64)
        return cls(_no_rows(), none, none, np.empty((0, METRICS)), none)

    @classmethod
    def of(cls, report: BrokerReport, rows: RowArray) -> ReportedLoad:
        return cls(rows, report.bundle_topics, report.bundle_sessions, report.bundle_load, report.bundle_cache_bytes)

    def named(self, all_names: Sequence[str], places: RowArray) -> LatestReport:
        """Return the report with names for the rows: those at these places, by row, in sorted names."""
        return LatestReport(all_names, places[self.rows], self.topics, self.sessions, self.load, self.cache_bytes)

    def only(self, kept: BoolArray) -> ReportedLoad:
        return ReportedLoad(
            self.rows[kept], self.topics[kept], self.sessions[kept], self.load[kept], self.cache_bytes[kept]
        )

    def and_of(self, more: ReportedLoad) -> ReportedLoad:
        return ReportedLoad(
            np.concatenate([self.rows, more.rows]),
            np.concatenate([self.topics, more.topics]),
            np.concatenate([self.sessions, more.sessions]),
            np.concatenate([self.load, more.load]),
            np.concatenate([self.cache_bytes, more.cache_bytes]),
        )


class Busiest:
    """Busiest bundles of a report, by row; found on first use, since few callers need them.

    `find` takes the names of all bundles, and by row the position of each among them. Two concurrent callers may both
    find them; they get equal values.
    """

    def __init__(self, find: Callable[[Sequence[str], RowArray], Listed]) -> None:
        self._find = find
        self._found: Listed | None = None

    @classmethod
    def of_report(cls, said: ReportedLoad, listable: Listable) -> Busiest:
        """Prepare by the rules and policies at the time of the report."""

        def find(all_names: Sequence[str], places: RowArray) -> Listed:
            top = find_busiest(said.named(all_names, places), listable)
            return said.rows[top], throughput_of(said.load[top])

        return cls(find)

    @classmethod
    def already(cls, rows: RowArray, throughput: FloatArray) -> Busiest:
        return cls(lambda *_: (rows, throughput))

    def find(self, all_names: Sequence[str], places: RowArray) -> Listed:
        if self._found is None:
            self._found = self._find(all_names, places)
        return self._found


@dataclass(slots=True, eq=False)
class ReportingBroker:
    """A registered broker: its registration's row, its last report without bundles, and the rows of those.

    `latest` holds the bundle columns; empty until the first report after a restore. `overtaken`: another broker has
    since reported one of those bundles. `unknown` is the part of the report on bundles that are not in the record of
    their namespace.
    """

    registration: Registration
    row: int
    report: BrokerReport
    rows: RowArray = field(default_factory=_no_rows)
    latest: ReportedLoad = field(default_factory=ReportedLoad.nothing)
    busiest: Busiest = field(default_factory=lambda: Busiest.already(_no_rows(), np.empty(0)))
    average: LoadAverage = field(default_factory=LoadAverage)
    overtaken: bool = False
    unknown: BrokerReport | None = None

    def keep(self, stays: BoolArray, names: Sequence[str]) -> None:
        """Drop all bundles except these, by row; `names` are those of all rows."""
        if stays[self.rows].all():
            return
        top, throughput = self.busiest.find(names, np.arange(len(names), dtype=np.int32))
        self.busiest = Busiest.already(top[stays[top]], throughput[stays[top]])
        self.rows, self.latest = self.rows[stays[self.rows]], self.latest.only(stays[self.latest.rows])
