"""Learned data for the leader: the load of a bundle of each namespace, and a weekly load profile.

docs/pipeline.md describes both, under "What the leader does with it". Namespaces with the most load have a profile: all
profiles have to fit in one znode.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loadmanager.core.model.learned_loads import PROFILE_HOURS
from loadmanager.errors import PipelineError
from loadmanager.history.files import HOUR_MS
from loadmanager.pipeline.datasets import METRICS, in_range
from loadmanager.pipeline.delta import Tables
from loadmanager.pipeline.paired import Significance
from loadmanager.pipeline.step import Summary
from loadmanager.pipeline.windows import throughput
from loadmanager.util import clock
from loadmanager.wire.learned_records import LearnedData, NamespaceLearned

MOST_PROFILES = 500
_MONDAY_HOUR = 72
"""Hours from Monday to Thursday, the first day of 1970."""
_HORIZON_H = 24
"""Horizon of the back-test that judges a profile."""
_DIGITS = 3


def learned_from(tables: Tables, summary: Summary) -> LearnedData:
    """Return the learned data of the last run's range, with its provenance. `PipelineError` when there is none."""
    windows = in_range(tables.read("namespace_windows"), "namespace_windows", summary.from_ms, summary.to_ms)
    loads: pd.DataFrame = loads_of_namespaces(windows).toPandas()
    if loads.empty:
        raise PipelineError(f"{tables}/namespace_windows: no namespace carried anything: there is nothing to publish")
    profiles, proved = {}, frozenset[str]()
    if tables.has("forecasts"):
        hours: pd.DataFrame = weekly_hours(tables.read("forecasts")).toPandas()
        profiles = profiles_of(hours, loads["namespace"].head(MOST_PROFILES).tolist())
        proved = frozenset(row["key"] for row in proved_namespaces(tables.read("backtest")).collect())
    return LearnedData(
        run=next((done.run for done in summary.steps if done.step == "ingest"), summary.run),
        publishedAt=clock.now_ms(),
        history=summary.history,
        rangeFrom=summary.from_ms or 0,
        rangeTo=summary.to_ms or 0,
        namespaces={row["namespace"]: _learned(row, profiles, proved) for row in loads.to_dict("records")},
    )


def loads_of_namespaces(namespace_windows: DataFrame) -> DataFrame:
    """Return the mean load of a bundle (`METRICS`) and the most `bundles` of each namespace, the most load first.

    Namespaces without load, and those with a cluster in their name, are left out: no leader has these.
    """
    short = namespace_windows.where((f.col("window_s") == HOUR_MS // 1000) & (f.col("bundles") > 0))
    short = short.where(~f.col("namespace").like("%/%/%"))
    covered = f.sum("covered_s")
    means = [
        (f.sum(f.col(f"mean_{metric}") / f.col("bundles") * f.col("covered_s")) / covered).alias(metric)
        for metric in METRICS
    ]
    load = f.sum(throughput("mean_") * f.col("covered_s"))
    found = short.groupBy("namespace").agg(*means, f.max("bundles").alias("bundles"), load.alias("load"))
    return found.where(f.col("load") > 0).orderBy(f.desc("load"), "namespace").drop("load")


def weekly_hours(forecasts: DataFrame) -> DataFrame:
    """Return the median forecast of each hour of namespaces: `key`, `start_ms`, and `load` in bytes/s."""
    bytes_per_s = f.col("metric").isin(*METRICS[2:])
    rows = forecasts.where((f.col("kind") == "namespace") & bytes_per_s)
    both = rows.groupBy("key", "start_ms").agg(f.sum("q50").alias("load"), f.count("*").alias("metrics"))
    return both.where(f.col("metrics") == len(METRICS[2:])).drop("metrics")


def proved_namespaces(backtest: DataFrame) -> DataFrame:
    """Return the `key` of namespaces whose seasonal model is used and shown better for bytes/s in and out."""
    bytes_per_s = f.col("metric").isin(*METRICS[2:])
    rows = backtest.where((f.col("kind") == "namespace") & (f.col("horizon_h") == _HORIZON_H) & bytes_per_s)
    proved = f.col("used") & (f.col("shown") == str(Significance.BETTER))
    return rows.where(proved).groupBy("key").count().where(f.col("count") == len(METRICS[2:])).select("key")


def profiles_of(hours: pd.DataFrame, wanted: list[str]) -> dict[str, list[float]]:
    """Return the profile from Monday on of the wanted namespaces that have a forecast for each hour of a week."""
    found = {}
    for namespace, rows in hours[hours["key"].isin(wanted)].groupby("key"):
        of_week = (rows["start_ms"].to_numpy(dtype=np.int64) // HOUR_MS + _MONDAY_HOUR) % PROFILE_HOURS
        load = np.full(PROFILE_HOURS, np.nan)
        load[of_week] = rows["load"].to_numpy(dtype=np.float64)
        mean = load.mean()
        if np.isfinite(mean) and mean > 0:
            found[str(namespace)] = np.round(load / mean, _DIGITS).tolist()
    return found


def _learned(
    row: Mapping[Hashable, Any], profiles: Mapping[str, list[float]], proved: AbstractSet[str]
) -> NamespaceLearned:
    learned = NamespaceLearned(
        msgRateIn=row["msg_rate_in"],
        msgRateOut=row["msg_rate_out"],
        msgThroughputIn=row["msg_throughput_in"],
        msgThroughputOut=row["msg_throughput_out"],
        bundles=row["bundles"],
    )
    profile = profiles.get(row["namespace"])
    if profile is None:
        return learned
    return {**learned, "profile": profile, "proved": row["namespace"] in proved}
