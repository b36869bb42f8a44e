from __future__ import annotations

from dataclasses import replace

import pytest
from support.builders import bundle, report, snapshot

from loadmanager.core.constraints.filters import EXTENSIBLE, MODULAR, SIMPLE, FilterRules, PlacementQuestion
from loadmanager.core.constraints.obstacles import FilterObstacle, find_general_obstacles, find_obstacles
from loadmanager.core.constraints.projection import Projection
from loadmanager.core.domain.controls import Controls, DrainOrder
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.plan import Verdict
from loadmanager.core.domain.policies import NO_POLICIES, IsolationPolicy, Policies
from loadmanager.core.domain.reasons import FilterReason
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import BrokerReport

DEFAULTS = PlannerSettings()
A = BrokerId("a:8080")


def question(
    reports: dict[str, BrokerReport],
    settings: PlannerSettings = DEFAULTS,
    policies: Policies = NO_POLICIES,
    controls: Controls | None = None,
    *,
    non_persistent: bool = False,
) -> PlacementQuestion:
    given = replace(snapshot(reports, taken_at_s=100.0, policies=policies), controls=controls or Controls())
    return PlacementQuestion("tenant/ns", Projection(given), settings, non_persistent=non_persistent)


def said(obstacle: FilterObstacle) -> tuple[str, str]:
    """Return the sentence about broker a and its remedy."""
    verdict = Verdict("bundle", obstacle.reason, acted=False, why={"broker": A, **obstacle.why})
    return verdict.sentence(), verdict.remedy()


def only(rules: FilterRules, asked: PlacementQuestion) -> tuple[str, str]:
    (obstacle,) = find_obstacles(rules, asked, 0)
    return said(obstacle)


def test_eligible_broker_has_no_obstacles() -> None:
    asked = question({"a": report(), "b": report()})
    for rules in (MODULAR, EXTENSIBLE, SIMPLE):
        assert find_obstacles(rules, asked, 0) == []


def test_each_control_is_an_obstacle() -> None:
    controls = Controls(draining={A: DrainOrder(40.0)}, excluded=frozenset({A}))
    drained, excluded = find_obstacles(MODULAR, question({"a": report(), "b": report()}, controls=controls), 0)
    assert said(drained) == ("Not on a:8080 because it has been draining for 60 s", "stop its drain")
    assert said(excluded) == ("Not on a:8080 because an operator has excluded it", "remove its exclusion")


def test_reserved_broker_names_its_policy() -> None:
    policies = Policies((IsolationPolicy("gold", ("gold/.*",), ("a",)),))
    assert only(MODULAR, question({"a": report(), "b": report()}, policies=policies)) == (
        "Not on a:8080 because isolation policy gold reserves it, and does not cover tenant/ns",
        "let gold cover tenant/ns, or take a:8080 out of its primary brokers",
    )


@pytest.mark.parametrize(("secondary", "role"), [(("a",), "secondary"), ((), "none")])
def test_broker_outside_the_namespaces_policy_names_the_policy(secondary: tuple[str, ...], role: str) -> None:
    policies = Policies((IsolationPolicy("mine", ("tenant/.*",), ("b",), secondary),))
    sentence, change = only(MODULAR, question({"a": report(), "b": report()}, policies=policies))
    assert sentence == (
        "Not on a:8080 because isolation policy mine has 1 available primary brokers (min_limit 1), and a:8080 is"
        f" not one: its role is {role}"
    )
    assert "make a:8080 a primary broker of mine" in change


@pytest.mark.parametrize(("non_persistent", "domain"), [(False, "persistent"), (True, "non-persistent")])
def test_broker_without_the_topic_domain_names_it(*, non_persistent: bool, domain: str) -> None:
    given = {"a": report(persistent_enabled=non_persistent, non_persistent_enabled=not non_persistent), "b": report()}
    sentence, change = only(MODULAR, question(given, non_persistent=non_persistent))
    assert sentence == f"Not on a:8080 because it does not serve {domain} topics"
    assert change == f"let a:8080 serve {domain} topics"


