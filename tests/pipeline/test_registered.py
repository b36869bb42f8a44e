from __future__ import annotations

from pyspark.sql import SparkSession
from support.frames import DAY_MS, START_MS

from loadmanager.pipeline.capacity import registered


def test_registered_brokers_reported_or_registered_lately(spark: SparkSession) -> None:
    end_ms = START_MS + DAY_MS
    reports = {"a": [-1], "gone": [-500], "silent": [-2 * 900_000 - 1], "back": [-500, -100], "late": [0]}
    rows = [(end_ms + at, 1, at + 10**7, broker) for broker, times in reports.items() for at in times]
    happened = [("gone", "broker_gone", -499), ("back", "broker_gone", -400), ("new", "broker_registered", -1)]
    events = [(end_ms + at, 1, at + 10**7, kind, broker) for broker, kind, at in happened]
    keys = "at_ms long, epoch long, sequence long"

    found = registered(
        spark.createDataFrame(rows, f"{keys}, broker string"),
        spark.createDataFrame(events, f"{keys}, kind string, subject string"),
        end_ms,
    )

    assert {row["broker"] for row in found.collect()} == {"a", "back", "new"}
