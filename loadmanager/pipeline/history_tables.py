"""A range of a history, read through the data source `loadmanager`."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from datetime import UTC, datetime
from functools import cached_property

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from loadmanager.errors import PipelineError
from loadmanager.history.files import HOUR_MS, HistoryFile
from loadmanager.history.reader import History, OnFault
from loadmanager.history.table_schemas import BROKER_REPORTS
from loadmanager.pipeline.attribution import hour_of
from loadmanager.pipeline.datasets import raw
from loadmanager.pipeline.reject_reasons import usable, with_reason
from loadmanager.pipeline.source import history_at, read_history

ENGINE_ERRORS = (PySparkException, Py4JError, OSError, pa.ArrowException)
"""Errors of Spark, file systems and Arrow."""


class HistoryTables:
    """A history from `from_ms` to before `to_ms`. A bad file is an error unless `leaves_out`."""

    def __init__(
        self,
        spark: SparkSession,
        url: str,
        from_ms: int | None = None,
        to_ms: int | None = None,
        *,
        leaves_out: bool = False,
    ) -> None:
        self._spark, self._url, self.from_ms, self.to_ms = spark, url, from_ms, to_ms
        self.leaves_out = leaves_out
        self._on_fault: OnFault | None = (lambda _: None) if leaves_out else None
        self._history = History(history_at(url))

    @cached_property
    def range(self) -> tuple[int, int]:
        """Times of the first broker report in the range, and after the last one."""
        reports = self._load(BROKER_REPORTS, "at_ms", "hour_ms")
        of_hour = reports.where(f.col("at_ms").between(f.col("hour_ms"), f.col("hour_ms") + HOUR_MS - 1))
        first, last = of_hour.agg(f.min("at_ms"), f.max("at_ms")).collect()[0]
        if first is None:
            raise nothing_in(self._history, BROKER_REPORTS, self.from_ms, self.to_ms)
        return first, last + 1

    def files(self, table: str) -> list[HistoryFile]:
        """Return the files that may have rows of the range."""
        return self._history.files(table, self.from_ms, self.to_ms, self._on_fault)

    def frame(self, table: str) -> DataFrame:
        """Return the rows of the range."""
        return self._load(table, *raw(table).names)

    def usable_reports(self, table: str) -> DataFrame:
        """Return the usable reports of the range."""
        return usable(with_reason(self.frame(table).withColumn("hour_ms", hour_of("at_ms")), table), table)

    def scan(self, table: str, columns: Sequence[str], hours: Container[int]) -> Iterator[pa.RecordBatch]:
        """Read columns of these hours in this process, in the order of (epoch, sequence)."""
        files = [file for file in self.files(table) if file.hour_ms in hours]
        return self._history.scan_files(files, table, self.from_ms, self.to_ms, columns, self._on_fault)

    def _load(self, table: str, *columns: str) -> DataFrame:
        asked = (*columns, "damaged") if self.leaves_out else columns
        limits = {"from_ms": self.from_ms, "to_ms": self.to_ms}
        rows = read_history(self._spark, self._url, table, asked, leaves_out=self.leaves_out, **limits)
        return rows.where("damaged IS NULL").drop("damaged") if self.leaves_out else rows


def nothing_in(history: History, table: str, from_ms: int | None, to_ms: int | None) -> PipelineError:
    """Return the error for a range in which a table has no rows; it names the range that has some."""
    everything = history.info(table, on_fault=lambda _: None)
    there = "nothing at all"
    if everything.from_ms is not None and everything.to_ms is not None:
        there = format_range(everything.from_ms, everything.to_ms + 1)
    return PipelineError(
        f"{history.directory}: no {table} in the range {format_range(from_ms, to_ms)}; there is: {there}"
    )


def format_range(from_ms: int | None, to_ms: int | None) -> str:
    """Format a range of time for people."""
    return f"{_format_time(from_ms, 'the beginning')} to {_format_time(to_ms, 'the end')}"


def _format_time(at_ms: int | None, otherwise: str) -> str:
    return otherwise if at_ms is None else f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def cause_of(text: str) -> str:
    """Return our own error from a worker; else the file that Spark cannot read; else the last `Caused by:` or line."""
    causes = re.findall(r"^loadmanager\.errors\.\w+: ([^\n]+)", text, re.MULTILINE)
    causes = (
        causes or re.findall(r"error while reading file ([^\n]+)", text) or re.findall(r"Caused by: ([^\n]+)", text)
    )
    return str(causes[-1] if causes else next(iter(text.strip().splitlines()), "no reason given"))[:300]
