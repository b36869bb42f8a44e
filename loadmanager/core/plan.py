"""What a decision is: the steps to take, and for everything looked at, why or why not."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from loadmanager.core.ownership import Registration


class Reason(enum.StrEnum):
    """Why something was done or was not done: its value is the log field, the metric label and the explanation."""

    # Placement: why this broker.
    LEAST_LONG_TERM_MESSAGE_RATE = "least_long_term_message_rate"
    ALL_BROKERS_OVERLOADED = "all_brokers_overloaded"
    RESOURCE_USAGE_BELOW_AVERAGE = "resource_usage_below_average"
    RESOURCE_USAGE_NEAR_AVERAGE = "resource_usage_near_average"
    ROUND_ROBIN = "round_robin"
    DRAWN_BY_CHANCE = "drawn_by_chance"
    IDLE_BROKER_OPENED = "idle_broker_opened"
    LEAST_LOADED = "least_loaded"
    LEAST_EXPECTED_MESSAGES = "least_expected_messages"
    ALL_BROKERS_FULL = "all_brokers_full"
    MOST_FREE_CAPACITY = "most_free_capacity"
    DRAWN_BY_WEIGHT = "drawn_by_weight"
    DECIDED_BEFORE = "decided_before"

    # Placement: why some brokers were not considered, or none was found.
    ISOLATION_POLICY = "isolation_policy"
    PERSISTENCE_DISABLED = "persistence_disabled"
    OTHER_LOAD_MANAGER_CLASS = "other_load_manager_class"
    TOPIC_LIMIT_REACHED = "topic_limit_reached"
    FAILURE_DOMAIN_HAS_MORE_OF_GROUP = "failure_domain_has_more_of_group"
    HAS_MORE_OF_GROUP = "has_more_of_group"
    OWNS_MORE_OF_NAMESPACE = "owns_more_of_namespace"
    OLDER_VERSION = "older_version"
    VERSION_UNREADABLE = "version_unreadable"
    NO_BROKER_AVAILABLE = "no_broker_available"
    NO_OTHER_BROKER = "no_other_broker"
    NOT_FREE = "not_free"

    # Shedding: why from this broker.
    BROKER_OVERLOADED = "broker_overloaded"
    BROKER_ABOVE_AVERAGE = "broker_above_average"
    LOWER_BOUNDARY = "lower_boundary"
    MSG_RATE_DIFFERENCE = "msg_rate_difference"
    THROUGHPUT_DIFFERENCE = "throughput_difference"
    BROKER_ABOVE_PARTNER = "broker_above_partner"

    TOP_BUNDLE_SHED = "top_bundle_shed"
    OVERLOADED = "overloaded"
    UNDERLOADED = "underloaded"

    # Shedding: why not.
    SHEDDING_DISABLED = "shedding_disabled"
    ONE_BROKER_ONLY = "one_broker_only"
    CLUSTER_IDLE = "cluster_idle"
    BELOW_THRESHOLD = "below_threshold"
    NEED_BELOW_MINIMUM = "need_below_minimum"
    AWAITING_REPORT = "awaiting_report"
    NO_BUNDLES = "no_bundles"
    SINGLE_BUNDLE = "single_bundle"
    NO_ELIGIBLE_BUNDLE = "no_eligible_bundle"
    NO_COMFORTABLE_BROKER = "no_comfortable_broker"
    TOP_BUNDLE_MOVED_RECENTLY = "top_bundle_moved_recently"
    NO_BUNDLE_FITS = "no_bundle_fits"
    DIFFERENCES_SMALL = "differences_small"
    NOT_THE_BUSIEST = "not_the_busiest"
    CLOSE_TO_PARTNER = "close_to_partner"
    TOO_FEW_HITS = "too_few_hits"
    LESS_USED_PARTNER = "less_used_partner"
    HIT_COUNT = "hit_count"
    COOL_DOWN = "cool_down"
    OUT_DATED_DATA = "out_dated_data"
    NO_LOAD_DATA = "no_load_data"
    NO_BROKERS = "no_brokers"
    NO_TRANSFERABLE_BUNDLES = "no_transferable_bundles"
    NAMESPACE_EXCLUDED = "namespace_excluded"
    ANTI_AFFINITY_KEPT = "anti_affinity_kept"

    # Splitting: why a bundle.
    TOPICS = "topics"
    SESSIONS = "sessions"
    MSG_RATE = "msg_rate"
    BANDWIDTH = "bandwidth"
    ADMIN_SPLIT = "admin_split"

    # Splitting: why not.
    SPLITTING_DISABLED = "splitting_disabled"
    TOO_FEW_TOPICS = "too_few_topics"
    BELOW_SPLIT_LIMITS = "below_split_limits"
    NOT_OWNED = "not_owned"
    NAMESPACE_HAS_MAXIMUM_BUNDLES = "namespace_has_maximum_bundles"
    TOO_FEW_SPLIT_HITS = "too_few_split_hits"
    SPLIT_UNDER_WAY = "split_under_way"
    SPLIT_CYCLE_FULL = "split_cycle_full"
    RANGE_NOT_SPLITTABLE = "range_not_splittable"
    NO_SPLIT_BOUNDARY = "no_split_boundary"
    SPLIT_BOUNDARY_AT_END = "split_boundary_at_end"
    TOO_MANY_SPLIT_BOUNDARIES = "too_many_split_boundaries"

    # Reports: why a broker publishes its load.
    FIRST_REPORT = "first_report"
    REPORT_TOO_OLD = "report_too_old"
    LOAD_CHANGED = "load_changed"
    BUNDLE_UNLOADED = "bundle_unloaded"
    RECORD_OVERWRITTEN = "record_overwritten"

    # What happens to an ownership besides a plan.
    LOOKUP = "lookup"
    ADMIN_UNLOAD = "admin_unload"
    OWNER_GONE = "owner_gone"
    UNLOAD_FAILED = "unload_failed"
    UNLOAD_COMPLETED = "unload_completed"


Figure = float | int | str

_SENTENCES: tuple[tuple[Reason, str], ...] = (
    (
        Reason.IDLE_BROKER_OPENED,
        (
            "Placed because {broker} has no bundles, and the best of {candidates} candidates that has some is above"
            " {=loadBalancerBrokerUnderloadedThresholdPercentage} %: {best_usage_percent} %"
        ),
    ),
    (Reason.IDLE_BROKER_OPENED, "Placed because {broker} is the first of {candidates} candidates without any bundles"),
    (
        Reason.LEAST_LOADED,
        (
            "Placed because {broker} at expected usage {usage_percent} % is the best of {candidates} candidates, of"
            " which {idle} are idle, and no idle one is opened up to"
            " {=loadBalancerBrokerUnderloadedThresholdPercentage} %"
        ),
    ),
    (
        Reason.LEAST_EXPECTED_MESSAGES,
        (
            "Placed because {broker} expects the fewest messages/s, {msg_rate_per_s}, of {candidates} candidates, of"
            " which {idle} are idle"
        ),
    ),
    (
        Reason.ALL_BROKERS_FULL,
        "Placed because it is the turn of {broker}: the best of {candidates} candidates is full",
    ),
    (
        Reason.MOST_FREE_CAPACITY,
        (
            "Placed because {broker} has room for most bundles, {free_bundles}, and the best of {candidates} candidates"
            " is above {=loadBalancerBrokerOverloadedThresholdPercentage} %: {best_usage_percent} %"
        ),
    ),
    (
        Reason.DRAWN_BY_WEIGHT,
        "Placed on {broker} by chance, with weight {weight} of {weights} of {candidates} candidates",
    ),
    (
        Reason.TOP_BUNDLE_SHED,
        (
            "Shed {top_bundle}, the top one of {bundles} bundles by {bottleneck}, because usage {usage_percent} %"
            " ({resource}) is above {=loadBalancerBrokerOverloadedThresholdPercentage} %"
        ),
    ),
    (
        Reason.NO_COMFORTABLE_BROKER,
        (
            "No move because no broker that may own {top_bundle} is below"
            " {=loadBalancerBrokerComfortLoadLevelPercentage} % in all resources"
        ),
    ),
    (
        Reason.TOP_BUNDLE_MOVED_RECENTLY,
        "No move because {top_bundle}, the top one of {bundles} bundles by {bottleneck}, moved recently",
    ),
    (
        Reason.LEAST_LONG_TERM_MESSAGE_RATE,
        (
            "Placed because {broker} has the least long-term message rate, {msg_rate_per_s} messages/s, of {candidates}"
            " candidates"
        ),
    ),
    (
        Reason.ALL_BROKERS_OVERLOADED,
        (
            "Placed on {broker} by chance because each of {candidates} candidates is above"
            " {=loadBalancerBrokerOverloadedThresholdPercentage} %"
        ),
    ),
    (
        Reason.RESOURCE_USAGE_BELOW_AVERAGE,
        (
            "Placed because {broker} at usage {usage_percent} % is one of {equals} at or below average"
            " {average_percent} % minus {=loadBalancerAverageResourceUsageDifferenceThresholdPercentage} %"
            " of {candidates} candidates"
        ),
    ),
    (
        Reason.RESOURCE_USAGE_NEAR_AVERAGE,
        (
            "Placed on {broker} by chance because none of {candidates} candidates is at or below average"
            " {average_percent} % minus {=loadBalancerAverageResourceUsageDifferenceThresholdPercentage} %"
        ),
    ),
    (Reason.ROUND_ROBIN, "Placed because it is the turn of {broker} among {candidates} candidates"),
    (
        Reason.NO_BROKER_AVAILABLE,
        (
            "Not placed because isolation policy {policy} leaves no broker that may own it: {brokers} registered,"
            " {primary} primary and {secondary} secondary ones, min_limit {min_limit}"
        ),
    ),
    (
        Reason.DRAWN_BY_CHANCE,
        (
            "Placed on {broker} by chance, one of {equals} of {candidates} candidates not above"
            " {=loadBalancerBrokerOverloadedThresholdPercentage} %"
        ),
    ),
    (Reason.DECIDED_BEFORE, "Placed on {broker} because that was decided before"),
    (Reason.NO_BROKER_AVAILABLE, "Not placed because none of {brokers} registered brokers may own it"),
    (
        Reason.NO_OTHER_BROKER,
        (
            "No move because isolation policy {policy} leaves no other broker that may own it: {brokers} registered,"
            " {primary} primary and {secondary} secondary ones, min_limit {min_limit}"
        ),
    ),
    (Reason.NO_OTHER_BROKER, "No move because none of the other of {brokers} registered brokers may own it"),
    (Reason.NOT_FREE, "Not placed because it is owned by, or on its way to, {broker}"),
    (
        Reason.BROKER_OVERLOADED,
        (
            "Shed {bundles_taken} of {bundles} bundles because usage {usage_percent} % is not below"
            " {=loadBalancerBrokerOverloadedThresholdPercentage} %: need {need_mib_per_s} MiB/s"
        ),
    ),
    (
        Reason.BROKER_ABOVE_AVERAGE,
        (
            "Shed {bundles_taken} of {bundles} bundles because usage {usage_percent} % is not below average"
            " {average_percent} % plus {=loadBalancerBrokerThresholdShedderPercentage} %: need {need_mib_per_s} MiB/s"
        ),
    ),
    (
        Reason.LOWER_BOUNDARY,
        (
            "Shed {bundles_taken} of {bundles} bundles because usage {usage_percent} % is the highest and another"
            " broker's is below average {average_percent} % minus {=loadBalancerBrokerThresholdShedderPercentage} %:"
            " need {need_mib_per_s} MiB/s"
        ),
    ),
    (
        Reason.MSG_RATE_DIFFERENCE,
        (
            "Shed {bundles_taken} of {bundles} bundles because its {highest_msg_rate_per_s} messages/s are"
            " {msg_rate_difference_percent} % above the lowest, {lowest_msg_rate_per_s}, more than"
            " {=loadBalancerMsgRateDifferenceShedderThreshold} %: need {need_msg_rate_per_s} messages/s"
        ),
    ),
    (
        Reason.THROUGHPUT_DIFFERENCE,
        (
            "Shed {bundles_taken} of {bundles} bundles because its {highest_mib_per_s} MiB/s are {throughput_ratio}"
            " times the lowest, {lowest_mib_per_s}, more than"
            " {=loadBalancerMsgThroughputMultiplierDifferenceShedderThreshold}: need {need_mib_per_s} MiB/s"
        ),
    ),
    (
        Reason.BROKER_ABOVE_PARTNER,
        (
            "Shed {bundles_taken} of {bundles} bundles to {partner} because usage {usage_percent} % has been far above"
            " its {partner_usage_percent} %: need {need_msg_rate_per_s} messages/s"
        ),
    ),
    (
        Reason.BROKER_ABOVE_PARTNER,
        (
            "Shed {bundles_taken} of {bundles} bundles to {partner} because usage {usage_percent} % has been far above"
            " its {partner_usage_percent} %: need {need_mib_per_s} MiB/s"
        ),
    ),
    (
        Reason.OVERLOADED,
        (
            "Shed {bundles_taken} of its {bundles} busiest bundles to {partner} ({partner_usage_percent} %), for"
            " {bundles_in_exchange} in exchange, because of usage {usage_percent} % at average {average_percent} % and"
            " deviation {std_percent} % ({=loadBalancerBrokerLoadTargetStd}): want {want_mib_per_s} MiB/s"
        ),
    ),
    (
        Reason.UNDERLOADED,
        (
            "Shed {bundles_taken} of its {bundles} busiest bundles to {partner} ({partner_usage_percent} %), for"
            " {bundles_in_exchange} in exchange, because that one has little of average {average_percent} % or of its"
            " throughput ({=loadBalancerBrokerLoadTargetStd}): want {want_mib_per_s} MiB/s"
        ),
    ),
    (
        Reason.HIT_COUNT,
        (
            "No move because usages have been apart for {cycles} cycles, not more than"
            " {=loadBalancerSheddingConditionHitCountThreshold}: deviation {std_percent} %"
            " ({=loadBalancerBrokerLoadTargetStd})"
        ),
    ),
    (
        Reason.HIT_COUNT,
        (
            "No move because usages are close: deviation {std_percent} % is not above"
            " {=loadBalancerBrokerLoadTargetStd}, from {partner_usage_percent} % to {usage_percent} %"
        ),
    ),
    (Reason.HIT_COUNT, "No move because no broker may be relieved: deviation {std_percent} %"),
    (
        Reason.COOL_DOWN,
        (
            "No move because {broker} has not reported yet {=loadBalanceSheddingDelayInSeconds} s after a bundle was"
            " taken from it"
        ),
    ),
    (
        Reason.OUT_DATED_DATA,
        "No move because all reports of {brokers} brokers are older than {=loadBalancerBrokerLoadDataTTLInSeconds} s",
    ),
    (Reason.OUT_DATED_DATA, "No move because its report is older than {=loadBalancerBrokerLoadDataTTLInSeconds} s"),
    (Reason.NO_LOAD_DATA, "No move because {broker} has not made its load known"),
    (
        Reason.NO_LOAD_DATA,
        "No move because bundles were looked for on {brokers_tried} brokers, of which some made none known",
    ),
    (Reason.NO_BROKERS, "No move because none of {brokers} brokers has made its load known"),
    (
        Reason.NO_TRANSFERABLE_BUNDLES,
        "No move because no bundle of the {brokers_tried} most used brokers may move and fits",
    ),
    (
        Reason.NO_BUNDLE_FITS,
        (
            "No move because none of its {bundles} busiest bundles may go to {partner} and fits into want"
            " {want_mib_per_s} MiB/s"
        ),
    ),
    (
        Reason.SHEDDING_DISABLED,
        "No move because {=loadBalancerEnabled} and {=loadBalancerSheddingEnabled}",
    ),
    (Reason.ONE_BROKER_ONLY, "No move because it takes two brokers and {brokers} are registered"),
    (Reason.CLUSTER_IDLE, "No move because the average usage of {brokers} brokers is 0"),
    (
        Reason.BELOW_THRESHOLD,
        (
            "No move because usage {usage_percent} % is below average {average_percent} % plus"
            " {=loadBalancerBrokerThresholdShedderPercentage} %"
        ),
    ),
    (
        Reason.BELOW_THRESHOLD,
        (
            "No move because usage {usage_percent} % ({resource}) is not above"
            " {=loadBalancerBrokerOverloadedThresholdPercentage} %"
        ),
    ),
    (
        Reason.BELOW_THRESHOLD,
        "No move because usage {usage_percent} % is below {=loadBalancerBrokerOverloadedThresholdPercentage} %",
    ),
    (
        Reason.NEED_BELOW_MINIMUM,
        (
            "No move because need {need_mib_per_s} MiB/s is below"
            " {=loadBalancerBundleUnloadMinThroughputThreshold} MiB/s"
        ),
    ),
    (
        Reason.NEED_BELOW_MINIMUM,
        (
            "No move because need {need_msg_rate_per_s} messages/s is not above {=minUnloadMessage} and"
            " need {need_mib_per_s} MiB/s is not above {=minUnloadMessageThroughput} bytes/s"
        ),
    ),
    (
        Reason.NEED_BELOW_MINIMUM,
        "No move because need {need_msg_rate_per_s} messages/s is below {=minUnloadMessage}",
    ),
    (
        Reason.NEED_BELOW_MINIMUM,
        "No move because need {need_mib_per_s} MiB/s is below {=minUnloadMessageThroughput} bytes/s",
    ),
    (
        Reason.DIFFERENCES_SMALL,
        (
            "No move because the highest message rate is {msg_rate_difference_percent} % above the lowest"
            " ({=loadBalancerMsgRateDifferenceShedderThreshold}), and the highest throughput {throughput_ratio} times"
            " the lowest ({=loadBalancerMsgThroughputMultiplierDifferenceShedderThreshold})"
        ),
    ),
    (Reason.NOT_THE_BUSIEST, "No move because only the busiest broker sheds, {busiest}"),
    (
        Reason.CLOSE_TO_PARTNER,
        (
            "No move because usage {usage_percent} % is {apart_points} points above that of {partner}, less than"
            " {=loadBalancerAvgShedderLowThreshold}"
        ),
    ),
    (
        Reason.TOO_FEW_HITS,
        (
            "No move because usage {usage_percent} % is {apart_points} points above that of {partner}, but only for"
            " {low_hits} rounds ({=loadBalancerAvgShedderHitCountLowThreshold}), and far above it for {high_hits}"
            " ({=loadBalancerAvgShedderHitCountHighThreshold})"
        ),
    ),
    (
        Reason.LESS_USED_PARTNER,
        "No move because its partner {partner} is more used, {partner_usage_percent} %",
    ),
    (
        Reason.NO_BUNDLE_FITS,
        (
            "No move because none of {eligible} bundles that may move fits into need {need_msg_rate_per_s} messages/s"
            " and {=maxUnloadBundleNumPerShedding}"
        ),
    ),
    (
        Reason.NO_BUNDLE_FITS,
        (
            "No move because none of {eligible} bundles that may move fits into need {need_mib_per_s} MiB/s"
            " and {=maxUnloadBundleNumPerShedding}"
        ),
    ),
    (
        Reason.NO_BUNDLE_FITS,
        (
            "No move because none of {eligible} bundles that may move carries something and fits into need"
            " {need_msg_rate_per_s} messages/s"
        ),
    ),
    (
        Reason.NO_BUNDLE_FITS,
        (
            "No move because none of {eligible} bundles that may move carries something and fits into need"
            " {need_mib_per_s} MiB/s"
        ),
    ),
    (
        Reason.AWAITING_REPORT,
        ("No move because usage {usage_percent} % is from before a bundle left, or began to: awaiting its next report"),
    ),
    (Reason.NO_BUNDLES, "No move because it reports no bundle at usage {usage_percent} %"),
    (Reason.SINGLE_BUNDLE, "No move because its only bundle would take all of usage {usage_percent} % along"),
    (Reason.AWAITING_REPORT, "No move because its load is from before a bundle left, or began to"),
    (Reason.NO_BUNDLES, "No move because it reports no bundle"),
    (Reason.SINGLE_BUNDLE, "No move because its only bundle would take all of its load along"),
    (
        Reason.NO_ELIGIBLE_BUNDLE,
        (
            "No move because none of its {bundles} bundles may move now, {recently_unloaded} of"
            " them as recently unloaded"
        ),
    ),
    (
        Reason.TOPICS,
        "Split into {parts} because its {topics} topics are more than {=loadBalancerNamespaceBundleMaxTopics}",
    ),
    (
        Reason.SESSIONS,
        "Split into {parts} because its {sessions} sessions are more than {=loadBalancerNamespaceBundleMaxSessions}",
    ),
    (
        Reason.MSG_RATE,
        (
            "Split into {parts} because its {msg_rate_per_s} messages/s are more than"
            " {=loadBalancerNamespaceBundleMaxMsgRate}"
        ),
    ),
    (
        Reason.BANDWIDTH,
        (
            "Split into {parts} because its {mib_per_s} MiB/s are more than"
            " {=loadBalancerNamespaceBundleMaxBandwidthMbytes}"
        ),
    ),
    (Reason.ADMIN_SPLIT, "Split into {parts} because it was asked for"),
    (Reason.SPLITTING_DISABLED, "No split because {=loadBalancerAutoBundleSplitEnabled}"),
    (Reason.TOO_FEW_TOPICS, "No split because it takes two topics and it has {topics}"),
    (
        Reason.BELOW_SPLIT_LIMITS,
        (
            "No split because its {topics} topics ({=loadBalancerNamespaceBundleMaxTopics}), {sessions} sessions"
            " ({=loadBalancerNamespaceBundleMaxSessions}), {msg_rate_per_s} messages/s"
            " ({=loadBalancerNamespaceBundleMaxMsgRate}) and {mib_per_s} MiB/s"
            " ({=loadBalancerNamespaceBundleMaxBandwidthMbytes}) are within the limits"
        ),
    ),
    (Reason.NOT_OWNED, "No split because the broker that reports it does not own it"),
    (
        Reason.NAMESPACE_HAS_MAXIMUM_BUNDLES,
        "No split because its namespace has all of {=loadBalancerNamespaceMaximumBundles}",
    ),
    (
        Reason.TOO_FEW_SPLIT_HITS,
        (
            "No split because it has been above a limit {hits} times in succession, not more than"
            " {=loadBalancerNamespaceBundleSplitConditionHitCountThreshold}"
        ),
    ),
    (Reason.SPLIT_UNDER_WAY, "No split because one is under way that shares an end with it"),
    (
        Reason.SPLIT_CYCLE_FULL,
        "No split now because its broker splits all of {=loadBalancerMaxNumberOfBundlesToSplitPerCycle} others",
    ),
    (Reason.RANGE_NOT_SPLITTABLE, "No split because there is no hash between the ends of its range"),
    (Reason.NO_SPLIT_BOUNDARY, "No split because the algorithm finds no place at which to cut its {topics} topics"),
    (Reason.SPLIT_BOUNDARY_AT_END, "No split because boundary {boundary} is not between the ends of its range"),
    (Reason.TOO_MANY_SPLIT_BOUNDARIES, "No split because it takes one boundary and the algorithm finds {boundaries}"),
    (Reason.NAMESPACE_EXCLUDED, "No move because {namespace} is in loadBalancerSheddingExcludedNamespaces"),
    (
        Reason.ANTI_AFFINITY_KEPT,
        (
            "No move because each of {candidates} brokers that may own it has {least} namespaces of anti-affinity group"
            " {group}"
        ),
    ),
)
"""Sentences with fields of `why`; `{=key}` is the key and its value. The first that has all its fields is used."""

_FIELD = re.compile(r"\{(=?)(\w+)\}")


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """What became of one broker, bundle or the whole cluster (`subject`), and the numbers that decided.

    In `why`, a setting that decided stands under its configuration key; units are in the names.
    """

    subject: str
    verdict: Reason
    acted: bool
    why: Mapping[str, Figure] = field(default_factory=dict)

    def sentence(self) -> str:
        """The verdict for an operator to read, without its subject."""
        for reason, template in _SENTENCES:
            if reason is self.verdict and all(name in self.why for _, name in _FIELD.findall(template)):
                return _FIELD.sub(self._fill, template)
        words = self.verdict.value.replace("_", " ").capitalize()
        figures = ", ".join(f"{name} {_text(value)}" for name, value in self.why.items())
        return f"{words}: {figures}" if figures else words

    def _fill(self, found: re.Match[str]) -> str:
        with_key, name = found.groups()
        return f"{name} {_text(self.why[name])}" if with_key else _text(self.why[name])


def _text(figure: Figure) -> str:
    return f"{figure:.2f}".rstrip("0").rstrip(".") if isinstance(figure, float) else str(figure)


@dataclass(frozen=True, slots=True)
class Assign:
    """Give a free bundle to `destination`."""

    bundle: str
    destination: Registration
    reason: Reason


@dataclass(frozen=True, slots=True)
class Unload:
    """Take a bundle from `source`; with a destination it is a transfer, without one it becomes free."""

    bundle: str
    source: Registration
    destination: Registration | None
    reason: Reason


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Steps in the order they were decided, for the snapshot of this revision: whoever executes them checks each one
    against what is true then. `metrics` are the strategy's figures, if it keeps any.
    """

    revision: int
    taken_at_s: float
    steps: tuple[Assign | Unload, ...]
    verdicts: tuple[Verdict, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)
