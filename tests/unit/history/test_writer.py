from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs
from structlog.testing import capture_logs
from support.recorded import NEVER, NOON_MS, SOON, Disk, a_report, a_writer, abandon, kinds, record, same
from support.waiting import eventually_sync, patience

from loadmanager.history import writer as history_writer
from loadmanager.history.compaction import Retention
from loadmanager.history.entry_rows import HistoryEvent, MoveRow
from loadmanager.history.files import HOUR_MS, Directory
from loadmanager.history.gaps import GAP, TERM_BEGAN, TERM_ENDED, find_gaps
from loadmanager.history.reader import History
from loadmanager.history.table_schemas import BROKER_REPORTS, BUNDLE_REPORTS, EVENTS, TABLES
from loadmanager.history.writer import NOT_RECORDED, HistoryWriter, WriterLimits


def files_below(directory: Directory) -> list[Path]:
    return sorted(path for path in Path(directory.root).rglob("*") if path.is_file())


def test_rows_are_read_back_in_order_and_bit_for_bit(directory: Directory) -> None:
    reports = [a_report(number, bundles=number) for number in range(5)]
    with a_writer(directory) as writer:
        writer.begin_term(3, NOON_MS)
        sequences = [writer.put(NOON_MS + number, report) for number, report in enumerate(reports)]
        sequences.append(writer.put(NOON_MS, HistoryEvent("x", "", {"usage": {"b": [1, 0.5]}})))
        assert writer.flush(patience())
    assert sequences == [1, 2, 3, 4, 5, 6]
    read = list(History(directory).reports())
    assert [(each.epoch, each.sequence, each.at_ms) for each in read] == [
        (3, number + 1, NOON_MS + number) for number in range(5)
    ]
    assert all(same(one, other) for one, other in zip(read, reports, strict=True))
    assert [row["body"] for row in History(directory).rows(EVENTS) if row["kind"] == "x"] == ['{"usage":{"b":[1,0.5]}}']


def test_nothing_is_recorded_outside_a_term(directory: Directory) -> None:
    with a_writer(directory) as writer:
        assert writer.put(NOON_MS, HistoryEvent("early")) == NOT_RECORDED
        writer.begin_term(1, NOON_MS)
        writer.end_term(NOON_MS)
        assert writer.put(NOON_MS, HistoryEvent("late")) == NOT_RECORDED
        assert writer.flush(patience())
    assert kinds(History(directory)) == [(1, 0, TERM_BEGAN), (1, 1, TERM_ENDED)]


def test_file_is_written_after_the_interval(directory: Directory) -> None:
    with a_writer(directory, SOON) as writer:
        writer.begin_term(1, NOON_MS)
        writer.put(NOON_MS, HistoryEvent("x"))
        eventually_sync(lambda: writer.figures.rows_written == 2)


def test_file_is_written_at_the_row_limit(directory: Directory) -> None:
    with a_writer(directory, WriterLimits(rows_per_file=4, flush_interval_s=1e6)) as writer:
        writer.begin_term(1, NOON_MS)
        writer.put(NOON_MS, a_report(bundles=3))
        eventually_sync(lambda: writer.figures.queue_rows == 0)
        assert len(files_below(directory)) == 3


def test_new_leader_continues_without_a_gap_after_an_ended_term(directory: Directory) -> None:
    record(directory, 1, "a", "b")
    record(directory, 2, "c", at_ms=NOON_MS + 60_000)
    history = History(directory)
    assert [kind for _, _, kind in kinds(history)] == [TERM_BEGAN, "a", "b", TERM_ENDED, TERM_BEGAN, "c", TERM_ENDED]
    assert find_gaps(history) == []


