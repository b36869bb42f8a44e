"""What is known of the history's files outlives a run, and holds for these very files alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from loadmanager.history.files import HOUR_MS, Directory, HistoryFile
from loadmanager.history.table_schemas import BUNDLE_REPORTS
from loadmanager.pipeline.known_files import KNOWN_FILES, KnownFiles, Look

FILE = HistoryFile(BUNDLE_REPORTS, "/h/bundle_reports/a.parquet", HOUR_MS, 1, 0, 9, 100, 5)
OTHER = replace(FILE, path="/h/bundle_reports/b.parquet")
LOOKS = [
    Look((HOUR_MS, 2 * HOUR_MS - 1)),
    Look((0, HOUR_MS), (("topics", "int32 as INT32"), ("sessions", "int32 as INT32"))),
    Look(None),
    Look(None, damage="cannot be read: a page"),
]


@pytest.mark.parametrize("look", LOOKS)
def test_what_was_found_is_there_for_the_next_one(tmp_path: Path, look: Look) -> None:
    directory = Directory.of(str(tmp_path))
    known = KnownFiles(directory)
    assert known.find(FILE) is None
    known.remember(FILE, look)
    known.keep()
    known = KnownFiles(directory)
    assert known.find(FILE) == look
    assert known.find(replace(FILE, size_bytes=101)) is None
    assert known.find(replace(FILE, mtime_ns=6)) is None


def test_files_that_are_gone_are_forgotten_and_what_cannot_be_read_is_nothing(tmp_path: Path) -> None:
    directory = Directory.of(str(tmp_path))
    known = KnownFiles(directory)
    for file in (FILE, OTHER):
        known.remember(file, LOOKS[0])
    known.keep()
    known.forget_others("/h/bundle_reports", {OTHER.path})
    known.forget_others("/h/events", set())
    known.keep()
    known = KnownFiles(directory)
    assert (known.find(FILE), known.find(OTHER)) == (None, LOOKS[0])
    (tmp_path / KNOWN_FILES).write_bytes(b"PAR1, not really")
    assert KnownFiles(directory).find(OTHER) is None


def test_nothing_is_written_where_nothing_is_new(tmp_path: Path) -> None:
    known = KnownFiles(Directory.of(str(tmp_path)))
    known.keep()
    assert not (tmp_path / KNOWN_FILES).exists()
    KnownFiles().keep()


@pytest.mark.parametrize(
    ("times", "in_hour"),
    [
        ((HOUR_MS, 2 * HOUR_MS - 1), (HOUR_MS, 2 * HOUR_MS - 1)),
        ((HOUR_MS - 1, HOUR_MS + 5), (HOUR_MS, HOUR_MS + 5)),
        ((HOUR_MS + 5, 9 * HOUR_MS), (HOUR_MS + 5, 2 * HOUR_MS - 1)),
        ((0, 5), None),
        (None, None),
    ],
)
def test_rows_of_other_hours_than_the_folder_s_are_strays(
    times: tuple[int, int] | None, in_hour: tuple[int, int] | None
) -> None:
    look = Look(times)
    assert look.times_in_hour(FILE) == in_hour
    assert look.has_strays(FILE) is (times != in_hour)
