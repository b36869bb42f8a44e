from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.builders import MIB, broker, bundle, report, snapshot, throughput

from loadmanager.core.domain.controls import Controls, DrainOrder
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.plan import Plan, Verdict
from loadmanager.core.domain.policies import IsolationPolicy, Policies
from loadmanager.core.domain.reasons import FilterReason, PlacementReason, Reason, SheddingReason
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.model.extensible_load import BrokerLoad, TopBundles
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.movable_bundles import restrain
from loadmanager.core.planning.planner import choose_destination, plan_assignments, plan_shedding

OVERLOAD = PlannerSettings(shedding_strategy="OverloadShedder")
UNIFORM = PlannerSettings(shedding_strategy="UniformLoadShedder")
TRANSFER = PlannerSettings(
    shedding_strategy="TransferShedder", shedding_condition_hit_count_threshold=0, shedding_delay_in_seconds=0
)
PUBLISHING = PlannerSettings()
A, B, C = (BrokerId(f"{host}:8080") for host in "abc")


def under(controls: Controls, given: Snapshot) -> Snapshot:
    return replace(given, controls=controls)


def place(given: Snapshot, name: str = bundle(9), settings: PlannerSettings = OVERLOAD) -> Verdict:
    plan, _ = plan_assignments(given, [name], settings, {}, np.random.default_rng(0))
    (verdict,) = plan.verdicts
    assert bool(plan.steps) == verdict.acted
    return verdict


def shed(given: Snapshot, settings: PlannerSettings = OVERLOAD) -> Plan:
    return plan_shedding(given, settings, {}, np.random.default_rng(0))[0]


def moves(plan: Plan) -> dict[str, str]:
    return {step.bundle: step.destination.broker for step in plan.steps if step.destination}


def about(plan: Plan, subject: str) -> list[Verdict]:
    return [verdict for verdict in plan.verdicts if verdict.subject == subject]


def hot(**others: list[str]) -> Snapshot:
    """`a` must shed some of its three bundles; the first is the busiest."""
    carried = {bundle(0): throughput(60), bundle(1): throughput(20), bundle(2): throughput(20)}
    reports = {"a": report(carried, cpu=95)}
    return snapshot(reports | {name: report(owned, cpu=10) for name, owned in others.items()})


@pytest.mark.parametrize(
    ("controls", "reason"),
    [
        (Controls(draining={A: DrainOrder(0.0)}), FilterReason.BROKER_DRAINING),
        (Controls(excluded=frozenset({A})), FilterReason.BROKER_EXCLUDED),
    ],
)
def test_drained_or_excluded_broker_gets_no_bundle(controls: Controls, reason: Reason) -> None:
    verdict = place(under(controls, snapshot({"a": report(cpu=1), "b": report(cpu=50)})))
    assert (verdict.why["broker"], verdict.why[reason.value]) == (B, 1)


def test_no_placement_when_all_brokers_are_drained_or_excluded() -> None:
    controls = Controls(draining={A: DrainOrder(0.0)}, excluded=frozenset({B}))
    verdict = place(under(controls, snapshot({"a": report(), "b": report()})))
    assert (verdict.verdict, verdict.acted) == (PlacementReason.NO_BROKER_AVAILABLE, False)
    assert (verdict.why["broker_draining"], verdict.why["broker_excluded"]) == (1, 1)


def test_controls_of_unregistered_brokers_change_nothing() -> None:
    controls = Controls(draining={C: DrainOrder(0.0)}, excluded=frozenset({BrokerId("d:8080")}))
    assert place(under(controls, snapshot({"a": report()}))).why["broker"] == A
    given = under(controls, hot(b=[]))
    assert restrain(given) is given
    assert not about(shed(given), C)


def test_secondary_broker_replaces_a_drained_primary_one() -> None:
    policies = Policies((IsolationPolicy("mine", ("tenant/ns",), ("a",), ("b",)),))
    given = snapshot({"a": report([bundle(9)]), "b": report()}, policies=policies)
    destination, _, _ = choose_destination(
        under(Controls(draining={A: DrainOrder(0.0)}), given), bundle(9), A, OVERLOAD, {}, np.random.default_rng(0)
    )
    assert destination is not None
    assert destination.broker == B


