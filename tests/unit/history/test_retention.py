from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.recorded import NOON_MS, kinds, put_file, record

from loadmanager.history.compaction import Retention
from loadmanager.history.files import HOUR_MS, Directory
from loadmanager.history.reader import History
from loadmanager.history.table_schemas import TABLES

HOURS = 5
NOW_MS = NOON_MS + HOURS * HOUR_MS


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    directory = Directory.of(str(tmp_path / "history"))
    for hour in range(HOURS):
        record(directory, hour + 1, "x", at_ms=NOON_MS + hour * HOUR_MS)
    return directory


def epochs(directory: Directory) -> list[int]:
    return sorted({epoch for epoch, _, _ in kinds(History(directory))})


def size_of(directory: Directory) -> int:
    return sum(file.size_bytes for table in TABLES for file in directory.list_files(table)[0])


def test_hours_beyond_the_maximum_age_are_deleted_with_their_folders(directory: Directory) -> None:
    Retention(max_age_s=2 * 3600).apply(directory, NOW_MS)
    assert epochs(directory) == [3, 4, 5]
    assert sorted(path.name for path in Path(directory.root).rglob("hour=*")) == ["hour=14", "hour=15", "hour=16"]


def test_oldest_hours_are_deleted_until_the_size_limit_holds(directory: Directory) -> None:
    limit = size_of(directory) // 2
    Retention(max_bytes=limit).apply(directory, NOW_MS)
    assert epochs(directory) == [4, 5]
    assert size_of(directory) <= limit


def test_newest_hour_is_never_deleted(directory: Directory) -> None:
    Retention(max_age_s=0, max_bytes=0).apply(directory, NOW_MS + 1000 * HOUR_MS)
    assert epochs(directory) == [5]


def test_nothing_is_deleted_without_limits(directory: Directory) -> None:
    Retention().apply(directory, NOW_MS + 1000 * HOUR_MS)
    assert epochs(directory) == [1, 2, 3, 4, 5]


def test_foreign_files_are_kept(directory: Directory) -> None:
    folder = put_file(Path(directory.root), b"damaged", hour=12).parent
    theirs = [folder / "notes.txt", Path(directory.root) / "other" / "0000000001-x.parquet", folder / ".hidden"]
    for path in theirs:
        path.parent.mkdir(exist_ok=True)
        path.write_text("theirs", encoding="utf-8")
    Retention(max_bytes=0).apply(directory, NOW_MS)
    assert all(path.exists() for path in theirs)
    assert epochs_left(directory) == [5]


def epochs_left(directory: Directory) -> list[int]:
    return [file.epoch for file in directory.list_files("events")[0]]


def test_abandoned_temporary_files_are_deleted_after_a_while(directory: Directory) -> None:
    folder = next(Path(directory.root).rglob("hour=16"))
    old, new = folder / ".tmp-old", folder / ".tmp-new"
    for path, age_s in ((old, 2 * 3600), (new, 60)):
        path.write_bytes(b"half")
        os.utime(path, ns=((NOW_MS - age_s * 1000) * 1_000_000,) * 2)
    Retention().apply(directory, NOW_MS)
    assert (old.exists(), new.exists()) == (False, True)
