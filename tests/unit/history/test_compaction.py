from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import structlog.testing
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs
from support.deep import at_most
from support.recorded import NOON_MS, SOON, a_report
from support.waiting import eventually_sync, patience

from loadmanager.history import compaction
from loadmanager.history.compaction import COMPACTED_KEY, Compaction, Retention, originals_of
from loadmanager.history.entry_rows import HistoryEvent, Placed
from loadmanager.history.files import HOUR_MS, Directory, HistoryFile, path_of
from loadmanager.history.gaps import IMPORTED, find_end
from loadmanager.history.reader import History
from loadmanager.history.row_packer import pack_entries
from loadmanager.history.table_schemas import BUNDLE_REPORTS, EVENTS, TABLES
from loadmanager.history.writer import HistoryWriter

MINUTE_MS = 60_000
LATER_MS = NOON_MS + 4 * HOUR_MS
"""Two hours after the last one of `an_hour` has ended, and more."""
KEPT_MS = 6 * HOUR_MS

Seen = dict[str, list[dict[str, Any]]]


def flush(directory: Directory, entries: Iterable[tuple[int, int]], epoch: int = 1, node: str = "node-1") -> None:
    """A file of each table and hour with a report and an event for each sequence and time, as a leader writes them."""
    placed = []
    for sequence, at_ms in entries:
        placed.append(Placed(at_ms, epoch, 2 * sequence, a_report(sequence % 3)))
        placed.append(Placed(at_ms, epoch, 2 * sequence + 1, HistoryEvent("x", str(sequence))))
    for file in pack_entries(placed, node, refused):
        directory.write(file.path, file.data)


def refused(placed: Placed, error: Exception) -> None:
    raise AssertionError(placed) from error


def record(directory: Directory, minutes: Iterable[int], first: int = 0, epoch: int = 1) -> None:
    """A flush for each minute."""
    for sequence, minute in enumerate(minutes, first):
        flush(directory, [(sequence, NOON_MS + minute * MINUTE_MS)], epoch)


def seen(directory: Directory) -> Seen:
    return {table: list(History(directory).rows(table)) for table in TABLES}


def files_of(directory: Directory, table: str = EVENTS, *, with_originals: bool = False) -> list[HistoryFile]:
    return directory.list_files(table, with_originals=with_originals)[0]


def age(directory: Directory, by_ms: int) -> None:
    """All files are older by so much."""
    for path in Path(directory.root).rglob("*.parquet"):
        ns = path.stat().st_mtime_ns - by_ms * 1_000_000
        os.utime(path, ns=(ns, ns))


def compact(directory: Directory, at_ms: int, compaction: Compaction | None = None) -> tuple[int, int]:
    """Numbers of files that a pass has written and deleted."""
    before = set(Path(directory.root).rglob("*.parquet"))
    (compaction or Compaction()).apply(directory, at_ms)
    after = set(Path(directory.root).rglob("*.parquet"))
    return len(after - before), len(before - after)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
def an_hour(directory: Directory) -> Directory:
    record(directory, range(0, 60, 5))
    return directory


def test_finished_hour_becomes_one_file_per_table_with_the_same_rows(an_hour: Directory) -> None:
    before = seen(an_hour)

    assert compact(an_hour, LATER_MS) == (3, 0)

    assert seen(an_hour) == before
    assert [len(files_of(an_hour, table)) for table in before if before[table]] == [1, 1, 1]
    assert len(files_of(an_hour, with_originals=True)) == 13
    assert compact(an_hour, LATER_MS) == (0, 0)


def test_originals_are_deleted_six_hours_after_compaction(an_hour: Directory) -> None:
    before, since = seen(an_hour), now_ms()
    Compaction().apply(an_hour, LATER_MS)

    assert compact(an_hour, since + KEPT_MS - MINUTE_MS)[1] == 0
    assert compact(an_hour, now_ms() + KEPT_MS)[1] == 36

    assert seen(an_hour) == before
    assert len(files_of(an_hour, with_originals=True)) == 1


def test_listed_originals_stay_readable_until_deletion(an_hour: Directory) -> None:
    listed = files_of(an_hour, BUNDLE_REPORTS)
    history, before = History(an_hour), seen(an_hour)[BUNDLE_REPORTS]
    Compaction().apply(an_hour, LATER_MS)
    Compaction().apply(an_hour, now_ms() + HOUR_MS)

    assert [row for file in listed for row in history.open(file).read().to_pylist()] == before


def test_original_replaced_since_is_not_deleted(an_hour: Directory) -> None:
    Compaction().apply(an_hour, LATER_MS)
    Path(files_of(an_hour, with_originals=True)[-1].path).write_bytes(b"another one")

    assert compact(an_hour, now_ms() + KEPT_MS)[1] == 35


def test_hour_that_may_still_be_written_is_skipped(an_hour: Directory) -> None:
    assert compact(an_hour, NOON_MS + 3 * HOUR_MS - 1)[0] == 0
    assert compact(an_hour, NOON_MS + 3 * HOUR_MS)[0] == 3


