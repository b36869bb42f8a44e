from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from support.builders import Load, broker, bundle, owned, releasing, report, snapshot
from support.invariants import plan_violations

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.plan import Plan, Unload
from loadmanager.core.domain.policies import IsolationPolicy, Policies
from loadmanager.core.domain.reasons import Reason, SheddingReason
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.model.extensible_load import Published, PublishedLoad, TopBundles
from loadmanager.core.model.load import BrokerReport
from loadmanager.core.model.snapshot import Snapshot, build_snapshot
from loadmanager.core.planning.planner import plan_shedding
from loadmanager.core.strategies.shedding.shedding_strategy import Shed, State
from loadmanager.core.strategies.shedding.transfer_shedder import (
    LoadStatistics,
    TransferReason,
    TransferShedder,
)

SETTINGS = PlannerSettings(shedding_strategy="TransferShedder", shedding_condition_hit_count_threshold=0)
A, B, C = broker("a"), broker("b"), broker("c")


def out(bytes_per_s: float) -> Load:
    return (0, 0, 0, bytes_per_s)


def hot(bundles: int = 3, first: int = 0, cpu: float = 100) -> BrokerReport:
    return report({bundle(first + i): out(1e6) for i in range(bundles)}, cpu=cpu)


def shed(given: Snapshot, settings: PlannerSettings = SETTINGS, state: State | None = None) -> Shed:
    return TransferShedder(settings).find_bundles_for_unloading(given, state or {})


def plan(given: Snapshot, settings: PlannerSettings = SETTINGS) -> Plan:
    found = plan_shedding(given, settings, {}, np.random.default_rng(1))[0]
    assert plan_violations(found, given) == []
    return found


def said(result: Shed) -> dict[str, tuple[Reason, str]]:
    return {verdict.subject: (verdict.verdict, verdict.sentence()) for verdict in result.verdicts}


def published(
    loads: dict[str, PublishedLoad], reports: dict[str, BrokerReport], last_unloaded_s: dict[str, float] | None = None
) -> Snapshot:
    return build_snapshot(
        10_000.0,
        {broker(name): given for name, given in reports.items()},
        {},
        published=Published(
            {broker(name).broker: load for name, load in loads.items()},
            last_unloaded_s={broker(name).broker: at_s for name, at_s in (last_unloaded_s or {}).items()},
        ),
    )


def ema(usage: float, throughput: float = 3e6, age_s: float = 0.0) -> PublishedLoad:
    return PublishedLoad(usage, throughput, 0.0, throughput, round((10_000 - age_s) * 1000))


def test_half_of_the_difference_moves_to_the_least_used_broker() -> None:
    given = snapshot({"a": hot(4), "b": report(cpu=0), "c": report(cpu=50)})
    result = shed(given)
    assert [(pick.broker, len(pick.bundles), pick.destination, pick.is_final) for pick in result.bundles] == [
        (0, 2, 1, True)
    ]
    assert said(result)["a:8080"] == (
        TransferReason.OVERLOADED,
        (
            "Shed 2 of its 4 busiest bundles to b:8080 (0 %) because of usage 100 % at average 50 %"
            " and deviation 40.82 % (loadBalancerBrokerLoadTargetStd 0.25): want 1.91 MiB/s"
        ),
    )


def test_underloaded_broker_gets_load_despite_a_small_deviation() -> None:
    result = shed(snapshot({name: hot(3, 10 * i, 20) for i, name in enumerate("abcd")} | {"e": report(cpu=2)}))
    assert result.bundles[0].reason is TransferReason.UNDERLOADED
    assert result.bundles[0].destination == 4
    assert result.metrics["Success/Underloaded"] == sum(len(pick.bundles) for pick in result.bundles)
    assert "because that one has little of average 16.4 %" in said(result)["d:8080"][1]


