from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from support.recorded import NOON_MS, Disk, a_report, kinds

from loadmanager.errors import HistoryError, HistoryFileError
from loadmanager.history.entry_rows import HistoryEvent
from loadmanager.history.files import Directory
from loadmanager.history.gaps import TERM_BEGAN, TERM_ENDED, find_gaps
from loadmanager.history.load_import import Importer
from loadmanager.history.reader import History
from loadmanager.history.synthetic_fleet import Series, SyntheticFleet, import_series, read_series


def quietly(_: int, __: int) -> None:
    """No progress to be seen."""


def bring_in(directory: Directory) -> None:
    importer = Importer(directory, "test", NOON_MS)
    importer.add(NOON_MS, a_report(bundles=1))
    importer.finish(NOON_MS)


def csv_of(path: Path, rows: list[str], header: str = "timestamp,value") -> Path:
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def minutes(values: list[float]) -> list[str]:
    return [f"2026-01-01 12:{minute:02d}:00,{value}" for minute, value in enumerate(values)]


def test_imports_are_ordered_before_recordings(directory: Directory) -> None:
    bring_in(directory)
    bring_in(directory)
    history = History(directory)
    assert kinds(history) == [(0, 0, TERM_BEGAN), (0, 2, TERM_ENDED), (0, 3, TERM_BEGAN), (0, 5, TERM_ENDED)]
    assert [each.sequence for each in history.reports()] == [1, 4]
    assert find_gaps(history) == []


def test_full_disk_is_an_error_and_earlier_imports_are_kept(tmp_path: Path) -> None:
    disk = Disk()
    directory = disk.directory(tmp_path / "history")
    importer = Importer(directory, "test", NOON_MS)
    importer.flush()
    disk.is_full = True
    importer.add(NOON_MS, HistoryEvent("x"))
    with pytest.raises(HistoryError, match=r"cannot be written: .*No space left on device"):
        importer.finish(NOON_MS)
    assert len(kinds(History(directory))) == 1


def test_file_holds_one_series_or_names_one_in_each_row(tmp_path: Path) -> None:
    one = csv_of(tmp_path / "one.csv", minutes([1, 2, 3]))
    rows = [f"{60 * step},{name},{step}" for step in range(3) for name in ("a", "b")]
    many = csv_of(tmp_path / "many.csv", rows, "timestamp,series,value")
    series = read_series([one, many])
    assert [(each.name, each.step_ms, each.values.tolist()) for each in series] == [
        ("one", 60_000, [1, 2, 3]),
        ("a", 60_000, [0, 1, 2]),
        ("b", 60_000, [0, 1, 2]),
    ]
    assert (series[0].start_ms, series[1].start_ms) == (1_767_268_800_000, 0)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["2026-01-01 12:00:00,1", "noon,2"], "row 3, column timestamp: 'noon': expected a time such as"),
        (["2026-01-01 12:00:00,1", "2026-01-01 12:01:00,-2"], "row 3, column value: '-2': expected a number of 0 or"),
        (["2026-01-01 12:00:00,1", "2026-01-01 12:01:00,nan"], "row 3, column value: 'nan'"),
        (["2026-01-01 12:00:00,1", "2026-01-01 12:01:00,"], "row 3, column value: ''"),
        (["2026-01-01 12:00:00,1", "2026-01-01 12:01:00,1,1"], "row 3: 3 columns: expected 2"),
        ([*minutes([1, 2, 3]), "2026-01-01 12:05:00,1"], "row 5, column timestamp: 2 missing before it in series"),
        ([*minutes([1, 2, 3]), "2026-01-01 12:02:30,1"], "row 5, column timestamp: 30 s after the row before"),
        ([*minutes([1, 2, 3]), "2026-01-01 12:00:00,1"], "row 5, column timestamp: earlier than the row before"),
        ([*minutes([1, 2, 3]), "2026-01-01 12:02:00,1"], "row 5, column timestamp: the same time as the row before"),
        (["9999999999,1"], "row 2, column timestamp: '9999999999': not a time from 1970 to 2099"),
        (["20260101120000,1"], "row 2, column timestamp: '20260101120000': not a time from 1970 to 2099"),
        (["9" * 400 + ",1"], "or s, ms, us or ns since 1970"),
        (["1960-01-01 12:00:00,1"], "row 2, column timestamp: '1960-01-01 12:00:00': not a time from 1970 to 2099"),
        (minutes([1]), "series 'x' has one row only"),
        ([], "no rows below the header"),
    ],
)
def test_bad_series_is_refused_with_file_row_and_column(tmp_path: Path, rows: list[str], message: str) -> None:
    path = csv_of(tmp_path / "x.csv", rows)
    with pytest.raises(HistoryFileError) as caught:
        read_series([path])
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize(("factor", "digits"), [(1, 0), (1, 3), (1_000, 0), (1_000, 2), (10**6, 0), (10**9, 0)])
def test_unit_of_a_timestamp_is_detected_by_its_size(tmp_path: Path, mark: bytes, factor: int, digits: int) -> None:
    path, start_s = tmp_path / "x.csv", NOON_MS // 1_000
    rows = [f"{(start_s + 60 * step) * factor}{'.' * (digits > 0)}{'0' * digits},{step}" for step in range(3)]
    path.write_bytes(mark + "\n".join(["timestamp,value", *rows]).encode())
    (series,) = read_series([path])
    assert (series.start_ms, series.step_ms, series.values.tolist()) == (NOON_MS, 60_000, [0, 1, 2])


