"""Cost of a nightly run with one new day out of thirty, compared with a run over all thirty, on two cores.

`bench_pipeline_daily.py [days]`: 30 by default, of 20 brokers with 500 bundles, in files of one report each.
"""

from __future__ import annotations

import sys
import tempfile
import time

from bench_pipeline import CORES, HEAP, Fleet, processor_s
from measure import Measured, show

from loadmanager.history.files import Directory
from loadmanager.pipeline.job import Job
from loadmanager.pipeline.runner import Spark, run
from loadmanager.pipeline.session import spark_session

BROKERS, BUNDLES, NAMESPACES = 20, 500, 5
EVERY_MIN = 10
DAY_MIN = 1440
TARGET = 0.1


def main(days: int) -> None:
    spark = spark_session(f"local[{CORES}]", "benchmark", {"spark.driver.memory": HEAP})
    with tempfile.TemporaryDirectory() as folder:
        history, out = f"{folder}/history", f"{folder}/out"
        fleet, directory = Fleet(BROKERS, BUNDLES, NAMESPACES), Directory.of(history)
        write_days(fleet, directory, range(days - 1))
        made(spark, history, out)
        write_days(fleet, directory, range(days - 1, days))
        new, nothing = made(spark, history, out), made(spark, history, out)
        whole = made(spark, history, f"{folder}/anew")
    spark.stop()
    figures = [
        Measured(f"{days} days, processor time", whole[1], "s"),
        Measured(f"{days} days", whole[0], "s"),
        Measured("one day of them is new, processor time", new[1], "s"),
        Measured("one day of them is new", new[0], "s"),
        Measured("nothing is new, processor time", nothing[1], "s"),
        Measured("one new day / all days, processor time", new[1] / whole[1], "", TARGET),
    ]
    rows = days * DAY_MIN // EVERY_MIN * BUNDLES
    show(f"ingest of {rows / 1e6:.1f} M rows of bundles, local[{CORES}]", figures)


def write_days(fleet: Fleet, directory: Directory, days: range) -> None:
    for minute in range(days.start * DAY_MIN, days.stop * DAY_MIN, EVERY_MIN):
        fleet.write_minute(directory, minute)


def made(spark: Spark, history: str, out: str) -> tuple[float, float]:
    """Run the pipeline and return the seconds of wall time and of CPU time."""
    begun, used = time.perf_counter(), processor_s()
    run(spark, Job(history, out), ["ingest"])
    return time.perf_counter() - begun, processor_s() - used


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