def test_late_rows_are_compacted_with_the_compacted_file(an_hour: Directory) -> None:
    Compaction().apply(an_hour, LATER_MS)
    record(an_hour, [59], first=12)
    before = seen(an_hour)
    assert len(files_of(an_hour)) == 2

    assert compact(an_hour, LATER_MS)[0] == 3
    assert seen(an_hour) == before
    assert compact(an_hour, now_ms() + KEPT_MS)[1] == 36 + 3 + 3
    assert (seen(an_hour), len(files_of(an_hour, with_originals=True))) == (before, 1)


@pytest.mark.parametrize("epoch", [IMPORTED, 1])
def test_imported_hours_are_skipped(directory: Directory, epoch: int) -> None:
    record(directory, [0, 1], epoch=epoch)
    assert compact(directory, LATER_MS)[0] == (0 if epoch == IMPORTED else 3)


def test_files_with_overlapping_sequences_are_skipped(directory: Directory) -> None:
    flush(directory, [(0, NOON_MS), (1, NOON_MS), (2, NOON_MS)])
    flush(directory, [(1, NOON_MS)], node="node-2")
    before = seen(directory)
    assert (compact(directory, LATER_MS)[0], seen(directory)) == (0, before)


def test_hours_with_interleaved_sequences_are_skipped(directory: Directory) -> None:
    record(directory, [0, 61, 1, 62])
    before = seen(directory)
    assert (compact(directory, LATER_MS)[0], seen(directory)) == (0, before)


@pytest.mark.parametrize("damage", [b"", b"no Parquet", None])
def test_hour_with_a_damaged_file_is_skipped_and_logged_once(an_hour: Directory, damage: bytes | None) -> None:
    path = Path(files_of(an_hour)[3].path)
    content = path.read_bytes()
    path.write_bytes(content[:4] + b"\xff" * 40 + content[44:] if damage is None else damage)
    opened = list[str]()

    class Noting(Directory):
        def open(self, path: str) -> pa.NativeFile:
            opened.append(path)
            return super().open(path)

    one, noting = Compaction(), Noting(an_hour.filesystem, an_hour.root)
    with structlog.testing.capture_logs() as logs:
        assert compact(noting, LATER_MS, one)[0] == 2
        opened.clear()
        assert [compact(noting, LATER_MS, one)[0] for _ in range(2)] == [0, 0]
    assert opened == []

    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == ["history_hour_not_compacted"]
    assert len(files_of(an_hour)) == 12


def test_originals_are_kept_while_the_compacted_file_is_damaged(an_hour: Directory) -> None:
    before = seen(an_hour)
    Compaction().apply(an_hour, LATER_MS)
    (compacted,) = files_of(an_hour)
    Path(compacted.path).write_bytes(b"damaged")

    assert compact(an_hour, now_ms() + KEPT_MS)[1] == 24

    Path(compacted.path).unlink()
    assert seen(an_hour)[EVENTS] == before[EVENTS]


def test_file_deleted_during_compaction_is_no_error(an_hour: Directory) -> None:
    class Leaving(Directory):
        def open(self, path: str) -> pa.NativeFile:
            raise FileNotFoundError(path)

    with structlog.testing.capture_logs() as logs:
        assert compact(Leaving(an_hour.filesystem, an_hour.root), LATER_MS) == (0, 0)
    assert logs == []


def test_incomplete_compacted_file_is_not_written(an_hour: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = compaction._parts
    monkeypatch.setattr(compaction, "_parts", lambda *given: (each.slice(1) for each in parts(*given)))
    assert compact(an_hour, LATER_MS)[0] == 0


def test_originals_of_unknown_modification_time_are_kept(an_hour: Directory) -> None:
    class Timeless(Directory):
        def _file(self, table: str, info: fs.FileInfo) -> HistoryFile | None:
            file = super()._file(table, info)
            return None if file is None else replace(file, mtime_ns=0)

    Compaction().apply(an_hour, LATER_MS)
    timeless = Timeless(an_hour.filesystem, an_hour.root)
    assert compact(timeless, now_ms() + 2 * KEPT_MS)[1] == 0


def test_files_of_an_older_schema_are_skipped(an_hour: Directory) -> None:
    for file in files_of(an_hour):
        pq.write_table(pq.read_table(file.path).drop_columns(["subject"]), file.path)
    assert compact(an_hour, LATER_MS)[0] == 2
    assert len(files_of(an_hour)) == 12


def test_end_of_the_history_is_unchanged(directory: Directory) -> None:
    record(directory, [0, 1])
    before = find_end(History(directory), 2, LATER_MS)
    assert before is not None
    Compaction().apply(directory, LATER_MS)
    assert find_end(History(directory), 2, LATER_MS) == before


def test_retention_deletes_originals_with_their_compacted_file(an_hour: Directory) -> None:
    record(an_hour, [300], first=20)
    Compaction().apply(an_hour, LATER_MS)
    Retention(max_age_s=3600).apply(an_hour, NOON_MS + 9 * HOUR_MS)
    assert [file.hour_ms for file in files_of(an_hour, with_originals=True)] == [NOON_MS + 5 * HOUR_MS]


def test_node_named_compacted_makes_no_compacted_file() -> None:
    assert "-compacted_.parquet" in path_of(EVENTS, NOON_MS, 1, (0, 9), "compacted")


def test_interrupted_pass_is_continued_by_the_next(an_hour: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "_PASS_S", -1.0)
    assert [compact(an_hour, LATER_MS)[0] for _ in range(4)] == [1, 1, 1, 0]


def test_row_groups_have_a_limited_size(an_hour: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "_ROWS_TOGETHER", 4)
    before = seen(an_hour)
    Compaction().apply(an_hour, LATER_MS)
    metadata = pq.read_metadata(files_of(an_hour)[0].path)
    assert [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)] == [4, 4, 4]
    assert seen(an_hour) == before


