"""What the report is made of, read from the tables: as much of each as fits a page and a file beside it."""

from __future__ import annotations

from typing import Protocol

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from loadmanager.history.files import HOUR_MS
from loadmanager.pipeline.averages import SHORTEST_S
from loadmanager.pipeline.reporting.about import Contents
from loadmanager.pipeline.reporting.binning import bin_length_ms
from loadmanager.pipeline.reporting.held_out import hold_out

_MOST_BROKERS = 60
_MOST_BUNDLES = 30
_MOST_CSV_ROWS = 100_000
_FORECAST_NAMESPACES = 3
_WEEK_H = 168
_MB = 1e6

_ORDERS = {
    "imbalance": ("start_ms",),
    "time_above": ("what", "-share", "subject"),
    "hot_bundles": ("-start_ms", "rank"),
    "namespace_skew": ("-start_ms", "-load"),
    "inconsistent_brokers": ("-inconsistent", "broker", "what"),
    "move_effects": ("epoch", "sequence"),
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
"""By which columns rows are sorted, those with a hyphen the highest first."""

_WHERE = {"forecasts": pc.field("kind") == "namespace"}
"""Which rows are read where not all are."""

TABLES_READ = (*_ORDERS, "broker_windows", "bundle_windows", "namespace_windows")


class Readable(Protocol):
    """Tables that can be read."""

    def has(self, name: str, /) -> bool: ...

    def read(self, name: str, /) -> DataFrame: ...

    def read_rows(self, name: str, where: pc.Expression | None, /) -> pa.Table: ...


def collect(tables: Readable) -> Contents:
    """What the page is made of; a table that was never written is absent."""
    read = {name: _first_rows(tables, name) for name in _ORDERS if tables.has(name)}
    if tables.has("broker_windows"):
        windows = tables.read("broker_windows").where(f.col("window_s") == SHORTEST_S)
        read["brokers"] = _brokers(windows)
        read["broker_times"] = over_time(windows, "broker", f.col("mean_usage"), _MOST_BROKERS)
    if tables.has("bundle_windows"):
        read["bundle_times"] = _bundle_times(tables.read("bundle_windows"))
    if tables.has("namespace_windows"):
        hours = _namespace_hours(tables.read("namespace_windows"))
        read |= {"namespace_hours": _last_week(hours), "held_out": _held_out(hours)}
    return read


def _first_rows(tables: Readable, name: str) -> pd.DataFrame:
    rows = tables.read_rows(name, _WHERE.get(name))
    order = [(each.removeprefix("-"), "descending" if each[0] == "-" else "ascending") for each in _ORDERS[name]]
    found: pd.DataFrame = rows.sort_by(order).slice(0, _MOST_CSV_ROWS).to_pandas()
    return found


def _bundle_times(windows: DataFrame) -> pd.DataFrame:
    """By the hour where stretches are that long: of all tables the five minutes of bundles have the most rows."""
    hours = windows.where(f.col("window_s") == HOUR_MS // 1000)
    is_long = bin_length_ms(_span_ms(hours, HOUR_MS) or 0) >= HOUR_MS
    chosen = hours if is_long else windows.where(f.col("window_s") == SHORTEST_S)
    return over_time(chosen, "bundle", _load_of("mean"), _MOST_BUNDLES)


def over_time(windows: DataFrame, key: str, value: Column, most: int) -> pd.DataFrame:
    """`key`, `start`, `end` (ms), `mean` and `high` by bin of time, of those with the most of it, the most first."""
    covered, known = f.col("covered_s"), windows.where(value.isNotNull())
    span_ms = _span_ms(known, SHORTEST_S * 1000)
    if span_ms is None:
        return pd.DataFrame(columns=[key, "start", "end", "mean", "high"])
    length = bin_length_ms(span_ms)
    total = known.groupBy(key).agg(f.sum(value * covered).alias("total")).orderBy(f.desc("total"), key).limit(most)
    start = (f.floor(f.col("start_ms") / length) * length).cast("long").alias("start")
    found: pd.DataFrame = (
        known.join(f.broadcast(total), key)
        .groupBy(key, "total", start)
        .agg((f.sum(value * covered) / f.sum(covered)).alias("mean"), f.max(value).alias("high"))
        .select("total", key, "start", (f.col("start") + length).alias("end"), "mean", "high")
        .toPandas()
    )
    return _most_first(found, key, "start")


def _most_first(rows: pd.DataFrame, *order: str) -> pd.DataFrame:
    """By `total`, which is left out, the highest first, and then by these columns."""
    ascending = [False, *(True for _ in order)]
    return rows.sort_values(["total", *order], ascending=ascending, ignore_index=True).drop(columns="total")


def _span_ms(windows: DataFrame, length_ms: int) -> int | None:
    """From the first window to the end of the last; None without any."""
    ends = windows.agg(f.min("start_ms"), f.max("start_ms")).first()
    return None if ends is None or ends[0] is None else int(ends[1] - ends[0]) + length_ms


def _brokers(windows: DataFrame) -> pd.DataFrame:
    """Each broker over all time."""
    load = _load_of("mean")
    brokers = windows.groupBy("broker").agg(
        (f.sum(f.col("mean_usage") * f.col("covered_s")) / f.sum("covered_s")).alias("mean_usage"),
        f.max("max_usage").alias("max_usage"),
        (f.sum(load * f.col("covered_s")) / f.sum("covered_s")).alias("mean_load"),
        f.max(_load_of("max")).alias("max_load"),
        f.sum("covered_s").alias("covered_s"),
    )
    found: pd.DataFrame = brokers.orderBy(f.desc("mean_usage"), "broker").limit(_MOST_CSV_ROWS).toPandas()
    return found


def _namespace_hours(windows: DataFrame) -> pd.DataFrame:
    """MB/s by hour of the namespaces with the most load."""
    hourly = windows.where(f.col("window_s") == HOUR_MS // 1000)
    load = (_load_of("mean") / _MB).alias("load")
    most = hourly.groupBy("namespace").agg(f.sum(_load_of("mean")).alias("total")).orderBy(f.desc("total"), "namespace")
    names = most.limit(_FORECAST_NAMESPACES)
    rows = hourly.join(f.broadcast(names), "namespace").select("total", "namespace", "start_ms", load)
    found: pd.DataFrame = rows.toPandas()
    return _most_first(found, "namespace", "start_ms")


def _held_out(hours: pd.DataFrame) -> pd.DataFrame:
    """`hold_out` of each namespace; `why_not` where there is none."""
    parts = [pd.DataFrame(columns=["namespace", "start_ms", "q10", "q50", "q90", "why_not"])]
    for namespace, rows in hours.groupby("namespace", sort=False):
        found = hold_out(rows)
        made = pd.DataFrame({"why_not": [found]}) if isinstance(found, str) else found
        parts.append(made.assign(namespace=namespace))
    return pd.concat(parts, ignore_index=True)


def _last_week(hours: pd.DataFrame) -> pd.DataFrame:
    return hours[hours["start_ms"] > hours["start_ms"].max() - _WEEK_H * HOUR_MS]


def _load_of(statistic: str) -> Column:
    return f.col(f"{statistic}_msg_throughput_in") + f.col(f"{statistic}_msg_throughput_out")
