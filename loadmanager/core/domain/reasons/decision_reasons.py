"""Reasons of decisions: filters, limits on churn, and placement, shedding, splits and merges for all strategies."""

from __future__ import annotations

from loadmanager.core.domain.reasons.reason import Reason, ReasonEntry, entry


class FilterReason(Reason):
    BROKER_DRAINING = entry(
        "No move except by its drain, which has run for {seconds} s",
        "Not on {broker} because it has been draining for {drained_for_s} s",
        remedy="stop its drain",
    )
    BROKER_EXCLUDED = entry("Not on {broker} because an operator has excluded it", remedy="remove its exclusion")
    BROKER_SICK = entry(
        "Not on {broker} because it has been sick for {seconds} s: its {figure} was {value}, that of its peers {peers}",
        (
            "Nothing is moved to it because it has been sick for {seconds} s: its {figure} was {value}, that of its"
            " peers {peers}"
        ),
        remedy="repair or restart it, or wait until it has been healthy for {well_after_s} s more",
    )
    BROKER_STUCK = entry(
        "Not on {broker} because it serves none of its bundles: {fault}",
        "Nothing is moved to it because it serves none of its bundles: {fault}",
        remedy=(
            "restart {broker}, or drain it: `loadmanager admin brokers drain {broker}`",
            "restart it, or drain it with `loadmanager admin brokers drain BROKER`",
        ),
    )
    SICKER_THAN_OTHERS = entry(
        "Not on {broker} because healthier brokers may own it: its {figure} is {value}, that of healthy brokers"
        " {peers}",
        remedy="repair or restart it",
    )
    ISOLATION_POLICY = entry(
        (
            "Not on {broker} because isolation policy {policy} has {primary} available primary brokers (min_limit"
            " {min_limit}), and {broker} is not one: its role is {role}"
        ),
        "Not on {broker} because isolation policy {reserved_by} reserves it, and does not cover {namespace}",
        remedy=(
            "let {reserved_by} cover {namespace}, or take {broker} out of its primary brokers",
            (
                "make {broker} a primary broker of {policy}; its secondary ones count when fewer than {min_limit}"
                " primary ones are available"
            ),
        ),
    )
    PERSISTENCE_DISABLED = entry(
        "Not on {broker} because it does not serve {domain} topics", remedy="let {broker} serve {domain} topics"
    )
    OTHER_LOAD_MANAGER_CLASS = entry(
        "Not on {broker} because its load-manager class is {class}, and {=load_manager_class_name}",
        remedy="set {#load_manager_class_name} to the same class on {broker} and on the nodes",
    )
    TOPIC_LIMIT_REACHED = entry(
        "Not on {broker} because it has {topics} topics, incoming ones included: {=broker_max_topics}",
        remedy="move {too_many} topics away from {broker}, or raise {#broker_max_topics}",
    )
    FAILURE_DOMAIN_HAS_MORE_OF_GROUP = entry(
        "Not on {broker} because its failure domain {failure_domain} has {has} {counted} of anti-affinity group"
        " {group}, and another one {least}",
        remedy=(
            "move {too_many} {counted} of {group} out of {failure_domain}, or set {#failure_domains_enabled} to false"
        ),
    )
    HAS_MORE_OF_GROUP = entry(
        "Not on {broker} because it has {has} {counted} of anti-affinity group {group}, and another broker {least}",
        remedy="move {too_many} {counted} of {group} away from {broker}, or take the namespace out of the group",
    )
    OWNS_MORE_OF_NAMESPACE = entry(
        "Not on {broker} because it has {has} bundles of {namespace}, and another broker {least}",
        remedy=(
            "move {too_many} bundles of {namespace} away from {broker}, or set {#distribute_bundles_evenly_enabled} to"
            " false"
        ),
    )
    OLDER_VERSION = entry(
        "Not on {broker} because it runs version {version}, and another broker {latest}",
        remedy="upgrade {broker} to {latest}, or set {#prefer_later_versions} to false",
    )
    VERSION_UNREADABLE = entry()


