"""Reject reasons: which rows are used, and what is kept of the others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t
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
from support.ingested import ingested, rows_in

from loadmanager.errors import PipelineError
from loadmanager.history.entry_rows import HistoryEvent
from loadmanager.history.table_schemas import BROKER_REPORTS, BUNDLE_REPORTS
from loadmanager.pipeline.datasets import INGESTED, frame_of, raw
from loadmanager.pipeline.reject_reasons import rejected_rows, usable, with_duplicates, with_reason

INFINITY, NAN = float("inf"), float("nan")
GOOD_BUNDLE = {
    "at_ms": START_MS, "epoch": 1, "sequence": 1, "broker": "a:1", "namespace": "t/n", "range_lower": 0,
    "range_upper": 16, "msg_rate_in": 1.0, "msg_rate_out": 1.0, "msg_throughput_in": 1, "msg_throughput_out": 1,
    "topics": 1, "sessions": 1, "cache_bytes": 0, "file": "first", "hour_ms": START_MS,
}  # fmt: skip

BUNDLES: list[tuple[dict[str, Any], str | None]] = [
    ({}, None),
    ({"namespace": None}, "missing"),
    ({"cache_bytes": None}, "missing"),
    ({"at_ms": None}, "missing"),
    ({"msg_rate_in": NAN}, "not_a_number"),
    ({"msg_rate_out": INFINITY}, "not_a_number"),
    ({"msg_rate_out": -INFINITY}, "not_a_number"),
    ({"msg_rate_in": -0.001}, "negative"),
    ({"msg_throughput_in": -1}, "negative"),
    ({"topics": -1}, "negative"),
    ({"msg_rate_in": 1e13}, "impossible"),
    ({"msg_throughput_out": 2 * 10**18}, "impossible"),
    ({"range_lower": 16}, "impossible"),
    ({"range_upper": 2**32}, "impossible"),
    ({"at_ms": -1}, "impossible"),
    ({"at_ms": START_MS + HOUR_MS - 1}, None),
    ({"at_ms": START_MS - 1}, "impossible"),
    ({"at_ms": START_MS + HOUR_MS}, "impossible"),
    ({"namespace": None, "topics": -1}, "missing"),
    ({"msg_rate_in": NAN, "topics": -1}, "not_a_number"),
    ({"topics": -1, "range_lower": 16}, "negative"),
]

UNKNOWN = {"bandwidth_in_usage": -1.0, "bandwidth_in_limit": -1.0, "bandwidth_out_limit": -1_000.0}
"""A broker of Pulsar's that does not know the speed of its network."""

BROKERS: list[tuple[dict[str, Any], str | None]] = [
    ({}, None),
    ({"cpu_usage": NAN}, "not_a_number"),
    ({"memory_limit": -1.0}, "negative"),
    ({"bandwidth_in_usage": -1.0}, "negative"),
    ({"broker": None}, "missing"),
    ({"topics": 2 * 10**18}, "impossible"),
    ({"latency_ms": None}, None),
    (UNKNOWN, None),
]


