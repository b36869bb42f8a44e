"""What Spark gets to see of a history, and what is said about files that it must not see."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from support.frames import (
    HOUR_MS,
    MINUTE_MS,
    START_MS,
    cut_in_half,
    damage_pages,
    files_of,
    history_of,
    rows_of,
    write_three_hours,
)

from loadmanager.errors import HistoryFileError, HistorySchemaError, PipelineError
from loadmanager.history.entry_rows import Decision
from loadmanager.history.files import Directory, HistoryFile
from loadmanager.history.reader import History
from loadmanager.history.table_schemas import (
    BROKER_REPORTS,
    BUNDLE_REPORTS,
    DECISIONS,
    EVENTS,
    SCHEMA_KEY,
    TABLES,
)
from loadmanager.pipeline.cleaning import overlapping_files
from loadmanager.pipeline.filesystems import _Hadoop
from loadmanager.pipeline.reading import DamagedFileError, HistoryTables, read_leaving_out
from loadmanager.pipeline.schemas import raw


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_three_hours(tmp_path / "history")


def times(frame: DataFrame) -> list[int]:
    return sorted((row.at_ms - START_MS) // HOUR_MS for row in frame.select("at_ms").collect())


def test_rows_are_those_that_the_history_reads_itself(spark: SparkSession, folder: Path) -> None:
    for table in (BROKER_REPORTS, BUNDLE_REPORTS):
        frame = HistoryTables(spark, str(folder)).frame(table)
        expected = [
            {name: float(value) if name.startswith("msg") else value for name, value in row.items()}
            for row in History(str(folder)).rows(table)
        ]
        assert rows_of(frame, "at_ms", *(["range_lower"] if table == BUNDLE_REPORTS else [])) == expected
        assert frame.schema == raw(table)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 12), st.integers(0, 4)), max_size=8))
def test_files_overlap_that_may_share_a_report(drawn: list[tuple[int, int, int]]) -> None:
    files = [
        HistoryFile(BUNDLE_REPORTS, str(number), 0, epoch, first, first + more, 0)
        for number, (epoch, first, more) in enumerate(drawn)
    ]
    share = {
        each.path
        for each in files
        for other in files
        if each is not other and each.epoch == other.epoch and each.first <= other.last and other.first <= each.last
    }
    assert overlapping_files(files) == share


def test_valid_numbers_of_other_types_are_the_same_numbers(spark: SparkSession, folder: Path) -> None:
    expected = rows_of(HistoryTables(spark, str(folder)).frame(BUNDLE_REPORTS), "at_ms", "range_lower")
    wide, thin, _ = files_of(folder, BUNDLE_REPORTS)
    rewritten(wide, msg_rate_out=pa.decimal128(30, 5), topics=pa.decimal128(19, 0))
    rewritten(thin, msg_rate_in=pa.float64(), msg_rate_out=pa.int32(), topics=pa.int16(), sessions=pa.uint64())
    tables = HistoryTables(spark, str(folder), START_MS, START_MS + 3 * HOUR_MS)
    assert rows_of(tables.frame(BUNDLE_REPORTS), "at_ms", "range_lower") == expected


def test_nested_columns_are_read_too(spark: SparkSession, tmp_path: Path) -> None:
    step = {"kind": "unload", "bundle": "b", "source": "a:1", "reason": "drain"}
    url = history_of(tmp_path, [(0, Decision("shed", 1, "s", "h", 0.5, [step]))])
    (row,) = rows_of(HistoryTables(spark, url).frame(DECISIONS))
    assert row["steps"][0] | step == row["steps"][0]


def test_only_files_of_the_range_are_read(spark: SparkSession, folder: Path) -> None:
    tables = HistoryTables(spark, str(folder), START_MS + HOUR_MS, START_MS + 2 * HOUR_MS)
    frame = tables.frame(BUNDLE_REPORTS)
    assert times(frame) == [1, 1]
    assert [Path(file).parent.name for file in frame.inputFiles()] == ["hour=01"]
    assert tables.range == (START_MS + HOUR_MS, START_MS + HOUR_MS + 1)


@pytest.mark.parametrize(
    ("from_hour", "to_hour", "said"),
    [
        (
            5,
            6,
            "no bundle_reports in the range 2026-09-21T05:00:00Z to 2026-09-21T06:00:00Z; there is: 2026-09-21T00:00",
        ),
        (1, 1, "is empty: its end is not after its beginning"),
    ],
)
def test_a_range_without_anything_is_named(
    spark: SparkSession, folder: Path, from_hour: int, to_hour: int, said: str
) -> None:
    with pytest.raises(PipelineError, match=said):
        HistoryTables(spark, str(folder), START_MS + from_hour * HOUR_MS, START_MS + to_hour * HOUR_MS).frame(
            BUNDLE_REPORTS
        )


def test_a_range_in_which_nothing_was_reported_between_two_reports_of_an_hour_is_named(
    spark: SparkSession, folder: Path
) -> None:
    with pytest.raises(PipelineError, match="no broker_reports in the range"):
        HistoryTables(spark, str(folder), START_MS + MINUTE_MS, START_MS + 2 * MINUTE_MS).frame(BROKER_REPORTS)


def test_other_tables_may_be_empty(spark: SparkSession, folder: Path) -> None:
    assert HistoryTables(spark, str(folder)).frame(EVENTS).count() == 0


def test_a_history_that_is_not_there_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="nowhere: there is no history"):
        HistoryTables(spark, str(tmp_path / "nowhere"))


def test_what_is_not_finished_is_not_seen(spark: SparkSession, folder: Path) -> None:
    (first, *_) = files_of(folder, BUNDLE_REPORTS)
    first.with_name(f".tmp-{first.name}").write_bytes(first.read_bytes()[:100])
    assert times(HistoryTables(spark, str(folder)).frame(BUNDLE_REPORTS)) == [0, 0, 1, 1, 2, 2]


def foreign(file: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), file)


def without_a_column(file: Path) -> None:
    table = pq.read_table(file, partitioning=None)
    pq.write_table(table.drop_columns(["topics"]), file)


def of_fractions(file: Path) -> None:
    rewritten(file, topics=pa.float64())


def rewritten(file: Path, **kinds: pa.DataType) -> None:
    """As other programs write it: decimals as bytes, no statistics, and these columns of other types."""
    table = pq.read_table(file, partitioning=None)
    for name, kind in kinds.items():
        table = table.set_column(table.schema.get_field_index(name), name, table.column(name).cast(kind))
    pq.write_table(table, file, write_statistics=False)


def of_text(file: Path) -> None:
    table = pq.read_table(file, partitioning=None)
    at = table.schema.get_field_index("topics")
    pq.write_table(table.set_column(at, "topics", pa.array(["many"] * table.num_rows)), file)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut_in_half, "not a Parquet file that can be read"),
        (foreign, "not a file of bundle_reports"),
        (without_a_column, "has no column topics"),
        (of_text, "column topics is string, expected int64"),
        (of_fractions, "column topics is double, expected int64"),
    ],
)
def test_a_bad_file_is_named_or_left_out(spark: SparkSession, folder: Path, damage: object, said: str) -> None:
    (_, second, _) = files_of(folder, BUNDLE_REPORTS)
    assert callable(damage)
    damage(second)
    with pytest.raises(HistoryFileError, match=f"{second}: {said}"):
        HistoryTables(spark, str(folder)).frame(BUNDLE_REPORTS)
    tables = HistoryTables(spark, str(folder), bad_files="leave_out")
    assert times(tables.frame(BUNDLE_REPORTS)) == [0, 0, 2, 2]
    ((table, path, why),) = [(each.table, each.path, each.why) for each in tables.faults]
    assert (table, path) == (BUNDLE_REPORTS, str(second))
    assert said in why


def test_a_file_with_a_name_of_its_own_is_named_or_left_out(spark: SparkSession, folder: Path) -> None:
    (first, *_) = files_of(folder, BUNDLE_REPORTS)
    stranger = shutil.copy(first, first.with_name("copy.parquet"))
    with pytest.raises(HistoryFileError, match=r"copy\.parquet: not a name of a file of the history"):
        HistoryTables(spark, str(folder)).frame(BUNDLE_REPORTS)
    tables = HistoryTables(spark, str(folder), bad_files="leave_out")
    assert times(tables.frame(BUNDLE_REPORTS)) == [0, 0, 1, 1, 2, 2]
    assert [each.path for each in tables.faults] == [str(stranger)]


def test_a_file_whose_rows_are_damaged_is_named_once_spark_meets_it_or_left_out(
    spark: SparkSession, folder: Path
) -> None:
    (_, second, _) = files_of(folder, BUNDLE_REPORTS)
    damage_pages(second)
    strict = HistoryTables(spark, str(folder))
    with pytest.raises(DamagedFileError, match=f"^{second}: cannot be read: "):
        read_leaving_out(strict, lambda: times(strict.frame(BUNDLE_REPORTS).where("topics >= 0")))
    tables = HistoryTables(spark, str(folder), bad_files="leave_out")
    assert read_leaving_out(tables, lambda: times(tables.frame(BUNDLE_REPORTS).where("topics >= 0"))) == [0, 0, 2, 2]
    assert [each.path for each in tables.faults] == [str(second)]


def test_a_newer_schema_is_refused_whatever_is_to_be_left_out(spark: SparkSession, folder: Path) -> None:
    (first, *_) = files_of(folder, BUNDLE_REPORTS)
    table = pq.read_table(first, partitioning=None)
    newer = f"{BUNDLE_REPORTS}/{TABLES[BUNDLE_REPORTS].version + 1}".encode()
    pq.write_table(table.replace_schema_metadata({SCHEMA_KEY: newer}), first)
    with pytest.raises(HistorySchemaError, match=f"{first}: written with version .* or a newer one"):
        HistoryTables(spark, str(folder), bad_files="leave_out").frame(BUNDLE_REPORTS)


def test_a_column_that_an_older_schema_has_not_is_filled_with_nulls(spark: SparkSession, folder: Path) -> None:
    (first, *_) = files_of(folder, BUNDLE_REPORTS)
    table = pq.read_table(first, partitioning=None)
    older = {SCHEMA_KEY: f"{BUNDLE_REPORTS}/0".encode()}
    pq.write_table(
        table.drop_columns(["cache_bytes"]).replace_schema_metadata(older), first, store_decimal_as_integer=True
    )
    read = HistoryTables(spark, str(folder)).frame(BUNDLE_REPORTS).orderBy("at_ms").select("cache_bytes").collect()
    assert [row.cache_bytes for row in read] == [None, None, 0, 0, 0, 0]


def test_an_unknown_table_is_named(spark: SparkSession, folder: Path) -> None:
    with pytest.raises(PipelineError, match="table tables: unknown; the history has broker_reports"):
        HistoryTables(spark, str(folder)).frame("tables")


def test_hadoops_filesystems_show_the_same_as_those_of_this_machine(spark: SparkSession, folder: Path) -> None:
    url = f"file://{folder}"
    there = Directory(pa.fs.PyFileSystem(_Hadoop(spark, url)), url)
    here = History(str(folder))
    through = History(there)
    assert [each.order for each in through.files(BUNDLE_REPORTS)] == [each.order for each in here.files(BUNDLE_REPORTS)]
    assert list(through.rows(BUNDLE_REPORTS)) == list(here.rows(BUNDLE_REPORTS))
    assert there.exists()
    there.write("bundle_reports/new", b"content")
    assert (folder / "bundle_reports" / "new").read_bytes() == b"content"
    there.delete(f"{url}/bundle_reports/new")
    assert not (folder / "bundle_reports" / "new").exists()
    with pytest.raises(FileNotFoundError):
        there.open(f"{url}/bundle_reports/new")
