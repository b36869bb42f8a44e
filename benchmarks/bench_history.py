"""Cost of recording: bytes on disk per bundle row, and time of the event loop and of the writing thread.

1,000 brokers with 100,000 bundles report each minute. Loads are heavy-tailed and change by 20 % from minute to minute.
"""

from __future__ import annotations

import io
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measure import Measured, show

from loadmanager.core.domain.bundles import NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import HASH_SPACE_END, BrokerId
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.model.load import BrokerReport, FloatArray, IntArray
from loadmanager.core.model.report_validation import recordable
from loadmanager.history.entry_rows import Placed, Report
from loadmanager.history.files import Directory
from loadmanager.history.reader import History
from loadmanager.history.row_packer import pack_entries
from loadmanager.history.table_schemas import BUNDLE_REPORTS
from loadmanager.history.writer import HistoryWriter, WriterLimits

BROKERS = 1_000
NAMESPACES = 1_000
BUNDLES_PER_NAMESPACE = 100
BUNDLES = NAMESPACES * BUNDLES_PER_NAMESPACE
MINUTES = 5
MEAN_MESSAGES_PER_S = 20.0
START_MS = 1_790_000_000_000
TARGET_BYTES = 20
TARGET_THREAD_S = 0.2
TARGET_PUT_US = 20


def bundle_names(rng: np.random.Generator) -> list[str]:
    """Return names of bundles: equal ranges in half of the namespaces, repeatedly split ones in the others."""
    names = []
    for number in range(NAMESPACES):
        if number % 2:
            bundles = NamespaceBundles(equal_boundaries(BUNDLES_PER_NAMESPACE))
        else:
            bundles = NamespaceBundles(equal_boundaries(4))
            while len(bundles) < BUNDLES_PER_NAMESPACE:
                at = int(rng.integers(len(bundles)))
                middle = (bundles.range_at(at).lower + bundles.range_at(at).upper) // 2
                bundles = bundles.split(at, [middle])
        assert bundles.boundaries[-1] == HASH_SPACE_END
        names += [f"tenant-{number % 20}/namespace-{number:04d}/{each}" for each in bundles.ranges()]
    return names


