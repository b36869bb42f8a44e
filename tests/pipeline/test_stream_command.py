"""`loadmanager pipeline stream`: once, or until it is told to stop; and again, with nothing lost or counted twice."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession
from support.frames import files_of, rows_of
from support.ingested import assert_same, ingested, write_minutes
from support.processes import Processes
from support.waiting import eventually_sync

from loadmanager.cli import main
from loadmanager.history.table_schemas import BUNDLE_REPORTS
from loadmanager.pipeline.delta import Tables

TIMEOUT_S = 120
Stream = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def stream(
    spark_of_commands: SparkSession,  # noqa: ARG001 - it is there while the command is carried out
    tables: Tables,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Stream]:
    """Carries out the command here; its exit code, and what it said line by line."""
    handler = signal.getsignal(signal.SIGTERM)

    def carried_out(history: Path, *options: object) -> tuple[int, list[str]]:
        arguments = ["pipeline", "stream", history, "--out", tables, *options]
        monkeypatch.setattr(sys, "argv", ["loadmanager", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, capsys.readouterr().err.splitlines()

    yield carried_out
    signal.signal(signal.SIGTERM, handler)


@contextmanager
def once(condition: Callable[[], object], then: Callable[[], object]) -> Iterator[None]:
    """While the command runs: wait for the condition, then do something."""
    failures: list[Exception] = []

    def wait() -> None:
        try:
            eventually_sync(condition, least_s=TIMEOUT_S)
        except AssertionError as error:
            failures.append(error)
        then()

    waiting = threading.Thread(target=wait)
    waiting.start()
    yield
    waiting.join()
    assert not failures


def told(number: signal.Signals) -> Callable[[], object]:
    return lambda: os.kill(os.getpid(), number)


MADE = "made the windows of 1 hours"


def is_alive(process: psutil.Process) -> bool:
    """Not so one that has ended and that nobody has asked how."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_stop_ends_with_the_open_batch(spark: SparkSession, stream: Stream, tables: Tables, tmp_path: Path) -> None:
    history = tmp_path / "history"

    def go_on() -> None:
        write_minutes(history, range(2, 4), first=50)
        try:
            eventually_sync(lambda: tables.rows("clean_broker_reports") == 8, least_s=TIMEOUT_S)
        finally:
            told(signal.SIGTERM)()

    write_minutes(history, range(2), first=0)
    with once(lambda: tables.has("broker_windows"), go_on):
        code, said = stream(history, "--every", 1)
    assert (code, set(said)) == (0, {MADE})
    assert 2 <= len(said) <= 3, "a batch may begin between two files"
    assert stream(history) == (0, [])
    assert_same(tables, ingested(spark, str(history), tmp_path / "once"))


def test_killed_batch_is_repeated(spark: SparkSession, stream: Stream, tables: Tables, tmp_path: Path) -> None:
    history = tmp_path / "history"
    write_minutes(history, range(2), first=0)
    arguments = ["-m", "loadmanager", "pipeline", "stream", str(history), "--out", str(tables), "--every", "1"]
    settings = ["--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2"]
    with Processes(tmp_path) as processes:
        started = processes.start("stream", [*arguments, *settings], tmp_path / "log")
        eventually_sync(lambda: tables.has("clean_broker_reports"), least_s=TIMEOUT_S)
        others = psutil.Process(started).children(recursive=True)
        assert others
        processes.signal("stream", signal.SIGKILL)
        eventually_sync(lambda: not any(map(is_alive, others)), least_s=TIMEOUT_S)
    assert not tables.has("broker_windows")
    write_minutes(history, range(2, 3), first=50)
    assert stream(history) == (0, [MADE])
    assert stream(history) == (0, [])
    assert_same(tables, ingested(spark, str(history), tmp_path / "once"))


def test_bad_file_ends_the_stream_or_is_left_out_and_recorded(stream: Stream, tables: Tables, tmp_path: Path) -> None:
    history = tmp_path / "history"
    write_minutes(history, range(2), first=0)
    write_minutes(history, range(2, 4), first=50)
    bad = files_of(history, BUNDLE_REPORTS)[0]
    bad.write_bytes(bad.read_bytes()[:-10])
    code, said = stream(history)
    assert code == 1
    assert any(f"{bad}: not a Parquet file" in line for line in said)
    assert stream(history, "--leave-out-bad-files") == (0, [MADE])
    (row,) = rows_of(tables.read("rejected_rows"))
    assert (row["reason"], str(bad).endswith(row["file"])) == ("bad_file", True)


def test_missing_history_is_named(stream: Stream, tmp_path: Path) -> None:
    code, said = stream(tmp_path / "nowhere", "--every", 1)
    assert code == 2
    assert said == [f"loadmanager: HISTORY {tmp_path}/nowhere: there is no such directory"]
