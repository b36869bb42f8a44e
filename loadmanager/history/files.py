"""File layout of the history: folders and names, atomic writes, and listings.

`<root>/<table>/date=YYYY-MM-DD/hour=HH/<epoch>-<first>-<last>-<node>.parquet`, in UTC, by the time of the rows; first
and last are sequences. A file that replaces several has `compacted` instead of the node (see `compaction`). Names that
begin with a dot or an underscore are not files of the history, or not yet.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from loadmanager.errors import HistoryError, HistoryFileError
from loadmanager.history.table_schemas import TABLES

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
TEMPORARY = ".tmp-"
SINCE_KEY = b"loadmanager.since_ms"
"""Metadata key of a file; its value is the time from which rows of its process may be missing."""

_OBJECT_STORES = ("s3", "gcs", "abfs")
"""Filesystems that show a file only when it is closed, and where a rename would be a copy."""

_PARAMETERS = {"s3": "allow_delayed_open=true", "gs": "retry_limit_seconds=60"}
"""Parameters of Arrow's URLs by scheme."""

_PARTITION = re.compile(r"date=(\d{4}-\d\d-\d\d)/hour=([01]\d|2[0-3])")
_NAME = re.compile(r"(\d{10,})-(\d{12,})-(\d{12,})-([-.\w]*)\.parquet", re.ASCII)
_COMPACTED = "compacted"
"""Replaces the node in the name of a compacted file."""
_UNUSABLE_IN_NAMES = re.compile(r"[^-.\w]", re.ASCII)


@dataclass(frozen=True, slots=True)
class HistoryFile:
    """A file as described by its path: rows of one epoch, and of the hour that begins at `hour_ms`.

    `mtime_ns` is the time of its write, 0 if unknown. A file that `is_compacted` replaces others.
    """

    table: str
    path: str
    hour_ms: int
    epoch: int
    first: int
    last: int
    size_bytes: int
    mtime_ns: int = 0
    is_compacted: bool = False

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def order(self) -> tuple[int, int, int]:
        return self.epoch, self.first, self.last

    def may_have(self, from_ms: int | None, to_ms: int | None) -> bool:
        """Return True if the file may contain rows of `from_ms` <= time < `to_ms`."""
        return (from_ms is None or self.hour_ms + HOUR_MS > from_ms) and (to_ms is None or self.hour_ms < to_ms)

    def stands_for(self, other: HistoryFile) -> bool:
        """Return True if this is a compacted file that contains the rows of the other one."""
        return self.hour_ms == other.hour_ms and self.path != other.path and self.covers(*other.order)

    def covers(self, epoch: int, first: int, last: int) -> bool:
        """Return True if this is a compacted file with all rows of these sequences."""
        return self.is_compacted and self.epoch == epoch and self.first <= first and last <= self.last


def partition_of(at_ms: int) -> str:
    """Return the folder, below the table's, of rows at this time."""
    return f"{datetime.fromtimestamp(at_ms // 1000, UTC):date=%Y-%m-%d/hour=%H}"


def path_of(table: str, at_ms: int, epoch: int, sequences: tuple[int, int], node: str | None) -> str:
    """Return the path, below the root, of a file with these first and last sequences.

    A compacted file has no `node`, so that every node that compacts gets the same path.
    """
    first, last = sequences
    whose = _COMPACTED if node is None else _UNUSABLE_IN_NAMES.sub("_", node)
    if node == _COMPACTED:
        whose += "_"
    return f"{table}/{partition_of(at_ms)}/{epoch:010d}-{first:012d}-{last:012d}-{whose}.parquet"


def pack(table: str, rows: pa.Table, since_ms: int) -> pa.Buffer:
    """Encode rows as a file; `since_ms` is the first time of all rows written together."""
    sink = pa.BufferOutputStream()
    metadata = {**rows.schema.metadata, SINCE_KEY: str(since_ms).encode()}
    pq.write_table(rows.replace_schema_metadata(metadata), sink, **TABLES[table].write_options())
    return sink.getvalue()


def _without_originals(files: list[HistoryFile]) -> list[HistoryFile]:
    """Drop the originals of one table's compacted files."""
    compacted = defaultdict(list)
    for file in files:
        if file.is_compacted:
            compacted[file.hour_ms, file.epoch].append(file)
    return [file for file in files if not any(each.stands_for(file) for each in compacted[file.hour_ms, file.epoch])]


def _with_defaults(url: str) -> str:
    key, equals, value = _PARAMETERS.get(url.partition(":")[0], "").partition("=")
    return url if not key or f"{key}=" in url else f"{url}{'&' if '?' in url else '?'}{key}{equals}{value}"


