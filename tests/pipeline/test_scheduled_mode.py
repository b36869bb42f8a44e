"""A stream that is stopped and started again ends with the tables that one run over everything makes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.frames import HOUR_MS, START_MS, files_of
from support.ingested import assert_same, ingested, rows_in, write_minutes

from loadmanager.errors import PipelineError
from loadmanager.history.table_schemas import BUNDLE_REPORTS
from loadmanager.pipeline.delta import Tables
from loadmanager.pipeline.scheduled_mode import HistoryStream


def test_restarted_stream_counts_once(spark: SparkSession, tmp_path: Path, tables: Tables) -> None:
    folder, out = tmp_path / "history", str(tables)
    done: list[list[int]] = []

    def take_in() -> list[int]:
        return HistoryStream(spark, str(folder), out, on_batch=done.append).take_in()

    write_minutes(folder, range(50, 58), first=0)
    assert take_in() == [START_MS]
    write_minutes(folder, range(58, 66), first=100)
    late_and_twice = files_of(folder, BUNDLE_REPORTS)[0]
    shutil.copy(late_and_twice, late_and_twice.with_name(late_and_twice.name.replace("-node", "-other")))
    assert take_in() == [START_MS, START_MS + HOUR_MS]
    assert take_in() == []
    assert done == [[START_MS], [START_MS, START_MS + HOUR_MS]]
    assert_same(tables, ingested(spark, str(folder), tmp_path / "once"))
    assert [(row["reason"], row["count"]) for row in rows_in(tables, "rejected_rows")] == [("duplicate", 16)]


def test_a_history_that_is_not_there_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="nowhere: there is no history"):
        HistoryStream(spark, str(tmp_path / "nowhere"), str(tmp_path / "out")).take_in()
