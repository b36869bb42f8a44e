"""From what was recorded, or brought in from elsewhere, to rows that can be counted on.

A row is rejected, with the first of these reasons that holds:

    missing      a column is empty that its schema has always had
    not_a_number a figure is NaN or infinite
    negative     a figure is below 0
    impossible   a figure beyond what any broker reports, a range that is none, a time before 1970 or of another hour
                 than the folder of its file
    duplicate    the same report (epoch, sequence) of the same hour has it already, in another file

Of duplicates that of the first file by name stays. Names of files say which reports are in them: what is in one that
shares none with another of its hour is not compared with anything, which would take most of the time. Rejected rows
are kept as they are, with their reason and file.

A broker of Pulsar's that does not know the speed of its network says that the limit of a bandwidth is below 0. That is
no fault of the row: what is not known counts as 0 of 0, as wherever decisions are made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from loadmanager.core.amounts import MAX_AMOUNT
from loadmanager.core.load import BoolArray
from loadmanager.core.names import HASH_SPACE_END
from loadmanager.core.recordable import MAX_RATE
from loadmanager.history.files import HOUR_MS
from loadmanager.history.schemas import BROKER_REPORTS, BUNDLE_REPORTS, LOAD_COLUMNS, ORDER, RESOURCE_COLUMNS, TABLES

REASONS = ("missing", "not_a_number", "negative", "impossible", "duplicate")
"""A reason's number is its place here, from 1 on; 0 is that of a good row."""

_MISSING, _NOT_A_NUMBER, _NEGATIVE, _IMPOSSIBLE, _DUPLICATE = range(1, len(REASONS) + 1)
_BUNDLE_KEY = ("namespace", "range_lower", "range_upper")
_KEYS = {BROKER_REPORTS: ORDER, BUNDLE_REPORTS: (*ORDER, *_BUNDLE_KEY)}
"""What a row is the only one of, in its hour."""

_FIGURES = {
    BROKER_REPORTS: (*RESOURCE_COLUMNS, *LOAD_COLUMNS, "topics", "bundles", "consumers", "producers"),
    BUNDLE_REPORTS: (*LOAD_COLUMNS, "topics", "sessions", "cache_bytes", "range_lower", "range_upper"),
}
"""The columns that are amounts."""

_RATES = LOAD_COLUMNS[:2]
_BANDWIDTHS = tuple((f"{name}_usage", f"{name}_limit") for name in ("bandwidth_in", "bandwidth_out"))

Reasons: TypeAlias = npt.NDArray[np.int8]


class Judged(NamedTuple):
    """The rows that can be counted on, and the others as they were, with their `reason`; of one file."""

    clean: pa.Table
    rejected: pa.Table


def judged(rows: pa.Table, table: str, hour_ms: int | None = None) -> Judged:
    """Rows as `raw_rows` has them, each for itself; with the hour of the folder of their file, where it is known."""
    return _apart(rows, table, _reasons(rows, table, hour_ms))


def judged_together(files: Sequence[pa.Table], table: str, hour_ms: int) -> Iterator[Judged]:
    """The rows of each of these files of an hour, which may share reports; they are in the order of their names."""
    seen: set[Any] = set()
    for rows in files:
        reasons = _reasons(rows, table, hour_ms)
        _mark_copies(rows, table, reasons, seen)
        yield _apart(rows, table, reasons)


def _reasons(rows: pa.Table, table: str, hour_ms: int | None) -> Reasons:
    """Why each row is rejected for itself. What holds first is entered last."""
    reasons: Reasons = np.zeros(rows.num_rows, dtype=np.int8)
    columns = {name: _numbers(rows.column(name)) for name in _FIGURES[table]}
    at_ms = _numbers(rows.column("at_ms"))
    reasons[_are_impossible(columns, at_ms, hour_ms)] = _IMPOSSIBLE
    unlimited = {name: columns[limit] < 0 for pair in _bandwidths(table) for name in pair for limit in pair[1:]}
    for name, values in columns.items():
        is_negative = values < 0
        if name in unlimited:
            is_negative &= ~unlimited[name]
        reasons[is_negative] = _NEGATIVE
    for values in columns.values():
        if values.dtype == np.float64:
            reasons[~np.isfinite(values)] = _NOT_A_NUMBER
    for each in TABLES[table].columns:
        if each.since <= 1 and rows.column(each.name).null_count:
            reasons[np.asarray(rows.column(each.name).is_null())] = _MISSING
    return reasons


def _are_impossible(columns: dict[str, npt.NDArray[Any]], at_ms: npt.NDArray[Any], hour_ms: int | None) -> BoolArray:
    found = at_ms < 0
    if hour_ms is not None:
        found |= (at_ms < hour_ms) | (at_ms >= hour_ms + HOUR_MS)
    is_of_bundles = "range_lower" in columns
    for name, values in columns.items():
        found |= values > (MAX_RATE if is_of_bundles and name in _RATES else MAX_AMOUNT)
    if is_of_bundles:
        lower, upper = columns["range_lower"], columns["range_upper"]
        found |= (lower >= upper) | (upper > HASH_SPACE_END)
    return np.asarray(found)


def _mark_copies(rows: pa.Table, table: str, reasons: Reasons, seen: set[Any]) -> None:
    """Of good rows, those with a key that was seen already."""
    (good,) = np.nonzero(reasons == 0)
    keys = zip(*(rows.column(name).take(pa.array(good)).to_pylist() for name in _KEYS[table]), strict=True)
    for row, key in zip(good.tolist(), keys, strict=True):
        if key in seen:
            reasons[row] = _DUPLICATE
        seen.add(key)


def _apart(rows: pa.Table, table: str, reasons: Reasons) -> Judged:
    is_bad = reasons != 0
    good = rows.filter(pa.array(~is_bad)) if is_bad.any() else rows
    bad = rows.filter(pa.array(is_bad))
    names = pa.array([REASONS[number - 1] for number in reasons[is_bad].tolist()], pa.string())
    return Judged(_with_known_bandwidths(good, table), bad.append_column("reason", names))


def _with_known_bandwidths(rows: pa.Table, table: str) -> pa.Table:
    """0 where the broker does not know the limit."""
    for usage, limit in _bandwidths(table):
        is_unknown = _numbers(rows.column(limit)) < 0
        if is_unknown.any():
            for name in (usage, limit):
                values = np.where(is_unknown, 0.0, _numbers(rows.column(name)))
                rows = rows.set_column(rows.schema.get_field_index(name), name, pa.array(values))
    return rows


def _bandwidths(table: str) -> Sequence[tuple[str, str]]:
    return _BANDWIDTHS if table == BROKER_REPORTS else ()


def _numbers(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """The values of a column; 0 in place of nulls."""
    values: npt.NDArray[Any] = (column.fill_null(0) if column.null_count else column).to_numpy()
    return values
