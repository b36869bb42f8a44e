"""Tables that are written exactly once: a part of a table is there as a whole, or as it was before.

    <root>/<table>/<write>/part=<key>/*.parquet        the rows
    <root>/<table>/_manifests/<number>.json            which of them count: the highest number says it

A write puts its rows into a folder of its own and then adds a manifest, which is what makes them count. What it
replaced is deleted afterwards, so that a program that reads all Parquet files of a table reads the right ones too. A
table has one writer at a time. A batch of a stream that was written before is not written again.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyarrow import ArrowException, fs
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from loadmanager.errors import PipelineError
from loadmanager.pipeline.filesystems import directory_at, url_for_spark
from loadmanager.pipeline.reading import cause_of, naming_bad_files
from loadmanager.pipeline.schemas import METRICS, TABLES, frame_of, require

WHOLE = "all"
"""The key of the only part of a table that is written as a whole."""

_MANIFESTS = "_manifests"
_KEY = re.compile(r"[-.\w]+", re.ASCII)
_PART = "part"


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """Which batch of which stream; the numbers of a stream ascend."""

    stream: str
    number: int


@dataclass(frozen=True, slots=True)
class Written:
    rows: int
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class TablePart:
    path: str
    rows: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What counts of a table; `batches` are the last ones of each stream that has written to it."""

    number: int = 0
    parts: Mapping[str, TablePart] = field(default_factory=dict)
    batches: Mapping[str, int] = field(default_factory=dict)
    written_at_ms: int = 0

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts.values())


