"""Cost of the pure core: absolute, and compared with whole-array numpy passes over the same data in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable

import measure  # noqa: F401 - finds `support`
import numpy as np
from support.model_memory import hot_bytes

from loadmanager.core.domain.bundles import NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Ownership, OwnershipState, Registration
from loadmanager.core.domain.plan import Plan
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.model.load import BrokerReport
from loadmanager.core.planning.planner import plan_assignments, plan_shedding

BROKERS = 1_000
BUNDLES_PER_BROKER = 100
BUNDLES_PER_NAMESPACE = 100
REPORTED_BUNDLES = 200
MIB = 1024 * 1024


def best_s(action: Callable[[], object], repeats: int) -> float:
    """Return the fastest of `repeats` runs: slower ones were disturbed."""
    times = []
    for _ in range(repeats):
        start_s = time.perf_counter()
        action()
        times.append(time.perf_counter() - start_s)
    return min(times)


def a_report(names: tuple[str, ...], rng: np.random.Generator, cpu: float) -> BrokerReport:
    load = rng.uniform(0, 2 * MIB, (len(names), 4)) * np.array([1e-4, 1e-4, 1, 1])
    usage = np.tile((10.0, 100.0), (5, 1))
    usage[0, 0] = cpu
    return BrokerReport(
        usage=usage,
        load=load.sum(axis=0),
        num_topics=len(names),
        num_bundles=len(names),
        num_consumers=0,
        num_producers=0,
        bundle_names=names,
        bundle_load=load,
        bundle_topics=np.ones(len(names), dtype=np.int64),
        bundle_sessions=np.ones(len(names), dtype=np.int64),
        bundle_cache_bytes=np.zeros(len(names), dtype=np.int64),
        last_update_ms=0,
        start_timestamp_ms=0,
        version="1",
        load_manager_class="",
        persistent_enabled=True,
        non_persistent_enabled=True,
    )


def namespace_bundles(namespace: str, bundles: int) -> list[str]:
    return [f"{namespace}/{bundle}" for bundle in NamespaceBundles(equal_boundaries(bundles)).ranges()]


def a_cluster(rng: np.random.Generator) -> ClusterModel:
    """Return a cluster in which a tenth of the brokers is hot. All bundles but those of one namespace have an owner."""
    model = ClusterModel()
    registrations = [Registration(BrokerId(f"broker-{i:04d}:8080"), i + 1) for i in range(BROKERS)]
    owned: list[list[str]] = [[] for _ in range(BROKERS)]
    for number in range(BROKERS * BUNDLES_PER_BROKER // BUNDLES_PER_NAMESPACE):
        names = namespace_bundles(f"tenant/ns-{number:04d}", BUNDLES_PER_NAMESPACE)
        owners = rng.integers(0, BROKERS, len(names)).tolist()
        for name, owner in zip(names, owners, strict=True):
            owned[owner].append(name)
        entries = [Ownership(OwnershipState.OWNED, registrations[owner], None, 1) for owner in owners]
        model.set_namespace(f"tenant/ns-{number:04d}", names, entries)
    names = namespace_bundles("tenant/unowned", BUNDLES_PER_NAMESPACE)
    model.set_namespace("tenant/unowned", names, [Ownership()] * len(names))
    for i, registration in enumerate(registrations):
        model.apply_report(registration, a_report(tuple(owned[i]), rng, 95.0 if i % 10 == 0 else 40.0))
    return model


def report_cost(rng: np.random.Generator) -> tuple[float, float]:
    """Return the seconds for one report of 200 bundles, and for a bare numpy update of 200 rows of averages."""
    model = a_cluster(rng)
    names = tuple(namespace_bundles("tenant/reported", REPORTED_BUNDLES))
    registration = Registration(BrokerId("reporter:8080"), 1)
    report = a_report(names, rng, 50.0)
    table = rng.uniform(size=(BROKERS * BUNDLES_PER_BROKER, 4))
    rows = rng.choice(len(table), REPORTED_BUNDLES, replace=False)

    def bare() -> None:
        for _ in range(2):
            table[rows] = (9.0 * table[rows] + report.bundle_load) / 10.0

    model.apply_report(registration, report)
    return best_s(lambda: model.apply_report(registration, report), 500), best_s(bare, 500)


def line(what: str, seconds: float, baseline_s: float) -> None:
    print(f"{what:<48} {seconds * 1e3:10.3f} ms   {seconds / baseline_s:8.2f} x baseline")


def main() -> None:
    rng = np.random.default_rng(1)
    report_s, bare_s = report_cost(rng)
    print(f"baseline of reports: bare numpy update of 200 rows, {bare_s * 1e6:.1f} us")
    line(f"apply a report of {REPORTED_BUNDLES} bundles", report_s, bare_s)

    model = a_cluster(rng)
    bundles = len(model.snapshot(0.0, 0.0).bundles)
    print(f"\nhot state of {bundles} bundles: {hot_bytes(model) / bundles:.1f} bytes a bundle beside its name")

    table = rng.uniform(size=(bundles, 8))
    pass_s = best_s(lambda: (9.0 * table + table) / 10.0, 20)
    print(f"\nbaseline of the rest: one numpy update of all averages of {bundles} bundles, {pass_s * 1e3:.2f} ms")
    line(f"snapshot of {BROKERS} brokers", best_s(lambda: model.snapshot(0.0, 0.0), 20), pass_s)
    for name in ("ThresholdShedder", "OverloadShedder"):
        settings = PlannerSettings(shedding_strategy=name, bundle_unload_min_throughput_threshold=0.0)
        plans: list[Plan] = []
        seconds = [
            best_s(lambda: plans.append(plan_shedding(snapshot, settings, {}, rng)[0]), 1)  # noqa: B023 - called at once
            for snapshot in (model.snapshot(0.0, 0.0) for _ in range(5))
        ]
        line(f"{name}: a plan of {len(plans[0].steps)} moves", min(seconds), pass_s)
    snapshot, settings = model.snapshot(0.0, 0.0), PlannerSettings()
    unowned = namespace_bundles("tenant/unowned", BUNDLES_PER_NAMESPACE)
    plan_assignments(snapshot, unowned[:1], settings, {}, rng)
    single_s = best_s(lambda: plan_assignments(snapshot, unowned[:1], settings, {}, rng), 200)
    line("one placement on a ready snapshot", single_s, pass_s)
    fresh_s = best_s(lambda: plan_assignments(model.snapshot(0.0, 0.0), unowned[:1], settings, {}, rng), 20)
    line("a snapshot and one placement on it", fresh_s, pass_s)
    batch_s = best_s(lambda: plan_assignments(snapshot, unowned, settings, {}, rng), 20)
    line(f"a batch of {len(unowned)} placements", batch_s, pass_s)


if __name__ == "__main__":
    main()