def test_broker_with_little_throughput_counts_as_underloaded() -> None:
    loads = {"a": ema(0.5, 3e6), "b": ema(0.49, 3e6 * 0.125 - 1)}
    assert shed(published(loads, {"a": hot(), "b": hot(1, 5)})).metrics["Skip/NoBundles"] == 1
    loads["b"] = ema(0.49, 3e6 * 0.125)
    assert shed(published(loads, {"a": hot(), "b": hot(1, 5)})).state["hits"] == 0


def test_overloaded_broker_sheds_despite_a_small_deviation() -> None:
    reports = {name: hot(5, 10 * i, 60) for i, name in enumerate("abcdefghi")} | {"z": hot(20, 100, 90)}
    settings = replace(SETTINGS, broker_load_target_std=0.26)
    result = shed(snapshot(reports), settings)
    assert result.bundles[0].reason is TransferReason.OVERLOADED
    assert result.metrics["std"] < 0.26
    assert shed(snapshot(reports), replace(settings, broker_overloaded_threshold_percentage=90)).bundles == ()
    assert shed(snapshot(reports), replace(settings, broker_load_target_std=0.28)).bundles == ()


def test_target_deviation_above_1_marks_no_broker_underloaded() -> None:
    assert (
        shed(snapshot({"a": hot(), "b": report(cpu=0)}), replace(SETTINGS, broker_load_target_std=5.0)).state["hits"]
        == 0
    )


def test_shedding_waits_for_the_hit_count_with_a_verdict() -> None:
    settings = replace(SETTINGS, shedding_condition_hit_count_threshold=1)
    given = snapshot({"a": hot(), "b": report(cpu=0)})
    waiting = shed(given, settings)
    assert said(waiting)["cluster"] == (
        TransferReason.HIT_COUNT,
        (
            "No move because usages have been apart for 1 rounds, not more than"
            " loadBalancerSheddingConditionHitCountThreshold 1: deviation 50 % (loadBalancerBrokerLoadTargetStd 0.25)"
        ),
    )
    close = shed(snapshot({"a": hot(cpu=50), "b": hot(3, 5, 50)}), settings, waiting.state)
    assert said(close)["cluster"][1] == (
        "No move because usages are close: deviation 0 % is not above loadBalancerBrokerLoadTargetStd 0.25,"
        " from 50 % to 50 %"
    )
    assert (close.state["hits"], close.metrics["Skip/HitCount"]) == (0, 2)
    assert shed(given, settings, waiting.state).bundles


def test_hits_are_kept_when_no_bundle_can_move() -> None:
    result = shed(snapshot({"a": hot(1), "b": report(cpu=0)}))
    assert (result.state["hits"], result.metrics["Skip/NoBundles"]) == (1, 1)
    assert said(result)["a:8080"][0] is SheddingReason.SINGLE_BUNDLE
    assert said(result)["cluster"][1] == "No move because no bundle of the 1 most used brokers may move and fits"


def test_limit_of_no_brokers_sheds_nothing() -> None:
    result = shed(
        snapshot({"a": hot(), "b": report(cpu=0)}), replace(SETTINGS, max_number_of_broker_shedding_per_cycle=0)
    )
    assert result.metrics["Skip/HitCount"] == 1
    assert said(result)["cluster"][1] == "No move because no broker may be relieved: deviation 50 %"


def test_recent_unload_without_a_report_stops_the_round() -> None:
    loads, reports = {"a": ema(1.0), "b": ema(0.0)}, {"a": hot(), "b": report()}
    result = shed(published(loads, reports, {"b": 10_000 - 179.999}), state={"hits": 2})
    assert (result.bundles, result.state["hits"]) == ((), 2)
    assert said(result)["cluster"][1] == (
        "No move because b:8080 has not reported yet loadBalanceSheddingDelayInSeconds 180 s after a bundle was taken"
        " from it"
    )
    assert shed(published(loads, reports, {"b": 10_000 - 180})).bundles


