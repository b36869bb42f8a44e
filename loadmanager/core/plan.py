"""What a decision is: the steps to take, and for everything looked at, why or why not."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
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
    PINNED_TO_BROKER = "pinned_to_broker"
    HELD_FOR_OWNER = "held_for_owner"

    # Placement: why some brokers were not considered, or none was found.
    BROKER_DRAINING = "broker_draining"
    BROKER_EXCLUDED = "broker_excluded"
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
    SHEDDING_FROZEN = "shedding_frozen"
    BUNDLE_PINNED = "bundle_pinned"
    BUNDLE_FROZEN = "bundle_frozen"
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
    MOVED_ENOUGH_THIS_CYCLE = "moved_enough_this_cycle"
    MOVED_ENOUGH_THIS_HOUR = "moved_enough_this_hour"
    NO_RETURN = "no_return"
    KEEPS_RETURNING = "keeps_returning"
    SHEDDING_STOPPED = "shedding_stopped"
    EXCHANGE_BROKEN = "exchange_broken"
    DESTINATION_NOT_ALLOWED = "destination_not_allowed"
    NO_OWNER = "no_owner"
    ON_ITS_WAY = "on_its_way"
    NOT_REPORTED = "not_reported"
    RECENTLY_UNLOADED = "recently_unloaded"
    SELF_TEST_BUNDLE = "self_test_bundle"
    STAYS_ON_BROKER = "stays_on_broker"
    REPORT_DISTRUSTED = "report_distrusted"
    LIMIT_UNKNOWN = "limit_unknown"

    # Explanations: how far from a decision something is.
    SHEDS_FROM = "sheds_from"
    OWNS_IT_ALREADY = "owns_it_already"
    WOULD_BE_CHOSEN = "would_be_chosen"
    AS_GOOD_AS_CHOSEN = "as_good_as_chosen"
    COMES_AFTER = "comes_after"
    NOT_REGISTERED = "not_registered"

    # Splitting: why a bundle.
    TOPICS = "topics"
    SESSIONS = "sessions"
    MSG_RATE = "msg_rate"
    BANDWIDTH = "bandwidth"
    ADMIN_SPLIT = "admin_split"
    SPLIT_PART_PLACED = "split_part_placed"

    # Splitting: why not.
    SPLITTING_DISABLED = "splitting_disabled"
    TOO_FEW_TOPICS = "too_few_topics"
    ONE_HOT_TOPIC = "one_hot_topic"
    BELOW_SPLIT_LIMITS = "below_split_limits"
    NOT_OWNED = "not_owned"
    NAMESPACE_HAS_MAXIMUM_BUNDLES = "namespace_has_maximum_bundles"
    TOO_FEW_SPLIT_HITS = "too_few_split_hits"
    SPLIT_UNDER_WAY = "split_under_way"
    SPLIT_CYCLE_FULL = "split_cycle_full"
    RANGE_NOT_SPLITTABLE = "range_not_splittable"
    NO_SPLIT_BOUNDARY = "no_split_boundary"
    SPLIT_BOUNDARY_AT_END = "split_boundary_at_end"
    NOTHING_TO_SPLIT = "nothing_to_split"
    SPLIT_NEEDS_TWO_BROKERS = "split_needs_two_brokers"
    RESHAPING_FROZEN = "reshaping_frozen"
    SHAPE_HELD = "shape_held"
    REPORT_NOT_BELIEVED = "report_not_believed"
    OWNER_SILENT = "owner_silent"
    SPLIT_FAILED = "split_failed"
    SPLIT_PART_STAYS = "split_part_stays"

    # Merging: why two bundles, and why not.
    COLD_NEIGHBOURS = "cold_neighbours"
    ADMIN_MERGE = "admin_merge"
    MERGING_DISABLED = "merging_disabled"
    NAMESPACE_HAS_MINIMUM_BUNDLES = "namespace_has_minimum_bundles"
    NO_COLD_NEIGHBOURS = "no_cold_neighbours"
    MERGE_FAILED = "merge_failed"

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
    UNLOAD_CANCELLED = "unload_cancelled"
    DRAIN = "drain"
    PLAN_EXECUTED = "plan_executed"
    DRAIN_ENDED = "drain_ended"
    BREAKER_LIFTED = "breaker_lifted"


Figure = float | int | str

_SPLIT_LIMITS = (
    (Reason.TOPICS, "{topics} topics", "loadBalancerNamespaceBundleMaxTopics"),
    (Reason.SESSIONS, "{sessions} sessions", "loadBalancerNamespaceBundleMaxSessions"),
    (Reason.MSG_RATE, "{msg_rate_per_s} messages/s", "loadBalancerNamespaceBundleMaxMsgRate"),
    (Reason.BANDWIDTH, "{mib_per_s} MiB/s", "loadBalancerNamespaceBundleMaxBandwidthMbytes"),
)
"""Why a bundle is split: the figure that is above a limit, and the limit."""
_SPLIT_FIGURES = "{topics} topics, {sessions} sessions, {msg_rate_per_s} messages/s, {mib_per_s} MiB/s"

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
    (Reason.PINNED_TO_BROKER, "Placed on {broker} because it is pinned there"),
    (Reason.HELD_FOR_OWNER, "Placed on {broker} because it was kept for it while that one was away"),
    (Reason.BROKER_DRAINING, "No move but what its drain gives away: the broker has been drained for {seconds} s"),
    (Reason.BROKER_DRAINING, "Not on {broker} because it has been drained for {drained_for_s} s"),
    (Reason.BROKER_EXCLUDED, "Not on {broker} because an operator has excluded it"),
    (
        Reason.ISOLATION_POLICY,
        (
            "Not on {broker} because isolation policy {policy} has {primary} primary brokers there, min_limit"
            " {min_limit}, and {broker} is none: its role is {role}"
        ),
    ),
    (
        Reason.ISOLATION_POLICY,
        "Not on {broker} because isolation policy {reserved_by} reserves it, and does not cover {namespace}",
    ),
    (Reason.PERSISTENCE_DISABLED, "Not on {broker} because it does not serve {domain} topics"),
    (
        Reason.OTHER_LOAD_MANAGER_CLASS,
        "Not on {broker} because its load-manager class is {class}, and {=loadManagerClassName}",
    ),
    (
        Reason.TOPIC_LIMIT_REACHED,
        ("Not on {broker} because it has {topics} topics, those on their way included: {=loadBalancerBrokerMaxTopics}"),
    ),
    (
        Reason.FAILURE_DOMAIN_HAS_MORE_OF_GROUP,
        (
            "Not on {broker} because its failure domain {failure_domain} has {has} {counted} of anti-affinity group"
            " {group}, and another one {least}"
        ),
    ),
    (
        Reason.HAS_MORE_OF_GROUP,
        ("Not on {broker} because it has {has} {counted} of anti-affinity group {group}, and another broker {least}"),
    ),
    (
        Reason.OWNS_MORE_OF_NAMESPACE,
        "Not on {broker} because it has {has} bundles of {namespace}, and another broker {least}",
    ),
    (Reason.OLDER_VERSION, "Not on {broker} because it runs version {version}, and another broker {latest}"),
    (Reason.NOT_REGISTERED, "Not on {broker} because it is not registered, or has not reported yet"),
    (Reason.OWNS_IT_ALREADY, "It is on {broker}, or on its way there"),
    (
        Reason.WOULD_BE_CHOSEN,
        "Not on {broker} because it has not left {holder}: placement would choose {broker}, of {candidates} candidates",
    ),
    (Reason.WOULD_BE_CHOSEN, "Placement would choose {broker} now, of {candidates} candidates"),
    (
        Reason.AS_GOOD_AS_CHOSEN,
        "Not on {broker} but by chance: it is one of {equals} equally good ones, of which {chosen} was drawn",
    ),
    (
        Reason.COMES_AFTER,
        "Not on {broker} because {ahead} of {candidates} candidates come before it, the first of them {chosen}",
    ),
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
            "Shed {bundles_taken} of {bundles} bundles to {partner} because usage {usage_percent} % has been above its"
            " {partner_usage_percent} % for {low_hits} rounds ({=loadBalancerAvgShedderHitCountLowThreshold}), and far"
            " above it for {high_hits} ({=loadBalancerAvgShedderHitCountHighThreshold}): need {need_msg_rate_per_s}"
            " messages/s"
        ),
    ),
    (
        Reason.BROKER_ABOVE_PARTNER,
        (
            "Shed {bundles_taken} of {bundles} bundles to {partner} because usage {usage_percent} % has been above its"
            " {partner_usage_percent} % for {low_hits} rounds ({=loadBalancerAvgShedderHitCountLowThreshold}), and far"
            " above it for {high_hits} ({=loadBalancerAvgShedderHitCountHighThreshold}): need {need_mib_per_s} MiB/s"
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
    (
        Reason.MOVED_ENOUGH_THIS_CYCLE,
        (
            "No move because its {share_percent} % of all load and the {moved_percent} % that this round moves without"
            " it are more than {=loadBalancerMaxLoadMovedPerCyclePercentage} %"
        ),
    ),
    (
        Reason.MOVED_ENOUGH_THIS_HOUR,
        (
            "No move because its {share_percent} % of all load and the {moved_percent} % that were moved within the"
            " hour are more than {=loadBalancerMaxLoadMovedPerHourPercentage} %"
        ),
    ),
    (
        Reason.NO_RETURN,
        (
            "No move because it would return to {broker}, which it left {seconds_ago} s ago"
            " ({=loadBalancerReturnCoolDownMinutes})"
        ),
    ),
    (
        Reason.KEEPS_RETURNING,
        (
            "Not shed for {=loadBalancerThrashBundleFreezeMinutes}: it was returned to a former owner {returns} times"
            " ({=loadBalancerMaxBundleReturns}) within {=loadBalancerThrashWindowMinutes}"
        ),
    ),
    (
        Reason.KEEPS_RETURNING,
        (
            "No move for another {seconds_left} s because it kept returning to former owners"
            " ({=loadBalancerMaxBundleReturns})"
        ),
    ),
    (
        Reason.SHEDDING_STOPPED,
        (
            "Nothing is shed for {=loadBalancerThrashSheddingStopMinutes}: bundles with {thrash_percent} % of all load"
            " ({=loadBalancerThrashThresholdPercentage}) were returned to former owners within"
            " {=loadBalancerThrashWindowMinutes}"
        ),
    ),
    (
        Reason.SHEDDING_STOPPED,
        (
            "No move because shedding is stopped for another {seconds_left} s: it returned bundles with"
            " {thrash_percent} % of all load to former owners ({=loadBalancerThrashThresholdPercentage})"
        ),
    ),
    (Reason.NO_OWNER, "No move because no broker has it"),
    (Reason.ON_ITS_WAY, "No move because it is on its way from {source} to {broker}"),
    (Reason.ON_ITS_WAY, "No move because its owner is letting go of it, for whoever is asked for it next"),
    (Reason.NOT_REPORTED, "No move because {broker} has not reported it since it was given it"),
    (Reason.RECENTLY_UNLOADED, "No move because it was unloaded within the grace period"),
    (Reason.SELF_TEST_BUNDLE, "No move because a broker tests itself in {namespace}, which belongs to that one"),
    (Reason.STAYS_ON_BROKER, "No move because a round takes {bundles_taken} others from {broker}"),
    (Reason.STAYS_ON_BROKER, "No move because a round takes nothing from {broker}"),
    (
        Reason.REPORT_DISTRUSTED,
        "Neither gives nor gets because its report is not to be believed: {doubt}; its last good load counts",
    ),
    (Reason.LIMIT_UNKNOWN, "The limits of {recalled} are not known any more; those that were count"),
    (
        Reason.LIMIT_UNKNOWN,
        "The limits of {unknown} are not known, and what it uses of them counts for nothing: they have to be declared",
    ),
    (Reason.SHEDS_FROM, "Would shed from {usage_points} points more usage, after {rounds} rounds"),
    (Reason.SHEDS_FROM, "Would shed from {usage_points} points more usage"),
    (Reason.SHEDS_FROM, "Would shed after {rounds} more rounds like this"),
    (Reason.SHEDS_FROM, "Would shed from {msg_rate_per_s} messages/s more, or {mib_per_s} MiB/s more"),
    (Reason.SHEDS_FROM, "Would shed from {msg_rate_per_s} messages/s more"),
    (Reason.SHEDS_FROM, "Would shed from {mib_per_s} MiB/s more"),
    (Reason.EXCHANGE_BROKEN, "No move because it was for an exchange, of which {other} stays"),
    (Reason.DESTINATION_NOT_ALLOWED, "No move because {broker} may not own it: {rule}"),
    (Reason.DRAIN_ENDED, "Drained no more because the registration that was drained has ended"),
    (Reason.BREAKER_LIFTED, "The breaker was lifted by an operator"),
    (Reason.SHEDDING_FROZEN, "No move because the balancer is frozen: {frozen}"),
    (Reason.BUNDLE_PINNED, "No move because it is pinned to {pinned_to}"),
    (Reason.BUNDLE_FROZEN, "No move because it is frozen: {frozen}"),
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
        Reason.CLOSE_TO_PARTNER,
        "No move because usage {usage_percent} % is in the middle, with no other broker to pair with",
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
    *(
        (
            reason,
            (
                f"Split into {{parts}}, not {{parts_wanted}}, because its {figure} are more than {{={limit}}} and its"
                " namespace may have no more bundles than {=loadBalancerNamespaceMaximumBundles}"
            ),
        )
        for reason, figure, limit in _SPLIT_LIMITS
    ),
    *(
        (reason, f"Split into {{parts}} because its {figure} are more than {{={limit}}}")
        for reason, figure, limit in _SPLIT_LIMITS
    ),
    (Reason.ADMIN_SPLIT, "Split into {parts} because it was asked for"),
    (Reason.SPLITTING_DISABLED, "No split because {=loadBalancerAutoBundleSplitEnabled}"),
    (
        Reason.TOO_FEW_TOPICS,
        (
            "No split can help because its only topic carries all of it and is above {above}"
            " ({sessions} sessions, {msg_rate_per_s} messages/s, {mib_per_s} MiB/s): partition the topic"
        ),
    ),
    *(
        (
            Reason.ONE_HOT_TOPIC,
            (
                f"No split can help because one topic, {{topic}}, carries {{{share}}} % of its {figure} and is by"
                f" itself above {{={limit}}}: partition the topic"
            ),
        )
        for share, (_, figure, limit) in zip(
            ("msg_rate_share_percent", "throughput_share_percent"), _SPLIT_LIMITS[2:], strict=True
        )
    ),
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
        (
            f"No split, though it is above {{above}} ({_SPLIT_FIGURES}), because its namespace has"
            " {bundles} bundles already, this round's counted, and {=loadBalancerNamespaceMaximumBundles}"
        ),
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
        (
            f"No split now, though it is above {{above}} ({_SPLIT_FIGURES}), because its broker splits others already,"
            " {=loadBalancerMaxNumberOfBundlesToSplitPerCycle}"
        ),
    ),
    (Reason.RANGE_NOT_SPLITTABLE, "No split because there is no hash between the ends of its range"),
    (Reason.NO_SPLIT_BOUNDARY, "No split because the algorithm finds no place at which to cut its {topics} topics"),
    (
        Reason.NOTHING_TO_SPLIT,
        "No split because none of {bundles} bundles that {brokers} brokers report is above a limit",
    ),
    (Reason.SPLIT_NEEDS_TWO_BROKERS, "No split because it takes two brokers and {brokers} are registered"),
    (Reason.RESHAPING_FROZEN, "No split or merge because the balancer is frozen: {frozen}"),
    (Reason.SHAPE_HELD, "No split because an operator {held}"),
    (Reason.REPORT_NOT_BELIEVED, "No split or merge because its report is not to be believed: {doubt}"),
    (Reason.OWNER_SILENT, "No split because its broker did not say which topics it has: {error}"),
    (Reason.SPLIT_FAILED, "No split because it failed: {error}"),
    (Reason.SPLIT_PART_PLACED, "Moved because it is part of a split bundle, and placement prefers {broker}"),
    (Reason.SPLIT_PART_STAYS, "No move because its broker is where placement would put it"),
    (
        Reason.COLD_NEIGHBOURS,
        (
            "Merged with {with} because together their {topics} topics ({=loadBalancerBundleMergeMaxTopics}),"
            " {sessions} sessions ({=loadBalancerBundleMergeMaxSessions}), {msg_rate_per_s} messages/s"
            " ({=loadBalancerBundleMergeMaxMsgRate}) and {mib_per_s} MiB/s"
            " ({=loadBalancerBundleMergeMaxBandwidthMbytes}) are cold"
        ),
    ),
    (Reason.ADMIN_MERGE, "Merged with {with} because it was asked for"),
    (Reason.MERGING_DISABLED, "No merge because {=loadBalancerAutoBundleMergeEnabled}"),
    (
        Reason.NAMESPACE_HAS_MINIMUM_BUNDLES,
        "No merge because it has {bundles} bundles and {=loadBalancerNamespaceMinimumBundles}",
    ),
    (
        Reason.NO_COLD_NEIGHBOURS,
        (
            "No merge because of {pairs} pairs of neighbours {apart} have not one owner, {young} changed within"
            " {=loadBalancerBundleMergeMinAgeMinutes} minutes, {held} are held by operators and {warm} are warm"
        ),
    ),
    (Reason.MERGE_FAILED, "No merge because it failed: {error}"),
    (Reason.SPLIT_BOUNDARY_AT_END, "No split because boundary {boundary} is not between the ends of its range"),
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

_PIN_NOT_KEPT = "; it is pinned to {pinned_to}, which {pin_not_kept}"
"""Follows the sentence of a bundle that could not be placed where it is pinned."""

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
        remark = _FIELD.sub(self._fill, _PIN_NOT_KEPT) if "pin_not_kept" in self.why else ""
        return self._sentence() + remark

    def find_text(self, templates: Iterable[tuple[Reason, str]]) -> str | None:
        """The first of the templates, written as those of sentences, that is for this reason and has all its fields."""
        for reason, template in templates:
            if reason is self.verdict and all(name in self.why for _, name in _FIELD.findall(template)):
                return _FIELD.sub(self._fill, template)
        return None

    def _sentence(self) -> str:
        text = self.find_text(_SENTENCES)
        if text is not None:
            return text
        words = self.verdict.value.replace("_", " ").capitalize()
        figures = ", ".join(f"{name} {_text(value)}" for name, value in self.why.items())
        return f"{words}: {figures}" if figures else words

    def _fill(self, found: re.Match[str]) -> str:
        with_key, name = found.groups()
        text = self._figure(name)
        return f"{name} {text}" if with_key else text

    def _figure(self, name: str) -> str:
        """The figure, with more digits where rounding would make it look like a setting that it is not."""
        figure = self.why[name]
        text = _text(figure)
        settings = [value for key, value in self.why.items() if not key.islower()]
        misleads = isinstance(figure, float) and any(_text(each) == text and each != figure for each in settings)
        return f"{figure:.9g}" if misleads else text


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
