"""Reader of the history in the order of recording: by epoch and sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.resources import HealthFigures
from loadmanager.core.model.load import METRICS, RESOURCES, THROUGHPUT_IN, BrokerReport, FloatArray
from loadmanager.core.model.report_validation import RATE_STEPS_PER_UNIT
from loadmanager.errors import HistoryError, HistoryFileError
from loadmanager.history.files import Directory, HistoryFile
from loadmanager.history.table_schemas import (
    BROKER_REPORTS,
    BUNDLE_REPORTS,
    HEALTH_COLUMNS,
    KEYS,
    LOAD_COLUMNS,
    ORDER,
    RESOURCE_COLUMNS,
    TABLES,
    TableSchema,
    version_of,
    wanted_columns,
)

OnFault = Callable[[HistoryFileError], None]
"""Handler of an unusable file; the others are still read."""

_BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class TableInfo:
    """Contents of a table, with the times of its first and last row."""

    table: str
    files: int
    size_bytes: int
    rows: int
    from_ms: int | None
    to_ms: int | None
    epochs: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class RecordedReport:
    """An applied load report, bit for bit."""

    at_ms: int
    epoch: int
    sequence: int
    registration: Registration
    report: BrokerReport


class History:
    """Reads a history, also while it is written: unfinished files are invisible."""

    def __init__(self, where: Directory | str) -> None:
        self.directory = where if isinstance(where, Directory) else Directory.of(where)

    @classmethod
    def existing(cls, url: str) -> Self:
        """Open an existing history; a mistyped path is an error, not an empty history. Raises `HistoryError`."""
        history = cls(url)
        if not history.directory.exists():
            raise HistoryError(f"{url}: no such directory")
        return history

    def files(
        self, table: str, from_ms: int | None = None, to_ms: int | None = None, on_fault: OnFault | None = None
    ) -> list[HistoryFile]:
        """Return the files that may have rows of `from_ms` <= time < `to_ms`, in order."""
        try:
            files, faults = self.directory.list_files(table, from_ms, to_ms)
        except (OSError, pa.ArrowException) as error:
            raise HistoryError(f"{self.directory}: {error}") from None
        for fault in faults:
            _report(fault, on_fault)
        return files

    def scan(
        self,
        table: str,
        from_ms: int | None = None,
        to_ms: int | None = None,
        columns: Sequence[str] | None = None,
        on_fault: OnFault | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield record batches of the rows with `from_ms` <= `at_ms` < `to_ms`, in the order of (epoch, sequence).

        They have these columns, or all. An unusable file is passed to `on_fault`; without one its error is raised.
        """
        yield from self.scan_files(
            self.files(table, from_ms, to_ms, on_fault), table, from_ms, to_ms, columns, on_fault
        )

    def scan_files(
        self,
        files: list[HistoryFile],
        table: str,
        from_ms: int | None = None,
        to_ms: int | None = None,
        columns: Sequence[str] | None = None,
        on_fault: OnFault | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield record batches as `scan`, of these files of the table, in order."""
        wanted = wanted_columns(table, columns)
        read = wanted if columns is None else TABLES[table].only([*wanted.names, *KEYS])
        for group in _overlapping(files):
            batches = chain.from_iterable(self._read(file, read, on_fault) for file in group)
            for batch in _sort(batches) if len(group) > 1 else batches:
                kept = _within(batch, from_ms, to_ms)
                if kept.num_rows:
                    yield kept.select(wanted.names)

    def rows(
        self,
        table: str,
        from_ms: int | None = None,
        to_ms: int | None = None,
        columns: Sequence[str] | None = None,
        on_fault: OnFault | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Yield rows as `scan`, one by one."""
        for batch in self.scan(table, from_ms, to_ms, columns, on_fault):
            yield from batch.to_pylist()

    def reports(
        self, from_ms: int | None = None, to_ms: int | None = None, on_fault: OnFault | None = None
    ) -> Iterator[RecordedReport]:
        """Yield load reports in the order of their application."""
        bundles = _ReportRows(self.scan(BUNDLE_REPORTS, from_ms, to_ms, on_fault=on_fault))
        for batch in self.scan(BROKER_REPORTS, from_ms, to_ms, on_fault=on_fault):
            for row in batch.to_pylist():
                yield _report_of(row, bundles.take(row["epoch"], row["sequence"]))

    def info(self, table: str, on_fault: OnFault | None = None) -> TableInfo:
        """Describe the table; reads the footer of each file."""
        files = self.files(table, on_fault=on_fault)
        rows, times = 0, []
        for file in files:
            try:
                with self.open(file) as parquet:
                    rows += parquet.metadata.num_rows
                    times += times_in(parquet)
            except FileNotFoundError:
                continue  # retention has deleted it
            except HistoryFileError as error:
                _report(error, on_fault)
        return TableInfo(
            table=table,
            files=len(files),
            size_bytes=sum(file.size_bytes for file in files),
            rows=rows,
            from_ms=min(times, default=None),
            to_ms=max(times, default=None),
            epochs=(files[0].epoch, files[-1].epoch) if files else None,
        )

    def open(self, file: HistoryFile) -> pq.ParquetFile:
        """Open a file of its table and of a known version; raises `FileNotFoundError` if it is gone."""
        try:
            parquet = pq.ParquetFile(self.directory.open(file.path))
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException) as error:
            raise _unreadable(file, error) from None
        version_of(parquet.schema_arrow.metadata, file.table, file.path)
        return parquet

    def _read(self, file: HistoryFile, wanted: TableSchema, on_fault: OnFault | None) -> Iterator[pa.RecordBatch]:
        try:
            with self.open(file) as parquet:
                version = version_of(parquet.schema_arrow.metadata, file.table, file.path)
                existing = [name for name in wanted.names if name in parquet.schema_arrow.names]
                for batch in parquet.iter_batches(_BATCH_ROWS, columns=existing):
                    table = wanted.conform(pa.Table.from_batches([batch]), version, file.path)
                    yield from table.combine_chunks().to_batches()
        except FileNotFoundError:
            return  # retention has deleted it
        except HistoryFileError as error:
            _report(error, on_fault)
        except (OSError, pa.ArrowException) as error:
            _report(_unreadable(file, error), on_fault)


