from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given as each_of
from hypothesis import strategies as st
from support.builders import broker, bundle, owned, releasing, report, snapshot

from loadmanager.core.constraints.filters import (
    EXTENSIBLE,
    MODULAR,
    SIMPLE,
    FilterCache,
    FilterRules,
    PlacementQuestion,
    allowed_brokers,
    find_anti_affinity_refusal,
    find_isolation_refusal,
    keep_below_topic_limit,
    keep_fewest_in_failure_domain,
    keep_fewest_of_group,
    keep_fewest_of_namespace,
    keep_isolated,
    keep_latest_readable_version,
    keep_latest_version,
    keep_same_load_manager,
    keep_strictly_below_topic_limit,
    preferred_brokers,
    rules_of,
    topics_left,
)
from loadmanager.core.constraints.projection import Projection
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.plan import Figure
from loadmanager.core.domain.policies import IsolationPolicy, Policies
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.model.load import BoolArray
from loadmanager.core.model.snapshot import Snapshot

TEN_TOPICS = PlannerSettings(broker_max_topics=10)
LATER = PlannerSettings(prefer_later_versions=True)
DOMAINS = PlannerSettings(failure_domains_enabled=True)


def question(
    given: Snapshot,
    settings: PlannerSettings | None = None,
    namespace: str = "tenant/ns",
    excluded: int | None = None,
    *,
    non_persistent: bool = False,
) -> PlacementQuestion:
    settings = settings or PlannerSettings()
    return PlacementQuestion(namespace, Projection(given), settings, excluded, non_persistent=non_persistent)


def mask(*kept: int) -> BoolArray:
    return np.array(kept, dtype=bool)


def names(given: Snapshot, kept: BoolArray) -> str:
    """The hosts, each a single letter, of those kept."""
    return "".join(given.brokers.ids[row][0] for row in np.flatnonzero(kept))


def allowed(rules: FilterRules, asked: PlacementQuestion) -> tuple[str, dict[str, Figure]]:
    kept, dropped = allowed_brokers(rules, asked)
    return names(asked.snapshot, kept), dropped


def test_only_the_modular_rule_keeps_a_broker_at_the_topic_limit() -> None:
    """Q15: Pulsar's two load managers differ in this."""
    asked = question(snapshot({"a": report(topics=10), "b": report(topics=11), "c": report(topics=9)}), TEN_TOPICS)
    assert keep_below_topic_limit(mask(1, 1, 1), asked).tolist() == [True, False, True]
    assert keep_strictly_below_topic_limit(mask(1, 1, 1), asked).tolist() == [False, False, True]


def test_above_the_topic_limit_modular_keeps_all_and_extensible_none() -> None:
    asked = question(snapshot({"a": report(topics=12), "b": report(topics=11)}), TEN_TOPICS)
    assert keep_below_topic_limit(mask(1, 1), asked).all()
    assert not keep_strictly_below_topic_limit(mask(1, 1), asked).any()


def test_topics_of_bundles_in_progress_count() -> None:
    model = ClusterModel()
    x = bundle(1)
    model.set_namespace("tenant/ns", [x], [owned(broker("a"))])
    model.apply_report(broker("a"), report([x], topics=6, topics_per_bundle=6))
    model.set_namespace("tenant/ns", [x], [owned(broker("b"))])
    model.apply_report(broker("b"), report(topics=5))
    asked = question(model.snapshot(0, 0), TEN_TOPICS)
    assert keep_below_topic_limit(mask(1, 1), asked).tolist() == [True, False]
    asked.projection.move("tenant/ns", 0, 1, 0)
    assert keep_below_topic_limit(mask(1, 1), asked).tolist() == [False, True]


def test_even_distribution_can_be_switched_off() -> None:
    given = snapshot({"a": report([bundle(1)]), "b": report()})
    uneven = PlannerSettings(distribute_bundles_evenly_enabled=False)
    assert keep_fewest_of_namespace(mask(1, 1), question(given)).tolist() == [False, True]
    assert keep_fewest_of_namespace(mask(1, 1), question(given, uneven)).all()
    assert not keep_fewest_of_namespace(mask(0, 0), question(given)).any()


