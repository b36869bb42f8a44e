"""The rows of units, made of what there is: clean ones of the history's files, windows of clean ones.

Here is said which task has which files. What it makes of them is in `cleaning` and `averaging`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

import pandas as pd
from pyspark import RDD
from pyspark.sql import SparkSession

from loadmanager.history.files import HOUR_MS, HistoryFile
from loadmanager.history.schemas import EVENTS
from loadmanager.pipeline.averaging import (
    BY_UNIT,
    CLEAN,
    SUBJECTS,
    Averaging,
    Hours,
    MadeBefore,
    TimePart,
    with_days,
)
from loadmanager.pipeline.cleaning import FLEET_EVENTS_TABLE, Cleaning, Damaged, FileToClean, Rejections, Together
from loadmanager.pipeline.contents import RowFile
from loadmanager.pipeline.datasets import schema_of
from loadmanager.pipeline.file_bytes import exchanged, on_files
from loadmanager.pipeline.found import CLEANED_FROM, faults_in, hour_of
from loadmanager.pipeline.reading import DamagedFileError, HistoryTables, overlapping_files
from loadmanager.pipeline.standing import FLEET_EVENTS, STANDS_MS, Ends
from loadmanager.pipeline.storing import Put
from loadmanager.pipeline.units import Grain, Unit, unit_at
from loadmanager.pipeline.writing import Tables

ELSEWHERE = "elsewhere"
"""The part of `rejected_rows` for files that are of no hour."""

BAD_FILE = "bad_file"
"""The reason in `rejected_rows` of a file that was left out."""

TASK_BYTES = 8 << 20, 64 << 20
"""Of files of the history: the least, as far as there are so many, and the most that a task has, but for one file."""

TASK_ROWS = 1_000_000, 4_000_000
"""Of bundles, that a task makes windows of; some 0.2 KiB each in a worker's memory. An hour is never divided."""

_TASKS_A_CORE = 2
_REJECTED_ROWS = "rejected_rows"

T = TypeVar("T")


