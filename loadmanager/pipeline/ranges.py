"""Recorded ranges of a history that executors read, keep on disk, and replay.

    driver:     finds stretches                      ◀── an outline of each range
    executors:  a task per stretch: its range, packed, kept on disk ──▶ a task per trial: the range, unpacked

Only outlines go through the driver. A range is read once. When the executor that keeps it is lost, the task that needs
it reads it again.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from pyspark import RDD, StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.model.load import IntArray
from loadmanager.errors import HistoryError, HistoryFileError
from loadmanager.history.gaps import MARKS, Gap, gaps_in
from loadmanager.history.reader import History, OnFault
from loadmanager.history.table_schemas import BROKER_REPORTS, BUNDLE_REPORTS, EVENTS
from loadmanager.lab.simulate.initial_fleet import BrokerSpec
from loadmanager.lab.simulate.recorded_world import HOLD_S, RecordedRange
from loadmanager.lab.simulate.trial import Trial, figures
from loadmanager.lab.whatif.recorded_ranges import Stretch, read_range
from loadmanager.pipeline.source import FORMAT, PERMISSIVE

A = TypeVar("A")
R = TypeVar("R")

PART_BYTES = 16 * 1024 * 1024
"""Size of the parts of a packed range: an element of an RDD is less than 2 GiB."""

_CODEC = "zstd"
_HOLD_MS = round(HOLD_S * 1000)
_TABLES = (BROKER_REPORTS, BUNDLE_REPORTS, EVENTS)


@dataclass(frozen=True, slots=True)
class Outline:
    """All brokers and namespaces of a range, and the broker that comes first by name at its beginning."""

    broker_ids: tuple[BrokerId, ...]
    namespaces: tuple[str, ...]
    like: BrokerSpec | None


@dataclass(frozen=True, slots=True)
class RangeRead:
    """The outline of a range or the reason why it has none, its unreadable files, and a digest of its files."""

    outline: Outline | str
    faults: tuple[HistoryFileError, ...]
    files: str


class Ranges(Protocol):
    """Ranges of a history, as planning a what-if needs them."""

    def report_times(self, from_ms: int | None, to_ms: int | None) -> IntArray:
        """Times of broker reports, in order: of each `HOLD_S` the first and the last."""

    def gaps(self) -> list[Gap]:
        """All gaps that are marked."""

    def read(self, stretches: Sequence[Stretch]) -> list[Outline | str]:
        """The outline of the range of each, or the reason why it cannot be replayed."""

    def try_each(self, work: Callable[[RecordedRange, A], R], given: Sequence[tuple[int, A]]) -> list[R]:
        """`work` on the range of the stretch of each number, and on what goes with it."""


class RangesOfSpark:
    """The `Ranges` of the history at a URL. Unreadable files go to `on_fault`, or are raised."""

    def __init__(self, spark: SparkSession, url: str, on_fault: OnFault | None = None) -> None:
        self._spark = spark
        self._url = url
        self._on_fault = on_fault
        self._ranges: dict[int, RDD[Any]] = {}
        self._files: dict[int, str] = {}

    def report_times(self, from_ms: int | None, to_ms: int | None) -> IntArray:
        limits = {name: at_ms for name, at_ms in (("from_ms", from_ms), ("to_ms", to_ms)) if at_ms is not None}
        reports = self._load(BROKER_REPORTS, "at_ms", **limits)
        period = (f.col("at_ms") / _HOLD_MS).cast("long")
        ends = f.array(f.min("at_ms"), f.max("at_ms")).alias("ends")
        found = (
            reports.where("at_ms IS NOT NULL OR damaged IS NOT NULL")
            .groupBy(period, "file", "damaged")
            .agg(ends)
            .collect()
        )
        self._tell_damaged(found)
        return np.unique(np.array([row.ends for row in found if row.damaged is None], dtype=np.int64))

    def gaps(self) -> list[Gap]:
        events = self._load(EVENTS, "epoch", "sequence", "kind", "body")
        found = events.where(f.col("kind").isin(*MARKS) | f.col("damaged").isNotNull()).collect()
        self._tell_damaged(found)
        marks = sorted((row for row in found if row.damaged is None), key=lambda row: (row.epoch, row.sequence))
        return gaps_in([(row.epoch, row.kind, row.body) for row in marks])

    def read(self, stretches: Sequence[Stretch]) -> list[Outline | str]:
        self.close()
        context = self._spark.sparkContext
        for each in stretches:
            read: RDD[Any] = context.parallelize([each], 1).flatMap(partial(read_stretch, self._url))
            self._ranges[each.number] = read.persist(StorageLevel.DISK_ONLY)
        made = list(self._ranges.values())
        found: list[RangeRead] = context.union(made).mapPartitions(_first).collect() if made else []
        self._tell(fault for each in found for fault in each.faults)
        self._files = {each.number: its.files for each, its in zip(stretches, found, strict=True)}
        return [each.outline for each in found]

    def try_each(self, work: Callable[[RecordedRange, A], R], given: Sequence[tuple[int, A]]) -> list[R]:
        return self.each(work, given).collect()

    def each(self, work: Callable[[RecordedRange, A], R], given: Sequence[tuple[int, A]]) -> RDD[R]:
        """Return an RDD of `work` on these ranges, a partition each, see `try_each`."""
        context = self._spark.sparkContext
        shared = context.broadcast([(self._files[stretch], argument) for stretch, argument in given])
        ranges = context.union([self._ranges[stretch] for stretch, _ in given])
        return ranges.mapPartitionsWithIndex(partial(on_range, work, shared))

    def close(self) -> None:
        """Drop the ranges that executors keep."""
        for each in self._ranges.values():
            each.unpersist()
        self._ranges.clear()

    def _load(self, table: str, *columns: str, **options: int) -> DataFrame:
        """Columns of a table, with a row for each damaged file."""
        reader = self._spark.read.format(FORMAT).options(table=table, mode=PERMISSIVE, **options)
        return reader.option("columns", ",".join([*columns, "file", "damaged"])).load(self._url)

    def _tell(self, faults: Iterable[HistoryFileError]) -> None:
        for fault in faults:
            if self._on_fault is None:
                raise fault
            self._on_fault(fault)

    def _tell_damaged(self, rows: Iterable[Any]) -> None:
        damaged = [row for row in rows if row.damaged is not None]
        self._tell(HistoryFileError(f"{self._url}/{row.file}: {row.damaged}") for row in damaged)


def _first(elements: Iterable[Any]) -> Iterator[Any]:
    """Take the first element to the driver. The rest is read too, so that all of it is kept."""
    rest = iter(elements)
    yield next(rest)
    for _ in rest:
        pass


def read_stretch(url: str, stretch: Stretch) -> Iterator[RangeRead | bytes]:
    """Read the range of a stretch on a worker: a `RangeRead`, then its parts."""
    history, faults = History(url), dict[str, HistoryFileError]()

    def on_fault(fault: HistoryFileError) -> None:
        faults[str(fault)] = fault

    files = [file for table in _TABLES for file in history.files(table, stretch.from_ms, stretch.to_ms, on_fault)]
    names = repr([(file.path, file.size_bytes) for file in files])
    digest = blake2b(names.encode(), digest_size=16).hexdigest()
    try:
        recorded = read_range(history, stretch.once_begun(history, on_fault), on_fault=on_fault)
    except ValueError as error:
        yield RangeRead(str(error), tuple(faults.values()), digest)
        return
    yield RangeRead(outline_of(recorded), tuple(faults.values()), digest)
    yield from packed(recorded)


def outline_of(recorded: RecordedRange) -> Outline:
    return Outline(
        tuple(recorded.broker_ids()),
        tuple(spec.name for spec in recorded.namespace_specs()),
        min(recorded.brokers, key=lambda spec: spec.id, default=None),
    )


def packed(recorded: RecordedRange) -> Iterator[bytes]:
    """Pack a range into parts of at most `PART_BYTES`."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, _CODEC) as file:
        pickle.dump(recorded, file, protocol=5)  # writes arrays without a copy of them
    content = sink.getvalue()
    for at in range(0, content.size, PART_BYTES):
        yield content.slice(at, min(PART_BYTES, content.size - at)).to_pybytes()


