"""A stream that is stopped, killed and started again ends with the tables that one batch over everything makes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from support.frames import HOUR_MS, files_of, rows_of
from support.streamed import assert_as_in_one_batch, write_minutes
from support.waiting import eventually_sync

from loadmanager.errors import HistoryFileError, PipelineError
from loadmanager.history.schemas import BROKER_REPORTS, BUNDLE_REPORTS
from loadmanager.pipeline import streaming
from loadmanager.pipeline.streaming import BatchDone, HistoryStream
from loadmanager.pipeline.writing import Tables

PATIENCE_S = 400


class CutError(Exception):
    """The process is killed here."""


@dataclass
class Story:
    """A history that grew, and what streams told that took it in, one after the other, into the same tables."""

    spark: SparkSession
    history: Path
    tables: Tables
    done: list[BatchDone] = field(default_factory=list)
    cut_short: list[str] = field(default_factory=list)

    def stream(self) -> HistoryStream:
        return HistoryStream(self.spark, str(self.history), str(self.tables), on_batch=self.done.append)

    def take_in(self) -> None:
        self.stream().available_now()

    def follow(self) -> None:
        """In hour 0 the stream runs while more comes."""
        write_minutes(self.history, range(3), first=0)
        stream = self.stream()
        query = stream.start(trigger_s=0.2)
        try:
            eventually_sync(lambda: self.tables.has("imbalance"), timeout_s=PATIENCE_S)
            write_minutes(self.history, range(3, 5), first=50)
            eventually_sync(lambda: self.tables.rows("clean_broker_reports") == 10, timeout_s=PATIENCE_S)
            assert not stream.wait(query, 0.01)
            query.processAllAvailable()
        finally:
            query.stop()
        assert stream.wait(query, PATIENCE_S)

    def be_cut_short(self, patch: pytest.MonkeyPatch) -> None:
        """In hours 4 and 5, at two places, before it comes to its end."""
        write_minutes(self.history, range(296, 304), first=100)
        whole: Callable[..., Any] = Tables.write
        for cut_at in ("clean_bundle_reports", "bundle_windows"):

            def cut(tables: Tables, name: str, frame: DataFrame, *, at: str = cut_at, **options: Any) -> Any:  # noqa: ANN401 - as the real one
                if name == at:
                    raise CutError(name)
                return whole(tables, name, frame, **options)

            with patch.context() as patched:
                patched.setattr(Tables, "write", cut)
                with pytest.raises(PipelineError) as raised:
                    self.take_in()
            self.cut_short.append(str(raised.value))
        write_minutes(self.history, range(304, 306), first=150)
        self.take_in()

    def stop_and_go_on(self) -> None:
        """In hours 8 and 9; then some comes late, and some twice."""
        write_minutes(self.history, range(530, 538), first=200)
        self.take_in()
        write_minutes(self.history, range(538, 546), first=300)
        self.take_in()
        self.take_in()
        twice = next(file for file in files_of(self.history, BUNDLE_REPORTS) if "hour=08" in str(file))
        shutil.copy(twice, twice.with_name(twice.name.replace("-node", "-other")))
        write_minutes(self.history, range(520, 530), first=400)
        self.take_in()


@pytest.fixture(scope="module")
def story(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Story:
    root = tmp_path_factory.mktemp("story")
    told = Story(spark, root / "history", Tables(spark, str(root / "tables")))
    told.follow()
    with pytest.MonkeyPatch.context() as patch:
        told.be_cut_short(patch)
    told.stop_and_go_on()
    return told


def test_each_batch_takes_in_the_hours_of_its_files_once(story: Story) -> None:
    following, told = [each.hours for each in story.done], [("2026-09-21T00",), ("2026-09-21T00",)]
    told += [("2026-09-21T04", "2026-09-21T05"), ("2026-09-21T05",)]
    told += [("2026-09-21T08",), ("2026-09-21T08", "2026-09-21T09"), ("2026-09-21T08",)]
    assert following == told
    assert [each.number for each in story.done] == list(range(len(told)))


def test_a_batch_that_was_cut_short_says_by_what(story: Story) -> None:
    for said, at in zip(story.cut_short, ("clean_bundle_reports", "bundle_windows"), strict=True):
        assert f"the stream has ended: CutError('{at}')" in said


def test_what_came_while_it_ran_was_cut_short_or_stopped_late_or_twice_counts_once(story: Story) -> None:
    assert_as_in_one_batch(story.spark, story.tables, str(story.history))
    rejected = {row["reason"]: row["count"] for row in rows_of(story.tables.read("rejected_rows"))}
    assert rejected == {"duplicate": 16}


def test_hours_before_the_watermark_are_not_opened_again_but_named(
    spark: SparkSession, tmp_path: Path, tables: Tables
) -> None:
    folder = tmp_path / "history"
    done: list[BatchDone] = []
    stream = HistoryStream(spark, str(folder), str(tables), lateness_s=HOUR_MS / 1000, on_batch=done.append)
    write_minutes(folder, range(180, 182), first=100)
    stream.available_now()
    write_minutes(folder, range(1), first=0)
    write_minutes(folder, range(120, 121), first=50)
    stream.available_now()
    assert [(each.hours, each.late) for each in done] == [(("2026-09-21T03",), 0), (("2026-09-21T02",), 2)]
    late = [Path(row["file"].removeprefix("file:")) for row in rows_of(tables.read("late_files"), "file")]
    assert late == [files_of(folder, BROKER_REPORTS)[0], files_of(folder, BUNDLE_REPORTS)[0]]
    assert tables.rows("clean_broker_reports") == 6


def test_a_bad_file_ends_the_stream_and_is_named(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "history"
    write_minutes(folder, range(2), first=0)
    (bad,) = files_of(folder, BUNDLE_REPORTS)
    bad.write_bytes(bad.read_bytes()[:-10])
    with pytest.raises(HistoryFileError, match=f"{bad}: not a Parquet file"):
        HistoryStream(spark, str(folder), str(tmp_path / "strict"), bad_files="fail").available_now()


def test_a_history_that_is_not_there_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="nowhere: there is no history"):
        HistoryStream(spark, str(tmp_path / "nowhere"), str(tmp_path / "out")).available_now()


def test_a_file_out_of_place_belongs_to_no_hour() -> None:
    assert streaming._hour_of("file:/h/bundle_reports/x.parquet") is None
    assert streaming._hour_of("file:/h/bundle_reports/date=2026-13-01/hour=00/x.parquet") is None
    assert streaming._hour_of("file:/h/bundle_reports/date=1970-01-02/hour=03/x.parquet") == 27