@pytest.mark.parametrize(("its", "shown"), [("org.Other", "Other"), ("", "none")])
def test_broker_of_another_class_names_both_classes(its: str, shown: str) -> None:
    settings = replace(DEFAULTS, load_manager_class_name="org.apache.ModularLoadManagerImpl")
    given = {"a": report(load_manager_class=its), "b": report(load_manager_class="ModularLoadManagerImpl")}
    sentence, _ = only(MODULAR, question(given, settings))
    assert sentence == (
        f"Not on a:8080 because its load-manager class is {shown}, and loadManagerClassName ModularLoadManagerImpl"
    )


@pytest.mark.parametrize(("rules", "too_many"), [(MODULAR, 2), (EXTENSIBLE, 3)])
def test_topic_limit_counts_the_excess_topics(rules: FilterRules, too_many: int) -> None:
    settings = replace(DEFAULTS, broker_max_topics=10)
    assert only(rules, question({"a": report(topics=12), "b": report()}, settings)) == (
        "Not on a:8080 because it has 12 topics, incoming ones included: loadBalancerBrokerMaxTopics 10",
        f"move {too_many} topics away from a:8080, or raise loadBalancerBrokerMaxTopics",
    )


@pytest.mark.parametrize(("rules", "has", "counted"), [(MODULAR, 1, "namespaces"), (EXTENSIBLE, 2, "bundles")])
def test_group_counts_on_broker_and_failure_domain(rules: FilterRules, has: int, counted: str) -> None:
    groups = {"tenant/ns": "g", "tenant/other": "g"}
    policies = Policies(anti_affinity_groups=groups, failure_domains={A: "east", BrokerId("b:8080"): "west"})
    given = {"a": report([bundle(1, "tenant/other"), bundle(2, "tenant/other")]), "b": report()}
    settings = replace(DEFAULTS, failure_domains_enabled=True)
    domain, broker = find_obstacles(rules, question(given, settings, policies), 0)
    assert said(domain) == (
        (
            f"Not on a:8080 because its failure domain east has {has} {counted} of anti-affinity group g,"
            " and another one 0"
        ),
        f"move {has} {counted} of g out of east, or set failureDomainsEnabled to false",
    )
    assert said(broker) == (
        f"Not on a:8080 because it has {has} {counted} of anti-affinity group g, and another broker 0",
        f"move {has} {counted} of g away from a:8080, or take the namespace out of the group",
    )


def test_even_distribution_and_versions_are_preferences() -> None:
    settings = replace(DEFAULTS, prefer_later_versions=True)
    given = {"a": report([bundle(1), bundle(2)], version="1.0.0"), "b": report(version="2.0.0")}
    spread, older = find_obstacles(MODULAR, question(given, settings), 0)
    assert spread.is_preference
    assert older.is_preference
    assert said(spread) == (
        "Not on a:8080 because it has 2 bundles of tenant/ns, and another broker 0",
        "move 2 bundles of tenant/ns away from a:8080, or set loadBalancerDistributeBundlesEvenlyEnabled to false",
    )
    assert said(older) == (
        "Not on a:8080 because it runs version 1.0.0, and another broker 2.0.0",
        "upgrade a:8080 to 2.0.0, or set preferLaterVersions to false",
    )


def test_general_obstacles_do_not_depend_on_a_namespace() -> None:
    settings = replace(DEFAULTS, broker_max_topics=10)
    policies = Policies((IsolationPolicy("gold", ("gold/.*",), ("a",)),))
    given = {"a": report([bundle(1)], topics=11), "b": report()}
    asked = question(given, settings, policies, Controls(excluded=frozenset({A})))
    found = [each.reason for each in find_general_obstacles(EXTENSIBLE, asked, 0)]
    assert found == [FilterReason.BROKER_EXCLUDED, FilterReason.TOPIC_LIMIT_REACHED]
