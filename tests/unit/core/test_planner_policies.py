"""Whole decisions under policies: isolation, anti-affinity, excluded namespaces, versions and load-manager classes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from support.builders import broker, bundle, report, snapshot, throughput

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.plan import Plan, Verdict
from loadmanager.core.domain.policies import IsolationPolicy, Policies
from loadmanager.core.domain.reasons import PlacementReason, SheddingReason
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.planner import (
    EXCLUDED_NAMESPACES,
    State,
    choose_destination,
    plan_assignments,
    plan_shedding,
)

OVERLOAD = PlannerSettings(shedding_strategy="OverloadShedder")


def shed(given: Snapshot, settings: PlannerSettings = OVERLOAD) -> Plan:
    return plan_shedding(given, settings, {}, np.random.default_rng(0))[0]


def assign(
    given: Snapshot, names: list[str], settings: PlannerSettings, state: State | None = None
) -> tuple[list[str], State]:
    """Return the hosts that get the bundles, in order, and the state."""
    plan, after = plan_assignments(given, names, settings, state or {}, np.random.default_rng(0))
    return [step.destination.broker.partition(":")[0] for step in plan.steps if step.destination], after


def destinations(plan: Plan) -> dict[str, str]:
    return {step.bundle: step.destination.broker for step in plan.steps if step.destination}


def of(plan: Plan, subject: str) -> Verdict:
    return next(verdict for verdict in plan.verdicts if verdict.subject == subject)


def hot(*namespaces: str, policies: Policies, **others: list[str]) -> Snapshot:
    """`a` sheds 60 % of its bundles, one per namespace; `others` own the bundles given."""
    names = {bundle(i, namespace): throughput(1) for i, namespace in enumerate(namespaces)}
    reports = {"a": report(names, cpu=140)}
    return snapshot(reports | {name: report(owned, cpu=10) for name, owned in others.items()}, policies=policies)


def test_shed_bundle_stays_within_its_isolation_policy() -> None:
    policies = Policies((IsolationPolicy("mine", ("t/isolated",), ("a|b",), ("c",)),))
    given = hot("t/isolated", "t/other", policies=policies, b=[], c=[])
    assert destinations(shed(given)) == {bundle(0, "t/isolated"): "b:8080", bundle(1, "t/other"): "c:8080"}


def test_only_primary_broker_keeps_the_bundle() -> None:
    policies = Policies((IsolationPolicy("mine", ("t/isolated",), ("a",), ("c",)),))
    given = hot("t/x", "t/isolated", policies=policies, c=[])
    verdict = of(shed(given), bundle(1, "t/isolated"))
    assert (verdict.acted, verdict.verdict) == (False, PlacementReason.NO_OTHER_BROKER)
    assert verdict.sentence() == (
        "No move because isolation policy mine leaves no other broker that may own it: 2 registered, 1 primary and 1"
        " secondary ones, min_limit 1"
    )


def test_verdict_of_a_lookup_without_an_isolated_broker() -> None:
    policies = Policies((IsolationPolicy("mine", ("t/isolated",), ("x",)),))
    given = snapshot({"a": report(), "b": report()}, policies=policies)
    plan, _ = plan_assignments(given, [bundle(1, "t/isolated")], OVERLOAD, {}, np.random.default_rng(0))
    assert plan.steps == ()
    assert plan.verdicts[0].sentence() == (
        "Not placed because isolation policy mine leaves no broker that may own it: 2 registered, 0 primary and 0"
        " secondary ones, min_limit 1"
    )
    assert plan.verdicts[0].why["isolation_policy"] == 2


GROUP = Policies((), {f"t/n{i}": "group" for i in range(6)})


def test_anti_affinity_keeps_a_bundle_when_all_brokers_are_equal() -> None:
    given = hot("t/x", "t/n0", policies=GROUP, b=[bundle(8, "t/n1")])
    verdict = of(shed(given), bundle(1, "t/n0"))
    assert (verdict.acted, verdict.verdict) == (False, SheddingReason.ANTI_AFFINITY_KEPT)
    assert verdict.sentence() == (
        "No move because each of 2 brokers that may own it has 1 namespaces of anti-affinity group group"
    )


def test_shed_group_bundles_go_to_brokers_with_the_fewest() -> None:
    given = hot("t/n0", "t/n1", "t/n2", "t/n3", policies=GROUP, b=[bundle(8, "t/n4")], c=[])
    found = destinations(shed(given))
    assert list(found) == [bundle(i, f"t/n{i}") for i in range(3)]
    assert found[bundle(0, "t/n0")] == "c:8080"
    assert {found[bundle(1, "t/n1")], found[bundle(2, "t/n2")]} == {"b:8080", "c:8080"}


def test_shedding_stops_when_it_would_only_swap_a_group() -> None:
    given = hot("t/n0", "t/n1", policies=GROUP, b=[])
    plan = shed(given)
    assert destinations(plan) == {bundle(0, "t/n0"): "b:8080"}
    assert of(plan, bundle(1, "t/n1")).verdict is SheddingReason.ANTI_AFFINITY_KEPT


def test_lookups_of_a_group_are_spread_regardless_of_load() -> None:
    busy = report({bundle(9, "t/busy"): (9999, 0, 0, 0)}, cpu=90)
    given = snapshot({"a": report(), "b": busy, "c": report()}, policies=GROUP)
    found, _ = assign(given, [bundle(i, f"t/n{i}") for i in range(6)], PlannerSettings())
    assert sorted(found[:3]) == sorted(found[3:]) == ["a", "b", "c"]


EXCLUDED = PlannerSettings(
    shedding_excluded_namespaces=frozenset({"t/excluded"}), distribute_bundles_evenly_enabled=False
)


def test_excluded_namespaces_are_placed_round_robin() -> None:
    given = snapshot({"a": report(), "b": report({bundle(9, "t/busy"): (9999, 0, 0, 0)}), "c": report()})
    found, state = assign(given, [bundle(i, "t/excluded") for i in range(4)], EXCLUDED)
    assert found == ["a", "b", "c", "a"]
    found, state = assign(given, [bundle(9, "t/excluded"), bundle(1, "t/n"), bundle(10, "t/excluded")], EXCLUDED, state)
    assert found[::2] == ["b", "c"]
    assert found[1] != "b"
    assert state.keys() == {EXCLUDED_NAMESPACES}


def test_overloaded_round_robin_choice_falls_back_to_the_strategy() -> None:
    given = snapshot({"a": report(cpu=90), "b": report({bundle(9, "t/busy"): (9999, 0, 0, 0)}), "c": report()})
    found, _ = assign(given, [bundle(1, "t/excluded")], EXCLUDED)
    assert found == ["c"]


def test_round_robin_skips_an_overloaded_broker_once() -> None:
    settings = PlannerSettings(placement_strategy="RoundRobinBrokerSelector", distribute_bundles_evenly_enabled=False)
    given = snapshot({"a": report(cpu=90), "b": report(cpu=90), "c": report(), "d": report()})
    found, state = assign(given, [bundle(i) for i in range(4)], settings)
    assert found == ["b", "c", "d", "b"]
    assert state["RoundRobinBrokerSelector"]["turn"] == 6


def test_extensible_rules_keep_an_overloaded_choice() -> None:
    settings = PlannerSettings(
        placement_strategy="RoundRobinBrokerSelector",
        load_manager_class_name="org.apache.pulsar.broker.loadbalance.extensions.ExtensibleLoadManagerImpl",
    )
    given = snapshot({"a": report([bundle(7)], cpu=90), "b": report()})
    assert assign(given, [bundle(i) for i in range(4)], settings)[0] == ["a", "b", "a", "b"]


def test_extensible_rules_ignore_anti_affinity_of_moves() -> None:
    settings = replace(OVERLOAD, load_manager_class_name="ExtensibleLoadManagerImpl")
    given = hot("t/x", "t/n0", policies=GROUP, b=[bundle(8, "t/n1")])
    assert bundle(1, "t/n0") in destinations(shed(given, settings))


def test_later_versions_are_preferred_unless_overloaded() -> None:
    settings = PlannerSettings(prefer_later_versions=True)
    given = snapshot({"a": report(version="1.0.0"), "b": report(version="2.0.0")})
    assert assign(given, [bundle(1)], settings)[0] == ["b"]
    given = snapshot({"a": report(version="1.0.0"), "b": report(version="2.0.0", cpu=90)})
    assert assign(given, [bundle(1)], settings)[0] == ["a"]


def test_unreadable_version_is_counted_in_the_verdict() -> None:
    given = snapshot({"a": report(version="1.0.0"), "b": report(version="?")})
    settings = PlannerSettings(prefer_later_versions=True)
    _, verdict, _ = choose_destination(given, bundle(1), None, settings, {}, np.random.default_rng(0))
    assert verdict.why["version_unreadable"] == 1


def test_destination_respects_policies() -> None:
    policies = Policies((IsolationPolicy("mine", ("tenant/ns",), ("b",), ("c",), 2),))
    given = snapshot({name: report() for name in "abcd"}, policies=policies)
    chosen, _, _ = choose_destination(given, bundle(1), BrokerId("b:8080"), OVERLOAD, {}, np.random.default_rng(0))
    assert chosen == broker("c")
