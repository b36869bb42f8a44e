"""The rows of a history's file as the pipeline has them, read where Spark has brought the bytes: without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from loadmanager.core.recordable import RATE_STEPS_PER_UNIT
from loadmanager.history.reader import rates_of
from loadmanager.history.schemas import NAME, RATE, TABLES, version_of

_BATCH_ROWS = 1 << 18


@cache
def raw_schema(table: str) -> pa.Schema:
    """The columns of a table of the history; rates are doubles here."""
    return pa.schema([(each.name, pa.float64() if each.type == RATE else each.type) for each in TABLES[table].columns])


def raw_rows(content: bytes, table: str, where: str) -> Iterator[pa.Table]:
    """All rows of a file, some at a time. Raises `HistoryFileError`, `OSError` or `pyarrow.ArrowException`."""
    known = TABLES[table]
    names = [each.name for each in known.columns if each.type == NAME]
    with pq.ParquetFile(pa.BufferReader(content), read_dictionary=names) as parquet:
        schema = parquet.schema_arrow
        known.conform(schema.empty_table(), version_of(schema.metadata, table, where), where)
        there = [name for name in known.names if name in schema.names]
        for batch in parquet.iter_batches(_BATCH_ROWS, columns=there, use_threads=False):
            yield _as_ours(pa.Table.from_batches([batch]), table)


def _as_ours(rows: pa.Table, table: str) -> pa.Table:
    schema = raw_schema(table)
    given = dict(zip(rows.column_names, rows.columns, strict=True))
    columns = []
    for wanted, kind in zip(schema, (each.type for each in TABLES[table].columns), strict=True):
        column = given.get(wanted.name)
        if column is None:
            columns.append(pa.nulls(rows.num_rows, wanted.type))
        elif kind == RATE:
            columns.append(_rates(column))
        else:
            columns.append(column if column.type == wanted.type else column.cast(wanted.type))
    return pa.table(columns, schema=schema)


def _rates(column: pa.ChunkedArray) -> pa.Array:
    """Of decimals as we write them without a conversion, which would take a third of the time of reading."""
    if column.type == RATE and not column.null_count:
        return pa.array(np.concatenate([np.empty(0), *(rates_of(chunk) for chunk in column.chunks)]))
    numbers = column.cast(pa.float64())
    steps = np.rint(numbers.fill_null(0.0).to_numpy() * RATE_STEPS_PER_UNIT) / RATE_STEPS_PER_UNIT
    return pa.array(steps, mask=np.asarray(numbers.is_null()))