def test_broker_with_an_outdated_report_is_skipped() -> None:
    loads = {"a": ema(1.0), "b": ema(0.0, age_s=1800.001), "c": ema(0.2), "d": ema(9.0, age_s=2000)}
    result = shed(published(loads, {"a": hot(), "b": report(), "c": report(), "d": hot(3, 50)}))
    assert [(pick.broker, pick.destination) for pick in result.bundles] == [(0, 2)]
    assert result.metrics["avg"] == 0.6
    assert said(result)["d:8080"] == (
        TransferReason.OUT_DATED_DATA,
        "No move because its report is older than loadBalancerBrokerLoadDataTTLInSeconds 1800 s",
    )
    loads = {name: load._replace(updated_at_ms=0) for name, load in loads.items()}
    old = shed(published(loads, dict.fromkeys("abcd", report())), state=json.loads(json.dumps(result.state)))
    assert old.metrics["Skip/OutDatedData"] == 1
    assert old.metrics["avg"] == 0.6
    assert "all reports of 4 brokers are older" in said(old)["cluster"][1]


def test_missing_load_data_stops_the_round() -> None:
    result = shed(published({"a": ema(1.0)}, {"a": hot(), "b": report()}))
    assert said(result)["cluster"] == (
        TransferReason.NO_LOAD_DATA,
        "No move because b:8080 has not reported its load",
    )
    assert said(shed(published({}, {"a": hot()})))["cluster"][1] == (
        "No move because none of 1 brokers has reported its load"
    )


def test_no_decision_without_brokers() -> None:
    assert shed(snapshot({})).metrics == {"Skip/NoBrokers": 1}


def test_most_used_broker_without_bundles_is_skipped() -> None:
    result = shed(snapshot({"a": report(cpu=100), "b": hot(cpu=90), "c": report(cpu=0)}))
    assert [(pick.broker, pick.destination) for pick in result.bundles] == [(1, 2)]
    assert said(result)["a:8080"][0] is SheddingReason.NO_BUNDLES
    nothing = shed(snapshot({"a": report(cpu=100), "b": report(cpu=0)}))
    assert "some of the 1 brokers tried have no usable report of bundles" in said(nothing)["cluster"][1]


def test_bundles_that_do_not_fit_have_a_verdict() -> None:
    result = shed(
        snapshot({"a": report({bundle(1): out(5e6), bundle(2): out(1e6)}, cpu=90), "b": report(cpu=80)} | idle(3))
    )
    assert said(result)["a:8080"][0] is TransferReason.OVERLOADED
    large = {bundle(1): out(5e6), bundle(2): out(6e6)}
    result = shed(
        snapshot({"a": report(large, cpu=90), **{f"b{i}": report(cpu=60) for i in range(2)}, "c": report(cpu=10)})
    )
    assert said(result)["a:8080"] == (
        SheddingReason.NO_BUNDLE_FITS,
        "No move because none of its 2 busiest bundles may go to c:8080 and fits into want 4.66 MiB/s",
    )


def idle(brokers: int) -> dict[str, BrokerReport]:
    return {f"idle{i}": report(cpu=0) for i in range(brokers)}


def test_listed_bundle_without_throughput_is_skipped() -> None:
    lists = {A.broker: {bundle(i): np.array([0.0, 0.0, 0.0, size]) for i, size in enumerate((0.0, 1e6, 1e6))}}
    given = build_snapshot(
        0.0, {A: report(cpu=100, load=(0, 0, 0, 2e6)), B: report(cpu=0)}, {}, published=Published(None, lists)
    )
    assert [given.bundles.names[row] for pick in shed(given).bundles for row in pick.bundles] == [bundle(1)]


def test_idle_broker_hands_nothing_over() -> None:
    loads = {"a": ema(0.0, 1.0), "b": ema(0.0, 3e6)}
    result = shed(published(loads, {"a": report(), "b": hot()}))
    assert said(result)["b:8080"][0] is SheddingReason.NO_BUNDLE_FITS


