"""Export of history rows: CSV, JSON lines, or one Parquet file."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from loadmanager.util.atomic_write import whole

FORMATS = ("csv", "jsonl", "parquet")

_JSON_COLUMNS = frozenset({"body", "state", "rng_state", "detail", "why"})
"""Columns, also of a column's parts, that hold JSON as text."""


def json_line(row: Mapping[str, Any]) -> str:
    """Encode a row as a JSON object; JSON columns are embedded as they are."""
    return orjson.dumps(_as_json(row), default=_number).decode()


def text_lines(batches: Iterable[pa.RecordBatch], form: str, columns: list[str]) -> Iterator[str]:
    """Encode the rows as text lines without line ends; CSV begins with the column names."""
    if form == "jsonl":
        for batch in batches:
            yield from map(json_line, batch.to_pylist())
        return
    yield _csv_line(columns)
    for batch in batches:
        for row in batch.to_pylist():
            yield _csv_line([_cell(value) for value in row.values()])


def write_parquet(batches: Iterable[pa.RecordBatch], schema: pa.Schema, output: Path) -> int:
    """Write one Parquet file atomically; return its rows. Raises `OSError`."""
    rows = 0
    with whole(output) as partial, pq.ParquetWriter(partial, schema, compression="zstd") as writer:
        for batch in batches:
            writer.write_table(pa.Table.from_batches([batch], schema=schema))
            rows += batch.num_rows
    return rows


def write_text(lines: Iterable[str], output: Path) -> int:
    """Write a text file atomically; return its lines. Raises `OSError`."""
    count = 0
    with whole(output) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        for count, line in enumerate(lines, 1):  # noqa: B007 - the last number is how many there were
            file.write(f"{line}\n")
    return count


def counted(batches: Iterable[pa.RecordBatch], progress: Callable[[int, int], None]) -> Iterator[pa.RecordBatch]:
    """Pass the batches on; `progress` gets the rows so far, with an unknown total (0)."""
    rows = 0
    for batch in batches:
        yield batch
        rows += batch.num_rows
        progress(rows, 0)


def _as_json(value: Any) -> Any:  # noqa: ANN401 - whatever a column can hold
    if isinstance(value, list):
        return [_as_json(each) for each in value]
    if isinstance(value, Mapping):
        return {
            key: orjson.Fragment(each) if key in _JSON_COLUMNS and each is not None else _as_json(each)
            for key, each in value.items()
        }
    return value


def _number(value: object) -> float:
    assert isinstance(value, Decimal), "no other type of a column is unknown to JSON"
    return float(value)


def _cell(value: Any) -> str:  # noqa: ANN401 - whatever a column can hold
    if value is None:
        return ""
    return orjson.dumps(_as_json(value), default=_number).decode() if isinstance(value, list) else str(value)


def _csv_line(cells: list[str]) -> str:
    line = StringIO()
    csv.writer(line, lineterminator="").writerow(cells)
    return line.getvalue()
