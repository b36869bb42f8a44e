"""Cost of each strategy by the number of bundles, on 1,000 brokers. Every tenth broker is hot and owns three times as
much as the others.

Each size runs in its own process. The settings make every strategy act: hot brokers exceed the thresholds, there is no
minimum for moves, and strategies do not wait for further rounds. A decision is the strategy alone on an unused
snapshot. A plan is the decision plus a destination for each moved bundle. A placement is measured on a used snapshot,
on a new one, as after each change of ownership, and on a new one after a report.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np
from bench_core import BUNDLES_PER_NAMESPACE, a_report, best_s, namespace_bundles
from measure import Measured
from rich.console import Console
from rich.table import Table

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Ownership, OwnershipState, Registration
from loadmanager.core.domain.plan import Plan
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.planner import State, plan_assignments, plan_shedding
from loadmanager.core.strategies.placement import PLACEMENT_STRATEGIES
from loadmanager.core.strategies.shedding import PAIRED_STRATEGIES, SHEDDING_STRATEGIES, shedding_strategy

BROKERS = 1_000
SIZES = (10_000, 100_000, 1_000_000)
SIZE_OF_TARGETS = 100_000
TARGET_DECISION_MS = 300.0
TARGET_PLACEMENT_MS = 1.0
ONE_IN_HOT = 10
HOT_OWNS = 3.0
REPEATS = 3
PLACEMENTS = 100
MIB = 1024 * 1024
KIB_PER_MIB = 1024

SETTINGS = PlannerSettings(
    bundle_unload_min_throughput_threshold=0.0,
    min_unload_message=0,
    min_unload_message_throughput=0,
    avg_shedder_hit_count_high_threshold=1,
    shedding_condition_hit_count_threshold=0,
    broker_load_target_std=0.05,
    max_number_of_broker_shedding_per_cycle=BROKERS,
)


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one strategy at one size. `decision_s` is a shedding decision, or one placement on a used snapshot.
    `whole_s` is the complete plan, or the first placement on a snapshot. `peak_mib` is the peak memory of the decision,
    or of the first placement, without the snapshot. `moves` is the number of moved or placed bundles. `reported_s` is
    the first placement after a new report of one broker, None for shedding.
    """

    decision_s: float
    whole_s: float
    peak_mib: float
    moves: int
    reported_s: float | None = None


def a_cluster(bundles: int, rng: np.random.Generator) -> tuple[ClusterModel, str]:
    """Return a cluster, and the name of its only bundle without an owner."""
    model = ClusterModel()
    registrations = [Registration(BrokerId(f"broker-{i:04d}:8080"), i + 1) for i in range(BROKERS)]
    share = np.where(np.arange(BROKERS) % ONE_IN_HOT == 0, HOT_OWNS, 1.0)
    owners = rng.choice(BROKERS, bundles, p=share / share.sum()).tolist()
    owned: list[list[str]] = [[] for _ in range(BROKERS)]
    for first in range(0, bundles, BUNDLES_PER_NAMESPACE):
        namespace = f"tenant/ns-{first // BUNDLES_PER_NAMESPACE:05d}"
        names = namespace_bundles(namespace, BUNDLES_PER_NAMESPACE)
        those = owners[first : first + BUNDLES_PER_NAMESPACE]
        for name, owner in zip(names, those, strict=True):
            owned[owner].append(name)
        entries = [Ownership(OwnershipState.OWNED, registrations[owner], None, 1) for owner in those]
        model.set_namespace(namespace, names, entries)
    unowned = namespace_bundles("tenant/unowned", 1)
    model.set_namespace("tenant/unowned", unowned, [Ownership()])
    for i, registration in enumerate(registrations):
        cpu = 95.0 if i % ONE_IN_HOT == 0 else rng.uniform(30.0, 50.0)
        model.apply_report(registration, a_report(tuple(owned[i]), rng, cpu))
    return model, unowned[0]


def best_on_fresh_s(model: ClusterModel, repeats: int, action: Callable[[Snapshot], object]) -> float:
    """Return the fastest of `repeats` runs, each on a new snapshot."""
    times = []
    for _ in range(repeats):
        snapshot = model.snapshot(0.0, 0.0)
        times.append(best_s(partial(action, snapshot), 1))
    return min(times)


def best_after_report_s(model: ClusterModel, repeats: int, action: Callable[[Snapshot], object]) -> float:
    """Return the fastest of `repeats` runs, each on a new snapshot after an unchanged report of the first broker."""
    before = model.snapshot(0.0, 0.0)
    registration, rng = before.brokers.registrations[0], np.random.default_rng(2)
    names = tuple(before.bundles.names[row] for row in np.flatnonzero(before.bundles.broker == 0).tolist())
    first_ms = int(before.brokers.last_update_ms.max()) + 1
    times = []
    for at_ms in range(first_ms, first_ms + repeats):
        model.apply_report(registration, replace(a_report(names, rng, 95.0), last_update_ms=at_ms))
        times.append(best_on_fresh_s(model, 1, action))
    return min(times)