class Fleet:
    """Bundles, their brokers and their mean loads."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._names = bundle_names(rng)
        self._rows = [
            np.flatnonzero(each) for each in np.arange(BROKERS)[:, None] == rng.integers(BROKERS, size=BUNDLES)
        ]
        self._rate = rng.lognormal(np.log(MEAN_MESSAGES_PER_S), 1.5, BUNDLES)
        self._fan_out = rng.choice([0, 1, 1, 2, 3], BUNDLES)
        self._message_bytes = rng.lognormal(np.log(1000), 1, BUNDLES)
        self._topics = np.maximum(1, rng.lognormal(2, 1.2, BUNDLES)).astype(np.int64)
        self._registrations = [
            Registration(BrokerId(f"broker-{number:04d}.example.com:8080"), 10**9 + number) for number in range(BROKERS)
        ]

    def _noise(self) -> FloatArray:
        return np.clip(1 + 0.2 * self._rng.standard_normal(BUNDLES), 0, None)

    def minute(self, number: int) -> list[tuple[int, Report]]:
        """Return a report of each broker with its time; rates have all digits of a double."""
        at_ms = START_MS + number * 60_000
        rate_in, rate_out = self._rate * self._noise(), self._rate * self._fan_out * self._noise()
        bytes_in = rate_in * self._message_bytes * self._rng.normal(1, 0.01, BUNDLES)
        bytes_out = rate_out * self._message_bytes * self._rng.normal(1, 0.01, BUNDLES)
        load = np.column_stack([rate_in, rate_out, bytes_in, bytes_out])
        sessions: IntArray = 2 * self._topics + self._rng.integers(5, size=BUNDLES)
        cache = (5 * bytes_in * self._noise()).astype(np.int64)
        return [
            (at_ms + 60 * place, self._report(int(broker), at_ms, load, sessions, cache))
            for place, broker in enumerate(self._rng.permutation(BROKERS))
        ]

    def _report(self, broker: int, at_ms: int, load: FloatArray, sessions: IntArray, cache: IntArray) -> Report:
        own = self._rows[broker]
        report = BrokerReport(
            usage=self._rng.uniform(0, 100, (5, 2)),
            load=load[own].sum(axis=0),
            num_topics=int(self._topics[own].sum()),
            num_bundles=len(own),
            num_consumers=int(sessions[own].sum()),
            num_producers=int(sessions[own].sum()),
            bundle_names=tuple([self._names[row] for row in own.tolist()]),
            bundle_load=load[own],
            bundle_topics=self._topics[own],
            bundle_sessions=sessions[own],
            bundle_cache_bytes=cache[own],
            last_update_ms=at_ms,
            start_timestamp_ms=START_MS,
            version="4.0.1",
            load_manager_class="org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl",
            persistent_enabled=True,
            non_persistent_enabled=True,
        )
        return Report(self._registrations[broker], report)


def size_with_defaults(minutes: Sequence[Sequence[tuple[int, Report]]]) -> float:
    """Return the bytes per bundle row if Arrow writes the same columns with its defaults, with full doubles."""
    reports = [(at_ms, each.registration.broker, each.report) for minute in minutes for at_ms, each in minute]
    sizes = [len(report.bundle_names) for _, _, report in reports]
    load = np.concatenate([report.bundle_load for _, _, report in reports])
    table = pa.table(
        {
            "at_ms": np.repeat([at_ms for at_ms, _, _ in reports], sizes),
            "sequence": np.repeat(np.arange(len(reports)), sizes),
            "broker": np.repeat([broker for _, broker, _ in reports], sizes),
            "bundle": [name for _, _, report in reports for name in report.bundle_names],
            **{f"load_{at}": load[:, at] for at in range(4)},
            "topics": np.concatenate([report.bundle_topics for _, _, report in reports]),
            "sessions": np.concatenate([report.bundle_sessions for _, _, report in reports]),
            "cache_bytes": np.concatenate([report.bundle_cache_bytes for _, _, report in reports]),
        }
    )
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return len(sink.getvalue()) / len(load)


def refused(placed: Placed, error: Exception) -> None:
    raise AssertionError(placed.sequence) from error


def main() -> None:
    rng = np.random.default_rng(1)
    fleet = Fleet(rng)
    raw = [fleet.minute(number) for number in range(MINUTES)]
    minutes = [
        [(at_ms, Report(each.registration, recordable(each.report))) for at_ms, each in minute] for minute in raw
    ]
    thread_s = []
    for minute in minutes:
        placed = [Placed(at_ms, 1, sequence, each) for sequence, (at_ms, each) in enumerate(minute)]
        started_s = time.perf_counter()
        pack_entries(placed, "node", refused)
        thread_s.append(time.perf_counter() - started_s)
    with tempfile.TemporaryDirectory() as folder:
        directory = Directory.of(str(Path(folder) / "history"))
        writer = HistoryWriter(directory, "node-1:8080", WriterLimits(queue_rows=10**7, queue_bytes=2**33))
        writer.start()
        writer.begin_term(1, START_MS)
        put_s, flush_s = [], []
        for minute in minutes:
            started_s = time.perf_counter()
            for at_ms, each in minute:
                writer.put(at_ms, each)
            put_s.append(time.perf_counter() - started_s)
            assert writer.flush(60)
            flush_s.append(time.perf_counter() - started_s)
        writer.close(START_MS)
        history = History(directory)
        info = history.info(BUNDLE_REPORTS)
        assert info.rows == MINUTES * BUNDLES
        started_s = time.perf_counter()
        assert sum(batch.num_rows for batch in history.scan(BUNDLE_REPORTS)) == info.rows
        scan_s = time.perf_counter() - started_s
        started_s = time.perf_counter()
        assert sum(1 for _ in history.reports()) == MINUTES * BROKERS
        reports_s = time.perf_counter() - started_s
    show(
        f"{BROKERS:,} brokers with {BUNDLES:,} bundles, {MINUTES} minutes",
        [
            Measured("on disk, a bundle row", info.size_bytes / info.rows, "bytes", TARGET_BYTES),
            Measured("the same by Arrow's defaults, with all digits", size_with_defaults(raw), "bytes"),
            Measured("put, a report, on the event loop", float(np.median(put_s)) / BROKERS * 1e6, "us", TARGET_PUT_US),
            Measured("into columns and files, a minute", float(np.median(thread_s)), "s", TARGET_THREAD_S),
            Measured("put and on disk, a minute", float(np.median(flush_s)), "s"),
            Measured("scanned", info.rows / scan_s / 1e6, "million rows/s"),
            Measured("read back as reports", MINUTES * BUNDLES / reports_s / 1e6, "million rows/s"),
        ],
    )


if __name__ == "__main__":
    main()
