"""Compaction and retention of the history.

The files of a finished hour, usually sixty, become one file per table, hour and epoch.

    01 ... 60                  an hour as it was flushed
    compacted, 01 ... 60       from now on readers use the compacted file only
    compacted                  six hours later, when no reader still uses an older listing

A compacted file names the files that it replaces. If the process is killed at any step, the next pass continues: it
would write the same file again. Files that are not consecutive (`_are_in_order`), damaged, or of another schema stay
unchanged.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby, pairwise

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from loadmanager.errors import HistoryFileError
from loadmanager.history.files import HOUR_MS, Directory, HistoryFile, path_of
from loadmanager.history.gaps import IMPORTED
from loadmanager.history.reader import History, times_in
from loadmanager.history.table_schemas import TABLES

log = structlog.get_logger(__name__)

COMPACTED_KEY = b"loadmanager.compacted"
"""Metadata key of a compacted file; its value names the replaced files."""

_SETTLED_MS = 2 * HOUR_MS
"""Time after the end of an hour when no process writes into it any more."""
_KEPT_NS = 6 * HOUR_MS * 1_000_000
_ROWS_TOGETHER = 250_000
"""Rows per row group: the unit of memory use, and of what a reader can skip."""
_PASS_S = 5.0
"""Time limit of a pass, after which it starts no further file: recording waits for it."""


@dataclass(frozen=True, slots=True)
class Original:
    """A file that was merged into a compacted one. `last_ms` is the last time in it."""

    name: str
    size_bytes: int
    mtime_ns: int
    last_ms: int


class Compaction:
    """Compaction of one history. A failure is logged once."""

    def __init__(self) -> None:
        self._left_alone: set[str] = set()

    def apply(self, directory: Directory, now_ms: int) -> None:
        """Compact what is due, and delete old originals. Raises `OSError`."""
        for table in TABLES:
            self._delete_originals(directory, table, now_ms)
        until_s = time.monotonic() + _PASS_S
        for files in _to_be_compacted(directory, now_ms):
            self._compact(directory, files)
            if time.monotonic() > until_s:
                break

    def _compact(self, directory: Directory, files: Sequence[HistoryFile]) -> None:
        if files[0].path in self._left_alone:
            return
        try:
            data = compact_files(History(directory), files)
        except FileNotFoundError:
            return  # retention has deleted it
        except (HistoryFileError, pa.ArrowException, OSError) as error:
            self._leave_alone(files[0], error)
            return
        first, last = files[0], files[-1]
        path = path_of(first.table, first.hour_ms, first.epoch, (first.first, last.last), node=None)
        directory.write(path, data)
        log.info("history_hour_compacted", file=path, files=len(files), bytes=data.size)

    def _delete_originals(self, directory: Directory, table: str, now_ms: int) -> None:
        """Delete originals that were compacted long enough ago."""
        places = defaultdict[tuple[int, int], list[HistoryFile]](list)
        for file in directory.list_files(table, with_originals=True)[0]:
            places[file.hour_ms, file.epoch].append(file)
        for compacted, group in ((each, files) for files in places.values() for each in files if each.is_compacted):
            known = {file.name: file for file in group if compacted.stands_for(file)}
            if not known or not compacted.mtime_ns or compacted.mtime_ns + _KEPT_NS > now_ms * 1_000_000:
                continue
            for each in self._originals(directory, compacted):
                if each.name in known and known[each.name].size_bytes == each.size_bytes:
                    directory.delete(known[each.name].path)

    def _originals(self, directory: Directory, compacted: HistoryFile) -> tuple[Original, ...]:
        """Return the originals named in a compacted file; none if it is unreadable, so that they stay."""
        try:
            with History(directory).open(compacted) as parquet:
                return originals_of(parquet.schema_arrow.metadata)
        except FileNotFoundError:
            return ()
        except HistoryFileError as error:
            self._leave_alone(compacted, error)
            return ()

    def _leave_alone(self, file: HistoryFile, error: Exception) -> None:
        if file.path not in self._left_alone:
            self._left_alone.add(file.path)
            log.warning("history_hour_not_compacted", file=file.path, error=str(error))


def originals_of(metadata: dict[bytes, bytes] | None) -> tuple[Original, ...]:
    """Return the originals named in a file's metadata; none for a file that is not compacted."""
    value = (metadata or {}).get(COMPACTED_KEY)
    return () if value is None else tuple(Original(*each) for each in orjson.loads(value))


