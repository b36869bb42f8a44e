"""Step `ingest`: make clean reports, rejected rows and windows from the changed hours of a history.

It processes the whole history. The range of a run applies to later steps.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from loadmanager.history.files import HOUR_MS
from loadmanager.history.reader import History
from loadmanager.history.table_schemas import BROKER_REPORTS, BUNDLE_REPORTS, EVENTS
from loadmanager.pipeline import attribution
from loadmanager.pipeline import windows as w
from loadmanager.pipeline.attribution import FLEET_EVENTS, VALID_MS, hour_of
from loadmanager.pipeline.datasets import CLEAN, INGESTED, schema_of, time_column
from loadmanager.pipeline.delta import DAY, Tables
from loadmanager.pipeline.history_tables import nothing_in
from loadmanager.pipeline.incremental import HistoryHours
from loadmanager.pipeline.reject_reasons import have_duplicates, rejected_rows, usable, with_duplicates, with_reason
from loadmanager.pipeline.source import history_at, place_of, read_history
from loadmanager.pipeline.step import Step

if TYPE_CHECKING:
    from loadmanager.pipeline.job import Job, JobRun

FLEET, REJECTED, REPORTED_BY, TOTALS_COMPARED = "fleet_events", "rejected_rows", "reported_by", "totals_compared"

BATCH_BYTES = 1 << 30
"""Maximum size of the files of days that are processed together, unless one day is larger."""


class Ingest:
    """Update of tables from the history of a job."""

    def __init__(self, spark: SparkSession, tables: Tables, job: Job) -> None:
        self._spark, self._tables, self._job, self._history = spark, tables, job, history_at(job.history)
        anew = job.anew or not all(map(tables.has, INGESTED))
        self._hours = HistoryHours(tables.directory, self._history, job.keep_days, anew=anew)
        if self._hours.faults and not job.leave_out_bad_files:
            raise self._hours.faults[0]

    def run(self) -> list[int]:
        """Process the changed hours and return them."""
        hours = self._hours
        for table in (BROKER_REPORTS, BUNDLE_REPORTS):
            if not hours.files_of(table, hours.files):
                raise nothing_in(History(self._history), table, None, None)
        if hours.old:
            for name in INGESTED:
                self._tables.clear(name, {*map(day_of, hours.old)})
            hours.save()
        again = set[int]()
        if not self._job.leave_out_bad_files:  # what an earlier run left out is an error in this one
            again = {row["hour_ms"] for row in self._left_out() if hours.can_be_made(row["hour_ms"])}
        self._clean(sorted(hours.to_clean() | again))
        ends = self._find_ends()
        followers = {hour_ms + HOUR_MS for hour_ms in hours.files if hour_ms + HOUR_MS < max(ends.values())}
        changed = hours.to_make({*hours.files, *followers}, ends) | again
        for batch in self._batches(sorted(changed)):
            self._make(batch, ends)
            hours.end(batch, ends)
        return sorted(changed)

    @property
    def notes(self) -> Iterator[str]:
        """Sentences about files that were left out."""
        yield from (f"left out: {fault}" for fault in self._hours.faults)
        for row in self._left_out() if self._job.leave_out_bad_files else ():
            yield f"left out: {self._history}/{row['file']}: {row['example']}"
        for file in self._hours.late_files():
            yield f"left out: {file.path}: came after retention had deleted files of its hour"

    def _left_out(self) -> list[dict[str, Any]]:
        """Return the rows for bad files that this run or an earlier one left out."""
        is_there = self._tables.has(REJECTED)
        return self._tables.read_rows(REJECTED, pc.field("reason") == "bad_file").to_pylist() if is_there else []

    def _clean(self, hours: Sequence[int]) -> None:
        """Make the small tables, of broker reports and events, for all these hours at once."""
        if not hours and all(map(self._tables.has, INGESTED)):
            return
        self._hours.begin(hours)
        brokers, events = (self._read_with_reason(table, hours) for table in (BROKER_REPORTS, EVENTS))
        self._replace(CLEAN, usable(brokers, BROKER_REPORTS), hours)
        is_one = f.col("kind").isin(*FLEET_EVENTS) & (hour_of("at_ms") == f.col("hour_ms"))
        self._replace(FLEET, events.where(is_one).select(*schema_of(FLEET).names), hours)
        rejected = rejected_rows(brokers, BROKER_REPORTS).unionByName(rejected_rows(events, EVENTS))
        self._replace(REJECTED, rejected, hours, _is_one_of("hour_ms", hours) & (f.col("table") != BUNDLE_REPORTS))

    def _find_ends(self) -> dict[int, int]:
        """Return when reports of each epoch end at the latest."""
        _, last = self._tables.times(CLEAN) or (0, -1)
        first = self._tables.read(FLEET).groupBy("kind", "epoch").agg(f.min("at_ms")).collect()
        epochs = {file.epoch for files in self._hours.files.values() for file in files.values()}
        return attribution.epoch_ends({(kind, epoch): at_ms for kind, epoch, at_ms in first}, epochs, last + 1)

    def _batches(self, hours: Sequence[int]) -> list[list[int]]:
        """Group the hours by days, into batches of about `BATCH_BYTES`."""
        size, begins = 0, dict[str, int]()
        for hour_ms in hours:
            begins.setdefault(day_of(hour_ms), size)
            size += sum(file.size_bytes for file in self._hours.files.get(hour_ms, {}).values())
        return [[*batch] for _, batch in groupby(hours, lambda hour_ms: begins[day_of(hour_ms)] // BATCH_BYTES)]

    def _make(self, hours: Sequence[int], ends: Mapping[int, int]) -> None:
        """Make all tables except those of `_clean` for these hours."""
        keeps_begin = [hour_ms for hour_ms in hours if self._hours.keeps_begin(hour_ms)]
        self._hours.begin(hours)
        before = sorted({*hours, *(hour_ms - HOUR_MS for hour_ms in hours)})
        brokers = self._tables.read(CLEAN, {*map(day_of, before)})
        with self._tables.staging() as stage:
            valid = stage(attribution.valid_reports(brokers, self._tables.read(FLEET), ends))
            is_needed = _is_one_of("hour_ms", hours) | (f.pmod("at_ms", f.lit(HOUR_MS)) >= HOUR_MS - VALID_MS)
            checked = stage(self._read_with_reason(BUNDLE_REPORTS, before).where(is_needed))
            reports = usable(checked, BUNDLE_REPORTS)
            intervals = stage(attribution.ownership_intervals(reports, valid, hours))
            is_rejected = _is_one_of("hour_ms", hours) & (f.col("table") == BUNDLE_REPORTS)
            self._replace(REJECTED, rejected_rows(checked, BUNDLE_REPORTS), hours, is_rejected)
            self._replace(TOTALS_COMPARED, w.totals_compared(brokers, reports), hours)
            self._replace(REPORTED_BY, w.reported_by(intervals), hours)
            is_made = _is_one_of("start_ms", hours)
            is_made &= ~_is_one_of("start_ms", keeps_begin) | (f.pmod("start_ms", f.lit(HOUR_MS)) >= VALID_MS)
            bundles = w.bundle_windows(intervals)
            self._replace("bundle_windows", bundles, hours, is_made)
            self._replace("namespace_windows", w.namespace_windows(bundles, intervals), hours, is_made)
            self._replace("broker_windows", w.broker_windows(valid, intervals, hours), hours, is_made)

    def _replace(self, name: str, rows: DataFrame, hours: Sequence[int], is_made: Column | None = None) -> None:
        """Replace the rows of these hours. Longer windows are made again from all 5-minute windows of the day."""
        at, days = time_column(name), {*map(day_of, hours)}
        is_made = _is_one_of(at, hours) if is_made is None else is_made
        rows = rows.where(is_made)
        if self._tables.has(name):
            kept = self._tables.read(name, days).where(~is_made)
            rows = rows.unionByName(kept.where(f.col("window_s") == w.SHORTEST_S) if name in w.SUBJECTS else kept)
        day = f.date_format(f.timestamp_millis(f.col(at)), "yyyy-MM-dd")
        longer = (lambda short: w.longer_windows(name, short).withColumn(DAY, day)) if name in w.SUBJECTS else None
        self._tables.write(name, rows.withColumn(DAY, day), days, longer)

    def _read_with_reason(self, table: str, hours: Sequence[int]) -> DataFrame:
        """Read the rows of these hours and add the reject reason of each."""
        files = self._hours.files_of(table, hours)
        places = json.dumps([place_of(file.path) for file in files])
        leaves_out = self._job.leave_out_bad_files
        rows = read_history(self._spark, self._job.history, table, leaves_out=leaves_out, files=places)
        judged = with_reason(rows, table)
        return with_duplicates(judged, table) if table != EVENTS and have_duplicates(files) else judged


def day_of(hour_ms: int) -> str:
    """Return the UTC day of an hour, the partition of tables."""
    return f"{datetime.fromtimestamp(hour_ms / 1000, UTC):%Y-%m-%d}"


def _is_one_of(at_ms: str, hours: Collection[int]) -> Column:
    return hour_of(at_ms).isin(*hours)


def _ingest(run: JobRun) -> None:
    ingest = Ingest(run.spark, run.tables, run.job)
    run.done.hours = len(ingest.run())
    run.summarise_range()
    for table in INGESTED:
        run.report_rows(table)
    for note in ingest.notes:
        run.done.note(note)


def _require_range(run: JobRun) -> None:
    """Raise `PipelineError` if neither the tables nor the history have reports in the range."""
    if run.range is None and not run.history.files(BROKER_REPORTS):
        raise nothing_in(History(run.job.history), BROKER_REPORTS, run.job.from_ms, run.job.to_ms)


STEP = Step("ingest", _ingest, writes=INGESTED, check=_require_range)
