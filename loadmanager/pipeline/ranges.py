"""A history that is read by executors: Spark hands its files to them, and what they make of it stays there.

    driver:     lists files ──▶ finds stretches                       ◀── an outline of each range
    executors:            a stretch a task: its files ──▶ its range, packed, kept on disk ──▶ a trial a task: its range

Nothing but outlines goes through the driver. A range is read once; when the executor that keeps it is lost, it is read
again, by whoever needs it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any, Protocol, TypeVar

import numpy as np
from pyspark import RDD, StorageLevel
from pyspark.sql import SparkSession

from loadmanager.core.load import IntArray
from loadmanager.errors import HistoryFileError
from loadmanager.history.files import DAY_MS, HistoryFile
from loadmanager.history.gaps import MARKS, Gap, gaps_in
from loadmanager.history.reader import History, OnFault
from loadmanager.history.schemas import BROKER_REPORTS, BUNDLE_REPORTS, EVENTS
from loadmanager.pipeline.file_bytes import bytes_of
from loadmanager.pipeline.on_workers import (
    Found,
    Outline,
    Work,
    events_of,
    found_of,
    on_files,
    on_range,
    range_of,
    report_times,
)
from loadmanager.pipeline.reading import DamagedFileError, naming_bad_files
from loadmanager.sim.recorded import RecordedRange
from loadmanager.whatif.ranges import Stretch

A = TypeVar("A")
R = TypeVar("R")

_KEPT = StorageLevel.DISK_ONLY
_OF_A_RANGE = (BROKER_REPORTS, BUNDLE_REPORTS, EVENTS)


class Ranges(Protocol):
    """What is to be known of a history, wherever it is read."""

    def report_times(self, from_ms: int | None, to_ms: int | None) -> IntArray:
        """Those of brokers' reports, in order; of many within `HOLD_S` not all."""

    def gaps(self) -> list[Gap]:
        """Every gap that is marked."""

    def read(self, stretches: Sequence[Stretch]) -> list[Outline | str]:
        """An outline of the range of each, or why it cannot be replayed."""

    def try_each(self, work: Callable[[RecordedRange, A], R], given: Sequence[tuple[int, A]]) -> list[R]:
        """`work` on the range of the stretch of each number, and on what goes with it."""


class RangesOfSpark:
    """The `Ranges` of a history, read by executors. A file that cannot be used goes to `on_fault`, or is raised."""

    def __init__(self, spark: SparkSession, history: History, on_fault: OnFault | None = None) -> None:
        self._spark = spark
        self._history = history
        self._on_fault = on_fault
        self._unreadable: set[str] = set()
        self._ranges: dict[int, RDD[Any]] = {}
        self._files: dict[int, str] = {}

    def report_times(self, from_ms: int | None, to_ms: int | None) -> IntArray:
        files = self._history.files(BROKER_REPORTS, from_ms, to_ms, self._on_fault)
        found = self._found([(day, partial(report_times, from_ms, to_ms)) for day in _by_day(files)])
        return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *(each.value for each in found)]))

    def gaps(self) -> list[Gap]:
        files = self._history.files(EVENTS, on_fault=self._on_fault)
        found = self._found([(day, partial(events_of, MARKS)) for day in _by_day(files)])
        return gaps_in([row for each in found for row in each.value])

    def read(self, stretches: Sequence[Stretch]) -> list[Outline | str]:
        from_ms = min((each.from_ms for each in stretches), default=None)
        to_ms = max((each.to_ms for each in stretches), default=None)
        files = [file for table in _OF_A_RANGE for file in self._history.files(table, from_ms, to_ms, self._on_fault)]

        def make() -> list[RDD[Any]]:
            self.close()
            for stretch in stretches:
                own = [file for file in files if file.may_have(stretch.from_ms, stretch.to_ms)]
                self._ranges[stretch.number] = self._made(own, partial(range_of, stretch)).persist(_KEPT)
            return list(self._ranges.values())

        found = self._found_in(make)
        self._files = {each.number: its.files for each, its in zip(stretches, found, strict=True)}
        return [each.value for each in found]

    def try_each(self, work: Callable[[RecordedRange, A], R], given: Sequence[tuple[int, A]]) -> list[R]:
        return self.each(work, given).collect()

    def each(self, work: Callable[[RecordedRange, A], R], given: Sequence[tuple[int, A]]) -> RDD[R]:
        """As `try_each`, on a partition each, when it is asked for."""
        context = self._spark.sparkContext
        shared = context.broadcast([(self._files[stretch], argument) for stretch, argument in given])
        ranges = context.union([self._ranges[stretch] for stretch, _ in given])
        return ranges.mapPartitionsWithIndex(partial(on_range, work, shared))

    def close(self) -> None:
        """Nothing is kept any more."""
        for each in self._ranges.values():
            each.unpersist()
        self._ranges.clear()

    def _found(self, given: Sequence[tuple[Sequence[HistoryFile], Work]]) -> list[Found[Any]]:
        """What work makes of files, a task each."""
        return self._found_in(lambda: [self._made(files, work) for files, work in given])

    def _found_in(self, make: Callable[[], list[RDD[Any]]]) -> list[Found[Any]]:
        """What is for the driver of what is made on a partition each; made anew without each file that Spark cannot
        read, where such are left out.
        """
        while True:
            made = make()
            try:
                with naming_bad_files():
                    found = self._spark.sparkContext.union(made).mapPartitions(found_of).collect() if made else []
                break
            except DamagedFileError as error:
                if error.path in self._unreadable:  # Spark calls it otherwise than we do
                    raise
                self._tell(error)
                self._unreadable.add(error.path)
        for fault in chain.from_iterable(each.faults for each in found):
            self._tell(fault)
        return found

    def _tell(self, fault: HistoryFileError) -> None:
        if self._on_fault is None:
            raise fault
        self._on_fault(fault)

    def _made(self, files: Sequence[HistoryFile], work: Work) -> RDD[Any]:
        """On one partition."""
        root = self._history.directory.root
        readable = [file.path for file in files if file.path not in self._unreadable]
        brought: RDD[Any] = bytes_of(self._spark, self._history.directory, readable).coalesce(1).rdd
        return brought.mapPartitions(partial(on_files, root, work))


def _by_day(files: Iterable[HistoryFile]) -> list[list[HistoryFile]]:
    days = defaultdict(list)
    for file in files:
        days[file.hour_ms // DAY_MS].append(file)
    return list(days.values())
