"""Delta tables: a write appears to readers as a whole or not at all, also when the writer is killed half-way.

    <root>/<table>/<write>/part=<day>/*.parquet    rows, written by Spark
    <root>/<table>/_delta_log/                    the files that count

Spark writes Parquet files into a folder of their own. Then delta-rs, a Python package, commits them to Delta's log in
place of the former files, of the whole table or of some days. Replaced files are kept for a day, for readers that have
begun.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import orjson
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, create_table_with_add_actions
from pyarrow import dataset, fs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from loadmanager.errors import PipelineError
from loadmanager.history.files import Directory
from loadmanager.history.reader import times_in
from loadmanager.pipeline.datasets import frame_of, require, rows_of, schema_of
from loadmanager.pipeline.history_tables import CANNOT_GO_ON, cause_of
from loadmanager.util import clock

DAY = "part"
"""The column by which the files of a table are kept apart: a day of UTC, or `WHOLE`."""

WHOLE = "all"
_TIME = "at_ms"
_KEPT_H = 24
_CAUSES = re.compile(r"↳(?:\x1b\[0m)? *(.+)")


class Tables:
    """The tables under one root: a directory, or a URL of an object store that Spark and delta-rs know."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._spark = spark
        self._directory = Directory.of(root)

    def __str__(self) -> str:
        return self._directory.url

    @property
    def directory(self) -> Directory:
        return self._directory

    @property
    def _is_local(self) -> bool:
        """Return whether Spark writes the files itself. It has no JARs for object stores, where tasks use Arrow."""
        return bool(self._directory.filesystem.type_name == "local")

    def write(self, name: str, frame: DataFrame, days: Collection[str] | None = None) -> int:
        """Replace the table, or some days of it, and return how many rows were written.

        Without `days` the frame is the whole table. Else it has the column `DAY` besides.
        """
        marked = frame.withColumn(DAY, f.lit(WHOLE)) if days is None else frame
        rows = require(marked.drop(DAY), name).columns
        folder = _new_folder()
        with self._writing(name):
            try:
                files = self._write_files(name, marked.select(*rows, DAY), folder)
            except BaseException:
                with suppress(OSError):
                    self._directory.filesystem.delete_dir(f"{self._directory.root}/{name}/{folder}")
                raise
            self._commit(name, files, days)
        return sum(file["num_records"] for file in files)

    def write_rows(self, name: str, frame: pd.DataFrame) -> int:
        """Replace the table by rows that are known here. NaN becomes null."""
        return self.write(name, self._spark.createDataFrame(rows_of(frame, name), schema_of(name)))

    def clear(self, name: str, days: Collection[str] | None = None) -> None:
        """Remove the rows of the table, or of some days."""
        with self._writing(name):
            self._commit(name, [], days)

    def read(self, name: str, days: Collection[str] | None = None) -> DataFrame:
        """Return the table, or some days of it. `PipelineError` for one that was never written."""
        schema, paths = schema_of(name), self._paths(name, days)
        if not paths:
            return frame_of(self._spark, schema)
        if self._is_local:
            return self._spark.read.schema(schema).parquet(*(f"file:{path}" for path in paths))
        return self._read_by_tasks(paths, schema)

    def read_rows(self, name: str, where: pc.Expression | None = None) -> pa.Table:
        """Return rows of a small table, or the few rows of a table that `where` selects, in this process."""
        schema, paths = to_arrow_schema(schema_of(name)), self._paths(name)
        if not paths:
            return schema.empty_table()
        files = dataset.dataset(paths, schema, format="parquet", filesystem=self._directory.filesystem)
        return files.to_table(filter=where)

    @contextmanager
    def staging(self) -> Iterator[Callable[[DataFrame], DataFrame]]:
        """Give a function that writes a frame to Parquet for the time being, and returns it read back.

        What follows has a short plan, and outlives the executors that made the rows.
        """
        folder = f"_staging/{_new_folder()}"

        def stage(frame: DataFrame) -> DataFrame:
            path = f"{folder}/{secrets.token_hex(4)}"
            try:
                if not self._is_local:
                    return self._read_by_tasks(
                        self._write_by_tasks(frame.withColumn(DAY, f.lit(WHOLE)), path), frame.schema
                    )
                frame.write.option("compression", "snappy").parquet(f"file:{self}/{path}")
            except CANNOT_GO_ON as error:
                raise PipelineError(f"{self}/{path}: cannot be written: {cause_of(str(error))}") from error
            return self._spark.read.schema(frame.schema).parquet(f"file:{self}/{path}")

        try:
            yield stage
        finally:
            with suppress(OSError):
                self._directory.filesystem.delete_dir(f"{self._directory.root}/_staging")

    def has(self, name: str) -> bool:
        """Return whether the table was ever written."""
        return self._open(name) is not None

    def rows(self, name: str) -> int:
        return sum(file["num_records"] for file in self._files(self._open(name)))

    def times(self, name: str) -> tuple[int, int] | None:
        """Return the first and the last `at_ms` in the table; None for a table without rows."""
        files = self._files(self._open(name))
        if not files:
            return None
        return min(file[f"min.{_TIME}"] for file in files), max(file[f"max.{_TIME}"] for file in files)

    def _paths(self, name: str, days: Collection[str] | None = None) -> list[str]:
        table = self._open(name)
        if table is None:
            raise PipelineError(f"{self}/{name}: there is no such table yet; run the step that writes it")
        files = self._files(table)
        return [f"{self._directory.root}/{name}/{file['path']}" for file in files if days is None or file[DAY] in days]

    def _files(self, table: DeltaTable | None) -> list[dict[str, Any]]:
        """Return the files of a table: `path`, `size_bytes`, `num_records`, `DAY`, and the bounds of `at_ms`."""
        if table is None:
            return []
        files = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        return [{**file, DAY: file[f"partition.{DAY}"]} for file in files]

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        try:
            yield
        except CANNOT_GO_ON as error:
            raise PipelineError(f"{self}/{name}: cannot be written: {cause_of(str(error))}") from error
        table = self._open(name)
        with suppress(DeltaError, OSError):
            if table is not None and table.vacuum(_KEPT_H, enforce_retention_duration=False, full=True):
                table.vacuum(_KEPT_H, dry_run=False, enforce_retention_duration=False, full=True)

    def _write_files(self, name: str, frame: DataFrame, folder: str) -> list[dict[str, Any]]:
        """Write the rows into a folder where they do not count yet, and describe the files."""
        root, balanced = f"{self._directory.root}/{name}", frame.hint("rebalance", DAY)
        if self._is_local:
            balanced.write.partitionBy(DAY).option("compression", "zstd").parquet(f"file:{root}/{folder}")
            wanted: Any = fs.FileSelector(f"{root}/{folder}", recursive=True, allow_not_found=True)
        else:
            wanted = self._write_by_tasks(balanced, f"{name}/{folder}")
        infos = self._directory.filesystem.get_file_info(wanted)
        return [self._described(info, root) for info in infos if info.path.endswith(".parquet")]

    def _write_by_tasks(self, frame: DataFrame, folder: str) -> list[str]:
        written = frame.mapInArrow(partial(_write_files, str(self), folder), "path string").collect()
        return [f"{self._directory.root}/{row.path}" for row in written]

    def _read_by_tasks(self, paths: Sequence[str], schema: t.StructType) -> DataFrame:
        if not paths:
            return frame_of(self._spark, schema)
        listed = self._spark.createDataFrame([(path,) for path in paths], "path string").repartition(len(paths))
        return listed.mapInArrow(partial(_read_files, str(self), to_arrow_schema(schema)), schema)

    def _described(self, info: Any, root: str) -> dict[str, Any]:  # noqa: ANN401 - Arrow's information on a file
        with self._directory.open(info.path) as file, pq.ParquetFile(file) as parquet:
            rows, times = parquet.metadata.num_rows, times_in(parquet)
        path = info.path.removeprefix(f"{root}/")
        found = {"path": path, "size_bytes": info.size, "num_records": rows, DAY: path.split("/")[1].partition("=")[2]}
        return found | ({f"min.{_TIME}": min(times), f"max.{_TIME}": max(times)} if times else {})

    def _commit(self, name: str, files: Sequence[Mapping[str, Any]], days: Collection[str] | None) -> None:
        """Make these files count in place of those of the days, or of all."""
        actions: list[Any] = [
            AddAction(file["path"], file["size_bytes"], {DAY: file[DAY]}, clock.now_ms(), True, _statistics(file))  # noqa: FBT003 - its API
            for file in files
        ]
        schema = Schema.from_arrow(to_arrow_schema(schema_of(name)).append(pa.field(DAY, pa.string())))
        table = self._open(name)
        try:
            if table is None:
                create_table_with_add_actions(f"{self}/{name}", schema, actions, partition_by=[DAY])
            else:
                replaced = None if days is None else [(DAY, "in", sorted(days))]
                table.create_write_transaction(actions, "overwrite", schema, [DAY], replaced)
        except DeltaError as error:
            raise PipelineError(f"{self}/{name}: cannot be written: {_in_a_line(error)}") from error

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
    """Write the rows of a task, a file for each day, and return the paths."""
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


def _new_folder() -> str:
    return f"{clock.now_ms():013d}-{secrets.token_hex(4)}"


def _statistics(file: Mapping[str, Any]) -> str:
    """Encode the number of rows, and the bounds of their times, by which readers of a range pass over files."""
    found: dict[str, Any] = {"numRecords": file["num_records"]}
    for bound in ("min", "max"):
        if f"{bound}.{_TIME}" in file:
            found[f"{bound}Values"] = {_TIME: file[f"{bound}.{_TIME}"]}
    return orjson.dumps(found).decode()


def _in_a_line(error: Exception) -> str:
    """Return the error with its causes, without the place in delta-rs."""
    text = str(error)
    return ": ".join([text.partition("\n")[0], *_CAUSES.findall(text)])