def local_times(zone: str, first: str, step: timedelta) -> list[datetime]:
    """A dozen of them, as clocks there show them; `first` is in UTC."""
    begin = datetime.fromisoformat(first).replace(tzinfo=UTC)
    return [(begin + number * step).astimezone(ZoneInfo(zone)) for number in range(12)]


@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("step", [timedelta(minutes=15), timedelta(hours=1), timedelta(hours=2)])
@pytest.mark.parametrize(
    ("zone", "first"),
    [
        ("Europe/Berlin", "2026-03-28 23:00"),
        ("Europe/Berlin", "2026-10-24 23:00"),
        ("America/New_York", "2026-03-08 05:00"),
        ("America/New_York", "2026-11-01 04:00"),
        ("Australia/Lord_Howe", "2026-04-04 14:00"),
        ("Australia/Lord_Howe", "2026-10-03 14:00"),
    ],
)
def test_ambiguous_local_times_are_rejected(
    tmp_path: Path,
    zone: str,
    first: str,
    step: timedelta,
    is_sorted: bool,  # noqa: FBT001 - of the table
) -> None:
    times = local_times(zone, first, step)
    shown = [f"{time:%Y-%m-%d %H:%M}" for time in times]
    with pytest.raises(HistoryFileError, match=r"clocks change here in some time zones: write local times with their"):
        read_series([csv_of(tmp_path / "x.csv", [f"{time},1" for time in (sorted(shown) if is_sorted else shown)])], 99)
    (series,) = read_series([csv_of(tmp_path / "y.csv", [f"{time.isoformat()},1" for time in times])])
    assert series.step_ms == step.total_seconds() * 1_000


def test_gap_in_utc_at_a_clock_change_can_be_filled(tmp_path: Path) -> None:
    rows = [f"2026-03-29 0{hour}:00Z,1" for hour in (0, 1, 3, 4)]
    (series,) = read_series([csv_of(tmp_path / "x.csv", rows)], max_missing=1)
    assert len(series.values) == 5


def test_invalid_headers_files_and_steps_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(HistoryFileError, match=r"row 1: 'time,value': expected timestamp,value or timestamp,series,"):
        read_series([csv_of(tmp_path / "x.csv", minutes([1]), "time,value")])
    with pytest.raises(HistoryFileError, match=r"missing\.csv: No such file or directory"):
        read_series([tmp_path / "missing.csv"])
    (tmp_path / "bytes.csv").write_bytes(b"timestamp,value\n\xff,1\n")
    with pytest.raises(HistoryFileError, match="not a CSV file in UTF-8"):
        read_series([tmp_path / "bytes.csv"])
    other = csv_of(tmp_path / "other.csv", ["0,1", "300,1"])
    with pytest.raises(HistoryFileError, match=r"other\.csv: a value every 300 s, but .*x\.csv has one every 60 s"):
        read_series([csv_of(tmp_path / "x.csv", minutes([1, 2])), other])
    (tmp_path / "again").mkdir()
    with pytest.raises(HistoryFileError, match=r"series 'x' is in .* already"):
        read_series([tmp_path / "x.csv", csv_of(tmp_path / "again" / "x.csv", minutes([1, 2]))])


def test_missing_values_repeat_the_last_one(tmp_path: Path) -> None:
    rows = [*minutes([1, 2, 3]), "2026-01-01 12:05:00,9"]
    (series,) = read_series([csv_of(tmp_path / "x.csv", rows)], max_missing=2)
    assert series.values.tolist() == [1, 2, 3, 3, 3, 9]


def loads(directory: Directory, fleet: SyntheticFleet, values: list[float]) -> dict[str, list[list[float]]]:
    """Imported loads of each bundle at each step."""
    series = [Series("made", "made.csv", NOON_MS, 60_000, np.array(values))]
    importer = Importer(directory, "test", NOON_MS)
    import_series(importer, series, fleet, quietly)
    importer.finish(NOON_MS)
    found: dict[str, list[list[float]]] = {}
    for report in History(directory).reports():
        for name, load in zip(report.report.bundle_names, report.report.bundle_load.tolist(), strict=True):
            found.setdefault(name, []).append(load)
    return found


def test_bundles_have_the_series_shifted_and_scaled(directory: Directory) -> None:
    found = loads(directory, SyntheticFleet(bundles=50, brokers=3, seed=1), [1, 2, 3, 4])
    assert len(found) == 50
    firsts = set()
    for steps in found.values():
        rates = np.array(steps)[:, 0]
        shape = np.rint(4 * rates / rates.max()).tolist()
        at = shape.index(1)
        assert shape[at:] + shape[:at] == [1, 2, 3, 4]
        firsts.add(shape[0])
    assert firsts == {1, 2, 3, 4}
    means = sorted(np.array(steps)[:, 0].mean() for steps in found.values())
    assert means[-1] > 10 * means[0]


def test_equal_seeds_make_equal_bundles(tmp_path: Path) -> None:
    made = [
        loads(Directory.of(str(tmp_path / str(number))), SyntheticFleet(20, 2, seed), [1, 2, 3])
        for number, seed in enumerate((1, 1, 2))
    ]
    assert made[0] == made[1]
    assert made[0] != made[2]


def test_mean_load_is_as_requested_and_zeros_stay_zero(directory: Directory, tmp_path: Path) -> None:
    fleet = SyntheticFleet(bundles=2000, brokers=2, seed=3, messages_per_s=50.0, duration_s=120)
    rates = np.array([steps[0][0] for steps in loads(directory, fleet, [7.0, 7.0]).values()])
    assert 25 < rates.mean() < 100
    assert {len(steps) for steps in loads(Directory.of(str(tmp_path / "z")), fleet, [0.0, 0.0]).values()} == {2}
