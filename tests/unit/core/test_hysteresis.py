from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import averages, broker, bundle, report, snapshot, throughput

from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import FloatArray
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.strategies.level.hysteresis import (
    CALM_S,
    MOST_RESTING,
    REST_S,
    TARGET_HEAT,
    URGENT_HEAT,
    BrokerObservation,
    Budget,
    LevelMemory,
    find_budget,
    is_urgent,
    lacks_headroom,
    margin_of,
    relief_threshold_s,
)
from loadmanager.core.strategies.level.level_load import LevelLoads
from loadmanager.core.strategies.level.load_noise import find_deviation, noise_of_bundles

SETTINGS = PlannerSettings(shedding_strategy="Level", placement_strategy="Level")
NOW_S = 1_000_000.0


def observe(
    memory: LevelMemory,
    after_s: float,
    excess: float = -0.1,
    *,
    cold: bool = False,
    life: int = 1,
    off: float = math.nan,
) -> LevelMemory:
    """Return the memory after an observation of broker a, `after_s` seconds after the start."""
    return memory.after_pass([BrokerObservation(broker("a", life), excess, cold, off)], NOW_S + after_s)


def budget(moved: Mapping[int, float], *, in_need: bool = False, after_s: float = 0.0, **changes: float) -> Budget:
    """Return the budget after moves of shares of the load, by seconds after the start."""
    settings = replace(SETTINGS, **changes)  # type: ignore[arg-type]
    times = {NOW_S + at_s: share for at_s, share in moved.items()}
    return find_budget(settings, times, NOW_S + after_s, in_need=in_need)


def observe_each_minute(memory: LevelMemory, minutes: int, excess: float, **more: float) -> LevelMemory:
    for minute in range(minutes):
        memory = observe(memory, 60 * minute, excess, **more)  # type: ignore[arg-type]
    return memory


# Thresholds


def test_margin_is_the_evenness_or_the_noise() -> None:
    assert margin_of(np.array([0.0, 0.02, 0.2])) == pytest.approx([0.03, 0.03, 0.2])
    assert 1 < TARGET_HEAT < 1.03


def test_noisier_broker_needs_more_excess() -> None:
    still, usual, noisy = relief_threshold_s(np.array([0.0, 0.02, 0.1])).tolist()
    assert still == pytest.approx(0.05 * 300), "a broker 5 % above the trigger waits for the calm"
    assert still < usual < noisy


def test_noise_alone_never_reaches_the_relief_threshold_in_a_week() -> None:
    """Covers reports every quarter of an hour with noise only. A real excess reaches the threshold."""
    for noise in (0.01, 0.05, 0.15):
        heats = 1 + noise * np.random.default_rng(3).standard_normal((10, 7 * 96))
        threshold_s, trigger = (
            float(relief_threshold_s(np.array(noise))),
            1 + float(margin_of(np.array(noise))),
        )
        for own in heats:
            excess_s = 0.0
            for heat in own.tolist():
                excess_s = max(0.0, excess_s + (heat - trigger) * 900)
                assert excess_s < threshold_s
        assert threshold_s / (2 * max(noise, 0.03)) < 3 * 3600, "three times the trigger is seen within hours"


def test_hot_brokers_are_urgent_if_much_too_hot_or_nearly_full() -> None:
    excess, heat = np.array([0.01, -0.01, 0.1, 0.01, -0.01]), np.array([1.04, 1.02, 1.2, URGENT_HEAT, URGENT_HEAT])
    used = np.array([0.9, 0.9, 0.5, 0.5, 0.5])
    assert is_urgent(excess, heat, used).tolist() == [True, False, False, True, False]
    assert lacks_headroom(excess, used).tolist() == [True, False, False, False, False]


# Hot and cold brokers


