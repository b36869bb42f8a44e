"""Pulsar's choices for the Overload and the Threshold shedder (rows D and E), with their default settings."""

from __future__ import annotations

import sys

import pytest
from support.builders import MIB, averages, bundle, report, snapshot, throughput

from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import BrokerReport, BundleAverages
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.strategies.shedding.overload_shedder import OverloadShedder
from loadmanager.core.strategies.shedding.shedding_strategy import Shed, SheddingStrategy
from loadmanager.core.strategies.shedding.threshold_shedder import ThresholdShedder

OVERLOAD = OverloadShedder.of(PlannerSettings())
THRESHOLD = ThresholdShedder.of(PlannerSettings())
LOWER_BOUNDARY = ThresholdShedder.of(PlannerSettings(lower_boundary_shedding_enabled=True))


def shed(strategy: SheddingStrategy, given: Snapshot) -> dict[str, list[str]]:
    return picked(given, strategy.find_bundles_for_unloading(given, {}))


def picked(given: Snapshot, result: Shed) -> dict[str, list[str]]:
    brokers, names = given.brokers.ids, given.bundles.names
    return {brokers[pick.broker]: [names[row] for row in pick.bundles] for pick in result.bundles}


def at(usage: float, bundles: dict[str, tuple[float, float, float, float]]) -> BrokerReport:
    """A broker with this bandwidth of 1000 in and out."""
    return report(bundles, bandwidth_in=(usage, 1000), bandwidth_out=(usage, 1000))


def ten_bundles_and_an_idle_broker() -> Snapshot:
    hot = {bundle(i): throughput(i) for i in range(1, 11)}
    return snapshot(
        {"broker-1": at(999, hot), "broker-2": at(0, {bundle(i + 100): throughput(i) for i in range(1, 11)})}
    )


@pytest.mark.parametrize("strategy", [OVERLOAD, THRESHOLD])
def test_d1_and_e1_without_brokers_nothing_is_shed(strategy: SheddingStrategy) -> None:
    assert shed(strategy, snapshot({})) == {}


@pytest.mark.parametrize("strategy", [OVERLOAD, THRESHOLD])
@pytest.mark.parametrize(
    ("usage", "bundles"),
    [(999, {}), (500, {bundle(1): (0, 0, 1000, 1000)}), (999, {bundle(1): (0, 0, 1000, 1000)})],
)
def test_d2_to_d4_and_e2_a_lone_broker_without_a_spare_bundle_sheds_nothing(
    strategy: SheddingStrategy, usage: float, bundles: dict[str, tuple[float, float, float, float]]
) -> None:
    assert shed(strategy, snapshot({"broker-1": at(usage, bundles)})) == {}


def test_d5_an_overloaded_broker_sheds_its_largest_bundles_until_the_need_is_met() -> None:
    assert shed(OVERLOAD, ten_bundles_and_an_idle_broker()) == {"broker-1:8080": [bundle(10), bundle(9)]}


def hot_broker_with_one_known_bundle() -> Snapshot:
    hot = report(
        [bundle(2)],
        cpu=140,
        direct_memory=10,
        bandwidth_in=(500, 1000),
        bandwidth_out=(500, 1000),
        load=(0, 0, sys.float_info.max, 0),
        num_bundles=2,
    )
    cool = report(cpu=10, bandwidth_in=(500, 1000), bandwidth_out=(500, 1000), num_bundles=2)
    known: dict[str, BundleAverages] = {bundle(2): averages((0, 0, 1000, 1000))}
    return snapshot({"broker-2": hot, "broker-3": cool}, known)


def test_e3_a_broker_far_above_the_average_sheds_the_bundle_that_is_known() -> None:
    assert shed(THRESHOLD, hot_broker_with_one_known_bundle()) == {"broker-2:8080": [bundle(2)]}


def test_e4_the_averages_of_brokers_that_are_gone_are_forgotten() -> None:
    state = THRESHOLD.find_bundles_for_unloading(hot_broker_with_one_known_bundle(), {}).state
    assert state["usage"].keys() == {"broker-2:8080", "broker-3:8080"}
    assert THRESHOLD.find_bundles_for_unloading(snapshot({}), state).state == {"usage": {}}


def test_e5_a_broker_above_the_average_sheds_down_to_five_points_below_the_threshold() -> None:
    assert shed(THRESHOLD, ten_bundles_and_an_idle_broker()) == {"broker-1:8080": [bundle(10), bundle(9), bundle(8)]}


def eleven_brokers(last_usage: float, mib_per_s: float, last_mib_per_s: float) -> Snapshot:
    reports = {}
    for number in range(11):
        usage, total = (last_usage, last_mib_per_s) if number == 10 else (80, mib_per_s)
        reports[f"broker-{number:02d}"] = report(
            {bundle(100 * number + i): throughput(total / 10) for i in range(10)},
            bandwidth_in=usage,
            bandwidth_out=usage,
            load=(0, 0, total * MIB, total * MIB),
        )
    return snapshot(reports)


def test_e7_one_idle_broker_is_not_reason_enough_without_the_lower_boundary_mode() -> None:
    assert shed(THRESHOLD, eleven_brokers(0, 100, 0)) == {}


def test_e7_derived_with_the_lower_boundary_mode_the_most_used_broker_sheds_to_an_idle_one() -> None:
    given = eleven_brokers(0, 101, 0)
    assert shed(LOWER_BOUNDARY, given) == {"broker-00:8080": [bundle(0)]}


@pytest.mark.parametrize("strategy", [THRESHOLD, LOWER_BOUNDARY])
def test_e9_equally_used_brokers_shed_nothing(strategy: SheddingStrategy) -> None:
    assert shed(strategy, eleven_brokers(80, 80, 80)) == {}
