"""Which brokers may own a bundle at all, and which of them rather: chains of filters in front of placement.

Source: the filters of Pulsar's ModularLoadManagerImpl.selectBroker and of ExtensibleLoadManagerImpl.selectAsync, each
chain a `FilterRules`. A filter is a pure function from the brokers that are left (a mask) to those that remain, and has
a reason under which the dropped ones are counted. What operators say, policies and limits always hold. Preferences only
choose among what these leave: they are given up when they leave nobody, and when the broker chosen by them is
overloaded.

Differs from Pulsar in the modular rules: when the chosen broker is overloaded, or a broker's version is unreadable,
Pulsar goes on with all brokers that the isolation policies allow, so those over the topic limit and those of an
anti-affinity group come back; here the limits keep holding. Brokers that run another load-manager class are dropped
first, as in the extensible rules, where Pulsar does it after even distribution and so may give up all filters. Brokers
here do not run load managers, so their class counts only when `loadManagerClassName` is set and some broker runs it.

In Pulsar the preference for brokers with few bundles of a namespace counts whatever these are used. With
`loadBalancerDistributeBundlesEvenlyMarginPercentage` below 100 it chooses among those that are not much busier than the
average, and which are preferred themselves.

Differs from Pulsar in both: topics, bundles of a namespace and namespaces of a group on their way to a broker count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
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
from loadmanager.core.model.extensible_load import throughput_of
from loadmanager.core.model.load import BoolArray, FloatArray, IntArray
from loadmanager.core.model.snapshot import Snapshot, usage_per_broker

_ROUNDING = 1e-9
"""Equal usages are no more than their average but for this."""
_ABOUT_AS_SICK = 1.5


@dataclass(frozen=True, slots=True, eq=False)
class PlacementQuestion:
    """The bundle that needs a broker, and what it is asked against.

    `non_persistent`: it holds such a topic. `excluded`: the row of a broker that is not wanted: the bundle leaves it.
    `is_homeless`: nobody has it, so a sick broker may have it where no other may.
    """

    namespace: str
    non_persistent: bool
    snapshot: Snapshot
    projection: Projection
    settings: PlannerSettings
    excluded: int | None = None
    is_homeless: bool = False


class BrokerFilter(NamedTuple):
    reason: Reason
    keep: Callable[[BoolArray, PlacementQuestion], BoolArray]


def keep_not_draining(brokers: BoolArray, question: PlacementQuestion) -> BoolArray:
    """Those that no operator drains."""
    draining = question.snapshot.controls.draining
    if not draining:
        return brokers
    return np.asarray(brokers & ~_which(question.snapshot, "draining", lambda broker: broker in draining))


def keep_not_excluded(brokers: BoolArray, question: PlacementQuestion) -> BoolArray:
    """Those that no operator has excluded."""
    excluded = question.snapshot.controls.excluded
    if not excluded:
        return brokers
    return np.asarray(brokers & ~_which(question.snapshot, "excluded", lambda broker: broker in excluded))


def keep_well(brokers: BoolArray, question: PlacementQuestion) -> BoolArray:
    """Those that are not sick."""
    return _keep_not(FilterReason.BROKER_SICK, brokers, question)


def keep_serving(brokers: BoolArray, question: PlacementQuestion) -> BoolArray:
    """Those that are not stuck: these serve nothing of what they own."""
    return _keep_not(FilterReason.BROKER_STUCK, brokers, question)


def _keep_not(reason: Reason, brokers: BoolArray, question: PlacementQuestion) -> BoolArray:
    sick = question.snapshot.doubts.sick
    if not sick:
        return brokers
    are_so = _which(question.snapshot, reason.value, lambda broker: broker in sick and sick[broker].verdict is reason)
    return np.asarray(brokers & ~are_so)


def keep_least_sick(brokers: BoolArray, question: PlacementQuestion) -> BoolArray:
    """Those that are well; where none is that is not overloaded, those that are about as sick as the least sick."""
    snapshot, settings = question.snapshot, question.settings
    unwell = snapshot.derive("unwell", lambda: snapshot.doubts.unwell)
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
    """Those that the namespace's isolation policy names: its primary brokers, and when they are fewer than its limit
    the secondary ones too. Without a policy, those that are no policy's primary.
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
    """Those that serve persistent topics, or non-persistent ones for a bundle that holds such a topic; all when an
    isolation policy names the brokers.
    """
    if question.snapshot.policies.find_policy(question.namespace) is not None:
        return brokers
    columns = question.snapshot.brokers
    serving = columns.non_persistent_enabled if question.non_persistent else columns.persistent_enabled
    return np.asarray(brokers & serving)