def test_pinned_bundle_is_placed_on_its_busy_broker() -> None:
    controls = Controls(pinned={bundle(9): A})
    verdict = place(under(controls, snapshot({"a": report(cpu=99), "b": report(cpu=1)})))
    assert (verdict.verdict, verdict.why["broker"]) == (PlacementReason.PINNED_TO_BROKER, A)
    assert verdict.sentence() == "Placed on a:8080 because it is pinned there"


@pytest.mark.parametrize(
    ("controls", "why"),
    [
        (Controls(pinned={bundle(9): C}), "is not registered"),
        (Controls(pinned={bundle(9): A}, excluded=frozenset({A})), "may not be given it now"),
    ],
)
def test_bundle_with_an_unusable_pin_is_placed_elsewhere_with_the_reason(controls: Controls, why: str) -> None:
    verdict = place(under(controls, snapshot({"a": report(cpu=1), "b": report(cpu=1)})))
    pinned_to = controls.pinned[bundle(9)]
    assert verdict.acted
    assert verdict.verdict is not PlacementReason.PINNED_TO_BROKER
    assert verdict.sentence().endswith(f"; it is pinned to {pinned_to}, which {why}")


def test_pinned_bundle_moves_to_its_pin() -> None:
    given = under(Controls(pinned={bundle(0): C}), hot(b=[], c=[bundle(5)]))
    destination, verdict, _ = choose_destination(given, bundle(0), A, OVERLOAD, {}, np.random.default_rng(0))
    assert (destination, verdict.verdict) == (broker("c"), PlacementReason.PINNED_TO_BROKER)


def test_pinned_bundle_stays_with_a_verdict_and_another_is_shed() -> None:
    given = hot(b=[])
    assert bundle(0) in moves(shed(given))
    plan = shed(under(Controls(pinned={bundle(0): A}), given))
    assert bundle(0) not in moves(plan)
    assert moves(plan)
    (verdict,) = about(plan, bundle(0))
    assert (verdict.verdict, verdict.sentence()) == (
        SheddingReason.BUNDLE_PINNED,
        "No move because it is pinned to a:8080",
    )


def test_frozen_and_pinned_bundle_stays_with_the_reason_of_the_freeze() -> None:
    controls = Controls(pinned={bundle(0): A}, frozen_bundles={bundle(0): "load test"})
    (verdict,) = about(shed(under(controls, hot(b=[]))), bundle(0))
    assert (verdict.verdict, verdict.sentence()) == (
        SheddingReason.BUNDLE_FROZEN,
        "No move because it is frozen: load test",
    )


def test_broker_with_only_frozen_bundles_sheds_nothing_with_verdicts() -> None:
    controls = Controls(frozen_bundles={bundle(i): "stay" for i in range(3)})
    plan = shed(under(controls, hot(b=[])))
    assert plan.steps == ()
    assert about(plan, A)[0].verdict is SheddingReason.NO_ELIGIBLE_BUNDLE
    assert all(about(plan, bundle(i))[0].verdict is SheddingReason.BUNDLE_FROZEN for i in range(3))


def test_frozen_bundle_that_is_not_to_move_gets_no_verdict() -> None:
    controls = Controls(frozen_bundles={bundle(7): "stay", bundle(5): "gone", "t/x/0x00000000_0xffffffff": "gone"})
    plan = shed(under(controls, hot(b=[bundle(7)])))
    assert not [verdict for verdict in plan.verdicts if verdict.verdict is SheddingReason.BUNDLE_FROZEN]


def test_frozen_balancer_sheds_nothing_with_the_operators_reason() -> None:
    plan = shed(under(Controls(frozen="incident 7"), hot(b=[])))
    (verdict,) = plan.verdicts
    assert (verdict.subject, verdict.verdict) == ("cluster", SheddingReason.SHEDDING_FROZEN)
    assert verdict.sentence() == "No move because the balancer is frozen: incident 7"


def test_shedding_ignores_a_drained_broker_and_reports_since_when() -> None:
    given = replace(under(Controls(draining={B: DrainOrder(40.0)}), hot(b=[bundle(7)], c=[])), taken_at_s=100.0)
    plan = shed(given)
    assert set(moves(plan).values()) == {C}
    (verdict,) = about(plan, B)
    assert verdict.verdict is FilterReason.BROKER_DRAINING
    assert verdict.sentence() == "No move except by its drain, which has run for 60 s"