def test_system_namespace_is_spread_without_even_distribution() -> None:
    given = snapshot({"a": report([bundle(1, "pulsar/system")]), "b": report()})
    asked = question(given, PlannerSettings(distribute_bundles_evenly_enabled=False), "pulsar/system")
    assert keep_fewest_of_namespace(mask(1, 1), asked).tolist() == [False, True]


def test_each_filter_counts_the_brokers_it_dropped() -> None:
    reports = {
        "a": report(persistent_enabled=False),
        "b": report(topics=60_000),
        "c": report([bundle(1)]),
        "d": report(),
    }
    asked = question(snapshot(reports))
    kept, dropped = allowed_brokers(MODULAR, asked)
    assert kept.tolist() == [False, False, True, True]
    assert dropped == {"persistence_disabled": 1, "topic_limit_reached": 1}
    preferred, passed_over = preferred_brokers(MODULAR, kept, asked)
    assert preferred.tolist() == [False, False, False, True]
    assert passed_over == {"owns_more_of_namespace": 1}


def isolated(min_limit: int = 1) -> Policies:
    return Policies((IsolationPolicy("p", ("tenant/ns",), ("a|b",), ("b|c",), min_limit),))


def test_excluded_primary_broker_counts_towards_min_limit() -> None:
    """Otherwise a bundle would be shed from its only primary broker to a secondary one."""
    given = snapshot({name: report() for name in "acd"}, policies=isolated())
    assert allowed(MODULAR, question(given, excluded=0)) == ("", {"isolation_policy": 2})
    assert allowed(MODULAR, question(given, excluded=1)) == ("a", {"isolation_policy": 2})
    given = snapshot({name: report() for name in "acd"}, policies=isolated(2))
    assert allowed(MODULAR, question(given, excluded=0)) == ("c", {"isolation_policy": 1})


def test_extensible_rules_do_not_count_dropped_primary_brokers() -> None:
    given = snapshot({"a": report(topics=60_000), "c": report(), "d": report()}, policies=isolated())
    assert allowed(EXTENSIBLE, question(given)) == ("c", {"topic_limit_reached": 1, "isolation_policy": 1})
    assert allowed(EXTENSIBLE, question(given, excluded=1)) == ("", {"topic_limit_reached": 1, "isolation_policy": 1})


def test_broker_matching_primary_and_secondary_is_primary() -> None:
    given = snapshot({name: report() for name in "abcd"}, policies=isolated())
    assert names(given, keep_isolated(mask(1, 1, 1, 1), question(given))) == "ab"
    assert names(given, keep_isolated(mask(0, 0, 1, 1), question(given))) == "c"


def test_primary_brokers_are_reserved_and_secondary_ones_shared() -> None:
    policies = Policies((*isolated().isolation, IsolationPolicy("q", ("x/.*",), ("d",))))
    given = snapshot({name: report() for name in "abcde"}, policies=policies)
    assert names(given, keep_isolated(mask(1, 1, 1, 1, 1), question(given, namespace="y/z"))) == "ce"


def test_isolation_policy_overrides_the_topic_domain() -> None:
    given = snapshot({"a": report(persistent_enabled=False, non_persistent_enabled=False)}, policies=isolated())
    assert allowed(MODULAR, question(given)) == ("a", {})
    assert allowed(MODULAR, question(given, non_persistent=True)) == ("a", {})


def test_isolation_policy_without_brokers_is_named_with_its_figures() -> None:
    given = snapshot({name: report() for name in "abcd"}, policies=isolated())
    assert find_isolation_refusal(question(given, excluded=0)) is None
    assert find_isolation_refusal(question(given, namespace="y/z")) is None
    alone = snapshot({name: report() for name in "bcd"}, policies=isolated())
    numbers = {"policy": "p", "primary": 1, "secondary": 1, "min_limit": 1}
    assert find_isolation_refusal(question(alone, excluded=0)) == numbers


