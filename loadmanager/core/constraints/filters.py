"""Filter chains in front of placement: hard constraints and preferences on the owner of a bundle.

Source: the filters of Pulsar's ModularLoadManagerImpl.selectBroker and of ExtensibleLoadManagerImpl.selectAsync, each
chain a `FilterRules`. A filter is a pure function from the remaining brokers (a mask) to those that pass. Dropped
brokers are counted under its reason. Operator controls, policies and limits are hard constraints. Preferences choose
among the brokers that pass these. They are ignored if no broker passes them, or if the chosen broker is overloaded.

Differs from Pulsar in the modular rules. When the chosen broker is overloaded, or a broker's version is unreadable,
Pulsar continues with all brokers that the isolation policies allow, also those over the topic limit or with members of
the anti-affinity group; here the limits still apply. Brokers that run another load-manager class are dropped first, as
in the extensible rules; Pulsar drops them after even distribution and may then discard all filters. Brokers here do not
run load managers, so their class counts only when `loadManagerClassName` is set and some broker runs it.

Differs from Pulsar in both rules: topics and bundles that are moving to a broker count as its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from loadmanager.core.constraints.projection import Projection
from loadmanager.core.domain.names import SYSTEM_NAMESPACE, BrokerId
from loadmanager.core.domain.plan import Figure, Verdict
from loadmanager.core.domain.policies import IsolationPolicy
from loadmanager.core.domain.reasons import FilterReason, Reason
from loadmanager.core.domain.settings import PlannerSettings, is_simple, short_class_name
from loadmanager.core.model.broker_versions import UNREADABLE, rank_versions
from loadmanager.core.model.load import BoolArray, IntArray
from loadmanager.core.model.snapshot import Snapshot, usage_per_broker

_ABOUT_AS_SICK = 1.5


class PlacementQuestion(NamedTuple):
    """The bundle that needs a broker, and the state to check against.

    `excluded`: the broker row that the bundle leaves. `non_persistent`: it holds a non-persistent topic. `is_homeless`:
    the bundle is unowned, so a sick broker may own it if no other may.
    """

    namespace: str
    projection: Projection
    settings: PlannerSettings
    excluded: int | None = None
    non_persistent: bool = False
    is_homeless: bool = False

    @property
    def snapshot(self) -> Snapshot:
        return self.projection.snapshot


class BrokerFilter(NamedTuple):
    reason: Reason
    keep: Callable[[BoolArray, PlacementQuestion], BoolArray]


def keep_not_draining(brokers: BoolArray, question: PlacementQuestion) -> BoolArray:
    """Keep brokers that no operator drains."""
    return _drop(brokers, question, "draining", question.snapshot.controls.draining)


def keep_not_excluded(brokers: BoolArray, question: PlacementQuestion) -> BoolArray:
    """Keep brokers that no operator has excluded."""
    return _drop(brokers, question, "excluded", question.snapshot.controls.excluded)


def keep_without_fault(brokers: BoolArray, question: PlacementQuestion, *, fault: Reason) -> BoolArray:
    """Keep brokers without this fault: sick, or stuck, which serve none of their bundles."""
    faulty = {broker for broker, verdict in question.snapshot.faults.sick.items() if verdict.verdict is fault}
    return _drop(brokers, question, fault.value, faulty)


def _drop(brokers: BoolArray, question: PlacementQuestion, key: str, named: Collection[BrokerId]) -> BoolArray:
    """Drop the named brokers; `key` caches them per snapshot."""
    return np.asarray(brokers & ~_which(question.snapshot, key, named.__contains__)) if named else brokers


def keep_least_sick(brokers: BoolArray, question: PlacementQuestion) -> BoolArray:
    """Keep healthy brokers; if all of those are overloaded, those about as sick as the least sick one."""
    snapshot, settings = question.snapshot, question.settings
    unwell = snapshot.derive("unwell", lambda: snapshot.faults.unwell)
    if not unwell:
        return brokers
    ids = snapshot.brokers.ids
    times = snapshot.derive("sickness", lambda: np.array([_times_off(unwell.get(broker)) for broker in ids]))
    threshold = settings.broker_overloaded_threshold_percentage / 100
    free = brokers & (usage_per_broker(snapshot, settings.resource_weights) <= threshold)
    if not free.any():
        return brokers
    return np.asarray(brokers & (times <= _ABOUT_AS_SICK * times[free].min()))


def _times_off(verdict: Verdict | None) -> float:
    if verdict is None:
        return 0.0
    return math.inf if verdict.verdict is FilterReason.BROKER_STUCK else float(verdict.why.get("times", 1.0))


def keep_isolated(brokers: BoolArray, question: PlacementQuestion) -> BoolArray:
    """Keep the brokers of the namespace's isolation policy: primary ones, plus secondary ones if there are fewer
    primaries than its limit. Without a policy, keep brokers that are not primary in any policy.
    """
    policies = question.snapshot.policies
    if not policies.isolation:
        return brokers
    policy = policies.find_policy(question.namespace)
    if policy is None:
        return np.asarray(brokers & _which(question.snapshot, "shared", policies.is_shared))
    primary, secondary = _named_by(question.snapshot, policy)
    kept = brokers & primary
    if np.count_nonzero(kept) < policy.min_limit:
        kept |= brokers & secondary
    return kept


def keep_serving_domain(brokers: BoolArray, question: PlacementQuestion) -> BoolArray:
    """Keep brokers that serve persistent topics, or non-persistent ones for a bundle with such a topic; all if an
    isolation policy names the brokers.
    """
    if question.snapshot.policies.find_policy(question.namespace) is not None:
        return brokers
    columns = question.snapshot.brokers
    serving = columns.non_persistent_enabled if question.non_persistent else columns.persistent_enabled
    return np.asarray(brokers & serving)


def keep_same_load_manager(brokers: BoolArray, question: PlacementQuestion) -> BoolArray:
    """Keep brokers that run the configured load-manager class, if any does."""
    wanted = short_class_name(question.settings.load_manager_class_name)
    if not wanted:
        return brokers
    classes = question.snapshot.brokers.load_manager_classes
    kept = brokers & question.snapshot.derive(
        ("load manager", wanted), lambda: np.array([short_class_name(name) == wanted for name in classes], dtype=bool)
    )
    return kept if kept.any() else brokers


def keep_below_topic_limit(brokers: BoolArray, question: PlacementQuestion) -> BoolArray:
    """Keep brokers within the topic limit, counting incoming bundles; keep all if none is."""
    kept = np.asarray(brokers & (expected_topics(question) <= question.settings.broker_max_topics))
    return kept if kept.any() else brokers


def keep_strictly_below_topic_limit(brokers: BoolArray, question: PlacementQuestion) -> BoolArray:
    """Keep brokers below the topic limit, counting incoming bundles; the extensible rule."""
    return np.asarray(brokers & (expected_topics(question) < question.settings.broker_max_topics))


def keep_fewest_in_failure_domain(
    brokers: BoolArray, question: PlacementQuestion, *, count_bundles: bool = False
) -> BoolArray:
    """Keep the failure domains with the fewest members of the namespace's anti-affinity group."""
    policies = question.snapshot.policies
    counts = find_group_counts(question, count_bundles=count_bundles)
    if counts is None or not (question.settings.failure_domains_enabled and policies.failure_domains):
        return brokers
    domain = question.snapshot.derive("failure domains", lambda: failure_domains(question.snapshot))
    totals = np.bincount(domain[brokers], weights=counts[brokers], minlength=len(brokers)).astype(np.int64)
    return _keep_least(brokers, totals[domain])


