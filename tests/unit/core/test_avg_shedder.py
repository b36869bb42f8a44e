from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from support.builders import MIB, Load, broker, bundle, owned, releasing, report, rng, snapshot, throughput

from loadmanager.core.constraints.projection import Projection
from loadmanager.core.domain.plan import Plan, Unload, Verdict
from loadmanager.core.domain.reasons import PlacementReason, SheddingReason
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.model.snapshot import Snapshot, build_snapshot
from loadmanager.core.planning.planner import State, choose_destination, plan_assignments, plan_shedding
from loadmanager.core.strategies.placement.avg_placement import AvgPlacement, AvgPlacementReason
from loadmanager.core.strategies.shedding.avg_shedder import AvgShedder, AvgSheddingReason

AVG = PlannerSettings(shedding_strategy="AvgShedder", placement_strategy="AvgShedder", max_unload_percentage=0.5)
AT_ONCE = replace(AVG, avg_shedder_hit_count_low_threshold=1)


def hot(
    first: int = 0, bundles: int = 4, messages_per_s: float = 1000, namespace: str = "tenant/ns"
) -> dict[str, Load]:
    return {bundle(first + i, namespace): (messages_per_s, 0, 0, 0) for i in range(bundles)}


def verdicts(given: Snapshot, settings: PlannerSettings, state: State | None = None) -> dict[str, Verdict]:
    shed = AvgShedder(settings).find_bundles_for_unloading(given, state or {})
    return {each.subject: each for each in shed.verdicts}


def moves(plan: Plan) -> dict[str, str]:
    steps = [step for step in plan.steps if isinstance(step, Unload)]
    return {step.bundle: step.destination.broker for step in steps if step.destination}


def test_verdicts_of_pairs_below_the_threshold_or_the_hit_count() -> None:
    given = snapshot({"a": report(hot(), cpu=60), "b": report(cpu=50), "c": report(cpu=20), "d": report(cpu=52)})
    found = verdicts(given, AVG)
    assert found["d:8080"].sentence() == (
        "No move because usage 52 % is 2 points above that of b:8080, less than loadBalancerAvgShedderLowThreshold 15"
    )
    assert found["b:8080"].sentence() == "No move because its partner d:8080 is more used, 52 %"
    assert found["a:8080"].sentence() == (
        "No move because usage 60 % is 40 points above that of c:8080, but only for 1 rounds"
        " (loadBalancerAvgShedderHitCountLowThreshold 8), and far above it for 1"
        " (loadBalancerAvgShedderHitCountHighThreshold 2)"
    )


def test_verdict_of_shedding_to_the_partner() -> None:
    found = verdicts(snapshot({"a": report(hot(8), cpu=60), "b": report(cpu=20)}), AT_ONCE)["a:8080"]
    assert (found.verdict, found.acted) == (AvgSheddingReason.BROKER_ABOVE_PARTNER, True)
    assert found.sentence() == (
        "Shed 2 of 4 bundles to b:8080 because usage 60 % has been above its 20 % for 1 rounds"
        " (loadBalancerAvgShedderHitCountLowThreshold 1), and far above it for 1"
        " (loadBalancerAvgShedderHitCountHighThreshold 2): need 2000 messages/s"
    )


def test_throughput_decides_when_the_message_need_is_below_the_minimum() -> None:
    loads = {bundle(i): throughput(1) for i in range(4)}
    found = verdicts(snapshot({"a": report(loads, cpu=60), "b": report(cpu=20)}), AT_ONCE)["a:8080"]
    assert (found.why["need_mib_per_s"], found.why["bundles_taken"]) == (4, 2)
    assert "need 4 MiB/s" in found.sentence()


