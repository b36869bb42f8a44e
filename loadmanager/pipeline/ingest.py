"""Step `ingest`: clean reports, rejected rows and windows from the files of a history, for the hours that changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from loadmanager.history.files import HOUR_MS
from loadmanager.history.gaps import TERM_BEGAN, TERM_ENDED
from loadmanager.history.reader import History
from loadmanager.history.table_schemas import BROKER_REPORTS, BUNDLE_REPORTS, EVENTS
from loadmanager.pipeline import windows as w
from loadmanager.pipeline.attribution import BUNDLE, FLEET_EVENTS, VALID_MS, carried, hour_of, term_ends, valid_reports
from loadmanager.pipeline.by_hour import reported_by, totals_compared
from loadmanager.pipeline.datasets import schema_of
from loadmanager.pipeline.delta import DAY, Tables
from loadmanager.pipeline.history_tables import nothing_in, require_range
from loadmanager.pipeline.incremental import HistoryHours
from loadmanager.pipeline.reject_reasons import overlapping_files, rejected_rows, usable, with_duplicates, with_reason
from loadmanager.pipeline.source import history_at, place_of, read_history
from loadmanager.pipeline.step import Step

if TYPE_CHECKING:
    from loadmanager.pipeline.job import Job, JobRun

CLEAN, HAPPENED, REJECTED = "clean_broker_reports", "fleet_events", "rejected_rows"
IMBALANCE, REPORTED_BY, TOTALS_COMPARED = "imbalance", "reported_by", "totals_compared"
TABLES = (CLEAN, HAPPENED, REJECTED, *w.SUBJECTS, IMBALANCE, REPORTED_BY, TOTALS_COMPARED)
"""The tables that are written, all by days."""

_FAR_MS = 1 << 62

BATCH_BYTES = 1 << 30
"""Size of the files of days that are made together."""


class Ingest:
    """Update of tables from the history of a job, from `from_ms` to before `to_ms`."""

    def __init__(self, spark: SparkSession, tables: Tables, job: Job) -> None:
        require_range(job.from_ms, job.to_ms)
        self._spark, self._tables, self._job, self._history = spark, tables, job, history_at(job.history)
        anew = job.anew or not all(map(tables.has, TABLES))
        self._hours = HistoryHours(tables.directory, self._history, (job.from_ms, job.to_ms), job.keep_days, anew=anew)
        if self._hours.faults and not job.leave_out_bad_files:
            raise self._hours.faults[0]

    def run(self, overloaded: float) -> list[int]:
        """Make what has changed, and return these hours. A broker with a usage above `overloaded` is overloaded."""
        hours = self._hours
        self._require_reports()
        self._remove(hours.take_unwanted())
        again = set[int]() if self._job.leave_out_bad_files else self._damaged_hours()
        self._clean(sorted(hours.to_clean() | again))
        rest = self._dependencies(overloaded)
        end_ms = self.end_ms
        followers = {hour_ms + HOUR_MS for hour_ms in hours.files if hour_ms + HOUR_MS < end_ms}
        changed = hours.to_make({*hours.files, *followers}, rest) | again
        for batch in self._batches(sorted(changed)):
            self._make(batch, overloaded)
            hours.end(batch, rest)
        return sorted(changed)

    @property
    def range(self) -> tuple[int, int]:
        """Times of the first report in the tables and after the last one, within the range that was asked for."""
        first, last = self._tables.times(CLEAN) or (self._job.from_ms or 0, (self._job.to_ms or 0) - 1)
        return max(first, self._job.from_ms or first), min(last + 1, self._job.to_ms or last + 1)

    @property
    def end_ms(self) -> int:
        """The end of the range: where no report is valid any more."""
        return self._job.to_ms or self.range[1]

    @property
    def notes(self) -> Iterator[str]:
        """Sentences on files that were left out."""
        yield from (f"left out: {fault}" for fault in self._hours.faults)
        if self._job.leave_out_bad_files:
            for row in self._tables.read_rows(REJECTED, pc.field("reason") == "bad_file").to_pylist():
                yield f"left out: {self._history}/{row['file']}: {row['example']}"
        for file in self._hours.late_files():
            yield f"left out: {file.path}: came after retention had deleted files of its hour"

    def _require_reports(self) -> None:
        """Raise `PipelineError` when the range has no files of reports, of brokers or of bundles."""
        wanted = dict.fromkeys((BROKER_REPORTS, BUNDLE_REPORTS), False)
        for hour_ms, files in self._hours.files.items():
            wanted |= {file.table: True for file in files.values() if self._hours.is_wanted(hour_ms)}
        for table, is_there in wanted.items():
            if not is_there:
                raise nothing_in(History(self._history), table, self._job.from_ms, self._job.to_ms)

    def _damaged_hours(self) -> set[int]:
        """Return the hours of files that an earlier run has left out: now they are an error."""
        if not self._tables.has(REJECTED):
            return set()
        rows = self._tables.read_rows(REJECTED, pc.field("reason") == "bad_file").to_pylist()
        return {row["hour_ms"] for row in rows if self._hours.is_wanted(row["hour_ms"])}

    def _remove(self, hours: Sequence[int]) -> None:
        """Remove hours from the tables: whole days that are too old, and parts of others."""
        if hours:
            left = {day_of(hour_ms) for hour_ms in self._hours.made}
            days = {day_of(hour_ms) for hour_ms in hours} - left
            parts = [hour_ms for hour_ms in hours if day_of(hour_ms) in left]
            for name in TABLES:
                if days:
                    self._tables.clear(name, days)
                if parts:
                    self._replace(name, self._tables.read(name, []), parts)
            self._hours.save()

    def _clean(self, hours: Sequence[int]) -> None:
        """Make the reports of brokers, and the events, of these hours. Small tables: all hours at once."""
        if not hours and all(map(self._tables.has, TABLES)):
            return
        self._hours.begin(hours)
        brokers, events = (self._judged(table, hours) for table in (BROKER_REPORTS, EVENTS))
        self._replace(CLEAN, usable(brokers, BROKER_REPORTS), hours)
        is_one = f.col("kind").isin(*FLEET_EVENTS) & (hour_of("at_ms") == f.col("hour_ms"))
        self._replace(HAPPENED, events.where(is_one).select(*schema_of(HAPPENED).names), hours)
        rejected = rejected_rows(brokers, BROKER_REPORTS)
        if self._job.leave_out_bad_files:
            rejected = rejected.unionByName(rejected_rows(events, EVENTS))
        self._replace(REJECTED, rejected, hours, _is_one_of("hour_ms", hours) & (f.col("table") != BUNDLE_REPORTS))

    def _dependencies(self, overloaded: float) -> Callable[[int], object]:
        """Return what windows of an hour depend on besides files."""
        kinds = f.col("kind").isin(TERM_BEGAN, TERM_ENDED)
        first = self._tables.read(HAPPENED).where(kinds).groupBy("kind", "epoch").agg(f.min("at_ms")).collect()
        epochs = {epoch for hour_ms in self._hours.files for epoch in self._hours.epochs(hour_ms)}
        self._terms = term_ends([tuple(row) for row in first], epochs | {row["epoch"] for row in first})
        end_ms = self.end_ms

        def rest(hour_ms: int) -> object:
            to_ms = hour_ms + HOUR_MS
            ends = {epoch: self._terms[epoch] for epoch in self._hours.epochs(hour_ms) & self._terms.keys()}
            return min(end_ms, to_ms), sorted(each for each in ends.items() if each[1] < to_ms), overloaded

        return rest

    def _batches(self, hours: Sequence[int]) -> Iterator[list[int]]:
        """Bring the hours of days together, as many days as are not too much."""
        batch: list[int] = []
        size = 0
        for hour_ms in hours:
            if size > BATCH_BYTES and day_of(hour_ms) != day_of(batch[-1]):
                yield batch
                batch, size = [], 0
            batch.append(hour_ms)
            size += sum(file.size_bytes for file in self._hours.files.get(hour_ms, {}).values())
        if batch:
            yield batch

    def _make(self, hours: Sequence[int], overloaded: float) -> None:
        """Make all tables but those of `_clean` of these hours."""
        keeps_begin = [hour_ms for hour_ms in hours if self._hours.keeps_begin(hour_ms)]
        self._hours.begin(hours)
        before = sorted({*hours, *(hour_ms - HOUR_MS for hour_ms in hours)})
        days = {day_of(hour_ms) for hour_ms in before}
        brokers = self._tables.read(CLEAN, days)
        with self._tables.staging() as stage:
            valid = stage(valid_reports(brokers, self._tables.read(HAPPENED), self._terms, self.end_ms))
            judged = stage(self._judged(BUNDLE_REPORTS, before))
            reports = usable(judged, BUNDLE_REPORTS)
            stays = stage(carried(reports, valid, reports.select(*BUNDLE).distinct(), hours))
            self._replace_facts(judged.where(_is_one_of("hour_ms", hours)), brokers, hours)
            self._replace(REPORTED_BY, reported_by(stays), hours)
            is_made = _is_one_of("start_ms", hours)
            is_made &= ~_is_one_of("start_ms", keeps_begin) | (f.pmod("start_ms", f.lit(HOUR_MS)) >= VALID_MS)
            bundles = stage(w.bundle_windows(stays))
            short = {
                "bundle_windows": bundles,
                "namespace_windows": stage(w.namespace_windows(bundles, stays)),
                "broker_windows": stage(w.broker_windows(valid, stays, hours)),
            }
            for name, windows in short.items():
                self._replace(name, windows.where(is_made), hours, is_made)
        of_hours = {day_of(hour_ms) for hour_ms in hours}
        even = w.imbalance(self._tables.read("broker_windows", of_hours), overloaded)
        self._tables.write(IMBALANCE, even.withColumn(DAY, _day("start_ms")), of_hours)

    def _replace_facts(self, judged: DataFrame, brokers: DataFrame, hours: Sequence[int]) -> None:
        """Replace what is known of the reports of bundles themselves."""
        reports, own = usable(judged, BUNDLE_REPORTS), brokers.where(_is_one_of("at_ms", hours))
        is_rejected = _is_one_of("hour_ms", hours) & (f.col("table") == BUNDLE_REPORTS)
        self._replace(REJECTED, rejected_rows(judged, BUNDLE_REPORTS), hours, is_rejected)
        self._replace(TOTALS_COMPARED, totals_compared(own, reports), hours)

    def _replace(self, name: str, rows: DataFrame, hours: Sequence[int], is_made: Column | None = None) -> None:
        """Replace the rows of these hours, and windows of hours and days by those of all 5 minutes of the day."""
        at = next(each for each in ("start_ms", "hour_ms", "at_ms") if each in schema_of(name).names)
        days = {day_of(hour_ms) for hour_ms in hours}
        if self._tables.has(name):
            kept = self._tables.read(name, days).where(~(_is_one_of(at, hours) if is_made is None else is_made))
            rows = rows.unionByName(kept.where(f.col("window_s") == w.SHORTEST_S) if name in w.SUBJECTS else kept)
        rows = w.with_longer(name, rows) if name in w.SUBJECTS else rows
        self._tables.write(name, rows.withColumn(DAY, _day(at)), days)

    def _judged(self, table: str, hours: Sequence[int]) -> DataFrame:
        """Read rows of these hours that are in the range, with the reason of those that cannot be used."""
        files = [
            file
            for hour_ms in hours
            for file in self._hours.files.get(hour_ms, {}).values()
            if file.table == table and self._hours.is_wanted(hour_ms)
        ]
        shared = set() if table == EVENTS else overlapping_files(files)
        alone = [place_of(file.path) for file in files if file.path not in shared]
        rows = with_reason(self._read(table, alone), table)
        if shared:
            both = with_reason(self._read(table, [place_of(path) for path in sorted(shared)]), table)
            rows = rows.unionByName(with_duplicates(both, table))
        is_in = f.col("at_ms").between(self._job.from_ms or -_FAR_MS, (self._job.to_ms or _FAR_MS) - 1)
        is_all = self._job.from_ms is None and self._job.to_ms is None
        return rows if is_all else rows.where(is_in | (f.col("reason") == "bad_file"))

    def _read(self, table: str, files: Sequence[str]) -> DataFrame:
        leaves_out, listed = self._job.leave_out_bad_files, json.dumps(files)
        return read_history(self._spark, self._job.history, table, leaves_out=leaves_out, files=listed)


def day_of(hour_ms: int) -> str:
    """Return the day of an hour, as tables are divided by it."""
    return f"{datetime.fromtimestamp(hour_ms / 1000, UTC):%Y-%m-%d}"


def _day(at_ms: str) -> Column:
    return f.date_format(f.timestamp_millis(f.col(at_ms)), "yyyy-MM-dd")


def _is_one_of(at_ms: str, hours: Collection[int]) -> Column:
    return hour_of(at_ms).isin(*hours)


def _ingest(run: JobRun) -> None:
    ingest = Ingest(run.spark, run.tables, run.job)
    run.done.hours = len(ingest.run(run.recorded.overloaded))
    run.summary.from_ms, run.summary.to_ms = ingest.range
    run.kept(*TABLES)
    for note in ingest.notes:
        run.note(note)


STEP = Step("ingest", _ingest, writes=TABLES)
