"""Tables that are written exactly once: a part of a table is there as a whole, or as it was before.

    <root>/<table>/<write>/part=<key>/*.parquet        the rows

A write puts its rows into a folder of its own, and then has the table's account say that they count: Delta's log, or
with `parquet` a manifest of ours. A table stays in the format that it began in.

What Spark's workers in Python make, they pack as files there. On filesystems that they reach themselves, they put these
where they belong; on others Spark writes the rows.
"""

from __future__ import annotations

import re
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Literal

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import dataset, fs
from pyspark import RDD, StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from loadmanager.errors import PipelineError
from loadmanager.history.files import Directory
from loadmanager.history.reader import times_in
from loadmanager.pipeline.contents import PART, WHOLE, Account, Contents, RowFile
from loadmanager.pipeline.datasets import require, rows_of, schema_of
from loadmanager.pipeline.delta import LOG, DeltaAccount
from loadmanager.pipeline.filesystems import CANNOT_GO_ON, directory_at, url_for_spark
from loadmanager.pipeline.manifests import MANIFESTS, ManifestAccount
from loadmanager.pipeline.reading import cause_of, naming_bad_files
from loadmanager.pipeline.schemas import METRICS, frame_of
from loadmanager.pipeline.storing import (
    Put,
    Stored,
    part_and_data,
    put_here,
    put_nowhere,
    table_of,
    told_of,
    unpacked_rows,
)

Format = Literal["delta", "parquet"]

Parts = dict[str, dict[str, list[RowFile]]]
"""The files of each part of each table."""

_LOGS: dict[Format, str] = {"delta": LOG, "parquet": MANIFESTS}
_OF_DELTA = re.compile(r"(s3a?|gs|abfss?|az)://")
_COMPRESSION, _PARQUET = "zstd", ".parquet"
_PACKED = f"{PART} string, data binary"