def test_compacted_file_lists_its_originals(an_hour: Directory) -> None:
    before = files_of(an_hour)
    Compaction().apply(an_hour, LATER_MS)
    originals = originals_of(pq.read_schema(files_of(an_hour)[0].path).metadata)
    assert [(each.name, each.size_bytes, each.mtime_ns) for each in originals] == [
        (each.name, each.size_bytes, each.mtime_ns) for each in before
    ]
    assert [each.last_ms for each in originals] == [NOON_MS + minute * MINUTE_MS for minute in range(0, 60, 5)]
    assert originals_of(None) == originals_of({b"other": b"x"}) == ()
    assert COMPACTED_KEY.startswith(b"loadmanager.")


def test_writer_compacts_after_a_flush(an_hour: Directory) -> None:
    before = seen(an_hour)[EVENTS]
    writer = HistoryWriter(an_hour, "node-1:8080", SOON, compaction=Compaction())
    writer.start()
    writer.begin_term(2, now_ms())
    eventually_sync(lambda: len(an_hour.list_files(BUNDLE_REPORTS)[0]) == 1)
    assert writer.close(now_ms(), timeout_s=patience())
    assert [row for row in seen(an_hour)[EVENTS] if row["epoch"] == 1] == before


class KilledError(BaseException):
    """The process ends here."""


class Killed(Directory):
    """A directory of a process that is killed at a write or a deletion: before it, in the middle of it, or after it."""

    def __init__(self, there: Directory, at: int, how: str) -> None:
        super().__init__(there.filesystem, there.root)
        self._left, self._how = at, how

    def write(self, path: str, data: pa.Buffer) -> None:
        if self._left == 0 and self._how == "in the middle":
            target = Path(self.root) / path
            (target.parent / f".tmp-{target.name}").write_bytes(data.to_pybytes()[: data.size // 2])
        self._step(lambda: super(Killed, self).write(path, data))

    def delete(self, path: str) -> None:
        self._step(lambda: super(Killed, self).delete(path))

    def _step(self, act: Any) -> None:  # noqa: ANN401 - whatever it does
        if self._left == 0 and self._how != "after":
            raise KilledError
        act()
        if self._left == 0:
            raise KilledError
        self._left -= 1


@at_most(50)
@given(
    minutes=st.lists(st.integers(0, 179), min_size=1, max_size=12).map(sorted),
    epochs=st.lists(st.integers(0, 2), min_size=12, max_size=12).map(sorted),
    kills=st.lists(st.tuples(st.integers(0, 8), st.sampled_from(["before", "in the middle", "after"])), max_size=4),
    ages=st.lists(st.sampled_from([0, KEPT_MS]), min_size=5, max_size=5),
)
def test_readers_see_the_same_rows_after_a_kill_at_any_step(
    tmp_path_factory: pytest.TempPathFactory,
    minutes: Sequence[int],
    epochs: Sequence[int],
    kills: Sequence[tuple[int, str]],
    ages: Sequence[int],
) -> None:
    directory = Directory.of(str(tmp_path_factory.mktemp("drawn")))
    for sequence, (minute, epoch) in enumerate(zip(minutes, epochs, strict=False)):
        flush(directory, [(sequence, NOON_MS + minute * MINUTE_MS)], epoch)
    before = seen(directory)
    for (at, how), by_ms in zip(kills, ages, strict=False):
        age(directory, by_ms)
        with suppress(KilledError):
            Compaction().apply(Killed(directory, at, how), max(now_ms(), LATER_MS + 2 * HOUR_MS))
        assert seen(directory) == before
    for _ in range(2):
        age(directory, KEPT_MS)
        Compaction().apply(directory, max(now_ms(), LATER_MS + 2 * HOUR_MS))
        assert seen(directory) == before
    hours = {(epoch, minute // 60) for epoch, minute in zip(epochs, minutes, strict=False) if epoch != IMPORTED}
    assert len([file for file in files_of(directory, with_originals=True) if file.epoch != IMPORTED]) == len(hours)
