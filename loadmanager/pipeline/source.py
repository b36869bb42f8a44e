"""Spark data source for a history: `spark.read.format("loadmanager").option("table", "bundle_reports").load(url)`.

docs/pipeline.md lists its options and columns. The range and `columns` are options because Spark 4.3 does not pass
columns to a Python data source, and applies filters pushed down for one query to all queries on the frame
(`PythonDataSourceV2.setReadInfo`), which then miss rows.

Files of hours outside the range are not opened. A row that lies in the folder of a wrong hour is therefore not found by
its time. In mode PERMISSIVE a task holds the rows of one file in memory.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from loadmanager.errors import HistoryFileError, HistorySchemaError, PipelineError
from loadmanager.history.files import Directory, HistoryFile
from loadmanager.history.reader import History, rates_of
from loadmanager.history.table_schemas import RATE, TABLES
from loadmanager.pipeline.datasets import raw

FORMAT = "loadmanager"
FAILFAST, PERMISSIVE = "FAILFAST", "PERMISSIVE"

_OPTIONS = ("table", "mode", "from_ms", "to_ms", "files", "columns", "path")
_TASK_BYTES = 16 << 20
"""Size of the files of one task, before decompression."""
_FILE_BYTES = 256 << 10
"""Cost of opening a file, as a size."""


def read_history(
    spark: SparkSession,
    url: str,
    table: str,
    columns: Sequence[str] = (),
    *,
    leaves_out: bool,
    **options: str | int | None,
) -> DataFrame:
    """Return columns of a table, by default all. `leaves_out` selects mode PERMISSIVE. Options may be None."""
    given = {name: value for name, value in options.items() if value is not None}
    reader = spark.read.format(FORMAT).options(table=table, mode=PERMISSIVE if leaves_out else FAILFAST, **given)
    return reader.option("columns", ",".join(columns)).load(url)


def place_of(path: str) -> str:
    """Return the path within the history (table, date, hour and name), the value of the column `file`."""
    return "/".join(path.split("/")[-4:])


def history_at(url: str) -> Directory:
    """Return the directory of a history. Raises `PipelineError` if it does not exist."""
    directory = Directory.of(url) if url else None
    if directory is None or not directory.exists():
        from loadmanager.config.settings_base import without_password  # noqa: PLC0415 - few need it, and it takes a second

        raise PipelineError(f"{without_password(url) or '.load()'}: there is no history: no such directory")
    return directory


class HistoryDataSource(DataSource):
    """The format `loadmanager`. Raises `PipelineError` for invalid options."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        unknown = sorted({name.lower() for name in options} - set(_OPTIONS))
        if unknown:
            raise PipelineError(f"option {unknown[0]}: unknown; there are {', '.join(_OPTIONS[:-1])}")
        self.table, self.mode = options.get("table", ""), options.get("mode", FAILFAST).upper()
        if self.table not in TABLES:
            raise PipelineError(f"option table {self.table!r}: unknown; the history has {', '.join(TABLES)}")
        if self.mode not in {FAILFAST, PERMISSIVE}:
            raise PipelineError(f"option mode {self.mode!r}: expected {FAILFAST} or {PERMISSIVE}")
        self.from_ms, self.to_ms = (_decoded(options, each, int, "ms since 1970") for each in ("from_ms", "to_ms"))
        self.files: list[str] | None = _decoded(options, "files", list, "a JSON list of paths within the history")
        self.columns = [name.strip() for name in options.get("columns", "").split(",") if name.strip()]
        self.url = options.get("path", "")
        history_at(self.url)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> t.StructType:
        there = raw(self.table).add("file", "string").add("hour_ms", "long")
        if self.mode == PERMISSIVE:
            there.add("damaged", "string")
        unknown = [name for name in self.columns if name not in there.names]
        if unknown:
            raise PipelineError(f"option columns: {', '.join(unknown)}: unknown; there are {', '.join(there.names)}")
        return t.StructType([there[name] for name in self.columns or there.names])

    def reader(self, schema: t.StructType) -> DataSourceReader:
        return _HistoryReader(self, to_arrow_schema(schema))


