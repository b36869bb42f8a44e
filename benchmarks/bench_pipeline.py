"""What it costs the pipeline to make windows of 5 minutes from the rows of a history, and DuckDB beside it.

`bench_pipeline.py [million rows ...]`: 2 and 20 by default. The rows are those of 1,000 brokers with 100,000 bundles
that report each minute, in files of one minute each, as the leader writes them.

Measured are the functions that Spark's workers run, hour by hour as in a task each, in one thread and without Spark:
who carried what, and windows of bundles, brokers and namespaces. What Spark takes besides is in `bench_run.py`. DuckDB
makes windows of bundles alone. Each reads the files, in a process of its own.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import duckdb
import numpy as np
import psutil
import pyarrow as pa
from measure import Measured, show

from loadmanager.core.load import FloatArray, IntArray
from loadmanager.history.files import HOUR_MS, Directory, pack, path_of
from loadmanager.history.reader import History
from loadmanager.history.rows import thousandths
from loadmanager.history.schemas import BROKER_REPORTS, BUNDLE_REPORTS, KEYS, LOAD_COLUMNS, RATE, TABLES
from loadmanager.pipeline.averages import short_broker_windows, short_bundle_windows, short_namespace_windows
from loadmanager.pipeline.carried import bundles_of, carried
from loadmanager.pipeline.standing import STANDS_MS, Ends, standing

MILLION = 1_000_000
CORES = 2
BROKERS, BUNDLES, NAMESPACES = 1_000, 100_000, 100
START_MS = 1_790_000_000_000 // 86_400_000 * 86_400_000
MINUTE_MS = 60_000
HEAP = "4g"
TARGET_US = 0.6
TARGET_TIMES_DUCKDB = 1.0
TARGET_GIB = 4.0
WARMING_UP, ROUNDS = 1, 3
LINEAR = 1.2
"""So many times may the cost of a row be what it was among the fewest."""


class Fleet:
    """Who carries what, the same in every minute."""

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


@dataclass(frozen=True)
class Cost:
    """Of the cheapest round: the processor time, that of making windows alone, and the most memory, in GiB."""

    processor_s: float
    making_s: float
    highest: float


def figures_of(millions: int, fleet: Fleet, folder: Path) -> tuple[list[Measured], float]:
    """What is shown of so many rows, and the processor time that making their windows took, in seconds."""
    url = str(folder / str(millions))
    directory = Directory.of(url)
    minutes = millions * MILLION // BUNDLES
    for minute in range(minutes):
        fleet.write_minute(directory, minute)
    end_ms = START_MS + minutes * MINUTE_MS
    ours, theirs = (_apart(work, url, end_ms) for work in (by_the_hour, in_duckdb))
    target = TARGET_TIMES_DUCKDB if millions >= 20 else None
    return [
        Measured(f"{millions} M rows, windows alone", ours.making_s / millions, "us/row", TARGET_US),
        Measured(f"{millions} M rows, with reading", ours.processor_s / millions, "us/row"),
        Measured(f"{millions} M rows, DuckDB, with reading", theirs.processor_s / millions, "us/row"),
        Measured(f"{millions} M rows, with reading / DuckDB", ours.processor_s / theirs.processor_s, "", target),
        Measured(f"{millions} M rows, most memory", ours.highest, "GiB", TARGET_GIB),
        Measured(f"{millions} M rows, DuckDB, most memory", theirs.highest, "GiB"),
    ], ours.making_s


def by_the_hour(url: str, end_ms: int) -> float:
    """The windows of each hour, made of its reports and those that stand into it; what that took without reading."""
    used = 0.0
    ends = Ends({}, pa.table({name: pa.array([], pa.int64()) for name in KEYS} | {"broker": pa.array([], pa.string())}))
    for from_ms in range(START_MS, end_ms, HOUR_MS):
        to_ms = min(from_ms + HOUR_MS, end_ms)
        brokers, bundles = (_read(url, table, from_ms - STANDS_MS, to_ms) for table in (BROKER_REPORTS, BUNDLE_REPORTS))
        begun = time.process_time()
        reports = standing(brokers, ends, end_ms)
        pieces = carried(bundles, bundles_of(bundles), reports, from_ms, to_ms)
        short_bundle_windows(pieces)
        short_broker_windows(brokers, reports, pieces, from_ms, to_ms)
        short_namespace_windows(pieces)
        used += time.process_time() - begun
    return used


def _read(url: str, table: str, from_ms: int, to_ms: int) -> pa.Table:
    """Rows as they are in clean tables, with rates as doubles."""
    schema = TABLES[table].schema
    kinds = [each.with_type(pa.float64()) if each.type == RATE else each for each in schema]
    clean = pa.schema(kinds)
    batches = History(url).scan(table, from_ms, to_ms)
    return pa.concat_tables([clean.empty_table(), *(pa.Table.from_batches([each]).cast(clean) for each in batches)])


def in_duckdb(url: str, end_ms: int) -> None:
    """The same windows: means weighted by the time each report stood in them, and highest figures."""
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


def _apart(work: Callable[[str, int], float | None], url: str, end_ms: int) -> Cost:
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(_measured, work, url, end_ms).result()


def _measured(work: Callable[[str, int], float | None], url: str, end_ms: int) -> Cost:
    """Of some rounds after those that warm up."""
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    of_processor, of_making = [], []
    for _ in range(WARMING_UP + ROUNDS):
        used = processor_s()
        of_making.append(work(url, end_ms) or 0.0)
        of_processor.append(processor_s() - used)
    status = Path("/proc/self/status").read_text(encoding="ascii")
    highest_kib = int(status.partition("VmHWM:")[2].split()[0])
    return Cost(min(of_processor[WARMING_UP:]), min(of_making[WARMING_UP:]), highest_kib / 2**20)


def started() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def processor_s() -> float:
    """That of this process and all that it has started, also of those that have ended."""
    return sum(_processor_s(each) for each in (psutil.Process(), *started()))


def _processor_s(process: psutil.Process) -> float:
    with suppress(psutil.NoSuchProcess):
        used = process.cpu_times()
        return float(used.user + used.system + used.children_user + used.children_system)
    return 0.0


def main(sizes: list[int]) -> None:
    title = f"rows of bundles to 5-minute windows, {CORES} cores"
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