def test_hot_drained_broker_is_not_shed() -> None:
    plan = shed(under(Controls(draining={A: DrainOrder(0.0)}), hot(b=[], c=[])))
    assert plan.steps == ()


def test_drained_broker_does_not_count_as_imbalance() -> None:
    loaded = {bundle(i): throughput(10) for i in range(40)}
    others = {bundle(i): throughput(10) for i in range(40, 80)}
    given = snapshot({"a": report(loaded), "b": report(others), "c": report({bundle(80): throughput(1)})})
    assert moves(shed(given, UNIFORM))
    assert not moves(shed(under(Controls(draining={C: DrainOrder(0.0)}), given), UNIFORM))


def test_excluded_broker_sheds_but_gets_nothing() -> None:
    given = under(Controls(excluded=frozenset({A, B})), hot(b=[], c=[bundle(7)]))
    assert set(moves(shed(given)).values()) == {C}


def test_transfers_skip_drained_and_excluded_brokers() -> None:
    carried = {bundle(i): throughput(10) for i in range(10)}
    reports = {"a": report(carried, cpu=90), "b": report(cpu=1), "c": report(cpu=2), "d": report(cpu=3)}
    given = snapshot({name: replace(each, last_update_ms=1) for name, each in reports.items()})
    controls = Controls(draining={B: DrainOrder(0.0)}, excluded=frozenset({C}))
    assert set(moves(shed(given, TRANSFER)).values()) == {B}
    assert set(moves(shed(under(controls, given), TRANSFER)).values()) == {BrokerId("d:8080")}


def test_no_transfer_when_all_brokers_are_excluded() -> None:
    given = snapshot({"a": report({bundle(i): throughput(1) for i in range(4)}, cpu=90), "b": report(cpu=1)})
    assert shed(under(Controls(excluded=frozenset({A, B})), given), TRANSFER).steps == ()


def test_restrained_snapshot_drops_all_data_of_drained_brokers() -> None:
    model = ClusterModel()
    model.apply_report(broker("a"), report({bundle(0): throughput(1)}, cpu=10))
    model.apply_report(broker("b"), report({bundle(1): throughput(2)}, cpu=20))
    model.set_controls(Controls(draining={A: DrainOrder(0.0)}))
    whole = model.snapshot(1.0, 0.0)
    assert whole.controls.draining == {A: DrainOrder(0.0)}
    left = restrain(whole)
    assert left.brokers.ids == (B,)
    assert left.top_bundles is not None
    assert left.top_bundles.of_broker(0) == [(1, 4.0 * MIB)]
    assert left.broker_load is not None
    assert left.broker_load.weighted_max_ema.tolist() == pytest.approx([0.2])
    assert left.bundles.names == whole.bundles.names
    assert left.bundles.broker.max() <= 0


def test_selected_broker_columns_keep_their_order() -> None:
    top = TopBundles(lambda i: (np.array([i], dtype=np.int32), np.array([float(i)])))
    assert top.only(np.array([0, 2])).of_broker(1) == [(2, 2.0)]
    percent, load = np.zeros((3, 5), dtype=np.float32), np.arange(12.0).reshape(3, 4)
    published = BrokerLoad.of_first_reports(percent, load, 7, PUBLISHING)
    assert published.only(np.array([2])).msg_throughput_in.tolist() == [10.0]


def test_hold_ends_with_its_time_or_a_drain() -> None:
    controls = Controls(held_off={A: 100.0, B: 100.0}, draining={B: DrainOrder(1.0)})
    assert controls.holds(40.0) == {A: 60.0}
    assert controls.holds(100.0) == {}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, DrainOrder(2.0, 7)),
        ({A: DrainOrder(1.0, 7)}, DrainOrder(1.0, 7)),
        ({A: DrainOrder(1.0, 6)}, DrainOrder(2.0, 7)),
        ({A: DrainOrder(1.0, 0)}, DrainOrder(2.0, 7)),
    ],
)
def test_repeated_drain_order_is_the_same(before: dict[BrokerId, DrainOrder], after: DrainOrder) -> None:
    assert Controls(draining=before).with_drain(A, DrainOrder(2.0, 7)).draining == {A: after}
    assert Controls(draining={A: after}).with_drain(A, DrainOrder(3.0, 0)).draining == {A: after}, "it is away"


