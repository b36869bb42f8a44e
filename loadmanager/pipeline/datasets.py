"""Tables that the pipeline writes, with their columns, and the columns of the history as Spark sees them.

Steps access declared tables only. `pipeline.steps` lists the steps; docs/pipeline.md lists both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema

from loadmanager.errors import PipelineError
from loadmanager.history.files import HOUR_MS
from loadmanager.history.table_schemas import BROKER_REPORTS, LOAD_COLUMNS, RATE, RESOURCE_COLUMNS
from loadmanager.history.table_schemas import TABLES as HISTORY_TABLES

if TYPE_CHECKING:  # workers import this module and have no pandas
    import pandas as pd


CLEAN = "clean_broker_reports"
INGESTED = (
    *(CLEAN, "fleet_events", "rejected_rows"),
    *("bundle_windows", "broker_windows", "namespace_windows"),
    *("reported_by", "totals_compared"),
)
"""The tables of the step `ingest`, partitioned by day."""

METRICS = LOAD_COLUMNS
RESOURCES = tuple(name.removesuffix("_usage") for name in RESOURCE_COLUMNS if name.endswith("_usage"))


def raw(table: str) -> t.StructType:
    """Return the columns of a table of the history; rates are doubles here."""
    columns = HISTORY_TABLES[table].columns
    kinds = (t.DoubleType() if each.type == RATE else from_arrow_type(each.type) for each in columns)
    return t.StructType([t.StructField(each.name, kind) for each, kind in zip(columns, kinds, strict=True)])


def _table(columns: str) -> t.StructType:
    """Declare a table by groups of a type and the names of its columns: `long at_ms epoch, string subject`."""
    schema = t.StructType()
    for kind, *names in map(str.split, columns.split(",")):
        for name in names:
            schema.add(name, kind)
    return schema


def _statistics(names: Sequence[str], *statistics: str) -> str:
    return " ".join(f"{statistic}_{name}" for name in names for statistic in statistics)


_LOAD = f"double {_statistics(METRICS, 'mean', 'max', 'p95')}"

_COLUMNS = {
    "rejected_rows": "long hour_ms, string table reason file, long count, string example",
    "fleet_events": "long at_ms epoch sequence, string kind subject",
    "bundle_windows": (
        f"integer window_s, long start_ms, string bundle namespace, long n, double covered_s, {_LOAD} topics sessions"
    ),
    "broker_windows": (
        "integer window_s, long start_ms, string broker, long n, double covered_s,"
        f" {_LOAD} {_statistics(RESOURCES, 'mean', 'max')} mean_usage max_usage topics bundles sessions"
    ),
    "namespace_windows": (
        f"integer window_s, long start_ms, string namespace, long bundles, double covered_s, {_LOAD} topics sessions"
    ),
    "reported_by": "long start_ms, string bundle namespace broker, long first_ms last_ms",
    "totals_compared": (
        "long start_ms, string broker what, long reports inconsistent, double worst_difference,"
        " long at_ms epoch sequence, double reported summed"
    ),
    "imbalance": (
        "long start_ms brokers, double covered_s load max_over_mean cv, string worst_broker, double worst_usage,"
        " string worst_used_broker, long overloaded_brokers, boolean above_threshold"
    ),
    "time_above": "string what subject, double threshold above_s observed_s share",
    "hot_bundles": (
        "long start_ms, string bundle namespace, double load share msg_rate, integer rank, double times_mean"
    ),
    "flapping": (
        "string bundle, long moves own_moves returns, double thrash moved_again moved_share, long first_ms last_ms"
    ),
    "move_effects": (
        "long epoch sequence, string bundle source destination reason outcome, long at_ms,"
        " double load predicted_before predicted_after measured_before measured_after, string measured_by,"
        " double error"
    ),
    "inconsistent_brokers": (
        "string broker what, long reports inconsistent, double worst_difference, long at_ms, double reported summed"
    ),
    "backtest": (
        "string kind key metric, integer horizon_h, string model, long points, double pinball mae, string baseline,"
        " double baseline_pinball baseline_mae coverage baseline_coverage, string shown, boolean used, string why"
    ),
    "forecasts": "string kind key metric, long start_ms, integer hours_ahead, double q10 q50 q90, string model",
    "cost_models": (
        f"string broker_class resource, double base {' '.join(METRICS)} topics, long reports held_out,"
        " double r2 mape given_r2 given_mape, boolean fitted, string why"
    ),
    "capacity": (
        "string day, long start_ms, double quantile, long needed needed_n1 needed_domain have,"
        " string resource_first, double used, boolean fits fits_n1 fits_domain,"
        " string exhausted_on exhausted_on_n1 exhausted_on_domain, double headroom, string basis"
    ),
    "advice": "string kind subject text evidence",
    # The figures are those of `lab.simulate.trial.figures`.
    "scenarios": (
        "long scenario, string fleet configuration, long stretch seed from_ms,"
        " double duration_s time_full_s time_hot_s time_above_s worst_usage mean_imbalance regret moved_share"
        " moved_again load_moved, long moves returns, double thrash, long clients_disturbed splits,"
        " double unowned_bundle_s, string digest"
    ),
    "league": (
        "string fleet, long place, string configuration, long scenarios,"
        " double hours time_full time_hot regret time_above worst_usage moved_share moves moved_again returns"
        " clients_disturbed, boolean recommended"
    ),
    "paired_differences": (
        "string fleet metric configuration other, double difference low high, long pairs, string paired_over shown"
    ),
    "recommendation": "string fleet configuration, long days seeds, string why",
}

DATASETS: Mapping[str, t.StructType] = MappingProxyType(
    {CLEAN: raw(BROKER_REPORTS), **{name: _table(columns) for name, columns in _COLUMNS.items()}}
)
"""Tables by name."""


def schema_of(table: str) -> t.StructType:
    """Return the columns of a table. Raises `PipelineError` for one that is not declared."""
    if table not in DATASETS:
        raise PipelineError(f"table {table}: unknown; there are {', '.join(DATASETS)}")
    return DATASETS[table]


def time_column(table: str) -> str:
    """Return the time column of a table of `ingest`."""
    return next(each for each in ("start_ms", "hour_ms", "at_ms") if each in schema_of(table).names)


def in_range(rows: DataFrame, table: str, from_ms: int | None, to_ms: int | None) -> DataFrame:
    """Return the rows of a table of `ingest` whose window, hour or moment overlaps a range."""
    at_ms = f.col(time_column(table))
    length_ms = f.lit(1 if time_column(table) == "at_ms" else HOUR_MS)
    if "window_s" in rows.columns:
        length_ms = f.col("window_s") * 1000
    if from_ms is not None:
        rows = rows.where(at_ms + length_ms > from_ms)
    return rows if to_ms is None else rows.where(at_ms < to_ms)


def require(frame: DataFrame, table: str) -> DataFrame:
    """Return the frame with its columns in the order of the table. `PipelineError` names a column that is wrong."""
    schema = schema_of(table)
    types = {each.name: each.dataType for each in frame.schema}
    for wanted in schema:
        found = types.pop(wanted.name, None)
        if found is None:
            raise PipelineError(f"table {table}: has no column {wanted.name}; it has {', '.join(frame.columns)}")
        if found != wanted.dataType:
            kinds = f"{found.simpleString()}, expected {wanted.dataType.simpleString()}"
            raise PipelineError(f"table {table}: column {wanted.name} is {kinds}")
    if types:
        raise PipelineError(f"table {table}: columns {', '.join(types)}: not in it")
    names = schema.fieldNames()
    return frame if frame.columns == names else frame.selectExpr(*(f"`{name}`" for name in names))


def rows_of(frame: pd.DataFrame, table: str) -> pa.Table:
    """Convert known rows to Arrow, with the columns of the table. NaN becomes null."""
    schema = to_arrow_schema(schema_of(table))
    if set(frame.columns) != set(schema.names):
        raise PipelineError(f"table {table}: has columns {', '.join(schema.names)}; given {', '.join(frame.columns)}")
    return pa.Table.from_pandas(frame, schema, preserve_index=False).replace_schema_metadata()


def frame_of(spark: SparkSession, schema: t.StructType, rows: Iterable[Sequence[Any]] = ()) -> DataFrame:
    """Return these rows as a frame. Rows from Arrow become part of the plan, and need no Python worker."""
    table = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], to_arrow_schema(schema))
    return spark.createDataFrame(table, schema)
