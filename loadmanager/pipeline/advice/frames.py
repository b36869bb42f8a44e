"""Advice as a table, from the tables that it is taken from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import orjson
import pandas as pd
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from loadmanager.core.names import is_self_test_namespace
from loadmanager.core.settings import PlannerSettings
from loadmanager.history.files import DAY_MS
from loadmanager.history.schemas import RESOURCE_COLUMNS
from loadmanager.pipeline.advice.pieces import Advice
from loadmanager.pipeline.advice.reports import advise_on_limits_of_brokers, advise_on_silence
from loadmanager.pipeline.advice.shapes import BusyBundle, advise_namespace, current
from loadmanager.pipeline.advice.thresholds import Extent, advise_on_brokers, advise_on_bundle_limits
from loadmanager.pipeline.datasets import schema_of
from loadmanager.pipeline.hours import hourly

ADVICE = schema_of("advice")
_BUSY = 0.9
"""The quantile of its hours by which a bundle is judged."""
_LIMIT_COLUMNS = tuple(name for name in RESOURCE_COLUMNS if name.endswith("_limit"))
_BUNDLE_HOURS, _BROKER_HOURS, _SILENCES, _LIMITS = "bundle_hours", "broker_hours", "silences", "limits"


@dataclass(frozen=True, slots=True)
class AdviceTables:
    """What advice is taken from: `bundle_windows`, `broker_windows`, `reported_by` and `clean_broker_reports`."""

    bundle_windows: DataFrame
    broker_windows: DataFrame
    reported_by: DataFrame
    broker_reports: DataFrame


def advice(tables: AdviceTables, settings: PlannerSettings) -> DataFrame:
    """`ADVICE`."""
    parts = [
        frame.select(f.lit(about).alias("about"), f.to_json(f.struct("*")).alias("fact"))
        for about, frame in (
            (_BUNDLE_HOURS, _bundle_hours(tables.bundle_windows)),
            (_BROKER_HOURS, _broker_hours(tables.broker_windows)),
            (_SILENCES, _silences(tables.broker_reports, settings)),
            (_LIMITS, _limits(tables.broker_reports)),
        )
    ]

    def advise(rows: pd.DataFrame) -> pd.DataFrame:
        return _frame(_advise_on(rows["about"].iloc[0], [orjson.loads(fact) for fact in rows["fact"]], settings))

    on_numbers = reduce(DataFrame.unionByName, parts).groupBy("about").applyInPandas(advise, ADVICE)
    return _shape(tables, settings).unionByName(on_numbers)


def _advise_on(about: str, facts: Sequence[dict[str, Any]], settings: PlannerSettings) -> list[Advice]:
    """On the rows of one of the small tables below."""
    if about == _BUNDLE_HOURS:
        return advise_on_bundle_limits(_extents(facts), len(facts), settings)
    if about == _BROKER_HOURS:
        return advise_on_brokers(_extents(facts), len(facts), settings)
    by_broker = sorted(facts, key=lambda fact: fact["broker"])
    if about == _SILENCES:
        return [advise_on_silence(**fact, settings=settings) for fact in by_broker]
    limits = {fact["broker"]: [fact[name] for name in _LIMIT_COLUMNS] for fact in by_broker}
    return advise_on_limits_of_brokers(limits, settings.resource_weights)


def busy_bundles(bundle_windows: DataFrame, reported_by: DataFrame) -> DataFrame:
    """The columns of `BusyBundle` and the namespace, of all bundles that were ever reported."""
    rate, bytes_per_s = _both("mean_msg_rate"), _both("mean_msg_throughput")
    carried = hourly(bundle_windows).groupBy("namespace", f.col("bundle").alias("name"))
    busy = carried.agg(
        f.count("*").cast("int").alias("hours"),
        *(
            f.percentile(value, f.lit(_BUSY)).alias(name)
            for name, value in (
                ("topics", f.col("topics")),
                ("sessions", f.col("sessions")),
                ("msg_rate", rate),
                ("throughput", bytes_per_s),
            )
        ),
    )
    by_broker = reported_by.groupBy(f.col("bundle").alias("name"), "broker").agg(
        f.min("first_ms").alias("first_ms"), f.max("last_ms").alias("last_ms")
    )
    latest_first = Window.partitionBy("name").orderBy(f.desc("last_ms"), "broker")
    first_ms = f.min("first_ms").over(Window.partitionBy("name"))
    since_ms = f.coalesce(f.lead("last_ms").over(latest_first), first_ms)
    known = by_broker.select(
        *("name", f.col("broker").alias("owner"), "last_ms", since_ms.alias("since_ms")),
        f.row_number().over(latest_first).alias("place"),
    )
    return busy.join(known.where(f.col("place") == 1).drop("place"), "name")


def _shape(tables: AdviceTables, settings: PlannerSettings) -> DataFrame:
    bundles = busy_bundles(tables.bundle_windows, tables.reported_by)
    ends = tables.reported_by.agg(f.max("last_ms").alias("until_ms"))
    recent = bundles.crossJoin(f.broadcast(ends)).where(f.col("last_ms") > f.col("until_ms") - DAY_MS)

    def advise(rows: pd.DataFrame) -> pd.DataFrame:
        namespace, until_ms = rows["namespace"].iloc[0], int(rows["until_ms"].iloc[0])
        if is_self_test_namespace(namespace):
            return _frame([])
        return _frame(advise_namespace(current(map(_busy, rows.to_dict("records"))), settings, until_ms))

    return recent.groupBy("namespace").applyInPandas(advise, ADVICE)


def _busy(row: Mapping[Any, Any]) -> BusyBundle:
    return BusyBundle(
        name=row["name"],
        owner=row["owner"],
        hours=int(row["hours"]),
        since_ms=int(row["since_ms"]),
        last_ms=int(row["last_ms"]),
        topics=round(row["topics"]),
        sessions=round(row["sessions"]),
        msg_rate=float(row["msg_rate"]),
        throughput=float(row["throughput"]),
    )


def _bundle_hours(bundle_windows: DataFrame) -> DataFrame:
    """Of each hour the most of what limits of bundles limit."""
    return (
        hourly(bundle_windows)
        .groupBy("start_ms")
        .agg(
            f.max("topics").alias("topics"),
            f.max("sessions").alias("sessions"),
            f.max(_both("mean_msg_rate")).alias("msg_rate"),
            f.max(_both("mean_msg_throughput")).alias("throughput"),
        )
    )


def _broker_hours(broker_windows: DataFrame) -> DataFrame:
    """Of each hour what thresholds of brokers are compared with."""
    usage = f.col("mean_usage")
    return (
        hourly(broker_windows)
        .where(usage.isNotNull())
        .groupBy("start_ms")
        .agg(
            (100 * f.max(usage)).alias("usage"),
            (100 * (f.max(usage) - f.mean(usage))).alias("above_mean"),
            f.stddev_pop(usage).alias("deviation"),
        )
    )


def _silences(broker_reports: DataFrame, settings: PlannerSettings) -> DataFrame:
    """The brokers that were silent for too long between two reports of one life."""
    life = Window.partitionBy("broker", "incarnation").orderBy("at_ms")
    silent_s = (f.col("at_ms") - f.lag("at_ms").over(life)) / 1000
    is_quiet = f.col("silent_s") > settings.broker_load_data_ttl_in_seconds
    return (
        broker_reports.select("broker", silent_s.alias("silent_s"))
        .groupBy("broker")
        .agg(
            f.count_if(is_quiet).alias("gaps"),
            f.max("silent_s").alias("longest_s"),
            f.count("*").alias("reports"),
        )
        .where(f.col("gaps") > 0)
    )


def _limits(broker_reports: DataFrame) -> DataFrame:
    """The limits in the last report of each broker, 0 where there is none."""
    return broker_reports.groupBy("broker").agg(
        *(f.max_by(f.coalesce(name, f.lit(0.0)), "at_ms").alias(name) for name in _LIMIT_COLUMNS)
    )


def _both(metric: str) -> Column:
    return f.col(f"{metric}_in") + f.col(f"{metric}_out")


def _extents(hours: Sequence[Mapping[str, float]]) -> dict[str, Extent]:
    """Of every column."""
    return {name: Extent(max(hour[name] for hour in hours), min(hour[name] for hour in hours)) for name in hours[0]}


def _frame(found: Iterable[Advice]) -> pd.DataFrame:
    rows = [(each.kind, each.subject, each.text, orjson.dumps(dict(each.evidence)).decode()) for each in found]
    return pd.DataFrame(rows, columns=ADVICE.names)