def peak_mib(model: ClusterModel, action: Callable[[Snapshot], object]) -> float:
    """Return the additional peak memory of the action on a new snapshot."""
    snapshot = model.snapshot(0.0, 0.0)
    tracemalloc.start()
    action(snapshot)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / MIB


def shedding_cost(model: ClusterModel, name: str, rng: np.random.Generator, repeats: int) -> Cost:
    settings = replace(SETTINGS, shedding_strategy=name)
    if name in PAIRED_STRATEGIES:
        settings = replace(settings, placement_strategy=name)
    _, strategy = shedding_strategy(settings)
    plans: list[Plan] = []
    return Cost(
        best_on_fresh_s(model, repeats, lambda snapshot: strategy.find_bundles_for_unloading(snapshot, {})),
        best_on_fresh_s(model, repeats, lambda snapshot: plans.append(plan_shedding(snapshot, settings, {}, rng)[0])),
        peak_mib(model, lambda snapshot: strategy.find_bundles_for_unloading(snapshot, {})),
        len(plans[0].steps),
    )


def placement_cost(model: ClusterModel, bundle: str, name: str, rng: np.random.Generator, repeats: int) -> Cost:
    """Measure successive placements, each with the state of the one before."""
    settings = replace(SETTINGS, placement_strategy=name)
    state: State = {}

    def place(snapshot: Snapshot) -> int:
        nonlocal state
        plan, state = plan_assignments(snapshot, [bundle], settings, state, rng)
        return len(plan.steps)

    ready = model.snapshot(0.0, 0.0)
    moves = place(ready)
    return Cost(
        best_s(lambda: place(ready), PLACEMENTS),
        best_on_fresh_s(model, repeats, place),
        peak_mib(model, place),
        moves,
        best_after_report_s(model, repeats, place),
    )


def measure_size(bundles: int) -> dict[str, object]:
    """Return the costs of all strategies at this size, the time to build the cluster, and the peak memory."""
    rng = np.random.default_rng(1)
    start_s = time.perf_counter()
    model, unowned = a_cluster(bundles, rng)
    built_s = time.perf_counter() - start_s
    repeats = REPEATS if bundles <= SIZE_OF_TARGETS else 1
    snapshot_s = best_s(lambda: model.snapshot(0.0, 0.0), REPEATS)
    shedding = {name: asdict(shedding_cost(model, name, rng, repeats)) for name in SHEDDING_STRATEGIES}
    placement = {name: asdict(placement_cost(model, unowned, name, rng, repeats)) for name in PLACEMENT_STRATEGIES}
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    whole = {"built_s": built_s, "snapshot_s": snapshot_s, "peak_mib": peak_kib / KIB_PER_MIB}
    return {"shedding": shedding, "placement": placement, "whole": whole}


def show(title: str, whole: str, by_size: dict[int, dict[str, Cost]], target_ms: float) -> None:
    """Show a row per strategy and size. `whole` is the heading of the second column: the complete plan, or the first
    placement on a snapshot."""
    table = Table(title=title, title_justify="left", title_style="bold", min_width=98)
    headings = ("", "bundles", "moves", "decision", "", whole, "after a report", "peak", "grows")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "" else "right", no_wrap=True)
    for name in by_size[SIZES[0]]:
        growth = by_size[SIZES[-1]][name].decision_s / by_size[SIZES[0]][name].decision_s
        for size in SIZES:
            cost = by_size[size][name]
            has_target = size == SIZE_OF_TARGETS
            measured = Measured(name, cost.decision_s * 1e3, "ms", target_ms if has_target else None)
            verdict = {None: "", True: f"<= {target_ms:g} ms: met", False: f"<= {target_ms:g} ms: MISSED"}
            table.add_row(
                name if size == SIZES[0] else "",
                f"{size:,}",
                f"{cost.moves:,}",
                f"{measured.figure:,.3f} ms",
                verdict[measured.is_met],
                f"{cost.whole_s * 1e3:,.3f} ms",
                "" if cost.reported_s is None else f"{cost.reported_s * 1e3:,.3f} ms",
                f"{cost.peak_mib:,.2f} MiB",
                f"{growth:,.1f} x" if size == SIZES[-1] else "",
                end_section=size == SIZES[-1],
            )
    Console(width=140).print(table)
    print()


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure_size(int(sys.argv[1]))))
        return
    found = {}
    for size in SIZES:
        command = [sys.executable, __file__, str(size)]
        found[size] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    for kind, whole, target_ms in (
        ("shedding", "whole plan", TARGET_DECISION_MS),
        ("placement", "fresh snapshot", TARGET_PLACEMENT_MS),
    ):
        costs = {size: {name: Cost(**each) for name, each in found[size][kind].items()} for size in SIZES}
        show(f"{kind.capitalize()} strategies, {BROKERS:,} brokers", whole, costs, target_ms)
    for size in SIZES:
        whole = found[size]["whole"]
        built, snapshot = f"{whole['built_s']:.1f} s", f"{whole['snapshot_s'] * 1e3:.2f} ms"
        print(
            f"{size:>9,} bundles: built in {built}, a snapshot {snapshot}, process at most {whole['peak_mib']:,.0f} MiB"
        )


if __name__ == "__main__":
    main()
