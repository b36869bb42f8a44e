"""From what was recorded, or brought in from elsewhere, to rows that can be counted on.

A row is rejected, with the first of these reasons that holds:

    missing      a column is empty that its schema has always had
    not_a_number a figure is NaN or infinite
    negative     a figure is below 0
    impossible   a figure beyond what any broker reports, a range that is none, a time before 1970 or of another hour
                 than the folder of its file
    duplicate    the same report (epoch, sequence) of the same hour has it already, in another file

Of duplicates that of the first file by name stays. Names of files say which reports are in them: what is in one that
shares none with another of its hour is not compared with anything, which would take most of the time. Rejected rows
are kept as they are, with their reason and file.

A broker of Pulsar's that does not know the speed of its network says that the limit of a bandwidth is below 0. That is
no fault of the row: what is not known counts as 0 of 0, as wherever decisions are made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Observation, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql import types as t

from loadmanager.core.names import HASH_SPACE_END
from loadmanager.core.recordable import MAX_RATE
from loadmanager.errors import PipelineError
from loadmanager.history.files import HOUR_MS
from loadmanager.history.schemas import BROKER_REPORTS, BUNDLE_REPORTS, ORDER, RESOURCE_COLUMNS, TABLES
from loadmanager.pipeline.datasets import require, schema_of
from loadmanager.pipeline.reading import IS_STRAY, FileFault
from loadmanager.pipeline.schemas import BUNDLE_KEY, METRICS, frame_of, raw
from loadmanager.wire.validation import MAX_AMOUNT

BAD_FILE = "bad_file"
REASONS = ("missing", "not_a_number", "negative", "impossible", "duplicate")

_KEYS = {BROKER_REPORTS: ORDER, BUNDLE_REPORTS: (*ORDER, *BUNDLE_KEY)}
"""What a row is the only one of."""

_RATES = METRICS[:2]

_BANDWIDTHS = tuple((f"{name}_usage", f"{name}_limit") for name in ("bandwidth_in", "bandwidth_out"))


class Cleaned(NamedTuple):
    """The rows that can be counted on, and the others: with their `file` and the `reason`.

    Each of the two goes through all rows. `seen` is complete once `clean` has been written.
    """

    clean: DataFrame
    rejected: DataFrame
    seen: Observation

    def find_rejected(self) -> DataFrame | None:
        """Once `clean` has been written: `rejected`, for which only files are read that have some; None without any."""
        files = self.seen.get["files"]
        return self.rejected.where(f.col("file").isin(files)) if files else None


def clean_bundle_reports(rows: DataFrame, apart: DataFrame | None = None) -> Cleaned:
    """From the history's `bundle_reports`, with the `file` of each row; those `apart` are of files that share no report
    with another.
    """
    is_range = f"range_lower < range_upper AND range_upper <= {HASH_SPACE_END}"
    return _cleaned(rows, apart, BUNDLE_REPORTS, [f"NOT ({is_range})"])


def clean_broker_reports(rows: DataFrame, apart: DataFrame | None = None) -> Cleaned:
    """From the history's `broker_reports`; as above."""
    return _cleaned(rows, apart, BROKER_REPORTS, [])


def rejected_rows(
    spark: SparkSession, rejected: Mapping[str, DataFrame], faults: Sequence[FileFault] = ()
) -> DataFrame:
    """How many rows of each table were rejected, by reason and file, each with an example; and files left out whole,
    whose rows nobody can count.
    """
    files = [(each.table, BAD_FILE, each.path, 0, each.why) for each in faults]
    counted = [frame_of(spark, schema_of("rejected_rows"), files)]
    for table, frame in rejected.items():
        row = f.to_json(f.struct(*raw(table).fieldNames()))
        counts = frame.groupBy("reason", "file").agg(f.count(f.lit(1)).alias("count"), f.min(row).alias("example"))
        counted.append(counts.withColumn("table", f.lit(table)))
    return require(reduce(DataFrame.unionByName, counted), "rejected_rows")


