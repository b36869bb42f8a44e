"""Reasons for or against a split."""

from __future__ import annotations

from loadmanager.core.domain.reasons.reason import Reason, ReasonEntry, entry

_TOPICS = "{topics} topics"
_SESSIONS = "{sessions} sessions"
_MSG_RATE = "{msg_rate_per_s} messages/s"
_BANDWIDTH = "{mib_per_s} MiB/s"
_FIGURES = f"{_TOPICS}, {_SESSIONS}, {_MSG_RATE}, {_BANDWIDTH}"
_MAX_MSG_RATE = "namespace_bundle_max_msg_rate"
_MAX_BANDWIDTH = "namespace_bundle_max_bandwidth_mbytes"


def _above(word: str, figure: str, limit: str) -> ReasonEntry:
    """Define a reason for a split: the figure above a limit, and the limit's key."""
    return entry(
        word,
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
    TOPICS = _above("topics", _TOPICS, "namespace_bundle_max_topics")
    SESSIONS = _above("sessions", _SESSIONS, "namespace_bundle_max_sessions")
    MSG_RATE = _above("msg_rate", _MSG_RATE, _MAX_MSG_RATE)
    BANDWIDTH = _above("bandwidth", _BANDWIDTH, _MAX_BANDWIDTH)
    ADMIN_SPLIT = entry("admin_split", "Split into {parts} because it was asked for")
    SPLIT_PART_PLACED = entry(
        "split_part_placed", "Moved because it is part of a split bundle, and placement prefers {broker}"
    )
    SPLITTING_DISABLED = entry("splitting_disabled", "No split because {=auto_bundle_split_enabled}")
    TOO_FEW_TOPICS = entry(
        "too_few_topics",
        (
            "No split can help because its only topic carries all of it and is above {above}"
            " ({sessions} sessions, {msg_rate_per_s} messages/s, {mib_per_s} MiB/s): partition the topic"
        ),
        "No split because it takes two topics and it has {topics}",
    )
    ONE_HOT_TOPIC = entry(
        "one_hot_topic",
        _by_itself("msg_rate_share_percent", _MSG_RATE, _MAX_MSG_RATE),
        _by_itself("throughput_share_percent", _BANDWIDTH, _MAX_BANDWIDTH),
    )
    BELOW_SPLIT_LIMITS = entry(
        "below_split_limits",
        (
            "No split because its {topics} topics ({=namespace_bundle_max_topics}), {sessions} sessions"
            " ({=namespace_bundle_max_sessions}), {msg_rate_per_s} messages/s"
            " ({=namespace_bundle_max_msg_rate}) and {mib_per_s} MiB/s"
            " ({=namespace_bundle_max_bandwidth_mbytes}) are within the limits"
        ),
    )
    NOT_OWNED = entry("not_owned", "No split because the broker that reports it does not own it")
    NAMESPACE_HAS_MAXIMUM_BUNDLES = entry(
        "namespace_has_maximum_bundles",
        (
            f"No split, though it is above {{above}} ({_FIGURES}), because its namespace has"
            " {bundles} bundles already, this round's counted, and {=namespace_maximum_bundles}"
        ),
    )
    TOO_FEW_SPLIT_HITS = entry(
        "too_few_split_hits",
        (
            "No split because it has been above a limit {hits} times in succession, not more than"
            " {=namespace_bundle_split_condition_hit_count_threshold}"
        ),
    )
    SPLIT_UNDER_WAY = entry("split_under_way", "No split because one is under way that shares an end with it")
    SPLIT_CYCLE_FULL = entry(
        "split_cycle_full",
        (
            f"No split now, though it is above {{above}} ({_FIGURES}), because its broker splits others already,"
            " {=max_number_of_bundles_to_split_per_cycle}"
        ),
    )
    RANGE_NOT_SPLITTABLE = entry(
        "range_not_splittable", "No split because there is no hash between the ends of its range"
    )
    NO_SPLIT_BOUNDARY = entry(
        "no_split_boundary", "No split because the algorithm finds no place at which to cut its {topics} topics"
    )
    SPLIT_BOUNDARY_AT_END = entry(
        "split_boundary_at_end", "No split because boundary {boundary} is not between the ends of its range"
    )
    NOTHING_TO_SPLIT = entry(
        "nothing_to_split", "No split because none of {bundles} bundles that {brokers} brokers report is above a limit"
    )
    SPLIT_NEEDS_TWO_BROKERS = entry(
        "split_needs_two_brokers", "No split because it takes two brokers and {brokers} are registered"
    )
    RESHAPING_FROZEN = entry("reshaping_frozen", "No split or merge because the balancer is frozen: {frozen}")
    SHAPE_HELD = entry("shape_held", "No split because an operator {held}")
    REPORT_NOT_BELIEVED = entry(
        "report_not_believed", "No split or merge because its report is not to be believed: {doubt}"
    )
    OWNER_SILENT = entry("owner_silent", "No split because its broker did not say which topics it has: {error}")
    SPLIT_FAILED = entry("split_failed", "No split because it failed: {error}")
    SPLIT_PART_STAYS = entry("split_part_stays", "No move because its broker is where placement would put it")
