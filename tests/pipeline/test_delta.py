"""Delta tables that are there as a whole, or as they were before."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from support.frames import rows_of

from loadmanager.errors import PipelineError
from loadmanager.pipeline.datasets import frame_of, schema_of
from loadmanager.pipeline.delta import DAY, Tables

NAME = "time_above"


def rows(spark: SparkSession, **shares: float) -> DataFrame:
    """One for each subject."""
    given = [("usage", subject, 0.8, 1.0, 1.0, float(share)) for subject, share in shares.items()]
    return frame_of(spark, schema_of(NAME), given)


def write_days(spark: SparkSession, tables: Tables, days: Sequence[str], **shares: float) -> None:
    """Write a row for each day, which is its subject."""
    tables.write(NAME, rows(spark, **shares).withColumn(DAY, f.col("subject")), days)


def shares(tables: Tables, *days: str) -> dict[str, float]:
    return {row["subject"]: row["share"] for row in rows_of(tables.read(NAME, days or None))}


def shares_in_delta(tables: Tables) -> dict[str, float]:
    """Read the shares through delta-rs, as any program that knows Delta."""
    read = DeltaTable(f"{tables}/{NAME}").to_pyarrow_table().to_pylist()
    assert len({row["subject"] for row in read}) == len(read)
    return {row["subject"]: row["share"] for row in read}


def test_write_replaces_the_whole_table(spark: SparkSession, tables: Tables) -> None:
    assert not tables.has(NAME)
    tables.write(NAME, rows(spark, a=1, b=2))
    assert tables.rows(NAME) == 2
    tables.write(NAME, rows(spark, a=3))
    assert shares(tables) == shares_in_delta(tables) == {"a": 3}
    assert (tables.has(NAME), tables.rows(NAME)) == (True, 1)
    tables.write(NAME, tables.read(NAME).withColumn("share", f.col("share") + 1))
    assert shares(tables) == {"a": 4}, "made of itself"
    tables.write(NAME, rows(spark, a=1).limit(0))
    assert (tables.has(NAME), shares(tables), tables.read_rows(NAME).num_rows) == (True, {}, 0)


def test_write_of_days_replaces_only_those_days(spark: SparkSession, tables: Tables) -> None:
    write_days(spark, tables, ["a", "b", "c"], a=1, b=2, c=3)
    assert tables.rows(NAME) == 3
    write_days(spark, tables, ["b", "c"], b=4)
    assert shares(tables) == shares_in_delta(tables) == {"a": 1, "b": 4}
    assert shares(tables, "b", "z") == {"b": 4}
    assert tables.rows(NAME) == 2
    tables.clear(NAME, ["a"])
    assert shares(tables) == {"b": 4}
    tables.clear(NAME)
    assert (tables.has(NAME), shares(tables)) == (True, {})


def test_rows_derived_from_written_ones_are_committed_with_them(spark: SparkSession, tables: Tables) -> None:
    def doubled(written: DataFrame) -> DataFrame:
        return written.select("*", f.col("subject").alias(DAY)).withColumn("share", f.col("share") * 2)

    write_days(spark, tables, ["a", "b"], a=0, b=5)
    first = rows(spark, a=1).withColumn(DAY, f.col("subject"))
    tables.write(NAME, first, ["a"], doubled)
    assert sorted(row["share"] for row in rows_of(tables.read(NAME))) == [1, 2, 5]
    assert DeltaTable(f"{tables}/{NAME}").version() == 1


def test_first_and_last_time_of_a_table(spark: SparkSession, tables: Tables) -> None:
    name = "fleet_events"
    assert tables.times(name) is None
    given = [(at_ms, 1, number, "broker_gone", "a:1") for number, at_ms in enumerate((3, 1, 2))]
    tables.write(name, frame_of(spark, schema_of(name), given).withColumn(DAY, f.lit("a")), ["a"])
    assert tables.times(name) == (1, 3)


def test_failed_write_leaves_the_table_unchanged(spark: SparkSession, tables: Tables) -> None:
    tables.write(NAME, rows(spark, a=1))
    failing = rows(spark, a=2, b=3).withColumn(
        "share", f.when(f.col("subject") == "b", f.raise_error(f.lit("out of space"))).otherwise(f.col("share"))
    )
    with pytest.raises(PipelineError, match=f"{tables}/{NAME}: cannot be written: .*out of space"):
        tables.write(NAME, failing)
    assert shares(tables) == shares_in_delta(tables) == {"a": 1}


def test_interrupted_write_is_invisible_and_removed_later(spark: SparkSession, tables: Tables) -> None:
    tables.write(NAME, rows(spark, a=1))
    folder = Path(str(tables), NAME)
    left = folder / "0000000000001-dead" / "part=all" / "x.parquet"
    left.parent.mkdir(parents=True)
    pq.write_table(pq.read_table(next(folder.rglob("*.parquet")), partitioning=None), left)
    assert shares(tables) == shares_in_delta(tables) == {"a": 1}
    tables.write(NAME, rows(spark, a=2))
    assert left.exists(), "another writer may be about to commit it"
    os.utime(left, (0, 0))
    tables.write(NAME, rows(spark, a=3))
    assert not left.exists()
    assert shares(tables) == shares_in_delta(tables) == {"a": 3}
    assert DeltaTable(folder, version=0).to_pyarrow_table().column("share").to_pylist() == [1]


def test_unreadable_log_is_named(tables: Tables) -> None:
    log = Path(str(tables), NAME, "_delta_log", "00000000000000000000.json")
    log.parent.mkdir(parents=True)
    log.write_text("{", encoding="utf-8")
    with pytest.raises(PipelineError, match=f"{tables}/{NAME}: its log cannot be read: [^\n]*; write the table anew$"):
        tables.read(NAME)


def test_small_tables_are_written_and_read_without_spark_jobs(spark: SparkSession, tables: Tables) -> None:
    name = "paired_differences"
    given = pd.DataFrame([["all", "moves", "a", "b", 0.5, float("nan"), None, 3, "day", "equal"]])
    given.columns = pd.Index(schema_of(name).names)
    tables.write_rows(name, given[given.columns[::-1]])
    before = jobs_of(spark)
    (row,) = tables.read_rows(name).to_pylist()
    assert tables.read_rows(name, pc.field("metric") == "returns").num_rows == 0
    assert jobs_of(spark) == before
    assert row == {**given.iloc[0].to_dict(), "low": None, "high": None}
    assert rows_of(tables.read(name)) == [row]


def jobs_of(spark: SparkSession) -> int:
    """Count the jobs of the session so far."""
    return int(spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())


def test_rows_with_wrong_columns_are_refused(spark: SparkSession, tables: Tables) -> None:
    made: pd.DataFrame = rows(spark, a=1).toPandas()
    with pytest.raises(PipelineError, match=f"table {NAME}: has columns what, subject, .*; given what, .*, more"):
        tables.write_rows(NAME, made.assign(more=1))
    with pytest.raises(PipelineError, match=f"table {NAME}: has no column share"):
        tables.write(NAME, rows(spark, a=1).drop("share"))
    assert not tables.has(NAME)


def test_missing_table_is_named(tables: Tables) -> None:
    with pytest.raises(PipelineError, match=f"{tables}/{NAME}: there is no such table yet"):
        tables.read(NAME)
