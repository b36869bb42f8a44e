"""Pulsar's figures for averaged loads, busiest bundles and the TransferShedder (rows A5, A7, B and T33 on).

Rows T1 to T23 are tested through `loadmanager decide`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from support.builders import Load, bundle, report, snapshot

from loadmanager.core.domain.policies import NO_POLICIES
from loadmanager.core.domain.resources import ResourceWeights
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.extensible_load import (
    LoadAverage,
    average_after,
    find_busiest,
    partition_sort,
)
from loadmanager.core.model.load import BrokerReport, FloatArray, percent_usage, weighted_max_usage
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.strategies.shedding.shedding_strategy import Shed
from loadmanager.core.strategies.shedding.transfer_shedder import LoadStatistics, TransferShedder

CONFIGURED = PlannerSettings(shedding_strategy="TransferShedder", shedding_condition_hit_count_threshold=0)


def name_of(letter: str, number: int) -> str:
    return bundle(number, f"my-tenant/my-namespace{letter}")


def carrying(out: float) -> Load:
    return (0, 0, 0, out)


def shed(given: Snapshot) -> Shed:
    return TransferShedder(CONFIGURED).find_bundles_for_unloading(given, {})


def test_a5_usage_is_the_weighted_maximum_including_memory() -> None:
    given = report(
        cpu=1, memory=(800, 200), direct_memory=2, bandwidth_in=3, bandwidth_out=4, load=(3, 4, 1, 2), last_update_ms=7
    )
    percent = percent_usage(given.usage[:, 0], given.usage[:, 1])
    assert float(weighted_max_usage(percent, ResourceWeights(1, 1, 1, 1))) == 0.04
    settings = PlannerSettings(
        resource_weights=ResourceWeights(0.5, 0.5, 0.5, 0.5),
        memory_resource_weight=0.5,
        history_resource_percentage=0.75,
    )
    average = average_after(given, LoadAverage(), settings)
    assert (average.usage_ema, average.msg_throughput_ema, average.updated_at_ms) == (2, 3, 7)
    assert average_after(report(last_update_ms=8), average, settings).usage_ema == 1.5


def test_a7_broker_starts_as_fully_used_without_throughput() -> None:
    assert LoadAverage() == LoadAverage(usage_ema=1.0, msg_throughput_ema=0.0, updated_at_ms=0)
    again = average_after(report(cpu=30, last_update_ms=9), LoadAverage(usage_ema=0.2), PlannerSettings())
    assert again.usage_ema == np.float32(30.000001907348633) / 100


def top(given: BrokerReport, most: int, excluded: frozenset[str] = frozenset()) -> list[str]:
    settings = PlannerSettings(max_number_of_bundles_in_bundle_load_report=most, shedding_excluded_namespaces=excluded)
    found = find_busiest(given, settings, NO_POLICIES)
    return [given.bundle_names[i].split("/")[1] for i in found.tolist()]


def rate(msg_rate_in: float, out: float = 10) -> Load:
    return (msg_rate_in, 0, 0, out)


FOUR = {
    bundle(1, "tenant/ns1"): rate(100_000),
    bundle(1, "tenant/ns2"): rate(500),
    bundle(1, "tenant/ns3"): rate(10_000),
    bundle(1, "tenant/ns4"): rate(0, 0),
}


def test_b1_busiest_bundles_are_listed_in_ascending_order_without_idle_ones() -> None:
    assert top(report(FOUR), 3) == ["ns2", "ns3", "ns1"]
    assert top(report(FOUR), 2) == ["ns3", "ns1"]


def test_b2_bundles_of_system_namespaces_are_not_listed() -> None:
    given = {bundle(1, "pulsar/system"): rate(500), bundle(1, "tenant/ns1"): rate(10_000)}
    given |= {bundle(1, "pulsar/host:8080"): rate(9), bundle(1, "sla-monitor/host:8080"): rate(9)}
    assert top(report(given), 2) == ["ns1"]


def test_b3_bundles_of_excluded_namespaces_are_not_listed() -> None:
    given = {name: FOUR[name] for name in list(FOUR)[:2]}
    assert top(report(given), 2, frozenset({"tenant/ns2"})) == ["ns1"]


def test_b4_nothing_is_listed_without_throughput() -> None:
    assert top(report([bundle(1), bundle(2)]), 2) == []


def test_b8_partial_sort_equals_a_full_sort() -> None:
    rng = np.random.default_rng(8)
    for _ in range(300):
        values = rng.integers(0, 6, rng.integers(1, 11)).tolist()
        most = int(rng.integers(1, len(values) + 1))
        found = partition_sort(values, most)
        assert [values[i] for i in found] == sorted(values, reverse=True)[:most]
        assert len(set(found)) == most


def test_t33_predicted_statistics_equal_those_after_the_moves() -> None:
    rng = np.random.default_rng(33)
    for _ in range(200):
        usage = rng.uniform(0, 1, 10)
        statistics = LoadStatistics.of(usage)
        for _ in range(3):
            most, least = int(np.argmax(usage)), int(np.argmin(usage))
            moved = float(usage[most] - usage[least]) / 2
            statistics.move(float(usage[most]), float(usage[least]), moved)
            usage[most] -= moved
            usage[least] += moved
            assert statistics.mean == pytest.approx(usage.mean(), abs=1e-4)
            assert statistics.std == pytest.approx(usage.std(), abs=1e-4)


def test_t34_deviation_reaches_the_target_or_no_bundle_can_move() -> None:
    rng = np.random.default_rng(34)
    for _ in range(5):
        carried = {f"{i:02d}": rng.uniform(1e4, 5e5, 10) for i in range(20)}
        owner = {(namespace, i): number for number, namespace in enumerate(carried) for i in range(10)}
        capacity = rng.uniform(1e6, 1e7, 20)
        for _ in range(60):
            given = spread(carried, owner, capacity)
            result = shed(given)
            if not result.bundles:
                break
            for pick in result.bundles:
                assert pick.destination is not None
                for row in pick.bundles:
                    space, _, number = given.bundles.names[row].rpartition("/")
                    owner[space[-2:], int(number[2:10], 16)] = pick.destination
        assert result.metrics["std"] <= 0.25 or "Skip/NoBundles" in result.metrics


def spread(carried: Mapping[str, FloatArray], owner: Mapping[tuple[str, int], int], capacity: FloatArray) -> Snapshot:
    """Return brokers whose CPU usage is the load of their bundles over their capacity."""
    reports = {}
    for number, limit in enumerate(capacity.tolist()):
        own = {
            name_of(space, i): carrying(float(carried[space][i])) for (space, i), at in owner.items() if at == number
        }
        reports[f"broker{number:02d}"] = report(own, cpu=(sum(load[3] for load in own.values()), limit))
    return snapshot(reports)
