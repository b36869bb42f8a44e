"""Scheduled mode: the step `ingest` every so many seconds, while a history grows."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from pyspark.sql import SparkSession

from loadmanager.errors import PipelineError
from loadmanager.history.table_schemas import BROKER_REPORTS
from loadmanager.pipeline import KEEP_DAYS
from loadmanager.pipeline.delta import Tables
from loadmanager.pipeline.history_tables import CANNOT_GO_ON, BadFiles, HistoryTables, cause_of
from loadmanager.pipeline.ingest import Ingest
from loadmanager.pipeline.recorded import newest_recorded

_POLL_S = 0.2
_AT_ONCE = 2
"""After so many stop signals the batch under way is cancelled."""


class HistoryStream:
    """Keeps the tables under `out` up to date with a history. One stream or run at a time writes there."""

    def __init__(
        self,
        spark: SparkSession,
        url: str,
        out: str,
        *,
        bad_files: BadFiles = "leave_out",
        keep_days: int = KEEP_DAYS,
        on_batch: Callable[[list[int]], None] | None = None,
    ) -> None:
        self._spark, self._url, self._tables = spark, url, Tables(spark, out)
        self._bad_files: BadFiles = bad_files
        self._keep_days, self._on_batch = keep_days, on_batch

    def take_in(self) -> list[int]:
        """Make the hours that have changed, and return them. Raises `PipelineError`."""
        try:
            hours = self._take_in()
        except CANNOT_GO_ON as error:
            raise PipelineError(f"the stream has ended: {cause_of(str(error))}") from error
        if hours and self._on_batch is not None:
            self._on_batch(hours)
        return hours

    def follow(self, every_s: float, stops: Callable[[], int]) -> None:
        """Take in what comes, every so often, until there is a stop: then finish the batch, or cancel it at two."""
        with ThreadPoolExecutor(1) as pool:
            while not stops():
                next_s = time.monotonic() + every_s
                self._wait_for(pool.submit(self.take_in), stops)
                while not stops() and time.monotonic() < next_s:
                    time.sleep(_POLL_S)

    def _wait_for(self, batch: Future[list[int]], stops: Callable[[], int]) -> None:
        while not batch.done() and stops() < _AT_ONCE:
            wait([batch], _POLL_S)
        while not batch.done():
            self._spark.sparkContext.cancelAllJobs()
            wait([batch], _POLL_S)
        if stops() < _AT_ONCE:
            batch.result()

    def _take_in(self) -> list[int]:
        history = HistoryTables(self._spark, self._url, bad_files=self._bad_files)
        if not history.files(BROKER_REPORTS):
            return []
        ingest = Ingest(self._spark, self._tables, self._url, bad_files=self._bad_files, keep_days=self._keep_days)
        return ingest.run(newest_recorded(history).overloaded)