def test_q27_a_need_of_exactly_the_minimum_is_not_enough() -> None:
    given = snapshot({"a": report(hot(bundles=2), cpu=60), "b": report(cpu=20)})
    found = verdicts(given, AT_ONCE)["a:8080"]
    assert found.sentence() == (
        "No move because need 1000 messages/s is not above minUnloadMessage 1000 and"
        " need 0 MiB/s is not above minUnloadMessageThroughput 1048576 bytes/s"
    )
    assert verdicts(given, replace(AT_ONCE, min_unload_message=999))["a:8080"].acted
    loads: dict[str, Load] = {bundle(i): (0, 0, MIB, 0) for i in range(2)}
    given = snapshot({"a": report(loads, cpu=60), "b": report(cpu=20)})
    assert verdicts(given, AT_ONCE)["a:8080"].verdict is SheddingReason.NEED_BELOW_MINIMUM


def test_bundles_without_load_or_above_the_need_stay() -> None:
    loads: dict[str, Load] = {bundle(0): (9000, 0, 0, 0), bundle(1): (0, 0, 0, 0)}
    given = snapshot({"a": report(loads, cpu=60), "b": report(cpu=20)})
    assert verdicts(given, AT_ONCE)["a:8080"].sentence() == (
        "No move because none of 2 bundles that may move has load and fits into need 4500 messages/s"
    )


def test_verdicts_without_movable_bundles() -> None:
    loads = hot()
    recent = snapshot({"a": report(loads, cpu=60), "b": report(cpu=20)}, recently_unloaded=list(loads))
    found = verdicts(recent, AT_ONCE)["a:8080"]
    assert (found.verdict, found.why["recently_unloaded"]) == (SheddingReason.NO_ELIGIBLE_BUNDLE, 4)
    none = snapshot({"a": report(cpu=60, load=(9e4, 0, 0, 0)), "b": report(cpu=20)})
    assert verdicts(none, AT_ONCE)["a:8080"].verdict is SheddingReason.NO_BUNDLES


def test_only_bundle_moves_if_it_fits_as_in_pulsar() -> None:
    given = snapshot({"a": report(hot(bundles=1), cpu=60, load=(9e3, 0, 0, 0)), "b": report(cpu=20)})
    assert verdicts(given, AT_ONCE)["a:8080"].why["bundles_taken"] == 1


def test_hits_are_reset_even_if_no_bundle_could_move_as_in_pulsar() -> None:
    given = snapshot({"a": report(hot(bundles=1), cpu=60), "b": report(cpu=20)})
    shed = AvgShedder(AVG).find_bundles_for_unloading(given, {"hits": {"a:8080": [1, 7, 1]}})
    assert not shed.bundles
    assert shed.state["hits"] == {}


def test_hits_survive_a_change_of_partner() -> None:
    a = report(hot(), cpu=60)
    strategy = AvgShedder(AVG)
    state = strategy.find_bundles_for_unloading(snapshot({"a": a, "b": report(cpu=20)}), {}).state
    shed = strategy.find_bundles_for_unloading(snapshot({"a": a, "c": report(cpu=20)}), state)
    assert [(pick.broker, pick.destination) for pick in shed.bundles] == [(0, 1)]


def test_high_hits_are_consecutive_and_low_hits_cumulative() -> None:
    strategy = AvgShedder(AVG)
    state: State = {}
    for cpu in (60, 59, 60):
        state = strategy.find_bundles_for_unloading(
            snapshot({"a": report(hot(), cpu=cpu), "b": report(cpu=20)}), state
        ).state
    assert state["hits"] == {"a:8080": [1, 3, 1], "b:8080": [1, 3, 1]}


def test_re_registered_broker_starts_without_hits() -> None:
    strategy = AvgShedder(AVG)

    def given(incarnation: int) -> Snapshot:
        reports = {broker("a", incarnation): report(hot(), cpu=60), broker("b", incarnation): report(cpu=20)}
        return build_snapshot(0.0, reports, {})

    state = json.loads(json.dumps(strategy.find_bundles_for_unloading(given(1), {}).state))
    assert not strategy.find_bundles_for_unloading(given(2), state).bundles
    assert strategy.find_bundles_for_unloading(given(1), state).bundles


