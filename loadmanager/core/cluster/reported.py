"""One broker that reports, and what its last report says of its bundles, by their rows."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from loadmanager.core.extensible import LoadAverage
from loadmanager.core.load import METRICS, BoolArray, BrokerReport, FloatArray, IntArray, RowArray
from loadmanager.core.ownership import Registration


def _no_rows() -> RowArray:
    return np.empty(0, dtype=np.int32)


@dataclass(slots=True, eq=False)
class ReportedLoad:
    """What a report says of the bundles in `rows` (k,): columns of the report itself, which nobody writes into."""

    rows: RowArray
    topics: IntArray
    sessions: IntArray
    load: FloatArray

    @classmethod
    def nothing(cls) -> ReportedLoad:
        none = np.empty(0, dtype=np.int64)
        return cls(_no_rows(), none, none, np.empty((0, METRICS)))

    @classmethod
    def of(cls, report: BrokerReport, rows: RowArray) -> ReportedLoad:
        return cls(rows, report.bundle_topics, report.bundle_sessions, report.bundle_load)

    def only(self, kept: BoolArray) -> ReportedLoad:
        return ReportedLoad(self.rows[kept], self.topics[kept], self.sessions[kept], self.load[kept])

    def and_of(self, more: ReportedLoad) -> ReportedLoad:
        return ReportedLoad(
            np.concatenate([self.rows, more.rows]),
            np.concatenate([self.topics, more.topics]),
            np.concatenate([self.sessions, more.sessions]),
            np.concatenate([self.load, more.load]),
        )


@dataclass(slots=True, eq=False)
class ReportingBroker:
    """A registered broker: its registration's row, its last report without the bundles, and the rows of those.

    `latest` is what it says of them: nothing, until the first report since the model was restored. `top` are the rows
    of the busiest of them, the least busy first, and `top_throughput` their bytes/s. `overtaken`: another broker has
    since reported one of those bundles. `unknown` is the part of the report about bundles that the record of their
    namespace does not have.
    """

    registration: Registration
    row: int
    report: BrokerReport
    rows: RowArray = field(default_factory=_no_rows)
    latest: ReportedLoad = field(default_factory=ReportedLoad.nothing)
    top: RowArray = field(default_factory=_no_rows)
    top_throughput: FloatArray = field(default_factory=lambda: np.empty(0))
    average: LoadAverage = field(default_factory=LoadAverage)
    overtaken: bool = False
    unknown: BrokerReport | None = None

    def keep(self, stays: BoolArray) -> None:
        """Let go of all bundles but these, by their rows."""
        if not stays[self.rows].all():
            self.rows, self.latest = self.rows[stays[self.rows]], self.latest.only(stays[self.latest.rows])

    def keep_in_top(self, stays: BoolArray) -> None:
        """List none but these among the busiest, by their rows."""
        kept = stays[self.top]
        self.top, self.top_throughput = self.top[kept], self.top_throughput[kept]
