"""The windows of a history, by all the steps that they take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from loadmanager.history.files import Directory, HistoryFile
from loadmanager.history.schemas import BROKER_REPORTS, BUNDLE_REPORTS, EVENTS, ORDER
from loadmanager.pipeline.averages import (
    SHORTEST_MS,
    SHORTEST_S,
    WINDOWS_S,
    rolled_up,
    short_broker_windows,
    short_bundle_windows,
    short_namespace_windows,
)
from loadmanager.pipeline.carried import bundles_of, carried
from loadmanager.pipeline.datasets import schema_of
from loadmanager.pipeline.ingest import judged_together
from loadmanager.pipeline.packing import times_between
from loadmanager.pipeline.raw_rows import raw_rows, raw_schema
from loadmanager.pipeline.standing import ends_of, standing


@dataclass(frozen=True)
class Averaged:
    """The clean tables, for how long reports stand, and who carried what, by windows that begin `between` two times."""

    bundle_reports: pa.Table
    broker_reports: pa.Table
    reports: pa.Table
    pieces: pa.Table
    between: tuple[int, int]

    def bundle_windows(self, windows: Sequence[int] = WINDOWS_S) -> pa.Table:
        return with_longer("bundle_windows", short_bundle_windows(self.pieces), windows)

    def broker_windows(self, windows: Sequence[int] = WINDOWS_S) -> pa.Table:
        short = short_broker_windows(self.broker_reports, self.reports, self.pieces, *self.between)
        return with_longer("broker_windows", short, windows)

    def namespace_windows(self, windows: Sequence[int] = WINDOWS_S) -> pa.Table:
        return with_longer("namespace_windows", short_namespace_windows(self.pieces), windows)


def with_longer(name: str, short: pa.Table, windows: Sequence[int]) -> pa.Table:
    """The windows of these lengths."""
    return pa.concat_tables(short if length == SHORTEST_S else rolled_up(name, short, length) for length in windows)


def averaged_of(
    bundle_reports: pa.Table,
    broker_reports: pa.Table,
    events: pa.Table,
    end_ms: int,
    between: tuple[int, int] | None = None,
) -> Averaged:
    """Of clean tables that end before `end_ms`; all windows in which there is anything, or those that begin so."""
    if between is None:
        begin_ms = pc.min(broker_reports.column("at_ms")).as_py() or 0
        between = begin_ms // SHORTEST_MS * SHORTEST_MS, -(-end_ms // SHORTEST_MS) * SHORTEST_MS
    ends = ends_of(events, broker_reports.column("epoch").unique().to_pylist())
    reports = standing(broker_reports, ends, end_ms)
    pieces = carried(bundle_reports, bundles_of(bundle_reports), reports, *between)
    return Averaged(bundle_reports, broker_reports, reports, pieces, between)


def recorded(url: str, end_ms: int | None = None) -> Averaged:
    """Of a history, until `end_ms` or its last report."""
    brokers, bundles = (clean_rows(url, table, end_ms) for table in (BROKER_REPORTS, BUNDLE_REPORTS))
    events = pa.concat_tables([raw_schema(EVENTS).empty_table(), *raw_files(url, EVENTS, end_ms).values()])
    return averaged_of(bundles, brokers, events, end_ms or pc.max(brokers.column("at_ms")).as_py() + 1)


def clean_rows(url: str, table: str, end_ms: int | None = None) -> pa.Table:
    """The clean table, in the order of reports; any two files of an hour may share some."""
    clean = [raw_schema(table).empty_table()]
    by_hour: dict[int, list[pa.Table]] = defaultdict(list)
    for file, rows in raw_files(url, table, end_ms).items():
        by_hour[file.hour_ms].append(rows)
    for hour_ms, files in by_hour.items():
        clean += [each.clean for each in judged_together(files, table, hour_ms)]
    return pa.concat_tables(clean).unify_dictionaries().sort_by([(name, "ascending") for name in ORDER])


def raw_files(url: str, table: str, end_ms: int | None) -> dict[HistoryFile, pa.Table]:
    """The rows of each file until `end_ms`, by their names."""
    files = sorted(Directory.of(url).list_files(table, None, end_ms)[0], key=lambda each: each.path)
    return {
        file: times_between(pa.concat_tables(raw_rows(Path(file.path).read_bytes(), table, file.path)), None, end_ms)
        for file in files
    }


def frame_of(spark: SparkSession, table: str, rows: pa.Table) -> DataFrame:
    """Rows of this table for Spark, which knows no dictionaries."""
    schema = schema_of(table)
    return spark.createDataFrame(rows.cast(to_arrow_schema(schema)), schema)