def test_crash_of_a_leader_is_a_gap_from_its_last_file_on(directory: Directory) -> None:
    writer = HistoryWriter(directory, "node-1:8080", NEVER)
    writer.start()
    writer.begin_term(1, NOON_MS)
    assert writer.flush(patience())
    writer.put(NOON_MS + 1000, HistoryEvent("written"))
    assert writer.flush(patience())
    writer.put(NOON_MS + 2000, HistoryEvent("lost"))
    abandon(writer)
    record(directory, 2, "after", at_ms=NOON_MS + 5000)
    history = History(directory)
    assert [kind for _, _, kind in kinds(history)] == [TERM_BEGAN, "written", TERM_BEGAN, "after", TERM_ENDED]
    (gap,) = find_gaps(history)
    assert (gap.epoch, gap.from_ms, gap.to_ms, gap.rows) == (2, NOON_MS + 1000, NOON_MS + 5000, None)
    assert "epoch 1 did not end its term" in gap.why


def flushed_writer(folder: Path) -> tuple[Disk, Directory, HistoryWriter]:
    disk = Disk()
    directory = disk.directory(folder / "history")
    writer = HistoryWriter(directory, "node-1:8080", NEVER)
    writer.start()
    writer.begin_term(1, NOON_MS)
    assert writer.flush(patience())
    return disk, directory, writer


def test_term_is_not_ended_before_all_its_rows_are_written(tmp_path: Path) -> None:
    disk, directory, writer = flushed_writer(tmp_path)
    disk.left = 1
    writer.put(NOON_MS, HistoryEvent("x"))
    writer.put(NOON_MS, MoveRow("began", "t/ns/0x0_0x1", "a", "b", "why"))
    writer.end_term(NOON_MS)
    eventually_sync(lambda: writer.figures.write_failures)
    abandon(writer)
    disk.left = None
    record(directory, 2, at_ms=NOON_MS + 60_000)
    (gap,) = find_gaps(History(directory))
    assert "epoch 1 did not end its term" in gap.why


def test_terms_recorded_elsewhere_are_a_gap(directory: Directory) -> None:
    record(directory, 1, "a")
    record(directory, 4, "b", at_ms=NOON_MS + 60_000)
    record(directory, 6, "c", at_ms=NOON_MS + 90_000)
    assert [gap.why for gap in find_gaps(History(directory))] == [
        "nothing was recorded in the epochs 2 to 3",
        "nothing was recorded in epoch 5",
    ]


def test_late_end_of_a_term_closes_the_gap(directory: Directory) -> None:
    with a_writer(directory) as slow:
        slow.begin_term(1, NOON_MS)
        assert slow.flush(patience())
        slow.put(NOON_MS + 1, HistoryEvent("late"))
        record(directory, 2, at_ms=NOON_MS + 60_000)
        assert len(find_gaps(History(directory))) == 1
        slow.end_term(NOON_MS + 2)
        assert slow.flush(patience())
    assert find_gaps(History(directory)) == []


def test_term_written_after_the_next_one_keeps_its_place(directory: Directory) -> None:
    with a_writer(directory) as slow:
        slow.begin_term(1, NOON_MS)
        record(directory, 2, at_ms=NOON_MS + 60_000)
        slow.end_term(NOON_MS + 1)
        assert slow.flush(patience())
    assert [epoch for epoch, _, _ in kinds(History(directory))] == [1, 1, 2, 2]


@pytest.mark.parametrize("epoch", [1, 5])
def test_history_of_another_cluster_is_not_mixed_in(directory: Directory, epoch: int) -> None:
    record(directory, 5, "theirs")
    before = {path: path.read_bytes() for path in files_below(directory)}
    with a_writer(directory) as writer:
        writer.begin_term(epoch, NOON_MS + 60_000)
        assert not writer.flush(0.1)
        assert "has rows of epoch 5 already" in writer.figures.last_error
        assert {path: path.read_bytes() for path in files_below(directory)} == before


def test_rows_beyond_the_queue_are_counted_and_marked_as_a_gap(directory: Directory) -> None:
    with a_writer(directory, WriterLimits(queue_rows=3, flush_interval_s=1e6)) as writer:
        writer.begin_term(1, NOON_MS)
        writer.put(NOON_MS + 1, HistoryEvent("a"))
        writer.put(NOON_MS + 2, a_report(bundles=3))
        writer.put(NOON_MS + 3, a_report(bundles=4))
        assert writer.figures.rows_lost == 9
        assert writer.flush(patience())
        writer.put(NOON_MS + 4, HistoryEvent("b"))
        assert writer.flush(patience())
    history = History(directory)
    assert kinds(history)[:4] == [(1, 0, TERM_BEGAN), (1, 1, "a"), (1, 4, GAP), (1, 5, "b")]
    (gap,) = find_gaps(history)
    assert (gap.from_ms, gap.to_ms, gap.rows) == (NOON_MS + 2, NOON_MS + 3, 9)