def keep_fewest_of_group(brokers: BoolArray, question: PlacementQuestion, *, count_bundles: bool = False) -> BoolArray:
    """Keep brokers with the fewest namespaces, or bundles, of the namespace's anti-affinity group."""
    counts = find_group_counts(question, count_bundles=count_bundles)
    return brokers if counts is None else _keep_least(brokers, counts)


def keep_fewest_of_namespace(brokers: BoolArray, question: PlacementQuestion, *, always: bool = False) -> BoolArray:
    """Keep brokers with the fewest bundles of the namespace, if the setting is on or it is the system namespace.

    The simple rule does so `always`.
    """
    is_spread = question.settings.distribute_bundles_evenly_enabled or question.namespace == SYSTEM_NAMESPACE
    if not (always or is_spread):
        return brokers
    return _keep_least(brokers, question.projection.bundles_per_broker(question.namespace))


def keep_latest_version(brokers: BoolArray, question: PlacementQuestion) -> BoolArray:
    """Keep brokers with the latest version, if later versions are preferred; none if one is unreadable."""
    if not question.settings.prefer_later_versions or not brokers.any():
        return brokers
    ranks = version_ranks(question.snapshot)
    if ranks[brokers].min() == UNREADABLE:
        return np.zeros_like(brokers)
    return np.asarray(brokers & (ranks == ranks[brokers].max()))


