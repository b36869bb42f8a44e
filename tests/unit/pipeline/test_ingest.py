"""Which rows are counted on, and what is kept of the others; as tasks clean files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.frames import (
    HOUR_MS,
    MINUTE_MS,
    START_MS,
    cut_in_half,
    damage_pages,
    files_of,
    history_of,
    write_three_hours,
)

from loadmanager.history.files import Directory
from loadmanager.history.reader import History
from loadmanager.history.rows import Event
from loadmanager.history.schemas import BROKER_REPORTS, BUNDLE_REPORTS, EVENTS, SCHEMA_KEY, TABLES
from loadmanager.pipeline.cleaning import Cleaning, Damaged, FileToClean, Rejections
from loadmanager.pipeline.contents import place_of
from loadmanager.pipeline.ingest import Judged, judged, judged_together
from loadmanager.pipeline.packing import Packed, unpacked
from loadmanager.pipeline.raw_rows import raw_rows, raw_schema

GOOD = {
    "at_ms": START_MS,
    "epoch": 1,
    "sequence": 1,
    "broker": "a:1",
    "namespace": "t/n",
    "range_lower": 0,
    "range_upper": 16,
    "msg_rate_in": 1.0,
    "msg_rate_out": 1.0,
    "msg_throughput_in": 1,
    "msg_throughput_out": 1,
    "topics": 1,
    "sessions": 1,
    "cache_bytes": 0,
}


def bundle_rows(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist([{**GOOD, **row} for row in rows], raw_schema(BUNDLE_REPORTS))


def together(*files: list[dict[str, Any]]) -> list[Judged]:
    return list(judged_together([bundle_rows(*rows) for rows in files], BUNDLE_REPORTS, START_MS))


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"namespace": None}, "missing"),
        ({"cache_bytes": None}, "missing"),
        ({"at_ms": None}, "missing"),
        ({"msg_rate_in": float("nan")}, "not_a_number"),
        ({"msg_rate_out": float("inf")}, "not_a_number"),
        ({"msg_rate_out": float("-inf")}, "not_a_number"),
        ({"msg_rate_in": -0.001}, "negative"),
        ({"msg_throughput_in": -1}, "negative"),
        ({"topics": -1}, "negative"),
        ({"msg_rate_in": 1e13}, "impossible"),
        ({"msg_throughput_out": 2 * 10**18}, "impossible"),
        ({"range_lower": 16}, "impossible"),
        ({"range_upper": 2**32}, "impossible"),
        ({"at_ms": -1}, "impossible"),
        ({"namespace": None, "topics": -1}, "missing"),
        ({"msg_rate_in": float("nan"), "topics": -1}, "not_a_number"),
        ({"topics": -1, "range_lower": 16}, "negative"),
    ],
)
def test_a_row_that_cannot_be_is_kept_with_its_reason(wrong: dict[str, Any], reason: str) -> None:
    found = judged(bundle_rows({}, {**wrong, "sequence": 2}), BUNDLE_REPORTS)
    assert found.clean.to_pylist() == [GOOD]
    (row,) = found.rejected.to_pylist()
    assert (row["reason"], row["sequence"]) == (reason, 2)
    assert row["topics"] == wrong.get("topics", 1)


@pytest.mark.parametrize(("at_ms", "is_good"), [(0, True), (HOUR_MS - 1, True), (-1, False), (HOUR_MS, False)])
def test_a_row_is_of_the_hour_of_the_folder_of_its_file(at_ms: int, is_good: bool) -> None:  # noqa: FBT001 - a case
    found = judged(bundle_rows({"at_ms": START_MS + at_ms}), BUNDLE_REPORTS, START_MS)
    assert (found.clean.num_rows, found.rejected.column("reason").to_pylist()) == (
        (1, []) if is_good else (0, ["impossible"])
    )


def test_of_copies_that_of_the_first_file_stays_and_one_that_is_bad_does_not_count() -> None:
    first, second, third = together(
        [{"topics": -1}, {"topics": 3}], [{"topics": 2}], [{"range_lower": 1}, {"sequence": 2}]
    )
    assert first.clean.column("topics").to_pylist() == [3]
    assert first.rejected.column("reason").to_pylist() == ["negative"]
    assert (second.clean.num_rows, second.rejected.column("reason").to_pylist()) == (0, ["duplicate"])
    assert (third.clean.num_rows, third.rejected.num_rows) == (2, 0)


def broker_row(**wrong: object) -> pa.Table:
    numbers = {each.name: 1 for each in raw_schema(BROKER_REPORTS) if pa.types.is_primitive(each.type)}
    texts = {each.name: "x" for each in raw_schema(BROKER_REPORTS) if pa.types.is_dictionary(each.type)}
    row = {**numbers, **texts, "persistent_enabled": True, "non_persistent_enabled": True, **wrong}
    return pa.Table.from_pylist([row], raw_schema(BROKER_REPORTS))


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"cpu_usage": float("nan")}, "not_a_number"),
        ({"memory_limit": -1.0}, "negative"),
        ({"bandwidth_in_usage": -1.0}, "negative"),
        ({"broker": None}, "missing"),
        ({"topics": 2 * 10**18}, "impossible"),
    ],
)
def test_a_broker_that_says_what_cannot_be_is_rejected(wrong: dict[str, Any], reason: str) -> None:
    found = judged(broker_row(**wrong), BROKER_REPORTS)
    assert found.clean.num_rows == 0
    assert found.rejected.column("reason").to_pylist() == [reason]


def test_what_came_with_a_later_schema_may_be_missing() -> None:
    found = judged(broker_row(latency_ms=None), BROKER_REPORTS)
    assert found.clean.column("latency_ms").to_pylist() == [None]


def test_a_bandwidth_that_a_broker_of_pulsars_does_not_know_is_none() -> None:
    unknown = {"bandwidth_in_usage": -1.0, "bandwidth_in_limit": -1.0, "bandwidth_out_limit": -1_000.0}
    found = judged(broker_row(**unknown), BROKER_REPORTS)
    (clean,) = found.clean.to_pylist()
    assert [clean[name] for name in unknown] == [0.0, 0.0, 0.0]
    assert clean["bandwidth_out_usage"] == 0.0
    assert clean["cpu_usage"] == 1.0
    assert found.rejected.num_rows == 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_three_hours(tmp_path / "history")


Cleaned = dict[tuple[str, str], list[dict[str, Any]]]
"""Rows by table and part."""


def cleaned(
    folder: Path, *, shared: bool = False, from_ms: int | None = None, to_ms: int | None = None, gone: str = ""
) -> tuple[Cleaned, list[Rejections], list[Damaged]]:
    """What a task makes of all files; those of a table and an hour are looked at together if they are `shared`."""
    files: dict[object, list[FileToClean]] = {}
    for table in (BROKER_REPORTS, BUNDLE_REPORTS, EVENTS):
        for file in Directory.of(str(folder)).list_files(table)[0]:
            end_ms = START_MS + 2 * HOUR_MS
            each = FileToClean(table, file.path, file.hour_ms, "day", "day.end", end_ms)
            files.setdefault((table, file.hour_ms) if shared else file.path, []).append(each)
    groups = [tuple(sorted(each, key=lambda file: file.path)) for each in files.values()]
    contents = {place_of(path): Path(path).read_bytes() for path in map(str, folder.rglob("*.parquet"))}
    contents = {place: content for place, content in contents.items() if not gone or gone not in place}
    work = Cleaning(from_ms, to_ms, ["broker_gone"], ["at_ms", "kind"])
    made = list(work(0, groups, contents))
    rows = {(each.table, each.part): unpacked(each.data).to_pylist() for each in made if isinstance(each, Packed)}
    for packed in made:
        if isinstance(packed, Packed):
            times = [row["at_ms"] for row in rows[packed.table, packed.part] if row["at_ms"] is not None]
            assert (packed.rows, packed.times) == (len(rows[packed.table, packed.part]), (min(times), max(times)))
    return (
        rows,
        [each for each in made if isinstance(each, Rejections)],
        [each for each in made if isinstance(each, Damaged)],
    )


def hours(rows: list[dict[str, Any]]) -> list[int]:
    return sorted((row["at_ms"] - START_MS) // HOUR_MS for row in rows)


def test_clean_rows_are_those_that_the_history_has_and_those_of_the_end_are_a_part_of_their_own(folder: Path) -> None:
    found, rejections, damaged = cleaned(folder)
    for table in (BROKER_REPORTS, BUNDLE_REPORTS):
        expected = [
            {name: float(value) if name.startswith("msg") else value for name, value in row.items()}
            for row in History(str(folder)).rows(table)
        ]
        assert found[f"clean_{table}", "day"] + found[f"clean_{table}", "day.end"] == expected
        assert set(hours(found[f"clean_{table}", "day.end"])) == {2}
    assert (rejections, damaged) == ([], [])


def test_only_rows_of_the_range_are_taken(folder: Path) -> None:
    found, _, _ = cleaned(folder, from_ms=START_MS + 1, to_ms=START_MS + 2 * HOUR_MS)
    assert {table: hours(rows) for (table, _), rows in found.items()} == {
        "clean_broker_reports": [1],
        "clean_bundle_reports": [1, 1],
    }


def test_a_file_that_is_gone_by_now_has_no_rows(folder: Path) -> None:
    found, _, damaged = cleaned(folder, gone="hour=01")
    assert hours(found["clean_broker_reports", "day"]) == [0]
    assert damaged == []


def test_a_file_that_is_there_twice_counts_once(folder: Path) -> None:
    for table in (BUNDLE_REPORTS, BROKER_REPORTS):
        for file in files_of(folder, table):
            shutil.copy(file, file.with_name(file.name.replace("-node", "-other")))
    found, rejections, _ = cleaned(folder, shared=True)
    assert hours(found["clean_bundle_reports", "day"]) == [0, 0, 1, 1]
    assert {(each.table, each.reason, each.part, each.count, each.file[-14:]) for each in rejections} == {
        (BROKER_REPORTS, "duplicate", "day", 1, "-other.parquet"),
        (BUNDLE_REPORTS, "duplicate", "day", 2, "-other.parquet"),
    }
    assert json.loads(rejections[-1].example)["namespace"] == "tenant/ns"
    rejected = found["rejected_bundle_reports", "day"]
    assert list(rejected[0]) == [*raw_schema(BUNDLE_REPORTS).names, "file", "reason"]
    assert {(row["file"][-14:], row["reason"]) for row in rejected} == {("-other.parquet", "duplicate")}


def rewritten(file: Path, **columns: pa.Array) -> None:
    """As other programs write it: decimals as bytes, no statistics, and these columns of other types or values."""
    table = pq.read_table(file, partitioning=None)
    for name, column in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, column)
    pq.write_table(table, file, write_statistics=False)


def test_what_json_has_no_number_for_is_text_in_an_example(folder: Path) -> None:
    rewritten(files_of(folder, BUNDLE_REPORTS)[0], msg_rate_in=pa.array([float("nan"), 1.0]))
    found, (rejection,), _ = cleaned(folder)
    assert hours(found["clean_bundle_reports", "day"]) == [0, 1, 1]
    assert rejection.reason == "not_a_number"
    assert json.loads(rejection.example)["msg_rate_in"] == "nan"


def test_valid_numbers_of_other_types_are_the_same_numbers(folder: Path) -> None:
    expected, _, _ = cleaned(folder)
    wide, thin, _ = files_of(folder, BUNDLE_REPORTS)
    table = pq.read_table(wide, partitioning=None)
    kinds = {"msg_rate_out": pa.decimal128(30, 5), "topics": pa.decimal128(19, 0), "namespace": pa.string()}
    rewritten(wide, **{name: table.column(name).cast(kind) for name, kind in kinds.items()})
    kinds = {"msg_rate_in": pa.float64(), "msg_rate_out": pa.int32(), "topics": pa.int16(), "sessions": pa.uint64()}
    table = pq.read_table(thin, partitioning=None)
    rewritten(thin, **{name: table.column(name).cast(kind) for name, kind in kinds.items()})
    assert cleaned(folder)[0] == expected


def test_a_rate_that_is_missing_is_rejected(folder: Path) -> None:
    file = files_of(folder, BUNDLE_REPORTS)[0]
    table = pq.read_table(file, partitioning=None)
    rates = table.column("msg_rate_in").to_pylist()
    rewritten(file, msg_rate_in=pa.array([None, rates[1]], table.schema.field("msg_rate_in").type))
    found, (rejection,), _ = cleaned(folder)
    assert rejection.reason == "missing"
    assert "msg_rate_in" not in json.loads(rejection.example)
    assert [row["msg_rate_in"] for row in found["clean_bundle_reports", "day"]] == [1.001] * 3


def test_a_column_that_an_older_schema_has_not_is_missing(folder: Path) -> None:
    (first, *_) = files_of(folder, BROKER_REPORTS)
    table = pq.read_table(first, partitioning=None).drop_columns(["latency_ms"])
    pq.write_table(table.replace_schema_metadata({SCHEMA_KEY: f"{BROKER_REPORTS}/1".encode()}), first)
    found, _, _ = cleaned(folder)
    assert found["clean_broker_reports", "day"][0]["latency_ms"] is None


def of_text(file: Path) -> None:
    rewritten(file, topics=pa.array(["many", "more"]))


@pytest.mark.parametrize("damage", [cut_in_half, damage_pages, of_text])
def test_a_file_that_cannot_be_read_is_named_and_none_of_its_rows_count(
    folder: Path, damage: Callable[[Path], None]
) -> None:
    (_, second, _) = files_of(folder, BUNDLE_REPORTS)
    damage(second)
    found, rejections, (damaged,) = cleaned(folder)
    assert hours(found["clean_bundle_reports", "day"]) == [0, 0]
    assert (damaged.table, damaged.path, rejections) == (BUNDLE_REPORTS, str(second), [])
    assert damaged.why
    assert str(second) not in damaged.why


def test_of_events_those_of_the_kinds_wanted_are_kept_with_their_columns(folder: Path) -> None:
    happened = [Event("broker_gone", "a:1"), Event("checkpoint", "x"), Event("broker_gone", "b:1")]
    history_of(folder, [(at * MINUTE_MS, event) for at, event in enumerate(happened)], first=100)
    (file,) = files_of(folder, EVENTS)
    rewritten(file, at_ms=pa.array([START_MS, START_MS + 1, START_MS + HOUR_MS]))
    found, _, _ = cleaned(folder)
    assert found["fleet_events", "day"] == [{"at_ms": START_MS, "kind": "broker_gone"}]


def test_rows_are_read_some_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmanager.pipeline.raw_rows._BATCH_ROWS", 1)

    def batches() -> Iterator[pa.Table]:
        file = files_of(folder, BUNDLE_REPORTS)[0]
        yield from raw_rows(file.read_bytes(), BUNDLE_REPORTS, str(file))

    assert [each.num_rows for each in batches()] == [1, 1]
    assert pa.concat_tables(batches()).schema == raw_schema(BUNDLE_REPORTS)
    assert TABLES[BUNDLE_REPORTS].schema.names == raw_schema(BUNDLE_REPORTS).names
