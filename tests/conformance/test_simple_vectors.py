"""Pulsar's choices for SimpleLoadManagerImpl: from its tests (A) and derived from its rules (D)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.builders import Load, broker, bundle, report, snapshot
from support.dumps import MIB, answers, settings

from loadmanager.core.constraints.projection import Projection
from loadmanager.core.domain.plan import Assign, Plan, Verdict
from loadmanager.core.domain.policies import IsolationPolicy, Policies
from loadmanager.core.domain.reasons import Reason, SheddingReason
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import BrokerReport
from loadmanager.core.model.quotas import DEFAULT_QUOTA, is_worth_storing, smooth
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.planner import plan_assignments, plan_shedding
from loadmanager.core.strategies.placement import placement_strategy
from loadmanager.core.strategies.placement.fill_up import FillUpReason
from loadmanager.core.strategies.placement.weighted_random_selection import compute_weights
from loadmanager.core.strategies.ranked_brokers import Ranking, rank_brokers
from loadmanager.core.strategies.shedding import shedding_strategy
from loadmanager.core.strategies.shedding.simple_shedder import SimpleReason

SIMPLE = PlannerSettings(load_manager_class_name="org.apache.pulsar.broker.loadbalance.impl.SimpleLoadManagerImpl")
MINUTE_MS = 60_000
NOW_MS = 1_753_000_000_000
WIDE = (0, 1_024_000)
NOTHING: Load = (0, 0, 0, 0)


def by(strategy: str) -> PlannerSettings:
    return replace(SIMPLE, simple_placement_strategy=strategy)


def known(**model: object) -> dict[str, Any]:
    """Return a state as old as reports of time 0, so that quotas do not change."""
    return {"model": {"last_update_ms": 0, **model}}


def remembered(strategy: str = "leastLoadedServer", **model: object) -> dict[str, Any]:
    return {strategy: known(**model)}


def objects(given: BrokerReport, topics: Sequence[int], sessions: Sequence[int]) -> BrokerReport:
    return replace(
        given,
        bundle_topics=np.array(topics, dtype=np.int64),
        bundle_sessions=np.array(sessions, dtype=np.int64),
    )


def others(count: int) -> list[str]:
    """Return unknown bundles, each of its own namespace."""
    return [bundle(0, f"tenant/other-{i:03d}") for i in range(count)]


def placed(plan: Plan) -> list[str]:
    return [step.destination.broker.partition(":")[0] for step in plan.steps if isinstance(step, Assign)]


def place(given: Snapshot, names: Sequence[str], settings: PlannerSettings = SIMPLE, **model: object) -> list[str]:
    state = remembered(settings.simple_placement_strategy, **model)
    return placed(plan_assignments(given, names, settings, state, np.random.default_rng(0))[0])


def ranked(given: Snapshot, **model: object) -> Ranking:
    return rank_brokers(given, known(**model), SIMPLE)


def load(ranking: Ranking) -> list[float]:
    return [float(each) for each in ranking.percent(ranking.loaded, ranking.given).max(axis=1)]


def five_units_without_bundles() -> Snapshot:
    return snapshot(
        {
            f"b{i}": report(cpu=(60, 400), memory=(1024, 2048 * (i + 1)), bandwidth_in=WIDE, bandwidth_out=WIDE)
            for i in range(5)
        }
    )


def test_a1_units_are_ranked_by_their_most_used_resource() -> None:
    ranking = ranked(five_units_without_bundles())
    assert np.trunc(load(ranking)).tolist() == [50, 25, 16, 15, 15]
    assert ranking.capacity.tolist() == [25, 51, 76, 100, 100]


def test_a2_equal_idle_units_are_filled_in_order_and_then_evenly() -> None:
    unit = report(cpu=(5, 400), memory=(1024, 8192), bandwidth_in=(256, 1_024_000), bandwidth_out=(250, 1_024_000))
    chosen = place(snapshot({f"b{i}": unit for i in range(5)}), others(200))
    assert chosen[:195] == [f"b{i}" for i in range(5) for _ in range(39)]
    assert sorted(chosen[195:]) == ["b0", "b1", "b2", "b3", "b4"]


def test_a3_units_get_bundles_by_their_memory() -> None:
    reports = {}
    for i in range(5):
        names = [bundle(100 * i + k) for k in range(5 * (i + 1))]
        memory = (0, 2048 * (i + 1))
        reports[f"b{i}"] = report(names, cpu=(60, 400), memory=memory, bandwidth_in=WIDE, bandwidth_out=WIDE)
    given = snapshot(reports)
    default = [20.0, 60.0, 20_000.0, 60_000.0, 87.0]
    ranking = ranked(given, default=default)
    assert load(ranking) == [21.240234375] * 5
    assert ranking.capacity.tolist() == [23, 47, 70, 94, 117]
    plan, _ = plan_assignments(given, others(250), SIMPLE, remembered(default=default), np.random.default_rng(0))
    assert Counter(placed(plan)) == {"b0": 16, "b1": 31, "b2": 49, "b3": 68, "b4": 86}
    reasons = [step.reason for step in plan.steps]
    assert reasons == [FillUpReason.LEAST_LOADED] * 226 + [FillUpReason.MOST_FREE_CAPACITY] * 24


def a4_units(at_ms: int) -> Snapshot:
    reports = {}
    for i in range(5):
        ks = [i + j for j in range(5)]
        loads = {bundle(100 * i + k): (5.0 * k, 15.0 * k, 5000.0 * k, 15000.0 * k) for k in ks}
        memory = (25 * (10 + 5 * i), 2048 * (i + 1))
        given = report(loads, cpu=(200, 400), memory=memory, last_update_ms=at_ms)
        reports[f"b{i}"] = objects(given, [25 * k for k in ks], [100 * k for k in ks])
    return snapshot(reports)


A4_DEFAULT = [20.0, 60.0, 20_000.0, 60_000.0, 75.0]


def a4_quotas(minutes: int) -> tuple[dict[str, Any], dict[int, list[float]]]:
    start = known(default=A4_DEFAULT, last_update_ms=NOW_MS)
    first = rank_brokers(a4_units(NOW_MS), start, SIMPLE)
    later = rank_brokers(a4_units(NOW_MS + minutes * MINUTE_MS), {"model": first.model}, SIMPLE)
    model = later.model.as_json()
    quotas = model["quotas"]
    return model, {k: quotas[bundle(100 * i + k)] for i, k in ((0, 0), (2, 4), (4, 8))}


def test_a4_quotas_rise_to_the_measured_load_within_half_an_hour() -> None:
    model, quotas = a4_quotas(30)
    assert (model["cpu_factor"], model["memory_factor"]) == (0.1, 50)
    assert quotas[0] == pytest.approx([19.6875, 58.854167, 19791.667, 58958.333, 74.479167])
    assert quotas[4] == pytest.approx([20, 60, 20000, 60000, 100], abs=1)
    assert quotas[8] == pytest.approx([40, 120, 40000, 120000, 150], abs=1)
    assert model["average"] == A4_DEFAULT


def test_a5_quotas_fall_to_the_measured_load_within_a_day() -> None:
    _, quotas = a4_quotas(1440)
    assert quotas[0] == pytest.approx([5, 5, 10_000, 10_000, 50], abs=1)
    assert quotas[4] == pytest.approx([20, 60, 20000, 60000, 100], abs=1)


def test_a5_derived_rest_of_the_day_is_one_more_step() -> None:
    model, _ = a4_quotas(30)
    later = rank_brokers(a4_units(NOW_MS + 1440 * MINUTE_MS), {"model": model}, SIMPLE)
    assert later.model.as_json()["quotas"][bundle(0)] == pytest.approx([5.30599, 6.12196, 10203.99, 11019.97, 50.50998])


def test_a6_two_units_get_the_bundles_of_a_namespace_alternately() -> None:
    unit = report(cpu=(5, 400), memory=(1024, 8192), bandwidth_in=WIDE, bandwidth_out=WIDE)
    names = [bundle(i) for i in range(16)]
    chosen = place(snapshot({"b0": unit, "b1": unit}), names, quotas={names[0]: [0, 0, 0, 0, 0]})
    for placements in range(2, 17, 2):
        assert len(set(Counter(chosen[:placements]).values())) == 1


def test_a10_no_broker_without_a_registered_unit() -> None:
    assert place(snapshot({}), others(1)) == []
    for strategy in ("leastMsgPerSecond", "weightedRandomSelection"):
        assert place(snapshot({}), others(1), by(strategy)) == []


def test_a11_primary_unit_of_the_policy_is_chosen() -> None:
    policy = IsolationPolicy("one", ("tenant/ns",), ("b1",))
    given = snapshot({"b0": report(), "b1": report()}, policies=Policies((policy,)))
    assert place(given, [bundle(0)]) == ["b1"]


def test_a12_quota_is_own_then_default_then_built_in() -> None:
    given = snapshot({"b0": report([bundle(0), bundle(1)])})
    quota, default = [1.0, 2.0, 3.0, 4.0, 5.0], [6.0, 7.0, 8.0, 9.0, 10.0]
    assert ranked(given).quota.tolist() == [list(DEFAULT_QUOTA)] * 2
    assert ranked(given, default=default).quota.tolist() == [default] * 2
    assert ranked(given, default=default, quotas={bundle(1): quota}).quota.tolist() == [default, quota]


D1_USAGE = {
    "cpu": (100, 800),
    "memory": (1000, 4000),
    "direct_memory": (300, 1000),
    "bandwidth_in": (50_000, 1_000_000),
    "bandwidth_out": (80_000, 1_000_000),
}


@pytest.mark.parametrize(
    ("loaded", "given", "percent", "messages", "weight", "free", "allocated"),
    [
        (0, 0, [12.5, 25, 5, 8, 30], 0, 24, 35, [0, 0, 0, 0]),
        (10, 0, [12.5, 25, 5, 8, 30], 1600, 24, 35, [5, 20, 0.78125, 2.34375]),
        (10, 5, [15, 35, 5.390625, 9.171875, 30], 2400, 21, 32, [5, 20, 0.78125, 2.34375]),
        (40, 0, [20, 80, 5, 9.375, 30], 6400, 2, 10, [20, 80, 3.125, 9.375]),
        (40, 10, [25, 100, 5.78125, 11.71875, 30], 8000, 0, 0, [20, 80, 3.125, 9.375]),
    ],
)
def test_d1_arithmetic_of_a_rank(
    loaded: int, given: int, percent: list[float], messages: float, weight: int, free: int, allocated: list[float]
) -> None:
    unit = report([bundle(i) for i in range(loaded)], **D1_USAGE)  # type: ignore[arg-type]  # usage by resource
    there = snapshot({"b0": unit}, preallocated={bundle(100 + i): "b0" for i in range(given)})
    ranking = ranked(there)
    assert ranking.percent(ranking.loaded, ranking.given)[0] == pytest.approx(percent)
    assert ranking.messages_per_s(ranking.loaded, ranking.given).tolist() == [messages]
    assert ranking.capacity.tolist() == [50]
    assert compute_weights(ranking).tolist() == [weight]
    placement = placement_strategy(SIMPLE)[1].place(
        np.array([0]), None, Projection(there), known(), np.random.default_rng(0)
    )
    assert placement.why["free_bundles"] == free
    resources = ("cpu", "memory", "bandwidth_in", "bandwidth_out")
    assert [placement.why[f"allocated_{resource}_percent"] for resource in resources] == allocated


class Draws:
    """A generator that draws one number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def integers(self, end: int) -> int:
        assert 0 <= self.number < end
        return self.number