def keep_latest_readable_version(brokers: BoolArray, question: PlacementQuestion) -> BoolArray:
    """Apply `keep_latest_version`, but keep all if a version is unreadable: the extensible rule."""
    kept = keep_latest_version(brokers, question)
    return kept if kept.any() else brokers


class FilterRules(NamedTuple):
    """Filters of one load manager.

    `policies` are evaluated with the broker that the bundle leaves, since it counts as a primary broker; `limits` are
    evaluated without it. `second_choice`: if the chosen broker is overloaded, choose again without the preferences.
    """

    policies: tuple[BrokerFilter, ...]
    limits: tuple[BrokerFilter, ...]
    preferences: tuple[BrokerFilter, ...]
    second_choice: bool


CONTROLS = (
    BrokerFilter(FilterReason.BROKER_DRAINING, keep_not_draining),
    BrokerFilter(FilterReason.BROKER_EXCLUDED, keep_not_excluded),
)
"""Operator controls come first: a drained broker does not count as an available primary one."""

HEALTH = (
    BrokerFilter(FilterReason.BROKER_STUCK, partial(keep_without_fault, fault=FilterReason.BROKER_STUCK)),
    BrokerFilter(FilterReason.BROKER_SICK, partial(keep_without_fault, fault=FilterReason.BROKER_SICK)),
)
"""Health comes next, so that the secondary brokers of a policy stand in for a sick primary one."""

LEAST_SICK = (BrokerFilter(FilterReason.SICKER_THAN_OTHERS, keep_least_sick),)
"""Comes last: chooses among eligible brokers."""

_ISOLATION = (
    BrokerFilter(FilterReason.ISOLATION_POLICY, keep_isolated),
    BrokerFilter(FilterReason.PERSISTENCE_DISABLED, keep_serving_domain),
)
_CLASS = BrokerFilter(FilterReason.OTHER_LOAD_MANAGER_CLASS, keep_same_load_manager)

MODULAR = FilterRules(
    policies=_ISOLATION,
    limits=(
        _CLASS,
        BrokerFilter(FilterReason.TOPIC_LIMIT_REACHED, keep_below_topic_limit),
        BrokerFilter(FilterReason.FAILURE_DOMAIN_HAS_MORE_OF_GROUP, keep_fewest_in_failure_domain),
        BrokerFilter(FilterReason.HAS_MORE_OF_GROUP, keep_fewest_of_group),
    ),
    preferences=(
        BrokerFilter(FilterReason.OWNS_MORE_OF_NAMESPACE, keep_fewest_of_namespace),
        BrokerFilter(FilterReason.OLDER_VERSION, keep_latest_version),
    ),
    second_choice=True,
)

