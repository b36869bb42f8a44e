"""Recorded ranges of a history, as inputs of simulations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from loadmanager.core.model.load import FloatArray, IntArray
from loadmanager.history.reader import History, OnFault, columns_of
from loadmanager.history.table_schemas import (
    BROKER_REPORTS,
    BUNDLE_REPORTS,
    EVENTS,
    LOAD_COLUMNS,
    MOVES,
    RESOURCE_COLUMNS,
)
from loadmanager.lab.simulate.calibration import FleetCalibration, ReportSeries, calibrate
from loadmanager.lab.simulate.recorded_world import (
    BrokerPresence,
    BrokerRows,
    BundleRows,
    RecordedRange,
    recorded_range,
)

if TYPE_CHECKING:
    from loadmanager.config.node_settings import Settings  # not available in Spark's workers

_COMES_OR_GOES = {"broker_registered": True, "broker_gone": False}
_BEFORE_LOAD_MS = 2_000
_MOST_SEQUENCES = 10**12
"""Maximum per epoch: file names have twelve digits."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Part of the range without gaps. It may begin with a fleet that has just started and has no load."""

    number: int
    from_ms: int
    to_ms: int
    starts_empty: bool = False

    @property
    def duration_s(self) -> float:
        return (self.to_ms - self.from_ms) / 1000

    def once_begun(self, history: History, on_fault: OnFault | None = None) -> Stretch:
        """Return the stretch from its first load on, if brokers registered before that: the start of a fleet."""
        read = columns_of(history, BUNDLE_REPORTS, self.from_ms, self.to_ms, ["at_ms"], on_fault)["at_ms"]
        if not len(read):
            return self
        first_ms = int(read.min())
        came = [each for each in _presence(history, replace(self, to_ms=first_ms), on_fault) if each.is_there]
        if not came:
            return self
        last_ms = self.from_ms + round(1000 * max(each.at_s for each in came)) + 1
        return replace(self, from_ms=max(last_ms, first_ms - _BEFORE_LOAD_MS), starts_empty=True)


@dataclass(frozen=True, slots=True, eq=False)
class ReadReports:
    """Broker reports of a stretch, without bundles, with their (epoch, sequence) in `order`; and the times when brokers
    registered and left.
    """

    rows: BrokerRows
    reported: ReportSeries
    order: Mapping[str, Any]
    presence: tuple[BrokerPresence, ...]


def read_reports(history: History, stretch: Stretch, on_fault: OnFault | None = None) -> ReadReports:
    names = ["epoch", "sequence", "at_ms", "broker", *RESOURCE_COLUMNS, *LOAD_COLUMNS, "topics", "bundles"]
    names += ["version", "load_manager_class"]
    read = columns_of(history, BROKER_REPORTS, stretch.from_ms, stretch.to_ms, names, on_fault)
    at_s = (read["at_ms"] - stretch.from_ms) / 1000

    def table(columns: Sequence[str]) -> FloatArray:
        return np.column_stack([read[name] for name in columns]).astype(np.float64)

    numbers: dict[str, int] = {}
    number = np.array([numbers.setdefault(name, len(numbers)) for name in read["broker"].tolist()], dtype=np.int64)
    limits = table(RESOURCE_COLUMNS[1::2])
    topics, bundles = (read[name].astype(np.int64) for name in ("topics", "bundles"))
    reported = ReportSeries(at_s, number, table(LOAD_COLUMNS), topics, bundles, table(RESOURCE_COLUMNS[0::2]), limits)
    rows = BrokerRows(at_s, read["broker"], limits, read["version"], read["load_manager_class"])
    return ReadReports(rows, reported, read, tuple(_presence(history, stretch, on_fault)))


def read_range(
    history: History, stretch: Stretch, settings: Settings | None = None, on_fault: OnFault | None = None
) -> RecordedRange:
    """Read the inputs of a simulation; with `settings`, also its calibration. Raises `ValueError` without reports."""
    brokers = read_reports(history, stretch, on_fault)
    names = ["epoch", "sequence", "namespace", "range_lower", "range_upper", *LOAD_COLUMNS, "topics", "sessions"]
    bundles = columns_of(history, BUNDLE_REPORTS, stretch.from_ms, stretch.to_ms, names, on_fault)
    report = _reports_of(brokers.order, bundles)
    load = np.column_stack([bundles[name] for name in LOAD_COLUMNS]).astype(np.float64)
    kept = (report >= 0) & (load >= 0).all(axis=1)
    return recorded_range(
        brokers.rows,
        BundleRows(
            report[kept],
            bundles["namespace"][kept],
            bundles["range_lower"][kept],
            bundles["range_upper"][kept],
            load[kept],
            bundles["topics"][kept],
            bundles["sessions"][kept],
        ),
        stretch.duration_s,
        brokers.presence,
        None if settings is None else _read_calibration(history, stretch, brokers.reported, settings, on_fault),
        starts_empty=stretch.starts_empty,
    )


def _presence(history: History, stretch: Stretch, on_fault: OnFault | None) -> Iterator[BrokerPresence]:
    for row in history.rows(EVENTS, stretch.from_ms, stretch.to_ms, ["at_ms", "kind", "subject"], on_fault=on_fault):
        if row["kind"] in _COMES_OR_GOES:
            yield BrokerPresence((row["at_ms"] - stretch.from_ms) / 1000, row["subject"], _COMES_OR_GOES[row["kind"]])


def _read_calibration(
    history: History, stretch: Stretch, reported: ReportSeries, settings: Settings, on_fault: OnFault | None
) -> FleetCalibration:
    """Calibrate, using the recorded times of rounds and elections, and the durations of moves, where available."""
    times: dict[str, list[float]] = {"decision_began": [], "leader_elected": []}
    for row in history.rows(EVENTS, stretch.from_ms, stretch.to_ms, ["at_ms", "kind", "subject"], on_fault=on_fault):
        if row["kind"] in times and (row["kind"] == "leader_elected" or row["subject"] == "shed"):
            times[row["kind"]].append((row["at_ms"] - stretch.from_ms) / 1000)
    began: dict[tuple[int, int], int] = {}
    unloads_s: list[float] = []
    for row in history.rows(MOVES, stretch.from_ms, stretch.to_ms, on_fault=on_fault):
        if row["kind"] == "began":
            began[row["epoch"], row["sequence"]] = row["at_ms"]
        elif row["kind"] == "done" and (row["epoch"], row["move"]) in began:
            unloads_s.append((row["at_ms"] - began[row["epoch"], row["move"]]) / 1000)
    return calibrate(
        reported,
        settings.planner_settings(),
        unloads_s=unloads_s,
        rounds_s=times["decision_began"],
        elections_s=times["leader_elected"],
    )


def _reports_of(brokers: Mapping[str, Any], bundles: Mapping[str, Any]) -> IntArray:
    """Return for each bundle row the row of its broker's report, -1 if that is missing. Both inputs are ordered."""
    epochs = np.unique(np.concatenate([brokers["epoch"], bundles["epoch"]]))
    own, other = (
        np.searchsorted(epochs, rows["epoch"]).astype(np.int64) * _MOST_SEQUENCES + rows["sequence"]
        for rows in (brokers, bundles)
    )
    if not len(own):
        return np.full(len(other), -1, dtype=np.int64)
    found = np.minimum(np.searchsorted(own, other), len(own) - 1)
    return np.where(own[found] == other, found, -1).astype(np.int64)
