"""Clean tables and windows kept up with a history: what has changed since the last time is made anew, and no more.

    the files of a unit (a day, or an hour)  ──▶  its clean rows  ──▶  its windows  ──▶  running means
    the last minutes of the one before       ──────────────────────────────┘
    until when terms and the range go        ──────────────────────────────┘

What each was made of is in `made`; where it is of something else by now, all parts of the unit are replaced. So it does
not matter when a file comes, or how often a run is killed: the tables are those of one run over everything there is.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from loadmanager.core.resources import HOT
from loadmanager.errors import PipelineError
from loadmanager.history.files import HOUR_MS, HistoryFile
from loadmanager.history.schemas import BROKER_REPORTS, BUNDLE_REPORTS, EVENTS
from loadmanager.pipeline.averages import (
    SHORTEST_S,
    WINDOWS_S,
    carried,
    running_means,
    short_broker_windows,
    short_bundle_windows,
    short_namespace_windows,
    with_longer,
)
from loadmanager.pipeline.balance import imbalance
from loadmanager.pipeline.datasets import schema_of
from loadmanager.pipeline.filesystems import directory_at
from loadmanager.pipeline.ingest import Cleaned, clean_broker_reports, clean_bundle_reports, rejected_rows
from loadmanager.pipeline.made import ANYTHING, Clean, Made, digest_of, load_made
from loadmanager.pipeline.reading import IS_STRAY, FileFault, HistoryTables, Usable, read_leaving_out
from loadmanager.pipeline.schemas import frame_of
from loadmanager.pipeline.standing import FLEET_EVENTS, STANDS_MS, standing, terms
from loadmanager.pipeline.units import Grain, Unit, key_at, report_key_at, unit_at, unit_of, window_key_at
from loadmanager.pipeline.writing import Tables

CLEANED_FROM = (BROKER_REPORTS, BUNDLE_REPORTS, EVENTS)
"""The tables of the history of which clean ones are made."""

CLEAN_TABLES = (
    "clean_broker_reports",
    "rejected_broker_reports",
    "clean_bundle_reports",
    "rejected_bundle_reports",
    "fleet_events",
    "rejected_rows",
)
WINDOW_TABLES = ("carried", "bundle_windows", "broker_windows", "namespace_windows", "imbalance")
MEANS = "running_means"

ELSEWHERE = "elsewhere"
"""The part of `rejected_rows` for files that are of no hour."""

TOGETHER_BYTES = 256 << 20
"""Units with files of so many bytes are made together: each by itself would cost a small fleet more than its rows."""

_CLEANERS: dict[str, Callable[[DataFrame, DataFrame], Cleaned]] = {
    BROKER_REPORTS: clean_broker_reports,
    BUNDLE_REPORTS: clean_bundle_reports,
}
_FOLDERS = r"/date=(\d{4}-\d\d-\d\d)/hour=(\d\d)/[^/]+$"
_EPOCHS = t.StructType([t.StructField("epoch", t.LongType())])


class KeepingUp:
    """Of the tables under `out` with one history. One at a time writes there."""

    def __init__(
        self, spark: SparkSession, tables: Tables, url: str, *, new_grain: Grain = "day", anew: bool = False
    ) -> None:
        """Tables keep the grain that they began in."""
        self._spark, self._tables = spark, tables
        self._directory = directory_at(spark, str(tables))
        self._made = load_made(self._directory, url, new_grain)
        if anew:
            self._forget(*WINDOW_TABLES, *CLEAN_TABLES, MEANS)
        self._parts: set[str] = set()

    @property
    def grain(self) -> Grain:
        return self._made.grain

    @property
    def newest_ms(self) -> int:
        """When the newest unit begins of which there are clean rows; 0 without any."""
        return max((unit.from_ms for unit in self._units(self._made.clean)), default=0)

    @property
    def batches(self) -> int:
        """How many batches of streams there were."""
        return self._made.batches

    def count_batch(self) -> None:
        self._made.batches += 1
        self._made.save(self._directory)

    def ingest(self, history: HistoryTables, from_ms: int = 0) -> list[Unit]:
        """Make the clean rows anew of all units whose files have changed; which these were. Units that begin before
        `from_ms` stay as they are.
        """
        self._forget(*(name for name in CLEAN_TABLES if not self._tables.has(name)))
        grain, made = self._made.grain, self._made.clean
        found = _found(history, grain)
        changed = _changed(found, made, grain, from_ms)
        self._parts = _parts_of({*found, *self._units(made)})
        self._forget_means_if_late(history, {unit: found[unit] for unit in changed if unit in found})
        for units in _together(changed, {unit: clean.size_bytes for unit, clean in found.items()}):
            self._begin(made, units, ANYTHING)
            read_leaving_out(history, partial(self._clean, history, units))
            found = _found(history, grain)  # without files that turned out damaged
            self._end(made, units, found)
        with suppress(OSError):
            history.keep_known()
        return changed

    def average(self, end_ms: int, overloaded: float = HOT) -> list[Unit]:
        """Make the windows anew of all units of which the clean rows have changed; which these were. The range ends
        before `end_ms`; a broker that is used above `overloaded` counts as overloaded.
        """
        self._forget(*(name for name in WINDOW_TABLES if not self._tables.has(name)))
        if not self._made.clean:
            raise PipelineError(f"{self._tables}: has no clean tables by the rules of now; run the step ingest")
        made, events = self._made.windows, self._tables.read("fleet_events")
        wanted = self._wanted_windows(events, end_ms, overloaded)
        changed = _changed(wanted, made, self._made.grain)
        self._parts = _parts_of({*wanted, *self._units(made)})
        sizes = {unit: self._made.clean[unit.key].size_bytes for unit in changed if unit.key in self._made.clean}
        for units in _together(changed, sizes):
            self._begin(made, units, "")
            self._average(units, events, end_ms, overloaded)
            self._end(made, units, wanted)
        return changed

    def _clean(self, history: HistoryTables, units: Sequence[Unit]) -> None:
        grain = self._made.grain
        keys = [unit.key for unit in units]
        hours = {hour for unit in units for hour in range(unit.from_ms, unit.to_ms, HOUR_MS)}
        rejected = {}
        for table, clean in _CLEANERS.items():
            cleaned = clean(*history.to_clean(table, may_be_empty=True, hours=hours))
            with_ends = [*keys, *(unit.end_key for unit in units)]
            self._write(f"clean_{table}", cleaned.clean, report_key_at("at_ms", grain), with_ends, units)
            bad = cleaned.find_rejected()
            is_empty = not cleaned.seen.get["files"]
            self._write(f"rejected_{table}", bad, _key_of_file(grain), keys, units, is_empty=is_empty)
            if not is_empty:
                rejected[table] = self._tables.read(f"rejected_{table}", keys)
        self._write_events(history, hours, keys, units)
        faults = [each for each in _faults(history) if _hour_of(each.path) in {None, *hours}]
        counted, parts = rejected_rows(self._spark, rejected, faults), [*keys, ELSEWHERE]
        is_empty = not rejected and not faults
        self._write("rejected_rows", counted, _key_of_file(grain), parts, units, is_empty=is_empty)

    def _write_events(
        self, history: HistoryTables, hours: Collection[int], keys: Sequence[str], units: Sequence[Unit]
    ) -> None:
        events = history.frame(EVENTS, with_file=True, hours=hours)
        is_one = f.col("kind").isin(*FLEET_EVENTS) & f.col("at_ms").isNotNull() & ~f.col(IS_STRAY)
        of_fleet = events.where(is_one).select(*schema_of("fleet_events").fieldNames())
        is_empty = not any(file.hour_ms in hours for file, _ in history.files(EVENTS))
        self._write("fleet_events", of_fleet, key_at("at_ms", self._made.grain), keys, units, is_empty=is_empty)

    def _average(self, units: Sequence[Unit], events: DataFrame, end_ms: int, overloaded: float) -> None:
        grain = self._made.grain
        keys = [unit.key for unit in units]
        days = sorted({unit.day for unit in units})
        read = [*keys, *{each.end_key for unit in units for each in (unit, unit.before)}]
        brokers, bundles = (self._tables.read(f"clean_{name}", read) for name in _CLEANERS)
        reports = standing(brokers, events, end_ms)
        is_wanted = key_at("start_ms", grain).isin(keys)
        self._write("carried", carried(bundles, reports).where(is_wanted), key_at("start_ms", grain), keys, units)
        pieces = self._tables.read("carried", keys)
        others = [each.key for day in days for each in day.units(grain) if each.key not in keys]
        for name, short in (
            ("bundle_windows", short_bundle_windows(pieces)),
            ("broker_windows", short_broker_windows(brokers, reports, pieces).where(is_wanted)),
            ("namespace_windows", short_namespace_windows(pieces)),
        ):
            kept = short.persist()  # each length is made of it
            try:
                frame = self._with_longer(name, kept, others)
                of_days = [*keys, *(day.key for day in days if day.key not in keys)]
                self._write(name, frame, window_key_at("start_ms", "window_s", grain), of_days, units)
            finally:
                kept.unpersist()
        even = imbalance(self._tables.read("broker_windows", keys), overloaded=overloaded)
        self._write("imbalance", even, key_at("start_ms", grain), keys, units)

    def _with_longer(self, name: str, short: DataFrame, others: Sequence[str]) -> DataFrame:
        """Of these windows and, for those that are longer than a unit, of the `others` of their days."""
        if not others:
            return with_longer(name, short)
        of_unit = [window for window in WINDOWS_S if window * 1000 <= HOUR_MS]
        longer = [window for window in WINDOWS_S if window not in of_unit]
        rest = self._tables.read(name, others) if self._tables.has(name) else short.limit(0)
        whole = short.unionByName(rest.where(f.col("window_s") == SHORTEST_S))
        return with_longer(name, short, of_unit).unionByName(with_longer(name, whole, longer))

    def _wanted_windows(self, events: DataFrame, end_ms: int, overloaded: float) -> dict[Unit, str]:
        """What the windows of each unit are made of, as a digest. Reports stand into the unit after their own."""
        clean = self._made.clean
        units = self._units(clean)
        ends = self._ends_of_terms(events)
        found = {}
        for unit in sorted({*units, *(unit.after for unit in units if unit.to_ms < end_ms)}):
            own, before = clean.get(unit.key), clean.get(unit.before.key)
            epochs = sorted({epoch for each in (own, before) if each is not None for epoch in each.epochs})
            of_terms = [(epoch, ends[epoch]) for epoch in epochs if ends.get(epoch, unit.to_ms) < unit.to_ms]
            files = own and own.files, before and before.last_files
            found[unit] = digest_of(files, of_terms, min(end_ms, unit.to_ms), overloaded)
        return found

    def _ends_of_terms(self, events: DataFrame) -> dict[int, int]:
        epochs = sorted({epoch for clean in self._made.clean.values() for epoch in clean.epochs})
        rows = terms(frame_of(self._spark, _EPOCHS, [(epoch,) for epoch in epochs]), events).collect()
        return {row["epoch"]: row["term_ms"] for row in rows if row["term_ms"] is not None}

    def _forget_means_if_late(self, history: HistoryTables, changed: Mapping[Unit, Clean]) -> None:
        """Means go on from report to report: where an earlier one came late, or is gone, they begin anew."""
        made = self._made
        newest = max((each.newest for each in made.clean.values()), default=[-1, -1])
        known = {hour: digest for clean in made.clean.values() for hour, digest in clean.hours.items()}
        files = [file for file, _ in history.files(BUNDLE_REPORTS)]
        earlier = _by_hour(file for file in files if [file.epoch, file.first] <= newest)
        hours = {hour for clean in changed.values() for hour in clean.hours}
        is_late = any(known.get(hour) != digest for hour, digest in earlier.items() if hour in hours)
        is_shorter = newest > max(([file.epoch, file.last] for file in files), default=[-1, -1])
        if is_late or is_shorter or any(_ends_otherwise(unit, clean, made) for unit, clean in changed.items()):
            made.means.clear()

    def go_on_with_means(self) -> None:
        """Have the running means of all clean rows."""
        made = self._made
        if not self._tables.has(MEANS):
            self._forget(MEANS)
        now = {key: clean.files for key, clean in made.clean.items()}
        new = [unit for unit in self._units(now) if made.means.get(unit.key) != now[unit.key]]
        if new:
            parts = [key for unit in new for key in (unit.key, unit.end_key)] if made.means else None
            before = self._tables.read(MEANS) if made.means else None
            self._tables.write(MEANS, running_means(self._tables.read("clean_bundle_reports", parts), before))
        made.means = now
        made.save(self._directory)

    def _write(
        self,
        name: str,
        frame: DataFrame,
        key: Column,
        keys: Sequence[str],
        units: Sequence[Unit],
        *,
        is_empty: bool = False,
    ) -> None:
        """In place of these parts, and of those that are of no unit any more. Nothing in place of nothing is not worth
        a write.
        """
        there = self._tables.contents(name)
        others = [part for part in there.parts if part not in self._parts and part not in keys]
        if not (is_empty and there.number and not others and there.parts.keys().isdisjoint(keys)):
            of_parts, gather = frame.withColumn("part", key), len(units) > 1
            self._tables.write(name, of_parts, key="part", keys=[*keys, *others], gather=gather)

    def _begin(self, made: dict[str, Any], units: Iterable[Unit], anything: object) -> None:
        made.update({unit.key: anything for unit in units})
        self._made.save(self._directory)

    def _end(self, made: dict[str, Any], units: Iterable[Unit], found: Mapping[Unit, Any]) -> None:
        for unit in units:
            del made[unit.key]
            if unit in found:
                made[unit.key] = found[unit]
        self._made.save(self._directory)

    def _forget(self, *names: str) -> None:
        """What these tables were made of."""
        if set(names) & set(CLEAN_TABLES):
            self._made.clean.clear()
        if set(names) & set(WINDOW_TABLES):
            self._made.windows.clear()
        if MEANS in names:
            self._made.means.clear()

    def _units(self, keys: Iterable[str]) -> list[Unit]:
        return [unit_of(key, self._made.grain) for key in keys]


def _found(history: HistoryTables, grain: Grain) -> dict[Unit, Clean]:
    """What there is to be cleaned, by units."""
    usable: dict[Unit, list[Usable]] = defaultdict(list)
    faults: dict[Unit, list[FileFault]] = defaultdict(list)
    for each in (each for table in CLEANED_FROM for each in history.files(table)):
        usable[unit_at(each.file.hour_ms, grain)].append(each)
    for fault in _faults(history):
        hour_ms = _hour_of(fault.path)
        if hour_ms is not None:
            faults[unit_at(hour_ms, grain)].append(fault)
    return {unit: _clean_of(unit, usable[unit], faults[unit], history) for unit in {*usable, *faults}}


def _clean_of(unit: Unit, usable: Sequence[Usable], faults: Sequence[FileFault], history: HistoryTables) -> Clean:
    range_ms = max(unit.from_ms, history.from_ms or 0), min(unit.to_ms, history.to_ms or unit.to_ms)
    last = [file for file, look in usable if look.times is not None and look.times[1] >= unit.to_ms - STANDS_MS]
    files = [file for file, _ in usable]
    of_bundles = [file for file in files if file.table == BUNDLE_REPORTS]
    return Clean(
        digest_of(range_ms, _said(files), sorted((each.path, each.why) for each in faults)),
        digest_of(range_ms, _said(last)),
        _by_hour(of_bundles),
        *range_ms,
        sum(file.size_bytes for file in files),
        sorted({file.epoch for file in files}),
        max(([file.epoch, file.last] for file in of_bundles), default=[-1, -1]),
    )


def _said(files: Iterable[HistoryFile]) -> list[tuple[str, int, int]]:
    """What tells these files from others."""
    return sorted((file.path, file.size_bytes, file.mtime_ns) for file in files)


def _by_hour(files: Iterable[HistoryFile]) -> dict[str, str]:
    found = defaultdict(list)
    for file in files:
        found[str(file.hour_ms)].append(file)
    return {hour: digest_of(_said(each)) for hour, each in found.items()}


def _ends_otherwise(unit: Unit, clean: Clean, made: Made) -> bool:
    """Whether rows of files may count that did not before, or not any more; also when a run was killed."""
    before = made.clean.get(unit.key)
    if before is None:
        return unit.key in made.means
    return clean.from_ms < before.from_ms or clean.to_ms != before.to_ms


def _changed(found: Mapping[Unit, object], made: Mapping[str, object], grain: Grain, from_ms: int = 0) -> list[Unit]:
    """Units that were made of something else, or of something that is not there any more."""
    units = {*found, *(unit_of(key, grain) for key in made)}
    return sorted(unit for unit in units if unit.from_ms >= from_ms and found.get(unit) != made.get(unit.key))


def _parts_of(units: Iterable[Unit]) -> set[str]:
    """The parts of tables that belong to any of these."""
    return {ELSEWHERE, *(key for unit in units for key in (unit.key, unit.end_key, unit.day.key))}


def _together(units: Iterable[Unit], sizes: Mapping[Unit, int]) -> Iterator[list[Unit]]:
    """Groups of units, each of as many as are not too much, or of one."""
    group: list[Unit] = []
    size = 0
    for unit in units:
        more = sizes.get(unit, 0)
        if group and size + more > TOGETHER_BYTES:
            yield group
            group, size = [], 0
        group.append(unit)
        size += more
    if group:
        yield group


def _faults(history: HistoryTables) -> list[FileFault]:
    return [fault for fault in history.faults if fault.table in CLEANED_FROM]


def _hour_of(path: str) -> int | None:
    """The moment at which the hour begins that the file's place says; None for a file that is out of place."""
    place = re.search(_FOLDERS, path)
    if place is not None:
        with suppress(ValueError):
            return round(datetime.fromisoformat(f"{place[1]}T{place[2]}:00+00:00").timestamp()) * 1000
    return None


def _key_of_file(grain: Grain) -> Column:
    """The key of the unit that the place of a row's `file` says."""
    day, hour = (f.regexp_extract("file", _FOLDERS, group) for group in (1, 2))
    key = day if grain == "day" else f.concat(day, f.lit("T"), hour)
    return f.when(day == "", ELSEWHERE).otherwise(key)