EXTENSIBLE = FilterRules(
    policies=(),
    limits=(
        _CLASS,
        BrokerFilter(FilterReason.TOPIC_LIMIT_REACHED, keep_strictly_below_topic_limit),
        BrokerFilter(FilterReason.OLDER_VERSION, keep_latest_readable_version),
        BrokerFilter(
            FilterReason.FAILURE_DOMAIN_HAS_MORE_OF_GROUP, partial(keep_fewest_in_failure_domain, count_bundles=True)
        ),
        BrokerFilter(FilterReason.HAS_MORE_OF_GROUP, partial(keep_fewest_of_group, count_bundles=True)),
        *_ISOLATION,
    ),
    preferences=(),
    second_choice=False,
)

SIMPLE = FilterRules(
    policies=_ISOLATION,
    limits=(),
    preferences=(BrokerFilter(FilterReason.OWNS_MORE_OF_NAMESPACE, partial(keep_fewest_of_namespace, always=True)),),
    second_choice=False,
)

_SIMPLE_PLACEMENT = frozenset({"leastLoadedServer", "leastMsgPerSecond", "weightedRandomSelection"})


LEVEL = MODULAR._replace(preferences=(BrokerFilter(FilterReason.OLDER_VERSION, keep_latest_version),))
"""Level placement works better without a preference for brokers with few bundles of a namespace."""


def rules_of(settings: PlannerSettings, placement_strategy: str) -> FilterRules:
    """Return the rules of the configured load manager, or of the one that the strategy belongs to; `placement_strategy`
    is a short name.
    """
    if is_simple(settings):
        return SIMPLE
    by_class = short_class_name(settings.load_manager_class_name) == "ExtensibleLoadManagerImpl"
    by_shedding = short_class_name(settings.shedding_strategy) == "TransferShedder"
    by_placement = placement_strategy == "LeastResourceUsageWithWeightExtensible"
    if by_class or by_shedding or by_placement:
        return EXTENSIBLE
    if placement_strategy == "Level":
        return LEVEL
    return SIMPLE if placement_strategy in _SIMPLE_PLACEMENT else MODULAR


def apply(
    filters: tuple[BrokerFilter, ...], brokers: BoolArray, question: PlacementQuestion
) -> tuple[BoolArray, dict[str, Figure]]:
    """Apply all filters; return the remaining brokers, and the number dropped per reason."""
    dropped: dict[str, Figure] = {}
    left: int | None = None
    for reason, keep in filters:
        kept = keep(brokers, question)
        if kept is not brokers:
            before = int(np.count_nonzero(brokers)) if left is None else left
            left = int(np.count_nonzero(kept))
            if left != before:
                dropped[reason.value] = before - left
        brokers = kept
    return brokers, dropped


def allowed_brokers(rules: FilterRules, question: PlacementQuestion) -> tuple[BoolArray, dict[str, Figure]]:
    """Return the brokers (M,) that may own the bundle, and the number excluded per reason."""
    brokers, by_control = apply(CONTROLS, everyone(question), question)
    well, by_health = apply(HEALTH, brokers, question)
    allowed, by_rule = _allowed_by_rules(rules, well, question)
    if by_health and question.is_homeless and not allowed.any():
        by_health = {}
        allowed, by_rule = _allowed_by_rules(rules, brokers, question)
    allowed, by_sickness = apply(LEAST_SICK, allowed, question)
    return allowed, by_control | by_health | by_rule | by_sickness


def _allowed_by_rules(
    rules: FilterRules, brokers: BoolArray, question: PlacementQuestion
) -> tuple[BoolArray, dict[str, Figure]]:
    brokers, by_policy = apply(rules.policies, brokers, question)
    brokers, by_limit = apply(rules.limits, others_than_excluded(brokers, question), question)
    return brokers, by_policy | by_limit


def lasting_brokers(rules: FilterRules, question: PlacementQuestion) -> BoolArray:
    """Return the brokers (M,) that may own the bundle by rules that do not depend on current owners."""
    of_class = (_CLASS,) if _CLASS in rules.limits else ()
    return apply((*CONTROLS, *_ISOLATION, *of_class), everyone(question), question)[0]