def test_disabled_transfers_leave_destinations_to_placement() -> None:
    given = snapshot({"a": hot(4), "b": report(cpu=0), "c": report(cpu=0)})
    settings = replace(SETTINGS, transfer_enabled=False)
    assert {(pick.destination, pick.is_final) for pick in shed(given, settings).bundles} == {(None, False)}
    assert len(plan(given, settings).steps) == len(shed(given, settings).bundles[0].bundles)
    both = snapshot({"a": report({bundle(i): out(2.4e6) for i in (1, 2)}, cpu=48), "b": hot_pair()})
    assert len(shed(both).bundles) == 2
    assert shed(both, settings).bundles == ()


def hot_pair() -> BrokerReport:
    return report({bundle(i): out(5e6) for i in (3, 4)}, cpu=100)


def test_exchange_is_one_plan_in_both_directions() -> None:
    given = snapshot({"a": report({bundle(i): out(2.4e6) for i in (1, 2)}, cpu=48), "b": hot_pair()})
    found = {(step.source, step.destination) for step in plan(given).steps if isinstance(step, Unload)}
    assert found == {(A, B), (B, A)}
    assert (
        next(verdict for verdict in plan(given).verdicts if verdict.subject == "b:8080").why["bundles_in_exchange"] == 1
    )


def test_excluded_namespace_takes_no_part_in_exchanges() -> None:
    less = {bundle(i, "tenant/kept"): out(2.4e6) for i in (1, 2)}
    lists = {
        broker_id: {name: np.array(load, dtype=np.float64) for name, load in loads.items()}
        for broker_id, loads in ((A.broker, less), (B.broker, {bundle(i): out(5e6) for i in (3, 4)}))
    }
    given = build_snapshot(0.0, {A: report(less, cpu=48), B: hot_pair()}, {}, published=Published(None, lists))
    assert {pick.broker for pick in shed(given).bundles} == {0, 1}
    excluded = replace(SETTINGS, shedding_excluded_namespaces=frozenset({"tenant/kept"}))
    assert shed(given, excluded).bundles == ()


def test_broker_with_a_release_in_progress_neither_sheds_nor_exchanges() -> None:
    model = ClusterModel()
    model.apply_report(A, report({bundle(1): out(2.4e6), bundle(2): out(2.4e6)}, cpu=48))
    model.apply_report(B, hot_pair())
    names = [bundle(i) for i in range(1, 5)]
    model.set_namespace("tenant/ns", names, [owned(A), releasing(A), owned(B), owned(B)])
    assert shed(model.snapshot(0, 0)).bundles == ()
    model.set_namespace("tenant/ns", names, [owned(A), owned(A), owned(B), releasing(B)])
    result = shed(model.snapshot(0, 0))
    assert said(result)["b:8080"][0] is SheddingReason.AWAITING_REPORT
    assert result.metrics["Skip/NoLoadData"] == 1


def test_bundles_with_policies_move_only_when_enabled_and_allowed() -> None:
    policies = Policies((IsolationPolicy("p", ("tenant/ns",), ("a", "c")),))
    reports = {A: hot(4), B: report(cpu=0), C: report(cpu=10)}
    given = build_snapshot(0.0, reports, {}, policies=policies)
    assert shed(given).metrics["Skip/NoLoadData"] == 1
    lists = {A.broker: {bundle(i): np.array([0.0, 0.0, 0.0, 1e6]) for i in range(4)}}
    listed = build_snapshot(0.0, reports, {}, policies=policies, published=Published(None, lists))
    assert said(shed(listed))["a:8080"][0] is SheddingReason.NO_BUNDLE_FITS
    enabled = replace(SETTINGS, shedding_bundles_with_policies_enabled=True)
    assert shed(given, enabled).metrics["Skip/NoLoadData"] == 1
    without_b = {A: hot(4), C: report(cpu=10)}
    allowed = build_snapshot(0.0, without_b, {}, policies=policies)
    assert [(pick.broker, pick.destination) for pick in shed(allowed, enabled).bundles] == [(0, 1)]


