"""Contents of the report as read from the tables: as much as fits a page."""

from __future__ import annotations

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from support.window_frames import frame_of

from loadmanager.history.files import HOUR_MS
from loadmanager.pipeline.delta import Tables
from loadmanager.pipeline.job import Job, JobRun
from loadmanager.pipeline.reporting.contents import (
    FORECAST_METRIC,
    broker_totals,
    bundle_times,
    collect,
    highest_reports,
    namespace_hours,
    over_time,
)
from loadmanager.pipeline.step import Summary
from loadmanager.pipeline.steps.report import STEP

START_MS = 1_790_000_000_000 // 86_400_000 * 86_400_000


def test_series_keep_the_largest_with_weighted_mean_and_maximum(spark: SparkSession) -> None:
    rows = [
        ("a", 0, 1.0, 300.0),
        ("a", 1, 4.0, 100.0),
        ("b", 0, 9.0, 300.0),
        ("c", 400, 1e-3, 300.0),
        ("d", 5, None, 9.0),
    ]
    frame = spark.createDataFrame(rows, "broker string, n long, value double, covered_s double")
    windows = frame.withColumns({"start_ms": f.col("n") * 300_000, "window_s": f.lit(300)})
    found = over_time(windows, "broker", f.col("value"), 2)
    assert found.to_numpy().tolist() == [["b", 0, 300_000, 9.0, 9.0], ["a", 0, 600_000, 1.75, 4.0]]
    assert over_time(windows.where("false"), "broker", f.col("value"), 2).empty


def test_bundle_times_use_hours_over_days_and_five_minutes_over_an_hour(spark: SparkSession) -> None:
    load = {f"mean_msg_throughput_{way}": 1.0 for way in ("in", "out")}
    for hours, length_s, high in ((1, 300, 6.0), (200, 7200, 2.0)):
        rows = [
            {"window_s": 3600, "start_ms": START_MS + n * HOUR_MS, "bundle": "b", "covered_s": 3600.0, **load}
            for n in range(hours)
        ]
        five = {**rows[0], "window_s": 300, "covered_s": 300.0}
        rows += [{**five, "mean_msg_throughput_in": 5.0}, {**five, "start_ms": START_MS + 300_000}]
        found = bundle_times(spark.createDataFrame(pd.DataFrame(rows)))
        assert (found["high"].max(), found["end"].iloc[0] - found["start"].iloc[0]) == (high, length_s * 1000)


def test_broker_usage_covers_only_windows_with_known_usage(spark: SparkSession) -> None:
    known: dict[str, object] = {"covered_s": 300.0, "mean_usage": 0.6, "max_usage": 0.7}
    rows = [
        {"broker": "a", "start_ms": 0, **known},
        {"broker": "a", "start_ms": 1, **known, "mean_usage": None, "max_usage": None},
        {"broker": "b", "start_ms": 0, **known, "mean_usage": 0.5, "max_usage": 0.98},
    ]
    windows = frame_of(spark, "broker_windows", rows)
    totals = broker_totals(windows)[["broker", "mean_usage", "highest_mean", "highest_report", "covered_s"]]
    assert totals.to_numpy().tolist() == [["a", 0.6, 0.6, 0.7, 600.0], ["b", 0.5, 0.5, 0.98, 300.0]]
    assert highest_reports(windows).to_numpy().tolist() == [[0, 0.98, "b"]]


def test_forecast_is_shown_for_the_namespaces_with_the_most_load(spark: SparkSession, tables: Tables) -> None:
    out = f"mean_{FORECAST_METRIC}"
    rows: list[dict[str, object]] = [
        {"window_s": 3600, "start_ms": START_MS + n * HOUR_MS, "namespace": f"t/{name}", "covered_s": 3600.0, out: load}
        for n in range(170)
        for name, load in (("a", 1e6), ("b", 4e6), ("c", 3e6), ("d", 2e6))
    ]
    hours = namespace_hours(frame_of(spark, "namespace_windows", rows))
    assert list(hours["namespace"].unique()) == ["t/b", "t/c", "t/d"]
    assert hours.groupby("namespace")["load"].agg(["size", "first"]).loc["t/b"].tolist() == [168, 4]
    forecast = {"kind": "namespace", "key": "t/b", "metric": FORECAST_METRIC, "hours_ahead": 1, "model": "seasonal"}
    made = pd.DataFrame([{**forecast, "start_ms": START_MS + n, "q10": 1e6, "q50": 2e6, "q90": 3e6} for n in (2, 1)])
    others = [made.assign(kind="bundle"), made.assign(key="t/a"), made.assign(metric="msg_rate_out")]
    tables.write_rows("forecasts", pd.concat([made, *others]))
    tables.write("namespace_windows", frame_of(spark, "namespace_windows", rows))
    run = JobRun(spark, Job("", str(tables)), Summary("run", "", str(tables)))
    run.begin(STEP)
    read = collect(run)["namespace_forecasts"]
    assert read.to_numpy().tolist() == [["t/b", START_MS + 1, 1, 2, 3], ["t/b", START_MS + 2, 1, 2, 3]]


def test_history_without_a_whole_hour_has_no_forecast(spark: SparkSession, tables: Tables) -> None:
    tables.write("namespace_windows", frame_of(spark, "namespace_windows", []))
    tables.write("forecasts", frame_of(spark, "forecasts", []))
    run = JobRun(spark, Job("", str(tables)), Summary("run", "", str(tables)))
    run.begin(STEP)
    assert collect(run)["namespace_forecasts"].empty
