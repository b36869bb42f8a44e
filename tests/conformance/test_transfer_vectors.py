"""Pulsar's figures for averaged loads, busiest bundles and the TransferShedder (rows A5, A7, B and T).

Where we differ: with its debug mode off Pulsar forgets what a swap brings back (row T15), and predicts a deviation of
0.23999995 where 2.58e-8 is right; we predict the latter in both modes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from support.builders import Load, broker, bundle, report, snapshot

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.plan import Unload
from loadmanager.core.domain.resources import ResourceWeights
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.extensible_load import (
    LoadAverage,
    Published,
    ReportRules,
    find_top_bundles,
    partition_sort,
)
from loadmanager.core.model.load import BrokerReport, FloatArray, percent_usage, weighted_max_usage
from loadmanager.core.model.snapshot import Snapshot, build_snapshot
from loadmanager.core.planning.planner import State, plan_shedding
from loadmanager.core.strategies.shedding.shedding_strategy import Shed
from loadmanager.core.strategies.shedding.transfer_shedder import LoadStatistics, TransferShedder

CONFIGURED = PlannerSettings(shedding_strategy="TransferShedder", shedding_condition_hit_count_threshold=0)
BASE = (2, 4, 6, 80, 90)
CARRIED = {"A": (1e6, 2e6), "B": (1e6, 3e6), "C": (2e6, 4e6), "D": (2e6, 6e6), "E": (2e6, 7e6)}
AVG, STD = 0.36400000000000005, 0.3982762860126121

Decision = tuple[str, str, str | None, str]
"""Source, bundle, destination, reason."""


def name_of(letter: str, number: int) -> str:
    return bundle(number, f"my-tenant/my-namespace{letter}")


def carrying(out: float) -> Load:
    return (0, 0, 0, out)


def brokers(cpu: Sequence[float], carried: Mapping[str, tuple[float, ...]]) -> dict[str, BrokerReport]:
    """Brokers 1, 2, ... with this CPU usage and these bundles: 1 byte/s in, and all that their bundles send out."""
    return {
        f"broker{number}": report(
            {name_of(letter, i): carrying(out) for i, out in enumerate(loads, start=1)},
            cpu=used,
            load=(0, 0, 1, sum(loads)),
        )
        for number, (used, (letter, loads)) in enumerate(zip(cpu, carried.items(), strict=False), start=1)
    }


def cluster(cpu: Sequence[float] = BASE, carried: Mapping[str, tuple[float, ...]] | None = None) -> Snapshot:
    return snapshot(brokers(cpu, carried or CARRIED))


def shed(given: Snapshot, settings: PlannerSettings = CONFIGURED, state: State | None = None) -> Shed:
    return TransferShedder.of(settings).find_bundles_for_unloading(given, state or {})


def decisions(given: Snapshot, result: Shed) -> set[Decision]:
    ids, names = given.brokers.ids, given.bundles.names
    return {
        (ids[pick.broker][6], short(names[row]), find_id(given, pick.destination), pick.reason)
        for pick in result.bundles
        for row in pick.bundles
    }


def short(name: str) -> str:
    """A bundle's letter and number."""
    namespace, _, bundle_range = name.rpartition("/")
    return f"{namespace[-1]}{int(bundle_range[2:10], 16)}"


def find_id(given: Snapshot, row: int | None) -> str | None:
    return None if row is None else given.brokers.ids[row][6]


T1 = {("5", "E1", "1", "overloaded"), ("4", "D1", "2", "overloaded")}


def decided(given: Snapshot, settings: PlannerSettings = CONFIGURED) -> set[Decision]:
    return decisions(given, shed(given, settings))


def assert_base_statistics(result: Shed) -> None:
    assert result.metrics["avg"] == pytest.approx(AVG, abs=1e-5)
    assert result.metrics["std"] == pytest.approx(STD, abs=1e-5)


def test_a5_usage_is_the_weighted_maximum_with_memory_and_the_first_figures_are_taken_whole() -> None:
    given = report(
        cpu=1, memory=(800, 200), direct_memory=2, bandwidth_in=3, bandwidth_out=4, load=(3, 4, 1, 2), last_update_ms=7
    )
    percent = percent_usage(given.usage[:, 0], given.usage[:, 1])
    assert float(weighted_max_usage(percent, ResourceWeights(1, 1, 1, 1))) == 0.04
    rules = ReportRules(ResourceWeights(0.5, 0.5, 0.5, 0.5), memory_weight=0.5, history=0.75)
    average = rules.average_after(given, LoadAverage())
    assert (average.usage_ema, average.msg_throughput_ema, average.updated_at_ms) == (2, 3, 7)
    assert rules.average_after(report(last_update_ms=8), average).usage_ema == 1.5