class _ReportRows:
    """Rows of bundles, handed out report by report."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._waiting: pa.RecordBatch | None = None  # read but not handed out

    def take(self, epoch: int, sequence: int) -> pa.RecordBatch | None:
        """Return all rows of this report; None if it has none. Request reports in order."""
        found = []
        while (batch := self._next()) is not None:
            first, last = _place(batch, epoch, sequence)
            if last > first:
                found.append(batch.slice(first, last - first))
            if last < batch.num_rows:
                self._waiting = batch.slice(last)
                break
        return pa.concat_batches(found) if found else None

    def _next(self) -> pa.RecordBatch | None:
        batch, self._waiting = self._waiting, None
        return next(self._batches, None) if batch is None else batch


def _place(batch: pa.RecordBatch, epoch: int, sequence: int) -> tuple[int, int]:
    """Return the bounds of the rows at this position in an ordered batch."""
    epochs, sequences = (batch.column(name).to_numpy() for name in ORDER)
    first, last = np.searchsorted(epochs, (epoch, epoch + 1)).tolist()
    begin, end = np.searchsorted(sequences[first:last], (sequence, sequence + 1)).tolist()
    return first + begin, first + end


def _report_of(row: dict[str, Any], bundles: pa.RecordBatch | None) -> RecordedReport:
    names, columns = _bundle_columns(bundles)
    health = [row[name] for name in HEALTH_COLUMNS]
    report = BrokerReport(
        usage=np.array([row[name] for name in RESOURCE_COLUMNS], dtype=np.float64).reshape(RESOURCES, 2),
        load=np.array([row[name] for name in LOAD_COLUMNS], dtype=np.float64),
        num_topics=row["topics"],
        num_bundles=row["bundles"],
        num_consumers=row["consumers"],
        num_producers=row["producers"],
        bundle_names=names,
        **columns,
        last_update_ms=row["last_update_ms"],
        start_timestamp_ms=row["start_timestamp_ms"],
        version=row["version"],
        load_manager_class=row["load_manager_class"],
        persistent_enabled=row["persistent_enabled"],
        non_persistent_enabled=row["non_persistent_enabled"],
        health=HealthFigures(*health) if any(each is not None for each in health) else None,
    )
    registration = Registration(BrokerId(row["broker"]), row["incarnation"])
    return RecordedReport(row["at_ms"], row["epoch"], row["sequence"], registration, report)


def _bundle_columns(bundles: pa.RecordBatch | None) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the names and columns of a report's bundles; None means no bundles."""
    count = 0 if bundles is None else bundles.num_rows
    load = np.empty((count, METRICS))
    if bundles is None:
        none = np.empty(0, dtype=np.int64)
        return (), {"bundle_load": load, "bundle_topics": none, "bundle_sessions": none, "bundle_cache_bytes": none}
    for at, name in enumerate(LOAD_COLUMNS):
        column = bundles.column(name)
        load[:, at] = rates_of(column) if at < THROUGHPUT_IN else column.to_numpy()
    parts = zip(
        *(bundles.column(name).to_pylist() for name in ("namespace", "range_lower", "range_upper")), strict=True
    )
    names = tuple([f"{namespace}/0x{lower:08x}_0x{upper:08x}" for namespace, lower, upper in parts])
    counts = {
        f"bundle_{name}": bundles.column(name).to_numpy().astype(np.int64)
        for name in ("topics", "sessions", "cache_bytes")
    }
    return names, {"bundle_load": load, **counts}


