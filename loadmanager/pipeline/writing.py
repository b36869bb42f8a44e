"""Tables that are written exactly once: a part of a table is there as a whole, or as it was before.

    <root>/<table>/<write>/part=<key>/*.parquet        the rows

A write puts its rows into a folder of its own, and then has the table's account say that they count: Delta's log, or
with `parquet` a manifest of ours. A table stays in the format that it began in.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import dataset, fs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema

from loadmanager.errors import PipelineError
from loadmanager.pipeline.contents import PART, WHOLE, Account, Contents, RowFile
from loadmanager.pipeline.datasets import require, rows_of, schema_of
from loadmanager.pipeline.delta import LOG, DeltaAccount
from loadmanager.pipeline.filesystems import CANNOT_GO_ON, directory_at, url_for_spark
from loadmanager.pipeline.manifests import MANIFESTS, ManifestAccount
from loadmanager.pipeline.reading import cause_of, naming_bad_files
from loadmanager.pipeline.schemas import METRICS, frame_of

Format = Literal["delta", "parquet"]

_LOGS: dict[Format, str] = {"delta": LOG, "parquet": MANIFESTS}
_OF_DELTA = re.compile(r"(s3a?|gs|abfss?|az)://")
_KEY = re.compile(r"[-.\w]+", re.ASCII)
_COMPRESSION, _PARQUET = "zstd", ".parquet"


class Tables:
    """The tables under one root, on any filesystem that Spark knows. Without a `table_format`, new ones are Delta's if
    delta-rs knows the filesystem too.
    """

    def __init__(self, spark: SparkSession, root: str, table_format: Format | None = None) -> None:
        self._spark = spark
        self._directory = directory_at(spark, root)
        self._files = self._directory.filesystem
        self._wanted = table_format
        self._accounts: dict[Format, Account] = {"parquet": ManifestAccount(self._directory)}
        if isinstance(self._files, fs.LocalFileSystem) or _OF_DELTA.match(self._directory.root):
            self._accounts["delta"] = DeltaAccount(self._directory.root)
        elif table_format == "delta":
            raise PipelineError(f"{root}: Delta tables cannot be written there: have them in the format parquet")

    def __str__(self) -> str:
        return self._directory.root

    def write(
        self,
        name: str,
        frame: DataFrame,
        *,
        key: str | None = None,
        keys: Sequence[str] | None = None,
        gather: bool = True,
    ) -> int:
        """Make the frame the table, or those parts of it that the frame's string column `key` names.

        `keys` are the parts that are replaced, also where the frame has no rows of them; by default those it has. The
        rows of a part are gathered in one file, unless what makes them is to write them as they are.
        """
        if key is None:
            marked = require(frame, name).withColumn(PART, f.lit(WHOLE))
        else:
            columns = require(frame.drop(key), name).columns
            marked = frame.selectExpr(*columns, f"{key} AS {PART}")
            marked = marked.repartition(PART) if gather else marked
        with self._writing(name) as account:
            parts = self._write_parts(name, marked, keys)
            account.commit(name, parts, None if key is None else list(parts) if keys is None else keys)
        return sum(file.rows for files in parts.values() for file in files)

    def write_rows(self, name: str, frame: pd.DataFrame, key: str | None = None) -> int:
        """Make few rows that are known here the table, or the part `key` of it: no work for Spark. What is not a number
        is null.
        """
        with self._writing(name) as account:
            rows = rows_of(frame, name)
            parts = {key or WHOLE: [self._put(name, key or WHOLE, rows)]} if rows.num_rows else {}
            account.commit(name, parts, None if key is None else [key])
        return len(frame)

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

    def _paths(self, name: str, keys: Sequence[str] | None = None) -> list[str]:
        """The files with the rows of the table, or of these of its parts, or their folders."""
        contents = self.contents(name)
        if not contents.number:
            raise PipelineError(f"{self}/{name}: there is no such table yet; run the step that writes it")
        return [
            f"{self._directory.root}/{name}/{file.path}"
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

    def _write_parts(self, name: str, frame: DataFrame, keys: Sequence[str] | None) -> dict[str, list[RowFile]]:
        """The rows in a folder of their own, where they do not count yet."""
        folder = _new_folder()
        path = f"{self._directory.root}/{name}/{folder}"
        try:
            with naming_bad_files():
                rows = frame.write.partitionBy(PART).options(**_options(frame))
                rows.parquet(url_for_spark(self._directory, path))
            return self._parts_in(name, folder, keys)
        except BaseException:
            with suppress(OSError):
                self._files.delete_dir(path)
            raise

    def _put(self, name: str, key: str, rows: pa.Table) -> RowFile:
        """The same, of rows that are known here."""
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, compression=_COMPRESSION)
        data, path = sink.getvalue(), f"{_new_folder()}/{PART}={key}/rows{_PARQUET}"
        self._directory.write(f"{name}/{path}", data)
        return RowFile(path, rows.num_rows, data.size)

    def _parts_in(self, name: str, folder: str, keys: Sequence[str] | None) -> dict[str, list[RowFile]]:
        """What was written; all of it has to be of the parts in question."""
        root = f"{self._directory.root}/{name}"
        parts = {}
        for info in self._list(f"{root}/{folder}"):
            if info.base_name.startswith(f"{PART}="):
                key = info.base_name.removeprefix(f"{PART}=")
                if not _KEY.fullmatch(key):
                    raise PipelineError(f"{self}/{name}: part {key!r}: expected letters, digits, dots and hyphens")
                parts[key] = [
                    RowFile(each.path.removeprefix(f"{root}/"), self._count(each.path), each.size)
                    for each in self._list(info.path)
                    if each.path.endswith(_PARQUET)
                ]
        unexpected = [] if keys is None else sorted(set(parts) - set(keys))
        if unexpected:
            raise PipelineError(f"{self}/{name}: rows of parts {', '.join(unexpected)}, which are not to be replaced")
        return parts

    def _files_in(self, folder: str) -> list[str]:
        return [each.path for each in self._list(folder) if each.path.endswith(_PARQUET)]

    def _count(self, path: str) -> int:
        with self._files.open_input_file(path) as file:
            return int(pq.ParquetFile(file).metadata.num_rows)

    def _list(self, folder: str) -> list[Any]:
        listed: list[Any] = self._files.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        return listed


def _new_folder() -> str:
    return f"{time.time_ns() // 1_000_000:013d}-{secrets.token_hex(4)}"


def _options(frame: DataFrame) -> dict[str, str]:
    """How rows are stored. Hardly two amounts are the same: to look for equal ones would take a fifth of the time."""
    amounts = [name for name, kind in frame.dtypes if kind == "double" or name in METRICS]
    return {"compression": _COMPRESSION, **{f"parquet.enable.dictionary#{name}": "false" for name in amounts}}