MODULAR_CLASS = "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl"


@pytest.mark.parametrize(
    ("wanted", "kept"), [("", "ab"), (MODULAR_CLASS, "a"), ("ModularLoadManagerImpl", "a"), ("Other", "ab")]
)
def test_other_load_manager_classes_are_dropped(wanted: str, kept: str) -> None:
    given = snapshot({"a": report(load_manager_class=MODULAR_CLASS), "b": report()})
    settings = PlannerSettings(load_manager_class_name=wanted)
    assert names(given, keep_same_load_manager(mask(1, 1), question(given, settings))) == kept


def test_broker_of_another_class_stays_dropped_with_the_fewest_bundles() -> None:
    """Pulsar drops it after even distribution has kept only this broker, and then takes all brokers."""
    given = snapshot({"a": report([bundle(1)], load_manager_class=MODULAR_CLASS), "b": report()})
    asked = question(given, PlannerSettings(load_manager_class_name=MODULAR_CLASS))
    kept, dropped = allowed_brokers(MODULAR, asked)
    assert dropped == {"other_load_manager_class": 1}
    assert names(given, preferred_brokers(MODULAR, kept, asked)[0]) == "a"


def grouped(domains: dict[str, str] | None = None) -> Policies:
    """Namespaces n1 to n4 of tenant `t` in one group; brokers by letter in failure domains."""
    groups = {f"t/n{i}": "group" for i in range(1, 5)}
    return Policies((), groups, {BrokerId(f"{name}:8080"): domain for name, domain in (domains or {}).items()})


def owning(owners: dict[str, str], policies: Policies) -> Snapshot:
    """Brokers with one bundle of namespace n<digit> for each of their digits."""
    reports = {
        name: report([bundle(10 * ord(name) + i, f"t/n{digit}") for i, digit in enumerate(digits)])
        for name, digits in owners.items()
    }
    return snapshot(reports, policies=policies)


def test_modular_rules_keep_brokers_with_the_fewest_group_namespaces() -> None:
    given = owning({"a": "12", "b": "3", "c": "33", "d": "123"}, grouped())
    asked = question(given, namespace="t/n3")
    assert names(given, keep_fewest_of_group(mask(1, 1, 1, 1), asked)) == "bc"
    assert names(given, keep_fewest_of_group(mask(1, 0, 0, 1), asked)) == "a"
    assert not keep_fewest_of_group(mask(0, 0, 0, 0), asked).any()
    assert keep_fewest_of_group(mask(1, 1, 1, 1), question(given, namespace="t/other")).all()


def test_extensible_rules_count_the_bundles_of_the_group() -> None:
    given = owning({"a": "12", "b": "3", "c": "33"}, grouped())
    assert allowed(EXTENSIBLE, question(given, namespace="t/n4")) == ("b", {"has_more_of_group": 2})
    assert allowed(MODULAR, question(given, namespace="t/n4")) == ("bc", {"has_more_of_group": 1})


def test_bundles_in_progress_and_planned_moves_count_to_the_group() -> None:
    model = ClusterModel()
    model.set_policies(grouped())
    a, b, c = (broker(name) for name in "abc")
    moving, free = bundle(1, "t/n1"), bundle(2, "t/n2")
    model.set_namespace("t/n1", [moving], [releasing(a, b)])
    for each in (a, b, c):
        model.apply_report(each, report())
    given = model.snapshot(0, 0)
    asked = question(given, namespace="t/n2")
    assert names(given, keep_fewest_of_group(mask(1, 1, 1), asked)) == "ac"
    asked.projection.move("t/n2", given.bundles.find_row(free), None, 0)
    assert names(given, keep_fewest_of_group(mask(1, 1, 1), asked)) == "c"
    asked.projection.move("t/n1", given.bundles.find_row(moving), 1, 0)
    assert names(given, keep_fewest_of_group(mask(1, 1, 1), asked)) == "bc"
    assert asked.projection.group_counts("group").namespaces.tolist() == [2, 0, 0]
    asked.projection.move("t/n2", None, None, 0)
    assert asked.projection.group_counts("group").namespaces.tolist() == [2, 0, 0]
    assert asked.projection.group_counts("group").bundles.tolist() == [3, 0, 0]