def test_excess_accumulates_while_hot_and_decays_after() -> None:
    hot = observe_each_minute(LevelMemory.of({}), 4, 0.1)
    (seen,) = hot.seen([broker("a")])
    assert seen.excess_s == pytest.approx(0.1 * 180)
    assert seen.hot_since_s == NOW_S
    (melting,) = observe(hot, 240, -0.1).seen([broker("a")])
    assert melting.excess_s == pytest.approx(0.1 * 120)
    assert melting.hot_since_s == NOW_S
    (calm,) = observe(hot, 480, -0.1).seen([broker("a")])
    assert (calm.excess_s, calm.hot_since_s) == (0.0, None)


def test_excess_does_not_accumulate_during_a_gap() -> None:
    (seen,) = observe(observe(LevelMemory.of({}), 0, 0.1), 3000, 0.1).seen([broker("a")])
    assert seen.excess_s == pytest.approx(0.1 * 180)


def test_relief_resets_the_excess() -> None:
    hot = observe_each_minute(LevelMemory.of({}), 4, 0.1)
    (seen,) = hot.after_moves({}, ["a:8080"], NOW_S + 180).seen([broker("a")])
    assert seen.excess_s == 0.0


def test_new_cold_broker_is_filled_at_once_and_a_known_one_later() -> None:
    (new,) = observe(LevelMemory.of({}), 0, cold=True).seen([broker("a")])
    assert new.cold_since_s == NOW_S - CALM_S
    known = observe(LevelMemory.of({}), 0)
    (cooled,) = observe(observe(known, 60, cold=True), 120, cold=True).seen([broker("a")])
    assert cooled.cold_since_s == NOW_S + 60
    (warm,) = observe(observe(known, 60, cold=True), 120).seen([broker("a")])
    assert warm.cold_since_s is None


def test_rest_doubles_with_each_comeback() -> None:
    a = [broker("a")]
    memory = observe(LevelMemory.of({}), 0)
    assert not memory.resting(a, NOW_S).any()
    for life, calms in ((2, 1), (3, 2), (4, 4), (5, 4)):
        a = [broker("a", life)]
        assert memory.resting(a, NOW_S + 600 * life).all(), "before its first observation"
        memory = observe(memory, 600 * life, life=life)
        (seen,) = memory.seen(a)
        assert seen.rests_until_s - seen.at_s == calms * CALM_S
        assert memory.resting(a, seen.rests_until_s - 1).all()
        assert not memory.resting(a, seen.rests_until_s).any()
    for minute in range(50, 140, 30):
        memory = observe(memory, 60 * minute, life=5)
    assert not memory.resting([broker("a", 6)], NOW_S + 60 * 200).any(), "forgotten by then"
    (seen,) = observe(memory, 60 * 141, life=6).seen(a)
    assert seen.comebacks == 1, "an hour after its rest the count starts again"
    assert not observe(memory, 60 * 200, life=6).resting([broker("a", 6)], NOW_S + 60 * 200).any()
    assert not LevelMemory.of({}).resting(a, NOW_S).any()


# Past moves


def test_moves_of_the_last_hour_count_against_the_budget() -> None:
    assert (budget({}).share, budget({}, in_need=True).share) == (0.1, 0.5)
    assert budget({0: 0.45}).share == pytest.approx(0.05)
    assert budget({0: 0.45, 60: 0.2}).share == 0.0
    assert budget({0: 0.45}, after_s=3600).share == 0.1