class ChurnReason(Reason):
    MOVED_ENOUGH_THIS_ROUND = entry(
        "No move because its {share_percent} % of all load plus the {moved_percent} % that this round already moves"
        " exceed {=max_load_moved_per_cycle_percentage} %",
        remedy="raise {#max_load_moved_per_cycle_percentage}, or split the bundle",
    )
    MOVED_ENOUGH_THIS_HOUR = entry(
        (
            "No move because its {share_percent} % of all load plus the {moved_percent} % moved within the hour exceed"
            " {=max_load_moved_per_hour_percentage} %; there is room for it in {seconds_left} s"
        ),
        (
            "No move because its {share_percent} % of all load plus the {moved_percent} % moved within the hour exceed"
            " {=max_load_moved_per_hour_percentage} %"
        ),
        remedy="wait, or raise {#max_load_moved_per_hour_percentage}",
    )
    NO_RETURN = entry(
        "No move because it would return to {broker}, which it left {seconds_ago} s ago ({=return_cool_down_minutes})",
        remedy="wait, or lower {#return_cool_down_minutes}",
    )
    KEEPS_RETURNING = entry(
        "No move for another {seconds_left} s because it returned to former owners {returns} times within four hours",
        "Not shed for an hour: it was returned to a former owner {returns} times within four hours",
        remedy="wait {seconds_left} s, or loadmanager admin balancer lift-breaker",
    )
    SHEDDING_STOPPED = entry(
        (
            "No move because shedding is stopped for another {seconds_left} s: of all load it returned"
            " {back_percent} % (limit {most_back_percent} %) to former owners, and moved {again_percent} %"
            " (limit {most_again_percent} %) again within two hours"
        ),
        (
            "Nothing is shed for half an hour: of all load {back_percent} % (limit {most_back_percent} %) were"
            " returned to former owners within four hours, and {again_percent} % (limit {most_again_percent} %) moved"
            " again within two hours"
        ),
        "No move because shedding is stopped for another {seconds_left} s",
        remedy="wait {seconds_left} s, or loadmanager admin balancer lift-breaker",
    )
    CHOSEN_BUNDLES_STAY = entry("No move because limits keep all {bundles_chosen} bundles chosen. {bundle}: {refusal}")
    EXCHANGE_BROKEN = entry("No move because it is part of an exchange, and {other} stays")
    BREAKER_LIFTED = entry("The breaker was lifted by an operator")


class SheddingReason(Reason):
    ROUND_MOVES = entry(
        "Round {round}: {bundles} of {bundles_in_all} bundles, {share_percent} % of the traffic: {routes}"
    )
    SHEDDING_DISABLED = entry(
        "No move because {=load_balancer_enabled} and {=shedding_enabled}",
        remedy="set {#load_balancer_enabled} and {#shedding_enabled} to true",
    )
    SHEDDING_FROZEN = entry(
        "No move because the balancer is frozen: {frozen}", remedy="loadmanager admin balancer unfreeze"
    )
    ONE_BROKER_ONLY = entry(
        "No move because two brokers are needed, and {brokers} are registered", remedy="start another broker"
    )
    BELOW_THRESHOLD = entry(
        (
            "No move because usage {usage_percent} % is below average {average_percent} % plus"
            " {=broker_threshold_shedder_percentage} %"
        ),
        (
            "No move because usage {usage_percent} % ({resource}) is not above"
            " {=broker_overloaded_threshold_percentage} %"
        ),
        "No move because usage {usage_percent} % is below {=broker_overloaded_threshold_percentage} %",
    )
    NEED_BELOW_MINIMUM = entry(
        "No move because need {need_mib_per_s} MiB/s is below {=bundle_unload_min_throughput_threshold} MiB/s",
        (
            "No move because need {need_msg_rate_per_s} messages/s is not above {=min_unload_message} and"
            " need {need_mib_per_s} MiB/s is not above {=min_unload_message_throughput} bytes/s"
        ),
        "No move because need {need_msg_rate_per_s} messages/s is below {=min_unload_message}",
        "No move because need {need_mib_per_s} MiB/s is below {=min_unload_message_throughput} bytes/s",
    )
    AWAITING_REPORT = entry(
        (
            "No move because usage {usage_percent} % was reported before the unload of a bundle began: awaiting its"
            " next report"
        ),
        "No move because its load was reported before the unload of a bundle began",
        remedy="wait for its next report",
    )
    NO_BUNDLES = entry(
        "No move because it reports no bundle at usage {usage_percent} %", "No move because it reports no bundle"
    )
    SINGLE_BUNDLE = entry(
        "No move because its only bundle causes all of usage {usage_percent} %",
        "No move because its only bundle causes all of its load",
        remedy="split its bundle",
    )
    NO_ELIGIBLE_BUNDLE = entry(
        "No move because none of its {bundles} bundles may move now; {recently_unloaded} of them were unloaded"
        " recently",
        remedy="wait for the end of grace periods, or remove pins and freezes",
    )
    NO_BUNDLE_FITS = entry(
        (
            "No move because none of its {bundles} busiest bundles may go to {partner} and fits into want"
            " {want_mib_per_s} MiB/s"
        ),
        (
            "No move because none of {eligible} bundles that may move fits into need {need_msg_rate_per_s} messages/s"
            " and {=max_unload_bundle_num_per_shedding}"
        ),
        (
            "No move because none of {eligible} bundles that may move fits into need {need_mib_per_s} MiB/s"
            " and {=max_unload_bundle_num_per_shedding}"
        ),
        (
            "No move because none of {eligible} bundles that may move has load and fits into need"
            " {need_msg_rate_per_s} messages/s"
        ),
        "No move because none of {eligible} bundles that may move has load and fits into need {need_mib_per_s} MiB/s",
    )
    NO_TRANSFERABLE_BUNDLES = entry(
        "No move because no bundle of the {brokers_tried} most used brokers may move and fits"
    )
    BUNDLE_PINNED = entry("No move because it is pinned to {pinned_to}", remedy="unpin it")
    BUNDLE_FROZEN = entry("No move because it is frozen: {frozen}", remedy="unfreeze it")
    NAMESPACE_EXCLUDED = entry(
        "No move because {namespace} is in {#shedding_excluded_namespaces}",
        remedy="take {namespace} out of {#shedding_excluded_namespaces}",
    )
    ANTI_AFFINITY_KEPT = entry(
        "No move because each of {candidates} brokers that may own it has {least} namespaces of anti-affinity group"
        " {group}",
        remedy="start a broker that may own it and has fewer than {least} namespaces of {group}",
    )
    DESTINATION_NOT_ALLOWED = entry("No move because {broker} may not own it: {rule}")
    NO_OWNER = entry("No move because it has no owner", remedy="look up one of its topics, which assigns an owner")
    MOVE_IN_PROGRESS = entry(
        "No move because it is moving from {source} to {broker}",
        "No move because its owner is releasing it; the next lookup assigns it",
        remedy="wait for its move to end",
    )
    NOT_REPORTED = entry(
        "No move because {broker} has not reported it since it received it",
        remedy="wait for the next report of {broker}",
    )
    RECENTLY_UNLOADED = entry(
        "No move because it was unloaded within the grace period",
        remedy="wait, or lower loadBalancerSheddingGracePeriodMinutes",
    )
    SELF_TEST_BUNDLE = entry("No move because {namespace} belongs to one broker, for its health checks")


