"""A run of the pipeline: its options, and the state that its steps use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from loadmanager.errors import PipelineError
from loadmanager.history.table_schemas import BROKER_REPORTS
from loadmanager.pipeline import KEEP_DAYS
from loadmanager.pipeline.datasets import CLEAN, INGESTED, in_range
from loadmanager.pipeline.delta import Tables
from loadmanager.pipeline.history_tables import HistoryTables, format_range
from loadmanager.pipeline.minimum_history import hours_known, missing_history
from loadmanager.pipeline.recorded import Recorded, newest_recorded
from loadmanager.pipeline.step import NoResult, Step, StepResult, Summary
from loadmanager.pipeline.whatif_file import WhatIf


@dataclass(frozen=True, slots=True)
class Job:
    """Options of a run.

    The step `ingest` processes the whole history; later steps use the range from `from_ms` to before `to_ms`. Capacity
    is planned for `days`, with the share `headroom` of each broker kept free. `whatif`: scenarios to replay, by default
    a few strategies with and without one broker. `anew`: process unchanged hours too. `keep_days`: windows' retention.
    """

    history: str
    out: str
    from_ms: int | None = None
    to_ms: int | None = None
    leave_out_bad_files: bool = False
    days: int = 30
    headroom: float = 0.3
    whatif: WhatIf | None = None
    anew: bool = False
    keep_days: int = KEEP_DAYS


class JobRun:
    """A run in progress. Steps run one at a time, and read and write their tables through it.

    `show` gets a line about each step and table.
    """

    def __init__(
        self, spark: SparkSession, job: Job, summary: Summary, show: Callable[[str], object] = lambda _: None
    ) -> None:
        self.spark = spark
        self.job = job
        self.summary = summary
        self.show = show
        self.tables = Tables(spark, job.out)

    def begin(self, step: Step) -> StepResult:
        """Begin a step and return its result, which is empty so far."""
        self._step, self.done = step, self.summary.begin(step.name)
        return self.done

    @cached_property
    def history(self) -> HistoryTables:
        job = self.job
        return HistoryTables(self.spark, job.history, job.from_ms, job.to_ms, leaves_out=job.leave_out_bad_files)

    @cached_property
    def recorded(self) -> Recorded:
        return newest_recorded(self.history)

    @property
    def range(self) -> tuple[int, int] | None:
        """The job's range, limited to the reports in the tables; None if it has none."""
        first, last = self.tables.times(CLEAN) or (0, -1)
        from_ms, to_ms = max(first, self.job.from_ms or first), min(last + 1, self.job.to_ms or last + 1)
        return (from_ms, to_ms) if from_ms < to_ms else None

    def summarise_range(self) -> None:
        """Put the range into the summary. Raises `PipelineError` if it has no reports."""
        found, asked = self.range, (self.job.from_ms, self.job.to_ms)
        if found is None and asked != (None, None):
            first, last = self.tables.times(CLEAN) or (0, -1)
            raise PipelineError(
                f"{self.tables}: no {BROKER_REPORTS} in the range {format_range(*asked)}; there is:"
                f" {format_range(first, last + 1)}"
            )
        self.summary.from_ms, self.summary.to_ms = found or (None, None)

    def read(self, table: str) -> DataFrame:
        """Return the rows of a table; of a table of `ingest` those whose window, hour or moment overlaps the range."""
        self._step.require_reads(table)
        rows = self.tables.read(table)
        return in_range(rows, table, self.job.from_ms, self.job.to_ms) if table in INGESTED else rows

    def read_rows(self, table: str, where: pc.Expression | None = None) -> pa.Table:
        """Read rows of a small table in this process, see `Tables.read_rows`."""
        self._step.require_reads(table)
        return self.tables.read_rows(table, where)

    def write(self, table: str, frame: DataFrame | pd.DataFrame) -> None:
        """Replace a table and report its number of rows. NaN in a pandas frame becomes null."""
        self._step.require_writes(table)
        if isinstance(frame, pd.DataFrame):
            self.tables.write_rows(table, frame)
        else:
            self.tables.write(table, frame)
        self.report_rows(table)

    def clear(self, table: str) -> None:
        """Remove all rows of a table."""
        self._step.require_writes(table)
        self.tables.clear(table)
        self.report_rows(table)

    def report_rows(self, table: str) -> None:
        """Put the number of rows of a table into the summary, and show it."""
        rows = self.done.rows[table] = self.tables.rows(table)
        self.show(f"  {table}: {rows:,} rows")

    def require_days(self) -> None:
        """Raise `NoResult` if the history is too short for a forecast."""
        if self._why_not is not None:
            raise NoResult(self._why_not)

    @cached_property
    def _why_not(self) -> str | None:
        """The reason why the history is too short; None if it is not. Computed once: later steps add no windows."""
        return missing_history(hours_known(self.read("broker_windows")))