@pytest.mark.parametrize(
    ("drawn", "chosen"), [(0, 0), (5, 0), (6, 1), (33, 1), (34, 2), (85, 2), (86, 3), (157, 3), (158, 4), (229, 4)]
)
def test_d2_unit_is_drawn_by_its_weight(drawn: int, chosen: int) -> None:
    given = five_units_without_bundles()
    assert compute_weights(ranked(given)).tolist() == [6, 28, 52, 72, 72]
    placement = placement_strategy(by("weightedRandomSelection"))[1].place(
        np.arange(5),
        None,
        Projection(given),
        known(),
        Draws(drawn),  # type: ignore[arg-type]  # all that is drawn
    )
    assert (placement.broker, placement.why["weights"]) == (chosen, 230)


def test_d2_units_of_unknown_capacity_are_equally_likely() -> None:
    given = snapshot({f"b{i}": report(cpu=(60, 400), memory=(1, 2048)) for i in range(5)})
    assert compute_weights(ranked(given)).tolist() == [0] * 5
    assert set(place(given, others(100), by("anything else"))) == {f"b{i}" for i in range(5)}


RATE = (5, np.inf)
BANDWIDTH = (10_000, 1e6)
MEMORY_MB = (2, 200)


@pytest.mark.parametrize(
    ("old", "sample", "bounds", "minutes", "new"),
    [
        (40, 100, RATE, 1, 42),
        (40, 10, RATE, 1, 39.979167),
        (40, 1, RATE, 1, 39.975694),
        (100_000, 5e6, BANDWIDTH, 30, 1e6),
        (1.5e6, 1.2e6, BANDWIDTH, 1, 1499652.78),
        (80, 25, MEMORY_MB, 1, 79.961806),
        (80, 500, MEMORY_MB, 1, 84),
        (0.025, 0.5, (0.01, 0.1), 1, 0.0275),
        (0.1, 0.001, (0.01, 0.1), 1, 0.0999375),
        (40, 100, RATE, -5 / 60, 40),
    ],
)
def test_d3_expectation(old: float, sample: float, bounds: tuple[float, float], minutes: float, new: float) -> None:
    assert float(smooth(old, sample, *bounds, minutes * MINUTE_MS)) == pytest.approx(new)


