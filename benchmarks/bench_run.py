"""Duration of a whole pipeline run on two cores: over a small history, and step by step over many rows.

`bench_run.py [million rows]`: 2 by default, of the fleet of `bench_pipeline.py`; 0 for the small history only. The step
`ingest` is compared with DuckDB, which computes 5-minute windows of bundles from the same files. What-if runs are left
out for many rows: `bench_whatif.py` measures them.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import duckdb
from bench_pipeline import BUNDLES, CORES, HEAP, MILLION, Fleet, in_duckdb, processor_s
from measure import Measured, show
from support.recorded_fleet import BROKERS, NAMESPACES, record_fleet
from support.recorded_fleet import BUNDLES as SMALL_BUNDLES

from loadmanager.history.files import Directory
from loadmanager.history.table_schemas import BUNDLE_REPORTS
from loadmanager.pipeline.job import Job
from loadmanager.pipeline.runner import run
from loadmanager.pipeline.session import spark_session
from loadmanager.pipeline.steps import STEPS

SMALL_MINUTES = 90
TARGET_SMALL_S = 40.0
TARGET_US, TARGET_TIMES_DUCKDB = 15.0, 1.5
SIMULATING = "whatif"


Costs = dict[str, tuple[float, float]]
"""Wall time and CPU time of each step, in seconds."""


@dataclass(frozen=True)
class Ran:
    """A run with its session, from the start of Spark to its last step."""

    costs: Costs
    seconds: float
    processor_s: float
    jobs: int


def ran(url: str, out: str, steps: Sequence[str], *, for_few: bool = False) -> Ran:
    begun, used = time.perf_counter(), processor_s()
    spark = spark_session(f"local[{CORES}]", "benchmark", {"spark.driver.memory": HEAP}, for_few=for_few)
    costs = {step: measured(partial(run, spark, Job(url, out), [step])) for step in steps}
    jobs = spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs()  # noqa: SLF001 - said nowhere else
    return Ran(costs, time.perf_counter() - begun, processor_s() - used, jobs)


def apart(url: str, out: str, steps: Sequence[str], *, for_few: bool = False) -> Ran:
    """Run the steps in a separate process with its own JVM."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(ran, url, out, steps, for_few=for_few).result()


def small(folder: Path) -> None:
    record_fleet(folder / "small", minutes=SMALL_MINUTES)
    found = apart(str(folder / "small"), str(folder / "small-out"), list(STEPS), for_few=True)
    rows = SMALL_MINUTES * (NAMESPACES * SMALL_BUNDLES + BROKERS)
    slowest = sorted(found.costs.items(), key=lambda each: -each[1][0])[:3]
    show(
        f"a whole run over {rows:,} rows, local[{CORES}]",
        [
            Measured("from the start of Spark to the report", found.seconds, "s", TARGET_SMALL_S),
            Measured("processor time", found.processor_s, "s"),
            Measured("Spark jobs", found.jobs, ""),
            *(Measured(f"step {step}", seconds, "s") for step, (seconds, _) in slowest),
        ],
    )


def large(folder: Path, millions: int) -> None:
    url, fleet = str(folder / "large"), Fleet()
    for minute in range(millions * MILLION // BUNDLES):
        fleet.write_minute(Directory.of(url), minute)
    steps = [step for step in STEPS if step != SIMULATING]
    costs = apart(url, str(folder / "large-out"), steps).costs
    beside = {"ingest": measured(lambda: in_duckdb(url, end_ms_of(url)))}
    rows = [row for step in steps for row in rows_of(step, millions, costs, beside)]
    show(f"a run over {millions} M rows, local[{CORES}], heap {HEAP}; DuckDB on the same files", rows)


def rows_of(step: str, millions: int, costs: Costs, beside: Mapping[str, tuple[float, float]]) -> list[Measured]:
    if step not in beside:
        return [Measured(step, costs[step][0], "s")]
    (seconds, used), (own_s, own) = beside[step], costs[step]
    return [
        Measured(step, millions / own_s, "M rows/s"),
        Measured(f"{step}, processor time a row", own / millions, "µs", TARGET_US),
        Measured(f"{step} in DuckDB", millions / seconds, "M rows/s"),
        Measured(f"{step} in DuckDB, processor time a row", used / millions, "µs"),
        Measured(f"{step}, processor time / DuckDB's", own / used, "", TARGET_TIMES_DUCKDB),
    ]


def measured(work: Callable[[], object]) -> tuple[float, float]:
    """Return the wall time and the CPU time in seconds."""
    begun, used = time.perf_counter(), processor_s()
    work()
    return time.perf_counter() - begun, processor_s() - used


def end_ms_of(url: str) -> int:
    """Return the time after the last report."""
    with duckdb.connect() as connection:
        connection.execute(f"select max(at_ms) from read_parquet('{url}/{BUNDLE_REPORTS}/*/*/*.parquet')")
        (last,) = connection.fetchall()
    return int(last[0]) + 1


def main(millions: int) -> None:
    with tempfile.TemporaryDirectory(prefix="loadmanager-bench-") as folder:
        small(Path(folder))
        if millions:
            large(Path(folder), millions)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