_TOPICS = "{topics} topics"
_SESSIONS = "{sessions} sessions"
_MSG_RATE = "{msg_rate_per_s} messages/s"
_BANDWIDTH = "{mib_per_s} MiB/s"
_FIGURES = f"{_TOPICS}, {_SESSIONS}, {_MSG_RATE}, {_BANDWIDTH}"
_MAX_MSG_RATE = "namespace_bundle_max_msg_rate"
_MAX_BANDWIDTH = "namespace_bundle_max_bandwidth_mbytes"


def _above(figure: str, limit: str) -> ReasonEntry:
    """Define a reason for a split: the figure above a limit, and the limit's key."""
    return entry(
        (
            f"Split into {{parts}}, not {{parts_wanted}}, because its {figure} are more than {{={limit}}} and its"
            " namespace may have no more bundles than {=namespace_maximum_bundles}"
        ),
        f"Split into {{parts}} because its {figure} are more than {{={limit}}}",
    )


def _by_itself(share: str, figure: str, limit: str) -> str:
    return (
        f"No split can help because one topic, {{topic}}, carries {{{share}}} % of its {figure} and is by"
        f" itself above {{={limit}}}: partition the topic"
    )


class SplitReason(Reason):
    TOPICS = _above(_TOPICS, "namespace_bundle_max_topics")
    SESSIONS = _above(_SESSIONS, "namespace_bundle_max_sessions")
    MSG_RATE = _above(_MSG_RATE, _MAX_MSG_RATE)
    BANDWIDTH = _above(_BANDWIDTH, _MAX_BANDWIDTH)
    ADMIN_SPLIT = entry("Split into {parts} because an operator ordered it")
    SPLIT_PART_PLACED = entry("Moved because it is part of a split bundle, and placement prefers {broker}")
    SPLITTING_DISABLED = entry("No split because {#auto_bundle_split_enabled} is false")
    TOO_FEW_TOPICS = entry(
        (
            "No split can help because its only topic carries all of it and is above {above}"
            " ({sessions} sessions, {msg_rate_per_s} messages/s, {mib_per_s} MiB/s): partition the topic"
        ),
        "No split because a split needs two topics, and it has {topics}",
    )
    ONE_HOT_TOPIC = entry(
        _by_itself("msg_rate_share_percent", _MSG_RATE, _MAX_MSG_RATE),
        _by_itself("throughput_share_percent", _BANDWIDTH, _MAX_BANDWIDTH),
    )
    BELOW_SPLIT_LIMITS = entry(
        "No split because its {topics} topics ({=namespace_bundle_max_topics}), {sessions} sessions"
        " ({=namespace_bundle_max_sessions}), {msg_rate_per_s} messages/s"
        " ({=namespace_bundle_max_msg_rate}) and {mib_per_s} MiB/s"
        " ({=namespace_bundle_max_bandwidth_mbytes}) are within the limits"
    )
    NOT_OWNED = entry("No split because the broker that reports it does not own it")
    NAMESPACE_HAS_MAXIMUM_BUNDLES = entry(
        f"No split, though it is above {{above}} ({_FIGURES}), because its namespace has"
        " {bundles} bundles already, those of this round included, and {=namespace_maximum_bundles}"
    )
    TOO_FEW_SPLIT_HITS = entry(
        "No split because it has been above a limit {hits} times in succession, not more than"
        " {=namespace_bundle_split_condition_hit_count_threshold}"
    )
    SPLIT_IN_PROGRESS = entry("No split because a split of a bundle with a common boundary is in progress")
    SPLIT_ROUND_FULL = entry(
        f"No split now, though it is above {{above}} ({_FIGURES}), because its broker splits others already,"
        " {=max_number_of_bundles_to_split_per_cycle}"
    )
    RANGE_NOT_SPLITTABLE = entry("No split because there is no hash between the ends of its range")
    NO_SPLIT_BOUNDARY = entry("No split because the algorithm finds no boundary between its {topics} topics")
    SPLIT_BOUNDARY_AT_END = entry("No split because boundary {boundary} is not between the ends of its range")
    NOTHING_TO_SPLIT = entry(
        "No split because none of {bundles} bundles that {brokers} brokers report is above a limit"
    )
    SPLIT_NEEDS_TWO_BROKERS = entry("No split because two brokers are needed, and {brokers} are registered")
    RESHAPING_FROZEN = entry("No split or merge because the balancer is frozen: {frozen}")
    SHAPE_HELD = entry("No split because an operator {held}")
    REPORT_NOT_BELIEVED = entry("No split or merge because its report is implausible: {fault}")
    OWNER_SILENT = entry("No split because its broker did not list its topics: {error}")
    SPLIT_FAILED = entry("No split because it failed: {error}")
    SPLIT_PART_STAYS = entry("No move because placement would choose its present broker")


