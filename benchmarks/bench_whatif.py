"""Parallel efficiency of what-if scenarios: eight scenarios on two cores compared with one.

A history of 30 brokers with 600 bundles is recorded and read again. The scenarios differ only in their seeds, so they
take equally long. Runs of one and of eight scenarios alternate. The time includes passing the range to each trial, but
not reading it, nor the first start of the workers. One scenario also runs without Spark, and both results must be equal
to the last bit. On a busy machine CPU time is more meaningful: that of eight, halved for two cores, against one.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import psutil
from measure import Measured, show

from loadmanager.core.domain.bundles import NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.model.load import BrokerReport
from loadmanager.core.model.report_validation import recordable
from loadmanager.history.entry_rows import Report
from loadmanager.history.files import Directory
from loadmanager.history.reader import History
from loadmanager.history.writer import HistoryWriter
from loadmanager.lab.simulate.scenario import parse_as
from loadmanager.lab.whatif.recorded_ranges import read_range
from loadmanager.pipeline.ranges import Ranges
from loadmanager.pipeline.session import spark_session
from loadmanager.pipeline.whatif_file import WhatIf
from loadmanager.pipeline.whatif_plan import WhatIfPlan, plan, play

BROKERS, BUNDLES_OF_EACH, MINUTES, STEP_S = 30, 20, 240, 10
CORES, SCENARIOS, ROUNDS = 2, 8, 3
START_MS = 1_790_000_000_000
_LIMITS = np.array([800.0, 16_384.0, 8_192.0, 10_000_000.0, 10_000_000.0])


def record(root: Path) -> History:
    """Record a history: every broker reports every minute; loads are heavy-tailed and follow random walks."""
    rng = np.random.default_rng(7)
    weights = rng.pareto(1.5, (BROKERS, BUNDLES_OF_EACH)) + 0.2
    ranges = NamespaceBundles(equal_boundaries(BUNDLES_OF_EACH)).ranges()
    directory = Directory.of(str(root))
    writer = HistoryWriter(directory, "bench:8080")
    writer.start()
    writer.begin_term(1, START_MS)
    for minute in range(MINUTES):
        weights *= np.exp(rng.normal(0, 0.02, weights.shape))
        for broker in range(BROKERS):
            at_ms = START_MS + minute * 60_000 + broker * 500
            writer.put(at_ms, _report(broker, at_ms, weights[broker], tuple(f"tenant/ns-{broker}/{r}" for r in ranges)))
    writer.end_term(START_MS + MINUTES * 60_000)
    assert writer.close(timeout_s=120), writer.figures
    return History(directory)


def _report(broker: int, at_ms: int, weights: np.ndarray, names: tuple[str, ...]) -> Report:
    load = weights[:, np.newaxis] * np.array([500.0, 500.0, 500_000.0, 500_000.0])
    counts = np.full(len(names), 10, dtype=np.int64)
    used = np.minimum(np.array([5.0, 1024.0, 64.0, 0.0, 0.0]) + load[:, 2].sum() * 1e-5, _LIMITS)
    report = BrokerReport(
        usage=np.column_stack([used, _LIMITS]),
        load=load.sum(axis=0),
        num_topics=10 * len(names),
        num_bundles=len(names),
        num_consumers=0,
        num_producers=0,
        bundle_names=names,
        bundle_load=load,
        bundle_topics=counts,
        bundle_sessions=counts,
        bundle_cache_bytes=0 * counts,
        last_update_ms=at_ms,
        start_timestamp_ms=START_MS,
        version="4.0.1",
        load_manager_class="",
        persistent_enabled=True,
        non_persistent_enabled=True,
    )
    return Report(Registration(BrokerId(f"broker-{broker:04d}:8080"), broker + 1), recordable(report))


def scenarios(history: History, ranges: Ranges, seeds: int) -> WhatIfPlan:
    content = {
        "name": "bench",
        "stepS": STEP_S,
        "stretchS": 86_400,
        "strategies": ["ThresholdShedder"],
        "seeds": list(range(seeds)),
    }
    return plan(parse_as(WhatIf, content, "bench_whatif"), history, ranges)


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return the wall time, and the CPU time of this process and its children, in seconds."""
    begun, used = time.perf_counter(), _processor_s()
    work()
    return time.perf_counter() - begun, _processor_s() - used


def _processor_s() -> float:
    own = psutil.Process()
    return sum(sum(each.cpu_times()[:2]) for each in (own, *own.children(recursive=True)))


def digests(given: WhatIfPlan, ranges: Ranges) -> list[str]:
    # Not put into order by Spark, which would play everything once more to see where to cut.
    return [row["digest"] for row in sorted(play(given, ranges).collect(), key=lambda row: row["scenario"])]


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        history = record(Path(folder))
        spark = spark_session(f"local[{CORES}]")
        ranges = Ranges(spark, history.directory.root)
        one = scenarios(history, ranges, 1)
        digests(one, ranges)  # also starts the workers
        begun = time.perf_counter()
        all_of_them = scenarios(history, ranges, SCENARIOS)
        read_s = time.perf_counter() - begun
        recorded = read_range(history, one.cells[0].stretch)
        plain_s = median(timed(lambda: all_of_them.cells[0].trial.run(recorded))[0] for _ in range(ROUNDS))
        times = [
            (timed(lambda: digests(one, ranges)), timed(lambda: digests(all_of_them, ranges))) for _ in range(ROUNDS)
        ]
        found = digests(all_of_them, ranges)
        last = SCENARIOS - 1
        is_same = all(found[number] == all_of_them.cells[number].trial.run(recorded).digest() for number in (0, last))
        spark.stop()
    show(
        f"{SCENARIOS} what-ifs of {MINUTES // 60} h of {BROKERS} brokers, {BROKERS * BUNDLES_OF_EACH} bundles",
        [
            Measured("one without Spark", plain_s, "s"),
            Measured("one", median(first[0] for first, _ in times), "s"),
            Measured(f"{SCENARIOS} on {CORES} cores", median(every[0] for _, every in times), "s"),
            Measured("of the time of one", median(every[0] / first[0] for first, every in times), "", target=4.4),
            Measured("of its processor time", median(every[1] / first[1] / CORES for first, every in times), ""),
            Measured("reading and checking", read_s, "s"),
            Measured("the same to the last bit as without Spark (1: yes)", float(is_same), "", target=1, at_least=True),
        ],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
