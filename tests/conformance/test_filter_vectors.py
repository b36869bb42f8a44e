"""Pulsar's choices for broker filters (rows L1 to L6) and for a bundle with a destination (row M3)."""

from __future__ import annotations

import numpy as np
import pytest
from support.builders import Load, broker, bundle, releasing, report, snapshot

from loadmanager.core.constraints.filters import (
    EXTENSIBLE,
    MODULAR,
    FilterRules,
    PlacementQuestion,
    allowed_brokers,
    find_anti_affinity_refusal,
    keep_fewest_of_namespace,
    keep_serving_domain,
)
from loadmanager.core.constraints.projection import Projection
from loadmanager.core.domain.ownership import FREE
from loadmanager.core.domain.policies import IsolationPolicy, Policies
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.planner import plan_assignments

both_load_managers = pytest.mark.parametrize("rules", [MODULAR, EXTENSIBLE])


def question(
    given: Snapshot, namespace: str = "tenant1/ns1", excluded: int | None = None, *, non_persistent: bool = False
) -> PlacementQuestion:
    settings = PlannerSettings()
    return PlacementQuestion(namespace, Projection(given), settings, excluded, non_persistent=non_persistent)


def hosts(rules: FilterRules, asked: PlacementQuestion) -> list[str]:
    kept, _ = allowed_brokers(rules, asked)
    return [asked.snapshot.brokers.ids[row].removesuffix(":8080") for row in np.flatnonzero(kept)]


@pytest.mark.parametrize(
    ("owned_ranges", "candidates", "kept"),
    [
        ({}, (), ()),
        ({}, (1,), (1,)),
        ({1: 1}, (1,), (1,)),
        ({1: 1}, (1, 2), (2,)),
        ({1: 1, 2: 1}, (1, 2), (1, 2)),
        ({1: 1, 2: 2}, (1, 2), (1,)),
        ({1: 1, 2: 2, 3: 1}, (1, 2, 3), (1, 3)),
    ],
)
def test_l1_brokers_with_the_fewest_bundles_of_the_namespace_stay(
    owned_ranges: dict[int, int], candidates: tuple[int, ...], kept: tuple[int, ...]
) -> None:
    zero: Load = (0, 0, 0, 0)
    reports = {
        f"b{number}": report({bundle(10 * number + i, "tenant1/ns1"): zero for i in range(owned_ranges.get(number, 0))})
        for number in (1, 2, 3)
    }
    mask = np.array([number in candidates for number in (1, 2, 3)])
    remaining = keep_fewest_of_namespace(mask, question(snapshot(reports)))
    assert tuple(int(row) + 1 for row in np.flatnonzero(remaining)) == kept


@both_load_managers
@pytest.mark.parametrize(
    ("min_limit", "available", "kept"),
    [
        (1, "123", ["b1"]),
        (1, "23", ["b2"]),
        (1, "3", []),
        (2, "123", ["b1", "b2"]),
        (2, "23", ["b2"]),
        (2, "3", []),
    ],
)
def test_l2_secondary_brokers_are_used_below_min_limit(
    rules: FilterRules, min_limit: int, available: str, kept: list[str]
) -> None:
    policies = Policies((IsolationPolicy("p", ("tenant1/ns1",), ("b1",), ("b2",), min_limit),))
    given = snapshot({f"b{number}": report() for number in available}, policies=policies)
    assert hosts(rules, question(given)) == kept


@both_load_managers
def test_l2_namespaces_without_a_policy_use_the_shared_brokers(rules: FilterRules) -> None:
    policies = Policies((IsolationPolicy("p", ("tenant1/ns1",), ("b1",), ("b2",)),))
    given = snapshot({f"b{number}": report() for number in "123"}, policies=policies)
    assert hosts(rules, question(given, "tenant1/ns2")) == ["b2", "b3"]


def test_l3_brokers_without_the_topic_domain_are_dropped() -> None:
    everyone = np.ones(3, dtype=bool)
    off = {name: report(non_persistent_enabled=False) for name in ("b1", "b2")}
    given = question(snapshot({**off, "b3": report()}), non_persistent=True)
    assert keep_serving_domain(everyone, given).tolist() == [False, False, True]
    given = question(snapshot({"b1": report(persistent_enabled=False), "b2": report(), "b3": report()}))
    assert keep_serving_domain(everyone, given).tolist() == [False, True, True]
    given = question(snapshot({"b1": report(), "b2": report(), "b3": report()}))
    assert keep_serving_domain(everyone, given).tolist() == [True, True, True]


def owning(*owners: int) -> Snapshot:
    """Brokers 0 to 2; namespace i of one group has its bundle on the i-th of `owners`."""
    groups = {f"tenant1/ns{i}": "Group" if i % 2 else "group" for i in range(4)}
    bundles: dict[int, list[str]] = {0: [], 1: [], 2: []}
    for i, owner in enumerate(owners):
        bundles[owner].append(bundle(1, f"tenant1/ns{i}"))
    reports = {f"broker-{number}": report(names) for number, names in bundles.items()}
    return snapshot(reports, policies=Policies((), groups))


@both_load_managers
@pytest.mark.parametrize(("owners", "kept"), [((), [0, 1, 2]), ((0,), [1, 2]), ((0, 1), [2]), ((0, 1, 2), [0, 1, 2])])
def test_l4_anti_affinity_group_is_spread(rules: FilterRules, owners: tuple[int, ...], kept: list[int]) -> None:
    asked = question(owning(*owners), f"tenant1/ns{len(owners)}")
    assert hosts(rules, asked) == [f"broker-{number}" for number in kept]


@pytest.mark.parametrize(("owners", "may_leave"), [((0,), True), ((0, 1), True), ((0, 1, 2), False)])
def test_l6_group_member_moves_only_to_less_of_its_group(owners: tuple[int, ...], *, may_leave: bool) -> None:
    asked = question(owning(*owners), "tenant1/ns0", excluded=0)
    assert (find_anti_affinity_refusal(MODULAR, asked) is None) == may_leave


def test_m3_releasing_bundle_goes_to_its_destination() -> None:
    """Pulsar hands the destination to the next lookup of the bundle. Here it is in the record of the transfer."""
    model = ClusterModel()
    x, other = bundle(1), bundle(2)
    a, b = broker("a"), broker("b")
    model.set_namespace("tenant/ns", [x, other], [releasing(b, a), FREE])
    model.apply_report(a, report({bundle(1, "tenant/busy"): (9999, 0, 0, 0)}))
    model.apply_report(b, report())
    given = model.snapshot(0, 0)
    plan, _ = plan_assignments(given, [x, other], PlannerSettings(), {}, np.random.default_rng(0))
    assert [(step.bundle, step.destination) for step in plan.steps] == [(other, b)]
    assert plan.verdicts[0].why["broker"] == a.broker
