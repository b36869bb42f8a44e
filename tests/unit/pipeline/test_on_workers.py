"""What Spark's workers do for a what-if, without Spark."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.recorded import NOON_MS, a_writer
from support.recorded_fleet import BROKERS, MINUTE_MS, broker, bundle_name, record_fleet, report_of
from support.waiting import patience

from loadmanager.errors import HistoryError
from loadmanager.history.columns import columns_of
from loadmanager.history.files import HOUR_MS, Directory
from loadmanager.history.gaps import MARKS, find_gaps, gaps_in
from loadmanager.history.reader import History
from loadmanager.history.rows import Event
from loadmanager.history.schemas import BROKER_REPORTS, BUNDLE_REPORTS, EVENTS
from loadmanager.pipeline import on_workers
from loadmanager.pipeline.on_workers import (
    Found,
    events_of,
    found_of,
    on_files,
    on_range,
    outline_of,
    packed,
    range_of,
    report_times,
    unpacked,
)
from loadmanager.sim.recorded import HOLD_S, RecordedRange
from loadmanager.whatif.ranges import Stretch, read_range

HOUR = Stretch(0, NOON_MS, NOON_MS + HOUR_MS)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    return record_fleet(tmp_path_factory.mktemp("history"), minutes=150, is_silent=lambda minute: 40 <= minute < 80)


def brought(history: History, *tables: str) -> list[tuple[str, bytes]]:
    """The bytes of the files, with paths as another filesystem has them."""
    files = [file for table in tables for file in history.files(table)]
    return [(f"hdfs://elsewhere{file.path}", Path(file.path).read_bytes()) for file in files]


def made(history: History, files: list[tuple[str, bytes]]) -> list[Any]:
    return list(on_files(history.directory.root, partial(range_of, HOUR), files))


def test_a_range_of_bytes_that_were_brought_is_the_one_that_is_read(history: History) -> None:
    recorded = read_range(history, HOUR)

    found, *parts = made(history, brought(history, BROKER_REPORTS, BUNDLE_REPORTS, EVENTS))

    assert (found.value, found.faults) == (outline_of(recorded), ())
    assert is_same(unpacked(parts), recorded)


def test_a_range_that_begins_with_the_start_of_a_fleet_begins_when_all_are_there_and_carry_something(
    tmp_path: Path,
) -> None:
    with a_writer(Directory.of(str(tmp_path))) as writer:
        writer.begin_term(1, NOON_MS)
        for number in range(BROKERS):
            at_ms = NOON_MS + 500 * number
            writer.put(at_ms, Event("broker_registered", str(broker(number)), {}))
            writer.put(at_ms, report_of(number, at_ms, {}))
        for minute in range(1, 30):
            for number in range(BROKERS):
                at_ms = NOON_MS + minute * MINUTE_MS + number
                writer.put(at_ms, report_of(number, at_ms, {bundle_name(0, number): 1.0}))
        writer.end_term(NOON_MS + 30 * MINUTE_MS)
        assert writer.flush(patience())
    started = History(str(tmp_path))

    found, *parts = made(started, brought(started, BROKER_REPORTS, BUNDLE_REPORTS, EVENTS))

    assert found.value.broker_ids == tuple(map(broker, range(BROKERS)))
    recorded = unpacked(parts)
    assert [spec.id for spec in recorded.brokers] == list(found.value.broker_ids)
    assert recorded.duration_s == HOUR.duration_s - 58  # two seconds before the first load


def is_same(one: RecordedRange, other: RecordedRange) -> bool:
    names = ("brokers", "namespaces", "events", "duration_s", "ways")
    arrays = ("at_s", "bundle", "figures", "factors")
    return all(getattr(one, name) == getattr(other, name) for name in names) and all(
        getattr(one.loads, name).tobytes() == getattr(other.loads, name).tobytes() for name in arrays
    )


def test_a_packed_range_comes_in_parts_of_a_limited_size(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_workers, "PART_BYTES", 100)
    recorded = read_range(history, HOUR)

    parts = list(packed(recorded))

    assert {len(part) for part in parts[:-1]} == {100}
    assert 0 < len(parts[-1]) <= 100
    assert is_same(unpacked(parts), recorded)


def test_a_bad_file_is_said_by_the_path_that_the_driver_knows_and_its_rows_are_not_there(history: History) -> None:
    files = brought(history, BROKER_REPORTS, BUNDLE_REPORTS)
    at = next(number for number, (path, _) in enumerate(files) if f"/{BUNDLE_REPORTS}/" in path)
    files[at] = (files[at][0], b"no Parquet")

    found, *parts = made(history, files)

    assert found.value == "the range has no reports of loaded bundles"
    assert [str(each).partition(": ")[0] for each in found.faults] == [history.files(BUNDLE_REPORTS)[0].path]
    assert parts == []


def test_what_was_found_says_of_which_files_and_not_in_which_order_they_came(history: History) -> None:
    files = brought(history, BROKER_REPORTS, BUNDLE_REPORTS)
    whole, reversed_, fewer = (made(history, each)[0].files for each in (files, files[::-1], files[1:]))

    assert whole == reversed_ != fewer


def test_only_what_is_for_the_driver_goes_to_it_and_the_rest_is_taken() -> None:
    rest = iter(["outline", b"part", b"part"])

    assert list(found_of(rest)) == ["outline"]
    assert list(rest) == []


def test_work_on_a_range_is_given_what_goes_with_its_partition_and_refused_for_other_files(history: History) -> None:
    found, *parts = made(history, brought(history, BROKER_REPORTS, BUNDLE_REPORTS))

    def named(recorded: RecordedRange, given: str) -> tuple[str, float]:
        return given, recorded.duration_s

    given = SimpleNamespace(value=[("other files", "first"), (found.files, "second")])
    assert list(on_range(named, given, 1, iter([found, *parts]))) == [("second", 3600.0)]
    with pytest.raises(HistoryError, match="files of the range have gone while it was replayed"):
        list(on_range(named, given, 0, iter([found, *parts])))


def test_silences_between_reports_are_those_between_the_few_times_that_are_kept(history: History) -> None:
    at_ms = np.sort(columns_of(history, BROKER_REPORTS, None, None, ["at_ms"], None)["at_ms"])
    by_file = [
        next(on_files(history.directory.root, partial(report_times, None, None), [each])).value
        for each in brought(history, BROKER_REPORTS)
    ]

    kept = np.sort(np.concatenate(by_file))

    assert len(by_file) == 3
    assert len(kept) <= 2 * 150 * MINUTE_MS / (HOLD_S * 1000) + 2
    assert silences(kept) == silences(at_ms) == [(NOON_MS + 39 * MINUTE_MS + 3000, NOON_MS + 80 * MINUTE_MS)]
    assert (kept[0], kept[-1]) == (at_ms[0], at_ms[-1])


def test_what_some_files_have_no_reports_of_is_no_silence_where_others_have(tmp_path: Path) -> None:
    whole = record_fleet(tmp_path / "whole", minutes=55)
    part = record_fleet(tmp_path / "part", minutes=7, is_silent=lambda minute: minute < 5)
    of_both = [next(report_times(None, None, each, lambda _: None)) for each in (whole, part)]

    assert silences(np.sort(np.concatenate(of_both))) == []


def silences(at_ms: Any) -> list[tuple[int, int]]:  # noqa: ANN401 - numpy's array
    last = np.flatnonzero(np.diff(at_ms) > 2 * HOLD_S * 1000)
    return [(int(at_ms[at]), int(at_ms[at + 1])) for at in last]


def test_without_reports_there_are_no_times(tmp_path: Path) -> None:
    (found,) = on_files(str(tmp_path), partial(report_times, None, None), [])

    assert isinstance(found, Found)
    assert found.value.tolist() == []


def test_marks_of_gaps_are_all_that_is_needed_to_find_them(history: History) -> None:
    (found,) = on_files(history.directory.root, partial(events_of, MARKS), brought(history, EVENTS))

    assert {kind for _, kind, _ in found.value} == {"term_began", "term_ended"}
    assert gaps_in(found.value) == find_gaps(history)


def test_a_worker_needs_no_more_packages_than_a_world_and_arrow() -> None:
    script = "import sys, loadmanager.pipeline.on_workers; print(*sys.modules)"
    there = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True).stdout.split()

    assert not {"pyspark", "pandas", "scipy", "pydantic", "orjson", "yaml"} & set(there)