class MergeReason(Reason):
    COLD_NEIGHBOURS = entry(
        "Merged with {with} because both are cold: together {topics} of at most {most_topics} topics, {sessions} of"
        " {most_sessions} sessions, {msg_rate_per_s} of {most_msg_rate_per_s} messages/s and {mib_per_s} of"
        " {most_mib_per_s} MiB/s"
    )
    ADMIN_MERGE = entry("Merged with {with} because an operator ordered it")
    MERGING_DISABLED = entry("No merge because {#auto_bundle_merge_enabled} is false")
    NAMESPACE_HAS_MINIMUM_BUNDLES = entry("No merge because it has only {bundles} bundles")
    NO_COLD_NEIGHBOURS = entry(
        "No merge because of {pairs} pairs of neighbours {apart} do not have one common owner, {young}"
        " changed within the last hour, {held} are held by operators and {warm} are warm"
    )
    MERGE_FAILED = entry("No merge because it failed: {error}")


class PlacementReason(Reason):
    ALL_BROKERS_OVERLOADED = entry(
        "Placed on {broker} at random because each of {candidates} candidates is above"
        " {=broker_overloaded_threshold_percentage} %"
    )
    ROUND_ROBIN = entry("Placed on {broker}, next in round-robin order of {candidates} candidates")
    DECIDED_BEFORE = entry(
        "Placed on {broker}, the destination of its move",
        remedy="wait for the next round of shedding, which forgets this destination",
    )
    PINNED_TO_BROKER = entry("Placed on {broker} because it is pinned there", remedy="unpin it")
    HELD_FOR_OWNER = entry("Placed on {broker} because it was held for that broker during its absence")
    NO_BROKER_AVAILABLE = entry(
        (
            "Not placed because isolation policy {policy} leaves no broker that may own it: {brokers} registered,"
            " {primary} primary and {secondary} secondary ones, min_limit {min_limit}"
        ),
        "Not placed because none of {brokers} registered brokers may own it",
        remedy="start a broker that may own it",
    )
    NO_OTHER_BROKER = entry(
        (
            "No move because isolation policy {policy} leaves no other broker that may own it: {brokers} registered,"
            " {primary} primary and {secondary} secondary ones, min_limit {min_limit}"
        ),
        "No move because none of the other of {brokers} registered brokers may own it",
        remedy="start another broker that may own it",
    )
    OWNER_CHOSEN = entry(
        (
            "No move because the destination chosen is its owner {broker}: {owns_more_of_namespace} of {brokers}"
            " brokers were passed over, which have more bundles of {namespace} than others"
            " ({#distribute_bundles_evenly_enabled})"
        ),
        "No move because the destination chosen is its owner {broker}, of {candidates} candidates",
        remedy=(
            "set {#distribute_bundles_evenly_enabled} to false: {owns_more_of_namespace} more brokers are candidates"
            " then"
        ),
    )
    NOT_FREE = entry("Not placed because it is owned by, or moving to, {broker}")
