"""Contents of the report, read from the tables of the pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema

from loadmanager.history.files import DAY_MS, HOUR_MS
from loadmanager.pipeline.datasets import schema_of
from loadmanager.pipeline.job import JobRun
from loadmanager.pipeline.minimum_history import hourly, known_hours
from loadmanager.pipeline.windows import SHORTEST_S, throughput

Contents = Mapping[str, pd.DataFrame]
"""Frames by table; a table that no step has written is absent."""

MOST_BINS = 160
"""Bins on a time axis: six pixels each on a screen, two on a phone."""
FORECAST_METRIC = "msg_throughput_out"
"""Metric of the forecasts that are drawn."""

SHOWN_ROWS = 25
"""Rows of a table on the page."""

_MOST_BROKERS = 60
_MOST_BUNDLES = 30
_MOST_CSV_ROWS = 100_000
_FORECAST_NAMESPACES = 3
_WEEK_MS = 7 * DAY_MS
_MB = 1e6
_MINUTE_MS = 60_000
_BIN_LENGTHS_MS = (
    *(minutes * _MINUTE_MS for minutes in (5, 10, 15, 20, 30)),
    *(hours * HOUR_MS for hours in (1, 2, 3, 4, 6, 8, 12)),
    *(days * DAY_MS for days in (1, 2, 7, 14, 28)),
)

_ORDERS = {
    "imbalance": ("-start_ms",),
    "time_above": ("what", "-share", "subject"),
    "hot_bundles": ("-start_ms", "rank"),
    "inconsistent_brokers": ("-inconsistent", "broker", "what"),
    "move_effects": ("-epoch", "-sequence"),
    "flapping": ("-returns", "-moves", "bundle"),
    "backtest": ("-kind", "key", "metric", "horizon_h"),
    "forecasts": ("key", "metric", "start_ms"),
    "capacity": ("start_ms", "quantile"),
    "advice": ("kind", "subject"),
    "cost_models": ("broker_class", "resource"),
    "league": ("fleet", "place"),
    "paired_differences": ("fleet", "metric", "configuration", "other"),
    "recommendation": ("fleet",),
    "scenarios": ("scenario",),
    "rejected_rows": ("-count", "table", "reason", "file"),
}
"""Sort columns by table; a hyphen means descending. The first rows are read: the newest where there are most."""

_SUMMARIES = {
    "brokers": "broker mean_usage highest_mean highest_report mean_load max_load covered_s",
    "broker_times": "broker start end mean high",
    "highest_reports": "start_ms max_usage broker",
    "bundle_times": "bundle start end mean high",
    "namespace_hours": "namespace start_ms load",
    "namespace_forecasts": "namespace start_ms q10 q50 q90",
}
"""Frames that are made here, with their columns."""

_WHERE = {"forecasts": pc.field("kind") == "namespace"}

TABLES_READ = (*_ORDERS, "broker_windows", "bundle_windows", "namespace_windows")


def table(contents: Contents, name: str) -> pd.DataFrame:
    """Return a table, or its columns without rows."""
    if name in contents:
        return contents[name]
    if name in _SUMMARIES:
        return pd.DataFrame(columns=_SUMMARIES[name].split())
    empty: pd.DataFrame = to_arrow_schema(schema_of(name)).empty_table().to_pandas()
    return empty


def collect(run: JobRun) -> Contents:
    """Read everything that the report shows."""
    read = {name: _first_rows(run, name) for name in _ORDERS if run.tables.has(name)}
    if run.tables.has("broker_windows"):
        windows = run.read("broker_windows").where(f.col("window_s") == SHORTEST_S)
        read["brokers"] = broker_totals(windows)
        read["broker_times"] = over_time(windows, "broker", f.col("mean_usage"), _MOST_BROKERS)
        read["highest_reports"] = highest_reports(windows)
    if run.tables.has("bundle_windows"):
        read["bundle_times"] = bundle_times(run.read("bundle_windows"))
    if run.tables.has("namespace_windows"):
        hours = read["namespace_hours"] = namespace_hours(run.read("namespace_windows"))
        if run.tables.has("forecasts"):
            read["namespace_forecasts"] = _namespace_forecasts(run, hours["namespace"].unique())
    return read


def _first_rows(run: JobRun, name: str) -> pd.DataFrame:
    rows = run.read_rows(name, _WHERE.get(name))
    order = [(each.removeprefix("-"), "descending" if each[0] == "-" else "ascending") for each in _ORDERS[name]]
    found: pd.DataFrame = rows.sort_by(order).slice(0, _MOST_CSV_ROWS).to_pandas()
    return found


def bin_length_ms(span_ms: int) -> int:
    """Return the shortest round bin length that covers a span with at most `MOST_BINS` bins."""
    return next((length for length in _BIN_LENGTHS_MS if span_ms <= MOST_BINS * length), -(-span_ms // MOST_BINS))


def over_time(windows: DataFrame, key: str, value: Column, most: int) -> pd.DataFrame:
    """Bin a value over time for the keys with the highest total: `key`, `start`, `end` (ms), `mean`, `high`.

    Windows without a value are unknown. A bin begins with its first known window and ends with its last one.
    """
    covered, known = f.col("covered_s"), windows.where(value.isNotNull())
    length = bin_length_ms(_span_ms(known))
    total = known.groupBy(key).agg(f.sum(value * covered).alias("total")).orderBy(f.desc("total"), key).limit(most)
    end = f.col("start_ms") + f.col("window_s") * 1000
    found: pd.DataFrame = (
        known.join(f.broadcast(total), key)
        .groupBy(key, "total", f.floor(f.col("start_ms") / length))
        .agg(
            f.min("start_ms").alias("start"),
            f.max(end).alias("end"),
            (f.sum(value * covered) / f.sum(covered)).alias("mean"),
            f.max(value).alias("high"),
        )
        .select("total", key, "start", "end", "mean", "high")
        .toPandas()
    )
    return _highest_total_first(found, key, "start")


def bundle_times(windows: DataFrame) -> pd.DataFrame:
    """Bin the load of the largest bundles, from hours where bins are that long: they are a twelfth of the rows."""
    hours, load = hourly(windows), throughput("mean_")
    is_long = bin_length_ms(_span_ms(hours)) >= HOUR_MS
    chosen = hours if is_long else windows.where(f.col("window_s") == SHORTEST_S)
    return over_time(chosen, "bundle", load, _MOST_BUNDLES)


def _span_ms(windows: DataFrame) -> int:
    """Return the time from the first window to the end of the last one; 0 without windows."""
    end = f.max(f.col("start_ms") + f.col("window_s") * 1000)
    return int(windows.agg(f.coalesce(end - f.min("start_ms"), f.lit(0))).collect()[0][0])


def _highest_total_first(rows: pd.DataFrame, *order: str) -> pd.DataFrame:
    ascending = [False, *(True for _ in order)]
    return rows.sort_values(["total", *order], ascending=ascending, ignore_index=True).drop(columns="total")


def broker_totals(windows: DataFrame) -> pd.DataFrame:
    """Summarise each broker over the whole range. Means of usage are over the windows in which usage is known."""
    covered, usage, load = f.col("covered_s"), f.col("mean_usage"), throughput("mean_")
    usage_s = f.sum(f.when(usage.isNotNull(), covered))
    brokers = windows.groupBy("broker").agg(
        (f.sum(usage * covered) / usage_s).alias("mean_usage"),
        f.max(usage).alias("highest_mean"),
        f.max("max_usage").alias("highest_report"),
        (f.sum(load * covered) / f.sum(covered)).alias("mean_load"),
        f.max(throughput("max_")).alias("max_load"),
        f.sum(covered).alias("covered_s"),
    )
    found: pd.DataFrame = brokers.orderBy(f.desc("mean_usage"), "broker").limit(_MOST_CSV_ROWS).toPandas()
    return found


def highest_reports(windows: DataFrame) -> pd.DataFrame:
    """Find the highest usage that any broker reported in each window: `start_ms`, `max_usage`, `broker`."""
    highest = f.max(f.struct("max_usage", "broker")).alias("highest")
    found = windows.where(f.col("max_usage").isNotNull()).groupBy("start_ms").agg(highest)
    rows: pd.DataFrame = found.select("start_ms", "highest.*").orderBy("start_ms").toPandas()
    return rows


def namespace_hours(windows: DataFrame) -> pd.DataFrame:
    """Read the known hours of the last week of the namespaces with the most bytes/s out, in MB/s."""
    hours = known_hours(windows).withColumn("load", f.col(f"mean_{FORECAST_METRIC}") / _MB)
    total = hours.groupBy("namespace").agg(f.sum("load").alias("total")).orderBy(f.desc("total"), "namespace")
    names = f.broadcast(total.limit(_FORECAST_NAMESPACES))
    found: pd.DataFrame = hours.join(names, "namespace").select("total", "namespace", "start_ms", "load").toPandas()
    found = _highest_total_first(found, "namespace", "start_ms")
    return found[found["start_ms"] > found["start_ms"].max() - _WEEK_MS]


def _namespace_forecasts(run: JobRun, namespaces: Sequence[str]) -> pd.DataFrame:
    """Read the forecasts that `namespace_hours` go on with."""
    names = pa.array(namespaces, pa.string())  # Typed, as there may be none.
    metric, key = pc.field("metric") == FORECAST_METRIC, pc.field("key").isin(names)
    rows: pd.DataFrame = run.read_rows("forecasts", (pc.field("kind") == "namespace") & metric & key).to_pandas()
    made = rows.sort_values(["key", "start_ms"]).rename(columns={"key": "namespace"})
    return made[["namespace", "start_ms"]].assign(**{name: made[name] / _MB for name in ("q10", "q50", "q90")})