def test_failure_domain_with_the_fewest_of_the_group_is_preferred() -> None:
    domains = {"a": "east", "b": "east", "c": "west", "d": "west"}
    given = owning({"a": "1", "b": "", "c": "2", "d": "3"}, grouped(domains))
    asked = question(given, DOMAINS, "t/n4")
    assert allowed(MODULAR, asked) == ("b", {"failure_domain_has_more_of_group": 2, "has_more_of_group": 1})
    assert allowed(EXTENSIBLE, asked)[0] == "b"
    assert names(given, keep_fewest_in_failure_domain(mask(1, 0, 1, 0), asked)) == "ac"
    assert names(given, keep_fewest_in_failure_domain(mask(1, 0, 1, 1), asked)) == "a"
    assert not keep_fewest_in_failure_domain(mask(0, 0, 0, 0), asked).any()
    assert keep_fewest_in_failure_domain(mask(1, 1, 1, 1), question(given, None, "t/n4")).all()
    assert keep_fewest_in_failure_domain(mask(1, 1, 1, 1), question(given, DOMAINS, "t/other")).all()


def test_brokers_without_a_failure_domain_share_the_default_one() -> None:
    given = owning({"a": "1", "b": "", "c": "2", "d": "3"}, grouped({"a": "east"}))
    assert names(given, keep_fewest_in_failure_domain(mask(1, 1, 1, 1), question(given, DOMAINS, "t/n4"))) == "a"
    given = owning({"a": "1", "b": ""}, grouped())
    assert keep_fewest_in_failure_domain(mask(1, 1), question(given, DOMAINS, "t/n4")).all()


def test_latest_version_is_kept_when_preferred() -> None:
    versions = {"a": "4.0.9", "b": "4.0.10", "c": "4.0.10-SNAPSHOT", "d": "4.0.10"}
    given = snapshot({name: report(version=version) for name, version in versions.items()})
    assert names(given, keep_latest_version(mask(1, 1, 1, 1), question(given, LATER))) == "bd"
    assert names(given, keep_latest_version(mask(1, 0, 1, 0), question(given, LATER))) == "c"
    assert not keep_latest_version(mask(0, 0, 0, 0), question(given, LATER)).any()
    assert keep_latest_version(mask(1, 1, 1, 1), question(given)).all()


@pytest.mark.parametrize("unreadable", ["", "4.0", "latest"])
def test_unreadable_version_drops_preferences(unreadable: str) -> None:
    """Pulsar's modular load manager then takes all brokers that isolation policies allow, even above a limit."""
    reports = {
        "a": report(version="2.0.0", topics=60_000),
        "b": report(version=unreadable),
        "c": report([bundle(1)], version="1.0.0"),
    }
    given = snapshot(reports)
    asked = question(given, LATER)
    kept, _ = allowed_brokers(MODULAR, asked)
    preferred, passed_over = preferred_brokers(MODULAR, kept, asked)
    assert (names(given, preferred), passed_over) == ("bc", {"version_unreadable": 1})
    assert names(given, keep_latest_readable_version(mask(0, 1, 1), asked)) == "bc"
    assert names(given, keep_latest_readable_version(mask(1, 0, 1), asked)) == "a"


def test_unreadable_version_of_a_dropped_broker_is_ignored() -> None:
    given = snapshot(
        {"a": report([bundle(1)], version="?"), "b": report(version="1.0.0"), "c": report(version="1.1.0")}
    )
    asked = question(given, LATER)
    assert names(given, preferred_brokers(MODULAR, mask(1, 1, 1), asked)[0]) == "c"


