from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.recorded import NOON_MS, a_report, a_writer, kinds, put_file, record
from support.waiting import patience

from loadmanager.errors import HistoryError, HistoryFileError, HistorySchemaError
from loadmanager.history.entry_rows import HistoryEvent
from loadmanager.history.files import HOUR_MS, Directory
from loadmanager.history.gaps import TERM_BEGAN, TERM_ENDED, find_gaps
from loadmanager.history.reader import History
from loadmanager.history.table_schemas import (
    BROKER_REPORTS,
    BUNDLE_REPORTS,
    DECISIONS,
    EVENTS,
    SCHEMA_KEY,
    TABLES,
)

FOREIGN = pa.table({"x": [1, 2]})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "history"
    record(Directory.of(str(root)), 1, "a", "b")
    return root


def parquet(table: pa.Table, schema: str | None = None) -> bytes:
    """A Parquet file that says it is of this table and version."""
    sink = pa.BufferOutputStream()
    metadata = None if schema is None else {SCHEMA_KEY: schema.encode()}
    pq.write_table(table.replace_schema_metadata(metadata), sink)
    return bytes(sink.getvalue().to_pybytes())


def events_table(**more: object) -> pa.Table:
    return pa.table({"at_ms": [NOON_MS], "epoch": [9], "sequence": [0]} | more)


def test_only_rows_of_the_requested_time_are_read(root: Path) -> None:
    history = History(str(root))
    assert [kind for _, _, kind in kinds(history, from_ms=NOON_MS + 1000, to_ms=NOON_MS + 2000)] == ["a"]
    assert kinds(history, to_ms=NOON_MS) == []
    assert kinds(history, from_ms=NOON_MS + 2001) == []


def test_files_of_other_hours_are_not_opened(root: Path) -> None:
    for hour, day in ((10, "2026-09-21"), (14, "2026-09-21"), (12, "2026-09-20"), (12, "2026-09-22")):
        put_file(root, b"nothing that could be read", hour=hour, day=day)
    assert NOON_MS // HOUR_MS % 24 == 12
    history = History(str(root))
    assert len(kinds(history, from_ms=NOON_MS, to_ms=NOON_MS + HOUR_MS)) == 4


def test_requested_columns_are_read_in_table_order(root: Path) -> None:
    (row, *_) = History(str(root)).rows(EVENTS, columns=["kind", "at_ms"])
    assert list(row) == ["at_ms", "kind"]
    with pytest.raises(HistoryError, match="columns knd: not in events; it has at_ms, epoch, sequence, kind"):
        next(History(str(root)).scan(EVENTS, columns=["knd"]))


def test_unknown_table_is_rejected_with_the_known_ones(root: Path) -> None:
    with pytest.raises(HistoryError, match="table event: unknown; there are broker_reports, "):
        next(History(str(root)).scan("event"))


def test_missing_history_is_empty(tmp_path: Path) -> None:
    history = History(str(tmp_path / "nothing"))
    assert list(history.scan(EVENTS)) == []
    assert history.info(EVENTS).epochs is None


def test_url_of_an_unknown_filesystem_is_rejected() -> None:
    with pytest.raises(HistoryError, match=r"history nfs4://x: .*expected a directory, or a URL such as"):
        History("nfs4://x")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a Parquet file that can be read"),
        (b"PAR1 or not", "not a Parquet file that can be read"),
        (parquet(FOREIGN), "not a file of events: it has no loadmanager.schema"),
        (parquet(FOREIGN, "moves/1"), "not a file of events: it says it is 'moves/1'"),
        (parquet(FOREIGN, "events/x"), "not a file of events: it says it is 'events/x'"),
        (parquet(FOREIGN, "events/1"), "has no column at_ms"),
        (
            parquet(events_table(kind=[1], subject=["x"], body=["{}"]), "events/1"),
            "column kind is int64, expected dict",
        ),
    ],
)
def test_damaged_or_foreign_file_is_named_and_skipped(root: Path, data: bytes, message: str) -> None:
    path = put_file(root, data)
    with pytest.raises(HistoryFileError, match=message) as caught:
        kinds(History(str(root)))
    assert str(path) in str(caught.value)
    faults: list[HistoryFileError] = []
    assert len(kinds(History(str(root)), on_fault=faults.append)) == 4
    assert [str(path) in str(fault) for fault in faults] == [True]


def test_truncated_file_is_named(root: Path) -> None:
    (path,) = root.rglob("events/**/*.parquet")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(HistoryFileError, match=str(path)):
        kinds(History(str(root)))


def test_file_with_flipped_bits_is_named(root: Path) -> None:
    (path,) = root.rglob("events/**/*.parquet")
    data = bytearray(path.read_bytes())
    for at in range(4, 60):
        data[at] ^= 0xFF
    path.write_bytes(bytes(data))
    with pytest.raises(HistoryFileError, match=str(path)):
        kinds(History(str(root)))