def test_a7_a_broker_starts_as_fully_used_without_any_throughput() -> None:
    assert LoadAverage() == LoadAverage(usage_ema=1.0, msg_throughput_ema=0.0, updated_at_ms=0)
    again = ReportRules().average_after(report(cpu=30, last_update_ms=9), LoadAverage(usage_ema=0.2))
    assert again.usage_ema == np.float32(30.000001907348633) / 100


def top(given: BrokerReport, most: int, excluded: frozenset[str] = frozenset()) -> list[str]:
    found = find_top_bundles(given, ReportRules(most_bundles=most, excluded_namespaces=excluded), lambda _: False)
    return [given.bundle_names[i].split("/")[1] for i in found.tolist()]


def rate(msg_rate_in: float, out: float = 10) -> Load:
    return (msg_rate_in, 0, 0, out)


FOUR = {
    bundle(1, "tenant/ns1"): rate(100_000),
    bundle(1, "tenant/ns2"): rate(500),
    bundle(1, "tenant/ns3"): rate(10_000),
    bundle(1, "tenant/ns4"): rate(0, 0),
}


def test_b1_the_busiest_bundles_are_listed_from_the_least_busy_on_and_idle_ones_are_not() -> None:
    assert top(report(FOUR), 3) == ["ns2", "ns3", "ns1"]
    assert top(report(FOUR), 2) == ["ns3", "ns1"]


def test_b2_bundles_of_system_namespaces_are_not_listed() -> None:
    given = {bundle(1, "pulsar/system"): rate(500), bundle(1, "tenant/ns1"): rate(10_000)}
    given |= {bundle(1, "pulsar/host:8080"): rate(9), bundle(1, "sla-monitor/host:8080"): rate(9)}
    assert top(report(given), 2) == ["ns1"]


def test_b3_bundles_of_excluded_namespaces_are_not_listed() -> None:
    given = {name: FOUR[name] for name in list(FOUR)[:2]}
    assert top(report(given), 2, frozenset({"tenant/ns2"})) == ["ns1"]


def test_b4_without_any_throughput_nothing_is_listed() -> None:
    assert top(report([bundle(1), bundle(2)]), 2) == []


def test_b8_the_first_values_are_those_of_a_full_sort() -> None:
    rng = np.random.default_rng(8)
    for _ in range(300):
        values = rng.integers(0, 6, rng.integers(1, 11)).tolist()
        most = int(rng.integers(1, len(values) + 1))
        found = partition_sort(values, most)
        assert [values[i] for i in found] == sorted(values, reverse=True)[:most]
        assert len(set(found)) == most


def test_t1_the_most_used_brokers_each_hand_their_smaller_bundle_to_one_of_the_least_used() -> None:
    result = shed(cluster())
    assert decisions(cluster(), result) == T1
    assert_base_statistics(result)
    assert result.metrics["Success/Overloaded"] == 2


def test_t1_the_planner_leaves_the_destinations_as_they_were_decided() -> None:
    plan, _ = plan_shedding(cluster(), CONFIGURED, {}, np.random.default_rng(1))
    found = {(step.source.broker, step.destination) for step in plan.steps if isinstance(step, Unload)}
    assert found == {("broker5:8080", broker("broker1")), ("broker4:8080", broker("broker2"))}
    assert plan.metrics["avg"] == pytest.approx(AVG)


def test_t2_without_any_load_data_there_are_no_brokers() -> None:
    registered = {broker(name): given for name, given in brokers(BASE, CARRIED).items()}
    given = build_snapshot(0.0, registered, {}, published=Published(broker_load={}, top_bundles={}))
    result = shed(given)
    assert (result.bundles, result.metrics) == ((), {"Skip/NoBrokers": 1})