def d3_bundle(at_ms: int) -> Snapshot:
    return snapshot(
        {"b0": objects(report({bundle(0): (100, 200, 50_000, 2e6)}, last_update_ms=at_ms), [20], [0])},
        taken_at_s=at_ms / 1000,
    )


def test_d3_quota_moves_with_time_between_reports_and_jumps_at_the_start() -> None:
    after_a_minute = ranked(d3_bundle(MINUTE_MS)).model.as_json()["quotas"][bundle(0)]
    assert after_a_minute == pytest.approx([42, 122.6667, 99965.28, 323333.33, 79.9618])
    started = rank_brokers(d3_bundle(NOW_MS), {}, SIMPLE).model.as_json()
    assert started["quotas"][bundle(0)] == [100, 200, 50_000, 1e6, 25]
    assert started["last_update_ms"] == NOW_MS


def d4_model(bundles: int, **model: object) -> dict[str, Any]:
    loads: dict[str, Load] = {bundle(i): (50, 50, 10_000, 10_000) for i in range(bundles)}
    unit = report(loads, cpu=(200, 800), memory=(2000, 8000), last_update_ms=5 * MINUTE_MS)
    given = snapshot({"b0": objects(unit, [10] * bundles, [0] * bundles)})
    return ranked(given, **model).model.as_json()


