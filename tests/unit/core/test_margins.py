from __future__ import annotations

from dataclasses import replace

import numpy as np
from support.builders import MIB, report, snapshot

from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.strategies.shedding import shedding_strategy
from loadmanager.core.strategies.shedding.shedding_strategy import SheddingStrategy, State, least_points

DEFAULTS = PlannerSettings()


def strategy_of(name: str, settings: PlannerSettings = DEFAULTS) -> SheddingStrategy:
    return shedding_strategy(replace(settings, shedding_strategy=name))[1]


def test_no_margin_for_a_condition_that_usage_never_reaches() -> None:
    assert least_points(lambda points: points < 0) == {}
    assert least_points(lambda points: points >= 0) == {}


def test_only_broker_has_no_margin() -> None:
    alone = snapshot({"a": report(cpu=10)})
    for name in ("ThresholdShedder", "AvgShedder", "UniformLoadShedder"):
        assert strategy_of(name).find_margin(alone, {}, 0) == {}


def test_threshold_margin_includes_the_rise_of_the_average() -> None:
    given = snapshot({"a": report(cpu=20), "b": report(cpu=20)})
    margin = strategy_of("ThresholdShedder").find_margin(given, {}, 0)
    assert round(float(margin["usage_points"]), 2) == 20.0


def test_threshold_margin_starts_from_the_moving_average() -> None:
    given = snapshot({"a": report(cpu=50), "b": report(cpu=0)})
    state: State = {"usage": {"a:8080": [1, 0.0], "b:8080": [1, 0.0]}}
    margin = strategy_of("ThresholdShedder").find_margin(given, state, 0)
    assert round(float(margin["usage_points"]), 2) == 15.0


def test_avg_margin_has_fewer_rounds_for_a_larger_difference() -> None:
    apart: dict[str, Snapshot] = {
        "far": snapshot({"a": report(cpu=0), "b": report(cpu=80)}),
        "less far": snapshot({"a": report(cpu=0), "b": report(cpu=30)}),
    }
    strategy = strategy_of("AvgShedder")
    assert strategy.find_margin(apart["far"], {}, 1) == {"rounds": 2}
    assert strategy.find_margin(apart["less far"], {}, 1) == {"rounds": 8}
    assert strategy.find_margin(apart["less far"], {"hits": {"b:8080": [1, 5, 0]}}, 1) == {"rounds": 3}
    assert strategy.find_margin(apart["less far"], {"hits": {"b:8080": [1, 99, 0]}}, 1) == {"rounds": 1}


def test_the_transfer_shedder_has_no_margin_while_a_broker_cools_down() -> None:
    strategy = strategy_of("TransferShedder")
    given = snapshot({"a": report(cpu=10), "b": report(cpu=20)}, taken_at_s=1000.0)
    assert set(strategy.find_margin(given, {}, 0)) == {"usage_points", "rounds"}
    unloaded_s = np.array([999.0, np.nan])
    cooling = replace(given, brokers=replace(given.brokers, last_unloaded_s=unloaded_s))
    assert strategy.find_margin(cooling, {}, 0) == {}


def test_disabled_rule_of_the_uniform_shedder_has_no_margin() -> None:
    given = snapshot({"a": report(load=(0, 10, 0, 0)), "b": report(load=(0, 9, 0, MIB))})
    settings = replace(DEFAULTS, msg_rate_difference_shedder_threshold=0)
    assert set(strategy_of("UniformLoadShedder").find_margin(given, {}, 0)) == {"msg_rate_per_s", "mib_per_s"}
    assert set(strategy_of("UniformLoadShedder", settings).find_margin(given, {}, 0)) == {"mib_per_s"}


def test_simple_margin_ignores_other_brokers() -> None:
    strategy = strategy_of("SimpleLoadManagerImpl")
    given = snapshot({"a": report(cpu=30), "b": report(cpu=99)})
    assert round(float(strategy.find_margin(given, {}, 0)["usage_points"]), 3) == 55.0
    assert strategy.find_margin(given, {}, 1) == {}, "it is above it"


def test_transfer_margin_of_the_most_used_broker_is_rounds_only() -> None:
    given = snapshot({"a": report(cpu=0), "b": report(cpu=90)}, taken_at_s=1000.0)
    assert strategy_of("TransferShedder").find_margin(given, {}, 1) == {"rounds": 4}
