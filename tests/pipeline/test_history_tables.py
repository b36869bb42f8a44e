"""The range of a history that steps read: its files, rows and limits, and errors that name what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from support.frames import HOUR_MS, MINUTE_MS, START_MS, cut_in_half, files_of, write_three_hours

from loadmanager.errors import PipelineError
from loadmanager.history.table_schemas import BROKER_REPORTS, BUNDLE_REPORTS, EVENTS
from loadmanager.pipeline.datasets import raw
from loadmanager.pipeline.history_tables import HistoryTables, cause_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_three_hours(tmp_path / "history")


def times(frame: DataFrame) -> list[int]:
    return sorted((row.at_ms - START_MS) // HOUR_MS for row in frame.select("at_ms").collect())


def test_only_rows_and_files_of_the_range_are_read(spark: SparkSession, folder: Path) -> None:
    cut_in_half(files_of(folder, BUNDLE_REPORTS)[0])
    tables = HistoryTables(spark, str(folder), START_MS + HOUR_MS, START_MS + 2 * HOUR_MS)
    assert tables.frame(BUNDLE_REPORTS).schema == raw(BUNDLE_REPORTS)
    assert times(tables.frame(BUNDLE_REPORTS)) == [1, 1]
    assert [file.hour_ms for file in tables.files(BUNDLE_REPORTS)] == [START_MS + HOUR_MS]
    assert tables.range == (START_MS + HOUR_MS, START_MS + HOUR_MS + 1)
    assert tables.frame(EVENTS).count() == 0


def test_bad_file_is_an_error_or_left_out(spark: SparkSession, folder: Path) -> None:
    bad = files_of(folder, BROKER_REPORTS)[0]
    cut_in_half(bad)
    with pytest.raises(PySparkException) as raised:
        HistoryTables(spark, str(folder)).usable_reports(BROKER_REPORTS).collect()
    assert cause_of(str(raised.value)).startswith(f"{bad}: not a Parquet file that can be read")
    lenient = HistoryTables(spark, str(folder), leaves_out=True)
    assert times(lenient.usable_reports(BROKER_REPORTS)) == [1, 2]
    assert lenient.range == (START_MS + HOUR_MS, START_MS + 2 * HOUR_MS + 1)


@pytest.mark.parametrize(
    ("from_ms", "to_ms", "why"),
    [
        (
            5 * HOUR_MS,
            6 * HOUR_MS,
            r"in the range 2026-09-21T05:00:00Z to 2026-09-21T06:00:00Z; there is: 2026-09-21T00:00",
        ),
        (MINUTE_MS, 2 * MINUTE_MS, "no broker_reports in the range"),
        (HOUR_MS, HOUR_MS, "no broker_reports in the range"),
    ],
)
def test_empty_range_is_refused_with_the_existing_one(
    spark: SparkSession, folder: Path, from_ms: int, to_ms: int, why: str
) -> None:
    with pytest.raises(PipelineError, match=why):
        assert HistoryTables(spark, str(folder), START_MS + from_ms, START_MS + to_ms).range


def test_missing_history_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="nowhere: there is no history"):
        HistoryTables(spark, str(tmp_path / "nowhere"))
