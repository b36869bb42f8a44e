"""Packing of entries into files: one per table and hour, for each batch of entries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from loadmanager.history.entry_rows import Placed, by_table, columns_of
from loadmanager.history.files import HOUR_MS, pack, path_of
from loadmanager.history.table_schemas import EVENTS

Refused = Callable[[Placed, Exception], None]
"""Handler of an entry that does not fit its table; the others are still written."""

_PIECE_ROWS = 5_000
"""Rows to convert at once; other threads can run between slices."""


@dataclass(frozen=True, slots=True)
class PackedFile:
    """An encoded file before its write: path below the root, bytes, number of rows."""

    path: str
    data: pa.Buffer
    rows: int


def pack_entries(entries: Sequence[Placed], node: str, refused: Refused) -> list[PackedFile]:
    """Pack ordered entries of one epoch into files, in writing order. Events come last: one of them ends the term, and
    all other rows must be written by then.
    """
    columns: dict[str, list[pa.Table]] = defaultdict(list)
    for piece in _pieces(entries):
        for table, placed in by_table(piece).items():
            columns[table] += _columns(table, placed, refused)
    since_ms = min(each.at_ms for each in entries)
    return [
        packed
        for table, parts in sorted(columns.items(), key=lambda each: each[0] == EVENTS)
        if parts
        for packed in _pack_table(table, pa.concat_tables(parts).unify_dictionaries(), node, since_ms)
    ]


def _columns(table: str, placed: list[Placed], refused: Refused) -> list[pa.Table]:
    """Convert the entries into columns; if one is faulty, convert them one by one."""
    try:
        return [columns_of(table, placed)]
    except Exception as error:  # noqa: BLE001 - any error must cost only the faulty entry
        if len(placed) == 1:
            refused(placed[0], error)
            return []
    return [part for each in placed for part in _columns(table, [each], refused)]


def _pieces(entries: Sequence[Placed]) -> Iterator[Sequence[Placed]]:
    first, rows = 0, 0
    for last, each in enumerate(entries, 1):
        rows += each.entry.rows
        if rows >= _PIECE_ROWS or last == len(entries):
            yield entries[first:last]
            first, rows = last, 0


def _pack_table(table: str, rows: pa.Table, node: str, since_ms: int) -> Iterator[PackedFile]:
    hours = rows.column("at_ms").to_numpy() // HOUR_MS
    epoch = rows.column("epoch")[0].as_py()
    for hour in np.unique(hours).tolist():
        mask = hours == hour
        own = rows if mask.all() else rows.filter(pa.array(mask))
        sequences = own.column("sequence").to_numpy()
        path = path_of(table, hour * HOUR_MS, epoch, (int(sequences[0]), int(sequences[-1])), node)
        yield PackedFile(path, pack(table, own, since_ms), own.num_rows)
