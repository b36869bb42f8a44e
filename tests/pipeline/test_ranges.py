"""Ranges that executors read, beside the same read in this process."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.ranges_here import RangesHere
from support.recorded import NOON_MS, a_writer
from support.recorded_fleet import MINUTE_MS, record_fleet
from support.waiting import patience

from loadmanager.errors import HistoryFileError
from loadmanager.history.entry_rows import HistoryEvent
from loadmanager.history.files import HOUR_MS, Directory, HistoryFile
from loadmanager.history.reader import History, OnFault
from loadmanager.history.table_schemas import BROKER_REPORTS, BUNDLE_REPORTS, EVENTS
from loadmanager.lab.simulate.recorded_world import RecordedRange
from loadmanager.lab.simulate.scenario import parse_as
from loadmanager.lab.whatif.recorded_ranges import Stretch, read_range
from loadmanager.pipeline import ranges as ranges_module
from loadmanager.pipeline.history_tables import ENGINE_ERRORS, cause_of
from loadmanager.pipeline.ranges import Outline, Ranges, digest_of
from loadmanager.pipeline.whatif_file import WhatIf
from loadmanager.pipeline.whatif_plan import find_stretches, plan, play

HALVES = [Stretch(number, NOON_MS + number * HOUR_MS, NOON_MS + (number + 1) * HOUR_MS) for number in range(2)]
"""A stretch for each hour of the history."""


def whatif(**given: object) -> WhatIf:
    return parse_as(WhatIf, {"name": "some", **given}, "what-if.yaml")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> History:
    """Two hours, of which half an hour and a bit is silent, and ten minutes later on are marked. Not to be changed."""
    root = tmp_path_factory.mktemp("history")
    history = record_fleet(root, minutes=120, is_silent=lambda minute: 10 <= minute < 50)
    with a_writer(Directory.of(str(root))) as writer:
        writer.begin_term(2, NOON_MS + 2 * HOUR_MS)
        gap = {
            "from_ms": NOON_MS + 80 * MINUTE_MS,
            "to_ms": NOON_MS + 100 * MINUTE_MS,
            "rows": 3,
            "why": "a full queue",
        }
        writer.put(NOON_MS + 2 * HOUR_MS, HistoryEvent("gap", "", gap))
        writer.end_term(NOON_MS + 2 * HOUR_MS)
        assert writer.flush(patience())
    return history


@pytest.fixture
def history(tmp_path: Path) -> History:
    """Two hours, with a file of each table for each of them."""
    return record_fleet(tmp_path / "history", minutes=120)


@pytest.fixture
def ranges(spark: SparkSession, history: History) -> Ranges:
    return Ranges(spark, history.directory.root)


def digests_here(history: History, *stretches: Stretch, on_fault: OnFault | None = None) -> list[str]:
    return [digest_of(read_range(history, each, on_fault=on_fault)) for each in stretches]


def digests_of(outlines: list[Outline | str]) -> list[str]:
    assert all(isinstance(each, Outline) for each in outlines)
    return [each.digest for each in outlines if isinstance(each, Outline)]


def file_of(history: History, table: str, hour: int) -> HistoryFile:
    return history.files(table, NOON_MS + hour * HOUR_MS, NOON_MS + (hour + 1) * HOUR_MS)[0]


def test_stretches_and_left_out_equal_those_found_locally(spark: SparkSession, kept: History) -> None:
    found, left_out = find_stretches(whatif(), kept, Ranges(spark, kept.directory.root))

    assert (found, left_out) == find_stretches(whatif(), kept, RangesHere(kept))
    assert [((each.from_ms - NOON_MS) // MINUTE_MS, each.duration_s / 60) for each in found] == [
        (0, 24),
        (50, 30),
        (100, 19),
    ]
    assert [why.rpartition(": ")[2] for why in left_out] == ["no broker reported", "a full queue"]


def test_history_without_files_has_no_times_and_no_gaps(spark: SparkSession, tmp_path: Path) -> None:
    ranges = Ranges(spark, str(tmp_path))

    assert (ranges.report_times(None, None).tolist(), ranges.gaps(), ranges.read([])) == ([], [], [])


def test_each_range_is_bit_for_bit_the_local_one(history: History, ranges: Ranges) -> None:
    outlines = ranges.read(HALVES)

    assert outlines == RangesHere(history).read(HALVES)
    assert digests_of(outlines) == digests_here(history, *HALVES)


def test_stretch_without_records_is_reported_beside_the_others(ranges: Ranges) -> None:
    empty = Stretch(7, NOON_MS - 5 * HOUR_MS, NOON_MS - 4 * HOUR_MS)

    first, why = ranges.read([HALVES[0], empty])

    assert isinstance(first, Outline)
    assert why == "the range has no reports of loaded bundles"


def test_worker_keeps_the_range_replayed_last(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    read, kept = list[int](), dict[tuple[str, Stretch, str], RecordedRange]()

    def counted(url: str, stretch: Stretch, _: object) -> RecordedRange:
        assert not kept
        read.append(stretch.number)
        return read_range(History(url), stretch)

    monkeypatch.setattr(ranges_module, "_LAST", kept)
    monkeypatch.setattr(ranges_module, "_read", counted)
    wanted = list(zip(HALVES, digests_here(history, *HALVES), strict=True))

    for stretch, digest in (wanted[0], wanted[0], wanted[1], wanted[1]):
        recorded = ranges_module._range_of(history.directory.root, stretch, digest)
        assert digest_of(recorded) == digest

    assert read == [0, 1]


def test_trials_of_a_stretch_follow_each_other(history: History) -> None:
    given = plan(whatif(strategies=["ThresholdShedder"], seeds=[1, 2], stretchS=3600), history, RangesHere(history))

    assert [cell.stretch.number for cell in given.cells] == [0, 0, 1, 1]


def test_changed_input_is_not_replayed(ranges: Ranges, history: History) -> None:
    given = plan(whatif(strategies=["ThresholdShedder"], stretchS=3600), history, ranges)
    Path(file_of(history, BUNDLE_REPORTS, 1).path).unlink()

    with pytest.raises(ENGINE_ERRORS) as raised:
        play(given, ranges).collect()
    assert cause_of(str(raised.value)).startswith("files of the range have changed while it was replayed")


@pytest.mark.parametrize("table", [BROKER_REPORTS, BUNDLE_REPORTS])
def test_unreadable_file_is_an_error_or_drops_its_stretch(
    spark: SparkSession, history: History, ranges: Ranges, table: str
) -> None:
    bad = file_of(history, table, 0).path
    Path(bad).write_bytes(b"no Parquet")
    with pytest.raises(HistoryFileError, match=f"^{bad}: .*; move it out of the history"):
        ranges.read(HALVES)

    faults: list[HistoryFileError] = []
    found = Ranges(spark, history.directory.root, faults.append).read(HALVES)

    assert {str(each).partition(": ")[0] for each in faults} == {bad}
    assert found[0] == "the range has no reports of loaded bundles"
    assert digests_of(found[1:]) == digests_here(history, HALVES[1])


def test_foreign_file_name_is_reported_as_by_a_local_read(spark: SparkSession, history: History) -> None:
    first = Path(file_of(history, BUNDLE_REPORTS, 0).path)
    first.with_name("copy.parquet").write_bytes(first.read_bytes())
    expected: set[str] = set()
    wanted = digests_here(history, *HALVES, on_fault=lambda fault: expected.add(str(fault)))

    said: set[str] = set()
    ranges = Ranges(spark, history.directory.root, lambda fault: said.add(str(fault)))
    assert digests_of(ranges.read(HALVES)) == wanted

    assert said == expected != set()


def test_damaged_files_are_named_or_left_out_of_stretches(spark: SparkSession, kept: History) -> None:
    folder = kept.directory.root
    reports, events = (kept.files(table)[0] for table in (BROKER_REPORTS, EVENTS))
    content = {file.path: Path(file.path).read_bytes() for file in (reports, events)}
    try:
        for path in content:
            Path(path).write_bytes(b"no Parquet")
        strict = Ranges(spark, folder)
        for ask, bad in ((lambda: strict.report_times(None, None), reports), (strict.gaps, events)):
            with pytest.raises(HistoryFileError, match=f"^{bad.path}: not a Parquet file"):
                ask()
        faults: list[str] = []
        lenient = Ranges(spark, folder, lambda fault: faults.append(str(fault).partition(": ")[0]))
        at_ms = lenient.report_times(None, None)
        assert at_ms.tolist() == sorted(at_ms.tolist())
        assert at_ms[0] >= NOON_MS + HOUR_MS
        assert len(lenient.gaps()) == 1
        assert faults == [reports.path, events.path]
    finally:
        for path, data in content.items():
            Path(path).write_bytes(data)