def test_d4_factors_and_average_follow_many_bundles() -> None:
    model = d4_model(40)
    assert (model["cpu_factor"], model["memory_factor"]) == pytest.approx((0.0291667, 29.16667), rel=1e-5)
    assert model["average"] == pytest.approx([41.6667, 119.7569, 99687.5, 298993.06, 79.8958])
    assert model["quotas"][bundle(0)] == pytest.approx([41.6667, 119.7569, 99687.5, 298993.06, 79.8235])
    assert model["default"] == list(DEFAULT_QUOTA)


def test_d4_few_bundles_do_not_change_the_average() -> None:
    model = d4_model(30)
    assert (model["cpu_factor"], model["memory_factor"]) == (0.025, 25)
    assert model["average"] == list(DEFAULT_QUOTA)


def busy(number: int, **usage: tuple[float, float]) -> BrokerReport:
    """Return a report of a unit with one bundle."""
    return report([bundle(number)], **usage)  # type: ignore[arg-type]  # usage by resource


def no_quotas(numbers: Iterable[int]) -> dict[str, list[float]]:
    return {bundle(number): [0.0] * 5 for number in numbers}


def test_d5_full_units_alternate() -> None:
    given = snapshot({f"b{i}": busy(i, cpu=(400, 400)) for i in range(3)})
    assert place(given, others(5), quotas=no_quotas(range(3))) == ["b0", "b1", "b2", "b0", "b1"]