def test_budget_is_the_tightest_limit_with_the_end_of_its_hour() -> None:
    assert budget({0: 0.3}) == Budget(0.1)
    cycle, hour = "max_load_moved_per_cycle_percentage", "max_load_moved_per_hour_percentage"
    assert budget({0: 0.3}, in_need=True) == Budget(0.5, setting=cycle)
    assert budget({0: 0.3}, max_load_moved_per_cycle_percentage=5) == Budget(0.05, setting=cycle)
    assert budget({0: 0.3}, max_load_moved_per_cycle_percentage=10) == Budget(0.1)
    spent = {0: 0.3, 600: 0.2}
    assert budget(spent, after_s=900) == Budget(0.0, 2700.0)
    assert budget(spent, after_s=900, in_need=True).share == 0.5
    assert budget(spent, after_s=900, max_load_moved_per_hour_percentage=40) == Budget(0.0, 2700.0, hour)
    assert budget(spent, after_s=900, max_load_moved_per_hour_percentage=50, in_need=True) == Budget(0.0, 2700.0, hour)
    assert budget({0: 0.0, 60: 0.2}, max_load_moved_per_hour_percentage=0).seconds_left == 3660
    assert budget({}, max_load_moved_per_hour_percentage=0).seconds_left == 3600


@given(moved=st.dictionaries(st.integers(0, 7200), st.floats(0, 1), max_size=5), after_s=st.floats(0, 7200))
def test_need_never_lowers_the_budget(moved: dict[int, float], after_s: float) -> None:
    calm, in_need = budget(moved, after_s=after_s), budget(moved, in_need=True, after_s=after_s)
    assert 0 <= calm.share <= in_need.share <= 0.5


def test_destinations_are_kept_while_bundles_rest_up_to_a_maximum() -> None:
    memory = observe(LevelMemory.of({}), 0).after_moves({"b:8080": ["x", "y"]}, [], NOW_S)
    assert memory.put == {"b:8080": {"x": NOW_S, "y": NOW_S}}
    more = memory.after_moves({"b:8080": ["x"], "c:8080": ["z"]}, [], NOW_S + 60)
    assert more.put == {"b:8080": {"x": NOW_S + 60, "y": NOW_S}, "c:8080": {"z": NOW_S + 60}}
    assert observe(more, REST_S).put == {"b:8080": {"x": NOW_S + 60}, "c:8080": {"z": NOW_S + 60}}
    assert observe(more, REST_S + 60).put == {}
    many = more.after_moves({"d:8080": [str(i) for i in range(MOST_RESTING)]}, [], NOW_S + 120)
    assert many.put.keys() == {"d:8080"}


# Searches without result


def test_failed_search_is_repeated_after_1_2_and_4_rounds() -> None:
    memory, skipped = observe(LevelMemory.of({}), 0, 0.1), []
    for number in range(4):
        memory = memory.after_failures(["a:8080"])
        rounds = 0
        while (memory := observe(memory, 60 * number, 0.1)).brokers["a:8080"].skips:
            rounds += 1
        skipped.append(rounds)
    assert skipped == [1, 2, 4, 4]
    calm = observe(memory.after_failures(["a:8080"]), 20_000, -0.1).brokers["a:8080"]
    assert (calm.failures, calm.skips) == (0, 0)


# Noise


def test_noise_is_learned_slowly_and_only_from_reports() -> None:
    memory = observe_each_minute(LevelMemory.of({}), 300, -0.1, off=0.3)
    (noise,) = memory.noise(["a:8080"])
    assert noise == pytest.approx(0.3, abs=0.01)
    assert observe(memory, 18_000).brokers["a:8080"].noise == noise
    assert observe(LevelMemory.of({}), 0, off=9.0).brokers["a:8080"].noise < 0.05
    assert LevelMemory.of({}).noise(["a:8080"]).tolist() == [0.0]


def with_sigma(sigma: list[float], **hosts: list[float]) -> Snapshot:
    """Brokers with bundles by size in MiB/s, with these deviations."""
    reports = {
        host: report({bundle(i, f"tenant/{host}"): throughput(size) for i, size in enumerate(sizes)}, cpu=sum(sizes))
        for host, sizes in hosts.items()
    }
    found = snapshot(reports, taken_at_s=NOW_S)
    means = replace(found.bundles.time_means, sigma=np.array(sigma, dtype=np.float32))
    return replace(found, bundles=replace(found.bundles, time_means=means), _derived={})


