"""Tables that are there as a whole, or as they were before."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from support.frames import rows_of

from loadmanager.errors import PipelineError
from loadmanager.pipeline.schemas import TABLES
from loadmanager.pipeline.writing import StreamBatch, Tables

NAME = "time_above"


def rows(spark: SparkSession, **shares: float) -> DataFrame:
    """One for each subject."""
    given = [("usage", subject, 0.8, 1.0, 1.0, float(share)) for subject, share in shares.items()]
    return spark.createDataFrame(given, TABLES[NAME])


def by_subject(frame: DataFrame) -> DataFrame:
    return frame.withColumn("of", f.col("subject"))


def shares(tables: Tables, *keys: str) -> dict[str, float]:
    return {row["subject"]: row["share"] for row in rows_of(tables.read(NAME, keys or None))}


def shares_in_files(tables: Tables) -> dict[str, float]:
    """As a program sees them that reads every Parquet file of the table."""
    files = Path(str(tables), NAME).rglob("*.parquet")
    read = [row for file in files for row in pq.read_table(file, partitioning=None).to_pylist()]
    assert len({row["subject"] for row in read}) == len(read)
    return {row["subject"]: row["share"] for row in read}


def test_a_table_is_replaced_as_a_whole(spark: SparkSession, tables: Tables) -> None:
    assert not tables.has(NAME)
    assert tables.write(NAME, rows(spark, a=1, b=2)).rows == 2
    assert tables.write(NAME, rows(spark, a=3)).rows == 1
    assert shares(tables) == shares_in_files(tables) == {"a": 3}
    assert (tables.has(NAME), tables.rows(NAME)) == (True, 1)


def test_a_table_that_is_made_of_itself_is_whole(spark: SparkSession, tables: Tables) -> None:
    tables.write(NAME, rows(spark, a=1))
    tables.write(NAME, tables.read(NAME).withColumn("share", f.col("share") + 1))
    assert shares(tables) == {"a": 2}


def test_only_the_parts_in_question_are_replaced(spark: SparkSession, tables: Tables) -> None:
    tables.write(NAME, by_subject(rows(spark, a=1, b=2, c=3)), key="of")
    tables.write(NAME, by_subject(rows(spark, b=4)), key="of", keys=["b", "c"])
    assert shares(tables) == shares_in_files(tables) == {"a": 1, "b": 4}
    assert shares(tables, "b", "z") == {"b": 4}


def test_rows_of_a_part_that_is_not_to_be_replaced_are_refused(spark: SparkSession, tables: Tables) -> None:
    tables.write(NAME, by_subject(rows(spark, a=1)), key="of")
    with pytest.raises(PipelineError, match="rows of parts b, which are not to be replaced"):
        tables.write(NAME, by_subject(rows(spark, a=2, b=2)), key="of", keys=["a"])
    assert shares(tables) == shares_in_files(tables) == {"a": 1}


def test_a_batch_is_written_once_and_another_stream_has_numbers_of_its_own(spark: SparkSession, tables: Tables) -> None:
    assert not tables.write(NAME, rows(spark, a=1), batch=StreamBatch("x", 3)).skipped
    assert tables.write(NAME, rows(spark, a=2), batch=StreamBatch("x", 3)).skipped
    assert shares(tables) == {"a": 1}
    assert not tables.write(NAME, rows(spark, a=3), batch=StreamBatch("x", 4)).skipped
    assert not tables.write(NAME, rows(spark, a=4), batch=StreamBatch("y", 0)).skipped
    assert shares(tables) == {"a": 4}


def test_a_write_that_fails_leaves_what_was_there(spark: SparkSession, tables: Tables) -> None:
    tables.write(NAME, rows(spark, a=1))
    failing = rows(spark, a=2, b=3).withColumn(
        "share", f.when(f.col("subject") == "b", f.raise_error(f.lit("out of space"))).otherwise(f.col("share"))
    )
    with pytest.raises(PipelineError, match=f"{tables}/{NAME}: cannot be written: .*out of space"):
        tables.write(NAME, failing)
    assert shares(tables) == shares_in_files(tables) == {"a": 1}


def test_a_write_that_was_cut_short_is_cleared_away_by_the_next(spark: SparkSession, tables: Tables) -> None:
    tables.write(NAME, rows(spark, a=1))
    left = Path(str(tables), NAME, "0000000000001-dead", "part=all")
    left.mkdir(parents=True)
    pq.write_table(
        pq.read_table(next(Path(str(tables), NAME).rglob("*.parquet")), partitioning=None), left / "x.parquet"
    )
    assert shares(tables) == {"a": 1}
    tables.write(NAME, rows(spark, a=2))
    assert shares_in_files(tables) == {"a": 2}
    assert not left.parent.exists()


def test_an_empty_table_is_a_table(spark: SparkSession, tables: Tables) -> None:
    tables.write(NAME, rows(spark, a=1).limit(0))
    assert (tables.has(NAME), shares(tables)) == (True, {})


def test_a_table_that_was_never_written_is_named(tables: Tables) -> None:
    with pytest.raises(PipelineError, match=f"{tables}/{NAME}: there is no such table yet"):
        tables.read(NAME)


def test_a_frame_that_is_not_the_table_is_refused(spark: SparkSession, tables: Tables) -> None:
    with pytest.raises(PipelineError, match=f"table {NAME}: has no column share"):
        tables.write(NAME, rows(spark, a=1).drop("share"))
    assert not tables.has(NAME)


def test_a_manifest_that_cannot_be_read_is_named(spark: SparkSession, tables: Tables) -> None:
    tables.write(NAME, rows(spark, a=1))
    (manifest,) = Path(str(tables), NAME, "_manifests").glob("*.json")
    manifest.write_text("{", encoding="utf-8")
    with pytest.raises(PipelineError, match=f"{manifest}: not a manifest that can be read"):
        tables.read(NAME)
