"""What tables of the pipeline have in common: the history's columns as Spark sees them, and the names of bundles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from loadmanager.history.table_schemas import LOAD_COLUMNS, RATE, RESOURCE_COLUMNS
from loadmanager.history.table_schemas import TABLES as HISTORY_TABLES

METRICS = LOAD_COLUMNS
RESOURCES = tuple(name.removesuffix("_usage") for name in RESOURCE_COLUMNS if name.endswith("_usage"))

_PLAIN = {
    pa.int64(): t.LongType(),
    pa.float64(): t.DoubleType(),
    pa.string(): t.StringType(),
    pa.bool_(): t.BooleanType(),
    RATE: t.DoubleType(),
}


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


def frame_of(spark: SparkSession, schema: t.StructType, rows: Iterable[Sequence[Any]] = ()) -> DataFrame:
    """Rows that are known here. Through Arrow they become a part of the plan, of which Spark knows when it is empty;
    as Python's objects they would have to be fetched from a worker in Python each time that they are read.
    """
    table = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], to_arrow_schema(schema))
    return spark.createDataFrame(table, schema)
