"""The data source `loadmanager` on a Spark session: rows, options, damaged files, versions, tasks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from support.frames import (
    HOUR_MS,
    START_MS,
    cut_in_half,
    damage_pages,
    files_of,
    history_of,
    rows_of,
    write_three_hours,
)

from loadmanager.history.entry_rows import Decision
from loadmanager.history.reader import History
from loadmanager.history.table_schemas import BROKER_REPORTS, BUNDLE_REPORTS, DECISIONS, SCHEMA_KEY, TABLES
from loadmanager.pipeline import source
from loadmanager.pipeline.datasets import raw
from loadmanager.pipeline.source import FORMAT, PERMISSIVE, HistoryDataSource, place_of

KEYS = ("at_ms", "sequence")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_three_hours(tmp_path / "history")


@pytest.fixture
def load(spark: SparkSession, folder: Path) -> Callable[..., DataFrame]:
    def load(table: str = BUNDLE_REPORTS, **options: object) -> DataFrame:
        return spark.read.format(FORMAT).option("table", table).options(**options).load(str(folder))  # type: ignore[arg-type]

    return load


def hours(frame: DataFrame) -> list[int]:
    return sorted((row.hour_ms - START_MS) // HOUR_MS for row in frame.select("hour_ms").collect())


def rewrite(file: Path, **kinds: pa.DataType) -> None:
    """Write as other programs do: decimals as bytes, no statistics, and these columns of other types."""
    table = pq.read_table(file, partitioning=None)
    for name, kind in kinds.items():
        table = table.set_column(table.schema.get_field_index(name), name, table.column(name).cast(kind))
    pq.write_table(table, file, write_statistics=False)


def write_version(file: Path, version: int, without: tuple[str, ...] = ()) -> None:
    table = pq.read_table(file, partitioning=None).drop_columns(list(without))
    pq.write_table(table.replace_schema_metadata({SCHEMA_KEY: f"{BUNDLE_REPORTS}/{version}".encode()}), file)


@pytest.mark.parametrize("table", [BROKER_REPORTS, BUNDLE_REPORTS])
def test_rows_equal_those_of_the_history_reader(load: Callable[..., DataFrame], folder: Path, table: str) -> None:
    expected = [
        {name: float(value) if name.startswith("msg") else value for name, value in row.items()}
        for row in History(str(folder)).rows(table)
    ]
    frame = load(table)
    order = ("at_ms", "range_lower") if table == BUNDLE_REPORTS else ("at_ms",)
    assert rows_of(frame.drop("file", "hour_ms"), *order) == expected
    assert frame.drop("file", "hour_ms").schema == raw(table)
    places = [place_of(str(file)) for file in files_of(folder, table)]
    assert {(row.file, row.hour_ms) for row in frame.select("file", "hour_ms").collect()} == {
        (place, START_MS + hour * HOUR_MS) for hour, place in enumerate(places)
    }


def test_nested_columns_are_read(spark: SparkSession, tmp_path: Path) -> None:
    step = {"kind": "unload", "bundle": "b", "source": "a:1", "reason": "drain"}
    url = history_of(tmp_path, [(0, Decision("shed", 1, "s", 0.5, [step]))])
    (row,) = rows_of(spark.read.format(FORMAT).option("table", DECISIONS).load(url))
    assert row["steps"][0] | step == row["steps"][0]


def test_other_number_types_are_read_as_the_same_numbers(load: Callable[..., DataFrame], folder: Path) -> None:
    expected = rows_of(load(), "at_ms", "range_lower")
    wide, thin, _ = files_of(folder, BUNDLE_REPORTS)
    rewrite(wide, msg_rate_out=pa.decimal128(30, 5), topics=pa.decimal128(19, 0))
    rewrite(thin, msg_rate_in=pa.float64(), msg_rate_out=pa.int32(), topics=pa.int16(), sessions=pa.uint64())
    assert rows_of(load(), "at_ms", "range_lower") == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"from_ms": START_MS + HOUR_MS}, [1, 1, 2, 2]),
        ({"to_ms": START_MS + HOUR_MS}, [0, 0]),
        ({"from_ms": START_MS + 1, "to_ms": START_MS + 2 * HOUR_MS}, [1, 1]),
    ],
)
def test_time_options_select_rows(
    load: Callable[..., DataFrame], options: dict[str, object], expected: list[int]
) -> None:
    assert hours(load(**options)) == expected
    assert hours(load(**options, columns="file,hour_ms")) == expected


@pytest.mark.parametrize(
    "options",
    [
        {"from_ms": START_MS + 2 * HOUR_MS},
        {"files": "last"},
    ],
)
def test_unneeded_files_are_not_opened(
    load: Callable[..., DataFrame], folder: Path, options: dict[str, object]
) -> None:
    first, second, last = files_of(folder, BUNDLE_REPORTS)
    cut_in_half(first)
    damage_pages(second)
    if "files" in options:
        options = {"files": json.dumps([place_of(str(last)), "bundle_reports/date=2026-09-21/hour=09/gone.parquet"])}
    assert hours(load(**options)) == [2, 2]


def test_filter_of_one_query_does_not_affect_the_next(load: Callable[..., DataFrame]) -> None:
    frame = load()
    late = frame.where(f"at_ms >= {START_MS + 2 * HOUR_MS}")
    assert hours(late) == [2, 2]
    assert hours(frame) == [0, 0, 1, 1, 2, 2]
    assert hours(late.union(frame.where(f"at_ms < {START_MS + HOUR_MS}"))) == [0, 0, 2, 2]


def test_columns_option_selects_and_orders_columns(load: Callable[..., DataFrame]) -> None:
    assert load(columns="topics, file,at_ms").columns == ["topics", "file", "at_ms"]


def foreign(file: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), file)


def without_a_column(file: Path) -> None:
    pq.write_table(pq.read_table(file, partitioning=None).drop_columns(["topics"]), file)


def with_topics(topics: object, file: Path) -> None:
    table = pq.read_table(file, partitioning=None)
    at = table.schema.get_field_index("topics")
    pq.write_table(table.set_column(at, "topics", pa.array([topics] * table.num_rows)), file)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (cut_in_half, "not a Parquet file that can be read"),
        (damage_pages, "not a Parquet file that can be read"),
        (foreign, "not a file of bundle_reports"),
        (without_a_column, "has no column topics"),
        (partial(with_topics, "many"), "column topics is string, expected int64"),
        (partial(with_topics, 1.5), "column topics is double, expected int64"),
    ],
)
def test_unreadable_file_is_an_error_or_a_row_with_its_name(
    load: Callable[..., DataFrame], folder: Path, damage: Callable[[Path], None], why: str
) -> None:
    _, second, _ = files_of(folder, BUNDLE_REPORTS)
    damage(second)
    with pytest.raises(PySparkException, match=f"HistoryFileError: {second}: {why}"):
        load().collect()
    frame = load(mode=PERMISSIVE)
    assert hours(frame.where("damaged IS NULL")) == [0, 0, 2, 2]
    (row,) = rows_of(frame.where("damaged IS NOT NULL"))
    assert why in row.pop("damaged")
    assert (row.pop("file"), row.pop("hour_ms")) == (place_of(str(second)), START_MS + HOUR_MS)
    assert set(row.values()) == {None}


def test_damaged_page_leaves_out_the_whole_file(load: Callable[..., DataFrame], folder: Path) -> None:
    (first, *_) = files_of(folder, BUNDLE_REPORTS)
    rows = pa.concat_tables([pq.read_table(first, partitioning=None)] * 40_000)
    pq.write_table(rows, first, row_group_size=len(rows) // 2, store_decimal_as_integer=True)
    with pq.ParquetFile(first) as parquet:
        at = parquet.metadata.row_group(1).column(0).data_page_offset
    data = bytearray(first.read_bytes())
    data[at : at + 20] = bytes(255 for _ in range(20))
    first.write_bytes(data)
    assert hours(load(mode="permissive").where("damaged IS NULL")) == [1, 1, 2, 2]


def test_foreign_file_name_is_an_error_or_a_row(load: Callable[..., DataFrame], folder: Path) -> None:
    (first, *_) = files_of(folder, BUNDLE_REPORTS)
    stranger = shutil.copy(first, first.with_name("copy.parquet"))
    with pytest.raises(PySparkException, match=r"copy\.parquet: not a name of a file of the history"):
        load().collect()
    (row,) = load(mode=PERMISSIVE).where("damaged IS NOT NULL").collect()
    assert (row.file, row.hour_ms, row.at_ms) == (place_of(str(stranger)), None, None)
    assert len(load(files=json.dumps([place_of(str(first))])).collect()) == 2


def test_newer_schema_is_an_error_in_both_modes(load: Callable[..., DataFrame], folder: Path) -> None:
    (first, *_) = files_of(folder, BUNDLE_REPORTS)
    write_version(first, TABLES[BUNDLE_REPORTS].version + 1)
    for mode in ("FAILFAST", "PERMISSIVE"):
        with pytest.raises(PySparkException, match=f"HistorySchemaError: {first}: written with version .* a newer one"):
            load(mode=mode).collect()


def test_column_missing_in_an_older_schema_is_null(load: Callable[..., DataFrame], folder: Path) -> None:
    (first, *_) = files_of(folder, BUNDLE_REPORTS)
    write_version(first, 0, without=("cache_bytes",))
    assert [row.cache_bytes for row in load().orderBy("at_ms").collect()] == [None, None, 0, 0, 0, 0]


def test_unfinished_files_are_not_read(load: Callable[..., DataFrame], folder: Path) -> None:
    (first, *_) = files_of(folder, BUNDLE_REPORTS)
    first.with_name(f".tmp-{first.name}").write_bytes(first.read_bytes()[:100])
    assert hours(load()) == [0, 0, 1, 1, 2, 2]


def test_file_removed_after_planning_is_left_out(folder: Path) -> None:
    options = {"path": str(folder), "table": BUNDLE_REPORTS}
    history = HistoryDataSource(options)
    reader = history.reader(history.schema())
    (task,) = reader.partitions()
    files_of(folder, BUNDLE_REPORTS)[0].unlink()
    assert sum(len(batch) for batch in reader.read(task)) == 4


def test_tasks_share_the_bytes_in_time_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [file.stat().st_size for file in files_of(folder, BUNDLE_REPORTS)]
    monkeypatch.setattr(source, "_FILE_BYTES", 0)
    monkeypatch.setattr(source, "_TASK_BYTES", sum(sizes) // 2)
    history = HistoryDataSource({"path": str(folder), "table": BUNDLE_REPORTS})
    tasks = history.reader(history.schema()).partitions()
    hours_of = [[(file.hour_ms - START_MS) // HOUR_MS for file in vars(task)["files"]] for task in tasks]
    assert hours_of == [[0], [1], [2]]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"table": "tables"}, "option table 'tables': unknown; the history has broker_reports"),
        ({}, "option table '': unknown"),
        ({"table": "events", "mode": "DROP"}, "option mode 'DROP': expected FAILFAST or PERMISSIVE"),
        ({"table": "events", "form_ms": "1"}, "option form_ms: unknown; there are table, mode, from_ms"),
        ({"table": "events", "from_ms": "noon"}, "option from_ms 'noon': expected ms since 1970"),
        ({"table": "events", "files": "{}"}, r"option files '\{\}': expected a JSON list"),
        ({"table": "events", "columns": "kind,x"}, "option columns: x: unknown; there are at_ms"),
        ({"table": "events", "path": "/nowhere"}, "/nowhere: there is no history: no such directory"),
        ({"table": "events", "path": ""}, r"\.load\(\): there is no history"),
    ],
)
def test_bad_option_is_refused_with_the_fix(
    spark: SparkSession, folder: Path, options: dict[str, str], why: str
) -> None:
    reader = spark.read.format(FORMAT).options(**{"path": str(folder)} | options)
    with pytest.raises(PySparkException, match=f"PipelineError: {why}"):
        reader.load()
