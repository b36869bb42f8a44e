"""Who is there at the end of a range."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loadmanager.history.table_schemas import KEYS
from loadmanager.pipeline.attribution import BROKER_GONE, BROKER_REGISTERED, VALID_MS


def registered(broker_reports: DataFrame, events: DataFrame, end_ms: int) -> DataFrame:
    """Each `broker` that is there before `end_ms`: it has reported, or registered, and not gone since. One that was
    silent for as long as two reports stand has gone unseen.
    """
    is_there = f.when(f.col("kind") == BROKER_GONE, 0).otherwise(1).alias("is_there")
    told = events.where(f.col("kind").isin(BROKER_GONE, BROKER_REGISTERED))
    seen = broker_reports.select(*KEYS, "broker", f.lit(1).alias("is_there")).unionByName(
        told.select(*KEYS, f.col("subject").alias("broker"), is_there)
    )
    last = f.max(f.struct(*KEYS, "is_there")).alias("last")
    lately = (f.col("last.at_ms") >= end_ms - 2 * VALID_MS) & (f.col("last.is_there") == 1)
    return seen.where(f.col("at_ms") < end_ms).groupBy("broker").agg(last).where(lately).select("broker")
