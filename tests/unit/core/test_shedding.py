from __future__ import annotations

import json
from dataclasses import replace

from support.builders import MIB, broker, bundle, owned, releasing, report, snapshot, throughput

from loadmanager.core.domain.plan import Verdict
from loadmanager.core.domain.reasons import SheddingReason
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.model.snapshot import Snapshot, build_snapshot
from loadmanager.core.strategies.shedding.overload_shedder import OverloadReason, OverloadShedder
from loadmanager.core.strategies.shedding.shedding_strategy import (
    Shed,
    SheddingStrategy,
)
from loadmanager.core.strategies.shedding.threshold_shedder import ThresholdReason, ThresholdShedder

OVERLOAD = OverloadShedder(PlannerSettings())
THRESHOLD = ThresholdShedder(PlannerSettings())
HALVES = PlannerSettings(
    broker_threshold_shedder_percentage=25, bundle_unload_min_throughput_threshold=0, history_resource_percentage=0.5
)
LOWER_BOUNDARY = ThresholdShedder(PlannerSettings(lower_boundary_shedding_enabled=True))


def names(given: Snapshot, shed: Shed) -> list[str]:
    return [given.bundles.names[row] for pick in shed.bundles for row in pick.bundles]


def verdict(strategy: SheddingStrategy, given: Snapshot, broker_id: str) -> Verdict:
    verdicts = {each.subject: each for each in strategy.find_bundles_for_unloading(given, {}).verdicts}
    assert set(verdicts) == set(given.brokers.ids)
    return verdicts[f"{broker_id}:8080"]


def ten(first: int = 1) -> dict[str, tuple[float, float, float, float]]:
    return {bundle(first + i): throughput(1 + i) for i in range(10)}


def test_a_broker_exactly_at_the_overload_threshold_sheds() -> None:
    given = snapshot({"a": report(ten(), cpu=85), "b": report()})
    found = verdict(OVERLOAD, given, "a")
    assert (found.verdict, found.acted, found.why["bundles_taken"]) == (OverloadReason.BROKER_OVERLOADED, True, 1)
    assert found.sentence() == (
        "Shed 1 of 10 bundles because usage 85 % is not below loadBalancerBrokerOverloadedThresholdPercentage 85 %:"
        " need 5.5 MiB/s"
    )


def test_broker_below_the_overload_threshold_has_a_verdict() -> None:
    assert verdict(OVERLOAD, snapshot({"a": report(ten(), cpu=84)}), "a").verdict is SheddingReason.BELOW_THRESHOLD


def test_bundles_of_equal_throughput_are_shed_by_name() -> None:
    given = snapshot({"a": report({bundle(i): throughput(1) for i in (3, 1, 2, 4)}, cpu=125)})
    assert names(given, OVERLOAD.find_bundles_for_unloading(given, {})) == [bundle(1), bundle(2)]


def test_a_broker_without_throughput_sheds_one_bundle() -> None:
    given = snapshot({"a": report([bundle(1), bundle(2)], cpu=100)})
    assert names(given, OVERLOAD.find_bundles_for_unloading(given, {})) == [bundle(1)]


def test_recently_unloaded_bundles_and_system_namespaces_stay() -> None:
    system = bundle(1, "pulsar/broker-1:8080")
    recent = bundle(2)
    given = snapshot({"a": report([system, recent], cpu=100)}, recently_unloaded=[recent])
    found = verdict(OVERLOAD, given, "a")
    assert (found.verdict, found.acted, found.why["recently_unloaded"]) == (SheddingReason.NO_ELIGIBLE_BUNDLE, False, 1)
    assert "1 of them were unloaded recently" in found.sentence()


def test_broker_with_one_or_no_bundle_has_a_verdict() -> None:
    given = snapshot({"a": report(cpu=100), "b": report([bundle(1)], cpu=100)})
    assert verdict(OVERLOAD, given, "a").verdict is SheddingReason.NO_BUNDLES
    assert verdict(OVERLOAD, given, "b").verdict is SheddingReason.SINGLE_BUNDLE


