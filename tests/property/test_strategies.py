"""What must hold of every strategy, whatever the cluster: a new one in the dictionaries is tested by being there."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.random_clusters import Build, SomeCluster, broker_name, clusters, namespace_name

from loadmanager.core.invariants import plan_violations
from loadmanager.core.load import ResourceWeights
from loadmanager.core.names import BrokerId
from loadmanager.core.ownership import Registration
from loadmanager.core.placement import PLACEMENT_STRATEGIES
from loadmanager.core.plan import Assign, Plan, Unload
from loadmanager.core.planner import PlannerSettings, State, plan_assignments, plan_shedding
from loadmanager.core.shedding import SHEDDING_STRATEGIES
from loadmanager.core.snapshot import Snapshot

PAIRS = [(shedding, placement) for shedding in SHEDDING_STRATEGIES for placement in PLACEMENT_STRATEGIES]
strategies = pytest.mark.parametrize(("shedding", "placement"), PAIRS)
NOT_SCALE_FREE = {"TransferShedder", "UniformLoadShedder"}
"""One ranks bundles in steps of 100 kB/s, the other counts in whole messages or bytes/s."""
ROUNDS = 3


def settings(shedding: str, placement: str, excluded: frozenset[str] = frozenset()) -> PlannerSettings:
    """CPU alone decides usage; nothing depends on absolute bytes/s."""
    return PlannerSettings(
        shedding_strategy=shedding,
        placement_strategy=placement,
        bundle_unload_min_throughput_threshold=0.0,
        min_unload_message=0,
        min_unload_message_throughput=0,
        lower_boundary_shedding_enabled=True,
        resource_weights=ResourceWeights(1, 0, 0, 0),
        shedding_excluded_namespaces=excluded,
        shedding_condition_hit_count_threshold=0,
    )


def plans(snapshot: Snapshot, chosen: PlannerSettings, seed: int) -> list[Plan]:
    """A few rounds of shedding on the same snapshot, then owners for all free bundles."""
    rng = np.random.default_rng(seed)
    state: State = {}
    made = []
    for _ in range(ROUNDS):
        plan, state = plan_shedding(snapshot, chosen, state, rng)
        state = json.loads(json.dumps(state))
        made.append(plan)
    free = [name for name, is_free in zip(snapshot.bundles.names, snapshot.bundles.free, strict=True) if is_free]
    made.append(plan_assignments(snapshot, free, chosen, state, rng)[0])
    return made


def steps(made: list[Plan]) -> list[tuple[Assign | Unload, ...]]:
    return [plan.steps for plan in made]


@strategies
@given(cluster=clusters(), seed=st.integers(0, 5))
def test_a_plan_keeps_the_invariants_and_every_bundle_and_broker_it_looks_at_has_a_verdict(
    shedding: str, placement: str, cluster: SomeCluster, seed: int
) -> None:
    snapshot = Build().snapshot(cluster)
    for plan in plans(snapshot, settings(shedding, placement), seed):
        assert plan_violations(plan, snapshot) == []
        acted = {verdict.subject for verdict in plan.verdicts if verdict.acted}
        assert {step.bundle for step in plan.steps} <= acted
        subjects = [verdict.subject for verdict in plan.verdicts]
        assert len(subjects) == len(set(subjects))
        for verdict in plan.verdicts:
            assert "{" not in verdict.sentence()
            assert verdict.sentence().split()[0] in {"No", "Not", "Shed", "Placed"}


@strategies
@given(cluster=clusters(), seed=st.integers(0, 5))
def test_a_plan_is_the_same_each_time_and_in_whatever_order_things_became_known(
    shedding: str, placement: str, cluster: SomeCluster, seed: int
) -> None:
    chosen = settings(shedding, placement)
    expected = steps(plans(Build().snapshot(cluster), chosen, seed))
    assert steps(plans(Build().snapshot(cluster), chosen, seed)) == expected
    assert steps(plans(Build(backwards=True).snapshot(cluster), chosen, seed)) == expected


@pytest.mark.parametrize(("shedding", "placement"), [pair for pair in PAIRS if pair[0] not in NOT_SCALE_FREE])
@given(cluster=clusters(), seed=st.integers(0, 5), exponent=st.integers(-8, 8))
def test_a_plan_is_the_same_when_all_loads_are_a_power_of_two_times_as_large(
    shedding: str, placement: str, cluster: SomeCluster, seed: int, exponent: int
) -> None:
    chosen = settings(shedding, placement)
    expected = steps(plans(Build().snapshot(cluster), chosen, seed))
    assert steps(plans(Build(factor=2.0**exponent).snapshot(cluster), chosen, seed)) == expected


RENAMED = Build(lambda i: f"x-{7 * i + 3:05d}.example:80", lambda i: f"zebra/other-{i}", first_bundle=1000)


@strategies
@given(cluster=clusters(), seed=st.integers(0, 5))
def test_names_decide_nothing_but_the_order_of_equals(
    shedding: str, placement: str, cluster: SomeCluster, seed: int
) -> None:
    chosen = settings(shedding, placement)
    original, renamed = Build(), RENAMED
    bundles = {original.bundle_name(cluster, i): renamed.bundle_name(cluster, i) for i in range(len(cluster.bundles))}
    brokers = {broker_name(i): renamed.broker_name(i) for i in range(len(cluster.brokers))}

    def translated(registration: Registration | None) -> Registration | None:
        if registration is None:
            return None
        return Registration(BrokerId(brokers[registration.broker]), registration.incarnation)

    def translate(step: Assign | Unload) -> tuple[object, ...]:
        source = translated(step.source) if isinstance(step, Unload) else None
        return type(step), bundles[step.bundle], source, translated(step.destination), step.reason

    expected = [[translate(step) for step in plan.steps] for plan in plans(original.snapshot(cluster), chosen, seed)]
    found = [
        [
            (type(step), step.bundle, step.source if isinstance(step, Unload) else None, step.destination, step.reason)
            for step in plan.steps
        ]
        for plan in plans(renamed.snapshot(cluster), chosen, seed)
    ]
    assert found == expected


@strategies
@given(cluster=clusters(), seed=st.integers(0, 5), excluded=st.integers(0, 2))
def test_bundles_of_an_excluded_namespace_are_never_shed(
    shedding: str, placement: str, cluster: SomeCluster, seed: int, excluded: int
) -> None:
    name = namespace_name(excluded)
    chosen = settings(shedding, placement, frozenset({name}))
    for plan in plans(Build().snapshot(cluster), chosen, seed):
        assert not [step for step in plan.steps if isinstance(step, Unload) and step.bundle.startswith(name + "/")]


@strategies
@given(cluster=clusters(), seed=st.integers(0, 5))
def test_a_broker_with_load_that_already_left_is_left_alone(
    shedding: str, placement: str, cluster: SomeCluster, seed: int
) -> None:
    snapshot = Build().snapshot(cluster)
    settled = dict(zip(snapshot.brokers.registrations, snapshot.brokers.settled.tolist(), strict=True))
    for plan in plans(snapshot, settings(shedding, placement), seed):
        assert all(settled[step.source] for step in plan.steps if isinstance(step, Unload))
