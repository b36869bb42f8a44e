"""The step `forecast`: quantiles of the load of each bundle and namespace for every hour of the next week, and their
back-test.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from loadmanager.history.files import HOUR_MS
from loadmanager.pipeline.datasets import METRICS, schema_of
from loadmanager.pipeline.forecast.backtest import HORIZONS, first_ahead, forecast, judge
from loadmanager.pipeline.forecast.models import Panel
from loadmanager.pipeline.job import JobRun
from loadmanager.pipeline.minimum_history import known_hours
from loadmanager.pipeline.step import Step

_SERIES_AT_ONCE = 128
BACKTEST = schema_of("backtest")
FORECAST_RUNS = t.StructType(
    [
        *BACKTEST.fields,
        t.StructField("first_ms", t.LongType(), nullable=False),
        *(t.StructField(name, t.ArrayType(t.DoubleType())) for name in ("q10", "q50", "q90")),
    ]
)
"""Row of the back-test for one horizon of one series, and the quantiles of its hours from `first_ms`."""


def forecast_runs(windows: DataFrame, key: str, buckets: int = 64) -> DataFrame:
    """Return `FORECAST_RUNS` of `bundle_windows` (key "bundle") or `namespace_windows` (key "namespace").

    `backtest` and `forecasts` are both made of it, so `persist` it.
    """
    rows = known_hours(windows)
    ends = rows.agg(f.min("start_ms").alias("range_first"), f.max("start_ms").alias("range_last"))
    names = [f"mean_{metric}" for metric in METRICS]
    wanted = rows.select(f.col(key).alias("key"), "start_ms", *names).crossJoin(f.broadcast(ends))
    bucket = f.pmod(f.xxhash64("key"), f.lit(buckets))

    def run(rows: pd.DataFrame) -> pd.DataFrame:
        return pd.concat([_runs(key, metric, rows) for metric in METRICS], ignore_index=True)

    return wanted.groupBy(bucket).applyInPandas(run, FORECAST_RUNS)


def forecasts(runs: DataFrame) -> DataFrame:
    """Return a row per hour; an hour whose baseline has nothing to repeat has none."""
    first = f.create_map(*(f.lit(each) for horizon in HORIZONS for each in (horizon, first_ahead(horizon))))
    hours = f.posexplode(f.arrays_zip("q10", "q50", "q90")).alias("position", "hour")
    each = runs.select("*", hours)
    return each.where(f.col("hour.q50").isNotNull() & ~f.isnan("hour.q50")).select(
        "kind",
        "key",
        "metric",
        (f.col("first_ms") + f.col("position") * HOUR_MS).cast("long").alias("start_ms"),
        (first[f.col("horizon_h")] + f.col("position")).cast("int").alias("hours_ahead"),
        *(f.col(f"hour.{name}").alias(name) for name in ("q10", "q50", "q90")),
        f.when(f.col("used"), f.col("model")).otherwise(f.col("baseline")).alias("model"),
    )


def _runs(kind: str, metric: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Back-test and forecast one metric of the keys in these windows."""
    first_ms, last_ms = int(rows["range_first"].iloc[0]), int(rows["range_last"].iloc[0])
    codes, keys = pd.factorize(rows["key"], sort=True)
    hour = ((rows["start_ms"].to_numpy() - first_ms) // HOUR_MS).astype(np.int64)
    values = np.full((len(keys), (last_ms - first_ms) // HOUR_MS + 1), np.nan)
    values[codes, hour] = rows[f"mean_{metric}"].to_numpy(dtype=np.float64)
    found: list[tuple[object, ...]] = []
    for at in range(0, len(keys), _SERIES_AT_ONCE):
        panel = Panel(values[at : at + _SERIES_AT_ONCE], first_ms // HOUR_MS)
        tested = judge(panel)
        made = forecast(panel, tested)
        for name, by_horizon, quantiles in zip(keys[at:], tested.judgements, made, strict=False):
            for horizon, judgement in by_horizon.items():
                start_ms = last_ms + first_ahead(horizon) * HOUR_MS
                hours = quantiles.get(horizon, (None, None, None))
                found.append((kind, name, metric, horizon, *judgement, start_ms, *hours))
    return pd.DataFrame(found, columns=FORECAST_RUNS.names)


def forecast_all(run: JobRun) -> None:
    run.require_days()
    bundles = forecast_runs(run.read("bundle_windows"), "bundle")
    runs = bundles.unionByName(forecast_runs(run.read("namespace_windows"), "namespace")).persist()
    try:
        run.write("backtest", runs.select(*BACKTEST.names))
        run.write("forecasts", forecasts(runs))
    finally:
        runs.unpersist()


STEP = Step(
    "forecast",
    forecast_all,
    reads=("broker_windows", "bundle_windows", "namespace_windows"),
    writes=("backtest", "forecasts"),
)
