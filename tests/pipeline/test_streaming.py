"""A stream that is stopped, killed and started again ends with the tables that one batch over everything makes."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.frames import HOUR_MS, files_of, rows_of
from support.streamed import assert_as_in_one_batch, write_minutes

from loadmanager.errors import PipelineError
from loadmanager.history.schemas import BROKER_REPORTS, BUNDLE_REPORTS
from loadmanager.pipeline.contents import Account
from loadmanager.pipeline.streaming import BatchDone, HistoryStream
from loadmanager.pipeline.writing import Tables


def test_a_stream_that_is_stopped_and_started_again_counts_everything_once(
    spark: SparkSession, tmp_path: Path, tables: Tables
) -> None:
    folder, out = tmp_path / "history", str(tables)
    done: list[BatchDone] = []

    def take_in() -> None:
        HistoryStream(spark, str(folder), out, on_batch=done.append).take_in()

    write_minutes(folder, range(50, 58), first=0)
    take_in()
    write_minutes(folder, range(58, 66), first=100)
    take_in()
    take_in()
    assert [each.units for each in done] == [("2026-09-21T00",), ("2026-09-21T00", "2026-09-21T01")]
    late_and_twice = files_of(folder, BUNDLE_REPORTS)[0]
    shutil.copy(late_and_twice, late_and_twice.with_name(late_and_twice.name.replace("-node", "-other")))
    write_minutes(folder, range(40, 50), first=200)
    take_in()
    assert [each.units for each in done[2:]] == [("2026-09-21T00",)]
    assert_as_in_one_batch(tables, str(folder))
    rejected = {row["reason"]: row["count"] for row in rows_of(tables.read("rejected_rows"))}
    assert rejected == {"duplicate": 16}


class CutError(Exception):
    """The process is killed here."""


def test_a_batch_that_was_cut_short_twice_is_done_again_and_leaves_nothing_twice(
    spark: SparkSession, tmp_path: Path, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = tmp_path / "history", str(tables)
    write_minutes(folder, range(56, 64), first=0)
    whole = Tables._writing
    for cut_at in ("clean_bundle_reports", "bundle_windows"):

        def cut(self: Tables, name: str, cut_at: str = cut_at) -> AbstractContextManager[Account]:
            if name == cut_at:
                raise CutError(name)
            return whole(self, name)

        with monkeypatch.context() as patch:
            patch.setattr(Tables, "_writing", cut)
            with pytest.raises(CutError, match=cut_at):
                HistoryStream(spark, str(folder), out).take_in()
    write_minutes(folder, range(64, 66), first=100)
    HistoryStream(spark, str(folder), out).take_in()
    assert_as_in_one_batch(tables, str(folder))


def test_hours_before_the_watermark_are_not_opened_again_but_named(
    spark: SparkSession, tmp_path: Path, tables: Tables
) -> None:
    folder = tmp_path / "history"
    done: list[BatchDone] = []
    stream = HistoryStream(spark, str(folder), str(tables), lateness_s=HOUR_MS / 1000, on_batch=done.append)
    write_minutes(folder, range(180, 182), first=100)
    stream.take_in()
    write_minutes(folder, range(1), first=0)
    write_minutes(folder, range(120, 121), first=50)
    stream.take_in()
    assert [(each.units, each.late) for each in done] == [(("2026-09-21T03",), 0), (("2026-09-21T02",), 2)]
    late = [Path(row["file"].removeprefix("file:")) for row in rows_of(tables.read("late_files"), "file")]
    assert late == [files_of(folder, BROKER_REPORTS)[0], files_of(folder, BUNDLE_REPORTS)[0]]
    assert tables.rows("clean_broker_reports") == 6


def test_a_history_that_is_not_there_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="nowhere: there is no history"):
        HistoryStream(spark, str(tmp_path / "nowhere"), str(tmp_path / "out")).take_in()