def test_broker_with_a_release_in_progress_sheds_nothing_and_keeps_its_hits() -> None:
    a, b = broker("a"), broker("b")
    loads = hot()
    model = ClusterModel()
    model.set_namespace("tenant/ns", list(loads), [releasing(a, b), *[owned(a)] * 3])
    model.apply_report(a, report(loads, cpu=60))
    model.apply_report(b, report(cpu=20))
    shed = AvgShedder(AT_ONCE).find_bundles_for_unloading(model.snapshot(0, 0), {})
    assert [each.verdict for each in shed.verdicts] == [
        SheddingReason.AWAITING_REPORT,
        AvgSheddingReason.LESS_USED_PARTNER,
    ]
    assert shed.state["hits"]["a:8080"] == [1, 1, 1]


def test_middle_broker_is_its_own_partner_and_sheds_nothing() -> None:
    settings = replace(AT_ONCE, avg_shedder_low_threshold=0, min_unload_message=0, min_unload_message_throughput=0)
    given = snapshot({"a": report(cpu=10), "b": report(hot(), cpu=20), "c": report(cpu=30)})
    assert verdicts(given, settings)["b:8080"].verdict is SheddingReason.NEED_BELOW_MINIMUM
    assert AvgShedder(AVG).find_bundles_for_unloading(snapshot({}), {}).verdicts == ()


def test_verdict_of_the_middle_broker_names_no_partner() -> None:
    assert verdicts(snapshot({"a": report(hot(), cpu=90)}), AVG)["a:8080"].sentence() == (
        "No move because usage 90 % is in the middle, with no other broker to pair with"
    )


def test_difference_just_below_the_threshold_is_shown_with_all_digits() -> None:
    found = verdicts(snapshot({"a": report(hot(), cpu=45), "b": report(cpu=30)}), AVG)["a:8080"]
    assert found.sentence() == (
        "No move because usage 45 % is 14.9999981 points above that of b:8080, less than"
        " loadBalancerAvgShedderLowThreshold 15"
    )


def test_planned_destination_overrides_even_distribution() -> None:
    given = snapshot({"a": report(hot(bundles=8), cpu=80), "b": report(cpu=20), "c": report(cpu=40)})
    plan, state = plan_shedding(given, AT_ONCE, {}, rng())
    assert moves(plan) == {bundle(i): "b:8080" for i in range(4)}
    reasons = {each.verdict for each in plan.verdicts if "/" in each.subject}
    assert reasons == {PlacementReason.DECIDED_BEFORE}
    assert state["AvgShedder"]["planned"] == moves(plan)


def test_ineligible_planned_destination_is_replaced() -> None:
    given = snapshot(
        {"a": report(hot(bundles=8), cpu=80), "b": report(cpu=20, persistent_enabled=False), "c": report(cpu=40)}
    )
    plan, state = plan_shedding(given, AT_ONCE, {}, rng())
    assert set(moves(plan).values()) == {"c:8080"}
    assert state["AvgShedder"]["placed"] == moves(plan)


def test_overloaded_planned_destination_is_replaced_by_a_healthy_broker() -> None:
    loads = hot(bundles=8)
    settings = replace(AT_ONCE, broker_overloaded_threshold_percentage=50)
    state: State = {"AvgShedder": {"planned": {bundle(0): "b:8080"}}}
    given = snapshot({"a": report(loads, cpu=90), "b": report(cpu=51), "c": report(cpu=50)})
    chosen, verdict, after = choose_destination(given, bundle(0), broker("a").broker, settings, state, rng())
    assert (chosen, verdict.verdict) == (broker("c"), AvgPlacementReason.DRAWN_BY_CHANCE)
    assert after["AvgShedder"]["placed"] == {bundle(0): "c:8080"}
    assert verdict.sentence() == (
        "Placed on c:8080 at random, one of 1 of 2 candidates not above"
        " loadBalancerBrokerOverloadedThresholdPercentage 50 %"
    )


