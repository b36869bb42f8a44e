"""Frames of the pipeline's tables from a few of their columns: the others are 0, or empty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from loadmanager.pipeline.datasets import schema_of

HOUR_MS = 3_600_000

_ZEROS: dict[type[t.DataType], object] = {t.DoubleType: 0.0, t.StringType: "", t.BooleanType: False}


def frame_of(spark: SparkSession, table: str, rows: Sequence[Mapping[str, object]]) -> DataFrame:
    """Rows of a table; a window is one of an hour."""
    schema = schema_of(table)
    empty = {each.name: _ZEROS.get(type(each.dataType), 0) for each in schema} | {"window_s": 3600}
    columns = {name: [row.get(name, empty[name]) for row in rows] for name in schema.names}
    return spark.createDataFrame(pa.table(columns, schema=to_arrow_schema(schema)), schema)