def test_only_the_named_drain_is_removed() -> None:
    controls = Controls(draining={A: DrainOrder(1.0), B: DrainOrder(2.0)}, frozen="night")
    others = Controls(draining={B: DrainOrder(2.0)}, frozen="night")
    assert controls.without_drain(A) == controls.without_drain(A, 1.0) == others
    assert controls.without_drain(A, 2.0) == controls == controls.without_drain(BrokerId("c:8080"))


def test_bundles_return_once_the_drain_of_their_broker_has_ended() -> None:
    controls = Controls(pinned={"t/2": B}).with_drain(A, DrainOrder(1.0, 7), ["t/2", "t/1"])
    assert controls.with_drain(A, DrainOrder(2.0, 7), ["t/3"]).returning[A].bundles == ("t/1", "t/2", "t/3")
    assert controls.homes == {"t/2": B}, "it is being drained"
    ended = controls.without_drain(A, 1.0)
    assert ended.homes == {"t/1": A, "t/2": B}, "a pin counts more"
    assert ended.without_returned(A, {"t/2"}).homes == {"t/1": A, "t/2": B}
    assert ended.without_returned(A, {"t/1", "t/2"}) == ended.without_drain(A) == Controls(pinned={"t/2": B})


def test_pinned_and_frozen_bundles_may_not_be_shed() -> None:
    controls = Controls(pinned={bundle(0): A}, frozen_bundles={bundle(1): "stay"}, draining={A: DrainOrder(0.0)})
    assert [controls.may_be_shed(bundle(i)) for i in range(3)] == [False, False, True]
    assert [controls.takes_bundles(each) for each in (A, B)] == [False, True]


def test_new_settings_apply_to_later_reports() -> None:
    model = ClusterModel()
    model.apply_report(broker("a"), report(cpu=10))
    model.set_settings(replace(PUBLISHING, history_resource_percentage=0.0))
    model.apply_report(broker("a"), report(cpu=50, last_update_ms=1))
    published = model.snapshot(0.001, 0.0).broker_load
    assert published is not None
    assert published.weighted_max_ema.tolist() == pytest.approx([0.5])


def test_excluded_broker_does_not_count_for_anti_affinity() -> None:
    policies = Policies((), {"tenant/ns": "g", "tenant/other": "g"})
    carried = {bundle(0): throughput(60), bundle(1): throughput(20)}
    reports = {
        "a": report(carried, cpu=95),
        "b": report({bundle(0, "tenant/other"): (0.0, 0.0, 1.0 * MIB, 0.0)}, cpu=10),
        "c": report(cpu=1),
    }
    given = snapshot(reports, policies=policies)
    assert set(moves(shed(given)).values()) == {C}
    plan = shed(under(Controls(excluded=frozenset({C})), given))
    assert plan.steps == ()
    assert about(plan, bundle(0))[0].verdict is SheddingReason.ANTI_AFFINITY_KEPT


def test_control_of_a_bundle_is_described() -> None:
    controls = Controls(pinned={"t/ns/1": A}, frozen_bundles={"t/ns/2": "slow disks"})
    assert controls.find_control("t/ns/1") == "pinned it to a:8080"
    assert controls.find_control("t/ns/2") == "froze it: slow disks"
    assert controls.find_control("t/ns/3") is None


def test_controls_of_a_deleted_namespace_are_removed() -> None:
    of_it, of_others = "t/ns/0x00000000_0xffffffff", "t/ns2/0x00000000_0xffffffff"
    before = Controls(
        draining={A: DrainOrder(1.0)},
        pinned=dict.fromkeys((of_it, of_others), A),
        frozen_bundles={of_it: "x", of_others: "y"},
    )
    after = Controls(draining={A: DrainOrder(1.0)}, pinned={of_others: A}, frozen_bundles={of_others: "y"})
    assert before.without_namespace("t/ns") == after
    assert after.without_namespace("t/ns") == after
