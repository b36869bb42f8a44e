"""Clean rows made into windows by Spark's workers, which have the bytes of files and nothing else.

    a task's hours:   clean rows ──▶ who carried what ──▶ windows of 5 minutes ──▶ those of an hour     packed
                          └──▶ what later steps have to know of the reports, by hours                   packed
                                                                 │
    a task's subjects:                                           └──▶ those of a day                    packed

What was reported stands for a quarter of an hour at the most. So hours are worked out each for itself, with the reports
of the quarter before; nothing but windows of 5 minutes has to be brought together, those of one subject, for a day.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from loadmanager.history.schemas import BROKER_REPORTS, BUNDLE_REPORTS
from loadmanager.pipeline.arrays import only
from loadmanager.pipeline.averages import (
    NOT_FOR_LONGER,
    SHORTEST_S,
    WINDOWS_S,
    rolled_up,
    short_broker_windows,
    short_bundle_windows,
    short_namespace_windows,
)
from loadmanager.pipeline.by_hour import reported_by, totals_compared
from loadmanager.pipeline.carried import bundles_of, carried
from loadmanager.pipeline.contents import TIME, place_of
from loadmanager.pipeline.evenness import imbalance
from loadmanager.pipeline.packing import Packed, Packer, from_stream, opened, times_between, to_stream
from loadmanager.pipeline.raw_rows import raw_schema
from loadmanager.pipeline.standing import STANDS_MS, Ends, standing

CLEAN = {table: f"clean_{table}" for table in (BROKER_REPORTS, BUNDLE_REPORTS)}
CARRIED, IMBALANCE, REPORTED_BY, TOTALS_COMPARED = "carried", "imbalance", "reported_by", "totals_compared"
BY_UNIT = (CARRIED, IMBALANCE, REPORTED_BY, TOTALS_COMPARED)
"""The tables of which no row is of more than a unit."""

SUBJECTS = {"bundle_windows": "namespace", "broker_windows": "broker", "namespace_windows": "namespace"}
"""The tables of windows, and by what they are divided where days are made of them."""

_, _HOUR_S, _DAY_S = WINDOWS_S
_NOT_READ = {"cache_bytes", "incarnation", "version", "load_manager_class", "last_update_ms", "start_timestamp_ms"}


class Hours(NamedTuple):
    """Windows that begin from `from_ms` to before `to_ms`, whole hours, are made of these files of clean tables."""

    from_ms: int
    to_ms: int
    files: tuple[str, ...]


class MadeBefore(NamedTuple):
    """Windows of 5 minutes that were made before, in these files of a table, for the days that they are of."""

    files: tuple[str, ...]


class TimePart(NamedTuple):
    """Windows that begin from `from_ms` to before `to_ms` go into this part of tables."""

    key: str
    from_ms: int
    to_ms: int


class ForDays(NamedTuple):
    """Windows of 5 minutes of a table, on their way to the task that makes those of days."""

    table: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Averaging:
    """Work of one of so many `tasks` on the files of some hours, or of windows that were made before. The range ends at
    `end_ms`; who is used above `overloaded` is overloaded.
    """

    tasks: int
    units: Sequence[TimePart]
    ends: Ends
    end_ms: int
    overloaded: float

    def __call__(
        self, number: int, task: Hours | MadeBefore, contents: Mapping[str, bytes]
    ) -> Iterator[tuple[int, Packed | ForDays]]:
        """Each with the number of the task that is to have it."""
        if isinstance(task, MadeBefore):
            for path in task.files:
                table = place_of(path).partition("/")[0]
                with opened(contents, path) as parquet:
                    yield from self._for_days(table, parquet.read().filter(pc.field("window_s") == SHORTEST_S))
            return
        packer = Packer()
        for table, rows in self._windows(task, contents):
            if table in SUBJECTS:
                yield from self._for_days(table, rows)
                self._pack(table, rolled_up(table, rows, _HOUR_S), packer)
            self._pack(table, rows, packer)
        for each in packer.packed():
            yield number, each

    def _windows(self, task: Hours, contents: Mapping[str, bytes]) -> Iterator[tuple[str, pa.Table]]:
        brokers, bundles = (_clean_rows(contents, table, task) for table in (BROKER_REPORTS, BUNDLE_REPORTS))
        reports = standing(brokers, self.ends, self.end_ms)
        numbered = bundles_of(bundles)
        pieces = carried(bundles, numbered, reports, task.from_ms, task.to_ms)
        yield CARRIED, pieces
        yield "bundle_windows", short_bundle_windows(pieces)
        of_brokers = short_broker_windows(brokers, reports, pieces, task.from_ms, task.to_ms)
        yield "broker_windows", of_brokers
        yield IMBALANCE, imbalance(of_brokers, overloaded=self.overloaded)
        yield "namespace_windows", short_namespace_windows(pieces)
        yield REPORTED_BY, reported_by(bundles, numbered).filter(pc.field("start_ms") >= task.from_ms)
        own = times_between(brokers, task.from_ms, task.to_ms)
        yield TOTALS_COMPARED, totals_compared(own, bundles)

    def _pack(self, table: str, rows: pa.Table, packer: Packer) -> None:
        start_ms = rows.column("start_ms").to_numpy()
        for key, from_ms, to_ms in self.units:
            packer.add(table, key, only(rows, (start_ms >= from_ms) & (start_ms < to_ms)))

    def _for_days(self, table: str, short: pa.Table) -> Iterator[tuple[int, ForDays]]:
        """By subjects, since a day's windows are made of all of one."""
        if not short.num_rows:
            return
        short = short.drop_columns(list(NOT_FOR_LONGER))
        subjects = short.column(SUBJECTS[table]).combine_chunks().dictionary_encode()
        numbers = [crc32(name.encode()) % self.tasks for name in subjects.dictionary.to_pylist()]
        to = np.array(numbers)[subjects.indices.to_numpy()]
        for number in np.unique(to).tolist():
            yield number, ForDays(table, to_stream(only(short, to == number)))


