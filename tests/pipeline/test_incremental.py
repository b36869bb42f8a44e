"""Tables that are brought up to date with a history end as one run over everything would have made them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession
from support.builders import bundle
from support.drawn_fleet import Drawn
from support.frames import DAY_MS, HOUR_MS, MINUTE_MS, START_MS, Timed, files_of, history_of, reported
from support.ingested import assert_same, flushed, ingested, rows_in, write_files, write_minutes

from loadmanager.history.row_packer import PackedFile
from loadmanager.history.table_schemas import BUNDLE_REPORTS
from loadmanager.pipeline import windows as w
from loadmanager.pipeline.datasets import INGESTED
from loadmanager.pipeline.delta import Tables
from loadmanager.pipeline.incremental import HistoryHours
from loadmanager.pipeline.ingest import Ingest
from loadmanager.pipeline.job import Job

LOAD = (10.0, 10.0, 100.0, 100.0)


def drawn_night(seed: int) -> list[PackedFile]:
    """Return files of what happens around a midnight; a leader may not know that its term ended."""
    rng = np.random.default_rng(seed)
    return flushed(Drawn(rng, START_MS - 1_200_000, epoch=1).go_on(80), rng)


def in_rounds(files: Sequence[PackedFile], rounds: int, rng: np.random.Generator) -> Iterator[list[PackedFile]]:
    """In their order, but for one in six, which comes later."""
    ordered = sorted(files, key=lambda each: each.path.partition("/")[2])
    when = np.arange(len(ordered)) * rounds // len(ordered)
    is_late = rng.random(len(ordered)) < 1 / 6
    when[is_late] = rng.integers(when[is_late], rounds)
    for number in range(rounds):
        yield [file for file, at in zip(ordered, when, strict=True) if at == number]


class KilledError(Exception):
    """The process is killed here."""


_MANY = 100
"""More writes than a run makes."""


def test_runs_killed_before_writes_equal_one_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills before the last write and before every third one: tables are written anew, whichever were before."""
    url, out, left = str(tmp_path / "history"), tmp_path / "out", _MANY
    first, rest = in_rounds(drawn_night(2), 2, np.random.default_rng(2))
    write_files(url, first)
    ingested(spark, url, out)
    write_files(url, rest)

    def killed_before(write: Callable[..., None]) -> Callable[..., None]:
        def counted(*given: Any) -> None:  # noqa: ANN401 - whatever it takes
            nonlocal left
            if left == 0:
                raise KilledError
            left -= 1
            write(*given)

        return counted

    with monkeypatch.context() as patched:
        patched.setattr(Tables, "_commit", killed_before(Tables._commit))
        patched.setattr(HistoryHours, "save", killed_before(HistoryHours.save))
        once = ingested(spark, url, tmp_path / "once")
        writes = _MANY - left
        assert writes > len(INGESTED)
        for number in range(writes)[::-3]:
            left = number
            with pytest.raises(KilledError):
                ingested(spark, url, out)
    assert_same(ingested(spark, url, out), once)


def test_restarted_runs_count_a_report_once(spark: SparkSession, tmp_path: Path, tables: Tables) -> None:
    folder = tmp_path / "history"

    def made() -> list[int]:
        return Ingest(spark, tables, Job(str(folder), str(tables))).run()

    write_minutes(folder, range(50, 58), first=0)
    assert made() == [START_MS]
    write_minutes(folder, range(58, 66), first=100)
    late_and_twice = files_of(folder, BUNDLE_REPORTS)[0]
    shutil.copy(late_and_twice, late_and_twice.with_name(late_and_twice.name.replace("-node", "-other")))
    assert made() == [START_MS, START_MS + HOUR_MS]
    assert made() == []
    assert_same(tables, ingested(spark, str(folder), tmp_path / "once"))
    assert [(row["reason"], row["count"]) for row in rows_in(tables, "rejected_rows")] == [("duplicate", 16)]


def minutely(hours: range) -> list[Timed]:
    """A report of one broker every 10 minutes."""
    return [
        (hour * HOUR_MS + minute * MINUTE_MS, reported("a", {bundle(1): LOAD}))
        for hour in hours
        for minute in range(0, 60, 10)
    ]


def test_windows_outlive_deleted_files_and_count_late_ones_once(spark: SparkSession, tmp_path: Path) -> None:
    history, out = tmp_path / "history", tmp_path / "out"
    for hour in (0, 1, 2, 26):
        history_of(history, minutely(range(hour, hour + 1)), first=hour * 100)
    before = ingested(spark, str(history), out)
    rows = {name: [row for row in rows_in(before, name) if row["start_ms"] < START_MS + DAY_MS] for name in w.SUBJECTS}
    for folder in history.glob("*/date=*/hour=0[01]"):
        shutil.rmtree(folder)
    history_of(history, [(MINUTE_MS, reported("a", {bundle(1): (9e3, 0.0, 0.0, 0.0)}))], first=50)
    late = (2 * HOUR_MS + 16 * MINUTE_MS, reported("a", {bundle(1): LOAD}))
    history_of(history, [late], first=250)
    history_of(history, minutely(range(27, 28)), first=2700)

    tables = ingested(spark, str(history), out)

    for name in ("bundle_windows", "broker_windows"):
        found = {(row["window_s"], row["start_ms"]): row for row in rows_in(tables, name)}
        assert (300, START_MS + 27 * HOUR_MS) in found
        for row in rows[name]:
            again = found[row["window_s"], row["start_ms"]]
            is_of_late = row["start_ms"] + row["window_s"] * 1000 > START_MS + 2 * HOUR_MS + 15 * MINUTE_MS
            assert again["covered_s"] == row["covered_s"]
            assert again["mean_msg_rate_in"] == pytest.approx(10.0)
            assert again["n"] >= row["n"] if is_of_late else again == row
    day = next(row for row in rows_in(tables, "bundle_windows") if row["window_s"] == 86_400)
    assert day["n"] == 19, "18 reports of three hours, and the late one"
    assert len(rows_in(tables, "clean_broker_reports")) == 18 + 1 + 12


def test_windows_are_removed_after_their_retention_days(spark: SparkSession, tmp_path: Path) -> None:
    history, out = tmp_path / "history", tmp_path / "out"
    history_of(history, minutely(range(1)))
    ingested(spark, str(history), out)
    history_of(history, minutely(range(48, 49)), first=1000)
    tables = ingested(spark, str(history), out, keep_days=2)
    for name in INGESTED:
        for row in rows_in(tables, name):
            assert next(row[key] for key in ("start_ms", "hour_ms", "at_ms") if key in row) >= START_MS + 2 * DAY_MS
