"""CPU time per row of the step `ingest` on Spark, compared with DuckDB, over minutes of 100,000 bundles.

`bench_pipeline.py [million rows ...]`: 2 and 20 by default. The rows are those of 1,000 brokers with 100,000 bundles
that report each minute, in files of one minute each, as the leader writes them. DuckDB computes only the 5-minute
windows of bundles. Each runs in its own process with two threads. The start of Spark is not measured.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import duckdb
import numpy as np
import psutil
import pyarrow as pa
from measure import Measured, show

from loadmanager.core.model.load import FloatArray, IntArray
from loadmanager.history.entry_rows import thousandths
from loadmanager.history.files import Directory, pack, path_of
from loadmanager.history.table_schemas import BROKER_REPORTS, BUNDLE_REPORTS, LOAD_COLUMNS, TABLES
from loadmanager.pipeline.delta import Tables
from loadmanager.pipeline.ingest import Ingest
from loadmanager.pipeline.job import Job
from loadmanager.pipeline.session import spark_session

MILLION = 1_000_000
CORES = 2
BROKERS, BUNDLES, NAMESPACES = 1_000, 100_000, 100
START_MS = 1_790_000_000_000 // 86_400_000 * 86_400_000
MINUTE_MS = 60_000
HEAP = "4g"
TARGET_US = 15.0
TARGET_TIMES_DUCKDB = 1.5
LINEAR = 1.2
"""Maximum ratio of the cost per row to that at the smallest number of rows."""


class Fleet:
    """Assignment of bundles to brokers, the same in every minute."""

    def __init__(self, brokers: int = BROKERS, bundles: int = BUNDLES, namespaces: int = NAMESPACES) -> None:
        self._count, self._bundles, self._per_broker = brokers, bundles, bundles // brokers
        self._rng = np.random.default_rng(1)
        carried = np.sort(self._rng.permutation(bundles).reshape(brokers, -1), axis=1).ravel()
        per_namespace = bundles // namespaces
        width = 2**32 // per_namespace
        place = carried % per_namespace
        names = [f"tenant-{number // 10}/namespace-{number}" for number in range(namespaces)]
        self._brokers = pa.array([f"broker-{number:04d}:8080" for number in range(brokers)])
        self._of_bundles = {
            "broker": _named(np.repeat(np.arange(brokers), self._per_broker), self._brokers),
            "namespace": _named(carried // per_namespace, pa.array(names)),
            "range_lower": place * width,
            "range_upper": np.where(place == per_namespace - 1, 2**32 - 1, (place + 1) * width),
        }
        self._rate = self._rng.lognormal(4, 1.5, bundles)

    def write_minute(self, directory: Directory, minute: int) -> None:
        count, each = self._count, self._per_broker
        at_ms = START_MS + minute * MINUTE_MS + np.sort(self._rng.integers(0, MINUTE_MS, count))
        sequence = minute * count + np.arange(count)
        load = self._load()
        bundles = {**self._of_bundles, **_keys(np.repeat(at_ms, each), np.repeat(sequence, each))}
        for at, name in enumerate(LOAD_COLUMNS):
            bundles[name] = thousandths(load[:, at]) if at < 2 else load[:, at].astype(np.int64)
        self._write(directory, BUNDLE_REPORTS, bundles, self._bundles)
        totals = load.reshape(count, each, -1).sum(axis=1)
        brokers = {"broker": _named(np.arange(count), self._brokers), **_keys(at_ms, sequence)}
        brokers |= {name: totals[:, at] for at, name in enumerate(LOAD_COLUMNS)}
        self._write(directory, BROKER_REPORTS, brokers, count)

    def _load(self) -> FloatArray:
        rate = np.rint(self._rate * self._rng.lognormal(0, 0.2, self._bundles) * 1000) / 1000
        throughput = np.rint(rate * 1000)
        return np.stack([rate, 2 * rate, throughput, 2 * throughput], axis=1)

    def _write(self, directory: Directory, table: str, columns: dict[str, object], rows: int) -> None:
        schema = TABLES[table].schema
        arrays = [pa.array(columns.get(each.name, _constant(each.type, rows)), each.type) for each in schema]
        made = pa.table(arrays, schema=schema)
        first, last = made.column("sequence")[0].as_py(), made.column("sequence")[-1].as_py()
        at_ms = made.column("at_ms")[0].as_py()
        directory.write(path_of(table, at_ms, 1, (first, last), "bench"), pack(table, made, at_ms))


def _named(rows: IntArray, names: object) -> object:
    return pa.DictionaryArray.from_arrays(pa.array(rows.astype(np.int32)), names)


def _keys(at_ms: IntArray, sequence: IntArray) -> dict[str, object]:
    return {"at_ms": at_ms, "sequence": sequence, "epoch": np.ones(len(sequence), dtype=np.int64)}


def _constant(kind: object, rows: int) -> object:
    if pa.types.is_dictionary(kind):
        return _named(np.zeros(rows, dtype=np.int64), pa.array(["3.0"]))
    return np.full(rows, True if kind == pa.bool_() else 3)


def figures_of(millions: int, fleet: Fleet, folder: Path) -> tuple[list[Measured], float]:
    """Return the lines to show for this number of rows, and the CPU time of ingest in seconds."""
    url = str(folder / str(millions))
    directory = Directory.of(url)
    minutes = millions * MILLION // BUNDLES
    for minute in range(minutes):
        fleet.write_minute(directory, minute)
    end_ms = START_MS + minutes * MINUTE_MS
    ours, theirs = _apart(in_spark, url), _apart(in_duckdb, url, end_ms)
    return [
        Measured(f"{millions} M rows", ours / millions, "us/row", TARGET_US),
        Measured(f"{millions} M rows, DuckDB", theirs / millions, "us/row"),
        Measured(f"{millions} M rows / DuckDB", ours / theirs, "", TARGET_TIMES_DUCKDB),
    ], ours


def in_spark(url: str) -> float:
    """Return the CPU time of the step, without the start of Spark."""
    spark = spark_session(f"local[{CORES}]", "benchmark", {"spark.driver.memory": HEAP})
    used = processor_s()
    job = Job(url, f"{url}-out")
    Ingest(spark, Tables(spark, job.out), job).run()
    used = processor_s() - used
    spark.stop()
    return used


def in_duckdb(url: str, end_ms: int) -> float:
    """Compute the same windows: maxima, and means weighted by the time for which each report was current."""
    used = processor_s()
    figures = [*LOAD_COLUMNS, "topics", "sessions"]
    means = ", ".join(f"sum({name}::double * stood) / sum(stood) as mean_{name}" for name in figures)
    highest = ", ".join(f"max({name}) as max_{name}" for name in LOAD_COLUMNS)
    connection = duckdb.connect()
    connection.execute(f"set threads = {CORES}")
    connection.execute("set enable_progress_bar = false")
    connection.execute(f"""
        create temp table windows as
        with ends as (
            select *, least(at_ms + 900000, {end_ms}, lead(at_ms) over (
                partition by namespace, range_lower, range_upper order by at_ms, epoch, sequence)) as until_ms
            from read_parquet('{url}/{BUNDLE_REPORTS}/*/*/*.parquet', hive_partitioning = false)
        ), split as (
            select *, unnest(range(at_ms // 300000, (until_ms - 1) // 300000 + 1)) as slot from ends
        ), standing as (
            select *, (at_ms >= slot * 300000)::int as own,
                least(until_ms, (slot + 1) * 300000) - greatest(at_ms, slot * 300000) as stood
            from split
        )
        select namespace, range_lower, range_upper, slot, sum(own) as n, sum(stood) as covered, {means}, {highest}
        from standing
        group by all
    """)
    connection.close()
    return processor_s() - used


def _apart(work: Callable[..., float], *given: object) -> float:
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(work, *given).result()


def started() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def processor_s() -> float:
    """Return the CPU time of this process and its children, ended ones included."""
    return sum(_processor_s(each) for each in (psutil.Process(), *started()))


def _processor_s(process: psutil.Process) -> float:
    with suppress(psutil.NoSuchProcess):
        used = process.cpu_times()
        return float(used.user + used.system + used.children_user + used.children_system)
    return 0.0


def main(sizes: list[int]) -> None:
    title = f"ingest of rows of bundles, local[{CORES}], heap {HEAP}"
    per_row: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for millions in sizes:
            rows, used_s = figures_of(millions, Fleet(), Path(folder))
            per_row.append(used_s / millions)
            show(title, rows)
    if len(sizes) > 1:
        what = f"a row of {sizes[-1]} M / one of {sizes[0]} M"
        show("processor time", [Measured(what, per_row[-1] / per_row[0], "", LINEAR)])


if __name__ == "__main__":
    main([int(each) for each in sys.argv[1:]] or [2, 20])
