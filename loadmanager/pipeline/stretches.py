"""Stretches of a history without gaps, and what was recorded in each, for worlds to replay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from loadmanager.core.load import IntArray
from loadmanager.errors import PipelineError
from loadmanager.history.gaps import find_gaps
from loadmanager.history.reader import History, OnFault
from loadmanager.history.rows import rates_of
from loadmanager.history.schemas import BROKER_REPORTS, BUNDLE_REPORTS, LOAD_COLUMNS, RESOURCE_COLUMNS
from loadmanager.pipeline.whatif_file import FEWEST_STEPS, WhatIf
from loadmanager.sim.recorded import HOLD_S, BrokerRows, BundleRows, RecordedRange, recorded_range

_LIMITS = RESOURCE_COLUMNS[1::2]
_SHORTEST_PART = 0.25
"""Of the longest stretch; a shorter one is left out, as it counts as much as any other."""
_MOST_SEQUENCES = 10**12
"""Of an epoch: the names of files have twelve digits."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the range without gaps."""

    number: int
    from_ms: int
    to_ms: int

    @property
    def duration_s(self) -> float:
        return (self.to_ms - self.from_ms) / 1000


def find_stretches(
    whatif: WhatIf, history: History, on_fault: OnFault | None = None
) -> tuple[list[Stretch], list[str]]:
    """The range, cut where something is missing and wherever a stretch is full; and what is left out, a sentence each.

    Raises `PipelineError` for a range without reports.
    """
    from_ms, to_ms = (None if at is None else round(at.timestamp() * 1000) for at in (whatif.begin, whatif.end))
    at_ms = np.sort(_columns(history, BROKER_REPORTS, from_ms, to_ms, ["at_ms"], on_fault)["at_ms"])
    if not len(at_ms):
        there = history.info(BROKER_REPORTS, on_fault)
        has = "it has none at all" if there.from_ms is None else f"it has them {when(there.from_ms, there.to_ms or 0)}"
        asked = when(from_ms, to_ms)
        raise PipelineError(f"{history.directory}: no broker reports {asked}; {has}")
    from_ms = int(at_ms[0]) if from_ms is None else from_ms
    to_ms = int(at_ms[-1]) + 1 if to_ms is None else to_ms
    missing = [*_silences(at_ms, from_ms, to_ms), *_marked(history, on_fault)]
    left_out = [
        f"{when(max(start, from_ms), min(end, to_ms))}: {why}"
        for start, end, why in missing
        if end > from_ms and start < to_ms
    ]
    pieces: list[tuple[int, int]] = []
    stretch_ms = round(whatif.stretch_s * 1000)
    for start, end in _without(from_ms, to_ms, missing):
        pieces += [(at, min(at + stretch_ms, end)) for at in range(start, end, stretch_ms)]
    step_ms = round(whatif.step_s * 1000)
    shortest_ms = max(FEWEST_STEPS * step_ms, _SHORTEST_PART * max((end - start for start, end in pieces), default=0))
    found: list[Stretch] = []
    for start, end in pieces:
        if end - start < shortest_ms:
            left_out.append(f"{when(start, end)}: too short beside the other stretches, or for {FEWEST_STEPS} steps")
        else:
            found.append(Stretch(len(found), start, start + (end - start) // step_ms * step_ms))
    return found, left_out


def read_range(history: History, stretch: Stretch, on_fault: OnFault | None = None) -> RecordedRange:
    """What was recorded in a stretch. Raises `ValueError` when nothing was."""
    names = ["epoch", "sequence", "at_ms", "broker", *_LIMITS, "version", "load_manager_class"]
    brokers = _columns(history, BROKER_REPORTS, stretch.from_ms, stretch.to_ms, names, on_fault)
    names = ["epoch", "sequence", "namespace", "range_lower", "range_upper", *LOAD_COLUMNS, "topics", "sessions"]
    bundles = _columns(history, BUNDLE_REPORTS, stretch.from_ms, stretch.to_ms, names, on_fault)
    report = _reports_of(brokers, bundles)
    load = np.column_stack([bundles[name] for name in LOAD_COLUMNS]).astype(np.float64)
    kept = (report >= 0) & (load >= 0).all(axis=1)
    return recorded_range(
        BrokerRows(
            (brokers["at_ms"] - stretch.from_ms) / 1000,
            brokers["broker"],
            np.column_stack([brokers[name] for name in _LIMITS]),
            brokers["version"],
            brokers["load_manager_class"],
        ),
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
    )


def _silences(at_ms: IntArray, from_ms: int, to_ms: int) -> Iterator[tuple[int, int, str]]:
    """When no broker reported for so long that what was reported before does not hold."""
    hold_ms = round(HOLD_S * 1000)
    ends = np.concatenate([[from_ms - hold_ms], at_ms, [to_ms]])
    for last in np.flatnonzero(np.diff(ends) > 2 * hold_ms).tolist():
        yield int(ends[last]) + hold_ms, int(ends[last + 1]), "no broker reported"


def _marked(history: History, on_fault: OnFault | None) -> Iterator[tuple[int, int, str]]:
    """Gaps that leaders have marked, if they are longer than a report stands."""
    for gap in find_gaps(history, on_fault):
        if gap.to_ms - gap.from_ms > HOLD_S * 1000:
            yield gap.from_ms, gap.to_ms, f"a gap in the history: {gap.why}"


def _without(from_ms: int, to_ms: int, missing: Iterable[tuple[int, int, str]]) -> Iterator[tuple[int, int]]:
    """What is left of a range, in order."""
    at = from_ms
    for start, end, _ in sorted(missing):
        if start > at:
            yield at, min(start, to_ms)
        at = max(at, min(end, to_ms))
    if at < to_ms:
        yield at, to_ms


def _columns(
    history: History,
    table: str,
    from_ms: int | None,
    to_ms: int | None,
    names: Sequence[str],
    on_fault: OnFault | None,
) -> dict[str, Any]:
    """Columns of a table as arrays; text as objects."""
    parts: dict[str, list[Any]] = {name: [] for name in names}
    for batch in history.scan(table, from_ms, to_ms, names, on_fault):
        for name in names:
            parts[name].append(_array(batch.column(name)))
    return {name: np.concatenate(each) if each else np.empty(0, dtype=np.int64) for name, each in parts.items()}


def _array(column: Any) -> Any:  # noqa: ANN401 - Arrow's column, numpy's array
    if pa.types.is_dictionary(column.type):
        return np.array(column.dictionary.to_pylist(), dtype=object)[column.indices.to_numpy()]
    return rates_of(column) if pa.types.is_decimal(column.type) else column.to_numpy(zero_copy_only=False)


def _reports_of(brokers: Mapping[str, Any], bundles: Mapping[str, Any]) -> IntArray:
    """For each row of a bundle the row of its broker's report; -1 where that is missing. Both are in their order."""
    epochs = np.unique(np.concatenate([brokers["epoch"], bundles["epoch"]]))
    own, other = (
        np.searchsorted(epochs, rows["epoch"]).astype(np.int64) * _MOST_SEQUENCES + rows["sequence"]
        for rows in (brokers, bundles)
    )
    if not len(own):
        return np.full(len(other), -1, dtype=np.int64)
    found = np.minimum(np.searchsorted(own, other), len(own) - 1)
    return np.where(own[found] == other, found, -1).astype(np.int64)


def when(from_ms: int | None, to_ms: int | None) -> str:
    parts = [
        f"{word} {datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec='seconds')}"
        for word, at in (("from", from_ms), ("to", to_ms))
        if at is not None
    ]
    return " ".join(parts) or "at any time"
