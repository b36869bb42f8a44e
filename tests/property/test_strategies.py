"""Properties of every strategy on random clusters: a new one in the dictionaries is tested automatically.

Each shedding strategy has its own case and meets all placement strategies in it, drawn with the cluster.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.deep import at_most
from support.invariants import plan_violations
from support.random_clusters import (
    Build,
    Seeded,
    SomeBroker,
    SomeBundle,
    SomeCluster,
    broker_name,
    drawn,
    namespace_name,
    some_cluster,
)

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.plan import Assign, Plan, Unload
from loadmanager.core.domain.resources import ResourceWeights
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.decision_kinds import as_json
from loadmanager.core.planning.planner import State, plan_assignments, plan_shedding
from loadmanager.core.strategies.placement import PLACEMENT_STRATEGIES
from loadmanager.core.strategies.shedding import SHEDDING_STRATEGIES

each_shedding = pytest.mark.parametrize("shedding", SHEDDING_STRATEGIES)
few = at_most(50)
"""Examples of each strategy."""
busy = partial(some_cluster, fewest_brokers=3, fewest_bundles=15)
KINDS = (some_cluster, busy, partial(busy, settled=True))
"""Includes small clusters, and settled ones: brokers with a release under way are not shed."""
busy_clusters = st.one_of([drawn(kind) for kind in KINDS])
any_placement = st.sampled_from(sorted(PLACEMENT_STRATEGIES))
NOT_SCALE_FREE = {"SimpleLoadManagerImpl", "TransferShedder", "UniformLoadShedder"}
"""Strategies that rank bundles in steps of messages or bytes/s, or round to whole ones."""
COUNTS_MESSAGES = {"leastLoadedServer", "leastMsgPerSecond", "weightedRandomSelection"}
"""Strategies whose expected needs of bundles have bounds in messages and bytes/s."""
GOES_ON = {"TransferShedder", "SimpleLoadManagerImpl", "Level"}
"""Strategies that go on in later rounds: few brokers, one comfortable broker, or a budget per round."""
ROUNDS = 3
SEEDS = range(60)
LEAST_SHARE = 0.2
"""Least share of clusters in which each strategy must act for the properties to be meaningful."""


def settings(shedding: str, placement: str, excluded: frozenset[str] = frozenset()) -> PlannerSettings:
    """Return settings where usage is CPU only and nothing depends on absolute bytes/s."""
    return PlannerSettings(
        shedding_strategy=shedding,
        placement_strategy=placement,
        bundle_unload_min_throughput_threshold=0.0,
        min_unload_message=0,
        min_unload_message_throughput=0,
        lower_boundary_shedding_enabled=True,
        resource_weights=ResourceWeights(1, 0, 0, 0),
        shedding_excluded_namespaces=excluded,
        avg_shedder_hit_count_low_threshold=2,
        shedding_condition_hit_count_threshold=0,
        shedding_delay_in_seconds=0,
        broker_load_target_std=0.1,
    )


def without_memory(shedding: str, placement: str) -> PlannerSettings:
    """Return settings where no round depends on earlier ones."""
    return replace(
        settings(shedding, placement),
        history_resource_percentage=0.0,
        avg_shedder_hit_count_low_threshold=1,
        avg_shedder_hit_count_high_threshold=1,
    )


def plans(snapshot: Snapshot, chosen: PlannerSettings, seed: int) -> list[Plan]:
    """A few rounds of shedding on the same snapshot, then owners for all free bundles."""
    rng = np.random.default_rng(seed)
    state: State = {}
    made = []
    for _ in range(ROUNDS):
        plan, state = plan_shedding(snapshot, chosen, state, rng)
        state = json.loads(json.dumps(as_json(state)))
        made.append(plan)
    free = [name for name, is_free in zip(snapshot.bundles.names, snapshot.bundles.free, strict=True) if is_free]
    made.append(plan_assignments(snapshot, free, chosen, state, rng)[0])
    return made


def steps(made: list[Plan]) -> list[tuple[Assign | Unload, ...]]:
    return [plan.steps for plan in made]


@each_shedding
@few
@given(placement=any_placement, cluster=busy_clusters, seed=st.integers(0, 5))
def test_plan_keeps_invariants_and_has_verdicts(shedding: str, placement: str, cluster: SomeCluster, seed: int) -> None:
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


@each_shedding
@few
@given(placement=any_placement, cluster=busy_clusters, seed=st.integers(0, 5))
def test_plan_does_not_depend_on_input_order(shedding: str, placement: str, cluster: SomeCluster, seed: int) -> None:
    chosen = settings(shedding, placement)
    expected = steps(plans(Build().snapshot(cluster), chosen, seed))
    assert steps(plans(Build().snapshot(cluster), chosen, seed)) == expected
    assert steps(plans(Build(backwards=True).snapshot(cluster), chosen, seed)) == expected


@pytest.mark.parametrize("shedding", [name for name in SHEDDING_STRATEGIES if name not in NOT_SCALE_FREE])
@few
@given(
    placement=st.sampled_from(sorted(PLACEMENT_STRATEGIES.keys() - COUNTS_MESSAGES)),
    cluster=busy_clusters,
    seed=st.integers(0, 5),
    exponent=st.integers(-8, 8),
)
def test_plan_is_scale_free(shedding: str, placement: str, cluster: SomeCluster, seed: int, exponent: int) -> None:
    chosen = settings(shedding, placement)
    expected = steps(plans(Build().snapshot(cluster), chosen, seed))
    assert steps(plans(Build(factor=2.0**exponent).snapshot(cluster), chosen, seed)) == expected


RENAMED = Build(lambda i: f"x-{7 * i + 3:05d}.example:80", lambda i: f"zebra/other-{i}", first_bundle=1000)


@each_shedding
@few
@given(placement=any_placement, cluster=busy_clusters, seed=st.integers(0, 5))
def test_names_only_break_ties(shedding: str, placement: str, cluster: SomeCluster, seed: int) -> None:
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


@each_shedding
@few
@given(placement=any_placement, cluster=busy_clusters, seed=st.integers(0, 5), excluded=st.integers(0, 2))
def test_excluded_namespace(shedding: str, placement: str, cluster: SomeCluster, seed: int, excluded: int) -> None:
    name = namespace_name(excluded)
    chosen = settings(shedding, placement, frozenset({name}))
    for plan in plans(Build().snapshot(cluster), chosen, seed):
        assert not [step for step in plan.steps if isinstance(step, Unload) and step.bundle.startswith(name + "/")]


def _bundle(state: str, owner: int, rate: float) -> SomeBundle:
    load = (rate, 0.0, 0.0, 0.0)
    return SomeBundle(0, state, owner, destination=None, dead=False, reported=True, recent=False, load=load)


EXCHANGEABLE = SomeCluster(
    brokers=tuple(SomeBroker(cpu, 0, persistent_enabled=True, incarnation=1) for cpu in (0, 0, 7, 0, 0, 0)),
    bundles=(
        _bundle("Free", 0, 0.0),
        _bundle("Owned", 2, 10_000_001.0),
        _bundle("Owned", 0, 0.0),
        _bundle("Owned", 0, 0.0),
        _bundle("Owned", 0, 10_000_000.0),
    ),
)
"""The third broker is hot. The first has just lost a bundle and has another for an exchange."""


@each_shedding
@example(placement="AvgShedder", cluster=EXCHANGEABLE, seed=0)
@few
@given(placement=any_placement, cluster=busy_clusters, seed=st.integers(0, 5))
def test_broker_whose_load_left_is_not_shed(shedding: str, placement: str, cluster: SomeCluster, seed: int) -> None:
    snapshot = Build().snapshot(cluster)
    settled = dict(zip(snapshot.brokers.registrations, snapshot.brokers.settled.tolist(), strict=True))
    for plan in plans(snapshot, settings(shedding, placement), seed):
        assert all(settled[step.source] for step in plan.steps if isinstance(step, Unload))


@pytest.mark.parametrize("shedding", [name for name in SHEDDING_STRATEGIES if name != "Level"])
@few
@given(placement=any_placement, cluster=busy_clusters, seed=st.integers(0, 5))
def test_empty_plan_stays_empty(shedding: str, placement: str, cluster: SomeCluster, seed: int) -> None:
    """Holds only without memory: moving averages and counted rounds may cause a later plan. Level remembers a broker
    that it searched in vain, skips it in the next rounds, and may fill cold brokers from others meanwhile.
    """
    snapshot, chosen, rng = Build().snapshot(cluster), without_memory(shedding, placement), np.random.default_rng(seed)
    state: State = {}
    was_empty = False
    for _ in range(ROUNDS):
        plan, state = plan_shedding(snapshot, chosen, state, rng)
        assert not (was_empty and plan.steps)
        was_empty = not plan.steps


@each_shedding
@few
@given(placement=any_placement, cluster=busy_clusters, seed=st.integers(0, 5))
def test_moves_in_progress_are_not_repeated(shedding: str, placement: str, cluster: SomeCluster, seed: int) -> None:
    """Strategies that compare brokers by their reports have nothing left to do."""
    chosen = replace(without_memory(shedding, placement), lower_boundary_shedding_enabled=False)
    rng = np.random.default_rng(seed)
    plan, state = plan_shedding(Build().snapshot(cluster), chosen, {}, rng)
    following, _ = plan_shedding(Build().snapshot(begun(cluster, plan)), chosen, state, rng)
    moved = [step for step in plan.steps if isinstance(step, Unload)]
    again = [step for step in following.steps if isinstance(step, Unload)]
    assert not {step.bundle for step in moved} & {step.bundle for step in again}
    assert not {step.source for step in moved} & {step.source for step in again}
    if shedding not in GOES_ON:
        assert again == []


def begun(cluster: SomeCluster, plan: Plan) -> SomeCluster:
    """Return the cluster with all moves of the plan under way."""
    positions = {broker_name(i): i for i in range(len(cluster.brokers))}
    destinations = {
        step.bundle: positions[step.destination.broker] for step in plan.steps if step.destination is not None
    }
    bundles = list(cluster.bundles)
    for i, some in enumerate(cluster.bundles):
        destination = destinations.get(Build().bundle_name(cluster, i))
        if destination is not None:
            bundles[i] = replace(some, state="Releasing", destination=destination)
    return replace(cluster, bundles=tuple(bundles))


@each_shedding
def test_every_shedding_strategy_acts_in_enough_clusters(shedding: str) -> None:
    placement = shedding if shedding in PLACEMENT_STRATEGIES else next(iter(PLACEMENT_STRATEGIES))

    def acts(cluster: SomeCluster) -> bool:
        made = plans(Build().snapshot(cluster), settings(shedding, placement), 0)
        return any(isinstance(step, Unload) for plan in made for step in plan.steps)

    assert share_of_clusters(acts) >= LEAST_SHARE


@pytest.mark.parametrize("placement", PLACEMENT_STRATEGIES)
def test_every_placement_strategy_has_a_choice_in_enough_clusters(placement: str) -> None:
    def places(cluster: SomeCluster) -> bool:
        made = plans(Build().snapshot(cluster), settings("ThresholdShedder", placement), 0)
        return len(cluster.brokers) > 1 and any(isinstance(step, Assign) for plan in made for step in plan.steps)

    assert share_of_clusters(places) >= LEAST_SHARE


def share_of_clusters(holds: Callable[[SomeCluster], bool]) -> float:
    """Return the share of clusters, drawn from fixed seeds, for which this holds."""
    looked_at = [KINDS[seed % len(KINDS)](Seeded(np.random.default_rng(seed))) for seed in SEEDS]
    return sum(map(holds, looked_at)) / len(looked_at)
