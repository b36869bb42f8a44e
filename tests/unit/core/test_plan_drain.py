from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import broker, bundle, owned, releasing, report, snapshot, throughput
from support.random_clusters import Build, SomeCluster, clusters

from loadmanager.core.domain.controls import Controls, DrainOrder
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import FREE
from loadmanager.core.domain.plan import Plan, Unload
from loadmanager.core.domain.policies import IsolationPolicy, Policies
from loadmanager.core.domain.reasons import OwnershipReason, PlacementReason
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.model.fleet_load import carried_load
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning import planner

SETTINGS = PlannerSettings()
A, B, C = (broker(name).broker for name in "abc")


def cluster(controls: Controls | None = None) -> Snapshot:
    """Broker a has bundles of 1, 3 and 2 MiB/s, b has one, c none."""
    loads = dict(zip(map(bundle, range(3)), map(throughput, (1.0, 3.0, 2.0)), strict=True))
    taken = snapshot({"a": report(loads), "b": report({bundle(3): throughput(1.0)}), "c": report()})
    return taken if controls is None else replace(taken, controls=controls)


def drain(taken: Snapshot, *brokers: BrokerId, most: int | None = None, leave: Collection[str] = ()) -> Plan:
    return planner.plan_drain(taken, brokers, SETTINGS, {}, np.random.default_rng(1), most, leave)[0]


def moves(plan: Plan) -> list[tuple[str, str | None]]:
    return [(step.bundle, step.destination.broker if step.destination else None) for step in plan.steps]


def test_heaviest_bundle_moves_first_and_choices_accumulate() -> None:
    plan = drain(cluster(), A)
    assert [name for name, _ in moves(plan)] == [bundle(1), bundle(2), bundle(0)]
    assert sorted(destination for _, destination in moves(plan) if destination) == [B, C, C]
    assert {step.reason for step in plan.steps} == {OwnershipReason.DRAIN}
    assert all(verdict.acted for verdict in plan.verdicts)


def test_drain_plan_respects_its_limit_and_exclusions() -> None:
    assert [name for name, _ in moves(drain(cluster(), A, most=1))] == [bundle(1)]
    assert [name for name, _ in moves(drain(cluster(), A, most=1, leave={bundle(1)}))] == [bundle(2)]


def test_brokers_drained_together_exchange_nothing() -> None:
    for taken in (cluster(), cluster(Controls(draining={A: DrainOrder(0.0), B: DrainOrder(0.0)}))):
        assert {destination for _, destination in moves(drain(taken, A, B))} == {C}
        assert len(drain(taken, A, B).steps) == 4


def test_bundle_without_another_eligible_broker_stays_with_a_verdict() -> None:
    plan = drain(cluster(Controls(excluded=frozenset({B, C}))), A)
    assert plan.steps == ()
    assert {verdict.verdict for verdict in plan.verdicts} == {PlacementReason.NO_OTHER_BROKER}


def test_drain_of_an_unknown_broker_is_empty() -> None:
    assert drain(cluster(), broker("z").broker).steps == ()


@given(clusters(fewest_brokers=2), st.integers(0, 5))
def test_drain_moves_every_movable_bundle_heaviest_first(described: SomeCluster, which: int) -> None:
    taken = Build().snapshot(described)
    drained = taken.brokers.ids[which % len(taken.brokers)]
    plan = drain(taken, drained)
    row = taken.brokers.find_row(drained)
    its = {taken.bundles.names[i] for i in np.flatnonzero(taken.bundles.assigned == row).tolist()}
    stay = {verdict.subject for verdict in plan.verdicts if not verdict.acted}
    assert {step.bundle for step in plan.steps} | stay == its
    assert all(isinstance(step, Unload) and step.destination != step.source for step in plan.steps)
    load = carried_load(taken)
    loads = [load[taken.bundles.find_row(step.bundle) or 0] for step in plan.steps]
    assert loads == sorted(loads, reverse=True)


def test_pinned_bundle_at_another_broker_is_sent_home() -> None:
    pinned = {bundle(0): C, bundle(3): B, bundle(1): broker("z").broker, bundle(77): C}
    plan = planner.plan_pins(cluster(Controls(pinned=pinned)), SETTINGS)
    assert moves(plan) == [(bundle(0), C)]
    assert {step.reason for step in plan.steps} == {PlacementReason.PINNED_TO_BROKER}
    (verdict,) = plan.verdicts
    assert (verdict.subject, verdict.sentence()) == (
        bundle(1),
        "No move because z:8080 may not own it: it is not registered, or has not reported",
    )
    assert planner.plan_pins(cluster(Controls(pinned=pinned)), SETTINGS, leave=set(pinned)).steps == ()


def test_free_pinned_bundle_is_left_to_its_next_lookup() -> None:
    model = ClusterModel()
    model.set_namespace("tenant/ns", [bundle(0)], [FREE])
    model.apply_report(broker("a"), report())
    model.set_controls(Controls(pinned={bundle(0): A}))
    plan = planner.plan_pins(model.snapshot(0.0, 0.0), SETTINGS)
    assert (plan.steps, plan.verdicts) == ((), ())


@pytest.mark.parametrize(
    ("controls", "rule"),
    [
        (Controls(draining={B: DrainOrder(0.0)}), "broker draining"),
        (Controls(excluded=frozenset({B})), "broker excluded"),
    ],
)
def test_controls_apply_to_moves_of_operators(controls: Controls, rule: str) -> None:
    assert planner.find_move_refusal(cluster(), bundle(0), B, SETTINGS) is None
    refusal = planner.find_move_refusal(cluster(controls), bundle(0), B, SETTINGS)
    assert refusal is not None
    assert refusal.sentence() == f"No move because b:8080 may not own it: {rule}"


def test_isolation_policy_applies_to_moves_of_operators() -> None:
    policy = IsolationPolicy("p", ("tenant/.*",), ("c",), (), 0)
    taken = replace(cluster(), policies=Policies(isolation=(policy,)))
    refusal = planner.find_move_refusal(taken, bundle(0), B, SETTINGS)
    assert refusal is not None
    assert refusal.why == {"broker": B, "rule": "isolation policy"}
    assert planner.find_move_refusal(taken, bundle(0), C, SETTINGS) is None


def test_bundles_of_a_registration_include_releasing_ones() -> None:
    model, first, second = ClusterModel(), broker("a"), broker("b")
    names = [bundle(i) for i in range(4)]
    model.set_namespace("tenant/ns", names, [owned(first), releasing(first, second), owned(second), FREE])
    assert (len(model.bundles_of(first)), len(model.bundles_of(second))) == (2, 1)
    assert len(model.bundles_of(broker("a", incarnation=9))) == 0
    model.remove_namespace("tenant/ns")
    assert len(model.bundles_of(first)) == 0


def test_snapshot_is_current_until_operator_config_changes() -> None:
    model = ClusterModel()
    before = model.snapshot(0.0, 0.0)
    assert model.has_config_of(before)
    model.set_controls(Controls(excluded=frozenset({A})))
    assert not model.has_config_of(before)
    middle = model.snapshot(0.0, 0.0)
    model.set_policies(Policies())
    assert not model.has_config_of(middle)