class Tables:
    """The tables under one root, on any filesystem that Spark knows."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._spark = spark
        self._directory = directory_at(spark, root)
        self._files = self._directory.filesystem

    def __str__(self) -> str:
        return self._directory.root

    def write(
        self,
        name: str,
        frame: DataFrame,
        *,
        key: str | None = None,
        keys: Sequence[str] | None = None,
        batch: StreamBatch | None = None,
    ) -> Written:
        """Make the frame the table, or those parts of it that the frame's string column `key` names.

        `keys` are the parts that are replaced, also where the frame has no rows of them; by default those it has.
        """
        before = self.manifest(name)
        if batch is not None and before.batches.get(batch.stream, -1) >= batch.number:
            return Written(0, skipped=True)
        marked = require(frame if key is None else frame.drop(key), name)
        if key is not None:
            marked = frame.select(*marked.columns, f.col(key).alias(_PART)).repartition(_PART)
        folder = f"{time.time_ns() // 1_000_000:013d}-{secrets.token_hex(4)}"
        try:
            self._write_rows(name, marked if key is not None else marked.withColumn(_PART, f.lit(WHOLE)), folder)
            parts = self._parts_in(name, folder)
            self._commit(name, before, parts, keys if key is not None else [WHOLE], batch)
        except BaseException as error:
            with suppress(OSError):
                self._files.delete_dir(f"{self._directory.root}/{name}/{folder}")
            if isinstance(error, (OSError, ArrowException, PySparkException, Py4JError)):
                raise PipelineError(f"{self}/{name}: cannot be written: {cause_of(str(error))}") from error
            raise
        self._clean(name)
        return Written(sum(part.rows for part in parts.values()))

    def read(self, name: str, keys: Sequence[str] | None = None) -> DataFrame:
        """The table, or these of its parts as far as there are any; `PipelineError` when it was never written."""
        manifest = self.manifest(name)
        if not manifest.number:
            raise PipelineError(f"{self}/{name}: there is no such table yet; run the step that writes it")
        paths = [
            url_for_spark(self._directory, f"{self._directory.root}/{name}/{part.path}")
            for key, part in manifest.parts.items()
            if part.rows and (keys is None or key in keys)
        ]
        if not paths:
            return frame_of(self._spark, TABLES[name])
        return self._spark.read.schema(TABLES[name]).parquet(*paths)

    def has(self, name: str) -> bool:
        return self.manifest(name).number > 0

    def rows(self, name: str) -> int:
        return self.manifest(name).rows

    def manifest(self, name: str) -> Manifest:
        """What counts at this moment; number 0 when there is nothing."""
        for number in sorted(self._manifest_numbers(name), reverse=True):
            return self._read_manifest(name, number)
        return Manifest()

    def _manifest_numbers(self, name: str) -> list[int]:
        listed = self._list(f"{self._directory.root}/{name}/{_MANIFESTS}")
        return [int(info.base_name.removesuffix(".json")) for info in listed if info.base_name[:1].isdigit()]

    def _read_manifest(self, name: str, number: int) -> Manifest:
        path = self._manifest_path(name, number)
        try:
            with self._files.open_input_stream(path) as stream:
                said = json.loads(stream.read())
            parts = {key: TablePart(**part) for key, part in said["parts"].items()}
            return Manifest(number, parts, said["batches"], said["written_at_ms"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PipelineError(f"{path}: not a manifest that can be read: {error}; write the table anew") from None

    def _manifest_path(self, name: str, number: int) -> str:
        return f"{self._directory.root}/{name}/{_MANIFESTS}/{number:012d}.json"

    def _write_rows(self, name: str, frame: DataFrame, folder: str) -> None:
        url = url_for_spark(self._directory, f"{self._directory.root}/{name}/{folder}")
        with naming_bad_files():
            frame.write.partitionBy(_PART).options(**_options(frame)).parquet(url)

    def _parts_in(self, name: str, folder: str) -> dict[str, TablePart]:
        root = f"{self._directory.root}/{name}"
        parts = {}
        for info in self._list(f"{root}/{folder}"):
            if info.base_name.startswith(f"{_PART}="):
                key = info.base_name.removeprefix(f"{_PART}=")
                if not _KEY.fullmatch(key):
                    raise PipelineError(f"{self}/{name}: part {key!r}: expected letters, digits, dots and hyphens")
                rows = sum(self._count(file.path) for file in self._list(info.path) if file.extension == "parquet")
                parts[key] = TablePart(f"{folder}/{info.base_name}", rows)
        return parts

    def _count(self, path: str) -> int:
        with self._files.open_input_file(path) as file:
            return int(pq.ParquetFile(file).metadata.num_rows)

    def _commit(
        self,
        name: str,
        before: Manifest,
        parts: Mapping[str, TablePart],
        keys: Sequence[str] | None,
        batch: StreamBatch | None,
    ) -> None:
        unexpected = [] if keys is None else sorted(set(parts) - set(keys))
        if unexpected:
            raise PipelineError(f"{self}/{name}: rows of parts {', '.join(unexpected)}, which are not to be replaced")
        kept = {key: part for key, part in before.parts.items() if keys is None or key not in keys}
        batches = dict(before.batches) if batch is None else {**before.batches, batch.stream: batch.number}
        said = {
            "parts": {key: asdict(part) for key, part in {**kept, **parts}.items()},
            "batches": batches,
            "written_at_ms": time.time_ns() // 1_000_000,
        }
        self._directory.write(
            f"{name}/{_MANIFESTS}/{before.number + 1:012d}.json", json.dumps(said, indent=1, sort_keys=True).encode()
        )

    def _clean(self, name: str) -> None:
        """Delete what does not count any more; what cannot be deleted now is tried again after the next write."""
        root = f"{self._directory.root}/{name}"
        current = self.manifest(name)
        in_use = {part.path for part in current.parts.values()}
        with suppress(OSError):
            for number in self._manifest_numbers(name):
                if number < current.number:
                    self._files.delete_file(self._manifest_path(name, number))
            for write in self._list(root):
                if write.type != fs.FileType.Directory or write.base_name == _MANIFESTS:
                    continue
                parts = [part.path for part in self._list(write.path) if part.type == fs.FileType.Directory]
                unused = [path for path in parts if path.removeprefix(f"{root}/") not in in_use]
                for path in [write.path] if len(unused) == len(parts) else unused:
                    self._files.delete_dir(path)

    def _list(self, folder: str) -> list[Any]:
        listed: list[Any] = self._files.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        return listed


def _options(frame: DataFrame) -> dict[str, str]:
    """How rows are stored. Hardly two amounts are the same: to look for equal ones would take a fifth of the time."""
    amounts = [name for name, kind in frame.dtypes if kind == "double" or name in METRICS]
    return {"compression": "zstd", **{f"parquet.enable.dictionary#{name}": "false" for name in amounts}}