def keep_same_load_manager(brokers: BoolArray, question: PlacementQuestion) -> BoolArray:
    """Those that run the configured load-manager class, if any of them does."""
    wanted = short_class_name(question.settings.load_manager_class_name)
    if not wanted:
        return brokers
    classes = question.snapshot.brokers.load_manager_classes
    kept = brokers & question.snapshot.derive(
        ("load manager", wanted), lambda: np.array([short_class_name(name) == wanted for name in classes], dtype=bool)
    )
    return kept if kept.any() else brokers


def keep_below_topic_limit(brokers: BoolArray, question: PlacementQuestion) -> BoolArray:
    """Those with at most the greatest number of topics, bundles on their way included; all when that leaves none."""
    kept = np.asarray(brokers & (expected_topics(question) <= question.settings.broker_max_topics))
    return kept if kept.any() else brokers


def keep_strictly_below_topic_limit(brokers: BoolArray, question: PlacementQuestion) -> BoolArray:
    """Those with fewer topics than the greatest number, bundles on their way included; the extensible rule."""
    return np.asarray(brokers & (expected_topics(question) < question.settings.broker_max_topics))


def keep_fewest_in_failure_domain(
    brokers: BoolArray, question: PlacementQuestion, *, count_bundles: bool = False
) -> BoolArray:
    """Those in the failure domains that have least of the namespace's anti-affinity group in all."""
    policies = question.snapshot.policies
    counts = find_group_counts(question, count_bundles=count_bundles)
    if counts is None or not (question.settings.failure_domains_enabled and policies.failure_domains):
        return brokers
    domain = question.snapshot.derive("failure domains", lambda: failure_domains(question.snapshot))
    totals = np.bincount(domain[brokers], weights=counts[brokers], minlength=len(brokers)).astype(np.int64)
    return _keep_least(brokers, totals[domain])


def keep_fewest_of_group(brokers: BoolArray, question: PlacementQuestion, *, count_bundles: bool = False) -> BoolArray:
    """Those that have least of the namespace's anti-affinity group: namespaces, or their bundles."""
    counts = find_group_counts(question, count_bundles=count_bundles)
    return brokers if counts is None else _keep_least(brokers, counts)


def keep_no_busier_than_average(brokers: BoolArray, question: PlacementQuestion) -> BoolArray:
    """Those used no more than the average of them, and a margin, with what is on its way to them: an overloaded broker
    has few bundles because they are heavy, and shall not be given more for that. All of them as in Pulsar, or where
    bundles of a namespace are not spread.
    """
    settings = question.settings
    margin = settings.distribute_bundles_evenly_margin_percentage / 100
    if not _is_spread(question) or margin >= 1:
        return brokers
    count = np.count_nonzero(brokers)
    if not count:
        return brokers
    usage = expected_usage(question)
    mean = np.add.reduce(usage[brokers]) / count
    kept = np.asarray(brokers & (usage <= mean + margin + _ROUNDING))
    return kept if np.count_nonzero(kept) else brokers


def keep_fewest_of_namespace(brokers: BoolArray, question: PlacementQuestion) -> BoolArray:
    """Those with the fewest bundles of the namespace, so that each namespace is spread over the brokers; the system
    namespace is whatever the setting.
    """
    if not _is_spread(question):
        return brokers
    return _keep_least(brokers, question.projection.bundles_per_broker(question.namespace))


def keep_fewest_of_namespace_always(brokers: BoolArray, question: PlacementQuestion) -> BoolArray:
    """`keep_fewest_of_namespace` whatever the setting: the simple rule."""
    return _keep_least(brokers, question.projection.bundles_per_broker(question.namespace))


def keep_latest_version(brokers: BoolArray, question: PlacementQuestion) -> BoolArray:
    """Those that run the latest version among them, if later versions are preferred; none if one is unreadable."""
    if not question.settings.prefer_later_versions or _is_of_one_version(question.snapshot) or not brokers.any():
        return brokers
    ranks = version_ranks(question.snapshot)
    if ranks[brokers].min() == UNREADABLE:
        return np.zeros_like(brokers)
    return np.asarray(brokers & (ranks == ranks[brokers].max()))


def keep_latest_readable_version(brokers: BoolArray, question: PlacementQuestion) -> BoolArray:
    """`keep_latest_version`, but all of them if one's version is unreadable: the extensible rule."""
    kept = keep_latest_version(brokers, question)
    return kept if kept.any() else brokers


class FilterRules(NamedTuple):
    """The filters of one load manager.

    `policies` are judged with the broker that the bundle is to leave, which counts as a primary one, and `limits`
    without it. `second_choice`: an overloaded choice is made again without the preferences.
    """

    policies: tuple[BrokerFilter, ...]
    limits: tuple[BrokerFilter, ...]
    preferences: tuple[BrokerFilter, ...]
    second_choice: bool