def frame(spark: SparkSession, table: str, rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    schema = t.StructType([*raw(table), t.StructField("file", t.StringType()), t.StructField("hour_ms", t.LongType())])
    return frame_of(spark, schema, ([row[name] for name in schema.names] for row in rows))


def good_broker() -> dict[str, Any]:
    values: dict[t.DataType, Any] = {t.LongType(): 1, t.DoubleType(): 1.0, t.StringType(): "x", t.BooleanType(): True}
    row = {each.name: values[each.dataType] for each in raw(BROKER_REPORTS)}
    return {**row, "at_ms": START_MS, "file": "first", "hour_ms": START_MS}


@pytest.mark.parametrize(
    ("table", "good", "cases"),
    [(BUNDLE_REPORTS, GOOD_BUNDLE, BUNDLES), (BROKER_REPORTS, good_broker(), BROKERS)],
    ids=[BUNDLE_REPORTS, BROKER_REPORTS],
)
def test_row_is_rejected_for_the_first_matching_reason(
    spark: SparkSession, table: str, good: dict[str, Any], cases: list[tuple[dict[str, Any], str | None]]
) -> None:
    given = [{**good, **wrong, "sequence": number} for number, (wrong, _) in enumerate(cases)]
    judged = with_reason(frame(spark, table, given), table).persist()
    assert [row["reason"] for row in rows_of(judged, "sequence")] == [reason for _, reason in cases]
    used = rows_of(usable(judged, table), "sequence")
    assert [row["sequence"] for row in used] == [at for at, (_, reason) in enumerate(cases) if reason is None]
    if table == BROKER_REPORTS:
        assert {name: used[-1][name] for name in (*UNKNOWN, "bandwidth_out_usage")} == dict.fromkeys(
            (*UNKNOWN, "bandwidth_out_usage"), 0.0
        )
        assert used[-1]["cpu_usage"] == 1.0
    judged.unpersist()


def test_first_valid_copy_is_used_and_later_ones_are_duplicates(spark: SparkSession) -> None:
    given = [
        {**GOOD_BUNDLE, "topics": -1},
        {**GOOD_BUNDLE, "topics": 3, "file": "second"},
        {**GOOD_BUNDLE, "topics": 2, "file": "third"},
        {**GOOD_BUNDLE, "range_lower": 1, "file": "third"},
        {**GOOD_BUNDLE, "sequence": 2, "file": "third"},
    ]
    judged = with_duplicates(with_reason(frame(spark, BUNDLE_REPORTS, given), BUNDLE_REPORTS), BUNDLE_REPORTS)
    reasons = {(row["file"], row["range_lower"], row["sequence"]): row["reason"] for row in rows_of(judged)}
    assert reasons == {
        ("first", 0, 1): "negative",
        ("second", 0, 1): None,
        ("third", 0, 1): "duplicate",
        ("third", 1, 1): None,
        ("third", 0, 2): None,
    }
    counted = rows_of(rejected_rows(judged, BUNDLE_REPORTS), "file")
    assert [(row["table"], row["hour_ms"], row["file"], row["reason"], row["count"]) for row in counted] == [
        (BUNDLE_REPORTS, START_MS, "first", "negative", 1),
        (BUNDLE_REPORTS, START_MS, "third", "duplicate", 1),
    ]
    assert json.loads(counted[0]["example"])["topics"] == -1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_three_hours(tmp_path / "history")


def test_duplicated_file_counts_once(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    expected = rows_in(ingested(spark, str(folder), tmp_path / "once"), "bundle_windows")
    for table in (BUNDLE_REPORTS, BROKER_REPORTS):
        for file in files_of(folder, table)[:2]:
            shutil.copy(file, file.with_name(file.name.replace("-node", "-other")))
    tables = ingested(spark, str(folder), tmp_path / "twice")
    assert rows_in(tables, "bundle_windows") == expected
    counted = [
        (row["table"], row["reason"], row["count"], row["file"][-14:]) for row in rows_in(tables, "rejected_rows")
    ]
    other = "-other.parquet"
    assert (
        sorted(counted) == [(BROKER_REPORTS, "duplicate", 1, other)] * 2 + [(BUNDLE_REPORTS, "duplicate", 2, other)] * 2
    )


def test_damaged_file_is_named_or_left_out(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    bad = files_of(folder, BUNDLE_REPORTS)[1]
    damage_pages(bad)
    with pytest.raises(PipelineError, match=str(bad)):
        ingested(spark, str(folder), tmp_path / "out")
    tables = ingested(spark, str(folder), tmp_path / "out", leave_out_bad_files=True)
    (row,) = rows_in(tables, "rejected_rows")
    assert (row["table"], row["reason"], row["count"]) == (BUNDLE_REPORTS, "bad_file", 0)
    assert str(bad).endswith(row["file"])
    assert {each["start_ms"] for each in rows_in(tables, "reported_by")} == {START_MS, START_MS + 2 * HOUR_MS}
    with pytest.raises(PipelineError, match=str(bad)):
        ingested(spark, str(folder), tmp_path / "out")


def test_windows_outlive_a_removed_damaged_file(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    cut_in_half(files_of(folder, BUNDLE_REPORTS)[1])
    before = ingested(spark, str(folder), tmp_path / "out", leave_out_bad_files=True)
    rows = {name: rows_in(before, name) for name in INGESTED}
    for hour in folder.glob("*/date=*/hour=01"):
        shutil.rmtree(hour)
    after = ingested(spark, str(folder), tmp_path / "out")
    assert {name: rows_in(after, name) for name in INGESTED} == rows


def test_only_events_on_reports_or_members_are_kept(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    happened = [HistoryEvent("broker_gone", "a:1"), HistoryEvent("checkpoint", "", {}), HistoryEvent("term_began")]
    history_of(folder, [(MINUTE_MS * at, each) for at, each in enumerate(happened)], first=100)
    tables = ingested(spark, str(folder), tmp_path / "out")
    assert [row["kind"] for row in rows_in(tables, "fleet_events")] == ["broker_gone", "term_began"]