def test_overloaded_planned_destination_is_kept_without_a_healthy_broker() -> None:
    settings = replace(AT_ONCE, broker_overloaded_threshold_percentage=50)
    given = snapshot({"a": report(hot(bundles=8), cpu=99), "b": report(cpu=52), "c": report(cpu=60)})
    plan, _ = plan_shedding(given, settings, {}, rng())
    assert set(moves(plan).values()) == {"b:8080"}


def test_destination_is_fixed_with_another_placement_strategy() -> None:
    settings = replace(AT_ONCE, placement_strategy="LeastLongTermMessageRate")
    given = snapshot({"a": report(hot(bundles=8), cpu=99), "b": report(cpu=52), "c": report(cpu=90)})
    plan, state = plan_shedding(given, settings, {}, rng())
    assert set(moves(plan).values()) == {"b:8080"}
    assert "placed" not in state["AvgShedder"]


def test_a_round_forgets_earlier_destinations() -> None:
    state: State = {"planned": {bundle(1): "b:8080"}, "placed": {bundle(2): "a:8080"}}
    shed = AvgShedder(AVG).find_bundles_for_unloading(snapshot({"a": report(), "b": report()}), state)
    assert shed.state == {"hits": {}, "planned": {}}


def test_planned_destination_that_is_gone_is_drawn_anew() -> None:
    state: State = {"AvgShedder": {"planned": {bundle(0): "gone:8080"}}}
    plan, state = plan_assignments(snapshot({"a": report()}), [bundle(0)], AVG, state, rng())
    assert plan.verdicts[0].verdict is AvgPlacementReason.DRAWN_BY_CHANCE
    assert state["AvgShedder"]["placed"] == {bundle(0): "a:8080"}


def test_bundles_excluded_from_shedding_are_placed_round_robin_and_not_stored() -> None:
    settings = replace(
        AVG, shedding_excluded_namespaces=frozenset({"tenant/ns"}), distribute_bundles_evenly_enabled=False
    )
    given = snapshot({"a": report(), "b": report()})
    state: State = {}
    chosen = []
    for _ in range(3):
        plan, state = plan_assignments(given, [bundle(0)], settings, state, rng())
        chosen += [step.destination for step in plan.steps]
    assert chosen == [broker("a"), broker("b"), broker("a")]
    assert "AvgShedder" not in state


def test_placement_without_brokers_stores_no_state() -> None:
    plan, state = plan_assignments(snapshot({}), [bundle(0)], AVG, {}, rng())
    assert (plan.steps, state) == ((), {})


def test_the_last_thousand_drawn_brokers_are_remembered() -> None:
    strategy = AvgPlacement(AVG)
    state: State = {}
    for i in range(1001):
        state = strategy.remember(bundle(i), broker("a").broker, state)
    state = strategy.remember(bundle(1), broker("b").broker, state)
    assert len(state["placed"]) == 1000
    assert strategy.find_destination(bundle(0), state) is None
    assert strategy.find_destination(bundle(1), state) == "b:8080"


@pytest.mark.parametrize(("usages", "drawn_from"), [((85, 85.1, 20), {0, 2}), ((90, 86, 99), {0, 1, 2})])
def test_overloaded_broker_is_drawn_only_when_all_are_overloaded(
    usages: tuple[float, ...], drawn_from: set[int]
) -> None:
    given = snapshot({f"b-{i}": report(cpu=cpu) for i, cpu in enumerate(usages)})
    strategy = AvgPlacement(PlannerSettings())
    placement = strategy.place(np.arange(3), None, Projection(given), {}, rng())
    assert set(placement.drawn_from.tolist()) == drawn_from
    assert placement.broker in drawn_from
    assert strategy.place(np.arange(0), None, Projection(given), {}, rng()).broker is None