def compact_files(history: History, files: Sequence[HistoryFile]) -> pa.Buffer:
    """Merge the rows of these files in order; return the bytes of the new file. Raises `HistoryFileError`."""
    table = TABLES[files[0].table]
    originals, rows, metadata = [], 0, dict[bytes, bytes]()
    for file in files:
        with history.open(file) as parquet:
            times = times_in(parquet)
            if not parquet.schema_arrow.remove_metadata().equals(table.schema.remove_metadata()) or not times:
                raise HistoryFileError(f"{file.path}: of another schema, or without rows")
            metadata = parquet.schema_arrow.metadata  # of the last file, which shows if its term was ended
            rows += parquet.metadata.num_rows
        originals.append([file.name, file.size_bytes, file.mtime_ns, max(times)])
    schema = table.schema.with_metadata({**metadata, COMPACTED_KEY: orjson.dumps(originals)})
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, **table.write_options()) as writer:
        for part in _parts(history, files):
            writer.write_table(part.replace_schema_metadata(schema.metadata))
    data = sink.getvalue()
    if pq.read_metadata(pa.BufferReader(data)).num_rows != rows:
        raise HistoryFileError(f"{files[0].path}: compacted with those that follow it would not have all rows")
    return data


def _parts(history: History, files: Sequence[HistoryFile]) -> Iterator[pa.Table]:
    waiting, count = list[pa.Table](), 0
    for file in files:
        with history.open(file) as parquet:
            waiting.append(parquet.read())
        count += waiting[-1].num_rows
        if count >= _ROWS_TOGETHER or file is files[-1]:
            yield pa.concat_tables(waiting).unify_dictionaries()
            waiting, count = [], 0


def _to_be_compacted(directory: Directory, now_ms: int) -> Iterator[list[HistoryFile]]:
    """Return groups of several finished files of one table, hour and epoch."""
    for table in TABLES:
        files = [file for file in directory.list_files(table)[0] if file.epoch != IMPORTED]
        for _, group in groupby(files, key=lambda file: file.epoch):
            of_epoch = list(group)
            hours = defaultdict[int, list[int]](list)
            for at, file in enumerate(of_epoch):
                hours[file.hour_ms].append(at)
            yield from (
                of_epoch[places[0] : places[-1] + 1]
                for hour_ms, places in hours.items()
                if len(places) > 1 and hour_ms + HOUR_MS + _SETTLED_MS <= now_ms and _are_in_order(of_epoch, places)
            )


def _are_in_order(of_epoch: list[HistoryFile], places: list[int]) -> bool:
    """Return True if the files of an hour, at these indexes, have consecutive sequences without other files between
    them. Otherwise another file could be mistaken for an original.
    """
    near = of_epoch[max(0, places[0] - 1) : places[-1] + 2]
    return len(places) == places[-1] - places[0] + 1 and all(one.last < other.first for one, other in pairwise(near))


_ABANDONED_AFTER = timedelta(hours=1)
"""Age at which an unfinished file is taken to belong to a process that no longer exists."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Maximum age and size of the history; None: unlimited.

    Whole hours are deleted, the oldest first; never the newest hour.
    """

    max_age_s: float | None = None
    max_bytes: int | None = None

    def apply(self, directory: Directory, now_ms: int) -> None:
        """Delete what exceeds the limits. Raises `OSError`.

        Only files with the place and name of history files are deleted, and unfinished ones.
        """
        hours: dict[int, list[HistoryFile]] = defaultdict(list)
        for table in TABLES:
            for file in directory.list_files(table, with_originals=True)[0]:
                hours[file.hour_ms].append(file)
        _delete_abandoned(directory, now_ms)
        total = sum(file.size_bytes for files in hours.values() for file in files)
        for hour_ms in sorted(hours)[:-1]:
            is_old = self.max_age_s is not None and hour_ms + HOUR_MS < now_ms - self.max_age_s * 1000
            is_much = self.max_bytes is not None and total > self.max_bytes
            if not is_old and not is_much:
                break
            for file in hours[hour_ms]:
                directory.delete(file.path)
                total -= file.size_bytes
            log.info("history_hour_deleted", hour=_hour(hour_ms), files=len(hours[hour_ms]), why_age=is_old)


def _delete_abandoned(directory: Directory, now_ms: int) -> None:
    before = datetime.fromtimestamp(now_ms / 1000, UTC) - _ABANDONED_AFTER
    for table in TABLES:
        for info in directory.temporary_files(table):
            if info.mtime is not None and info.mtime < before:
                directory.delete(info.path)


def _hour(hour_ms: int) -> str:
    return f"{datetime.fromtimestamp(hour_ms // 1000, UTC):%Y-%m-%d %H}"
