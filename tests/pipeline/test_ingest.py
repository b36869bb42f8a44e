"""Which rows are counted on, and what is kept of the others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from support.builders import bundle
from support.frames import HOUR_MS, START_MS, files_of, history_of, reported, rows_of

from loadmanager.errors import PipelineError
from loadmanager.history.schemas import BROKER_REPORTS, BUNDLE_REPORTS, TABLES
from loadmanager.pipeline.datasets import require
from loadmanager.pipeline.ingest import clean_broker_reports, clean_bundle_reports, rejected_rows
from loadmanager.pipeline.reading import FileFault, HistoryTables
from loadmanager.pipeline.schemas import raw
from loadmanager.pipeline.writing import Tables

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


def bundle_rows(spark: SparkSession, *rows: dict[str, Any]) -> Any:  # noqa: ANN401 - a frame
    schema = raw(BUNDLE_REPORTS).add("file", "string")
    full = [{"file": "f", **GOOD, **row} for row in rows]
    return spark.createDataFrame([tuple(row[name] for name in schema.names) for row in full], schema)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"namespace": None}, "missing"),
        ({"cache_bytes": None}, "missing"),
        ({"msg_rate_in": float("nan")}, "not_a_number"),
        ({"msg_rate_out": float("inf")}, "not_a_number"),
        ({"msg_rate_in": -0.001}, "negative"),
        ({"msg_throughput_in": -1}, "negative"),
        ({"topics": -1}, "negative"),
        ({"msg_rate_in": 1e13}, "impossible"),
        ({"msg_throughput_out": 2 * 10**18}, "impossible"),
        ({"range_lower": 16}, "impossible"),
        ({"range_upper": 2**32}, "impossible"),
        ({"at_ms": -1}, "impossible"),
        ({"namespace": None, "topics": -1}, "missing"),
    ],
)
def test_a_row_that_cannot_be_is_kept_with_its_reason(spark: SparkSession, wrong: dict[str, Any], reason: str) -> None:
    cleaned = clean_bundle_reports(bundle_rows(spark, {}, {**wrong, "sequence": 2}))
    assert rows_of(cleaned.clean) == [GOOD]
    (row,) = rows_of(cleaned.rejected)
    assert (row["reason"], row["file"], row["sequence"]) == (reason, "f", 2)


def test_of_copies_that_of_the_first_file_stays_and_one_that_is_bad_does_not_count(spark: SparkSession) -> None:
    rows = bundle_rows(
        spark,
        {"file": "b", "topics": 2},
        {"file": "a", "topics": 3},
        {"file": "a", "topics": -1},
        {"file": "c", "range_lower": 1},
    )
    cleaned = clean_bundle_reports(rows)
    assert [(row["range_lower"], row["topics"]) for row in rows_of(cleaned.clean, "range_lower")] == [(0, 3), (1, 1)]
    assert [(row["file"], row["reason"]) for row in rows_of(cleaned.rejected, "file")] == [
        ("a", "negative"),
        ("b", "duplicate"),
    ]


def test_a_file_that_is_there_twice_counts_once(spark: SparkSession, tmp_path: Path, tables: Tables) -> None:
    folder = tmp_path / "history"
    load = (1.0, 1.0, 1.0, 1.0)
    url = history_of(folder, [(0, reported("a", {bundle(1): load, bundle(2): load})), (1, reported("b", {}))])
    for table in (BUNDLE_REPORTS, BROKER_REPORTS):
        (file,) = files_of(folder, table)
        shutil.copy(file, file.with_name(file.name.replace("-node", "-other")))
    history = HistoryTables(spark, url)
    bundles = clean_bundle_reports(*history.to_clean(BUNDLE_REPORTS))
    brokers = clean_broker_reports(*history.to_clean(BROKER_REPORTS))
    assert (bundles.clean.count(), brokers.clean.count()) == (2, 2)
    rejected = rejected_rows(spark, {BUNDLE_REPORTS: bundles.rejected, BROKER_REPORTS: brokers.rejected})
    tables.write("rejected_rows", rejected)
    written = rows_of(tables.read("rejected_rows"), "table")
    assert [(row["table"], row["reason"], row["count"], row["file"][-14:]) for row in written] == [
        (BROKER_REPORTS, "duplicate", 2, "-other.parquet"),
        (BUNDLE_REPORTS, "duplicate", 2, "-other.parquet"),
    ]
    assert json.loads(written[1]["example"])["namespace"] == "tenant/ns"
    require(bundles.clean, "clean_bundle_reports")
    require(brokers.clean, "clean_broker_reports")
    require(bundles.rejected, "rejected_bundle_reports")
    require(brokers.rejected, "rejected_broker_reports")


def test_files_that_share_no_report_are_not_compared_and_only_those_with_rejected_rows_are_read_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    load = (1.0, 1.0, 1.0, 1.0)
    folder = tmp_path / "a history"
    for at in range(3):
        history_of(folder, [(at, reported("a", {bundle(1): load, bundle(2): load}))], first=at)
    first, bad, last = files_of(folder, BUNDLE_REPORTS)
    rows = pq.read_table(bad)
    at = rows.schema.get_field_index("topics")
    made = rows.set_column(at, rows.schema.field(at), pa.array([-1, 1], rows.schema.field(at).type))
    pq.write_table(made, bad, **TABLES[BUNDLE_REPORTS].write_options())
    cleaned = clean_bundle_reports(*HistoryTables(spark, str(folder)).to_clean(BUNDLE_REPORTS))
    assert "Exchange" not in cleaned.clean._jdf.queryExecution().executedPlan().toString()
    assert sorted(row["sequence"] for row in rows_of(cleaned.clean)) == [0, 0, 1, 2, 2]
    for file in (first, last):
        file.write_bytes(b"cannot be read any more")
    rejected = cleaned.find_rejected()
    assert rejected is not None
    (row,) = rows_of(rejected)
    assert (row["reason"], row["sequence"], row["file"].rpartition("/")[2]) == ("negative", 1, bad.name)


def test_where_nothing_is_rejected_nothing_is_to_be_read_again(spark: SparkSession, tmp_path: Path) -> None:
    history_of(tmp_path, [(0, reported("a", {}))])
    history = HistoryTables(spark, str(tmp_path))
    for table, clean in ((BUNDLE_REPORTS, clean_bundle_reports), (BROKER_REPORTS, clean_broker_reports)):
        cleaned = clean(*history.to_clean(table, may_be_empty=True))
        assert cleaned.clean.count() == (table == BROKER_REPORTS)
        assert cleaned.find_rejected() is None


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"cpu_usage": float("nan")}, "not_a_number"),
        ({"memory_limit": -1.0}, "negative"),
        ({"broker": None}, "missing"),
    ],
)
def test_a_broker_that_says_what_cannot_be_is_rejected(
    spark: SparkSession, tmp_path: Path, wrong: dict[str, Any], reason: str
) -> None:
    frame = HistoryTables(spark, history_of(tmp_path, [(0, reported("a", {}))])).frame(BROKER_REPORTS, with_file=True)
    (row,) = rows_of(frame)
    cleaned = clean_broker_reports(spark.createDataFrame([tuple({**row, **wrong}.values())], frame.schema))
    assert cleaned.clean.count() == 0
    assert [each["reason"] for each in rows_of(cleaned.rejected)] == [reason]


def test_a_bandwidth_that_a_broker_of_pulsars_does_not_know_is_none(spark: SparkSession, tmp_path: Path) -> None:
    frame = HistoryTables(spark, history_of(tmp_path, [(0, reported("a", {}))])).frame(BROKER_REPORTS, with_file=True)
    (row,) = rows_of(frame)
    unknown = {"bandwidth_in_usage": -1.0, "bandwidth_in_limit": -1.0, "bandwidth_out_limit": -1_000.0}
    cleaned = clean_broker_reports(spark.createDataFrame([tuple({**row, **unknown}.values())], frame.schema))
    (clean,) = rows_of(cleaned.clean)
    assert [clean[name] for name in unknown] == [0.0, 0.0, 0.0]
    assert cleaned.rejected.count() == 0


def test_files_that_were_left_out_are_told_with_the_rejected_rows(spark: SparkSession) -> None:
    none = clean_bundle_reports(bundle_rows(spark, {})).rejected
    (row,) = rows_of(rejected_rows(spark, {BUNDLE_REPORTS: none}, [FileFault(BUNDLE_REPORTS, "/x.parquet", "damaged")]))
    assert row == {
        "table": BUNDLE_REPORTS,
        "reason": "bad_file",
        "file": "/x.parquet",
        "count": 0,
        "example": "damaged",
    }


def test_rows_without_a_column_are_refused_by_its_name(spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match="bundle_reports: has no column topics, file; expected rows as"):
        clean_bundle_reports(bundle_rows(spark, {}).drop("topics", "file"))


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("topics", "many", "column topics is string, expected bigint"),
        ("more", "1", "columns more: not in it"),
    ],
)
def test_a_frame_that_is_not_the_table_is_refused_by_the_column(
    spark: SparkSession, column: str, value: str, said: str
) -> None:
    from pyspark.sql import functions as f  # noqa: PLC0415 - of this test alone

    frame = clean_bundle_reports(bundle_rows(spark, {})).clean.withColumn(column, f.lit(value))
    with pytest.raises(PipelineError, match=f"table clean_bundle_reports: {said}"):
        require(frame, "clean_bundle_reports")
    with pytest.raises(PipelineError, match="table nothing: unknown; there are clean_broker_reports"):
        require(frame, "nothing")


def test_rows_of_another_hour_than_the_folder_of_their_file_are_rejected(spark: SparkSession, tmp_path: Path) -> None:
    load = (1.0, 1.0, 1.0, 1.0)
    entries = [(HOUR_MS * hour, reported("a", {bundle(1): load})) for hour in (0, 1)]
    url = history_of(tmp_path / "history", entries)
    _, late = files_of(tmp_path / "history", BUNDLE_REPORTS)
    wrong = late.parent.with_name("hour=05")
    wrong.mkdir()
    late.rename(wrong / late.name)
    cleaned = clean_bundle_reports(*HistoryTables(spark, url).to_clean(BUNDLE_REPORTS))
    assert [row["at_ms"] for row in rows_of(cleaned.clean)] == [START_MS]
    assert [(row["at_ms"], row["reason"]) for row in rows_of(cleaned.rejected)] == [(START_MS + HOUR_MS, "impossible")]