CONTROLS = (
    BrokerFilter(FilterReason.BROKER_DRAINING, keep_not_draining),
    BrokerFilter(FilterReason.BROKER_EXCLUDED, keep_not_excluded),
)
"""What operators say holds in front of everything: such a broker does not count as a primary one that is there."""

HEALTH = (
    BrokerFilter(FilterReason.BROKER_STUCK, keep_serving),
    BrokerFilter(FilterReason.BROKER_SICK, keep_well),
)
"""Comes next, so that the secondary brokers of a policy stand in for a sick primary one."""

LEAST_SICK = (BrokerFilter(FilterReason.SICKER_THAN_OTHERS, keep_least_sick),)
"""Comes last: it chooses among those that may have the bundle."""

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
        BrokerFilter(FilterReason.BUSIER_THAN_AVERAGE, keep_no_busier_than_average),
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
    preferences=(BrokerFilter(FilterReason.OWNS_MORE_OF_NAMESPACE, keep_fewest_of_namespace_always),),
    second_choice=False,
)

_SIMPLE_PLACEMENT = frozenset({"leastLoadedServer", "leastMsgPerSecond", "weightedRandomSelection"})


LEVEL = MODULAR._replace(preferences=(BrokerFilter(FilterReason.OLDER_VERSION, keep_latest_version),))
"""Placement by what a broker would use does better without a preference for brokers with few bundles of a namespace."""


def rules_of(settings: PlannerSettings, placement_strategy: str) -> FilterRules:
    """The rules of the load manager that is configured, or that a strategy belongs to; `placement_strategy` is the
    short name of that one.
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
    """The brokers that pass all filters, and how many each one dropped, by its reason, if any."""
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
    """The brokers (M,) that may own the bundle, and how many may not, by reason."""
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
    """The brokers (M,) that may own the bundle as far as that does not depend on who owns what."""
    of_class = (_CLASS,) if _CLASS in rules.limits else ()
    return apply((*CONTROLS, *_ISOLATION, *of_class), everyone(question), question)[0]


class FilterCache:
    """`allowed_brokers` of the bundles of one plan, most of them worked out once for many: what a step changes is only
    how many topics brokers have, and what they have of an anti-affinity group.

    An answer holds for all namespaces of the same isolation policy, until as many topics have moved as the broker that
    is nearest to the limit lacks or has too many. For a namespace of a group the filters are asked each time.
    """

    def __init__(
        self, rules: FilterRules, snapshot: Snapshot, projection: Projection, settings: PlannerSettings
    ) -> None:
        self._rules = rules
        self._snapshot = snapshot
        self._projection = projection
        self._settings = settings
        self._known: dict[Hashable, tuple[BoolArray, dict[str, Figure]]] = {}
        self._until = 0
        """The number of topics moved from which on nothing is known."""
        self._questions: dict[tuple[str, int | None, bool, bool], PlacementQuestion] = {}

    def question(
        self, namespace: str, excluded: int | None, *, non_persistent: bool = False, is_homeless: bool = False
    ) -> PlacementQuestion:
        key = namespace, excluded, non_persistent, is_homeless
        question = self._questions.get(key)
        if question is None:
            question = self._questions[key] = PlacementQuestion(
                namespace, non_persistent, self._snapshot, self._projection, self._settings, excluded, is_homeless
            )
        return question

    def allowed(self, question: PlacementQuestion) -> tuple[BoolArray, Mapping[str, Figure]]:
        """As `allowed_brokers`, of one of these questions; the mask is to be read."""
        policies = self._snapshot.policies
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
    """Why this broker (a row) may not be given the bundle even at an operator's word: what other operators say, or an
    isolation policy. Limits that only spread bundles are not asked.
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
    """Those of the allowed brokers that are rather chosen, never nobody, and how many are passed over, by reason."""
    brokers, passed_over = apply(rules.preferences, allowed, question)
    if np.count_nonzero(brokers) or not allowed.any():
        return brokers, passed_over
    unreadable = int(np.count_nonzero(allowed & (version_ranks(question.snapshot) == UNREADABLE)))
    return allowed, {FilterReason.VERSION_UNREADABLE.value: unreadable}


def find_pin(snapshot: Snapshot, bundle: str, allowed: BoolArray) -> tuple[int | None, dict[str, Figure]]:
    """The row of the broker on which the bundle is pinned, if it may be given it now; else what is in the way."""
    broker = snapshot.controls.pinned.get(bundle)
    if broker is None:
        return None, {}
    row = snapshot.brokers.find_row(broker)
    if row is not None and allowed[row]:
        return row, {}
    in_the_way = "is not registered" if row is None else "may not be given it now"
    return None, {"pinned_to": broker, "pin_not_kept": in_the_way}


