"""Level: prices of load, heat, search for moves, and when it acts."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls
from support.builders import MIB, Load, averages, broker, bundle, report, snapshot, throughput

from loadmanager.core.constraints.projection import Projection
from loadmanager.core.domain.controls import Controls
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.plan import Unload, Verdict
from loadmanager.core.domain.policies import NO_POLICIES, IsolationPolicy, Policies
from loadmanager.core.domain.reasons import PlacementReason, SheddingReason
from loadmanager.core.domain.resources import ResourceWeights
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import BANDWIDTH_IN, CPU, METRICS, THROUGHPUT_IN, BrokerReport, FloatArray
from loadmanager.core.model.snapshot import Snapshot, build_snapshot
from loadmanager.core.model.time_means import STOOD_S
from loadmanager.core.planning.planner import plan_assignments, plan_shedding
from loadmanager.core.strategies.level.cost_fit import best_of_none_negative, fit_price
from loadmanager.core.strategies.level.hysteresis import REST_EXCESS_S, BrokerObservation, LevelMemory
from loadmanager.core.strategies.level.imbalance_score import compute_parts, penalty, score
from loadmanager.core.strategies.level.level_load import LEAST_LEVEL, LevelLoads, bound_level, compute_level
from loadmanager.core.strategies.level.move_search import find_moves
from loadmanager.core.strategies.level.search_task import SearchResult, Task
from loadmanager.core.strategies.placement.level_placement import LevelPlacement, LevelPlacementReason
from loadmanager.core.strategies.shedding.level_shedder import Level, LevelReason
from loadmanager.core.strategies.shedding.shedding_strategy import Shed, State

SETTINGS = PlannerSettings(shedding_strategy="Level", placement_strategy="Level")
BY_CPU = ResourceWeights(1, 0, 0, 0)
NOW_S = 1_000_000.0
GBIT = 1000.0 * 1000.0
"""In kbit/s."""


def carrying(host: str, sizes: list[float], *, capacity: float = GBIT, **more: object) -> BrokerReport:
    """A broker by the sizes of its bundles in MiB/s, in and out, and its network capacity in kbit/s."""
    loads: dict[str, Load] = {bundle(i, f"tenant/{host}"): throughput(size) for i, size in enumerate(sizes)}
    used = sum(sizes) * MIB * 8 / 1000
    network = {"bandwidth_in": (used, capacity), "bandwidth_out": (used, capacity)}
    return report(loads, last_update_ms=round(NOW_S * 1000), **{**network, **more})  # type: ignore[arg-type]


def cluster(**brokers: BrokerReport) -> Snapshot:
    return snapshot(brokers, taken_at_s=NOW_S)


def shed(given: Snapshot, state: State | None = None, settings: PlannerSettings = SETTINGS) -> Shed:
    return Level(settings).find_bundles_for_unloading(given, state or {})


def half(sizes: list[float]) -> dict[str, BrokerReport]:
    """Two brokers whose bundles Level put there ten seconds ago (`MOVED_HALF`)."""
    return {host: carrying(host, sizes) for host in "cd"}


MOVED_HALF = {"put": {f"{host}:8080": {bundle(i, f"tenant/{host}"): NOW_S - 10 for i in range(12)} for host in "cd"}}


def moves(found: Shed) -> int:
    return sum(len(pick.bundles) for pick in found.bundles)


def verdict_of(found: Shed, host: str) -> str:
    return find_verdict(found, host).sentence()


def find_verdict(found: Shed, host: str) -> Verdict:
    (verdict,) = (each for each in found.verdicts if each.subject == broker(host).broker)
    return verdict


@pytest.mark.parametrize("size", [1e-9, 1e-3, 0.01])
def test_weightless_bundles_next_to_a_giant_one_stay(size: float) -> None:
    idle = {host: carrying(host, []) for host in "bcde"}
    found = shed(cluster(a=carrying("a", [100.0] + [size] * 40), **idle))
    assert moves(found) == 0
    assert found.metrics["heat"] == found.metrics["heatAfter"] == pytest.approx(0.839 / 0.75, abs=0.01)
    assert "because one bundle needs 83.89 % of any broker, and all of this one is" in verdict_of(found, "a")


def test_brokers_below_the_largest_bundle_only_fill_new_brokers() -> None:
    own = {"a": carrying("a", [80.0]), "b": carrying("b", [10.0] * 6)}
    own |= {host: carrying(host, [10.0] * 4) for host in "cd"}
    rounds = shed_each_minute(cluster(**own), 40)
    assert not any(moves(each) for each in rounds)
    assert "usage 50.33 % (bandwidth in) is not above level 67.11 %" in verdict_of(rounds[-1], "b")
    added = shed(cluster(**own, new=carrying("new", [])), rounds[-1].state)
    assert (1, 4) in {(pick.broker, pick.destination) for pick in added.bundles}


def test_broker_with_a_giant_bundle_sheds_its_other_bundles() -> None:
    given = cluster(a=carrying("a", [80.0, 5.0, 5.0]), b=carrying("b", [5.0] * 4), c=carrying("c", [5.0] * 4))
    found = shed(given)
    assert {pick.broker for pick in found.bundles} == {0}
    assert moves(found) == 2
    assert moves(shed(given, found.state)) == 2


def test_broker_is_relieved_down_to_the_largest_bundle() -> None:
    given = cluster(a=carrying("a", [60.0]), b=carrying("b", [5.0] * 17), c=carrying("c", [5.0] * 2))
    found = shed(given)
    assert {pick.broker for pick in found.bundles} == {1}
    assert found.metrics["heatAfter"] == pytest.approx(1.0)
    assert moves(found) == 5


# Cost


def test_bandwidth_price_depends_on_its_direction_only() -> None:
    load = np.array([[9.0, 0.0, 100.0, 7.0], [1.0, 5.0, 300.0, 0.0]])
    price = fit_price(BANDWIDTH_IN, load, np.array([200.0, 600.0]))
    assert price.per_unit[THROUGHPUT_IN] == pytest.approx(2.0, rel=0.05)
    assert np.count_nonzero(price.per_unit) == 1


def test_cpu_price_is_fitted_when_brokers_differ() -> None:
    rng = np.random.default_rng(1)
    load = rng.uniform(1, 100, (50, METRICS))
    paid = np.array([3.0, 0.0, 1.0, 2.0])
    price = fit_price(CPU, load, (load * paid).sum(axis=1))
    assert price.per_unit == pytest.approx(paid, abs=0.1)


def test_equal_brokers_are_not_fitted_as_idle() -> None:
    price = fit_price(CPU, np.full((4, METRICS), 10.0), np.full(4, 40.0))
    assert (price.per_unit * 10).sum() == pytest.approx(40.0, rel=0.02)


def test_price_of_correlated_metrics_still_fits_usage() -> None:
    rng = np.random.default_rng(0)
    base = rng.uniform(1, 100, 34)
    load = np.stack([base * rng.uniform(0.98, 1.02, 34) for _ in range(METRICS)], axis=1)
    used = (load * [3.0, 0.0, 1.0, 2.0]).sum(axis=1)
    assert (load * fit_price(CPU, load, used).per_unit).sum(axis=1) == pytest.approx(used, rel=0.02)


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 5), rows=st.integers(1, 12))
def test_non_negative_least_squares_equals_scipy(seed: int, count: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    parts = np.concatenate([rng.normal(size=(rows, count)), np.eye(count) * 0.1])
    wanted = rng.normal(size=len(parts))
    expected, _ = nnls(parts, wanted)
    assert best_of_none_negative(parts.T @ parts, parts.T @ wanted) == pytest.approx(expected, abs=1e-9)


def test_unused_resource_has_no_price() -> None:
    assert not fit_price(CPU, np.ones((2, METRICS)), np.zeros(2)).per_unit.any()
    nothing_carried = fit_price(CPU, np.zeros((2, METRICS)), np.array([4.0, 6.0]))
    assert not nothing_carried.per_unit.any()
    assert nothing_carried.idle == 5.0
    assert fit_price(CPU, np.zeros((0, METRICS)), np.zeros(0)).idle == 0.0


# Load


def loads_of(given: Snapshot, weights: ResourceWeights = SETTINGS.resource_weights) -> LevelLoads:
    return LevelLoads.of(given, replace(SETTINGS, resource_weights=weights))


def test_heat_is_usage_over_the_level() -> None:
    given = cluster(a=carrying("a", [30.0]), b=carrying("b", [30.0], capacity=2 * GBIT))
    assert loads_of(given).heat() == pytest.approx([1.5, 0.75])


def test_slow_or_saturated_broker_has_more_heat() -> None:
    alike: list[BrokerReport] = [
        report({bundle(i): (100.0, 0, 0, 0)}, cpu=used) for i, used in enumerate((30, 30, 30, 90, 100))
    ]
    given = snapshot(dict(zip("abcde", alike, strict=True)))
    heat = loads_of(given, BY_CPU).heat()
    assert heat[3] > 1.5 * heat[0]
    busy = snapshot({**dict(zip("abc", alike, strict=False)), "d": report({bundle(3): (900.0, 0, 0, 0)}, cpu=100)})
    assert loads_of(busy, BY_CPU).heat()[3] > 2


def test_fleet_whose_usage_does_not_follow_from_its_load_is_levelled_by_load() -> None:
    """Covers brokers that have just started: they used more CPU for that than for their load."""
    idle = {host: carrying(host, [], capacity=0.0, cpu=(1.9, 200.0)) for host in "bc"}
    given = cluster(a=carrying("a", [0.005] * 21, capacity=0.0, cpu=(1.4, 200.0)), **idle)
    assert loads_of(given).heat() == pytest.approx([3, 0, 0])
    assert moves(shed(given)) == 10, "half of all load in a round"
    known = cluster(a=carrying("a", [0.005] * 21, capacity=0.0, cpu=(4.9, 200.0)), **idle)
    assert loads_of(known).hottest_resources()[0] == "CPU"


def test_broker_of_unknown_limit_has_the_capacity_of_others() -> None:
    given = cluster(a=carrying("a", [30.0]), b=carrying("b", [60.0], bandwidth_in=(0, 0), bandwidth_out=(0, 0)))
    assert loads_of(given).heat()[1] == pytest.approx(2 * loads_of(given).heat()[0])
    assert loads_of(given, ResourceWeights(0, 0, 0, 0)).heat().tolist() == [0.0, 0.0]


@pytest.mark.parametrize("load", [throughput(5.0), (5.0, 5.0, 0.0, 0.0)])
def test_without_limits_carried_load_is_the_need(load: Load) -> None:
    loads = {bundle(i): load for i in range(3)}
    loads_of_all = loads_of(snapshot({"a": report(loads), "b": report({bundle(4): load}), "c": report()}))
    assert loads_of_all.heat() == pytest.approx([9 / 4, 3 / 4, 0.0])
    assert loads_of_all.hottest_resources() == ["what it carries, as usage or limits do not show it"] * 3
    assert loads_of(snapshot({"a": report(), "b": report()})).heat().tolist() == [0.0, 0.0]


def on_one_host(cpu: list[float], sizes: list[list[float]]) -> Snapshot:
    """Brokers of one host with two cores, by reported CPU usage and bundle sizes in MiB/s."""
    ids = [BrokerId(f"host:{8080 + i}") for i in range(len(cpu))]
    reports = {}
    for i, (used, of) in enumerate(zip(cpu, sizes, strict=True)):
        loads = {bundle(j, f"tenant/{i}"): throughput(size) for j, size in enumerate(of)}
        reports[Registration(ids[i], i + 1)] = report(loads, cpu=(used, 200.0))
    return build_snapshot(NOW_S, reports, {})


def test_usage_of_a_shared_host_is_divided_by_load() -> None:
    sizes = [[3.0, 2.0, 1.0], [1.0, 0.5], [0.5]]
    divided = loads_of(on_one_host([190, 190, 188], sizes), BY_CPU)
    assert divided.usage[:, 0] == pytest.approx([2.13, 0.5325, 0.1775])
    own = loads_of(on_one_host([60, 60, 10], sizes), BY_CPU).heat()
    assert own[1] > 0.9, "each reports its own usage"


def test_idle_cluster_has_the_minimum_level() -> None:
    given = cluster(a=carrying("a", [0.001]), b=carrying("b", []))
    assert loads_of(given).level == LEAST_LEVEL
    assert compute_level(np.zeros(0), np.zeros((2, 0))) == LEAST_LEVEL


def test_need_is_the_present_load_of_a_bundle() -> None:
    known = {bundle(i, f"tenant/{host}"): averages(throughput(20.0)) for host in "ab" for i in range(4)}
    reports = {"a": carrying("a", [40.0] * 4), "b": carrying("b", [20.0] * 4)}
    heats = [loads_of(snapshot(reports, known, taken_at_s=NOW_S + after_s)).heat() for after_s in (0, STOOD_S)]
    assert heats == [pytest.approx([1.0, 1.0]), pytest.approx([4 / 3, 2 / 3])]


# Score


def test_score_penalizes_excess_weighted_by_broker_size() -> None:
    assert penalty(np.array([0.5, 1.0, 3.0]), 1.0).tolist() == [0.0, 0.0, 6.0]
    part = compute_parts(np.array([[1.0, 0.0], [0.5, 0.0]]))
    assert part[:, 0] == pytest.approx([2 / 3, 4 / 3])
    assert not part[:, 1].any()
    assert score(np.array([[3.0, 9.0], [1.0, 9.0]]), part, 1.0) == pytest.approx(4.0)


# Shedding


def test_very_hot_broker_is_relieved_at_once_to_the_target() -> None:
    given = cluster(a=carrying("a", [5.0] * 20), b=carrying("b", [5.0] * 4))
    found = shed(given)
    assert moves(found) == 8
    assert verdict_of(found, "a").startswith("Shed 8 of 20 bundles because usage")
    assert "66.67 % above level" in verdict_of(found, "a")
    assert verdict_of(found, "a").endswith(", then 0 % above it")
    assert verdict_of(found, "b").startswith("No move because usage")
    assert found.metrics["heatAfter"] == pytest.approx(1.0)


def after_s(given: Snapshot, seconds: float) -> Snapshot:
    return replace(given, taken_at_s=NOW_S + seconds, _derived={})


def shed_each_minute(given: Snapshot, minutes: int, state: State | None = None) -> list[Shed]:
    """Run a round a minute on an unchanged cluster."""
    found = [shed(given, state)]
    for minute in range(1, minutes):
        found.append(shed(after_s(given, 60 * minute), found[-1].state))
    return found


def test_slightly_hot_broker_waits_longer_the_smaller_its_excess() -> None:
    def waits_minutes(sizes: list[float]) -> int:
        rounds = shed_each_minute(cluster(a=carrying("a", sizes), b=carrying("b", [3.0] * 20)), 40)
        return [moves(each) > 0 for each in rounds].index(True)

    assert 0 < waits_minutes([3.0] * 24) < waits_minutes([3.0] * 22) < 40


def test_verdict_has_the_remaining_wait() -> None:
    given = cluster(a=carrying("a", [3.0] * 22), b=carrying("b", [3.0] * 20))
    rounds = shed_each_minute(given, 3)
    assert "is 4.76 % above level 52.85 %, for 0 s: with its noise 0 % it is relieved in 851 s" in verdict_of(
        rounds[0], "a"
    )
    assert "for 120 s: with its noise 0 % it is relieved in 731 s" in verdict_of(rounds[2], "a")


def test_broker_without_helpful_moves_is_searched_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = []

    def noted(task: Task) -> SearchResult:
        searched.append(not task.fills)
        return find_moves(task)

    monkeypatch.setattr("loadmanager.core.strategies.shedding.level_shedder.find_moves", noted)
    rounds = shed_each_minute(cluster(a=carrying("a", [52.0, 52.0]), b=carrying("b", [55.0])), 6)
    assert searched == [True, False, True, False, False, True]
    assert all("none of its 2 bundles can move" in verdict_of(each, "a") for each in rounds)


def test_round_with_moves_relieves_all_brokers_above_the_target() -> None:
    a_bit = {"b": carrying("b", [2.0] * 30), "c": carrying("c", [2.0] * 27), "d": carrying("d", [2.0] * 27)}
    assert moves(shed(cluster(**a_bit))) == 0
    found = shed(cluster(a=carrying("a", [2.0] * 40), **a_bit, e=carrying("e", [2.0] * 10)))
    assert {pick.broker for pick in found.bundles} == {0, 1}


def test_broker_within_its_noise_sheds_nothing() -> None:
    sizes = {"a": [2.0] * 40, "b": [2.0] * 28, "c": [2.0] * 26, "d": [2.0] * 26, "e": [2.0] * 10}
    given = cluster(**{host: carrying(host, own) for host, own in sizes.items()})
    for noise, givers in ((0.0, {0, 1}), (0.5, {0})):
        memory = {"brokers": {"b:8080": [1, 0.0, NOW_S, None, noise]}}
        assert {pick.broker for pick in shed(given, memory).bundles} == givers


def test_new_broker_is_filled_although_no_broker_is_hot() -> None:
    hosts = {f"h{i:02}": carrying(f"h{i:02}", [1.0] * 100) for i in range(40)}
    before = shed(cluster(**hosts))
    assert moves(before) == 0
    found = shed(cluster(**hosts, new=carrying("new", [])), before.state)
    assert {pick.destination for pick in found.bundles} == {40}
    assert moves(found) > 80
    said = next(each.sentence() for each in found.verdicts if each.acted)
    assert "because 1 brokers are far below level" in said


def test_broker_that_became_cold_is_filled_after_a_wait() -> None:
    hosts = {f"h{i:02}": carrying(f"h{i:02}", [1.0] * 100) for i in range(40)}
    before = shed(cluster(**hosts, cold=carrying("cold", [1.0] * 100)))
    cooled = cluster(**hosts, cold=carrying("cold", [1.0] * 20))
    first = shed(after_s(cooled, 60), before.state)
    assert moves(first) == 0
    assert "has been far below level 82.25 % for 0 s, less than 300 s" in verdict_of(first, "cold")
    assert moves(shed(after_s(cooled, 360), first.state)) > 60


def test_re_registered_broker_is_not_filled_during_its_rest() -> None:
    others = {"a": carrying("a", [5.0] * 10), "b": carrying("b", [5.0] * 10)}
    before = shed(cluster(**others, c=carrying("c", [5.0] * 10)))
    lives = {broker(host): each for host, each in others.items()} | {broker("c", 2): carrying("c", [])}
    back = build_snapshot(NOW_S + 60, lives, {}, frozenset(), NO_POLICIES, {})
    found = shed(back, before.state)
    assert moves(found) == 0
    assert verdict_of(found, "c").startswith("Given nothing for 300 s more because it re-registered 1 times")
    assert "is not above level 41.94 %" in verdict_of(shed(after_s(back, 120), found.state), "a")
    assert moves(shed(after_s(back, 360), found.state)) > 0


def test_moved_bundle_rests_unless_its_broker_lacks_headroom() -> None:
    given = cluster(a=carrying("a", [5.0] * 20), b=carrying("b", [5.0] * 4))
    names = [bundle(i, "tenant/a") for i in range(20)]
    put = {"put": {"a:8080": dict.fromkeys([*names, "tenant/gone/0x0"], NOW_S), "gone:8080": {names[0]: NOW_S}}}
    resting = shed(given, put)
    assert (
        moves(resting),
        "20 of them moved recently and stay, the first for 2827 s:" in verdict_of(resting, "a"),
    ) == (0, True)
    elsewhere = shed(given, {"put": {"b:8080": dict.fromkeys(names, NOW_S)}})
    assert moves(elsewhere) == 8, "those moves were not carried out"
    full = cluster(a=carrying("a", [5.5] * 20), b=carrying("b", [5.0] * 4))
    assert moves(shed(full, put)) > 0


@pytest.mark.parametrize(("excess_s", "is_moved"), [(REST_EXCESS_S - 1, False), (REST_EXCESS_S, True)])
def test_moved_bundle_rests_until_the_excess_of_its_broker_is_large(excess_s: float, *, is_moved: bool) -> None:
    given = cluster(a=carrying("a", [5.0] * 20), b=carrying("b", [5.0] * 4))
    put = {"a:8080": dict.fromkeys([bundle(i, "tenant/a") for i in range(20)], NOW_S)}
    found = shed(given, {"brokers": {"a:8080": [1, 0.0, NOW_S, None, 0.0, excess_s]}, "put": put})
    assert bool(moves(found)) is is_moved
    assert ("the first for 2 s" in verdict_of(found, "a")) is not is_moved, "its excess grows by 0.64 a second"


def test_resting_bundle_moves_only_to_a_newer_broker() -> None:
    names = [bundle(i, "tenant/a") for i in range(20)]
    own = {host: carrying(host, [5.0] * count) for host, count in (("a", 20), ("b", 10))}
    before = shed(cluster(**own, c=carrying("c", [5.0] * 15))).state
    before["put"] = {"a:8080": dict.fromkeys(names, NOW_S + 30)}
    there = after_s(cluster(**own, c=carrying("c", [])), 360)
    known = shed(there, shed(after_s(there, -300), before).state)
    assert {pick.broker for pick in known.bundles} <= {1}, "what rests on a stays there"
    grown = after_s(cluster(**own, new=carrying("new", [])), 60)
    came = shed(grown, before)
    assert (0, 2, LevelReason.FILLS_COLD_BROKER) in {
        (each.broker, each.destination, each.reason) for each in came.bundles
    }
    put_since = {**before, "put": {"a:8080": dict.fromkeys(names, NOW_S + 60)}}
    assert 0 not in {each.broker for each in shed(grown, put_since).bundles}


def test_rise_in_load_moves_bundles_once_it_has_stood() -> None:
    known = {bundle(i, "tenant/a"): averages(throughput(8.5)) for i in range(6)}
    known |= {bundle(i, "tenant/b"): averages(throughput(8.0)) for i in range(6)}
    reports = {"a": carrying("a", [18.0] * 6), "b": carrying("b", [8.0] * 6)}
    now, later = (snapshot(reports, known, taken_at_s=NOW_S + after) for after in (0, STOOD_S))
    assert (moves(shed(now)), moves(shed(later)) > 0) == (0, True)


def test_broker_within_the_evenness_sheds_nothing() -> None:
    found = shed(cluster(a=carrying("a", [2.0] * 41), b=carrying("b", [2.0] * 40)))
    assert "not more than 3 % or its noise 0 %" in verdict_of(found, "a")
    assert verdict_of(found, "b").endswith("is not above level 67.95 %")


def test_verdicts_of_a_hot_broker_that_sheds_nothing() -> None:
    one = shed(cluster(a=carrying("a", [90.0]), b=carrying("b", [5.0])))
    assert verdict_of(one, "a").startswith("No move because its only bundle")
    small = shed(cluster(a=carrying("a", [51.0], capacity=GBIT / 2), b=carrying("b", [70.0])))
    assert verdict_of(small, "a").startswith("No move because its only bundle")
    stuck = shed(cluster(a=carrying("a", [52.0, 52.0]), b=carrying("b", [55.0])))
    assert verdict_of(stuck, "a").startswith("No move because none of its 2 bundles can move to make the load")
    given = cluster(a=carrying("a", [5.0] * 20), b=carrying("b", [5.0] * 4), **half([5.0] * 12))
    spent = shed(given, MOVED_HALF, replace(SETTINGS, max_load_moved_per_hour_percentage=50))
    assert verdict_of(spent, "a").startswith("No move because only 0 % of all load may move in the next 3590 s: usage ")
    nothing = shed(given, settings=replace(SETTINGS, max_load_moved_per_cycle_percentage=0))
    assert "a round may move 0 % of all load: usage " in verdict_of(nothing, "a")
    raise_it = "wait for the next rounds, or raise loadBalancerMaxLoadMovedPer"
    assert find_verdict(nothing, "a").remedy() == f"{raise_it}CyclePercentage"
    assert find_verdict(spent, "a").remedy() == f"{raise_it}HourPercentage", "a broker is much too hot"
    mild = cluster(a=carrying("a", [5.0] * 12), b=carrying("b", [5.0] * 9), **half([5.0] * 11))
    first = shed(mild, MOVED_HALF)
    later = shed(after_s(mild, 360), shed(after_s(mild, 180), first.state).state)
    assert find_verdict(later, "a").verdict is LevelReason.BUDGET_SPENT
    assert find_verdict(later, "a").remedy() == "wait for the next rounds"


def test_only_moves_that_were_made_use_up_the_budget() -> None:
    given = cluster(a=carrying("a", [5.0] * 20), b=carrying("b", [5.0] * 4))
    settings = replace(SETTINGS, max_load_moved_per_hour_percentage=40)
    first = shed(given, settings=settings)
    assert moves(first) == 8
    assert moves(shed(given, first.state, settings)) == 8, "a dry run or another limit stopped them"


def test_bundles_of_excluded_namespaces_stay() -> None:
    given = cluster(a=carrying("a", [5.0] * 20), b=carrying("b", [5.0] * 4))
    settings = replace(SETTINGS, shedding_excluded_namespaces=frozenset({"tenant/a"}))
    assert moves(shed(given, settings=settings)) == 0


def test_policies_hold_in_the_search() -> None:
    given = cluster(a=carrying("a", [5.0] * 20), b=carrying("b", []), c=carrying("c", [5.0]))
    grouped = replace(given, policies=Policies(anti_affinity_groups={"tenant/a": "group"}), _derived={})
    plan, _ = plan_shedding(grouped, SETTINGS, {}, np.random.default_rng(1))
    assert not any(verdict.verdict is SheddingReason.ANTI_AFFINITY_KEPT for verdict in plan.verdicts)
    excluded = replace(given, controls=Controls(excluded=frozenset({broker("b").broker})), _derived={})
    found = shed(excluded)
    assert {pick.destination for pick in found.bundles} == {2}


def test_misplaced_bundles_move_first() -> None:
    given = cluster(a=carrying("a", [5.0] * 20), b=carrying("b", [5.0] * 4), c=carrying("c", [5.0] * 3))
    only_c = IsolationPolicy("only-c", ("tenant/b",), ("c.*",), min_limit=1)
    apart = replace(given, policies=Policies(isolation=(only_c,)), _derived={})
    found = shed(apart)
    assert [(pick.broker, pick.destination, pick.reason) for pick in found.bundles][:1] == [
        (1, 2, LevelReason.MISPLACED)
    ]
    assert verdict_of(found, "b").startswith("Shed 4 of 4 bundles because isolation policies do not allow them here")
    assert {pick.destination for pick in found.bundles if pick.broker == 0} == {1}, "where there is room now"
    plan, _ = plan_shedding(apart, SETTINGS, {}, np.random.default_rng(1))
    assert len(plan.steps) == moves(found)


def test_misplaced_bundles_move_within_the_budget_if_a_broker_may_own_them() -> None:
    given = cluster(a=carrying("a", [5.0] * 20), b=carrying("b", [5.0] * 20), c=carrying("c", [5.0] * 20))
    for primary, moved in (("c.*", 6), ("nobody", 0)):
        policy = IsolationPolicy("p", ("tenant/b",), (primary,), min_limit=1)
        found = shed(replace(given, policies=Policies(isolation=(policy,)), _derived={}))
        assert sum(len(pick.bundles) for pick in found.bundles if pick.broker == 1) == moved


def test_plan_uses_the_destinations_of_the_search() -> None:
    given = cluster(a=carrying("a", [5.0] * 20), b=carrying("b", [5.0] * 4))
    plan, state = plan_shedding(given, SETTINGS, {}, np.random.default_rng(1))
    assert {step.destination for step in plan.steps} == {broker("b")}
    assert all(isinstance(step, Unload) and step.reason is LevelReason.ABOVE_LEVEL for step in plan.steps)
    assert len(state["Level"]["put"]["b:8080"]) == len(plan.steps)


def test_margin_is_the_rise_that_makes_a_broker_hot() -> None:
    given = cluster(a=carrying("a", [5.0] * 10), b=carrying("b", [5.0] * 10))
    margin = float(Level(SETTINGS).find_margin(given, {}, 0)["usage_points"])
    usage = 100 * float(loads_of(given).usage[0].max())
    assert (usage + margin) / (usage + margin / 2) == pytest.approx(1.03, abs=0.001)
    unknown = snapshot({"a": report(), "b": report()})
    assert Level(SETTINGS).find_margin(unknown, {}, 0) == {}
    none = replace(SETTINGS, resource_weights=ResourceWeights(0, 0, 0, 0))
    assert Level(none).find_margin(given, {}, 0) == {}
    assert "No move" in shed(given, settings=none).verdicts[0].sentence()


def test_margin_is_relative_to_the_level_without_resting_brokers() -> None:
    given = cluster(a=carrying("a", [5.0] * 10), b=carrying("b", [5.0] * 10), c=carrying("c", []))
    before_restart = BrokerObservation(broker("c", 2), -0.1, is_cold=False, deviation=float("nan"))
    resting = LevelMemory.of({}).after_pass([before_restart], NOW_S).as_state()
    assert Level(SETTINGS).find_margin(given, {}, 0) == {}, "c would take a third"
    usage = 100 * float(loads_of(given).usage[0].max())
    margin = float(Level(SETTINGS).find_margin(given, resting, 0)["usage_points"])
    assert (usage + margin) / (usage + margin / 2) == pytest.approx(1.03, abs=0.001)


def test_shedding_without_brokers_keeps_its_state() -> None:
    assert shed(cluster(), {"put": {}}).state == {"put": {}}


# Placement


def test_placement_takes_the_least_used_broker_including_the_bundle() -> None:
    given = cluster(
        a=carrying("a", [5.0] * 4), b=carrying("b", [5.0] * 4, capacity=2 * GBIT), c=carrying("c", [5.0] * 9)
    )
    new = [bundle(i, "tenant/new") for i in range(3)]
    plan, _ = plan_assignments(given, new[:1], SETTINGS, {}, np.random.default_rng(1))
    assert [step.destination for step in plan.steps] == [broker("b")]
    assert plan.verdicts[0].verdict is LevelPlacementReason.LEAST_USED_WITH_IT
    even = cluster(a=carrying("a", [5.0]), b=carrying("b", [5.0]), c=carrying("c", [5.0]))
    plan, _ = plan_assignments(even, new, SETTINGS, {}, np.random.default_rng(1))
    assert {step.destination for step in plan.steps} == {broker(host) for host in "abc"}


def test_no_broker_is_chosen_without_candidates() -> None:
    given = cluster(a=carrying("a", [5.0]))
    none = np.empty(0, dtype=np.intp)
    rng = np.random.default_rng(1)
    placement = LevelPlacement(SETTINGS).place(none, None, Projection(given), {}, rng)
    assert (placement.broker, placement.reason) == (None, PlacementReason.NO_BROKER_AVAILABLE)


def test_level_bound_handles_brokers_with_different_bottlenecks() -> None:
    need = np.tile([1.0, 1.0], (12, 1))
    per_need = np.array([[1 / 10, 1 / 20], [1 / 40, 1 / 20]])
    assert compute_level(need.sum(axis=0), per_need, 0.0) == pytest.approx(0.3)
    assert bound_level(need, per_need) == pytest.approx(0.4), "4 bundles fill the first to 40 %, 8 the second"


@pytest.mark.parametrize("per_need", [np.zeros((2, 2)), np.zeros((0, 2))])
def test_level_bound_without_capacities_is_0(per_need: FloatArray) -> None:
    assert bound_level(np.ones((3, 2)), per_need) == 0


@given(
    need=st.lists(st.tuples(st.floats(0.01, 9), st.floats(0.01, 9)), min_size=1, max_size=4),
    per_need=st.lists(st.tuples(st.floats(0.01, 9), st.floats(0.01, 9)), min_size=2, max_size=3),
)
def test_level_bound_is_below_every_assignment(
    need: list[tuple[float, float]], per_need: list[tuple[float, float]]
) -> None:
    needs, each = np.array(need), np.array(per_need)
    highest = []
    for owners in product(range(len(each)), repeat=len(needs)):
        usage = np.array([needs[np.array(owners) == broker].sum(axis=0) for broker in range(len(each))]) * each
        highest.append(usage.max())
    assert bound_level(needs, each) <= min(highest) * (1 + 1e-9)
