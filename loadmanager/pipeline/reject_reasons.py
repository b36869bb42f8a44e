"""Reject reasons: classify and count rows of the history that cannot be used, and keep examples.

A row is rejected for the first reason that applies; docs/pipeline.md explains them. A Pulsar broker that does not know
its network speed reports a negative bandwidth limit: its usage and limit are read as 0, and the row is used.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from itertools import pairwise
from operator import or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from loadmanager.core.domain.names import HASH_SPACE_END
from loadmanager.core.domain.resources import MAX_AMOUNT
from loadmanager.core.model.report_validation import MAX_RATE
from loadmanager.history.files import HOUR_MS, HistoryFile
from loadmanager.history.table_schemas import (
    BROKER_REPORTS,
    BUNDLE_REPORTS,
    LOAD_COLUMNS,
    ORDER,
    RESOURCE_COLUMNS,
    TABLES,
)
from loadmanager.pipeline.datasets import raw

_RANGE = ("range_lower", "range_upper")
_KEYS = {BROKER_REPORTS: ORDER, BUNDLE_REPORTS: (*ORDER, "namespace", *_RANGE)}
_AMOUNTS = {
    BROKER_REPORTS: (*RESOURCE_COLUMNS, *LOAD_COLUMNS, "topics", "bundles", "consumers", "producers"),
    BUNDLE_REPORTS: (*LOAD_COLUMNS, "topics", "sessions", "cache_bytes", *_RANGE),
}
_BANDWIDTHS = ("bandwidth_in", "bandwidth_out")
_INFINITY = float("inf")


def with_reason(rows: DataFrame, table: str) -> DataFrame:
    """Add `reason`, null for a usable row; unknown bandwidths become 0. `with_duplicates` finds duplicates."""
    if table == BROKER_REPORTS:
        names = [(f"{name}_{part}", f"{name}_limit") for name in _BANDWIDTHS for part in ("usage", "limit")]
        rows = rows.withColumns({name: f.when(f.col(limit) < 0, 0.0).otherwise(f.col(name)) for name, limit in names})
    reason = _reason(table) if table in _AMOUNTS else f.lit(None).cast("string")
    if "damaged" in rows.columns:
        reason = f.when(f.col("damaged").isNotNull(), "bad_file").otherwise(reason)
    return rows.withColumn("reason", reason)


def _reason(table: str) -> Column:
    required = (f.col(each.name).isNull() for each in TABLES[table].columns if each.since <= 1)
    doubles = [f.abs(name) for name in _AMOUNTS[table] if raw(table)[name].dataType.simpleString() == "double"]
    return (
        f.when(reduce(or_, required), "missing")
        .when(f.greatest(*doubles) >= _INFINITY, "not_a_number")
        .when(f.least(*_AMOUNTS[table]) < 0, "negative")
        .when(_is_impossible(table), "impossible")
    )


def with_duplicates(rows: DataFrame, table: str) -> DataFrame:
    """Add the reason `duplicate` to usable rows whose key is also in an earlier file of their hour."""
    is_usable = f.col("reason").isNull()
    copies = Window.partitionBy("hour_ms", is_usable, *_KEYS[table]).orderBy("file")
    is_copy = is_usable & (f.row_number().over(copies) > 1)
    return rows.withColumn("reason", f.when(is_copy, "duplicate").otherwise(f.col("reason")))


def have_duplicates(files: Iterable[HistoryFile]) -> bool:
    """Return True if two of these files may share reports of an hour, by the sequences in their names."""
    ordered = sorted(files, key=lambda each: (each.hour_ms, each.order))
    return any(
        (one.hour_ms, one.epoch) == (other.hour_ms, other.epoch) and other.first <= one.last
        for one, other in pairwise(ordered)
    )


def usable(rows: DataFrame, table: str) -> DataFrame:
    """Return the usable rows, with the columns of the history's table."""
    return rows.where(f.col("reason").isNull()).select(raw(table).names)


def rejected_rows(rows: DataFrame, table: str) -> DataFrame:
    """Count rejected rows by file and reason, with one row as JSON; for a bad file, the fault in place of the row."""
    fault = f.col("damaged") if "damaged" in rows.columns else f.lit(None).cast("string")
    example = f.coalesce(fault, f.to_json(f.struct(*raw(table).names)))
    rejected = rows.where(f.col("reason").isNotNull()).withColumn("example", example)
    counted = rejected.groupBy("hour_ms", "reason", "file").agg(
        f.count_if(f.col("reason") != "bad_file").alias("count"), f.min("example").alias("example")
    )
    return counted.withColumn("table", f.lit(table))


def _is_impossible(table: str) -> Column:
    at_ms, hour_ms = f.col("at_ms"), f.col("hour_ms")
    found = (at_ms < 0) | (at_ms < hour_ms) | (at_ms >= hour_ms + HOUR_MS)
    found |= f.greatest(*(f.col(name).cast("double") for name in _AMOUNTS[table])) > MAX_AMOUNT
    if table == BUNDLE_REPORTS:
        lower, upper = map(f.col, _RANGE)
        found |= (f.greatest(*LOAD_COLUMNS[:2]) > MAX_RATE) | (lower >= upper) | (upper > HASH_SPACE_END)
    return found