def _cleaned(rows: DataFrame, apart: DataFrame | None, table: str, impossible: Sequence[str]) -> Cleaned:
    for each in (rows, *([] if apart is None else [apart])):
        _require_columns(each, table)
    reason = _reason(table, [*impossible, *([IS_STRAY] if IS_STRAY in rows.columns else [])])
    judged = _without_copies(rows.withColumn("reason", reason), table)
    if apart is not None:
        judged = apart.withColumn("reason", reason).unionByName(judged)
    columns, known = raw(table).fieldNames(), _known(table)
    kept = [f"{known[name]} AS {name}" if name in known else name for name in columns]
    seen = Observation()
    is_rejected = f.col("reason").isNotNull()
    counted = judged.observe(seen, f.collect_set(f.when(is_rejected, f.col("file"))).alias("files"))
    return Cleaned(
        counted.where(~is_rejected).selectExpr(*kept),
        judged.where(is_rejected).selectExpr(*columns, "file", "reason"),
        seen,
    )


def _without_copies(judged: DataFrame, table: str) -> DataFrame:
    hour = f.floor(f.col("at_ms") / HOUR_MS)
    same = Window.partitionBy("is_bad", *_KEYS[table], hour).orderBy("file", *_tie_breakers(table))
    judged = judged.withColumn("is_bad", f.col("reason").isNotNull()).withColumn("copy", f.row_number().over(same))
    reason = f.when(~f.col("is_bad") & (f.col("copy") > 1), "duplicate").otherwise(f.col("reason"))
    return judged.withColumn("reason", reason).drop("is_bad", "copy")


def _require_columns(rows: DataFrame, table: str) -> None:
    missing = [name for name in (*raw(table).fieldNames(), "file") if name not in rows.columns]
    if missing:
        raise PipelineError(f"{table}: has no column {', '.join(missing)}; expected rows as `HistoryTables` reads them")


def _reason(table: str, impossible: Sequence[str]) -> Column:
    """Why a row is rejected for itself, null for a good one."""
    figures, known = _figures(table), _known(table)
    doubles = [name for name in figures if isinstance(raw(table)[name].dataType, t.DoubleType)]
    first = [each.name for each in TABLES[table].columns if each.since <= 1]
    rules = {
        "missing": [f"{name} IS NULL" for name in first],
        "not_a_number": [f"isnan({name}) OR abs({name}) = double('inf')" for name in doubles],
        "negative": [f"{known.get(name, name)} < 0" for name in figures],
        "impossible": ["at_ms < 0", *_beyond(table), *impossible],
    }
    cases = (f"WHEN {' OR '.join(conditions)} THEN '{reason}'" for reason, conditions in rules.items() if conditions)
    return f.expr(f"CASE {' '.join(cases)} END")


def _known(table: str) -> dict[str, str]:
    """Bandwidths, 0 where the broker does not know their limit."""
    pairs = _BANDWIDTHS if table == BROKER_REPORTS else ()
    return {name: f"if({limit} < 0, 0D, {name})" for usage, limit in pairs for name in (usage, limit)}


def _beyond(table: str) -> list[str]:
    rates = _RATES if table == BUNDLE_REPORTS else ()
    return [f"{name} > {MAX_RATE if name in rates else MAX_AMOUNT}D" for name in _figures(table)]


def _figures(table: str) -> list[str]:
    """The columns that are amounts."""
    if table == BROKER_REPORTS:
        return [*RESOURCE_COLUMNS, *METRICS, "topics", "bundles", "consumers", "producers"]
    return [*METRICS, "topics", "sessions", "cache_bytes", "range_lower", "range_upper"]


def _tie_breakers(table: str) -> list[str]:
    """So that it does not depend on chance which of two rows of one file stays."""
    return [name for name in raw(table).fieldNames() if name not in _KEYS[table]]
