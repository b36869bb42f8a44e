"""The rows of units, made of what there is: clean ones of the history's files, windows of clean ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from loadmanager.history.files import HOUR_MS
from loadmanager.history.schemas import BROKER_REPORTS, BUNDLE_REPORTS, EVENTS
from loadmanager.pipeline.averages import (
    SHORTEST_S,
    WINDOWS_S,
    carried,
    short_broker_windows,
    short_bundle_windows,
    short_namespace_windows,
    with_longer,
)
from loadmanager.pipeline.balance import imbalance
from loadmanager.pipeline.datasets import schema_of
from loadmanager.pipeline.found import FOLDERS, faults_in, hour_of
from loadmanager.pipeline.ingest import Cleaned, clean_broker_reports, clean_bundle_reports, rejected_rows
from loadmanager.pipeline.reading import IS_STRAY, HistoryTables
from loadmanager.pipeline.standing import FLEET_EVENTS, standing
from loadmanager.pipeline.units import Grain, Unit, key_at, report_key_at, window_key_at
from loadmanager.pipeline.writing import Tables

ELSEWHERE = "elsewhere"
"""The part of `rejected_rows` for files that are of no hour."""

_CLEANERS: dict[str, Callable[[DataFrame, DataFrame], Cleaned]] = {
    BROKER_REPORTS: clean_broker_reports,
    BUNDLE_REPORTS: clean_bundle_reports,
}


class Maker:
    """Makes these `units`, in place of what tables have of them; of the parts that tables have besides, those stay that
    are of `others`.
    """

    def __init__(self, tables: Tables, grain: Grain, units: Sequence[Unit], others: Iterable[Unit]) -> None:
        self._tables, self._grain, self._units = tables, grain, units
        self._keys = [unit.key for unit in units]
        self._stay = _parts_of(others)

    def clean(self, spark: SparkSession, history: HistoryTables) -> None:
        """Clean rows, what was rejected, and events."""
        keys, grain = self._keys, self._grain
        hours = {hour for unit in self._units for hour in range(unit.from_ms, unit.to_ms, HOUR_MS)}
        rejected = {}
        for table, clean in _CLEANERS.items():
            cleaned = clean(*history.to_clean(table, may_be_empty=True, hours=hours))
            with_ends = [*keys, *(unit.end_key for unit in self._units)]
            self._write(f"clean_{table}", cleaned.clean, report_key_at("at_ms", grain), with_ends)
            bad = cleaned.find_rejected()
            self._write(f"rejected_{table}", bad, _key_of_file(grain), keys)
            if bad is not None:
                rejected[table] = self._tables.read(f"rejected_{table}", keys)
        self._write_events(history, hours)
        faults = [each for each in faults_in(history) if hour_of(each.path) in {None, *hours}]
        counted = rejected_rows(spark, rejected, faults) if rejected or faults else None
        self._write("rejected_rows", counted, _key_of_file(grain), [*keys, ELSEWHERE])

    def _write_events(self, history: HistoryTables, hours: Collection[int]) -> None:
        of_fleet = None
        if any(file.hour_ms in hours for file, _ in history.files(EVENTS)):
            events = history.frame(EVENTS, with_file=True, hours=hours)
            is_one = f.col("kind").isin(*FLEET_EVENTS) & f.col("at_ms").isNotNull() & ~f.col(IS_STRAY)
            of_fleet = events.where(is_one).select(*schema_of("fleet_events").fieldNames())
        self._write("fleet_events", of_fleet, key_at("at_ms", self._grain), self._keys)

    def average(self, events: DataFrame, end_ms: int, overloaded: float) -> None:
        """Who carried what, windows, and how even they were."""
        keys, grain = self._keys, self._grain
        days = sorted({unit.day for unit in self._units})
        read = [*keys, *{each.end_key for unit in self._units for each in (unit, unit.before)}]
        brokers, bundles = (self._tables.read(f"clean_{name}", read) for name in _CLEANERS)
        is_wanted = key_at("start_ms", grain).isin(keys)
        others = [each.key for day in days for each in day.units(grain) if each.key not in keys]
        with _kept(standing(brokers, events, end_ms)) as reports:
            self._write("carried", carried(bundles, reports).where(is_wanted), key_at("start_ms", grain), keys)
            pieces = self._tables.read("carried", keys)
            for name, short in (
                ("bundle_windows", short_bundle_windows(pieces)),
                ("broker_windows", short_broker_windows(brokers, reports, pieces).where(is_wanted)),
                ("namespace_windows", short_namespace_windows(pieces)),
            ):
                with _kept(short) as kept:  # each length is made of it
                    frame = self._with_longer(name, kept, others)
                    of_days = [*keys, *(day.key for day in days if day.key not in keys)]
                    self._write(name, frame, window_key_at("start_ms", "window_s", grain), of_days)
        even = imbalance(self._tables.read("broker_windows", keys), overloaded=overloaded)
        self._write("imbalance", even, key_at("start_ms", grain), keys)

    def _with_longer(self, name: str, short: DataFrame, others: Sequence[str]) -> DataFrame:
        """Of these windows and, for those that are longer than a unit, of the `others` of their days."""
        if not others:
            return with_longer(name, short)
        of_unit = [window for window in WINDOWS_S if window * 1000 <= HOUR_MS]
        longer = [window for window in WINDOWS_S if window not in of_unit]
        rest = self._tables.read(name, others) if self._tables.has(name) else short.limit(0)
        whole = short.unionByName(rest.where(f.col("window_s") == SHORTEST_S))
        return with_longer(name, short, of_unit).unionByName(with_longer(name, whole, longer))

    def _write(self, name: str, frame: DataFrame | None, key: Column, keys: Sequence[str]) -> None:
        """In place of these parts, and of those that are of no unit any more; None has no rows."""
        there = self._tables.contents(name)
        others = [part for part in there.parts if part not in self._stay and part not in keys]
        if frame is not None:
            of_parts, gather = frame.withColumn("part", key), len(self._units) > 1
            self._tables.write(name, of_parts, key="part", keys=[*keys, *others], gather=gather)
        elif others or not there.number or not there.parts.keys().isdisjoint(keys):
            self._tables.clear(name, [*keys, *others])


@contextmanager
def _kept(frame: DataFrame) -> Iterator[DataFrame]:
    """The frame, worked out once."""
    kept = frame.persist()
    try:
        yield kept
    finally:
        kept.unpersist()


def _parts_of(units: Iterable[Unit]) -> set[str]:
    """The parts of tables that belong to any of these."""
    return {ELSEWHERE, *(key for unit in units for key in (unit.key, unit.end_key, unit.day.key))}


def _key_of_file(grain: Grain) -> Column:
    """The key of the unit that the place of a row's `file` says."""
    day, hour = (f.regexp_extract("file", FOLDERS, group) for group in (1, 2))
    key = day if grain == "day" else f.concat(day, f.lit("T"), hour)
    return f.when(day == "", ELSEWHERE).otherwise(key)
