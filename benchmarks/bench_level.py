"""Cost of Level's search, and its distance from the optimum: 1,000 brokers of two sizes, lognormal bundles that
need four resources, at random owners at first.

The gap is the highest heat afterwards divided by the bound. The bound is 1, as if load were perfectly divisible, or the
least heat of a bundle that is too large for every broker. The moved load is divided by the least load, of any resource,
that must move to reach the same heat. An event increases the heat of one balanced broker by half. Times are CPU time of
one core. The baseline in the same run is numpy: sum the loads of all brokers and sort the bundles by size once.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from bench_core import MIB, a_report, namespace_bundles
from level_task import a_task, after
from measure import Measured, show

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Ownership, OwnershipState, Registration
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.model.load import (
    BANDWIDTH_IN,
    BANDWIDTH_OUT,
    CPU,
    DIRECT_MEMORY,
    METRICS,
    BrokerReport,
    RowArray,
)
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.planner import plan_shedding
from loadmanager.core.strategies.level.move_search import find_moves
from loadmanager.core.strategies.level.search_task import SearchResult, Task

BROKERS = 1_000
BUNDLES, MANY_BUNDLES = 100_000, 1_000_000
SIZES = (1.0, 2.0)
SPREAD, APART = 1.0, 0.3
"""Standard deviations of the logarithms of a bundle's needs: common to all resources, and separate for each."""
USED = 0.5
"""Used part of the brokers' capacity."""
TARGET = 1.03
"""Heat that the searches aim at; a round of shedding aims at `TARGET_HEAT` of `hysteresis.py`."""
TARGET_S, TARGET_MANY_S, TARGET_EVENT_S = 0.5, 5.0, 0.02
TARGET_GAP, TARGET_MOVED, TARGET_MIB = 1.035, 1.15, 1024
REPEATS = 3
BUNDLES_PER_NAMESPACE = 100
KIB_PER_MIB = 1024
SETTINGS = PlannerSettings(shedding_strategy="Level", placement_strategy="Level")