def test_d5_overloaded_unit_with_the_highest_capacity_is_chosen() -> None:
    ample = {"memory": (0.0, 1e9), "bandwidth_in": (0.0, 1e12), "bandwidth_out": (0.0, 1e12)}
    cpus = [(344, 400), (1440, 1600), (760, 800)]
    given = snapshot({f"b{i}": busy(i, cpu=cpu, **ample) for i, cpu in enumerate(cpus)})
    assert ranked(given).capacity.tolist() == [100, 400, 200]
    assert place(given, others(1), quotas=no_quotas(range(3))) == ["b1"]


def d6_units() -> dict[str, BrokerReport]:
    figures = [(46.0, 20.0), (50.0, 10.0), (54.0, 1.0)]
    return {f"b{i}": busy(i, cpu=(cpu, 100), memory=(heap, 100)) for i, (cpu, heap) in enumerate(figures)}


def test_d6_small_differences_select_the_most_loaded_unit() -> None:
    assert place(snapshot(d6_units()), others(1), quotas=no_quotas(range(3))) == ["b2"]


def test_d6_idle_unit_is_opened_when_the_best_one_has_enough() -> None:
    given = snapshot(d6_units() | {"b3": report(cpu=(0, 100))})
    assert place(given, others(1), quotas=no_quotas(range(3))) == ["b3"]


def d7_units(idle: bool) -> Snapshot:  # noqa: FBT001 - the scenario's switch
    units = {"b0": busy(0, cpu=(10, 100)), "b1": busy(1, cpu=(99, 100))}
    return snapshot(units | ({"b2": report(cpu=(0, 100))} if idle else {}))


@pytest.mark.parametrize(("idle", "chosen"), [(False, "b1"), (True, "b2")])
def test_d7_fewest_messages_win_unless_a_unit_is_idle(idle: bool, chosen: str) -> None:  # noqa: FBT001 - the scenario's switch
    quotas = {bundle(0): [100.0, 100.0, 0, 0, 0], bundle(1): [10.0, 10.0, 0, 0, 0]}
    default = [50.0, 50.0, 0, 0, 0]
    settings = by("leastMsgPerSecond")
    assert place(d7_units(idle), others(1), settings, quotas=quotas, default=default) == [chosen]


def test_d8_reported_bundle_counts_to_its_namespace_at_once() -> None:
    """In Pulsar a bundle does not count for one pass when first reported, so the next one joins it."""
    reported = snapshot({"b0": report([bundle(1)]), "b1": report()})
    assert place(reported, [bundle(2)]) == ["b1"]


X_CPU_90 = {"cpu": (90, 100)}
COOL = {"cpu": (30, 100), "direct_memory": (30, 100), "bandwidth_in": (30, 100), "bandwidth_out": (30, 100)}
P, Q = bundle(1), bundle(2)


def shed(
    loads: Mapping[str, Load],
    x: Mapping[str, tuple[float, float]],
    y: Mapping[str, object],
    recent: Sequence[str] = (),
    sessions: Sequence[int] | None = None,
) -> tuple[list[str], Verdict]:
    """Return the bundles that leave x, and the verdict on x."""
    hot = report(loads, **x)  # type: ignore[arg-type]  # usage by resource
    if sessions is not None:
        hot = objects(hot, [1] * len(loads), sessions)
    cool = report(**y)  # type: ignore[arg-type]  # usage by resource
    plan, _ = plan_shedding(
        snapshot({"x": hot, "y": cool}, recently_unloaded=recent), SIMPLE, {}, np.random.default_rng(0)
    )
    assert all(step.destination == broker("y") for step in plan.steps)
    verdict = next(each for each in plan.verdicts if each.subject == "x:8080")
    return [step.bundle for step in plan.steps], verdict


def rates(p: float, q: float) -> dict[str, Load]:
    return {P: (p, 0, 0, 0), Q: (q, 0, 0, 0)}


