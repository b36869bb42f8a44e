from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.deep import at_most
from support.invariants import plan_violations
from support.random_clusters import Build, SomeCluster, broker_name, clusters, namespace_name

from loadmanager.core.domain.names import BrokerId, namespace_of
from loadmanager.core.domain.plan import Plan
from loadmanager.core.domain.policies import IsolationPolicy, Policies
from loadmanager.core.domain.resources import ResourceWeights
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.planner import State, plan_assignments, plan_shedding
from loadmanager.core.strategies.placement import PLACEMENT_STRATEGIES
from loadmanager.core.strategies.shedding import SHEDDING_STRATEGIES

BROKERS = [BrokerId(broker_name(i)) for i in range(6)]
HOSTS = st.sampled_from(["broker-00[01]", "broker-000", "broker-00[2-5]", ".*", "nobody"])
NAMESPACES = st.sampled_from([namespace_name(i) for i in range(3)])

policies = st.builds(
    lambda isolation, groups, domains: Policies(tuple(isolation), groups, domains),
    st.lists(
        st.builds(
            lambda name, namespace, primary, secondary, limit: IsolationPolicy(
                name, (namespace,), (primary,), (secondary,), limit
            ),
            st.sampled_from("pq"),
            NAMESPACES | st.just(".*"),
            HOSTS,
            HOSTS,
            st.integers(0, 3),
        ),
        max_size=2,
        unique_by=lambda policy: policy.name,
    ),
    st.dictionaries(NAMESPACES, st.just("group")),
    st.dictionaries(st.sampled_from(BROKERS), st.sampled_from(["east", "west"])),
)


def plans(snapshot: Snapshot, chosen: PlannerSettings, seed: int) -> list[Plan]:
    rng = np.random.default_rng(seed)
    state: State = {}
    made = []
    for _ in range(2):
        plan, state = plan_shedding(snapshot, chosen, state, rng)
        made.append(plan)
    free = [name for name, is_free in zip(snapshot.bundles.names, snapshot.bundles.free, strict=True) if is_free]
    return [*made, plan_assignments(snapshot, free, chosen, state, rng)[0]]


def may_own(operator_config: Policies, namespace: str, broker: BrokerId) -> bool:
    policy = operator_config.find_policy(namespace)
    if policy is None:
        return operator_config.is_shared(broker)
    return operator_config.is_primary(policy, broker) or operator_config.is_secondary(policy, broker)


@pytest.mark.parametrize("load_manager", ["ModularLoadManagerImpl", "ExtensibleLoadManagerImpl"])
@pytest.mark.parametrize("shedding", SHEDDING_STRATEGIES)
@at_most(50)
@given(
    cluster=clusters(),
    operator_config=policies,
    seed=st.integers(0, 5),
    placement=st.sampled_from(sorted(PLACEMENT_STRATEGIES)),
)
def test_destinations_respect_isolation_policies(
    shedding: str, load_manager: str, placement: str, cluster: SomeCluster, operator_config: Policies, seed: int
) -> None:
    chosen = PlannerSettings(
        shedding_strategy=shedding,
        placement_strategy=placement,
        load_manager_class_name=load_manager,
        bundle_unload_min_throughput_threshold=0.0,
        shedding_condition_hit_count_threshold=0,
        shedding_bundles_with_policies_enabled=True,
        failure_domains_enabled=True,
        prefer_later_versions=True,
        resource_weights=ResourceWeights(1, 0, 0, 0),
    )
    snapshot = replace(Build().snapshot(cluster), policies=operator_config, _derived={})
    for plan in plans(snapshot, chosen, seed):
        assert plan_violations(plan, snapshot) == []
        for step in plan.steps:
            assert step.destination is None or may_own(
                operator_config, namespace_of(step.bundle), step.destination.broker
            )
        for verdict in plan.verdicts:
            assert "{" not in verdict.sentence()
