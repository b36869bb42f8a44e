"""Reader of a recorded range: its first checkpoint, and its rows in order of sequence."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from loadmanager.config import Settings
from loadmanager.config.overrides import settings_recorded
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.errors import HistoryError
from loadmanager.history.reader import History, OnFault
from loadmanager.history.table_schemas import DECISIONS, EVENTS, MOVES, OPERATIONS, STRATEGY_STATES
from loadmanager.lab.replay.replayer import Item, ReplayedReport, Row

_CLOCK_SLACK_MS = 3_600_000
"""A clock that was set back may have put rows this much before those that they follow."""


@dataclass(frozen=True, slots=True)
class Start:
    """The checkpoint at which a replay begins."""

    at_ms: int
    epoch: int
    sequence: int


def find_start(history: History, from_ms: int | None, on_fault: OnFault | None = None) -> Start:
    """The last checkpoint that a leader recorded at or before that time, else the first one after it.

    Raises `HistoryError` when there is none.
    """
    found: Start | None = None
    for row in history.rows(EVENTS, columns=["at_ms", "epoch", "sequence", "kind"], on_fault=on_fault):
        if row["kind"] != "checkpoint" or not row["epoch"]:
            continue
        if found is not None and (from_ms is None or row["at_ms"] > from_ms):
            break
        found = Start(row["at_ms"], row["epoch"], row["sequence"])
    if found is None:
        raise HistoryError(f"{history.directory}: no leader has recorded a checkpoint here: nothing can be replayed")
    return found


def recorded_items(
    history: History, start: Start, to_ms: int | None, on_fault: OnFault | None = None
) -> Iterator[Item]:
    """Everything from there on, in the order of (epoch, sequence); `to_ms` is the moment before which it ends."""
    from_ms = start.at_ms - _CLOCK_SLACK_MS
    tables = [
        _rows(history, table, from_ms, to_ms, on_fault)
        for table in (EVENTS, DECISIONS, MOVES, STRATEGY_STATES, OPERATIONS)
    ]
    for item in heapq.merge(*tables, _reports(history, from_ms, to_ms, on_fault), key=_place):
        if _place(item) >= (start.epoch, start.sequence):
            yield item


def planner_settings_of(texts: Mapping[str, str]) -> PlannerSettings:
    """The settings that were recorded; keys that this version does not know any more are left out."""
    return settings_recorded(texts).planner_settings()


def _rows(history: History, table: str, from_ms: int, to_ms: int | None, on_fault: OnFault | None) -> Iterator[Item]:
    for row in history.rows(table, from_ms, to_ms, on_fault=on_fault):
        yield Row(row["at_ms"], row["epoch"], row["sequence"], table, row)


def _reports(history: History, from_ms: int, to_ms: int | None, on_fault: OnFault | None) -> Iterator[Item]:
    for each in history.reports(from_ms, to_ms, on_fault):
        yield ReplayedReport(each.at_ms, each.epoch, each.sequence, each.registration, each.report)


def _place(item: Item) -> tuple[int, int]:
    return item.epoch, item.sequence


def settings_at(history: History, start: Start, on_fault: OnFault | None) -> Settings:
    """Return the settings recorded with the checkpoint. Raises `HistoryError`."""
    for row in history.rows(EVENTS, start.at_ms, start.at_ms + 1, on_fault=on_fault):
        if (row["epoch"], row["sequence"]) == (start.epoch, start.sequence):
            return settings_recorded(json.loads(row["body"])["settings"])
    raise HistoryError(f"{history.directory}: the checkpoint of epoch {start.epoch} cannot be read")