class Maker:
    """Makes these `units`, in place of what tables have of them; of the parts that tables have besides, those stay that
    are of `others`.
    """

    def __init__(
        self, spark: SparkSession, tables: Tables, grain: Grain, units: Sequence[Unit], others: Iterable[Unit]
    ) -> None:
        self._spark, self._tables, self._grain, self._units = spark, tables, grain, units
        self._keys = [unit.key for unit in units]
        self._stay = _parts_of(others)

    def clean(self, history: HistoryTables) -> None:
        """Clean rows, what was rejected, and events."""
        hours = {hour for unit in self._units for hour in range(unit.from_ms, unit.to_ms, HOUR_MS)}
        groups = [group for table in CLEANED_FROM for group in self._groups(history, table, hours)]
        groups.sort(key=lambda group: (group[0][0].hour_ms, group[0][0].path))
        tasks = [[group for group, _ in task] for task in self._tasks(groups, itemgetter(1), TASK_BYTES)]
        given = [(task, [file.path for group in task for file in group]) for task in tasks]
        work = Cleaning(history.from_ms, history.to_ms, FLEET_EVENTS, schema_of(FLEET_EVENTS_TABLE).names)

        def made(_: Put) -> RDD[Any]:
            return on_files(self._spark, history.directory, given, work)

        rejections: list[Rejections] = []
        keys = {f"rejected_{table}": self._keys for table in CLEAN}
        keys |= {name: [*self._keys, *(unit.end_key for unit in self._units)] for name in CLEAN.values()}
        keys |= {FLEET_EVENTS_TABLE: self._keys}
        self._tables.write_made(made, self._with_others(keys), partial(_told, history, rejections))
        self._write_rejected_rows(history, rejections, hours)

    def _groups(self, history: HistoryTables, table: str, hours: set[int]) -> Iterator[tuple[Together, int]]:
        """Files that have to be looked at together, and their bytes."""
        files = [file for file, _ in history.files(table) if file.hour_ms in hours]
        overlapping = set() if table == EVENTS else overlapping_files(files)
        groups = defaultdict(list)
        for file in files:
            groups[file.hour_ms if file.path in overlapping else file.path].append(file)
        for group in groups.values():
            by_name = sorted(group, key=lambda file: file.path)
            yield tuple(self._to_clean(file) for file in by_name), sum(file.size_bytes for file in group)

    def _to_clean(self, file: HistoryFile) -> FileToClean:
        unit = unit_at(file.hour_ms, self._grain)
        return FileToClean(file.table, file.path, file.hour_ms, unit.key, unit.end_key, unit.to_ms - STANDS_MS)

    def _write_rejected_rows(self, history: HistoryTables, rejections: Sequence[Rejections], hours: set[int]) -> None:
        rows = defaultdict(list)
        for each in rejections:
            rows[each.part].append((each.table, each.reason, each.file, each.count, each.example))
        for fault in faults_in(history):
            hour_ms = hour_of(fault.path)
            if hour_ms is None or hour_ms in hours:
                part = ELSEWHERE if hour_ms is None else unit_at(hour_ms, self._grain).key
                rows[part].append((fault.table, BAD_FILE, fault.path, 0, fault.why))
        frames = {part: pd.DataFrame(each, columns=schema_of(_REJECTED_ROWS).names) for part, each in rows.items()}
        (keys,) = self._with_others({_REJECTED_ROWS: [*self._keys, ELSEWHERE]}).values()
        self._tables.write_parts(_REJECTED_ROWS, frames, keys)

    def average(self, ends: Ends, end_ms: int, overloaded: float) -> None:
        """Who carried what, windows, and how even they were."""
        days = sorted({unit.day for unit in self._units})
        tasks: list[Hours | MadeBefore] = [*self._hours(), *self._made_before(days)]
        units = [TimePart(each.key, each.from_ms, each.to_ms) for each in self._units]
        work = Averaging(len(tasks), units, ends, end_ms, overloaded)
        given = [(task, task.files) for task in tasks]
        of_days = [TimePart(day.key, day.from_ms, day.to_ms) for day in days]

        def made(put: Put) -> RDD[Any]:
            first = put("first", on_files(self._spark, self._tables.directory, given, work))
            return exchanged(first, len(tasks)).mapPartitions(partial(with_days, of_days))

        of_both = [*self._keys, *(day.key for day in days if day.key not in self._keys)]
        keys = {**dict.fromkeys(BY_UNIT, self._keys), **dict.fromkeys(SUBJECTS, of_both)}
        self._tables.write_made(made, self._with_others(keys), _nothing_told)

    def _hours(self) -> Iterator[Hours]:
        """Hours of which there may be windows, as many together as a task can have."""
        files = self._clean_files()
        rows: dict[int, float] = defaultdict(float)
        for _, file, (first, last) in files:
            spread = range(first // HOUR_MS, (last + STANDS_MS) // HOUR_MS + 1)
            for hour in spread:
                rows[hour] += file.rows / len(spread)
        units = set(self._units)
        wanted = sorted(hour for hour in rows if unit_at(hour * HOUR_MS, self._grain) in units)
        for hours in runs(wanted, units, self._grain):
            for task in self._tasks(hours, lambda hour: rows[hour], TASK_ROWS):
                from_ms, to_ms = task[0] * HOUR_MS, (task[-1] + 1) * HOUR_MS
                own = [path for path, _, (first, last) in files if first < to_ms and last >= from_ms - STANDS_MS]
                yield Hours(from_ms, to_ms, tuple(own))

    def _clean_files(self) -> list[tuple[str, RowFile, tuple[int, int]]]:
        """Those of which windows of these units are made, in the order of their times."""
        keys = {*self._keys, *(each.end_key for unit in self._units for each in (unit, unit.before))}
        found = [
            (path, file, file.times)
            for name in CLEAN.values()
            for path, file in self._tables.files(name, keys)
            if file.times is not None
        ]
        return sorted(found, key=lambda each: (each[2], each[0]))

    def _made_before(self, days: Sequence[Unit]) -> Iterator[MadeBefore]:
        """Of the other units of these days."""
        others = [unit.key for day in days for unit in day.units(self._grain) if unit.key not in self._keys]
        found = [each for name in SUBJECTS if self._tables.has(name) for each in self._tables.files(name, others)]
        for task in self._tasks(found, lambda each: each[1].rows, TASK_ROWS):
            yield MadeBefore(tuple(path for path, _ in task))

    def _tasks(self, given: Sequence[T], size: Callable[[T], float], bounds: tuple[int, int]) -> list[list[T]]:
        return tasks_of(self._spark, given, size, bounds)

    def _with_others(self, keys: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """Also those parts of the tables that are of no unit any more."""
        found = {}
        for name, own in keys.items():
            there = self._tables.contents(name).parts
            found[name] = [*own, *(part for part in there if part not in self._stay and part not in own)]
        return found


def tasks_of(
    spark: SparkSession, given: Sequence[T], size: Callable[[T], float], bounds: tuple[int, int]
) -> list[list[T]]:
    """In their order, as many together as give each core some tasks, within bounds."""
    least, most = bounds
    cores = spark.sparkContext.defaultParallelism
    wanted = min(most, max(least, sum(map(size, given)) / (cores * _TASKS_A_CORE)))
    return list(together(given, size, wanted))


def together(given: Iterable[T], size: Callable[[T], float], most: float) -> Iterator[list[T]]:
    """Groups in the same order, each of as many as are not too much, or of one."""
    group: list[T] = []
    so_far = 0.0
    for each in given:
        more = size(each)
        if group and so_far + more > most:
            yield group
            group, so_far = [], 0.0
        group.append(each)
        so_far += more
    if group:
        yield group


def runs(hours: Sequence[int], units: set[Unit], grain: Grain) -> Iterator[list[int]]:
    """Hours between which there is none of another unit."""
    run: list[int] = []
    for hour in hours:
        if run:
            first, last = (unit_at(each * HOUR_MS, grain).number for each in (run[-1], hour))
            if any(Unit(number, grain) not in units for number in range(first, last)):
                yield run
                run = []
        run.append(hour)
    if run:
        yield run


def _told(history: HistoryTables, rejections: list[Rejections], told: Sequence[Any]) -> None:
    """What tasks say besides. Raises `DamagedFileError` where damaged files are not to be left out."""
    for each in told:
        if isinstance(each, Damaged):
            if not history.leaves_out:
                raise DamagedFileError(each.path, each.why)
            history.leave_out(each.path, each.why)
        else:
            rejections.append(each)


def _nothing_told(told: Sequence[Any]) -> None:
    assert not told


def _parts_of(units: Iterable[Unit]) -> set[str]:
    """The parts of tables that belong to any of these."""
    return {ELSEWHERE, *(key for unit in units for key in (unit.key, unit.end_key, unit.day.key))}