def test_queue_is_bounded_by_bytes(directory: Directory) -> None:
    with a_writer(directory, WriterLimits(queue_bytes=50_000, flush_interval_s=1e6)) as writer:
        writer.begin_term(1, NOON_MS)
        writer.put(NOON_MS, a_report(bundles=300))
        assert writer.figures.rows_lost == 301


def test_rows_lost_at_the_end_are_marked_before_the_end_of_the_term(directory: Directory) -> None:
    with a_writer(directory, WriterLimits(queue_rows=1, flush_interval_s=1e6)) as writer:
        writer.begin_term(1, NOON_MS)
        writer.put(NOON_MS, HistoryEvent("lost"))
        writer.end_term(NOON_MS + 1)
        assert writer.flush(patience())
    assert [kind for _, _, kind in kinds(History(directory))] == [TERM_BEGAN, GAP, TERM_ENDED]


def test_full_disk_loses_rows_without_blocking_and_keeps_written_ones(tmp_path: Path) -> None:
    disk = Disk()
    directory = disk.directory(tmp_path / "history")
    limits = WriterLimits(queue_rows=20, rows_per_file=5, flush_interval_s=0.01, retry_s=0.01)
    with a_writer(directory, limits) as writer:
        writer.begin_term(1, NOON_MS)
        writer.put(NOON_MS, HistoryEvent("before"))
        assert writer.flush(patience())
        disk.is_full = True
        for number in range(100):
            writer.put(NOON_MS + number, HistoryEvent("during"))
        eventually_sync(lambda: writer.figures.write_failures > 1)
        figures = writer.figures
        assert (figures.rows_lost, figures.queue_rows) == (80, 20)
        assert "No space left on device" in figures.last_error
        assert [kind for _, _, kind in kinds(History(directory))] == [TERM_BEGAN, "before"]
        disk.is_full = False
        assert writer.flush(patience())
        assert writer.figures.last_error == ""
        writer.put(NOON_MS + 1000, HistoryEvent("after"))
        assert writer.flush(patience())
    read = [kind for _, _, kind in kinds(History(directory))]
    assert read == [TERM_BEGAN, "before", *["during"] * 20, GAP, "after", TERM_ENDED]
    assert [(gap.rows, gap.to_ms) for gap in find_gaps(History(directory))] == [(80, NOON_MS + 99)]
    assert not [path for path in files_below(directory) if path.name.startswith(".")]


def test_crash_within_a_flush_is_a_gap_from_its_first_row_on(tmp_path: Path) -> None:
    disk, directory, writer = flushed_writer(tmp_path)
    writer.put(NOON_MS + 1000, a_report())
    writer.put(NOON_MS + 9000, HistoryEvent("x"))
    disk.left = 1
    assert not writer.flush(0.2)
    abandon(writer)
    disk.left = None
    record(directory, 2, at_ms=NOON_MS + 60_000)
    assert [gap.from_ms for gap in find_gaps(History(directory))] == [NOON_MS + 1000]


def test_temporary_files_are_not_read(directory: Directory) -> None:
    record(directory, 1, "a")
    (path, *_) = [path for path in files_below(directory) if "events" in path.parts]
    path.with_name(f".tmp-{path.name}").write_bytes(b"half a fi")
    path.with_name("_SUCCESS").write_bytes(b"")
    assert len(kinds(History(directory))) == 3


