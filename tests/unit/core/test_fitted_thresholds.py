"""Fitted thresholds: unset thresholds scale with the load of the fleet, configured ones do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.builders import MIB, bundle, report

from loadmanager.config.dynamic_settings import settings_of
from loadmanager.core.diagnosis.stuck_diagnosis import find_stuck_causes
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.fleet_load import fit_thresholds
from loadmanager.core.model.snapshot import Snapshot, build_snapshot
from loadmanager.core.planning.planner import State, plan_shedding

NOW_S = 1_000_000.0
OPEN = settings_of({}, "defaults").planner_settings()
ROUNDS = 10


def fleet(*cpu: float, mib_per_s: float = 0.005) -> Snapshot:
    """Brokers by CPU usage in per cent, with 20 bundles of `mib_per_s` in and out each (4 bundles below 1 %)."""
    load = (128 * mib_per_s, 128 * mib_per_s, mib_per_s * MIB, mib_per_s * MIB)
    reports = {}
    for number, used in enumerate(cpu):
        loads = dict.fromkeys([bundle(each, f"tenant/ns-{number}") for each in range(20 if used >= 1 else 4)], load)
        broker = Registration(BrokerId(f"host-{number}:8080"), number + 1)
        reports[broker] = report(loads, last_update_ms=round(NOW_S * 1000), cpu=used)
    return build_snapshot(NOW_S, reports, {})


def moves(snapshot: Snapshot, settings: PlannerSettings) -> int:
    """Count the moves of several rounds over an unchanged fleet."""
    state: State = {}
    wanted = 0
    for number in range(ROUNDS):
        later = replace(snapshot, taken_at_s=NOW_S + 60.0 * number, _derived={})
        plan, state = plan_shedding(later, settings, state, np.random.default_rng(1))
        wanted += len(plan.steps)
    return wanted


@pytest.mark.parametrize(
    "strategy", ["ThresholdShedder", "UniformLoadShedder", "AvgShedder", "TransferShedder", "Level"]
)
def test_fitted_thresholds_fill_the_idle_broker_of_a_small_fleet(strategy: str) -> None:
    small = fleet(1.0, 1.0, 0.1)
    placement = strategy if strategy in ("AvgShedder", "Level") else "LeastLongTermMessageRate"
    settings = replace(OPEN, shedding_strategy=strategy, placement_strategy=placement)
    assert (moves(small, replace(settings, fitted=frozenset())) > 0) == (strategy == "Level")
    assert moves(small, settings) > 0
    assert find_stuck_causes(small, settings) == ()


def test_fully_used_fleet_has_pulsars_thresholds() -> None:
    assert fit_thresholds(OPEN, fleet(50.0, 50.0, mib_per_s=50.0)) == replace(OPEN, fitted=frozenset())


def test_threshold_halves_with_the_load() -> None:
    half = fit_thresholds(OPEN, fleet(25.0, 25.0, mib_per_s=2.5))
    assert half.broker_threshold_shedder_percentage == 5
    assert half.broker_load_target_std == 0.125
    assert half.bundle_unload_min_throughput_threshold == pytest.approx(5)
    assert half.min_unload_message_throughput == 1024 * 1024


def test_configured_threshold_is_not_fitted() -> None:
    name = "broker_threshold_shedder_percentage"
    one_set = replace(OPEN, fitted=OPEN.fitted - {name})
    fitted = fit_thresholds(one_set, fleet(1.0, 1.0))
    assert fitted.broker_threshold_shedder_percentage == 10
    assert fitted.avg_shedder_low_threshold == pytest.approx(0.3)


@pytest.mark.parametrize("idle", [fleet(), fleet(0.0, 0.0, mib_per_s=0.0)])
def test_a_fleet_without_load_keeps_thresholds_above_zero(idle: Snapshot) -> None:
    fitted = fit_thresholds(OPEN, idle)
    assert all(getattr(fitted, name) > 0 for name in OPEN.fitted)