@pytest.mark.parametrize("name", ["foreign.parquet", "0000000001-000000000000-000000000001.csv", "notes"])
def test_file_with_a_foreign_name_is_rejected(root: Path, name: str) -> None:
    folder = next(root.rglob("events/**/*.parquet")).parent
    (folder / name).write_bytes(parquet(FOREIGN))
    with pytest.raises(HistoryFileError, match=f"{name}: not a name of a file of the history; move it somewhere else"):
        kinds(History(str(root)))


def test_file_of_a_newer_schema_is_rejected_with_version_and_remedy(root: Path) -> None:
    path = put_file(root, parquet(events_table(kind=["x"], subject=["x"], body=["{}"]), "events/2"))
    with pytest.raises(HistorySchemaError) as caught:
        kinds(History(str(root)))
    assert str(caught.value) == (
        f"{path}: written with version 2 of events, this loadmanager knows up to 1:"
        " read it with the loadmanager that wrote it, or a newer one"
    )


def test_columns_missing_in_an_older_schema_are_null(root: Path) -> None:
    put_file(root, parquet(events_table(kind=["old"]), "events/0"))
    assert list(History(str(root)).rows(EVENTS))[-1] == {
        "at_ms": NOON_MS,
        "epoch": 9,
        "sequence": 0,
        "kind": "old",
        "subject": None,
        "body": None,
    }


def test_columns_of_an_older_schema_are_cast_to_current_types(root: Path) -> None:
    old = events_table(range_lower=pa.array([5], pa.int32()), msg_rate_in=pa.array([1.0]))
    put_file(root, parquet(old, "bundle_reports/0"), BUNDLE_REPORTS)
    (batch,) = History(str(root)).scan(BUNDLE_REPORTS, columns=["range_lower", "msg_rate_in", "broker"])
    assert batch.schema.types == TABLES[BUNDLE_REPORTS].only(["range_lower", "msg_rate_in", "broker"]).schema.types
    assert [str(value) for value in batch.to_pylist()[0].values()] == ["None", "5", "1.000"]


def test_file_deleted_during_the_read_is_skipped(root: Path) -> None:
    history = History(str(root))
    record(history.directory, 2, at_ms=NOON_MS + 5000)
    files = history.files(EVENTS)
    rows = history.rows(EVENTS)
    first = next(rows)
    Path(files[1].path).unlink()
    assert [first["kind"], *(row["kind"] for row in rows)] == [TERM_BEGAN, "a", "b", TERM_ENDED]


def test_reports_of_a_time_range_have_all_their_bundles(tmp_path: Path) -> None:
    directory = Directory.of(str(tmp_path))
    with a_writer(directory) as writer:
        writer.begin_term(1, NOON_MS)
        for number in range(10):
            writer.put(NOON_MS + number, a_report(number, bundles=number % 4))
        assert writer.flush(patience())
    read = list(History(directory).reports(NOON_MS + 3, NOON_MS + 7))
    assert [len(each.report.bundle_names) for each in read] == [3, 0, 1, 2]


def test_table_info_is_read_from_footers(tmp_path: Path) -> None:
    directory = Directory.of(str(tmp_path))
    with a_writer(directory) as writer:
        for epoch in (1, 2):
            writer.begin_term(epoch, NOON_MS + epoch * 10)
            writer.put(NOON_MS + epoch * 10, a_report())
        assert writer.flush(patience())
    info = History(directory).info(BUNDLE_REPORTS)
    assert (info.files, info.rows, info.from_ms, info.to_ms, info.epochs) == (2, 6, NOON_MS + 10, NOON_MS + 20, (1, 2))
    assert History(directory).info(DECISIONS).rows == 0


def test_leader_records_despite_a_file_of_a_newer_schema(root: Path) -> None:
    put_file(root, parquet(events_table(kind=["x"], subject=["x"], body=["{}"]), "events/2"), epoch=2)
    record(Directory.of(str(root)), 3, "after", at_ms=NOON_MS + HOUR_MS)
    faults: list[HistoryFileError] = []
    assert [gap.epoch for gap in find_gaps(History(str(root)), faults.append)] == [3]
    assert len(faults) == 1


def test_rows_of_a_sequence_keep_their_order_when_files_overlap(tmp_path: Path) -> None:
    directory = Directory.of(str(tmp_path))
    with a_writer(directory) as writer:
        writer.begin_term(1, NOON_MS)
        for number, hour in enumerate((1, 0, 1)):
            writer.put(NOON_MS + hour * HOUR_MS, a_report(number, bundles=50))
        writer.put(NOON_MS, HistoryEvent("x"))
        assert writer.flush(patience())
    rows = list(History(directory).rows(BUNDLE_REPORTS))
    assert [row["sequence"] for row in rows] == [1] * 50 + [2] * 50 + [3] * 50
    for at in range(0, 150, 50):
        lowers = [row["range_lower"] for row in rows[at : at + 50]]
        assert lowers == sorted(lowers)
    assert [row["sequence"] for row in History(directory).rows(BROKER_REPORTS)] == [1, 2, 3]