def test_t3_bundles_that_a_broker_does_not_own_are_not_moved() -> None:
    registered = {broker(name): given for name, given in brokers(BASE, CARRIED).items()}
    lists = {
        registration.broker: dict(zip(given.bundle_names, given.bundle_load, strict=True))
        for registration, given in registered.items()
    }
    by_another = {broker("broker1"): report([name for listed in lists.values() for name in listed], cpu=2)}
    others = {each: given.without_bundles() for each, given in registered.items() if each.broker != "broker1:8080"}
    lists[BrokerId("broker1:8080")] = {}
    given = build_snapshot(0.0, {**by_another, **others}, {}, published=Published(top_bundles=lists))
    result = shed(given)
    assert result.bundles == ()
    assert result.metrics["Skip/NoBundles"] == 1
    assert_base_statistics(result)


def test_t4_without_lists_of_bundles_there_is_no_load_data() -> None:
    registered = {broker(name): given for name, given in brokers(BASE, CARRIED).items()}
    result = shed(build_snapshot(0.0, registered, {}, published=Published(top_bundles={})))
    assert result.bundles == ()
    assert result.metrics["Skip/NoLoadData"] == 1
    assert_base_statistics(result)


def test_t14_brokers_that_are_close_to_each_other_are_left_alone() -> None:
    result = shed(cluster((10, 20, 30)))
    assert result.metrics == {"avg": 0.2000000063578288, "std": 0.08164966587949089, "Skip/HitCount": 1}


def test_t15_a_bundle_that_does_not_fit_is_exchanged_for_one_of_the_other_broker() -> None:
    given = cluster((48, 100), {"A": (2.4e6, 2.4e6), "B": (5e6, 5e6)})
    result = shed(given)
    moves = {(source, name[0], destination, reason) for source, name, destination, reason in decisions(given, result)}
    assert moves == {("1", "A", "2", "overloaded"), ("2", "B", "1", "overloaded")}
    assert sum(len(pick.bundles) for pick in result.bundles) == 2
    assert result.metrics["avg"] == pytest.approx(0.74, abs=1e-5)
    assert result.metrics["std"] == pytest.approx(0.26, abs=1e-5)
    assert result.metrics["stdAfter"] == 2.5809568279517847e-8
    assert result.metrics["stdAfter"] != pytest.approx(0.23999995, abs=1e-5)


def test_t16_the_only_bundle_of_a_broker_stays() -> None:
    given = cluster((1, 2, 6, 10, 70), dict.fromkeys("ABCDE", (1000000.0,)))
    result = shed(given)
    assert result.bundles == ()
    assert result.metrics["Skip/NoBundles"] == 1


def test_t19_the_cycle_ends_when_the_predicted_deviation_is_below_the_target() -> None:
    given = cluster((2, 4, 6, 55, 65))
    result = shed(given)
    assert decisions(given, result) == {("5", "E1", "1", "overloaded")}
    assert result.metrics["avg"] == pytest.approx(0.26400000000000007, abs=1e-5)
    assert result.metrics["std"] == pytest.approx(0.27644891028904417, abs=1e-5)
    assert result.metrics["stdAfter"] == pytest.approx(0.21993108, abs=1e-8)


def test_t22_each_destination_gets_from_one_broker_however_many_may_be_relieved() -> None:
    assert decided(cluster(), replace(CONFIGURED, max_number_of_broker_shedding_per_cycle=10)) == T1


def test_t23_the_cycle_after_as_many_hits_as_the_threshold_acts() -> None:
    settings = replace(CONFIGURED, shedding_condition_hit_count_threshold=3)
    state: State = {}
    for cycle in (1, 2, 3):
        result = shed(cluster(), settings, state)
        state = json.loads(json.dumps(result.state))
        assert result.bundles == ()
        assert result.metrics["Skip/HitCount"] == cycle
        assert_base_statistics(result)
    result = shed(cluster(), settings, state)
    assert decisions(cluster(), result) == T1
    assert result.state["hits"] == 0


def test_t33_the_predicted_statistics_are_those_of_the_brokers_after_the_moves() -> None:
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


def test_t34_in_the_end_the_deviation_is_below_the_target_or_nothing_is_left_to_move() -> None:
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
    """Brokers whose CPU usage is what their bundles carry, as a part of their capacity."""
    reports = {}
    for number, limit in enumerate(capacity.tolist()):
        own = {
            name_of(space, i): carrying(float(carried[space][i])) for (space, i), at in owner.items() if at == number
        }
        reports[f"broker{number:02d}"] = report(own, cpu=(sum(load[3] for load in own.values()), limit))
    return snapshot(reports)