def test_unwritable_entry_loses_only_itself_and_is_marked(directory: Directory) -> None:
    with a_writer(directory) as writer:
        writer.begin_term(1, NOON_MS)
        writer.put(NOON_MS, HistoryEvent("a"))
        writer.put(NOON_MS + 1, HistoryEvent("bad", "", {"x": object()}))
        writer.put(NOON_MS + 2, HistoryEvent("b"))
        assert writer.flush(patience())
        writer.end_term(NOON_MS + 3)
        assert writer.flush(patience())
    history = History(directory)
    assert [kind for _, _, kind in kinds(history)] == [TERM_BEGAN, "a", "b", GAP, TERM_ENDED]
    assert [(gap.from_ms, gap.rows) for gap in find_gaps(history)] == [(NOON_MS + 1, 1)]


def test_rows_are_filed_by_the_hour_of_their_time(directory: Directory) -> None:
    with a_writer(directory) as writer:
        writer.begin_term(1, NOON_MS)
        for hour in (0, 1, 1, 13):
            writer.put(NOON_MS + hour * HOUR_MS, a_report(hour + 1))
        assert writer.flush(patience())
    hours = [path.parent.name for path in files_below(directory) if BROKER_REPORTS in path.parts]
    assert hours == ["hour=12", "hour=13", "hour=01"]


def test_order_survives_a_clock_set_back(directory: Directory) -> None:
    with a_writer(directory) as writer:
        writer.begin_term(1, NOON_MS)
        for number, hour in enumerate((1, 0, 1, 0)):
            writer.put(NOON_MS + hour * HOUR_MS, a_report(number))
        assert writer.flush(patience())
    read = list(History(directory).reports())
    assert [each.sequence for each in read] == [1, 2, 3, 4]
    assert all(same(each, a_report(number)) for number, each in enumerate(read))


def test_node_that_leads_twice_writes_both_terms(directory: Directory) -> None:
    with a_writer(directory) as writer:
        for epoch in (1, 2):
            writer.begin_term(epoch, NOON_MS + epoch)
            writer.put(NOON_MS + epoch, HistoryEvent("x"))
        assert writer.flush(patience())
    assert find_gaps(History(directory)) == []
    assert [epoch for epoch, _, _ in kinds(History(directory))] == [1, 1, 1, 2, 2, 2]


def test_old_hours_are_deleted_after_a_flush(directory: Directory) -> None:
    record(directory, 1, "old", at_ms=NOON_MS)
    now_ms = time.time_ns() // 1_000_000
    writer = HistoryWriter(directory, "node-1:8080", SOON, Retention(max_age_s=7200))
    writer.start()
    writer.begin_term(2, now_ms)
    eventually_sync(lambda: {epoch for epoch, _, _ in kinds(History(directory))} == {2})
    assert writer.close(now_ms)


def test_close_on_a_full_disk_times_out_and_reports_missing_rows(tmp_path: Path) -> None:
    disk = Disk()
    disk.is_full = True
    writer = HistoryWriter(disk.directory(tmp_path), "node-1:8080", SOON)
    writer.start()
    writer.begin_term(1, NOON_MS)
    assert not writer.close(NOON_MS, timeout_s=0.1)
    assert writer.figures.queue_rows == 2


@pytest.mark.parametrize("kind", ["memory", "file url"])
def test_any_arrow_filesystem_works(tmp_path: Path, kind: str) -> None:
    made = {
        "memory": lambda: Directory(fs._MockFileSystem(), "root/history"),
        "file url": lambda: Directory.of(f"file://{tmp_path}/history"),
    }
    directory = made[kind]()
    with a_writer(directory) as writer:
        writer.begin_term(1, NOON_MS)
        writer.put(NOON_MS, a_report(1))
        assert writer.flush(patience())
    record(directory, 2, at_ms=NOON_MS + 1)
    history = History(directory)
    assert [same(each, a_report(1)) for each in history.reports()] == [True]
    assert history.info(BUNDLE_REPORTS).rows == 3
    assert len(kinds(history, from_ms=NOON_MS, to_ms=NOON_MS + 1)) == len(kinds(history)) - 2
    files = {table: directory.list_files(table) for table in TABLES}
    Retention(max_bytes=0).apply(directory, NOON_MS)
    assert {table: directory.list_files(table) for table in TABLES} == files
    assert (kind == "memory") != (tmp_path / "history" / EVENTS).is_dir()


