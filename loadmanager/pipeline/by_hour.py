"""Hourly facts about the reports, for later steps. A report counts in the hour in which it arrived."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from loadmanager.history.table_schemas import LOAD_COLUMNS, ORDER
from loadmanager.pipeline.attribution import BUNDLE, hour_of
from loadmanager.pipeline.datasets import require
from loadmanager.pipeline.windows import bundle_name

TOLERANCE = 0.01
"""Largest relative difference between a broker's total and the sum of its bundles that counts as consistent."""

_FIGURES = (*LOAD_COLUMNS, "topics", "bundles")


def reported_by(carried: DataFrame) -> DataFrame:
    """Return the brokers that reported each bundle in each hour, with the times of the first and last report."""
    came = carried.where(f.col("n") > 0).withColumn("start_ms", hour_of("start_ms"))
    times = f.min("first_ms").alias("first_ms"), f.max("last_ms").alias("last_ms")
    ranges = came.groupBy("start_ms", *BUNDLE, "broker").agg(*times)
    return require(ranges.withColumn("bundle", bundle_name()).drop("range_lower", "range_upper"), "reported_by")


def totals_compared(broker_reports: DataFrame, bundle_reports: DataFrame) -> DataFrame:
    """Compare the totals of each broker with the sums over the bundles of the same report, by hour.

    Differences are relative to the larger of the two, at least 1. The worst report is the latest with the largest one.
    """
    sums = [f.sum(f.col(name).cast("double")).alias(f"{name}_summed") for name in _FIGURES[:-1]]
    summed = bundle_reports.groupBy(*ORDER).agg(*sums, f.count("*").cast("double").alias("bundles_summed"))
    both = broker_reports.join(summed, list(ORDER), "left")
    whats = [
        f.struct(f.lit(name).alias("what"), _double(name).alias("reported"), _double(f"{name}_summed").alias("summed"))
        for name in _FIGURES
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
    return require(found.select("start_ms", "broker", "what", "reports", "inconsistent", "worst.*"), "totals_compared")


def _double(name: str) -> Column:
    return f.coalesce(f.col(name).cast("double"), f.lit(0.0))
