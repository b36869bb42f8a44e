"""Ranges that executors read, beside the same read in this process."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

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
from loadmanager.lab.whatif.recorded_ranges import Stretch, read_range
from loadmanager.pipeline import ranges as ranges_module
from loadmanager.pipeline.history_tables import CANNOT_GO_ON, cause_of
from loadmanager.pipeline.ranges import Outline, RangeRead, RangesOfSpark, read_stretch, unpacked
from loadmanager.pipeline.whatif_file import WhatIf, parse_whatif
from loadmanager.pipeline.whatif_plan import find_stretches, plan, play

HALVES = [Stretch(number, NOON_MS + number * HOUR_MS, NOON_MS + (number + 1) * HOUR_MS) for number in range(2)]
"""A stretch for each hour of the history."""


def whatif(**given: object) -> WhatIf:
    return parse_whatif({"name": "some", **given}, "what-if.yaml")


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
def ranges(spark: SparkSession, history: History) -> Iterator[RangesOfSpark]:
    with closing(RangesOfSpark(spark, history.directory.root)) as ranges:
        yield ranges


def contents(recorded: RecordedRange) -> tuple[Any, ...]:
    """All that it says, bit for bit."""
    loads = recorded.loads
    arrays = [(each.dtype.str, each.shape, each.tobytes()) for each in (loads.at_s, loads.bundle, loads.figures)]
    happened = recorded.brokers, recorded.namespaces, recorded.events, recorded.duration_s, recorded.calibration
    return *happened, loads.bundles, arrays, loads.factors.tobytes()


def read_back(ranges: RangesOfSpark, *stretches: Stretch) -> list[tuple[Any, ...]]:
    """What workers have of them. They do not have this module, but what is sent to them."""
    found = ranges.try_each(lambda recorded, _: recorded, [(stretch.number, None) for stretch in stretches])
    return [contents(each) for each in found]


def read_here(history: History, *stretches: Stretch, on_fault: OnFault | None = None) -> list[tuple[Any, ...]]:
    return [contents(read_range(history, each, on_fault=on_fault)) for each in stretches]


def file_of(history: History, table: str, hour: int) -> HistoryFile:
    return history.files(table, NOON_MS + hour * HOUR_MS, NOON_MS + (hour + 1) * HOUR_MS)[0]


def test_stretches_and_what_is_left_out_are_those_that_are_found_here(spark: SparkSession, kept: History) -> None:
    found, left_out = find_stretches(whatif(), kept, RangesOfSpark(spark, kept.directory.root))

    assert (found, left_out) == find_stretches(whatif(), kept, RangesHere(kept))
    assert [((each.from_ms - NOON_MS) // MINUTE_MS, each.duration_s / 60) for each in found] == [
        (0, 24),
        (50, 30),
        (100, 19),
    ]
    assert [why.rpartition(": ")[2] for why in left_out] == ["no broker reported", "a full queue"]


def test_a_history_without_files_has_no_times_and_no_gaps(spark: SparkSession, tmp_path: Path) -> None:
    ranges = RangesOfSpark(spark, str(tmp_path))

    assert (ranges.report_times(None, None).tolist(), ranges.gaps(), ranges.read([])) == ([], [], [])


def test_each_range_is_bit_for_bit_what_it_is_here(history: History, ranges: RangesOfSpark) -> None:
    outlines = ranges.read(HALVES)

    assert outlines == RangesHere(history).read(HALVES)
    assert all(isinstance(each, Outline) for each in outlines)
    assert read_back(ranges, *HALVES) == read_here(history, *HALVES)


def test_a_stretch_of_which_nothing_was_recorded_is_said_and_the_others_are_read(ranges: RangesOfSpark) -> None:
    empty = Stretch(7, NOON_MS - 5 * HOUR_MS, NOON_MS - 4 * HOUR_MS)

    first, why = ranges.read([HALVES[0], empty])

    assert isinstance(first, Outline)
    assert why == "the range has no reports of loaded bundles"


def test_a_stretch_is_read_once_whatever_is_tried_on_it(
    spark: SparkSession, history: History, ranges: RangesOfSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "read"

    def counted(url: str, stretch: Stretch) -> Iterator[Any]:
        with said.open("a") as file:
            file.write(f"{stretch.number}\n")
        yield from read_stretch(url, stretch)

    monkeypatch.setattr(ranges_module, "read_stretch", counted)
    given = plan(whatif(strategies=["ThresholdShedder"], seeds=[1, 2, 3], stretchS=3600), history, ranges)
    assert len(play(spark, given, ranges).collect()) == len(given.cells) == 6

    assert sorted(said.read_text().split()) == ["0", "1"]


def test_a_trial_has_the_range_of_its_stretch_and_no_other(ranges: RangesOfSpark) -> None:
    def held(_: RecordedRange, __: None) -> list[float]:
        gc.collect()
        return [each.duration_s for each in gc.get_objects() if isinstance(each, RecordedRange)]

    stretches = [HALVES[0], Stretch(1, HALVES[1].from_ms, HALVES[1].from_ms + 30 * MINUTE_MS)]
    ranges.read(stretches)

    assert ranges.try_each(held, [(1, None), (0, None), (1, None)]) == [[1800.0], [3600.0], [1800.0]]


def test_what_an_executor_has_lost_is_read_again(ranges: RangesOfSpark, history: History) -> None:
    ranges.read(HALVES)
    for each in ranges._ranges.values():
        each.unpersist(blocking=True)

    assert read_back(ranges, *HALVES) == read_here(history, *HALVES)


def test_lost_and_changed_input_is_not_replayed(ranges: RangesOfSpark, history: History) -> None:
    ranges.read(HALVES)
    for each in ranges._ranges.values():
        each.unpersist(blocking=True)
    Path(file_of(history, BUNDLE_REPORTS, 1).path).unlink()

    with pytest.raises(CANNOT_GO_ON) as raised:
        read_back(ranges, *HALVES)
    assert cause_of(str(raised.value)).startswith("files of the range have changed while it was replayed")


@pytest.mark.parametrize("table", [BROKER_REPORTS, BUNDLE_REPORTS])
def test_unreadable_file(spark: SparkSession, history: History, ranges: RangesOfSpark, table: str) -> None:
    bad = file_of(history, table, 0).path
    Path(bad).write_bytes(b"no Parquet")
    with pytest.raises(HistoryFileError, match=f"^{bad}: .*; move it out of the history"):
        ranges.read(HALVES)

    faults: list[HistoryFileError] = []
    with closing(RangesOfSpark(spark, history.directory.root, faults.append)) as others:
        found = others.read(HALVES)
        after = read_back(others, HALVES[1])

    assert {str(each).partition(": ")[0] for each in faults} == {bad}
    assert found[0] == "the range has no reports of loaded bundles"
    assert after == read_here(history, HALVES[1])


def test_a_name_that_is_none_of_the_history_is_said_as_it_is_here(spark: SparkSession, history: History) -> None:
    first = Path(file_of(history, BUNDLE_REPORTS, 0).path)
    first.with_name("copy.parquet").write_bytes(first.read_bytes())
    expected: set[str] = set()
    wanted = read_here(history, *HALVES, on_fault=lambda fault: expected.add(str(fault)))

    said: set[str] = set()
    with closing(RangesOfSpark(spark, history.directory.root, lambda fault: said.add(str(fault)))) as ranges:
        ranges.read(HALVES)
        assert read_back(ranges, *HALVES) == wanted

    assert said == expected != set()


def test_damaged_files_are_named_or_left_out_where_stretches_are_found(spark: SparkSession, kept: History) -> None:
    folder = kept.directory.root
    reports, events = (kept.files(table)[0] for table in (BROKER_REPORTS, EVENTS))
    content = {file.path: Path(file.path).read_bytes() for file in (reports, events)}
    try:
        for path in content:
            Path(path).write_bytes(b"no Parquet")
        strict = RangesOfSpark(spark, folder)
        for ask, bad in ((lambda: strict.report_times(None, None), reports), (strict.gaps, events)):
            with pytest.raises(HistoryFileError, match=f"^{bad.path}: not a Parquet file"):
                ask()
        faults: list[str] = []
        lenient = RangesOfSpark(spark, folder, lambda fault: faults.append(str(fault).partition(": ")[0]))
        at_ms = lenient.report_times(None, None)
        assert at_ms.tolist() == sorted(at_ms.tolist())
        assert at_ms[0] >= NOON_MS + HOUR_MS
        assert len(lenient.gaps()) == 1
        assert faults == [reports.path, events.path]
    finally:
        for path, data in content.items():
            Path(path).write_bytes(data)


def test_a_packed_range_has_parts_of_a_limited_size(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges_module, "PART_BYTES", 100)
    read, *parts = read_stretch(history.directory.root, HALVES[0])
    assert isinstance(read, RangeRead)
    assert read.faults == ()
    packed = [part for part in parts if isinstance(part, bytes)]
    assert {len(part) for part in packed[:-1]} == {100}
    assert 0 < len(packed[-1]) <= 100
    assert [contents(unpacked(packed))] == read_here(history, HALVES[0])