@dataclass
class _Task(InputPartition):
    """Files to read, and files that are known to be unreadable."""

    files: Sequence[HistoryFile] = ()
    faults: Sequence[HistoryFileError] = ()


class _HistoryReader(DataSourceReader):
    """Plans tasks on the driver, from listings; reads files in tasks."""

    def __init__(self, source: HistoryDataSource, schema: pa.Schema) -> None:
        self._source = source
        self._schema = schema

    def partitions(self) -> Sequence[_Task]:
        """Return the files, ordered by hour, in tasks of about equal size."""
        source, tasks = self._source, defaultdict[int, list[HistoryFile]](list)
        files, faults = Directory.of(source.url).list_files(source.table, source.from_ms, source.to_ms)
        if source.files is not None:
            wanted = set(source.files)
            files, faults = [each for each in files if place_of(each.path) in wanted], []
        if faults and source.mode == FAILFAST:
            raise faults[0]
        files.sort(key=lambda each: (each.hour_ms, each.order))
        ends = list(accumulate(each.size_bytes + _FILE_BYTES for each in files))
        for file, end in zip(files, ends, strict=True):
            tasks[(end - 1) * -(-ends[-1] // _TASK_BYTES) // ends[-1]].append(file)
        found = [*map(_Task, tasks.values())]
        return found if found and not faults else [_Task((), faults), *found]  # Spark needs one at least

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Task)
        for fault in partition.faults:
            yield self._damaged_row(fault, None)
        history = History(self._source.url)
        for file in partition.files:
            yield from self._rows(history, file)

    def _rows(self, history: History, file: HistoryFile) -> Iterable[pa.RecordBatch]:
        """Return the requested rows of a file, or the row of a damaged file. Raises `HistoryFileError`."""
        source, faults = self._source, list[HistoryFileError]()
        names = ["at_ms", *(name for name in self._schema.names if name in TABLES[file.table].names)]
        on_fault = None if source.mode == FAILFAST else faults.append
        found = history.scan_files([file], file.table, source.from_ms, source.to_ms, names, on_fault)
        rows = (self._converted(file, batch) for batch in found)
        if source.mode == FAILFAST:
            return rows
        held = list(rows)
        for fault in faults:
            if isinstance(fault, HistorySchemaError):
                raise fault
        return [self._damaged_row(fault, file.hour_ms) for fault in faults] or held

    def _converted(self, file: HistoryFile, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Convert to the columns of the query."""
        given = {"file": place_of(file.path), "hour_ms": file.hour_ms}
        columns = []
        for wanted in self._schema:
            if wanted.name in rows.schema.names:
                column = rows.column(wanted.name)
            else:
                column = pa.repeat(pa.scalar(given.get(wanted.name), wanted.type), rows.num_rows)
            if column.type == RATE:  # casting decimals would take a third of the reading time
                column = pa.array(rates_of(column), mask=np.asarray(column.is_null()))
            columns.append(column.cast(wanted.type))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _damaged_row(self, error: HistoryFileError, hour_ms: int | None) -> pa.RecordBatch:
        path, _, why = str(error).partition(": ")
        row = {"file": place_of(path), "hour_ms": hour_ms, "damaged": why}
        return pa.RecordBatch.from_pylist([{name: row.get(name) for name in self._schema.names}], self._schema)


def _decoded(options: Mapping[str, str], name: str, kind: type, expected: str) -> Any:  # noqa: ANN401 - JSON
    if name not in options:
        return None
    try:
        value = json.loads(options[name])
    except ValueError:
        value = None
    if not isinstance(value, kind):
        raise PipelineError(f"option {name} {options[name]!r}: expected {expected}")
    return value