DIRECT_MEMORY_90 = {"direct_memory": (90.0, 100.0)}
MEMORY_40 = {**DIRECT_MEMORY_90, "memory": (40.0, 100.0), "cpu": (30.0, 100.0)}


@pytest.mark.parametrize(
    ("first", "second", "x", "sessions", "leaving"),
    [
        pytest.param(900, 1500, X_CPU_90, None, Q, id="top bundle"),
        pytest.param(960, 1040, X_CPU_90, None, P, id="first by name of equal steps"),
        pytest.param(100, 900, DIRECT_MEMORY_90, None, Q, id="direct memory alone: by message rate"),
        pytest.param(900, 100, MEMORY_40, [498, 499], Q, id="direct memory: by the most used of the others"),
        pytest.param(100, 900, MEMORY_40, [100, 200], P, id="direct memory: by the step of sessions"),
    ],
)
def test_d9_one_bundle_leaves(
    first: int, second: int, x: dict[str, tuple[float, float]], sessions: list[int] | None, leaving: str
) -> None:
    assert shed(rates(first, second), x, COOL, sessions=sessions)[0] == [leaving]


def test_d9_nothing_moves_when_the_top_bundle_moved_recently() -> None:
    bundles, verdict = shed(rates(900, 1500), X_CPU_90, COOL, recent=[Q])
    assert (bundles, verdict.verdict) == ([], SimpleReason.TOP_BUNDLE_MOVED_RECENTLY)


@pytest.mark.parametrize("y", [{"cpu": (64.9, 100), "bandwidth_in": (65, 100)}, {"persistent_enabled": False}])
def test_d9_no_unit_is_comfortable_at_the_level_or_without_persistence(y: dict[str, object]) -> None:
    bundles, verdict = shed(rates(900, 1500), X_CPU_90, COOL | y)
    assert (bundles, verdict.verdict) == ([], SimpleReason.NO_COMFORTABLE_BROKER)


def test_d9_usage_at_the_threshold_sheds_nothing() -> None:
    bundles, verdict = shed(rates(900, 1500), {"cpu": (85, 100)}, COOL)
    assert (bundles, verdict.verdict) == ([], SheddingReason.BELOW_THRESHOLD)
    assert "85 % (CPU) is not above" in verdict.sentence()


@pytest.mark.parametrize(
    ("loads", "reason"), [({}, SheddingReason.NO_BUNDLES), ({P: NOTHING}, SheddingReason.SINGLE_BUNDLE)]
)
def test_d9_unit_without_a_spare_bundle_sheds_nothing(loads: dict[str, Load], reason: Reason) -> None:
    bundles, verdict = shed(loads, X_CPU_90, COOL)
    assert (bundles, verdict.verdict) == ([], reason)


@pytest.mark.parametrize(("resource", "column"), [("bandwidth_in", 2), ("bandwidth_out", 3)])
def test_d9_bandwidth_sheds_by_bytes_of_its_direction(resource: str, column: int) -> None:
    small, large = [0.0] * 4, [0.0] * 4
    small[column], large[column] = 1e6, 2e6
    large[5 - column], small[5 - column] = 0.0, 9e6
    loads: dict[str, Load] = {P: (9e3, 0, small[2], small[3]), Q: (0, 0, large[2], large[3])}
    assert shed(loads, {resource: (90, 100)}, COOL)[0] == [Q]


def test_d9_heap_counts_in_placement_and_not_in_shedding() -> None:
    x = {"cpu": (10.0, 100.0), "memory": (99.0, 100.0)}
    assert shed(rates(900, 1500), x, COOL)[0] == []
    assert load(ranked(snapshot({"x": report(**x)}))) == [99]  # type: ignore[arg-type]  # usage by resource


def test_d9_bundle_never_returns_to_its_source() -> None:
    """Pulsar returns it when the heap of the other unit is full: that unit is comfortable but not better."""
    x = {"cpu": (90.0, 100.0), "memory": (20.0, 100.0)}
    y = {"cpu": (10.0, 100.0), "memory": (95.0, 100.0)}
    assert shed(rates(900, 1500), x, y)[0] == [Q]


