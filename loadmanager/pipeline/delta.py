"""Delta tables: readers see a write completely or not at all, even if the writer is killed.

    <root>/<table>/<write>/part=<day>/*.parquet    rows, written by Spark
    <root>/<table>/_delta_log/                    list of the current files

Spark writes Parquet files into a new folder. Then delta-rs, a Python package, commits them to Delta's log, where they
replace the files of the whole table or of some days. Replaced files are deleted after a day, so that running readers
can finish.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, create_table_with_add_actions
from pyarrow import dataset
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from loadmanager.errors import PipelineError
from loadmanager.history.files import Directory
from loadmanager.history.reader import times_in
from loadmanager.pipeline.datasets import frame_of, require, rows_of, schema_of
from loadmanager.pipeline.history_tables import ENGINE_ERRORS, cause_of
from loadmanager.util import clock

DAY = "part"
"""Partition column of every table: a UTC day, or `WHOLE`."""

WHOLE = "all"
_STAGING = "_staging"
_TIME = "at_ms"
_WITHIN = 3
"""Parts of the path of a file within its table: the write, the day and the name."""
_KEPT_H = 24
_CAUSES = re.compile(r"↳(?:\x1b\[0m)? *(.+)")

Transform = Callable[[DataFrame], DataFrame]


class Tables:
    """The tables under one root: a directory, or a URL of an object store that Spark and delta-rs know."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._spark = spark
        self.directory = Directory.of(root)
        self._is_local = self.directory.filesystem.type_name == "local"
        """True if Spark accesses the files itself. It has no JARs for object stores, where tasks use Arrow."""

    def __str__(self) -> str:
        return self.directory.url

    def write(
        self, name: str, frame: DataFrame, days: Collection[str] | None = None, derive: Transform | None = None
    ) -> None:
        """Replace the table, or some days of it.

        Without `days` the frame is the whole table. With `days` it also has the column `DAY`. `derive` makes further
        rows of the table from those written; both are committed together.
        """
        with self._writing(name):
            paths = self._write_rows(name, frame.withColumn(DAY, f.lit(WHOLE)) if days is None else frame)
            if derive is not None:
                paths += self._write_rows(name, derive(self._read_files(paths, schema_of(name))))
            self._commit(name, [*map(self._described, paths)], days)

    def write_rows(self, name: str, frame: pd.DataFrame) -> None:
        """Replace the table by a pandas frame. NaN becomes null."""
        self.write(name, self._spark.createDataFrame(rows_of(frame, name), schema_of(name)))

    def clear(self, name: str, days: Collection[str] | None = None) -> None:
        """Remove the rows of the table, or of some days."""
        with self._writing(name):
            self._commit(name, [], days)

    def read(self, name: str, days: Collection[str] | None = None) -> DataFrame:
        """Return the table, or some days of it. Raises `PipelineError` if it was never written."""
        schema, files = schema_of(name), self._files(self._table(name))
        paths = [each["path"] for each in files if days is None or each[f"partition.{DAY}"] in days]
        return self._read_files([f"{self.directory.root}/{name}/{path}" for path in paths], schema)

    def read_rows(self, name: str, where: pc.Expression | None = None) -> pa.Table:
        """Read a small table, or the few rows that `where` selects, into this process."""
        return self._table(name).to_pyarrow_dataset().to_table(schema_of(name).names, where)

    @contextmanager
    def staging(self) -> Iterator[Transform]:
        """Provide a function that writes a frame to temporary Parquet files and returns a frame that reads them.

        The plans of later queries stay short, and the rows survive a lost executor.
        """

        def stage(frame: DataFrame) -> DataFrame:
            marked = frame if self._is_local else frame.withColumn(DAY, f.lit(WHOLE))
            with self._writing(_STAGING):
                paths = self._write_files(_STAGING, marked)
            return self._read_files(paths, frame.schema)

        try:
            yield stage
        finally:
            self._delete(_STAGING)

    def has(self, name: str) -> bool:
        """Return True if the table was ever written."""
        return self._open(name) is not None

    def rows(self, name: str) -> int:
        return self._table(name).count()

    def times(self, name: str) -> tuple[int, int] | None:
        """Return the first and the last `at_ms` in the table; None for a table without rows."""
        table = self._open(name)
        files = [] if table is None else self._files(table)
        if not files:
            return None
        return min(file[f"min.{_TIME}"] for file in files), max(file[f"max.{_TIME}"] for file in files)

    @staticmethod
    def _files(table: DeltaTable) -> list[dict[str, Any]]:
        """Return the files of a table: `path`, their day, and the bounds of `at_ms`."""
        files: list[dict[str, Any]] = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        return files

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        try:
            yield
        except ENGINE_ERRORS as error:
            raise PipelineError(f"{self}/{name}: cannot be written: {cause_of(str(error))}") from error
        table = self._open(name)
        with suppress(DeltaError, OSError):
            if table is not None and table.vacuum(_KEPT_H, enforce_retention_duration=False, full=True):
                table.vacuum(_KEPT_H, dry_run=False, enforce_retention_duration=False, full=True)

    def _write_rows(self, name: str, frame: DataFrame) -> list[str]:
        columns = require(frame.drop(DAY), name).columns
        return self._write_files(name, frame.select(*columns, DAY).hint("rebalance", DAY))

    def _write_files(self, name: str, frame: DataFrame) -> list[str]:
        """Write the rows into a new folder, partitioned by `DAY` if they have it. Return the paths, to be committed."""
        folder = f"{name}/{clock.now_ms():013d}-{secrets.token_hex(4)}"
        try:
            if not self._is_local:
                written = frame.mapInArrow(partial(_write_files, str(self), folder), "path string").collect()
                return [f"{self.directory.root}/{row.path}" for row in written]
            path, days = f"{self.directory.root}/{folder}", [DAY] if DAY in frame.columns else []
            compression = "zstd" if days else "snappy"
            frame.write.partitionBy(*days).option("compression", compression).parquet(f"file:{path}")
        except BaseException:
            self._delete(folder)
            raise
        return [str(file) for file in Path(path).rglob("*.parquet")]

    def _read_files(self, paths: Sequence[str], schema: t.StructType) -> DataFrame:
        if not paths:
            return frame_of(self._spark, schema)
        if self._is_local:
            return self._spark.read.schema(schema).parquet(*(f"file:{path}" for path in paths))
        listed = self._spark.createDataFrame([(path,) for path in paths], "path string").repartition(len(paths))
        return listed.mapInArrow(partial(_read_files, str(self), to_arrow_schema(schema)), schema)

    def _delete(self, folder: str) -> None:
        with suppress(OSError):
            self.directory.filesystem.delete_dir(f"{self.directory.root}/{folder}")

    def _described(self, path: str) -> AddAction:
        """Return the log entry of a file, with its row count and time bounds, by which readers skip files."""
        with self.directory.open(path) as file, pq.ParquetFile(file) as parquet:
            size, rows, times = file.size(), parquet.metadata.num_rows, times_in(parquet)
        statistics: dict[str, Any] = {"numRecords": rows}
        if times:
            statistics |= {"minValues": {_TIME: min(times)}, "maxValues": {_TIME: max(times)}}
        within = "/".join(path.split("/")[-_WITHIN:])
        day = within.split("/")[1].partition("=")[2]
        return AddAction(within, size, {DAY: day}, clock.now_ms(), True, orjson.dumps(statistics).decode())  # noqa: FBT003 - its API

    def _commit(self, name: str, files: list[Any], days: Collection[str] | None) -> None:
        """Commit these files in place of the files of these days, or of the whole table."""
        schema = Schema.from_arrow(to_arrow_schema(schema_of(name)).append(pa.field(DAY, pa.string())))
        table = self._open(name)
        try:
            if table is None:
                create_table_with_add_actions(f"{self}/{name}", schema, files, partition_by=[DAY])
            else:
                replaced = None if days is None else [(DAY, "in", sorted(days))]
                table.create_write_transaction(files, "overwrite", schema, [DAY], replaced)
        except DeltaError as error:
            raise PipelineError(f"{self}/{name}: cannot be written: {_in_a_line(error)}") from error

    def _table(self, name: str) -> DeltaTable:
        table = self._open(name)
        if table is None:
            raise PipelineError(f"{self}/{name}: there is no such table yet; run the step that writes it")
        return table

    def _open(self, name: str) -> DeltaTable | None:
        try:
            return DeltaTable(f"{self}/{name}")
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise PipelineError(
                f"{self}/{name}: its log cannot be read: {_in_a_line(error)}; write the table anew"
            ) from None


def _write_files(root: str, folder: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the rows of a task, one file per day, and return the paths."""
    directory, task, read = Directory.of(root), secrets.token_hex(8), list(batches)
    rows = pa.Table.from_batches(read) if read else pa.table({DAY: pa.array([], pa.string())})
    for day in rows[DAY].unique().to_pylist():
        sink, path = pa.BufferOutputStream(), f"{folder}/{DAY}={day}/{task}.parquet"
        pq.write_table(rows.filter(pc.equal(rows[DAY], day)).drop_columns([DAY]), sink, compression="zstd")
        directory.write(path, sink.getvalue())
        yield pa.RecordBatch.from_pydict({"path": [path]})


def _read_files(root: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    filesystem = Directory.of(root).filesystem
    for batch in batches:
        for path in batch.column("path").to_pylist():
            yield from dataset.dataset(path, schema, format="parquet", filesystem=filesystem).to_batches()


def _in_a_line(error: Exception) -> str:
    """Return the error and its causes in one line, without source locations of delta-rs."""
    text = str(error)
    return ": ".join([text.partition("\n")[0], *_CAUSES.findall(text)])
