"""The tables that go through the pipeline, as Spark sees them, and the check that a frame is one of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from loadmanager.errors import PipelineError
from loadmanager.history.schemas import BROKER_REPORTS, BUNDLE_REPORTS, LOAD_COLUMNS, RATE, RESOURCE_COLUMNS
from loadmanager.history.schemas import TABLES as HISTORY_TABLES

METRICS = LOAD_COLUMNS
RESOURCES = tuple(name.removesuffix("_usage") for name in RESOURCE_COLUMNS if name.endswith("_usage"))
BUNDLE_KEY = ("namespace", "range_lower", "range_upper")
_HASH_BITS, _HASH_DIGITS = 32, 8

_LONG, _DOUBLE, _STRING, _INT, _BOOLEAN = (
    t.LongType(),
    t.DoubleType(),
    t.StringType(),
    t.IntegerType(),
    t.BooleanType(),
)
_PLAIN = {pa.int64(): _LONG, pa.float64(): _DOUBLE, pa.string(): _STRING, pa.bool_(): _BOOLEAN, RATE: _DOUBLE}


def raw(table: str) -> t.StructType:
    """The columns of a table of the history; rates are doubles here."""
    return t.StructType([t.StructField(each.name, _type_of(each.type)) for each in HISTORY_TABLES[table].columns])


def _type_of(kind: Any) -> t.DataType:  # noqa: ANN401 - Arrow's data type
    if pa.types.is_dictionary(kind):
        return _type_of(kind.value_type)
    if pa.types.is_list(kind):
        return t.ArrayType(_type_of(kind.value_type))
    if pa.types.is_struct(kind):
        return t.StructType([t.StructField(part.name, _type_of(part.type)) for part in kind])
    return _PLAIN[kind]


def _struct(**columns: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in columns.items()])


def _of(kind: t.DataType, *names: str) -> dict[str, t.DataType]:
    return dict.fromkeys(names, kind)


def _statistics(*statistics: str) -> dict[str, t.DataType]:
    return _of(_DOUBLE, *(f"{statistic}_{metric}" for metric in METRICS for statistic in statistics))


_WINDOW = {"window_s": _INT, "start_ms": _LONG}
_REJECTED = {"file": _STRING, "reason": _STRING}


def _with(struct: t.StructType, more: Mapping[str, t.DataType]) -> t.StructType:
    return t.StructType([*struct.fields, *_struct(**more).fields])


TABLES: dict[str, t.StructType] = {
    "clean_broker_reports": raw(BROKER_REPORTS),
    "clean_bundle_reports": raw(BUNDLE_REPORTS),
    "rejected_broker_reports": _with(raw(BROKER_REPORTS), _REJECTED),
    "rejected_bundle_reports": _with(raw(BUNDLE_REPORTS), _REJECTED),
    "rejected_rows": _struct(**_of(_STRING, "table", "reason", "file"), count=_LONG, example=_STRING),
    "fleet_events": _struct(**_of(_LONG, "at_ms", "epoch", "sequence"), **_of(_STRING, "kind", "subject")),
    "carried": _struct(
        start_ms=_LONG,
        **_of(_STRING, "bundle", "namespace", "broker"),
        **_of(_LONG, "from_ms", "covered_ms", "n"),
        **_statistics("mean", "max"),
        **_of(_DOUBLE, "topics", "sessions"),
    ),
    "bundle_windows": _struct(
        **_WINDOW,
        **_of(_STRING, "bundle", "namespace"),
        n=_LONG,
        covered_s=_DOUBLE,
        **_statistics("mean", "max", "p95"),
        **_of(_DOUBLE, "topics", "sessions"),
    ),
    "broker_windows": _struct(
        **_WINDOW,
        broker=_STRING,
        n=_LONG,
        covered_s=_DOUBLE,
        **_statistics("mean", "max", "p95"),
        **_of(_DOUBLE, *(f"{statistic}_{name}" for name in RESOURCES for statistic in ("mean", "max"))),
        **_of(_DOUBLE, "mean_usage", "max_usage", "topics", "bundles", "sessions"),
    ),
    "namespace_windows": _struct(
        **_WINDOW,
        namespace=_STRING,
        bundles=_LONG,
        covered_s=_DOUBLE,
        **_statistics("mean", "max", "p95"),
        **_of(_DOUBLE, "topics", "sessions"),
    ),
    "running_means": _struct(
        **_of(_STRING, "bundle", "namespace"),
        **_of(_DOUBLE, *(f"short_{metric}" for metric in METRICS), *(f"long_{metric}" for metric in METRICS)),
        **_of(_INT, "short_samples", "long_samples"),
        **_of(_LONG, "topics", "at_ms", "epoch", "sequence"),
    ),
    "imbalance": _struct(
        **_of(_LONG, "start_ms", "brokers"),
        **_of(_DOUBLE, "covered_s", "load", "max_over_mean", "cv"),
        worst_broker=_STRING,
        worst_usage=_DOUBLE,
        worst_used_broker=_STRING,
        overloaded_brokers=_LONG,
        above_threshold=_BOOLEAN,
    ),
    "time_above": _struct(
        **_of(_STRING, "what", "subject"), **_of(_DOUBLE, "threshold", "above_s", "observed_s", "share")
    ),
    "hot_bundles": _struct(
        start_ms=_LONG,
        **_of(_STRING, "bundle", "namespace"),
        **_of(_DOUBLE, "load", "share", "msg_rate"),
        rank=_INT,
        times_mean=_DOUBLE,
    ),
    "namespace_skew": _struct(
        start_ms=_LONG,
        namespace=_STRING,
        bundles=_LONG,
        **_of(_DOUBLE, "load", "max_over_mean", "cv"),
        hottest_bundle=_STRING,
        hottest_share=_DOUBLE,
    ),
    "flapping": _struct(
        bundle=_STRING,
        **_of(_LONG, "moves", "own_moves", "returns"),
        **_of(_DOUBLE, "thrash", "moved_again", "moved_share"),
        **_of(_LONG, "first_ms", "last_ms"),
    ),
    "move_effects": _struct(
        **_of(_LONG, "epoch", "sequence"),
        **_of(_STRING, "bundle", "source", "destination", "reason", "outcome"),
        at_ms=_LONG,
        **_of(_DOUBLE, "load", "predicted_before", "predicted_after", "measured_before", "measured_after"),
        measured_by=_STRING,
        error=_DOUBLE,
    ),
    "inconsistent_brokers": _struct(
        **_of(_STRING, "broker", "what"),
        **_of(_LONG, "reports", "inconsistent"),
        worst_difference=_DOUBLE,
        at_ms=_LONG,
        **_of(_DOUBLE, "reported", "summed"),
    ),
}
"""Steps that are added later add their tables here."""


def require(frame: DataFrame, table: str) -> DataFrame:
    """The frame with its columns in the order of the table; `PipelineError` names a column that is wrong."""
    if table not in TABLES:
        raise PipelineError(f"table {table}: unknown; there are {', '.join(TABLES)}")
    types = {each.name: each.dataType for each in frame.schema}
    for wanted in TABLES[table]:
        found = types.pop(wanted.name, None)
        if found is None:
            raise PipelineError(f"table {table}: has no column {wanted.name}; it has {', '.join(frame.columns)}")
        if found != wanted.dataType:
            kinds = f"{found.simpleString()}, expected {wanted.dataType.simpleString()}"
            raise PipelineError(f"table {table}: column {wanted.name} is {kinds}")
    if types:
        raise PipelineError(f"table {table}: columns {', '.join(types)}: not in it")
    return frame.select(*TABLES[table].fieldNames())


def frame_of(spark: SparkSession, schema: t.StructType, rows: Iterable[Sequence[Any]] = ()) -> DataFrame:
    """Rows that are known here. Through Arrow they become a part of the plan, of which Spark knows when it is empty;
    as Python's objects they would have to be fetched from a worker in Python each time that they are read.
    """
    table = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], to_arrow_schema(schema))
    return spark.createDataFrame(table, schema)


def packed_bounds() -> Column:
    """The bounds of a row's range as one number."""
    return f.shiftleft("range_lower", _HASH_BITS).bitwiseOR(f.col("range_upper"))


def bundle_name(bounds: Column) -> Column:
    """`namespace/0x........_0x........` of a row, by bounds that are packed: names are made by the million."""
    digits = f.lower(f.lpad(f.hex(bounds), 2 * _HASH_DIGITS, "0"))
    lower, upper = f.substring(digits, 1, _HASH_DIGITS), f.substring(digits, 1 + _HASH_DIGITS, _HASH_DIGITS)
    return f.concat("namespace", f.lit("/0x"), lower, f.lit("_0x"), upper)