def test_d9_with_shedding_disabled_nothing_is_shed() -> None:
    given = snapshot({"x": report(rates(900, 1500), cpu=(90, 100)), "y": report()})
    plan, _ = plan_shedding(given, replace(SIMPLE, shedding_enabled=False), {}, np.random.default_rng(0))
    assert plan.steps == ()


HOT = {
    "topics": {"topics": 1001},
    "producers": {"topics": 2, "producerCount": 1001},
    "consumers": {"topics": 2, "consumerCount": 1001},
    "rate in": {"topics": 2, "msgRateIn": 30_001},
    "rate out": {"topics": 2, "msgRateOut": 30_001},
    "throughput in": {"topics": 2, "msgThroughputIn": 100 * MIB + 1},
    "throughput out": {"topics": 2, "msgThroughputOut": 100 * MIB + 1},
}
HALVES = ("tenant/ns/0x00000000_0x80000000", "tenant/ns/0x80000000_0xffffffff")


def split(stats: Mapping[str, Mapping[str, float]], bundles: int = 2, **more: object) -> list[str]:
    """Return the split bundles of one broker, in a namespace of `bundles` bundles."""
    line = {
        "brokers": {"b0": {"lastStats": stats}},
        "bundleData": {name: {"longTermData": {"msgRateIn": 1}} for name in stats},
        "namespaces": {"tenant/ns": {"numBundles": bundles}},
    }
    configured = {"loadManagerClassName": SIMPLE.load_manager_class_name, **more}
    (answer,) = answers(line, "--split", *settings(configured))
    return [each["bundle"] for each in answer["decisions"]]


@pytest.mark.parametrize("figure", HOT)
def test_a7_bundle_now_above_a_limit_is_split(figure: str) -> None:
    assert split({HALVES[0]: HOT[figure], HALVES[1]: {"topics": 2}}) == [HALVES[0]]


def test_a8_bundle_at_a_limit_is_not_split() -> None:
    at = {"topics": 999, "producerCount": 999, "consumerCount": 1, "msgRateIn": 29_999, "msgRateOut": 1}
    assert split({HALVES[0]: at | {"msgThroughputIn": 100 * MIB - 1, "msgThroughputOut": 1}}) == []


def test_a9_one_topic_or_a_full_namespace_prevents_a_split() -> None:
    assert split({HALVES[0]: {"topics": 1, "msgThroughputIn": 100 * MIB + 1}}) == []
    assert split({HALVES[0]: HOT["topics"]}, bundles=128) == []


def test_d11_bundles_are_counted_before_the_first_one_is_split() -> None:
    hot = dict.fromkeys(HALVES, HOT["topics"])
    assert split(hot, bundles=127) == [*HALVES]
    assert split(hot, bundles=127, loadManagerClassName="ModularLoadManagerImpl") == [HALVES[0]]
    large = {HALVES[0]: {"topics": 2, "msgThroughputIn": 4096 * MIB}}
    assert split(large, loadBalancerNamespaceBundleMaxBandwidthMbytes=4096) == []
    large[HALVES[0]]["msgThroughputIn"] += 1
    assert split(large, loadBalancerNamespaceBundleMaxBandwidthMbytes=4096) == [HALVES[0]]


def test_d12_nearly_unchanged_average_is_not_stored() -> None:
    stored = np.array([50.0, 50.0, 50_000.0, 50_000.0, 20.0])
    assert not is_worth_storing(stored, stored)
    assert not is_worth_storing(stored, stored + np.array([4.9, -4.9, 9999, -9999, 1.9]))
    assert is_worth_storing(stored, stored + np.array([0, 0, 0, 0, 2]))


def test_class_name_selects_shedding_and_its_placement() -> None:
    assert shedding_strategy(SIMPLE)[0] == "SimpleLoadManagerImpl"
    names = ["leastLoadedServer", "leastMsgPerSecond", "weightedRandomSelection", "anything else", ""]
    chosen = [placement_strategy(by(name))[0] for name in names]
    assert chosen == [*names[:3], "weightedRandomSelection", "weightedRandomSelection"]
