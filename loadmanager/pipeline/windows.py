"""Windows of 5 minutes, an hour and a day: load of bundles, brokers and namespaces; hourly facts about reports.

Means are over the reports that were valid in a window, each weighted by how long it was. `max` is the highest of them.
`p95` is the 95th percentile, by nearest rank, of the 5-minute means in a window, as bandwidth is billed. Windows of 5
minutes are made of ownership intervals, longer ones of those of 5 minutes. Hourly facts count a report when it arrived.
"""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from loadmanager.history.table_schemas import LOAD_COLUMNS, ORDER
from loadmanager.pipeline.attribution import BUNDLE, FIGURES, SHORTEST_MS, by_window, hour_of, window_of
from loadmanager.pipeline.datasets import RESOURCES, schema_of

SHORTEST_S = SHORTEST_MS // 1000
LONGER_S = (3600, 86_400)
SUBJECTS = {
    "bundle_windows": ("bundle", "namespace"),
    "broker_windows": ("broker",),
    "namespace_windows": ("namespace",),
}
TOLERANCE = 0.01
"""Largest relative difference between a broker's total and the sum of its bundles that counts as consistent."""

_RATED = ("cpu", "direct_memory", "bandwidth_in", "bandwidth_out")
_TOTALS = (*LOAD_COLUMNS, "topics", "bundles")


def bundle_windows(intervals: DataFrame) -> DataFrame:
    """Return windows of 5 minutes of bundles."""
    sums = [f.sum(name).alias(name) for name in ("covered_ms", "n", *FIGURES)]
    highest = [f.max(f"max_{name}").alias(f"max_{name}") for name in LOAD_COLUMNS]
    together = intervals.groupBy(*BUNDLE, "start_ms").agg(*sums, *highest)
    return _short(together.withColumn("bundle", bundle_name()), "bundle_windows")


def namespace_windows(bundles: DataFrame, intervals: DataFrame) -> DataFrame:
    """Return windows of 5 minutes of namespaces, from those of bundles: at each moment a namespace carries what its
    bundles add up to.
    """
    covered_ms = f.col("covered_s") * 1000
    loads = [f.sum(f.col(name.replace("msg_", "mean_msg_")) * covered_ms).alias(name) for name in FIGURES]
    together = bundles.groupBy("namespace", "start_ms").agg(
        f.max(covered_ms).alias("longest_ms"), f.count("*").alias("bundles"), *loads
    )
    parts = intervals.where(f.col("covered_ms").between(1, SHORTEST_MS - 1))
    by_begin = Window.partitionBy("namespace", "start_ms").orderBy("from_ms").rowsBetween(Window.unboundedPreceding, -1)
    end_ms = f.col("from_ms") + f.col("covered_ms")
    more_ms = f.greatest(f.lit(0), end_ms - f.greatest("from_ms", f.max(end_ms).over(by_begin)))
    union = (
        parts.withColumn("more_ms", more_ms).groupBy("namespace", "start_ms").agg(f.sum("more_ms").alias("union_ms"))
    )
    known_ms = f.when(f.col("longest_ms") == SHORTEST_MS, SHORTEST_MS).otherwise(f.col("union_ms"))
    both = together.join(union, ["namespace", "start_ms"], "left").withColumn("covered_ms", known_ms)
    return _short(both, "namespace_windows")


def broker_windows(valid: DataFrame, intervals: DataFrame, hours: Collection[int]) -> DataFrame:
    """Return windows of 5 minutes of brokers: resources and highest load as the broker reported them, and the load of
    its bundles.
    """
    shares = {name: f.try_divide(f"{name}_usage", f"{name}_limit") for name in RESOURCES}
    usage = f.coalesce(f.greatest(*(shares[name] for name in _RATED)), f.lit(0.0))
    own = by_window(valid.withColumns({**shares, "usage": usage}), hours)
    is_valid = f.col("valid_ms") > 0
    resources = (*RESOURCES, "usage")
    reported = own.groupBy("broker", "start_ms").agg(
        f.sum("valid_ms").alias("own_ms"),
        f.count_if(f.col("at_ms") >= f.col("start_ms")).alias("n"),
        *(
            f.max(f.when(is_valid, f.col(name).cast("double"))).alias(f"max_{name}")
            for name in (*resources, *LOAD_COLUMNS)
        ),
        *(_mean(name, "valid_ms").alias(f"mean_{name}") for name in resources),
    )
    sums = [f.sum(name).alias(name) for name in ("covered_ms", *FIGURES)]
    load = intervals.groupBy("broker", "start_ms").agg(*sums).withColumnRenamed("covered_ms", "carried_ms")
    both = reported.join(load, ["broker", "start_ms"], "left").fillna(0, ["carried_ms", *FIGURES])
    bundles = f.try_divide("carried_ms", "own_ms").alias("bundles")
    return _short(both.select("*", bundles, f.col("own_ms").alias("covered_ms")), "broker_windows")