def find_isolation_refusal(question: PlacementQuestion) -> dict[str, Figure] | None:
    """The numbers of the isolation policy that leaves no broker at all, None if there is no such."""
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
    """Why a bundle should not leave its broker, `question.excluded`, for the sake of its anti-affinity group: all
    brokers that may own it have equally much of the group, and something. None if it may.
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
    """All brokers (M,)."""
    return np.ones(len(question.snapshot.brokers), dtype=bool)


def others_than_excluded(brokers: BoolArray, question: PlacementQuestion) -> BoolArray:
    """The brokers without the excluded one."""
    others = brokers.copy()
    if question.excluded is not None:
        others[question.excluded] = False
    return others


def _keep_least(brokers: BoolArray, counts: IntArray) -> BoolArray:
    if not np.count_nonzero(brokers):
        return brokers
    return np.asarray(brokers & (counts == np.minimum.reduce(counts[brokers])))


def _is_spread(question: PlacementQuestion) -> bool:
    """Whether the bundles of the namespace are to be spread over the brokers."""
    return question.settings.distribute_bundles_evenly_enabled or question.namespace == SYSTEM_NAMESPACE


def expected_usage(question: PlacementQuestion) -> FloatArray:
    """The usage of each broker (M,), a fraction, with that of bundles on their way to it, by what bytes/s cost on
    average over all brokers.
    """
    snapshot = question.snapshot
    weights = question.settings.resource_weights
    usage = usage_per_broker(snapshot, weights)
    cost = snapshot.derive(("cost of bytes", weights), lambda: _cost_of_bytes(snapshot, usage))
    if not cost:
        return usage
    return np.asarray(usage + cost * throughput_of(snapshot.brokers.preallocated + question.projection.load))


def _cost_of_bytes(snapshot: Snapshot, usage: FloatArray) -> np.float64 | float:
    carried = throughput_of(snapshot.brokers.load).sum()
    return usage.sum() / carried if carried > 0 else 0.0


def expected_topics(question: PlacementQuestion) -> IntArray:
    """The topics of each broker (M,), with those of bundles on their way to it."""
    columns = question.snapshot.brokers
    return np.asarray(columns.topics + columns.preallocated_topics + question.projection.topics)


def topics_left(rules: FilterRules, snapshot: Snapshot, settings: PlannerSettings) -> IntArray:
    """(M,): how many more topics each broker may be given, so that it is below the limit in any case after that."""
    columns = snapshot.brokers
    topics = columns.topics + columns.preallocated_topics
    most = settings.broker_max_topics if rules.limits else np.iinfo(np.int32).max
    return np.asarray(most - 1 - topics)


def find_group_counts(question: PlacementQuestion, *, count_bundles: bool) -> IntArray | None:
    """How much each broker has of the namespace's anti-affinity group (M,), None if it is in none."""
    group = question.snapshot.policies.find_group(question.namespace)
    if group is None:
        return None
    counts = question.projection.group_counts(group)
    return counts.bundles if count_bundles else counts.namespaces


def failure_domains(snapshot: Snapshot) -> IntArray:
    """A number for the failure domain of each broker (M,)."""
    domains = [snapshot.policies.failure_domain(broker) for broker in snapshot.brokers.ids]
    return np.unique(domains, return_inverse=True)[1].astype(np.int64)


def version_ranks(snapshot: Snapshot) -> IntArray:
    """A number for the version of each broker (M,), higher for a later one, `UNREADABLE` for what is none."""
    return snapshot.derive("version ranks", lambda: rank_versions(snapshot.brokers.versions))


def _is_of_one_version(snapshot: Snapshot) -> bool:
    """Whether all brokers run the same version, one that can be read."""
    ranks = snapshot.derive("versions", lambda: set(version_ranks(snapshot).tolist()))
    return len(ranks) == 1 and UNREADABLE not in ranks


def _named_by(snapshot: Snapshot, policy: IsolationPolicy) -> tuple[BoolArray, BoolArray]:
    """The primary brokers of the policy, and its secondary ones, (M,) each."""
    policies = snapshot.policies
    primary = _which(snapshot, ("primary", policy.name), lambda broker: policies.is_primary(policy, broker))
    secondary = _which(snapshot, ("secondary", policy.name), lambda broker: policies.is_secondary(policy, broker))
    return primary, secondary


def _which(snapshot: Snapshot, key: Hashable, holds: Callable[[BrokerId], bool]) -> BoolArray:
    """The brokers (M,) of which something holds, found out once per snapshot."""
    return snapshot.derive(key, lambda: np.array([holds(broker) for broker in snapshot.brokers.ids], dtype=bool))