def test_broker_is_not_shed_again_before_its_next_report() -> None:
    a, b = broker("a"), broker("b")
    model = ClusterModel()
    bundles = ten()
    model.set_namespace("tenant/ns", list(bundles), [owned(a)] * 10)
    model.apply_report(a, report(bundles, cpu=95))
    model.apply_report(b, report(cpu=10))
    assert verdict(OVERLOAD, model.snapshot(0, 0), "a").acted
    model.set_namespace("tenant/ns", list(bundles), [releasing(a, b), *[owned(a)] * 9])
    assert verdict(OVERLOAD, model.snapshot(0, 0), "a").verdict is SheddingReason.AWAITING_REPORT
    model.set_namespace("tenant/ns", list(bundles), [owned(b, 3), *[owned(a)] * 9])
    assert verdict(THRESHOLD, model.snapshot(0, 0), "a").verdict is SheddingReason.AWAITING_REPORT


def test_idle_cluster_has_a_verdict() -> None:
    shed = THRESHOLD.find_bundles_for_unloading(snapshot({"a": report(ten()), "b": report()}), {})
    assert [(each.subject, each.verdict) for each in shed.verdicts] == [("cluster", ThresholdReason.CLUSTER_IDLE)]
    assert shed.state["usage"] == {"a:8080": [1, 0.0], "b:8080": [1, 0.0]}


def test_need_below_the_minimum_has_a_verdict() -> None:
    small = {bundle(i): throughput(0.5) for i in range(10)}
    given = snapshot({"a": report(small, cpu=90), "b": report(cpu=10)})
    found = verdict(THRESHOLD, given, "a")
    assert found.verdict is SheddingReason.NEED_BELOW_MINIMUM
    assert found.sentence() == (
        "No move because need 3.5 MiB/s is below loadBalancerBundleUnloadMinThroughputThreshold 10 MiB/s"
    )
    assert verdict(THRESHOLD, given, "b").verdict is SheddingReason.BELOW_THRESHOLD


def test_moving_average_restarts_on_re_registration() -> None:
    def given(cpu: float, incarnation: int) -> Snapshot:
        reports = {broker("a", incarnation): report(cpu=cpu), broker("b"): report(cpu=50)}
        return build_snapshot(0.0, reports, {})

    state = THRESHOLD.find_bundles_for_unloading(given(50, 1), {}).state
    state = json.loads(json.dumps(THRESHOLD.find_bundles_for_unloading(given(90, 1), state).state))
    assert state["usage"] == {"a:8080": [1, 0.5 * 0.9 + (1 - 0.9) * 0.9], "b:8080": [1, 0.5 * 0.9 + (1 - 0.9) * 0.5]}
    state = THRESHOLD.find_bundles_for_unloading(given(90, 2), state).state
    assert state["usage"]["a:8080"] == [2, 0.9]


def brokers_with(idle: int, hot_mib_per_s: float, bundles: int = 10) -> Snapshot:
    """Nine brokers at about 50 % and `idle` ones at 0 %; the first carries `hot_mib_per_s` each way."""
    hot = {bundle(i): throughput(hot_mib_per_s / bundles) for i in range(bundles)}
    reports = {"hot": report(hot, cpu=51)}
    reports |= {f"warm-{i}": report([bundle(100 * i), bundle(100 * i + 1)], cpu=50) for i in range(1, 9)}
    return snapshot({**reports, **{f"idle-{i}": report(cpu=0) for i in range(idle)}})


def test_lower_boundary_mode_sheds_from_the_most_used_broker() -> None:
    given = brokers_with(idle=1, hot_mib_per_s=200)
    assert verdict(THRESHOLD, given, "hot").verdict is SheddingReason.BELOW_THRESHOLD
    found = verdict(LOWER_BOUNDARY, given, "hot")
    assert (found.verdict, found.acted) == (ThresholdReason.LOWER_BOUNDARY, True)
    assert found.why["need_mib_per_s"] == 200 * 2 * 0.1 * 0.5
    assert "is the highest and another broker's is below average" in found.sentence()


def test_lower_boundary_mode_needs_a_broker_far_below_the_average() -> None:
    given = brokers_with(idle=0, hot_mib_per_s=200)
    assert verdict(LOWER_BOUNDARY, given, "hot").verdict is SheddingReason.BELOW_THRESHOLD


def test_lower_boundary_mode_needs_a_broker_with_several_bundles() -> None:
    reports = {f"a-{i}": report([bundle(i)], cpu=50) for i in range(9)}
    given = snapshot({**reports, "idle": report(cpu=0)})
    assert not LOWER_BOUNDARY.find_bundles_for_unloading(given, {}).bundles