class Directory:
    """Root of a history in any Arrow filesystem."""

    def __init__(self, filesystem: fs.FileSystem, root: str) -> None:
        self.filesystem = filesystem
        self.root = self.url = root.rstrip("/")
        self._is_local = isinstance(filesystem, fs.LocalFileSystem)

    @classmethod
    def of(cls, url: str) -> Directory:
        """Open the directory at a path or a URL of an Arrow filesystem. Raises `HistoryError`.

        `s3a://`, Hadoop's form, means `s3://`. Small files go to S3 in one request; GCS requests end after a minute.
        """
        if url.startswith("file:/") or "://" not in url:
            path = f"/{url.removeprefix('file:').lstrip('/')}" if url.startswith("file:/") else url
            return cls(fs.LocalFileSystem(), str(Path(path).absolute()))
        try:
            filesystem, root = fs.FileSystem.from_uri(_with_defaults(re.sub("^s3a:", "s3:", url)))
        except (pa.ArrowException, OSError, ValueError) as error:
            from loadmanager.config.settings_base import without_password  # noqa: PLC0415 - not available in Spark workers

            raise HistoryError(
                f"history {without_password(url)}: {without_password(str(error))}; expected a directory, or a URL such"
                " as file:///directory or s3://bucket/prefix"
            ) from None
        found = cls(filesystem, root)
        found.url = url.rstrip("/")
        return found

    def __str__(self) -> str:
        return self.root

    def exists(self) -> bool:
        """Return True if it exists; in an object store an empty directory does not exist."""
        found: bool = self.filesystem.get_file_info(self.root).type == fs.FileType.Directory
        return found

    def list_files(
        self, table: str, from_ms: int | None = None, to_ms: int | None = None, *, with_originals: bool = False
    ) -> tuple[list[HistoryFile], list[HistoryFileError]]:
        """Return the files of a table that may have rows of that time, in order, and the errors of foreign files.
        Originals of compacted files are left out unless `with_originals`.
        """
        files, faults = [], []
        for info in self._infos(table, from_ms, to_ms):
            name = info.base_name
            if info.type != fs.FileType.File or name.startswith((".", "_")):
                continue
            file = self._file(table, info)
            if file is None:
                faults.append(
                    HistoryFileError(f"{info.path}: not a name of a file of the history; move it somewhere else")
                )
            elif file.may_have(from_ms, to_ms):
                files.append(file)
        found = files if with_originals else _without_originals(files)
        return sorted(found, key=lambda each: each.order), faults

    def _infos(self, table: str, from_ms: int | None, to_ms: int | None) -> Iterable[fs.FileInfo]:
        folder = f"{self.root}/{table}"
        if from_ms is None and to_ms is None:
            return self._list(folder, recursive=True)
        first = "" if from_ms is None else partition_of(from_ms).partition("/")[0]
        last = "date=~" if to_ms is None else partition_of(to_ms).partition("/")[0]
        return [
            info
            for day in self._list(folder, recursive=False)
            if not day.base_name.startswith("date=") or first <= day.base_name <= last
            for info in (self._list(day.path, recursive=True) if day.type == fs.FileType.Directory else [day])
        ]

    def _list(self, folder: str, *, recursive: bool) -> list[fs.FileInfo]:
        selector = fs.FileSelector(folder, recursive=recursive, allow_not_found=True)
        infos: list[fs.FileInfo] = self.filesystem.get_file_info(selector)
        return infos

    def _file(self, table: str, info: fs.FileInfo) -> HistoryFile | None:
        below = info.path.rpartition(f"{self.root.lstrip('/')}/{table}/")[2]
        partition, _, name = below.rpartition("/")
        place, parts = _PARTITION.fullmatch(partition), _NAME.fullmatch(name)
        if place is None or parts is None:
            return None
        try:
            hour = datetime.strptime(f"{place[1]} {place[2]} +0000", "%Y-%m-%d %H %z")
        except ValueError:
            return None
        epoch, first, last, whose = parts.groups()
        hour_ms = round(hour.timestamp()) * 1000
        sequences = int(first), int(last)
        size, mtime_ns, is_compacted = info.size or 0, info.mtime_ns or 0, whose == _COMPACTED
        return HistoryFile(table, info.path, hour_ms, int(epoch), *sequences, size, mtime_ns, is_compacted)

    def write(self, path: str, data: pa.Buffer) -> None:
        """Write `data` atomically to `path`, below the root. Raises `OSError`."""
        target = f"{self.root}/{path}"
        folder, _, name = target.rpartition("/")
        if self.filesystem.type_name in _OBJECT_STORES:
            with self.filesystem.open_output_stream(target) as stream:
                stream.write(data)
            return
        self.filesystem.create_dir(folder, recursive=True)
        temporary = f"{folder}/{TEMPORARY}{name}"
        try:
            with self.filesystem.open_output_stream(temporary) as stream:
                stream.write(data)
            self._sync(temporary)
            if not self._is_local:  # HDFS cannot rename onto an existing file
                with suppress(FileNotFoundError):
                    self.filesystem.delete_file(target)
            self.filesystem.move(temporary, target)
        except BaseException:
            with suppress(OSError):
                self.filesystem.delete_file(temporary)
            raise
        self._sync(folder)

    def _sync(self, path: str) -> None:
        """Sync a file, or a folder's entries, to disk, so that they survive a crash of the machine."""
        if not self._is_local:
            return
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def open(self, path: str) -> pa.NativeFile:
        return self.filesystem.open_input_file(path)

    def read(self, path: str) -> bytes:
        """Read the file at `path`, below the root. Raises `OSError`."""
        with self.open(f"{self.root}/{path}") as file:
            return bytes(file.read())

    def temporary_files(self, table: str) -> list[fs.FileInfo]:
        """List temporary files of unfinished writes."""
        return [info for info in self._infos(table, None, None) if info.base_name.startswith(TEMPORARY)]

    def delete(self, path: str) -> None:
        """Delete a file if it still exists: several nodes on one machine may apply retention to one history.

        On a local disk, empty folders of its hour and day are deleted too.
        """
        with suppress(FileNotFoundError):
            self.filesystem.delete_file(path)
        if self._is_local:
            with suppress(OSError):
                for folder in list(Path(path).parents)[:2]:
                    folder.rmdir()