class Faulty(Directory):
    """A directory to which an attempt to write fails while `faults` has an error for it."""

    faults: Iterator[Exception | None] = iter(())

    def write(self, path: str, data: pa.Buffer) -> None:
        fault = next(self.faults, None)
        if fault is not None:
            raise fault
        super().write(path, data)


@pytest.fixture
def faulty(tmp_path: Path) -> Faulty:
    directory = Directory.of(str(tmp_path / "history"))
    return Faulty(directory.filesystem, directory.root)


def test_unexpected_error_is_logged_once_and_its_rows_are_written(faulty: Faulty) -> None:
    faulty.faults = iter([KeyError("who knows"), KeyError("who knows")])
    with capture_logs() as logs, a_writer(faulty, SOON) as writer:
        writer.begin_term(1, NOON_MS)
        writer.put(NOON_MS, HistoryEvent("x"))
        assert writer.flush(patience())
        assert (writer.figures.write_failures, writer.figures.rows_lost) == (2, 0)
        assert not writer.figures.is_failing
    assert [kind for _, _, kind in kinds(History(faulty))] == [TERM_BEGAN, "x", TERM_ENDED]
    (shown,) = [entry for entry in logs if entry["event"] == "recording_failed"]
    assert isinstance(shown["exc_info"], KeyError)
    assert shown["log_level"] == "error"


def test_rows_that_fail_repeatedly_are_dropped_and_marked(faulty: Faulty) -> None:
    faulty.faults = iter([None, *(KeyError(number) for number in range(3))])
    with a_writer(faulty, SOON) as writer:
        writer.begin_term(1, NOON_MS)
        assert writer.flush(patience())
        writer.put(NOON_MS + 1, HistoryEvent("lost"))
        eventually_sync(lambda: writer.figures.rows_lost == 1)
        eventually_sync(lambda: writer.figures.queue_rows == 0)
        assert writer.figures.is_failing, "until something is written again"
        writer.put(NOON_MS + 2, HistoryEvent("kept"))
        assert writer.flush(patience())
        assert not writer.figures.is_failing
    history = History(faulty)
    assert [kind for _, _, kind in kinds(history)] == [TERM_BEGAN, GAP, "kept", TERM_ENDED]
    (gap,) = find_gaps(history)
    assert gap.rows == 1
    assert "could not be written: KeyError(2)" in gap.why


def test_unexpected_history_does_not_stop_recording(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    def surprise(*_: object) -> None:
        raise KeyError("who knows")

    monkeypatch.setattr(history_writer, "find_end", surprise)
    record(directory, 1, "a")
    assert [kind for _, _, kind in kinds(History(directory))] == [TERM_BEGAN, "a", TERM_ENDED]


def test_failing_retention_does_not_stop_recording(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    def surprise(*_: object) -> int:
        raise KeyError("who knows")

    monkeypatch.setattr(Retention, "apply", surprise)
    monkeypatch.setattr(history_writer, "_SWEEP_INTERVAL_S", 0.0)
    writer = HistoryWriter(directory, "node-1:8080", SOON, Retention(1.0, None))
    writer.start()
    for epoch in (1, 2):
        writer.begin_term(epoch, NOON_MS + epoch)
        assert writer.flush(patience())
        eventually_sync(lambda epoch=epoch: writer.figures.write_failures >= epoch)  # type: ignore[misc]
    assert writer.figures.is_failing
    assert writer.close(NOON_MS + 3, timeout_s=patience())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_ended_thread_is_shown_as_failing(faulty: Faulty) -> None:
    faulty.faults = iter([SystemExit()])  # type: ignore[list-item]  # what no thread survives
    writer = HistoryWriter(faulty, "node-1:8080", SOON)
    assert not writer.figures.is_failing
    writer.start()
    writer.begin_term(1, NOON_MS)
    eventually_sync(lambda: writer.figures.is_failing)
    assert writer.figures.last_error == ""
    assert not writer.close(NOON_MS, timeout_s=0.1)
