from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import FloatArray
from loadmanager.lab.simulate.calibration import FleetCalibration, ReportSeries, calibrate, fitted_cost
from loadmanager.lab.simulate.run_rules import CostModel, WorldRules
from loadmanager.lab.whatif.range_figures import observe_range

BROKERS, ROUNDS = 4, 40
LIMITS = (800.0, 16_384.0, 8_192.0, 1e6, 1e6)
COST = CostModel(
    base=(10.0, 500.0, 0.0, 0.0, 0.0),
    coefficients=((0.01, 0.01, 0.0, 0.0, 0.0), (0.0,) * 5, (0.0,) * 5, (0, 0, 0.01, 0, 0), (0, 0, 0, 0.008, 0)),
)
SETTINGS = PlannerSettings()


def reported(interval_s: float = 20.0, change: float = 0.12, lag: int = 0, rounds: int = ROUNDS) -> ReportSeries:
    """Each broker reports so often, in turn, a load that has grown or shrunk by that part, and usage by `COST`."""
    number = np.arange(rounds * BROKERS)
    broker, turn = number % BROKERS, number // BROKERS
    usual: FloatArray = np.array([500.0, 700.0, 2e6, 3e6])
    times = np.where((turn + broker) % 3 == 0, 1 + change, 1.0) * (1 + broker)
    load = usual * times[:, np.newaxis]
    before = np.maximum(number - lag * BROKERS, broker)
    counts = np.full(len(number), 10)
    used = COST.usage(load[before], counts, np.ones(len(number)))
    limits = np.tile(np.array(LIMITS), (len(number), 1))
    return ReportSeries(turn * interval_s + broker * 0.1, broker, load, counts, counts, used, limits)


def test_report_interval_and_threshold_are_estimated_from_reports() -> None:
    calibration = calibrate(reported(), SETTINGS)
    assert calibration.stats_interval_s == pytest.approx(20.0)
    assert calibration.report_threshold_percent == 0.0  # every third report is the same as the one before
    assert not calibration.host_usage_lags
    assert calibration.reports_at_most_limit
    assert calibrate(reported(interval_s=0.1), SETTINGS).stats_interval_s == 1.0
    assert calibrate(reported(interval_s=300.0), SETTINGS).stats_interval_s == 60.0


def test_too_few_reports_give_the_default_calibration() -> None:
    assert calibrate(reported(rounds=2), SETTINGS) == replace(FleetCalibration(), cost=fitted_cost(reported(rounds=2)))
    assert fitted_cost(reported(rounds=2)) == CostModel()


def test_cost_is_fitted_from_reports_of_steady_loads() -> None:
    one = fitted_cost(reported(change=0.05))
    assert one.coefficients[3] == pytest.approx((0, 0, 0.01, 0, 0), rel=1e-2)
    assert one.coefficients[4] == pytest.approx((0, 0, 0, 0.008, 0), rel=1e-2)
    late = fitted_cost(reported(change=0.6, lag=1))
    assert late.coefficients[3][2] == pytest.approx(0.01, rel=0.05)
    assert one.coefficients[2] == CostModel().coefficients[2]


def test_usage_that_lags_behind_the_load_is_detected() -> None:
    assert calibrate(reported(change=0.6, lag=1), SETTINGS).host_usage_lags
    assert not calibrate(reported(change=0.6), SETTINGS).host_usage_lags


def test_usage_above_the_limit_is_detected() -> None:
    low = reported()
    assert not calibrate(replace(low, limits=low.used / 1.2), SETTINGS).reports_at_most_limit


def test_rounds_elections_and_unloads_are_included() -> None:
    calibration = calibrate(
        reported(), SETTINGS, unloads_s=[0.1, 9.0, 0.2], rounds_s=[-3.0, 4.0, 9.0], elections_s=[-1.0, 30.0]
    )
    assert (calibration.unload_s, calibration.first_round_s, calibration.elections_s) == (0.2, 4.0, (30.0,))
    rules = calibration.applied_to(WorldRules(shedding_interval_s=6.0))
    assert (rules.shedding_interval_s, rules.first_round_s, rules.unload_s) == (6.0, 4.0, 0.2)
    assert rules.stats_interval_s == pytest.approx(20.0)
    assert rules.report_check_s == 5.0
    assert calibration.lag_s == pytest.approx((20 + 5) / 2 + 0.5)


def test_absent_broker_does_not_count_in_the_imbalance() -> None:
    two = ReportSeries(
        at_s=np.array([0.0, 10.0]),
        broker=np.array([0, 1]),
        load=np.array([[0, 0, 3e6, 0], [0, 0, 1e6, 0.0]]),
        topics=np.array([1, 1]),
        bundles=np.array([1, 1]),
        used=np.array([[0, 0, 0, 3e4, 0], [0, 0, 0, 1e4, 0.0]]),
        limits=np.tile(np.array(LIMITS), (2, 1)),
    )
    both, _ = observe_range(two, SETTINGS, COST, 40.0, 10.0)
    assert both.tolist() == pytest.approx([1.5] * 4)
    turns = [(5.0, 1, True), (20.0, 0, False)]
    known, _ = observe_range(two, SETTINGS, COST, 40.0, 10.0, turns)
    assert known.tolist() == pytest.approx([1.0, 1.5, 1.0, 1.0])
