"""Obstacles: all filters that keep one bundle from one broker, with figures.

`core.constraints.filters` counts the brokers that each filter drops, in sequence. Here one broker is checked against
each filter, also after the first obstacle: an operator who clears one needs to know the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from loadmanager.core.constraints.filters import (
    CONTROLS,
    EXTENSIBLE,
    HEALTH,
    LEAST_SICK,
    BrokerFilter,
    FilterRules,
    PlacementQuestion,
    everyone,
    expected_topics,
    failure_domains,
    find_group_counts,
    others_than_excluded,
    version_ranks,
)
from loadmanager.core.domain.plan import Figure
from loadmanager.core.domain.reasons import FilterReason, Reason
from loadmanager.core.domain.settings import KEYS, short_class_name
from loadmanager.core.model.load import BoolArray

_OF_ANY_BUNDLE = (FilterReason.OTHER_LOAD_MANAGER_CLASS, FilterReason.TOPIC_LIMIT_REACHED)
"""Filters that apply to every bundle, besides operator controls."""


class FilterObstacle(NamedTuple):
    """A filter that would drop the broker, with its figures. Only preferences may be ignored."""

    reason: Reason
    why: Mapping[str, Figure]
    is_preference: bool = False


class _Case(NamedTuple):
    """A broker (a row) dropped from `brokers`, which include it. The extensible rules count differently."""

    question: PlacementQuestion
    brokers: BoolArray
    broker: int
    is_extensible: bool


def find_obstacles(rules: FilterRules, question: PlacementQuestion, broker: int) -> list[FilterObstacle]:
    """Find all obstacles between the bundle and the broker (a row), in filter order."""
    return _find_obstacles(rules, question, broker, is_extensible=rules is EXTENSIBLE)


def find_general_obstacles(rules: FilterRules, question: PlacementQuestion, broker: int) -> list[FilterObstacle]:
    """Find the obstacles that keep any bundle from the broker."""
    limits = tuple(each for each in rules.limits if each.reason in _OF_ANY_BUNDLE)
    general = FilterRules((), limits, (), second_choice=False)
    return _find_obstacles(general, question, broker, is_extensible=rules is EXTENSIBLE)


def _find_obstacles(
    rules: FilterRules, question: PlacementQuestion, broker: int, *, is_extensible: bool
) -> list[FilterObstacle]:
    obstacles: list[FilterObstacle] = []

    def judge(filters: tuple[BrokerFilter, ...], brokers: BoolArray, *, is_preference: bool = False) -> BoolArray:
        for reason, keep in filters:
            asked = brokers.copy()
            asked[broker] = True
            if not keep(asked, question)[broker]:
                why = _FIGURES[reason](_Case(question, asked, broker, is_extensible))
                obstacles.append(FilterObstacle(reason, why, is_preference))
            brokers = keep(brokers, question)
        return brokers

    left = judge((*CONTROLS, *HEALTH), everyone(question))
    left = judge(rules.policies, left)
    left = judge(rules.limits, others_than_excluded(left, question))
    if not {each.reason for each in obstacles}.intersection(each.reason for each in HEALTH):
        left = judge(LEAST_SICK, left)
    judge(rules.preferences, left, is_preference=True)
    return obstacles


def _drain(case: _Case) -> dict[str, Figure]:
    snapshot = case.question.snapshot
    since_s = snapshot.controls.draining[snapshot.brokers.ids[case.broker]].since_s
    return {"drained_for_s": max(0, round(snapshot.taken_at_s - since_s))}


def _sickness(case: _Case) -> dict[str, Figure]:
    snapshot = case.question.snapshot
    return dict(snapshot.faults.unwell[snapshot.brokers.ids[case.broker]].why)


def _isolation(case: _Case) -> dict[str, Figure]:
    policies, question = case.question.snapshot.policies, case.question
    broker = question.snapshot.brokers.ids[case.broker]
    policy = policies.find_policy(question.namespace)
    if policy is None:
        owner = next(each.name for each in policies.isolation if policies.is_primary(each, broker))
        return {"reserved_by": owner, "namespace": question.namespace}
    ids = question.snapshot.brokers.ids
    primary = sum(policies.is_primary(policy, ids[row]) for row in np.flatnonzero(case.brokers).tolist())
    role = "secondary" if policies.is_secondary(policy, broker) else "none"
    return {"policy": policy.name, "role": role, "primary": primary, "min_limit": policy.min_limit}


def _domain(case: _Case) -> dict[str, Figure]:
    return {"domain": "non-persistent" if case.question.non_persistent else "persistent"}


def _class(case: _Case) -> dict[str, Figure]:
    its_class = case.question.snapshot.brokers.load_manager_classes[case.broker]
    wanted = case.question.settings.load_manager_class_name
    return {"class": short_class_name(its_class) or "none", KEYS["load_manager_class_name"]: short_class_name(wanted)}


def _topic_limit(case: _Case) -> dict[str, Figure]:
    topics, most = int(expected_topics(case.question)[case.broker]), case.question.settings.broker_max_topics
    too_many = topics - most + case.is_extensible
    return {"topics": topics, "too_many": too_many, KEYS["broker_max_topics"]: most}


def _failure_domain(case: _Case) -> dict[str, Figure]:
    snapshot = case.question.snapshot
    domain, brokers = failure_domains(snapshot), case.brokers
    counts = find_group_counts(case.question, count_bundles=case.is_extensible)
    assert counts is not None, "only a namespace of a group is kept from a failure domain"
    totals = np.bincount(domain[brokers], weights=counts[brokers], minlength=len(brokers)).astype(np.int64)[domain]
    name = snapshot.policies.failure_domain(snapshot.brokers.ids[case.broker])
    return {"failure_domain": name, **_group(case), **_describe_excess(totals[case.broker], totals[brokers].min())}


def _group_members(case: _Case) -> dict[str, Figure]:
    counts = find_group_counts(case.question, count_bundles=case.is_extensible)
    assert counts is not None, "only a namespace of a group is kept from its other members"
    return {**_group(case), **_describe_excess(counts[case.broker], counts[case.brokers].min())}


def _namespace_bundles(case: _Case) -> dict[str, Figure]:
    question = case.question
    counts = question.projection.bundles_per_broker(question.namespace)
    return {"namespace": question.namespace, **_describe_excess(counts[case.broker], counts[case.brokers].min())}


def _version(case: _Case) -> dict[str, Figure]:
    snapshot = case.question.snapshot
    ranks = version_ranks(snapshot)
    latest = int(np.argmax(np.where(case.brokers, ranks, ranks.min() - 1)))
    return {"version": snapshot.brokers.versions[case.broker], "latest": snapshot.brokers.versions[latest]}


def _group(case: _Case) -> dict[str, Figure]:
    counted = "bundles" if case.is_extensible else "namespaces"
    return {"group": case.question.snapshot.policies.find_group(case.question.namespace) or "", "counted": counted}


def _describe_excess(its: np.int64, least: np.int64) -> dict[str, Figure]:
    return {"has": int(its), "least": int(least), "too_many": int(its - least)}


_FIGURES: Mapping[Reason, Callable[[_Case], dict[str, Figure]]] = {
    FilterReason.BROKER_DRAINING: _drain,
    FilterReason.BROKER_EXCLUDED: lambda _: {},
    FilterReason.BROKER_STUCK: _sickness,
    FilterReason.BROKER_SICK: _sickness,
    FilterReason.SICKER_THAN_OTHERS: _sickness,
    FilterReason.ISOLATION_POLICY: _isolation,
    FilterReason.PERSISTENCE_DISABLED: _domain,
    FilterReason.OTHER_LOAD_MANAGER_CLASS: _class,
    FilterReason.TOPIC_LIMIT_REACHED: _topic_limit,
    FilterReason.FAILURE_DOMAIN_HAS_MORE_OF_GROUP: _failure_domain,
    FilterReason.HAS_MORE_OF_GROUP: _group_members,
    FilterReason.OWNS_MORE_OF_NAMESPACE: _namespace_bundles,
    FilterReason.OLDER_VERSION: _version,
}
