from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import MIB, Load, bundle, report, throughput

from loadmanager.core.diagnosis.stuck_diagnosis import find_stuck_causes
from loadmanager.core.domain.controls import Controls
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.resources import ResourceWeights
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import BrokerReport
from loadmanager.core.model.snapshot import Snapshot, build_snapshot
from loadmanager.core.strategies.shedding import SHEDDING_STRATEGIES, shedding_strategy

NOW_S = 1_000_000.0
KB = 1000 / MIB
"""MiB/s."""
FLOOR = "loadBalancerBundleUnloadMinThroughputThreshold"
THRESHOLD = "loadBalancerBrokerThresholdShedderPercentage"
SET = "loadmanager admin brokers update-dynamic-config --config"
USE_LEVEL = f"{SET} loadBalancerLoadSheddingStrategy --value Level"


def carrying(host: str, sizes: list[float], cpu: float) -> BrokerReport:
    """A broker by the sizes of its bundles in MiB/s, in and out."""
    loads: dict[str, Load] = {bundle(i, f"tenant/{host}"): throughput(size) for i, size in enumerate(sizes)}
    return report(loads, last_update_ms=round(NOW_S * 1000), cpu=cpu)


def fleet(*sizes: list[float], cpu: list[float], host: str = "host-{}") -> Snapshot:
    reports = {}
    for i, (of, used) in enumerate(zip(sizes, cpu, strict=True)):
        broker = BrokerId(f"{host.format(i)}:{8080 + i}")
        reports[Registration(broker, i + 1)] = carrying(str(i), of, used)
    return build_snapshot(NOW_S, reports, {})


def settings_of(strategy: str, **more: object) -> PlannerSettings:
    placement = strategy if strategy in ("Level", "AvgShedder") else "LeastLongTermMessageRate"
    return PlannerSettings(shedding_strategy=strategy, placement_strategy=placement, **more)  # type: ignore[arg-type]


def keys(snapshot: Snapshot, strategy: str = "ThresholdShedder", **settings: object) -> list[str]:
    return [each.key for each in find_stuck_causes(snapshot, settings_of(strategy, **settings))]


def sentence(snapshot: Snapshot, strategy: str = "ThresholdShedder", **settings: object) -> str:
    (found,) = find_stuck_causes(snapshot, settings_of(strategy, **settings))
    return found.sentence


SMALL = fleet([20 * KB] * 4, [20 * KB], [], cpu=[99, 99, 98], host="127.0.0.1")
"""100 kB/s on three brokers of one host that each report the whole of it."""
LARGE = fleet([8.0] * 10, [5.0] * 2, [], cpu=[80, 10, 2])


@pytest.mark.parametrize("strategy", SHEDDING_STRATEGIES)
def test_no_cause_when_bundles_can_move_or_load_is_even(strategy: str) -> None:
    assert keys(LARGE, strategy, broker_overloaded_threshold_percentage=85) == []
    even = fleet([20 * KB] * 2, [20 * KB] * 2, cpu=[99, 99], host="127.0.0.1")
    assert keys(even, strategy) == []
    assert keys(fleet([], [], cpu=[0, 0]), strategy) == []
    assert keys(fleet([8.0], cpu=[90]), strategy) == []
    assert keys(build_snapshot(NOW_S, {}, {}), strategy) == []


def test_small_fleet_on_one_host_has_two_causes() -> None:
    assert keys(SMALL) == ["hostUsageScope", FLOOR]
    alike, floor = (each.sentence for each in find_stuck_causes(SMALL, settings_of("ThresholdShedder")))
    assert alike.startswith("Nothing can move because 3 brokers share the host 127.0.0.1 and all are used 98.67 %")
    assert "LOADMANAGER_hostUsageScope=process loadmanager agent" in alike
    assert alike.endswith(USE_LEVEL)
    assert "carries 0.15 MiB/s" in floor
    assert floor.endswith(f"; lower {FLOOR}, or use Level: {USE_LEVEL}")


def test_shared_host_is_recognized_by_similar_usages() -> None:
    looked = fleet([20 * KB] * 4, [20 * KB], [], cpu=[60, 52, 53], host="127.0.0.1")
    assert keys(looked, bundle_unload_min_throughput_threshold=0) == ["hostUsageScope"]
    assert keys(looked, bundle_unload_min_throughput_threshold=0, broker_threshold_shedder_percentage=3) == []
    assert keys(looked, "TransferShedder") == []


def test_level_has_no_cause_on_a_shared_host_or_a_small_fleet() -> None:
    assert keys(SMALL, "Level") == []
    assert keys(fleet([20 * KB] * 4, [], [], cpu=[0.005, 0.0005, 0.0005]), "Level") == []


def test_missing_limits_are_a_cause() -> None:
    by_network: dict[str, Any] = {"resource_weights": ResourceWeights(0, 0, 1, 1)}
    assert keys(LARGE, **by_network) == ["loadBalancerOverrideBrokerNicSpeedGbps"]
    assert "(bandwidth_in, bandwidth_out)" in sentence(LARGE, **by_network)
    assert keys(LARGE, "Level", **by_network) == []
    assert "(none)" in sentence(LARGE, "OverloadShedder", resource_weights=ResourceWeights(0, 0, 0, 0))


def test_equal_usages_of_several_hosts_are_a_cause() -> None:
    found = sentence(fleet([8.0] * 4, [2.0], cpu=[50, 50]), "TransferShedder")
    assert found.startswith("Nothing can move because all 2 brokers are used 50 %")


