"""Recall of the timeline from the history, for the time before a node's start: figures of brokers and bundles, and
events.

The timeline is only for display, so it is sampled: one report of a bundle per step is enough. If there are too many
rows, the oldest are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import structlog

from loadmanager.core.diagnosis.timeline import (
    Bytes,
    LeaderMoment,
    MoveMoment,
    SplitMoment,
    throughput_as_figures,
    usage_as_figures,
)
from loadmanager.core.domain.resources import ResourceWeights
from loadmanager.core.model.load import RESOURCES, IntArray, percent_usage, weighted_max_usage
from loadmanager.history.files import HOUR_MS
from loadmanager.history.reader import History
from loadmanager.history.table_schemas import (
    BROKER_REPORTS,
    BUNDLE_REPORTS,
    DECISIONS,
    EVENTS,
    MOVES,
    RESOURCE_COLUMNS,
)

log = structlog.get_logger(__name__)

_REPORT_MS = 60_000
"""Time within which each broker usually reports once."""
_SAMPLED_MS = 300_000
"""Sampling interval of bundles before the newest hour."""
_MOST_ROWS = 5_000_000
_BROKER_STEP_MS = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class Recalled:
    """Figures (k,) of these names in one step."""

    of: Literal["brokers", "bundles"]
    names: tuple[str, ...]
    figures: Bytes
    at_ms: int


class Recalling:
    """Reads the history from `from_ms` to `until_ms`; slow, so call it in a thread. `rows` counts the rows read.

    `step_ms` is the length of a step of bundles. Unreadable files are left out.
    """

    def __init__(self, url: str, from_ms: int, until_ms: int, weights: ResourceWeights, step_ms: int) -> None:
        self._history = History(url)
        self._from_ms, self._until_ms = from_ms, until_ms
        self._weights = weights
        self._step_ms = step_ms
        self.rows = 0

    def moments(self) -> tuple[list[MoveMoment], list[SplitMoment], list[LeaderMoment]]:
        moves = [
            MoveMoment(row["ended_ms"], row["bundle"], row["source"], row["destination"], row["reason"])
            for row in self._rows(MOVES, "done", "ended_ms", "bundle", "source", "destination", "reason")
            if row["source"] is not None
        ]
        splits = [
            SplitMoment(row["at_ms"], step["bundle"])
            for row in self._rows(DECISIONS, "split", "at_ms", "steps")
            for step in row["steps"]
        ]
        leaders = [
            LeaderMoment(row["at_ms"], row["subject"], row["epoch"])
            for row in self._rows(EVENTS, "leader_elected", "at_ms", "subject", "epoch")
        ]
        return moves, splits, leaders

    def figures(self) -> Iterator[Recalled]:
        """Yield the figures, newest hours first."""
        until_ms = self._until_ms
        while until_ms > self._from_ms and self.rows < _MOST_ROWS:
            from_ms = max((until_ms - 1) // HOUR_MS * HOUR_MS, self._from_ms)
            usage = ("at_ms", "broker", *RESOURCE_COLUMNS)
            for batch in self._batches(BROKER_REPORTS, from_ms, until_ms, usage):
                yield from self._of_brokers(batch)
            load = ("at_ms", "namespace", "range_lower", "range_upper", "msg_throughput_in", "msg_throughput_out")
            is_newest = self._until_ms - until_ms < HOUR_MS
            sampled_ms = self._step_ms if is_newest else max(self._step_ms, _SAMPLED_MS)
            for batch in self._batches(BUNDLE_REPORTS, from_ms, until_ms, load):
                yield from self._of_bundles(batch, sampled_ms)
            until_ms = from_ms

    def _rows(self, table: str, kind: str, *columns: str) -> Iterator[dict[str, Any]]:
        for batch in self._batches(table, self._from_ms, self._until_ms, ("kind", *columns)):
            kinds, code = _split_dictionary(batch.column("kind"))
            if kind in kinds:
                yield from batch.filter(pa.array(code == kinds.index(kind))).to_pylist()

    def _batches(self, table: str, from_ms: int, until_ms: int, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        return self._history.scan(
            table, from_ms, until_ms, columns, on_fault=lambda fault: log.warning("history_left_out", fault=str(fault))
        )

    def _of_brokers(self, batch: pa.RecordBatch) -> Iterator[Recalled]:
        usage = np.column_stack([batch.column(name).to_numpy() for name in RESOURCE_COLUMNS])
        percent = percent_usage(*usage.reshape(-1, RESOURCES, 2).transpose(2, 0, 1))
        figures = usage_as_figures(100 * weighted_max_usage(percent, self._weights))
        names, codes = _split_dictionary(batch.column("broker"))
        yield from self._by_step("brokers", batch, _BROKER_STEP_MS, names, codes, figures)

    def _of_bundles(self, batch: pa.RecordBatch, sampled_ms: int) -> Iterator[Recalled]:
        if sampled_ms > _REPORT_MS:
            batch = batch.filter(pa.array(_times(batch) % sampled_ms < _REPORT_MS))
        names, codes = _bundles(batch)
        load = batch.column("msg_throughput_in").to_numpy() + batch.column("msg_throughput_out").to_numpy()
        figures = throughput_as_figures(load.astype(np.float64))
        yield from self._by_step("bundles", batch, self._step_ms, names, codes, figures)

    def _by_step(
        self,
        of: Literal["brokers", "bundles"],
        batch: pa.RecordBatch,
        step_ms: int,
        names: tuple[str, ...],
        codes: IntArray,
        figures: Bytes,
    ) -> Iterator[Recalled]:
        """Yield the highest figure of each name in each step."""
        self.rows += len(codes)
        steps = _times(batch) // step_ms
        for step in np.unique(steps).tolist():
            within = steps == step
            highest = np.zeros(len(names), dtype=np.uint8)
            np.maximum.at(highest, codes[within], figures[within])
            known = np.unique(codes[within])
            yield Recalled(of, tuple(names[code] for code in known.tolist()), highest[known], step * step_ms)


def _times(batch: pa.RecordBatch) -> IntArray:
    return np.asarray(batch.column("at_ms").to_numpy(zero_copy_only=False), dtype=np.int64)


def _split_dictionary(column: pa.DictionaryArray) -> tuple[tuple[str, ...], IntArray]:
    """Return the distinct values of a text column, and the index of each row's value."""
    return tuple(column.dictionary.to_pylist()), np.asarray(column.indices.to_numpy(), dtype=np.int64)


def _bundles(batch: pa.RecordBatch) -> tuple[tuple[str, ...], IntArray]:
    """Return the distinct bundles of a batch, and the index of each row's bundle."""
    namespaces, code = _split_dictionary(batch.column("namespace"))
    lower, upper = (np.asarray(batch.column(f"range_{end}").to_numpy(), np.int64) for end in ("lower", "upper"))
    begins = (code << 32) | lower
    order = np.lexsort((upper, begins))
    is_new = np.ones(len(order), dtype=bool)
    is_new[1:] = (np.diff(begins[order]) != 0) | (np.diff(upper[order]) != 0)
    codes = np.empty(len(order), dtype=np.int64)
    codes[order] = np.cumsum(is_new) - 1
    first = order[is_new]
    parts = zip(code[first].tolist(), lower[first].tolist(), upper[first].tolist(), strict=True)
    return tuple(f"{namespaces[each]}/0x{low:08x}_0x{high:08x}" for each, low, high in parts), codes