def noise_by_bundles(found: Snapshot) -> FloatArray:
    return noise_of_bundles(found, LevelLoads.of(found, SETTINGS))


def test_many_independent_bundles_make_less_noise() -> None:
    found = with_sigma([0.2] * 5, a=[5.0] * 4, b=[20.0])
    assert noise_by_bundles(found) == pytest.approx([0.05, 0.1]), "half of their deviation, as means vary less"


def test_broker_of_unknown_noise_gets_the_mean() -> None:
    assert noise_by_bundles(with_sigma([0.2, 0.0], a=[5.0], b=[5.0])) == pytest.approx([0.1, 0.05])
    assert noise_by_bundles(snapshot({})).tolist() == []


def test_deviation_compares_a_fresh_report_with_bundle_means() -> None:
    known = {bundle(1): averages(throughput(20.0)), bundle(2): averages(throughput(20.0))}
    reports = {
        host: report({bundle(i): throughput(25.0)}, last_update_ms=round(NOW_S * 1000))
        for i, host in ((1, "a"), (2, "b"))
    }
    found = snapshot({**reports, "c": report()}, known, taken_at_s=NOW_S)
    assert find_deviation(found) == pytest.approx([0.25, 0.25, math.nan], nan_ok=True)
    later = replace(found, taken_at_s=NOW_S + 75, _derived={})
    assert np.isnan(find_deviation(later)).all()
    moving = replace(found, brokers=replace(found.brokers, settled=np.array([True, False, True])), _derived={})
    assert find_deviation(moving) == pytest.approx([0.25, math.nan, math.nan], nan_ok=True), "a report from before"


# Properties


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[float, float, bool, int, float]]:
    """Observations: seconds since the last one, excess, is it cold, incarnation, and deviation."""
    step = st.tuples(
        st.sampled_from([0.0, 60.0, 600.0, 4000.0]),
        st.sampled_from([-0.5, -0.01, 0.0, 0.01, 0.5, 1e6]),
        st.booleans(),
        st.integers(1, 3),
        st.sampled_from([math.nan, 0.0, 0.1, 50.0]),
    )
    return draw(st.lists(step, max_size=20))


@given(history=histories())
def test_rules_hold_for_any_sequence_of_observations(history: list[tuple[float, float, bool, int, float]]) -> None:
    memory, now_s = LevelMemory.of({}), NOW_S
    for passed_s, excess, cold, life, off in history:
        now_s += passed_s
        before = memory.brokers.get("a:8080")
        memory = memory.after_pass([BrokerObservation(broker("a", life), excess, cold, off)], now_s)
        (seen,) = memory.seen([broker("a", life)])
        is_known = before is not None and now_s - before.at_s < 3600
        assert seen.excess_s >= 0
        assert (seen.hot_since_s is None) == (seen.excess_s == 0 and excess <= 0)
        assert (seen.cold_since_s is None) == (not cold)
        assert (seen.rests_until_s > now_s) <= is_known, "a new broker does not rest"
        assert seen.rests_until_s <= now_s + 4 * CALM_S
        if is_known and before is not None and before.incarnation != life:
            assert seen.rests_until_s > now_s
            assert seen.excess_s == 0
        memory = memory.after_moves({"a:8080": [str(now_s)]}, [], now_s)
        assert all(now_s - at_s < REST_S for at_s in memory.put["a:8080"].values())
        assert LevelMemory.of(json.loads(json.dumps(memory.as_state()))).as_state() == memory.as_state()


def test_memory_without_excess_is_read() -> None:
    (seen,) = LevelMemory.of({"brokers": {"a:8080": [1, 0.0, NOW_S, NOW_S, 0.02]}}).seen([broker("a")])
    assert (seen.excess_s, seen.cold_since_s, seen.comebacks, seen.noise, seen.came_s) == (0.0, None, 0, 0.02, 0.0)