@pytest.mark.parametrize(
    ("strategy", "key"),
    [
        ("ThresholdShedder", THRESHOLD),
        ("OverloadShedder", "loadBalancerBrokerOverloadedThresholdPercentage"),
        ("AvgShedder", "loadBalancerAvgShedderLowThreshold"),
    ],
)
def test_threshold_above_all_load_is_a_cause(strategy: str, key: str) -> None:
    found = find_stuck_causes(fleet([20.0] * 4, [20.0], [], cpu=[6, 2, 1]), settings_of(strategy))
    assert [each.key for each in found] == [key]
    assert "a broker with all load would be used 9 %" in found[0].sentence
    assert f"lower {key}" in found[0].sentence


@pytest.mark.parametrize("strategy", ["UniformLoadShedder", "AvgShedder"])
def test_difference_below_the_minimum_is_a_cause(strategy: str) -> None:
    small = fleet([20 * KB] * 4, [20 * KB], [], cpu=[90, 10, 2])
    assert keys(small, strategy) == ["minUnloadMessage"]
    assert keys(small, strategy, min_unload_message_throughput=1000) == []


@pytest.mark.parametrize(
    ("strategy", "field", "key"),
    [
        ("Level", "load_balancer_enabled", "loadBalancerEnabled"),
        ("ThresholdShedder", "shedding_enabled", "loadBalancerSheddingEnabled"),
        ("ThresholdShedder", "max_load_moved_per_hour_percentage", "loadBalancerMaxLoadMovedPerHourPercentage"),
        ("UniformLoadShedder", "max_unload_bundle_num_per_shedding", "maxUnloadBundleNumPerShedding"),
        ("TransferShedder", "max_number_of_broker_shedding_per_cycle", "loadBalancerMaxNumberOfBrokerSheddingPerCycle"),
    ],
)
def test_disabled_setting_is_a_cause_for_any_load(strategy: str, field: str, key: str) -> None:
    even = fleet([2.0, 2.0], [2.0, 2.0], cpu=[50, 50])
    off = type(getattr(PlannerSettings(), field))(0)
    found = sentence(even, strategy, **{field: off})
    assert keys(even, strategy, **{field: off}) == [key]
    fix = f"LOADMANAGER_{key}=true loadmanager serve" if key == "loadBalancerEnabled" else f"{SET} {key} --value "
    assert found.startswith(f"Nothing can move because {key} is {str(off).lower()}; {fix}")


def test_single_bundles_are_a_cause() -> None:
    alone = fleet([80.0], [5.0], cpu=[90, 10])
    for strategy in ("ThresholdShedder", "OverloadShedder", "UniformLoadShedder"):
        assert keys(alone, strategy) == ["defaultNumberOfNamespaceBundles"]
        assert "no broker has a second bundle" in sentence(alone, strategy)
        assert sentence(alone, strategy).endswith(
            "; split bundles: loadmanager admin namespaces split-bundle tenant/0 -bt LARGEST"
        )
    assert keys(fleet([80.0], [5.0, 5.0], cpu=[90, 10])) == []


def test_bundles_held_by_operators_are_a_cause() -> None:
    bundles = list(LARGE.bundles.names)
    pinned = Controls(pinned={bundles[0]: BrokerId("host-0:8080")}, frozen_bundles=dict.fromkeys(bundles[1:], "why"))
    assert keys(replace(LARGE, controls=pinned)) == ["controls"]
    assert keys(replace(LARGE, controls=pinned), "Level") == ["controls"]
    assert sentence(replace(LARGE, controls=pinned)).endswith(f"; loadmanager admin bundles unpin {bundles[0]}")
    frozen = Controls(frozen_bundles=dict.fromkeys(bundles, "why"))
    assert sentence(replace(LARGE, controls=frozen)).endswith(f"; loadmanager admin bundles unfreeze {bundles[0]}")
    but_one = Controls(frozen_bundles=dict.fromkeys(bundles[1:], "why"))
    assert keys(replace(LARGE, controls=but_one)) == []
    excluded: dict[str, Any] = {"shedding_excluded_namespaces": frozenset({"tenant/0", "tenant/1"})}
    assert keys(LARGE, "Level", **excluded) == ["loadBalancerSheddingExcludedNamespaces"]
    assert "all 12 bundles" in sentence(LARGE, **excluded)
    assert sentence(LARGE, **excluded).endswith(f"; {SET} loadBalancerSheddingExcludedNamespaces --value ''")


def test_custom_strategy_has_general_causes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHEDDING_STRATEGIES, "Mine", SHEDDING_STRATEGIES["OverloadShedder"])
    assert keys(SMALL, "Mine") == []
    assert keys(SMALL, "Mine", shedding_enabled=False) == ["loadBalancerSheddingEnabled"]


sizes = st.lists(st.sampled_from([0.0, 20 * KB, 0.5, 5.0, 50.0]), max_size=4)
brokers = st.lists(st.tuples(sizes, st.sampled_from([0.0, 0.5, 30.0, 31.0, 99.0])), min_size=2, max_size=4)


@given(brokers, st.sampled_from(sorted(SHEDDING_STRATEGIES)), st.sampled_from(["one", "host-{}"]))
def test_no_strategy_moves_bundles_when_a_cause_is_found(
    given_brokers: list[tuple[list[float], float]], strategy: str, host: str
) -> None:
    """Compares the diagnosis with what the strategy does."""
    snapshot = fleet(*(of for of, _ in given_brokers), cpu=[used for _, used in given_brokers], host=host)
    settings = settings_of(strategy)
    if find_stuck_causes(snapshot, settings):
        state: dict[str, Any] = {}
        for _ in range(3):
            found = shedding_strategy(settings)[1].find_bundles_for_unloading(snapshot, state)
            assert not found.bundles, strategy
            state = found.state