def test_lower_boundary_mode_respects_the_minimum() -> None:
    found = verdict(LOWER_BOUNDARY, brokers_with(idle=1, hot_mib_per_s=90), "hot")
    assert (found.verdict, found.why["need_mib_per_s"]) == (SheddingReason.NEED_BELOW_MINIMUM, 9)


def test_lower_boundary_mode_advances_the_averages_twice() -> None:
    state = {"usage": {"hot:8080": [1, 0.4]}}
    given = snapshot({"hot": report(cpu=50), "idle": report(cpu=50)})
    once = 0.4 * 0.9 + (1 - 0.9) * 0.5
    assert THRESHOLD.find_bundles_for_unloading(given, state).state["usage"]["hot:8080"][1] == once
    twice = once * 0.9 + (1 - 0.9) * 0.5
    assert LOWER_BOUNDARY.find_bundles_for_unloading(given, state).state["usage"]["hot:8080"][1] == twice


def test_need_counts_bytes_of_both_directions() -> None:
    given = snapshot({"a": report(ten(), cpu=100), "b": report(cpu=0)})
    found = verdict(OVERLOAD, given, "a")
    assert found.why["need_mib_per_s"] == 110 * MIB * (1.0 - 0.85 + 0.05) / MIB


def halves(a: float, b: float, *, lower_boundary: bool = False, minimum: float = 0.0) -> Verdict:
    """Verdict on `a` at these usages, exact in binary, with a threshold of 25 points."""
    changed = replace(
        HALVES, bundle_unload_min_throughput_threshold=minimum, lower_boundary_shedding_enabled=lower_boundary
    )
    return verdict(
        ThresholdShedder(changed), snapshot({"a": report(ten(), cpu=a), "b": report([bundle(50)], cpu=b)}), "a"
    )


def test_broker_exactly_at_average_plus_threshold_sheds() -> None:
    assert halves(100, 50).verdict is ThresholdReason.BROKER_ABOVE_AVERAGE
    assert halves(75, 50).verdict is SheddingReason.BELOW_THRESHOLD


def test_broker_exactly_at_average_minus_threshold_is_not_far_below() -> None:
    reports = {"a": report(ten(), cpu=75), "b": report(cpu=75), "c": report(cpu=75)}
    given = snapshot({**reports, "d": report(cpu=50), "e": report(cpu=100)})
    strategy = ThresholdShedder(replace(HALVES, lower_boundary_shedding_enabled=True))
    assert verdict(strategy, given, "d").why["average_percent"] == 75
    assert not strategy.find_bundles_for_unloading(given, {}).bundles


def test_need_of_exactly_the_minimum_is_shed() -> None:
    need = halves(100, 50).why["need_mib_per_s"]
    assert isinstance(need, float)
    assert halves(100, 50, minimum=need).acted
    assert halves(100, 50, minimum=need * 1.001).verdict is SheddingReason.NEED_BELOW_MINIMUM


def test_lower_boundary_mode_acts_only_when_nothing_was_shed() -> None:
    given = snapshot({"a": report(ten(), cpu=100), "b": report(cpu=0)})
    settings = replace(HALVES, broker_threshold_shedder_percentage=10, lower_boundary_shedding_enabled=True)
    strategy = ThresholdShedder(settings)
    assert verdict(strategy, given, "a").verdict is ThresholdReason.BROKER_ABOVE_AVERAGE


def test_lower_boundary_mode_skips_a_broker_with_a_single_bundle() -> None:
    reports = {f"warm-{i}": report([bundle(100 * i)], cpu=52) for i in range(1, 9)}
    hot = report({bundle(i): throughput(20) for i in range(10)}, cpu=51)
    given = snapshot({**reports, "hot": hot, "idle": report(cpu=0)})
    assert verdict(LOWER_BOUNDARY, given, "hot").verdict is ThresholdReason.LOWER_BOUNDARY


def test_nan_need_is_shed_as_in_pulsar() -> None:
    given = snapshot({"a": report(ten(), cpu=100, load=(0, 0, float("nan"), 0)), "b": report(cpu=0)})
    assert names(given, THRESHOLD.find_bundles_for_unloading(given, {})) == [bundle(10)]