def unpacked(parts: Iterable[bytes]) -> RecordedRange:
    """Return the range that was packed, bit for bit."""
    with pa.CompressedInputStream(pa.BufferReader(b"".join(parts)), _CODEC) as file:
        recorded: RecordedRange = pickle.load(file)  # noqa: S301 - ours, from one worker to another
    return recorded


def on_range(
    work: Callable[[RecordedRange, A], R],
    given: Any,  # noqa: ANN401 - a broadcast variable of Spark
    number: int,
    elements: Iterator[Any],
) -> Iterator[R]:
    """Do `work` on the range of these elements, with the argument of the partition of this number.

    Raises `HistoryError` for a range that was read again from other files.
    """
    files, argument = given.value[number]
    found: RangeRead = next(elements)
    if found.files != files:
        raise HistoryError("files of the range have changed while it was replayed, and a worker had lost what it read")
    yield work(unpacked(elements), argument)


def fault_of(recorded: RecordedRange, trial: Trial) -> str | None:
    """Return why the trial has no world; None when it has one."""
    try:
        trial.world(recorded)
    except ValueError as error:
        return str(error)
    return None


def outcome(recorded: RecordedRange, given: tuple[dict[str, Any], Trial, float]) -> dict[str, Any]:
    """Run a trial: its description and its figures by this band."""
    description, trial, band = given
    return description | figures(trial.run(recorded), band)