class FilterCache:
    """Cache of `allowed_brokers` for the bundles of one plan: a step only changes topic counts and anti-affinity
    groups.

    An answer is shared by all namespaces with the same isolation policy. It expires when enough topics have moved to
    fill the broker that is closest to the limit. Namespaces in an anti-affinity group are not cached.
    """

    def __init__(self, rules: FilterRules, projection: Projection, settings: PlannerSettings) -> None:
        self._rules = rules
        self._projection = projection
        self._settings = settings
        self._known: dict[Hashable, tuple[BoolArray, dict[str, Figure]]] = {}
        self._until = 0
        """Number of moved topics at which answers expire."""

    def question(
        self, namespace: str, excluded: int | None, *, non_persistent: bool = False, is_homeless: bool = False
    ) -> PlacementQuestion:
        return PlacementQuestion(namespace, self._projection, self._settings, excluded, non_persistent, is_homeless)

    def allowed(self, question: PlacementQuestion) -> tuple[BoolArray, Mapping[str, Figure]]:
        """Return `allowed_brokers` for one of these questions; the mask is read-only."""
        policies = question.snapshot.policies
        if policies.find_group(question.namespace) is not None:
            return allowed_brokers(self._rules, question)
        if self._projection.topics_moved >= self._until:
            self._known.clear()
            distance = np.abs(expected_topics(question) - self._settings.broker_max_topics)
            self._until = self._projection.topics_moved + int(distance.min(initial=np.iinfo(np.int64).max))
        policy = policies.find_policy(question.namespace)
        key = policy and policy.name, question.excluded, question.non_persistent, question.is_homeless
        if key not in self._known:
            self._known[key] = allowed_brokers(self._rules, question)
        return self._known[key]


def find_ban(broker: int, question: PlacementQuestion) -> Reason | None:
    """Return the reason why this broker (a row) may not get the bundle even for an operator: other controls, or an
    isolation policy. Limits that only spread bundles do not apply.
    """
    brokers = everyone(question)
    for reason, keep in (*CONTROLS, *_ISOLATION):
        brokers = keep(brokers, question)
        if not brokers[broker]:
            return reason
    return None


def preferred_brokers(
    rules: FilterRules, allowed: BoolArray, question: PlacementQuestion
) -> tuple[BoolArray, dict[str, Figure]]:
    """Return the preferred brokers among the allowed ones, at least one, and the number skipped per reason."""
    brokers, passed_over = apply(rules.preferences, allowed, question)
    if np.count_nonzero(brokers) or not allowed.any():
        return brokers, passed_over
    unreadable = int(np.count_nonzero(allowed & (version_ranks(question.snapshot) == UNREADABLE)))
    return allowed, {FilterReason.VERSION_UNREADABLE.value: unreadable}


def find_pin(snapshot: Snapshot, bundle: str, allowed: BoolArray) -> tuple[int | None, dict[str, Figure]]:
    """Return the row of the bundle's home broker, if allowed now; else the figures of the obstacle."""
    broker = snapshot.controls.pinned.get(bundle)
    if broker is None:
        return None, {}
    row = snapshot.brokers.find_row(broker)
    if row is not None and allowed[row]:
        return row, {}
    in_the_way = "is not registered" if row is None else "may not be given it now"
    return None, {"pinned_to": broker, "pin_not_kept": in_the_way}


def find_isolation_refusal(question: PlacementQuestion) -> dict[str, Figure] | None:
    """Return the figures of the isolation policy that leaves no broker, None if there is none."""
    policy = question.snapshot.policies.find_policy(question.namespace)
    if policy is None or others_than_excluded(keep_isolated(everyone(question), question), question).any():
        return None
    primary, secondary = _named_by(question.snapshot, policy)
    return {
        "policy": policy.name,
        "primary": int(np.count_nonzero(primary)),
        "secondary": int(np.count_nonzero(secondary)),
        "min_limit": policy.min_limit,
    }