def test_no_broker_is_preferred_when_none_is_eligible() -> None:
    preferred, passed_over = preferred_brokers(MODULAR, mask(0), question(snapshot({"a": report(version="?")}), LATER))
    assert (preferred.tolist(), passed_over) == ([False], {})


def test_bundle_stays_when_no_broker_has_less_of_its_group() -> None:
    given = owning({"a": "1", "b": "2", "c": "33"}, grouped())
    refusal = find_anti_affinity_refusal(MODULAR, question(given, namespace="t/n1", excluded=0))
    assert refusal == {"group": "group", "least": 1, "candidates": 3}
    assert find_anti_affinity_refusal(MODULAR, question(given, namespace="t/other", excluded=0)) is None


def test_bundle_may_leave_a_broker_with_more_of_its_group() -> None:
    given = owning({"a": "12", "b": "2", "c": "3"}, grouped())
    assert find_anti_affinity_refusal(MODULAR, question(given, namespace="t/n1", excluded=0)) is None


def test_anti_affinity_does_not_refuse_a_move_without_another_broker() -> None:
    policies = replace(grouped(), isolation=(IsolationPolicy("p", ("t/n1",), ("a",)),))
    given = owning({"a": "1", "b": "2"}, policies)
    assert find_anti_affinity_refusal(MODULAR, question(given, namespace="t/n1", excluded=0)) is None


@pytest.mark.parametrize(
    ("load_manager", "placement", "rules"),
    [
        ("", "LeastLongTermMessageRate", MODULAR),
        (MODULAR_CLASS, "LeastResourceUsageWithWeight", MODULAR),
        ("", "LeastResourceUsageWithWeightExtensible", EXTENSIBLE),
        (
            "org.apache.pulsar.broker.loadbalance.extensions.ExtensibleLoadManagerImpl",
            "RoundRobinBrokerSelector",
            EXTENSIBLE,
        ),
    ],
)
def test_rules_follow_the_load_manager_class(load_manager: str, placement: str, rules: FilterRules) -> None:
    assert rules_of(PlannerSettings(load_manager_class_name=load_manager), placement) is rules


@each_of(
    rules=st.sampled_from([MODULAR, EXTENSIBLE, SIMPLE]),
    most=st.integers(3, 12),
    moves=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), max_size=12),
)
def test_cached_answer_equals_a_new_one(rules: FilterRules, most: int, moves: list[tuple[int, int]]) -> None:
    """Bundles of a policy, of a group and of neither go from broker to broker, each with two topics."""
    namespaces = ["tenant/ns", "tenant/own", "tenant/a"]
    bundles = [bundle(i, namespaces[i % 3]) for i in range(6)]
    given = snapshot(
        {host: report(bundles[i::3], topics=2 * (i + 1), topics_per_bundle=2) for i, host in enumerate("xyz")}
    )
    policies = Policies((IsolationPolicy("p", ("tenant/own",), ("x", "y")),), {"tenant/a": "group"})
    given = replace(given, policies=policies, _derived={})
    settings = PlannerSettings(broker_max_topics=most)
    projection = Projection(given)
    answers = FilterCache(rules, projection, settings)
    at = given.bundles.broker.tolist()
    for row, destination in [(0, int(at[0])), *moves]:
        if at[row] != destination:
            namespace = given.bundles.namespaces[given.bundles.namespace[row]]
            projection.move(namespace, row, at[row], destination)
            at[row] = destination
        for namespace in namespaces:
            for excluded in (None, 0):
                asked = answers.question(namespace, excluded, is_homeless=excluded is None)
                kept, dropped = answers.allowed(asked)
                wanted, dropped_then = allowed_brokers(rules, asked)
                assert (kept.tolist(), dropped) == (wanted.tolist(), dropped_then)


def test_topics_left_stop_below_the_limit() -> None:
    given = snapshot({"a": report(topics=4), "b": report(topics=12)})
    assert topics_left(MODULAR, given, TEN_TOPICS).tolist() == [5, -3]
    assert topics_left(SIMPLE, given, TEN_TOPICS).min() > 1_000_000