def rates_of(column: pa.Decimal128Array) -> FloatArray:
    """Decode the rates that `entry_rows.thousandths` encoded, bit for bit."""
    words = np.frombuffer(column.buffers()[1], dtype=np.int64).reshape(-1, 2)
    return words[column.offset : column.offset + len(column), 0] / RATE_STEPS_PER_UNIT


def _overlapping(files: list[HistoryFile]) -> Iterator[list[HistoryFile]]:
    """Group the files so that each group has earlier sequences than the next.

    Groups of several files arise if a clock was set back: later rows went into an earlier hour.
    """
    group: list[HistoryFile] = []
    end = (-1, -1)
    for file in files:
        if group and (file.epoch, file.first) > end:
            yield group
            group = []
        group.append(file)
        end = max(end, (file.epoch, file.last))
    if group:
        yield group


def _sort(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Merge the batches, stably sorted: rows of one sequence keep their order."""
    read = list(batches)
    if read:
        table = pa.Table.from_batches(read).unify_dictionaries()
        keys = [(name, "ascending") for name in ORDER]
        yield from table.take(pc.sort_indices(table, sort_keys=keys)).combine_chunks().to_batches()


def _within(batch: pa.RecordBatch, from_ms: int | None, to_ms: int | None) -> pa.RecordBatch:
    at_ms = batch.column("at_ms").to_numpy(zero_copy_only=False)
    mask = np.ones(len(at_ms), dtype=bool)
    if from_ms is not None:
        mask &= at_ms >= from_ms
    if to_ms is not None:
        mask &= at_ms < to_ms
    return batch if mask.all() else batch.filter(pa.array(mask))


def times_in(parquet: pq.ParquetFile) -> list[int]:
    """Return the first and last time of each row group, from its statistics."""
    found = []
    at = parquet.schema_arrow.get_field_index("at_ms")
    for number in range(parquet.metadata.num_row_groups if at >= 0 else 0):
        statistics = parquet.metadata.row_group(number).column(at).statistics
        if statistics is not None and statistics.has_min_max:
            found += [statistics.min, statistics.max]
    return found


def _unreadable(file: HistoryFile, error: Exception) -> HistoryFileError:
    text = " ".join(str(error).split())
    return HistoryFileError(f"{file.path}: not a Parquet file that can be read: {text}; move it out of the history")


def _report(fault: HistoryFileError, on_fault: OnFault | None) -> None:
    if on_fault is None:
        raise fault
    on_fault(fault)


def columns_of(
    history: History,
    table: str,
    from_ms: int | None,
    to_ms: int | None,
    names: Sequence[str],
    on_fault: OnFault | None,
) -> dict[str, Any]:
    """Return these columns of the rows of `from_ms` <= time < `to_ms`, in order; text as objects."""
    parts: dict[str, list[Any]] = {name: [] for name in names}
    for batch in history.scan(table, from_ms, to_ms, names, on_fault):
        for name in names:
            parts[name].append(_array(batch.column(name)))
    return {name: np.concatenate(each) if each else np.empty(0, dtype=np.int64) for name, each in parts.items()}


def _array(column: Any) -> Any:  # noqa: ANN401 - Arrow's column, numpy's array
    if pa.types.is_dictionary(column.type):
        return np.array(column.dictionary.to_pylist(), dtype=object)[column.indices.to_numpy()]
    return rates_of(column) if pa.types.is_decimal(column.type) else column.to_numpy(zero_copy_only=False)