def longer_windows(name: str, short: DataFrame) -> DataFrame:
    """Return windows of an hour and of a day, from all of 5 minutes."""
    lengths = f.explode(f.array(*map(f.lit, LONGER_S))).alias("window_s")
    starts = window_of(f.col("start_ms"), f.col("window_s") * 1000).alias("start_ms")
    keys = (*SUBJECTS[name], "window_s")
    figures = [_longer(each, name).alias(each) for each in schema_of(name).names if each not in {*keys, "start_ms"}]
    return short.drop("window_s").select("*", lengths).groupBy(*keys, starts).agg(*figures)


def reported_by(intervals: DataFrame) -> DataFrame:
    """Return the brokers that reported each bundle in each hour, with the times of the first and last report."""
    came = intervals.where(f.col("n") > 0).withColumn("start_ms", hour_of("start_ms"))
    times = f.min("first_ms").alias("first_ms"), f.max("last_ms").alias("last_ms")
    ranges = came.groupBy("start_ms", *BUNDLE, "broker").agg(*times)
    return ranges.withColumn("bundle", bundle_name()).drop("range_lower", "range_upper")


def totals_compared(broker_reports: DataFrame, bundle_reports: DataFrame) -> DataFrame:
    """Compare the totals of each broker with the sums over the bundles of the same report, by hour.

    Differences are relative to the larger of the two, at least 1. The worst report is the latest with the largest one.
    """
    sums = [f.sum(f.col(name).cast("double")).alias(f"{name}_summed") for name in _TOTALS[:-1]]
    summed = bundle_reports.groupBy(*ORDER).agg(*sums, f.count("*").cast("double").alias("bundles_summed"))
    both = broker_reports.join(summed, list(ORDER), "left").fillna(0.0, [f"{name}_summed" for name in _TOTALS])
    whats = [
        f.expr(f"struct('{name}' AS what, double({name}) AS reported, {name}_summed AS summed)") for name in _TOTALS
    ]
    rows = both.select(hour_of("at_ms").alias("start_ms"), "broker", "at_ms", *ORDER, f.inline(f.array(*whats)))
    difference = f.abs(f.col("reported") - f.col("summed")) / f.greatest(f.abs("reported"), f.abs("summed"), f.lit(1.0))
    compared = rows.withColumn("difference", difference)
    worst = f.max(f.struct(f.col("difference").alias("worst_difference"), *ORDER, "at_ms", "reported", "summed"))
    found = compared.groupBy("start_ms", "broker", "what").agg(
        f.count("*").alias("reports"),
        f.count_if(f.col("difference") > TOLERANCE).alias("inconsistent"),
        worst.alias("worst"),
    )
    return found.select("start_ms", "broker", "what", "reports", "inconsistent", "worst.*")


def throughput(prefix: str = "") -> Column:
    """Return bytes/s in and out together, the load by which brokers are compared."""
    return f.col(f"{prefix}msg_throughput_in") + f.col(f"{prefix}msg_throughput_out")


def bundle_name() -> Column:
    """Return the name of a bundle: `namespace/0x........_0x........`."""
    lower, upper = (f.lpad(f.lower(f.hex(f"range_{end}")), 8, "0") for end in ("lower", "upper"))
    return f.concat("namespace", f.lit("/0x"), lower, f.lit("_0x"), upper)


def _short(sums: DataFrame, table: str) -> DataFrame:
    """Return windows of 5 minutes with any valid report, from load times ms; the highest load defaults to the mean."""
    covered_ms = f.col("covered_ms")
    columns = {name: f.col(name) / covered_ms for name in ("topics", "sessions")}
    for name in LOAD_COLUMNS:
        columns |= dict.fromkeys((f"mean_{name}", f"p95_{name}"), f.col(name) / covered_ms)
        if f"max_{name}" not in sums.columns:
            columns[f"max_{name}"] = f.col(name) / covered_ms
    columns |= {"window_s": f.lit(SHORTEST_S), "covered_s": covered_ms / 1000}
    return sums.where(covered_ms > 0).withColumns(columns).select(*schema_of(table).names)


def _longer(column: str, table: str) -> Column:
    """Return a column of longer windows, from those of 5 minutes."""
    if column in {"n", "covered_s"}:
        return f.sum(column)
    if column.startswith("p95_"):
        means = f.sort_array(f.collect_list(column.replace("p95_", "mean_")))
        return f.element_at(means, f.ceil(f.size(means) * f.lit(0.95)).cast("int"))
    if column.startswith("max_") or (column == "bundles" and table == "namespace_windows"):
        return f.max(column)
    return _mean(column, "covered_s")


def _mean(name: str, weight: str) -> Column:
    """Return the mean of what is known, by weight."""
    known = f.when(f.col(name).isNotNull(), f.col(weight))
    return f.try_divide(f.sum(f.col(name) * known), f.sum(known))