def find_anti_affinity_refusal(rules: FilterRules, question: PlacementQuestion) -> dict[str, Figure] | None:
    """Return the figures if a bundle must not leave its broker, `question.excluded`, because of its anti-affinity
    group: all eligible brokers have the same number of its members, at least one. None if it may leave.
    """
    counts = find_group_counts(question, count_bundles=False)
    if counts is None:
        return None
    takers, _ = apply((*CONTROLS, *HEALTH), everyone(question), question)
    brokers, _ = apply(rules.policies, takers | ~others_than_excluded(everyone(question), question), question)
    if not others_than_excluded(brokers, question).any():
        return None
    least = int(counts[brokers].min())
    if least == 0 or np.any(counts[brokers] != least):
        return None
    group = question.snapshot.policies.find_group(question.namespace) or ""
    return {"group": group, "least": least, "candidates": int(np.count_nonzero(brokers))}


def everyone(question: PlacementQuestion) -> BoolArray:
    """Return a mask of all brokers (M,)."""
    return np.ones(len(question.snapshot.brokers), dtype=bool)


def others_than_excluded(brokers: BoolArray, question: PlacementQuestion) -> BoolArray:
    others = brokers.copy()
    if question.excluded is not None:
        others[question.excluded] = False
    return others


def _keep_least(brokers: BoolArray, counts: IntArray) -> BoolArray:
    if not np.count_nonzero(brokers):
        return brokers
    return np.asarray(brokers & (counts == np.minimum.reduce(counts[brokers])))


def expected_topics(question: PlacementQuestion) -> IntArray:
    """Return the topics of each broker (M,), including those of incoming bundles."""
    columns = question.snapshot.brokers
    return np.asarray(columns.topics + columns.preallocated_topics + question.projection.topics)


def topics_left(rules: FilterRules, snapshot: Snapshot, settings: PlannerSettings) -> IntArray:
    """Return the number of topics (M,) that each broker can take and stay below the limit, under any rules."""
    columns = snapshot.brokers
    topics = columns.topics + columns.preallocated_topics
    most = settings.broker_max_topics if rules.limits else np.iinfo(np.int32).max
    return np.asarray(most - 1 - topics)


def find_group_counts(question: PlacementQuestion, *, count_bundles: bool) -> IntArray | None:
    """Count the namespace's anti-affinity group on each broker (M,); None if it is in none."""
    group = question.snapshot.policies.find_group(question.namespace)
    if group is None:
        return None
    counts = question.projection.group_counts(group)
    return counts.bundles if count_bundles else counts.namespaces


def failure_domains(snapshot: Snapshot) -> IntArray:
    """Return the failure domain number of each broker (M,)."""
    domains = [snapshot.policies.failure_domain(broker) for broker in snapshot.brokers.ids]
    return np.unique(domains, return_inverse=True)[1].astype(np.int64)


def version_ranks(snapshot: Snapshot) -> IntArray:
    """Rank the version of each broker (M,), higher for a later one, `UNREADABLE` for an invalid one."""
    return snapshot.derive("version ranks", lambda: rank_versions(snapshot.brokers.versions))


def _named_by(snapshot: Snapshot, policy: IsolationPolicy) -> tuple[BoolArray, BoolArray]:
    """Return the primary and the secondary brokers of the policy, (M,) each."""
    policies = snapshot.policies
    primary = _which(snapshot, ("primary", policy.name), lambda broker: policies.is_primary(policy, broker))
    secondary = _which(snapshot, ("secondary", policy.name), lambda broker: policies.is_secondary(policy, broker))
    return primary, secondary


def _which(snapshot: Snapshot, key: Hashable, holds: Callable[[BrokerId], bool]) -> BoolArray:
    """Evaluate a predicate for each broker (M,), cached per snapshot."""
    return snapshot.derive(key, lambda: np.array([holds(broker) for broker in snapshot.brokers.ids], dtype=bool))
