"""Tables kept up with a history: in whatever order its files come, they are those of one batch over all of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import fs
from pyspark.sql import SparkSession
from support.builders import broker, report
from support.drawn_fleet import Drawn, Entries
from support.frames import HOUR_MS, START_MS
from support.plain_windows import Happened
from support.streamed import assert_as_in_one_batch

from loadmanager.core.recordable import recordable
from loadmanager.history.compaction import Compaction
from loadmanager.history.files import Directory
from loadmanager.history.packing import PackedFile, pack_entries
from loadmanager.history.rows import Entry, Event, Placed, Report
from loadmanager.pipeline import keeping_up, making, reading, writing
from loadmanager.pipeline.contents import Account
from loadmanager.pipeline.filesystems import _Hadoop
from loadmanager.pipeline.keeping_up import KeepingUp
from loadmanager.pipeline.known_files import KnownFiles
from loadmanager.pipeline.reading import HistoryTables
from loadmanager.pipeline.units import Grain, Unit
from loadmanager.pipeline.writing import Tables

DAY_MS = 24 * HOUR_MS
STEPS_A_NIGHT = 40


def drawn_nights(seed: int, nights: int) -> Entries:
    """What happens from before midnight on, in some nights; now and then a leader does not know that its term ended."""
    rng = np.random.default_rng(seed)
    drawn = Drawn(rng, START_MS - int(rng.integers(0, 1500)) * 1000, epoch=1)
    for night in range(nights):
        drawn.at_ms = max(drawn.at_ms, START_MS + night * DAY_MS - int(rng.integers(0, 1500)) * 1000)
        drawn._report(epoch=1)
        drawn.go_on(STEPS_A_NIGHT)
    return drawn.entries


def files_of(entries: Entries, rng: np.random.Generator) -> list[PackedFile]:
    """As leaders flush them, of which some are there twice."""
    files: list[PackedFile] = []
    at = 0
    while at < len(entries):
        flushed = entries[at : at + int(rng.integers(3, 20))]
        at += len(flushed)
        for epoch, own in groupby(flushed, key=lambda each: each.epoch):
            placed = [Placed(each.at_ms, epoch, each.sequence, entry_of(each)) for each in own]
            files += pack_entries(placed, "node", refused)
    twice = [each for each in files if rng.random() < 0.1]
    return [*files, *(PackedFile(each.path.replace("-node", "-other"), each.data, each.rows) for each in twice)]


def entry_of(each: Any) -> Entry:  # noqa: ANN401 - an entry of a drawn fleet
    if isinstance(each, Happened):
        return Event(each.kind, each.subject)
    loads = {f"{space}/0x{lower:08x}_0x{upper:08x}": load for (space, lower, upper), load in each.bundles.items()}
    return Report(broker(each.broker), recordable(report(loads, cpu=(each.cpu, 1.0))))


def refused(placed: Placed, error: Exception) -> None:
    raise AssertionError(placed) from error


class Kept:
    """Tables that are kept up with a history that grows, in rounds."""

    def __init__(self, spark: SparkSession, folder: Path, grain: Grain) -> None:
        self.spark, self.grain = spark, grain
        self.url, self.out = str(folder / "history"), str(folder / "tables")
        self.tables = Tables(spark, self.out)

    def add(self, files: Sequence[PackedFile]) -> None:
        for file in files:
            Directory.of(self.url).write(file.path, file.data)

    def take_in(self, to_ms: int | None = None, *, anew: bool = False) -> tuple[list[Unit], list[Unit]]:
        """Which units were cleaned, and which were averaged."""
        known = KnownFiles(Directory.of(self.out))
        history = HistoryTables(self.spark, self.url, to_ms=to_ms, known=known)
        keeping = KeepingUp(self.spark, self.tables, self.url, new_grain=self.grain, anew=anew)
        return keeping.ingest(history), keeping.average(history.range[1])

    def assert_as_in_one_batch(self, end_ms: int | None = None) -> None:
        assert_as_in_one_batch(self.tables, self.url, end_ms)


def in_rounds(files: Sequence[PackedFile], rounds: int, rng: np.random.Generator) -> Iterator[list[PackedFile]]:
    """In their order, but for one in six, which comes later."""
    ordered = sorted(files, key=lambda each: each.path.partition("/")[2])
    when = np.arange(len(ordered)) * rounds // len(ordered)
    is_late = rng.random(len(ordered)) < 1 / 6
    when[is_late] = rng.integers(when[is_late], rounds)
    for number in range(rounds):
        yield [file for file, at in zip(ordered, when, strict=True) if at == number]


def test_what_is_compacted_is_not_made_anew(spark: SparkSession, tmp_path: Path) -> None:
    kept = Kept(spark, tmp_path, "day")
    files = files_of(drawn_nights(5, nights=2), np.random.default_rng(5))
    kept.add([each for each in files if "-other" not in each.path])
    assert len(kept.take_in()[0]) >= 2
    directory, compaction = Directory.of(kept.url), Compaction()

    assert compaction.apply(directory, START_MS + 100 * DAY_MS).made > 0
    assert kept.take_in() == ([], [])

    now_ms = time.time_ns() // 1_000_000
    assert compaction.apply(directory, max(now_ms, START_MS) + 100 * DAY_MS).deleted > 0
    assert kept.take_in() == ([], [])
    kept.assert_as_in_one_batch()


@pytest.mark.parametrize("grain", ["day", "hour"])
@pytest.mark.parametrize("size", [1, 10**9], ids=["tasks of one", "one task"])
def test_in_whatever_order_files_come_the_tables_are_those_of_one_batch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grain: Grain, size: int
) -> None:
    for bounds in ("TASK_BYTES", "TASK_ROWS"):
        monkeypatch.setattr(making, bounds, (size, size))
    rng = np.random.default_rng(1)
    kept = Kept(spark, tmp_path, grain)
    for new in in_rounds(files_of(drawn_nights(1, 2), rng), 2, rng):
        kept.add(new)
        kept.take_in()
    kept.assert_as_in_one_batch()
    assert kept.take_in() == ([], [])


def test_on_a_filesystem_that_workers_do_not_reach_the_tables_are_the_same(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def through_hadoop(_: SparkSession, path: str) -> Directory:
        url = f"file://{path.removeprefix('file://')}"
        return Directory(fs.PyFileSystem(_Hadoop(spark, url)), url)

    for module in (writing, reading, keeping_up):
        monkeypatch.setattr(module, "directory_at", through_hadoop)
    (tmp_path / "tables").mkdir()
    rng = np.random.default_rng(3)
    kept = Kept(spark, tmp_path, "hour")
    for new in in_rounds(files_of(drawn_nights(3, 1), rng), 2, rng):
        kept.add(new)
        kept.take_in()
    kept.assert_as_in_one_batch()
    assert kept.take_in() == ([], [])
    assert (tmp_path / "tables" / "carried" / "_manifests").is_dir()


class KilledError(Exception):
    """The process is killed here."""


def test_killed_between_two_writes_the_next_one_leaves_what_one_batch_would(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time other files are there."""
    rng = np.random.default_rng(2)
    kept = Kept(spark, tmp_path, "day")
    names = ["clean_bundle_reports", "rejected_rows", "broker_windows"]
    rounds = in_rounds(files_of(drawn_nights(2, 1), rng), len(names) + 1, rng)
    whole = Tables._writing
    for name in names:

        def writing(self: Tables, table: str, killed_at: str = name) -> AbstractContextManager[Account]:
            if table == killed_at:
                raise KilledError
            return whole(self, table)

        kept.add(next(rounds))
        with monkeypatch.context() as patch:
            patch.setattr(Tables, "_writing", writing)
            with pytest.raises(KilledError):
                kept.take_in()
    kept.add(next(rounds))
    with monkeypatch.context() as patch:  # written, but not known to be
        patch.setattr(KeepingUp, "_end", raise_killed)
        with pytest.raises(KilledError):
            kept.take_in()
    kept.take_in()
    kept.assert_as_in_one_batch()


def raise_killed(*_: object) -> None:
    raise KilledError
