"""The same tables continuously: every so often, what has come into the history is taken in, as a run would.

Units are hours, unless a run has made the tables by days before. The watermark is the newest unit less the lateness
allowed. Files of units before it are not taken in any more, and named in the table `late_files`; the next run over
their range takes them in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import pandas as pd
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from loadmanager.errors import PipelineError
from loadmanager.history.files import HistoryFile
from loadmanager.history.schemas import BROKER_REPORTS, EVENTS
from loadmanager.pipeline.datasets import schema_of
from loadmanager.pipeline.filesystems import directory_at
from loadmanager.pipeline.found import CLEANED_FROM
from loadmanager.pipeline.keeping_up import KeepingUp
from loadmanager.pipeline.known_files import KnownFiles
from loadmanager.pipeline.reading import BadFiles, HistoryTables, cause_of
from loadmanager.pipeline.recorded import newest_recorded
from loadmanager.pipeline.units import Unit, unit_at
from loadmanager.pipeline.writing import Format, Tables

LATENESS_S = 86_400.0
_LOOKS_S = 0.2
_AT_ONCE = 2
"""Told so many times to stop, it does not wait for the batch under way."""


@dataclass(frozen=True, slots=True)
class BatchDone:
    """How many new files a batch has taken in, how many are late, and which units it has made anew. A batch that does
    again what was cut short may have no new files.
    """

    number: int
    files: int
    units: tuple[str, ...]
    late: int


class HistoryStream:
    """Keeps the tables under `out` up with a history. One at a time writes there."""

    def __init__(
        self,
        spark: SparkSession,
        url: str,
        out: str,
        *,
        bad_files: BadFiles = "leave_out",
        lateness_s: float = LATENESS_S,
        table_format: Format | None = None,
        on_batch: Callable[[BatchDone], None] | None = None,
    ) -> None:
        self._spark, self._url = spark, url
        self._tables = Tables(spark, out, table_format)
        self._known = KnownFiles(directory_at(spark, out))
        self._keeping_up = KeepingUp(spark, self._tables, url, new_grain="hour")
        self._bad_files: BadFiles = bad_files
        self._lateness_ms = round(lateness_s * 1000)
        self._on_batch = on_batch
        self._overloaded: float | None = None

    def take_in(self) -> BatchDone | None:
        """Take in what is there and has not been taken in yet; None when there is nothing. Raises `PipelineError`."""
        try:
            done = self._take_in()
        except (PySparkException, Py4JError, OSError) as error:
            raise PipelineError(f"the stream has ended: {cause_of(str(error))}") from error
        if done is not None and self._on_batch is not None:
            self._on_batch(done)
        return done

    def follow(self, every_s: float, times_told: Callable[[], int]) -> None:
        """Take in what comes, every so often, until it was told to stop: then end with the batch under way, or when it
        was told twice at once.
        """
        with ThreadPoolExecutor(1) as pool:
            while not times_told():
                next_s = time.monotonic() + every_s
                self._wait_for(pool.submit(self.take_in), times_told)
                while not times_told() and time.monotonic() < next_s:
                    time.sleep(_LOOKS_S)

    def _wait_for(self, batch: Future[BatchDone | None], times_told: Callable[[], int]) -> None:
        while not batch.done() and times_told() < _AT_ONCE:
            wait([batch], _LOOKS_S)
        while not batch.done():
            self._spark.sparkContext.cancelAllJobs()
            wait([batch], _LOOKS_S)
        if times_told() < _AT_ONCE:
            batch.result()

    def _take_in(self) -> BatchDone | None:
        history = HistoryTables(self._spark, self._url, bad_files=self._bad_files, known=self._known)
        new = [file for table in CLEANED_FROM for file in history.new_files(table)]
        if not history.files(BROKER_REPORTS):
            return None
        watermark_ms = self._keeping_up.newest_ms - self._lateness_ms
        late = [file for file in new if self._unit(file).from_ms < watermark_ms]
        number = self._keeping_up.batches
        if late:
            self._write_late(late, watermark_ms, number)
        cleaned = self._keeping_up.ingest(history, watermark_ms)
        is_first = self._overloaded is None
        if self._overloaded is None or any(file.table == EVENTS for file in new):
            self._overloaded = newest_recorded(history).overloaded
        averaged = self._keeping_up.average(history.range[1], self._overloaded) if cleaned or is_first else []
        if not (cleaned or averaged or late):
            return None
        self._keeping_up.count_batch()
        return BatchDone(number, len(new), tuple(unit.key for unit in cleaned or averaged), len(late))

    def _unit(self, file: HistoryFile) -> Unit:
        return unit_at(file.hour_ms, self._keeping_up.grain)

    def _write_late(self, files: Sequence[HistoryFile], watermark_ms: int, number: int) -> None:
        rows = [(file.path, file.hour_ms, watermark_ms) for file in files]
        frame = pd.DataFrame(rows, columns=schema_of("late_files").names)
        self._tables.write_rows("late_files", frame, str(number))