class Tables:
    """The tables under one root, on any filesystem that Spark knows. Without a `table_format`, new ones are Delta's if
    delta-rs knows the filesystem too.
    """

    def __init__(self, spark: SparkSession, root: str, table_format: Format | None = None) -> None:
        self._spark = spark
        self._directory = directory_at(spark, root)
        self._files = self._directory.filesystem
        self._is_local = isinstance(self._files, fs.LocalFileSystem)
        self._wanted = table_format
        self._accounts: dict[Format, Account] = {"parquet": ManifestAccount(self._directory)}
        if self._is_local or _OF_DELTA.match(self._directory.root):
            self._accounts["delta"] = DeltaAccount(self._directory.root)
        elif table_format == "delta":
            raise PipelineError(f"{root}: Delta tables cannot be written there: have them in the format parquet")

    def __str__(self) -> str:
        return self._directory.root

    @property
    def directory(self) -> Directory:
        return self._directory

    def write(self, name: str, frame: DataFrame) -> int:
        """Make the frame the table; how many rows it has."""
        marked = require(frame, name).withColumn(PART, f.lit(WHOLE))
        folder = _new_folder()
        with self._writing(name) as account, self._clearing(folder, name):
            with naming_bad_files():
                parts = self._write_parts(name, marked, folder)
            account.commit(name, parts, None)
        return sum(file.rows for files in parts.values() for file in files)

    def write_rows(self, name: str, frame: pd.DataFrame, key: str | None = None) -> int:
        """Make few rows that are known here the table, or the part `key` of it: no work for Spark. What is not a number
        is null.
        """
        self.write_parts(name, {key or WHOLE: frame}, None if key is None else [key])
        return len(frame)

    def write_parts(self, name: str, frames: Mapping[str, pd.DataFrame], keys: Sequence[str] | None) -> None:
        """The same with the rows of several parts, in place of the parts `keys`; None: of all."""
        with self._writing(name) as account:
            rows = {key: rows_of(frame, name) for key, frame in frames.items() if len(frame)}
            account.commit(name, {key: [self._put(name, key, each)] for key, each in rows.items()}, keys)

    def write_made(
        self, made: Callable[[Put], RDD[Any]], keys: Mapping[str, Sequence[str]], told: Callable[[Sequence[Any]], None]
    ) -> None:
        """Make what is `Packed` among what tasks have `made` these parts of its tables, one table after the other.

        Tasks of which others go on with what they made are to put it into its place (`Put`); for the last ones it is
        done here. Of each table in `keys` these parts are replaced, also where there are no rows of them. Before
        anything counts what else was made is `told`, who may refuse it by an error.
        """
        folder = _new_folder()
        with self._clearing(folder):
            try:
                write = self._written_by_tasks if self._is_local else self._written_by_spark
                with naming_bad_files():
                    added, others = write(made, folder)
            except CANNOT_GO_ON as error:
                raise PipelineError(f"{self}: rows cannot be written: {cause_of(str(error))}") from error
            told(others)
        for name, replaced in keys.items():
            unexpected = sorted(added[name].keys() - set(replaced))
            if unexpected:
                parts = ", ".join(unexpected)
                raise PipelineError(f"{self}/{name}: rows of parts {parts}, which are not to be replaced")
            there = self.contents(name)
            if added[name] or not there.number or not there.parts.keys().isdisjoint(replaced):
                with self._writing(name) as account:
                    account.commit(name, added[name], replaced)

    def clear(self, name: str, keys: Sequence[str] | None = None) -> None:
        """Have these parts without rows, or the whole table."""
        with self._writing(name) as account:
            account.commit(name, {}, keys)

    @contextmanager
    def _writing(self, name: str) -> Iterator[Account]:
        account = self._account(name)
        try:
            yield account
        except CANNOT_GO_ON as error:
            raise PipelineError(f"{self}/{name}: cannot be written: {cause_of(str(error))}") from error
        account.clean(name)

    def read(self, name: str, keys: Sequence[str] | None = None) -> DataFrame:
        """The table, or these of its parts as far as there are any; `PipelineError` when it was never written."""
        schema = schema_of(name)
        paths = [url_for_spark(self._directory, path) for path in self._paths(name, keys)]
        return self._spark.read.schema(schema).parquet(*paths) if paths else frame_of(self._spark, schema)

    def read_rows(self, name: str, where: pc.Expression | None = None) -> pa.Table:
        """As `read`, in this process: of a table that has few rows, or few of which this holds."""
        schema = to_arrow_schema(schema_of(name))
        paths = self._paths(name)
        files = [file for path in paths for file in ([path] if path.endswith(_PARQUET) else self._files_in(path))]
        if not files:
            return schema.empty_table()
        return dataset.dataset(files, schema, format="parquet", filesystem=self._files).to_table(filter=where)

    def _paths(self, name: str, keys: Collection[str] | None = None) -> list[str]:
        return [path for path, _ in self.files(name, keys)]

    def files(self, name: str, keys: Collection[str] | None = None) -> list[tuple[str, RowFile]]:
        """The paths of the files with the rows of the table, or of these of its parts; of tables of before in plain
        Parquet their folders. `PipelineError` when it was never written.
        """
        contents = self.contents(name)
        if not contents.number:
            raise PipelineError(f"{self}/{name}: there is no such table yet; run the step that writes it")
        return [
            (f"{self._directory.root}/{name}/{file.path}", file)
            for key, files in contents.parts.items()
            for file in files
            if file.rows and (keys is None or key in keys)
        ]

    def has(self, name: str) -> bool:
        return self.contents(name).number > 0

    def rows(self, name: str) -> int:
        return self.contents(name).rows

    def contents(self, name: str) -> Contents:
        """What counts at this moment; number 0 when there is nothing."""
        return self._account(name).contents(name)

    def _account(self, name: str) -> Account:
        """That of the format which the table began in."""
        there = {info.base_name for info in self._list(f"{self._directory.root}/{name}")}
        begun: Format | None = next((each for each, log in _LOGS.items() if log in there), None)
        if begun is not None and self._wanted not in (None, begun):
            raise PipelineError(f"{self}/{name}: is in the format {begun}; have {self._wanted} in another directory")
        if begun is not None and begun not in self._accounts:
            raise PipelineError(f"{self}/{name}: a Delta table, which cannot be read there")
        return self._accounts[begun or self._wanted or ("delta" if "delta" in self._accounts else "parquet")]

    def _write_parts(self, name: str, frame: DataFrame, folder: str) -> dict[str, list[RowFile]]:
        """The rows in a folder of their own, where they do not count yet."""
        rows = frame.write.partitionBy(PART).options(**_options(frame))
        rows.parquet(url_for_spark(self._directory, f"{self._directory.root}/{name}/{folder}"))
        return self._parts_in(name, folder)

    def _written_by_tasks(self, made: Callable[[Put], RDD[Any]], folder: str) -> tuple[Parts, list[Any]]:
        """By workers that reach the same filesystem."""
        put = partial(put_here, self._directory.root, folder)
        added: Parts = defaultdict(dict)
        others = []
        for each in put("last", made(put)).collect():
            if isinstance(each, Stored):
                added[each.table].setdefault(each.part, []).append(each.file)
            else:
                others.append(each)
        return added, others

    def _written_by_spark(self, made: Callable[[Put], RDD[Any]], folder: str) -> tuple[Parts, list[Any]]:
        """Workers in Python reach no other filesystem: they keep what they made, and unpack it for Spark."""
        added: Parts = defaultdict(dict)
        kept = made(put_nowhere).persist(StorageLevel.DISK_ONLY)
        try:
            for name in kept.flatMap(table_of).distinct().collect():
                packed = self._spark.createDataFrame(kept.flatMap(partial(part_and_data, name)), _PACKED)
                kinds = t.StructType([*schema_of(name).fields, t.StructField(PART, t.StringType())])
                rows = packed.mapInArrow(partial(unpacked_rows, to_arrow_schema(kinds)), kinds)
                added[name] = self._write_parts(name, rows, folder)
            return added, kept.flatMap(told_of).collect()
        finally:
            kept.unpersist()

    @contextmanager
    def _clearing(self, folder: str, *names: str) -> Iterator[None]:
        """What is in this folder of these tables, or of any, goes away when the write fails."""
        try:
            yield
        except BaseException:
            for name in names or [each.base_name for each in self._list(self._directory.root)]:
                with suppress(OSError):
                    self._files.delete_dir(f"{self._directory.root}/{name}/{folder}")
            raise

    def _put(self, name: str, key: str, rows: pa.Table) -> RowFile:
        """The same, of rows that are known here."""
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, compression=_COMPRESSION)
        data, path = sink.getvalue(), f"{_new_folder()}/{PART}={key}/rows{_PARQUET}"
        self._directory.write(f"{name}/{path}", data)
        return RowFile(path, rows.num_rows, data.size)

    def _parts_in(self, name: str, folder: str) -> dict[str, list[RowFile]]:
        """What was written."""
        root = f"{self._directory.root}/{name}"
        parts = {}
        for info in self._list(f"{root}/{folder}"):
            if info.base_name.startswith(f"{PART}="):
                key = info.base_name.removeprefix(f"{PART}=")
                parts[key] = [
                    self._row_file(name, each) for each in self._list(info.path) if each.path.endswith(_PARQUET)
                ]
        return parts

    def _files_in(self, folder: str) -> list[str]:
        return [each.path for each in self._list(folder) if each.path.endswith(_PARQUET)]

    def _row_file(self, name: str, info: Any) -> RowFile:  # noqa: ANN401 - Arrow's information on a file
        with self._files.open_input_file(info.path) as file, pq.ParquetFile(file) as parquet:
            times, rows = times_in(parquet), int(parquet.metadata.num_rows)
        path = info.path.removeprefix(f"{self._directory.root}/{name}/")
        return RowFile(path, rows, info.size, (min(times), max(times)) if times else None)

    def _list(self, folder: str) -> list[Any]:
        listed: list[Any] = self._files.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        return listed


def _new_folder() -> str:
    return f"{time.time_ns() // 1_000_000:013d}-{secrets.token_hex(4)}"


def _options(frame: DataFrame) -> dict[str, str]:
    """How rows are stored. Hardly two amounts are the same: to look for equal ones would take a fifth of the time."""
    amounts = [name for name, kind in frame.dtypes if kind == "double" or name in METRICS]
    return {"compression": _COMPRESSION, **{f"parquet.enable.dictionary#{name}": "false" for name in amounts}}
