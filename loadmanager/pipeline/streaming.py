"""The same tables continuously: what comes into the history is taken in batch by batch, by Structured Streaming.

What is streamed are the names of new files; the checkpoint holds which of them were taken in. A batch makes anew, from
all files there are, the hours that its files belong to, and replaces exactly these parts of the tables. So rows that
come late or twice end up in the tables as in a batch over the whole range, and a batch that was cut short and is
repeated leaves what it would have left at first.

The watermark is the newest hour less the lateness allowed. Files of hours before it are not taken in any more, and
named in the table `late_files`; a batch over their range still counts them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from loadmanager.errors import LoadManagerError, PipelineError
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
from loadmanager.pipeline.contents import StreamBatch
from loadmanager.pipeline.datasets import schema_of
from loadmanager.pipeline.filesystems import directory_at, url_for_spark
from loadmanager.pipeline.ingest import Cleaned, clean_broker_reports, clean_bundle_reports, rejected_rows
from loadmanager.pipeline.reading import BadFiles, HistoryTables, cause_of, read_leaving_out
from loadmanager.pipeline.schemas import frame_of
from loadmanager.pipeline.standing import STANDS_MS, standing
from loadmanager.pipeline.writing import Format, Tables, Written

Query = StreamingQuery
"""A stream under way, for those who do not import PySpark."""

CHECKPOINT = "_checkpoint"
LATENESS_S = 86_400.0
_HOUR_S = 3600
_PARTITION = re.compile(r"/date=(\d{4}-\d\d-\d\d)/hour=(\d\d)/[^/]+$")
_PARTITION_IN_SPARK = r"/date=(\d{4}-\d\d-\d\d)/hour=(\d\d)/"
_FILES_PER_BATCH = 5_000
_FILE = "path string, modificationTime timestamp, length long, content binary"
"""What Spark says of any file; its content is not read as long as nobody asks for it."""

Cleaner = Callable[[DataFrame, DataFrame], Cleaned]
_CLEANERS: dict[str, Cleaner] = {BROKER_REPORTS: clean_broker_reports, BUNDLE_REPORTS: clean_bundle_reports}


@dataclass(frozen=True, slots=True)
class BatchDone:
    """What a batch has taken in."""

    number: int
    files: int
    hours: tuple[str, ...]
    late: int


class HistoryStream:
    """Keeps the tables under `out` up with a history. One stream at a time writes there."""

    def __init__(
        self,
        spark: SparkSession,
        url: str,
        out: str,
        *,
        bad_files: BadFiles = "leave_out",
        lateness_s: float = LATENESS_S,
        files_per_batch: int = _FILES_PER_BATCH,
        table_format: Format | None = None,
        on_batch: Callable[[BatchDone], None] | None = None,
    ) -> None:
        self._spark, self._url = spark, url
        self._history, self._out = directory_at(spark, url), directory_at(spark, out)
        self._tables = Tables(spark, out, table_format)
        self._bad_files: BadFiles = bad_files
        self._lateness_ms = round(lateness_s * 1000)
        self._files_per_batch = files_per_batch
        self._on_batch = on_batch
        self._failure: Exception | None = None

    def available_now(self) -> None:
        """Take in what is there and has not been taken in yet."""
        self.wait(self._start(availableNow=True))

    def start(self, trigger_s: float) -> StreamingQuery:
        """Look for new files every so often, until the query is stopped."""
        return self._start(processingTime=f"{trigger_s:g} seconds")

    def wait(self, query: StreamingQuery, timeout_s: float | None = None) -> bool:
        """Until the query has ended, or for so long; whether it has. What it failed with is raised."""
        try:
            ended = query.awaitTermination(timeout_s)  # type: ignore[arg-type]  # fractions are fine
        except StreamingQueryException as error:
            if isinstance(self._failure, LoadManagerError):
                raise self._failure from None
            why = cause_of(str(error)) if self._failure is None else repr(self._failure)
            raise PipelineError(f"{self._url}: the stream has ended: {why}") from error
        return ended is not False

    def _start(self, **trigger: bool | str) -> StreamingQuery:
        if not self._history.exists():
            raise PipelineError(f"{self._url}: there is no history: no such directory")
        self._failure = None
        reports = url_for_spark(self._history, f"{self._history.root}/{{{BROKER_REPORTS},{BUNDLE_REPORTS}}}")
        names = (
            self._spark.readStream.format("binaryFile")
            .schema(_FILE)
            .option("pathGlobFilter", "*.parquet")
            .option("recursiveFileLookup", "true")
            .option("maxFilesPerTrigger", self._files_per_batch)
            .load(reports)
            .select("path")
        )
        checkpoint = url_for_spark(self._out, f"{self._out.root}/{CHECKPOINT}")
        writer = names.writeStream.foreachBatch(self._take_in).option("checkpointLocation", checkpoint)
        return writer.trigger(**trigger).start()  # type: ignore[arg-type]  # one of the two, see above

    def _take_in(self, names: DataFrame, number: int) -> None:
        try:
            paths = [row.path for row in names.collect()]
            done = self._process(paths, StreamBatch(self._stream_id(), number))
        except Exception as error:
            self._failure = error  # what Spark makes of it is a stack trace in two languages
            raise
        if self._on_batch is not None:
            self._on_batch(done)

    def _stream_id(self) -> str:
        """What tells this stream from one with another checkpoint, whose batches have the same numbers."""
        with self._out.filesystem.open_input_stream(f"{self._out.root}/{CHECKPOINT}/metadata") as stream:
            return str(json.loads(stream.read())["id"])

    def _process(self, paths: Sequence[str], batch: StreamBatch) -> BatchDone:
        found = {path: hour for path in paths if (hour := _hour_of(path)) is not None}
        watermark = max([*found.values(), *self._hours_written()], default=0) * HOUR_MS - self._lateness_ms
        late = {path: hour for path, hour in found.items() if hour * HOUR_MS < watermark}
        hours = sorted(set(found.values()) - set(late.values()))
        if late:
            self._write_late(late, watermark, batch)
        if hours:
            end_ms = self._end_ms()
            self._ingest(hours, batch)
            ended = [at_ms // HOUR_MS for at_ms in (end_ms, end_ms + STANDS_MS) if end_ms]  # what stood was cut there
            self._average([*ended, *hours, *(hour + 1 for hour in hours)], batch)
        return BatchDone(batch.number, len(paths), tuple(map(_key, hours)), len(late))

    def _hours_written(self) -> list[int]:
        parts = self._tables.contents("clean_broker_reports").parts
        return [round(datetime.fromisoformat(f"{key}:00+00:00").timestamp()) // _HOUR_S for key in parts]

    def _end_ms(self) -> int:
        """After the last report that was taken in; 0 without any."""
        newest = max(self._hours_written(), default=None)
        if newest is None:
            return 0
        (last,) = self._tables.read("clean_broker_reports", [_key(newest)]).agg(f.max("at_ms")).collect()
        return 0 if last[0] is None else int(last[0]) + 1

    def _write_late(self, late: dict[str, int], watermark_ms: int, batch: StreamBatch) -> None:
        rows = [(path, hour * HOUR_MS, watermark_ms) for path, hour in late.items()]
        part = f"{batch.stream}-{batch.number}"
        frame = frame_of(self._spark, schema_of("late_files"), rows).withColumn("batch", f.lit(part))
        self._tables.write("late_files", frame, key="batch", batch=batch)

    def _ingest(self, hours: Sequence[int], batch: StreamBatch) -> None:
        """Clean these hours anew, from all their files."""
        history = HistoryTables(
            self._spark, self._url, hours[0] * HOUR_MS, (hours[-1] + 1) * HOUR_MS, bad_files=self._bad_files
        )
        keys = list(map(_key, hours))

        is_wanted = _hour_key("at_ms").isin(keys)

        def clean(table: str) -> DataFrame:
            rows = history.to_clean(table, may_be_empty=True)
            cleaned = _CLEANERS[table](rows.overlapping.where(is_wanted), rows.apart.where(is_wanted))
            written = self._write(f"clean_{table}", cleaned.clean, keys, batch)
            return cleaned.rejected if written.skipped else cleaned.find_rejected()

        found = {table: read_leaving_out(history, partial(clean, table)) for table in _CLEANERS}
        rejected = rejected_rows(found, history.faults)
        parts = [f.regexp_extract("file", _PARTITION_IN_SPARK, group) for group in (1, 2)]
        part = f.concat(parts[0], f.lit("T"), parts[1])
        self._tables.write(
            "rejected_rows",
            rejected.withColumn("hour", f.when(part.isin(keys), part).otherwise(keys[0])),
            key="hour",
            keys=keys,
            batch=batch,
        )

    def _write(self, name: str, frame: DataFrame, keys: Sequence[str], batch: StreamBatch) -> Written:
        at = "start_ms" if "start_ms" in frame.columns else "at_ms"
        key = _hour_key(at)
        if "window_s" in frame.columns:
            key = f.when(f.col("window_s") > _HOUR_S, f.substring(key, 1, len("2026-01-31"))).otherwise(key)
        return self._tables.write(name, frame.withColumn("part", key), key="part", keys=keys, batch=batch)

    def _average(self, hours: Iterable[int], batch: StreamBatch) -> None:
        """The windows of these hours, and of their days, anew."""
        wanted = sorted(set(hours))
        keys = list(map(_key, wanted))
        read = sorted({*wanted, *(hour - 1 for hour in wanted)})
        brokers, bundles = (
            self._tables.read(f"clean_{name}", list(map(_key, read))) for name in (BROKER_REPORTS, BUNDLE_REPORTS)
        )
        history = HistoryTables(
            self._spark, self._url, read[0] * HOUR_MS, (read[-1] + 1) * HOUR_MS, bad_files="leave_out"
        )
        reports = standing(brokers, history.frame(EVENTS), self._end_ms())
        is_wanted = _hour_key("start_ms").isin(keys)
        self._write("carried", carried(bundles, reports).where(is_wanted), keys, batch)
        pieces = self._tables.read("carried", keys)
        for name, short in (
            ("bundle_windows", short_bundle_windows(pieces)),
            ("broker_windows", short_broker_windows(brokers, reports, pieces).where(is_wanted)),
            ("namespace_windows", short_namespace_windows(pieces)),
        ):
            self._write_windows(name, short, keys, batch)
        self._write("imbalance", imbalance(self._tables.read("broker_windows", keys)), keys, batch)

    def _write_windows(self, name: str, short: DataFrame, keys: Sequence[str], batch: StreamBatch) -> None:
        """The short windows of these hours and longer ones; those of a day are made of all its hours."""
        days = sorted({key.partition("T")[0] for key in keys})
        others = [f"{day}T{hour:02d}" for day in days for hour in range(24) if f"{day}T{hour:02d}" not in keys]
        hourly = [window for window in WINDOWS_S if window <= _HOUR_S]
        daily = [window for window in WINDOWS_S if window > _HOUR_S]
        kept = short.persist()  # each length is made of it
        try:
            rest = self._tables.read(name, others) if self._tables.has(name) else kept.limit(0)
            whole = kept.unionByName(rest.where(f.col("window_s") == SHORTEST_S))
            frame = with_longer(name, kept, hourly).unionByName(with_longer(name, whole, daily))
            self._write(name, frame, [*keys, *days], batch)
        finally:
            kept.unpersist()


def _hour_of(path: str) -> int | None:
    """The hour since 1970 that the file's place says; None for a file that is out of place."""
    place = _PARTITION.search(path)
    if place is not None:
        with suppress(ValueError):
            return round(datetime.fromisoformat(f"{place[1]}T{place[2]}:00+00:00").timestamp()) // _HOUR_S
    return None


def _key(hour: int) -> str:
    """The part of the tables for an hour since 1970: `2026-01-31T12`."""
    return f"{datetime.fromtimestamp(hour * _HOUR_S, UTC):%Y-%m-%dT%H}"


def _hour_key(at: str) -> Column:
    return f.date_format(f.timestamp_millis(at), "yyyy-MM-dd'T'HH")
