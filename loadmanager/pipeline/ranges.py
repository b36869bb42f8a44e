"""Recorded ranges of a history that Spark's workers read and replay.

    driver:   finds stretches ◀── an outline of each range
    workers:  a row per trial ──▶ the range of its stretch, replayed ──▶ a row per result

Only outlines pass through the driver. A worker caches the last range that it replayed, since consecutive trials use the
same stretch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.model.load import IntArray
from loadmanager.errors import HistoryError, HistoryFileError
from loadmanager.history.gaps import MARKS, Gap, gaps_in
from loadmanager.history.reader import History, OnFault
from loadmanager.history.table_schemas import BROKER_REPORTS, EVENTS
from loadmanager.lab.simulate.recorded_world import HOLD_S, RecordedRange
from loadmanager.lab.simulate.trial import Trial
from loadmanager.lab.whatif.recorded_ranges import Stretch, read_range
from loadmanager.pipeline.source import read_history

_HOLD_MS = round(HOLD_S * 1000)
_OUTLINE = t.StructType(
    [
        *(t.StructField(name, t.StringType()) for name in ("fault", "digest")),
        *(t.StructField(name, t.ArrayType(t.StringType())) for name in ("brokers", "begin", "namespaces", "damaged")),
        t.StructField("capacity", t.ArrayType(t.DoubleType())),
    ]
)


@dataclass(frozen=True, slots=True)
class Outline:
    """All brokers and namespaces of a range, and a digest of its content.

    `begin` are the brokers at the beginning, by name, and `capacity` is that of the first one, of each resource.
    """

    brokers: tuple[BrokerId, ...]
    begin: tuple[BrokerId, ...]
    namespaces: tuple[str, ...]
    capacity: tuple[float, ...]
    digest: str


class Cell(NamedTuple):
    """One trial of a what-if: fleet, configuration, and the range that it replays, with its digest."""

    number: int
    fleet: str
    configuration: str
    stretch: Stretch
    digest: str
    trial: Trial


class Ranges:
    """Ranges of the history at a URL for the plan of a what-if. Unreadable files go to `on_fault`, or are raised."""

    def __init__(self, spark: SparkSession, url: str, on_fault: OnFault | None = None) -> None:
        self._spark = spark
        self._url = url
        self._on_fault = on_fault

    def report_times(self, from_ms: int | None, to_ms: int | None) -> IntArray:
        """Return the times of the first and the last broker report in each period of `HOLD_S`, sorted."""
        reports = self._load(BROKER_REPORTS, "at_ms", from_ms=from_ms, to_ms=to_ms)
        period = (f.col("at_ms") / _HOLD_MS).cast("long")
        ends = f.array(f.min("at_ms"), f.max("at_ms")).alias("ends")
        wanted = reports.where("at_ms IS NOT NULL OR damaged IS NOT NULL")
        found = wanted.groupBy(period, "file", "damaged").agg(ends).collect()
        self._report_damaged(found)
        return np.unique(np.array([row.ends for row in found if row.damaged is None], dtype=np.int64))

    def gaps(self) -> list[Gap]:
        """Return all gaps that the leaders have recorded."""
        events = self._load(EVENTS, "epoch", "sequence", "kind", "body")
        found = events.where(f.col("kind").isin(*MARKS) | f.col("damaged").isNotNull()).collect()
        self._report_damaged(found)
        marks = sorted((row for row in found if row.damaged is None), key=lambda row: (row.epoch, row.sequence))
        return gaps_in([(row.epoch, row.kind, row.body) for row in marks])

    def read(self, stretches: Sequence[Stretch]) -> list[Outline | str]:
        """Return the outline of each stretch, or the reason why it cannot be replayed."""
        url = self._url
        rows = _map_each(self._spark, lambda number: _outline_row(url, stretches[number]), len(stretches), _OUTLINE)
        found = rows.collect()
        damaged = dict.fromkeys(text for row in found for text in row.damaged)
        self._report(HistoryFileError(text) for text in damaged)
        return [_outline_in(row) if row.fault is None else row.fault for row in found]

    def replay(
        self,
        work: Callable[[int, RecordedRange], dict[str, Any]],
        cells: Sequence[Cell],
        schema: t.StructType,
    ) -> DataFrame:
        """Return a row per trial, each in a partition: `work` on its number and its range.

        A task raises `HistoryError` for a range whose content has changed since it was read.
        """
        url, ranges = self._url, [(each.stretch, each.digest) for each in cells]
        return _map_each(self._spark, lambda number: work(number, _range_of(url, *ranges[number])), len(cells), schema)

    def _load(self, table: str, *columns: str, **limits: int | None) -> DataFrame:
        """Columns of a table, with a row for each damaged file."""
        return read_history(self._spark, self._url, table, [*columns, "file", "damaged"], leaves_out=True, **limits)

    def _report(self, faults: Iterable[HistoryFileError]) -> None:
        for fault in faults:
            if self._on_fault is None:
                raise fault
            self._on_fault(fault)

    def _report_damaged(self, rows: Iterable[Any]) -> None:
        damaged = [row for row in rows if row.damaged is not None]
        self._report(HistoryFileError(f"{self._url}/{row.file}: {row.damaged}") for row in damaged)


def _map_each(
    spark: SparkSession, work: Callable[[int], dict[str, Any]], count: int, schema: t.StructType
) -> DataFrame:
    """Return a row per number below `count`, in order, each made by its own task."""
    arrow = to_arrow_schema(schema)

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                yield pa.RecordBatch.from_pylist([work(number)], arrow)

    return spark.range(0, count, 1, max(count, 1)).mapInArrow(rows, schema)


def _outline_row(url: str, stretch: Stretch) -> dict[str, Any]:
    damaged = dict[str, None]()
    try:
        outline = outline_of(_read(url, stretch, lambda fault: damaged.setdefault(str(fault))))
    except ValueError as error:
        return {"fault": str(error), "damaged": [*damaged]}
    return asdict(outline) | {"damaged": [*damaged]}


def _outline_in(row: Any) -> Outline:  # noqa: ANN401 - a row of Spark
    return Outline(tuple(row.brokers), tuple(row.begin), tuple(row.namespaces), tuple(row.capacity), row.digest)


def _read(url: str, stretch: Stretch, on_fault: OnFault) -> RecordedRange:
    history = History(url)
    return read_range(history, stretch.once_begun(history, on_fault), on_fault=on_fault)


def outline_of(recorded: RecordedRange) -> Outline:
    begin = sorted(recorded.brokers, key=lambda spec: spec.id)
    return Outline(
        tuple(recorded.broker_ids()),
        tuple(spec.id for spec in begin),
        tuple(spec.name for spec in recorded.namespace_specs()),
        begin[0].capacity if begin else (),
        digest_of(recorded),
    )


def digest_of(recorded: RecordedRange) -> str:
    """Return a digest of everything that a trial replays."""
    loads, happened = recorded.loads, (recorded.brokers, recorded.namespaces, recorded.events, recorded.duration_s)
    digest = blake2b(repr(happened).encode(), digest_size=16)
    for each in (loads.at_s, loads.bundle, loads.figures):
        digest.update(np.ascontiguousarray(each).data)
    return digest.hexdigest()


_LAST: dict[tuple[str, Stretch, str], RecordedRange] = {}
"""The range that this worker replayed last."""


def _range_of(url: str, stretch: Stretch, digest: str) -> RecordedRange:
    """Return the range that had this digest when it was read first. Raises `HistoryError` if it has another one."""
    key = url, stretch, digest
    if key not in _LAST:
        _LAST.clear()  # first, so that memory holds one range at a time
        with suppress(ValueError):  # no reports are left
            recorded = _read(url, stretch, lambda _: None)
            if digest_of(recorded) == digest:
                _LAST[key] = recorded
    if key not in _LAST:
        raise HistoryError("files of the range have changed while it was replayed")
    return _LAST[key]