def test_broker_at_the_topic_limit_gets_nothing() -> None:
    reports = {"a": hot(4), "b": report(cpu=0, topics=50_000)}
    assert shed(snapshot(reports)).bundles == ()
    assert shed(snapshot({**reports, "b": report(cpu=0, topics=49_998)})).bundles
    assert len(shed(snapshot({**reports, "b": report(cpu=0, topics=49_999)})).bundles[0].bundles) == 1


def test_nan_deviation_of_equal_loads_survives_json() -> None:
    loads = {name: ema(0.03, 3e6) for name in "abcdef"}
    result = shed(published(loads, dict.fromkeys("abcdef", report())))
    assert math.isnan(result.metrics["std"])
    state = json.loads(json.dumps(result.state, allow_nan=False))
    again = shed(published(loads, dict.fromkeys("abcdef", report()), {"a": 9_999.0}), state=state)
    assert math.isnan(again.metrics["std"])
    assert again.metrics["avg"] == pytest.approx(0.03)


def test_bundle_listed_by_two_brokers_moves_once() -> None:
    lists = {each.broker: {bundle(i): np.array([0.0, 0.0, 0.0, 1e6]) for i in range(3)} for each in (A, B)}
    reports = {A: report(cpu=100, load=out(3e6)), B: report(cpu=90, load=out(3e6)), C: report(cpu=0)}
    reports[broker("d")] = report(cpu=1)
    given = build_snapshot(0.0, reports, {}, published=Published(None, lists))
    assert plan(given).steps
    assert {pick.broker for pick in shed(given).bundles} == {0}


def test_exchange_keeps_the_destination_below_the_source() -> None:
    lists = {
        A.broker: {bundle(1): np.array([0, 0, 0, 8.0]), bundle(2): np.array([0, 0, 0, 9.0])},
        B.broker: {bundle(3): np.array([0, 0, 0, 1.0]), bundle(4): np.array([0, 0, 0, 5.4])},
    }
    loads = {A.broker: ema(1.0, 10.0), B.broker: ema(0.0, 4.5)}
    given = build_snapshot(10_000.0, {A: report(), B: report()}, {}, published=Published(loads, lists))
    assert [pick.bundles for pick in shed(given).bundles] == [(0,), (3,)]


def test_listed_unknown_bundle_is_skipped() -> None:
    given = snapshot({"a": hot(3), "b": report(cpu=0)})
    lists = [(np.array([-1, 0, 1], np.int32), np.array([1e5, 1e6, 1e6])), (np.empty(0, np.int32), np.empty(0))]
    top = TopBundles(lists.__getitem__)
    assert [pick.bundles for pick in shed(replace(given, top_bundles=top)).bundles] == [(0,)]


def test_predicted_usage_is_not_negative() -> None:
    statistics = LoadStatistics.of(np.array([0.5, 0.0]))
    statistics.move(0.5, 0.0, 1.0)
    assert statistics.squares == 1.0


def test_source_of_an_unload_is_stored_for_the_cool_down() -> None:
    model = ClusterModel()
    model.apply_report(A, report(cpu=100, last_update_ms=1_000_000))
    model.apply_report(B, report(last_update_ms=1_000_000))
    model.mark_unloaded(bundle(1), 900.0, A.broker)
    model.restore_unloaded(
        {bundle(2): 1.0}, {A.broker: 1.0, B.broker: 2.0, BrokerId("gone:1"): 3.0, BrokerId("new:1"): 999.0}
    )
    assert np.array_equal(model.snapshot(1_000.0, 60.0).brokers.last_unloaded_s, [900.0, 2.0])
    assert model.unloads.from_brokers == {A.broker: 900.0, B.broker: 2.0, "new:1": 999.0}
    assert said(shed(model.snapshot(1_000.0, 60.0)))["cluster"][0] is TransferReason.COOL_DOWN