def with_days(days: Sequence[TimePart], made: Iterable[tuple[int, Any]]) -> Iterator[Any]:
    """What a task was to have, with windows of these days in place of those of which they are made."""
    short: dict[str, list[pa.Table]] = defaultdict(list)
    for _, each in made:
        if isinstance(each, ForDays):
            short[each.table].append(from_stream(each.data))
        else:
            yield each
    packer = Packer()
    for table, parts in short.items():
        rows = rolled_up(table, pa.concat_tables(parts).unify_dictionaries(), _DAY_S)
        for key, from_ms, to_ms in days:
            start_ms = pc.field("start_ms")
            packer.add(table, key, rows.filter((start_ms >= from_ms) & (start_ms < to_ms)))
    yield from packer.packed()


def _clean_rows(contents: Mapping[str, bytes], table: str, hours: Hours) -> pa.Table:
    """The rows of a clean table that may stand in these hours, in about the order of their times."""
    schema = raw_schema(table)
    columns = [name for name in schema.names if name not in _NOT_READ]
    from_ms = hours.from_ms - STANDS_MS
    found = [schema.empty_table().select(columns)]
    for path in hours.files:
        if place_of(path).startswith(f"{CLEAN[table]}/"):
            with opened(contents, path) as parquet:
                found.append(_rows_between(parquet, columns, from_ms, hours.to_ms))
    return pa.concat_tables(found).unify_dictionaries()


def _rows_between(parquet: pq.ParquetFile, columns: Sequence[str], from_ms: int, to_ms: int) -> pa.Table:
    at = parquet.schema_arrow.get_field_index(TIME)
    groups = [parquet.metadata.row_group(number).column(at).statistics for number in range(parquet.num_row_groups)]
    wanted = [number for number, each in enumerate(groups) if each.max >= from_ms and each.min < to_ms]
    return times_between(parquet.read_row_groups(wanted, columns), from_ms, to_ms)