def processor_s(action: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the minimum of `repeats` runs."""
    times = []
    for _ in range(repeats):
        start_s = time.process_time()
        action()
        times.append(time.process_time() - start_s)
    return min(times)


def an_instance(bundles: int, rng: np.random.Generator) -> Task:
    need = np.exp(rng.normal(0, SPREAD, bundles))[:, None] * np.exp(rng.normal(0, APART, (bundles, METRICS)))
    size = np.resize(np.array(SIZES), BROKERS)
    having = size[:, None] * need.sum(axis=0) / (USED * size.sum())
    return a_task(need, 1 / having, rng.integers(0, BROKERS, bundles).astype(np.int32), TARGET)


def moved_by_least(task: Task, found: SearchResult) -> float:
    """Return the moved load divided by the least that had to leave brokers that are now below the highest."""
    loads, rows = task.loads, [move.bundle for move in found.moves]
    having = np.divide(1.0, loads.per_need)
    above = np.maximum(loads.usage - found.heat.max() * loads.level, 0.0) * having
    all_need = loads.need.sum(axis=0)
    return float((loads.need[rows].sum(axis=0) / all_need).max() / (above.sum(axis=0) / all_need).max())


def bound(task: Task) -> float:
    """Return a lower bound for any assignment: 1, or the least heat of the bundle that is hardest to place."""
    loads = task.loads
    largest = loads.per_need.min(axis=0) / loads.level
    return max(1.0, float((loads.need * largest).max()))


def hotter(task: Task, owner: RowArray) -> Task:
    """Increase the needs of all bundles of the first broker by half."""
    need = task.loads.need.copy()
    need[owner == 0] *= 1.5
    return a_task(need, task.loads.per_need, owner, TARGET)


def yardstick(task: Task) -> None:
    for each in task.loads.need.T:
        np.bincount(task.assigned, each, BROKERS)
    np.lexsort((task.share, task.assigned))


def searched(title: str, task: Task, target_s: float, repeats: int = REPEATS) -> SearchResult:
    search_s = processor_s(partial(find_moves, task), repeats)
    found = find_moves(task)
    rows = [
        Measured("search", search_s, "s", target_s),
        Measured("adding up and sorting once, in numpy", processor_s(partial(yardstick, task)), "s"),
        Measured("moves", len(found.moves), ""),
        Measured("highest heat before", float(task.loads.heat().max()), ""),
        Measured("highest heat after, over the bound", float(found.heat.max()) / bound(task), "", TARGET_GAP),
        Measured("brokers above the target", float((found.heat > TARGET + 1e-6).sum()), ""),
        Measured("load moved, over the least", moved_by_least(task, found), "", TARGET_MOVED),
    ]
    show(title, rows)
    return found


def a_cluster(task: Task) -> tuple[ClusterModel, list[str]]:
    """Return the instance as a reported cluster, and the names of its bundles."""
    model, registrations = ClusterModel(), [Registration(BrokerId(f"b-{i:04d}:8080"), i + 1) for i in range(BROKERS)]
    names: list[str] = []
    for first in range(0, len(task.assigned), BUNDLES_PER_NAMESPACE):
        namespace = f"tenant/ns-{first // BUNDLES_PER_NAMESPACE:05d}"
        those = namespace_bundles(namespace, BUNDLES_PER_NAMESPACE)
        owners = [registrations[row] for row in task.assigned[first : first + BUNDLES_PER_NAMESPACE].tolist()]
        model.set_namespace(namespace, those, [Ownership(OwnershipState.OWNED, owner, None, 1) for owner in owners])
        names += those
    for row, registration in enumerate(registrations):
        model.apply_report(registration, the_report(task, row, names))
    return model, names


def the_report(task: Task, broker: int, names: list[str]) -> BrokerReport:
    """Return a report in which messages/s and MiB/s, in and out, are the bundles' needs of the four resources."""
    rows = np.flatnonzero(task.assigned == broker)
    need = task.loads.need[rows]
    load = need * np.array([1.0, 1.0, MIB, MIB])
    usage = np.zeros((5, 2))
    for column, kind in enumerate((CPU, DIRECT_MEMORY, BANDWIDTH_IN, BANDWIDTH_OUT)):
        usage[kind] = need[:, column].sum(), 1 / task.loads.per_need[broker, column]
    report = a_report(tuple(names[row] for row in rows.tolist()), np.random.default_rng(1), 0.0)
    return replace(report, usage=usage, load=load.sum(axis=0), bundle_load=load)


def planned(title: str, model: ClusterModel, target_s: float) -> None:
    """Measure a complete round of the leader: loads, search, and a filter check of each destination."""
    snapshots = [model.snapshot(0.0, 0.0) for _ in range(REPEATS)]

    def plan(snapshot: Snapshot) -> int:
        return len(plan_shedding(snapshot, SETTINGS, {}, np.random.default_rng(1))[0].steps)

    took_s = min(processor_s(partial(plan, snapshot), 1) for snapshot in snapshots)
    show(title, [Measured("whole round", took_s, "s", target_s), Measured("moves", plan(snapshots[0]), "")])


def many() -> None:
    task = an_instance(MANY_BUNDLES, np.random.default_rng(1))
    searched(f"{BROKERS:,} brokers, {MANY_BUNDLES:,} bundles", task, TARGET_MANY_S, 1)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KIB_PER_MIB
    show("memory", [Measured("process at most", peak_mib, "MiB", TARGET_MIB)])


def main() -> None:
    if len(sys.argv) > 1:
        many()
        return
    task = an_instance(BUNDLES, np.random.default_rng(1))
    found = searched(f"{BROKERS:,} brokers, {BUNDLES:,} bundles", task, TARGET_S)
    event = hotter(task, after(task, found))
    searched("one broker of them has half as much again", event, TARGET_EVENT_S)
    planned("the same as a round of shedding", a_cluster(task)[0], TARGET_S)
    planned("after the event", a_cluster(event)[0], TARGET_EVENT_S)
    subprocess.run([sys.executable, __file__, "many"], check=True)


if __name__ == "__main__":
    main()
