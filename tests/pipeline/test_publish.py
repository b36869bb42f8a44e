from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from loadmanager.errors import PipelineError
from loadmanager.history.files import HOUR_MS
from loadmanager.pipeline.datasets import METRICS, schema_of
from loadmanager.pipeline.delta import Tables
from loadmanager.pipeline.paired import Significance
from loadmanager.pipeline.publish import learned_from, loads_of_namespaces, profiles_of, proved_namespaces, weekly_hours
from loadmanager.pipeline.step import StepResult, Summary
from loadmanager.wire.learned_records import LEARNED_DATA

MONDAY_MS = 1_789_948_800_000
"""2026-09-21 00:00 UTC."""


def window(
    namespace: str, bundles: int, load: float, covered_s: float = 3600.0, window_s: int = 3600
) -> dict[str, Any]:
    means = {f"mean_{metric}": load * (number + 1) for number, metric in enumerate(METRICS)}
    named = {"window_s": window_s, "start_ms": 0, "namespace": namespace, "bundles": bundles, "covered_s": covered_s}
    rest = {name: 0.0 for name in schema_of("namespace_windows").names if name not in {**named, **means}}
    return {**named, **means, **rest}


def test_bundle_load_is_the_namespace_load_over_bundles_and_time(spark: SparkSession) -> None:
    rows = [
        window("t/even", 4, 8.0),
        window("t/even", 2, 8.0, covered_s=1800.0),
        window("t/busy", 1, 1e6),
        window("t/idle", 3, 0.0),
        window("t/busy", 1, 5e9, window_s=300),
        window("t/c1/old", 1, 1e7),
    ]
    found = loads_of_namespaces(spark.createDataFrame(rows, schema_of("namespace_windows"))).collect()
    assert [row.namespace for row in found] == ["t/busy", "t/even"]
    even = (8.0 / 4 * 3600 + 8.0 / 2 * 1800) / 5400
    assert [found[1][metric] for metric in METRICS] == pytest.approx([even, 2 * even, 3 * even, 4 * even])
    assert [row.bundles for row in found] == [1, 4]


def test_weekly_hours_sum_the_medians_of_both_directions(spark: SparkSession) -> None:
    def row(kind: str, metric: str, hour: int, median: float) -> tuple[Any, ...]:
        return (kind, "t/ns", metric, hour * HOUR_MS, hour, 0.0, median, 9.0, "seasonal")

    rows = [
        row("namespace", "msg_throughput_in", 1, 2.0),
        row("namespace", "msg_throughput_out", 1, 3.0),
        row("namespace", "msg_rate_in", 1, 100.0),
        row("bundle", "msg_throughput_in", 1, 100.0),
        row("namespace", "msg_throughput_in", 2, 2.0),
    ]
    found = weekly_hours(spark.createDataFrame(rows, schema_of("forecasts"))).collect()
    assert [tuple(each) for each in found] == [("t/ns", HOUR_MS, 5.0)]


def hours(namespace: str, count: int, first: int = 0) -> pd.DataFrame:
    """Twice as much on Mondays."""
    starts = [MONDAY_MS + (first + hour) * HOUR_MS for hour in range(count)]
    load = [2.0 if (first + hour) % 168 < 24 else 1.0 for hour in range(count)]
    return pd.DataFrame({"key": namespace, "start_ms": starts, "load": load})


def test_profile_begins_on_monday_with_a_mean_of_one() -> None:
    found = profiles_of(
        pd.concat([hours("t/a", 168, first=50), hours("t/short", 167), hours("t/b", 168)]), ["t/a", "t/short"]
    )
    assert list(found) == ["t/a"]
    mean = (24 * 2 + 144) / 168
    assert found["t/a"][:25] == [round(2 / mean, 3)] * 24 + [round(1 / mean, 3)]
    assert sum(found["t/a"]) / 168 == pytest.approx(1, abs=1e-3)


def test_published_loads_have_a_source_and_are_accepted(spark: SparkSession, tables: Tables) -> None:
    rows = [window("t/ns", 2, 8.0), {**window("t/later", 2, 8.0), "start_ms": HOUR_MS}]
    tables.write("namespace_windows", spark.createDataFrame(rows, schema_of("namespace_windows")))
    steps = [StepResult("ingest", "run-1"), StepResult("report", "run-2")]
    learned = learned_from(tables, Summary("run-2", "/history", "/out", 5, 6, steps))
    assert {key: learned[key] for key in ("run", "history", "rangeFrom", "rangeTo")} == {
        "run": "run-1",
        "history": "/history",
        "rangeFrom": 5,
        "rangeTo": 6,
    }
    assert list(learned["namespaces"]) == ["t/ns"]
    assert learned["namespaces"]["t/ns"]["msgThroughputOut"] == 16.0
    assert LEARNED_DATA.validate_json(LEARNED_DATA.dump_json(learned)) == learned


def test_profile_is_published_with_the_load(spark: SparkSession, tables: Tables) -> None:
    tables.write("namespace_windows", spark.createDataFrame([window("t/ns", 2, 8.0)], schema_of("namespace_windows")))
    rows = [
        ("namespace", "t/ns", metric, MONDAY_MS + hour * HOUR_MS, hour + 1, 0.0, 3.0, 9.0, "seasonal")
        for metric in METRICS
        for hour in range(168)
    ]
    tables.write("forecasts", spark.createDataFrame(rows, schema_of("forecasts")))
    tables.write("backtest", spark.createDataFrame([], schema_of("backtest")))
    learned = learned_from(tables, Summary("run-1", "/history", "/out"))
    assert learned["namespaces"]["t/ns"]["profile"] == [1.0] * 168
    assert not learned["namespaces"]["t/ns"]["proved"]


def test_profile_needs_a_better_back_test_in_both_directions(spark: SparkSession) -> None:
    def judged(
        key: str,
        metric: str,
        horizon: int,
        *,
        used: bool,
        kind: str = "namespace",
        shown: Significance = Significance.BETTER,
    ) -> tuple[Any, ...]:
        scores = (1.0, 1.0, "last_window", 2.0, 2.0, 0.8, 0.8)
        return (kind, key, metric, horizon, "seasonal", 9, *scores, str(shown), used, "because")

    rows = [judged("t/ns", metric, 24, used=metric.startswith("msg_throughput")) for metric in METRICS]
    rows += [judged("t/one", metric, 24, used=metric == "msg_throughput_in") for metric in METRICS]
    rows += [judged("t/hour", metric, 1, used=True) for metric in METRICS]
    rows += [judged("t/bundle", metric, 24, used=True, kind="bundle") for metric in METRICS]
    rows += [judged("t/chance", metric, 24, used=True, shown=Significance.INCONCLUSIVE) for metric in METRICS]
    backtest = spark.createDataFrame(rows, schema_of("backtest"))
    assert [row.key for row in proved_namespaces(backtest).collect()] == ["t/ns"]


def test_nothing_is_published_without_carried_load(spark: SparkSession, tables: Tables) -> None:
    with pytest.raises(PipelineError, match="namespace_windows: there is no such table yet"):
        learned_from(tables, Summary("run-1", "/history", "/out"))
    tables.write("namespace_windows", spark.createDataFrame([window("t/ns", 2, 0.0)], schema_of("namespace_windows")))
    with pytest.raises(PipelineError, match="nothing to publish"):
        learned_from(tables, Summary("run-1", "/history", "/out"))
