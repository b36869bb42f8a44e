"""Cost of a simulated day on one core: a fleet with days and nights, noise and heavy tails, in one-minute steps.

The small fleet runs for a whole day. The large one runs for the first hours, which have most splits and moves, and the
result is extrapolated to a day. `--whole` runs the whole day.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import numpy as np
from measure import Measured, show
from support.worlds import brokers_named, namespaces_dealt, steady

from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.lab.simulate.run_rules import WorldRules
from loadmanager.lab.simulate.workload import DiurnalShape, LoadShape, NoiseShape, heavy_tailed
from loadmanager.lab.simulate.world import Progress, World

BUNDLES_PER_NAMESPACE = 100
SEED = 1
STEP_S = 60.0
HOUR_S = 3600.0
DAY_H = 24
MIB = 1024 * 1024
LOAD = (60.0, 90.0, 1.2 * MIB, 1.8 * MIB)
"""Load of an average bundle: a hundred of them use a quarter of a broker's capacity."""


@dataclass(frozen=True, slots=True)
class Size:
    brokers: int
    bundles: int
    hours: int
    target_s: float
    all_report: bool = False
    """All brokers report every minute, even if their load has not changed."""


SIZES = (
    Size(100, 10_000, DAY_H, 60.0),
    Size(1_000, 100_000, 2, 900.0),
    Size(1_000, 100_000, 2, 900.0, all_report=True),
)


def a_world(size: Size) -> World:
    brokers = brokers_named(size.brokers)
    namespaces = namespaces_dealt(
        size.bundles // BUNDLES_PER_NAMESPACE, BUNDLES_PER_NAMESPACE, [spec.id for spec in brokers]
    )
    shapes: list[LoadShape] = [NoiseShape(spread=0.2), DiurnalShape(amplitude=0.4, phases="spread")]
    workload = steady(heavy_tailed(size.bundles, SEED), LOAD, shapes=shapes, seed=SEED)
    rules = WorldRules(report_max_interval_s=STEP_S / 2) if size.all_report else WorldRules()
    return World(brokers, namespaces, workload, PlannerSettings(), rules=rules, seed=SEED)


def measure(size: Size, hours: int) -> None:
    started_s = time.perf_counter()
    world = a_world(size)
    built_s = time.perf_counter() - started_s
    steps: list[float] = []

    def note(progress: Progress) -> None:
        del progress
        steps.append(time.process_time())

    began_s = time.process_time()
    result = world.run(hours * HOUR_S, STEP_S, note)
    took_s = time.process_time() - began_s
    last_hour = np.diff(steps)[-60:]
    day_s = took_s * DAY_H / hours
    show(
        f"{size.brokers:,} brokers x {size.bundles:,} bundles, {hours} h in steps of one minute"
        f"{', all report every minute' if size.all_report else ''}, processor time",
        [
            Measured("a day" if hours == DAY_H else f"a day, from {hours} hours", day_s, "s", size.target_s),
            Measured("one step", took_s / len(result.series) * 1e3, "ms"),
            Measured("one step of the last hour, median", float(np.median(last_hour)) * 1e3, "ms"),
            Measured("the world is made", built_s, "s"),
            Measured("reports a step", float(result.series.reports.mean()), ""),
            Measured("moves", len(result.moves), ""),
            Measured("splits", len(result.splits), ""),
        ],
    )


def main() -> None:
    for size in SIZES:
        measure(size, DAY_H if "--whole" in sys.argv[1:] else size.hours)


if __name__ == "__main__":
    main()
