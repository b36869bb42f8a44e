"""Reasons why a broker may not own a bundle."""

from __future__ import annotations

from loadmanager.core.domain.reasons.reason import Reason, entry


class FilterReason(Reason):
    BROKER_DRAINING = entry(
        "broker_draining",
        "No move but what its drain gives away: the broker has been drained for {seconds} s",
        "Not on {broker} because it has been drained for {drained_for_s} s",
        remedy="end its drain",
    )
    BROKER_EXCLUDED = entry(
        "broker_excluded",
        "Not on {broker} because an operator has excluded it",
        remedy="take back its exclusion",
    )
    BROKER_SICK = entry(
        "broker_sick",
        (
            "Not on {broker} because it has been sick for {seconds} s: its {figure} came to {value}, that of its peers"
            " to {peers}"
        ),
        (
            "Nothing is moved to it because it has been sick for {seconds} s: its {figure} came to {value}, that of its"
            " peers to {peers}"
        ),
        remedy="mend or restart it; or wait until it has been like its peers for {well_after_s} s more",
    )
    BROKER_STUCK = entry(
        "broker_stuck",
        "Not on {broker} because it serves nothing of what it owns: {fault}",
        "Nothing is moved to it because it serves nothing of what it owns: {fault}",
        remedy=(
            "restart {broker}, or drain it: `loadmanager admin brokers drain {broker}`",
            "restart it, or drain it with `loadmanager admin brokers drain BROKER`",
        ),
    )
    SICKER_THAN_OTHERS = entry(
        "sicker_than_others",
        (
            "Not on {broker} because less sick brokers may have it: its {figure} is {value}, that of well brokers"
            " {peers}"
        ),
        remedy="mend or restart it",
    )
    ISOLATION_POLICY = entry(
        "isolation_policy",
        (
            "Not on {broker} because isolation policy {policy} has {primary} primary brokers there, min_limit"
            " {min_limit}, and {broker} is none: its role is {role}"
        ),
        "Not on {broker} because isolation policy {reserved_by} reserves it, and does not cover {namespace}",
        remedy=(
            "let {reserved_by} cover {namespace}, or take {broker} out of its primary brokers",
            (
                "make {broker} a primary broker of {policy}; its secondary ones count when fewer than {min_limit}"
                " primary ones are there"
            ),
        ),
    )
    PERSISTENCE_DISABLED = entry(
        "persistence_disabled",
        "Not on {broker} because it does not serve {domain} topics",
        remedy="let {broker} serve {domain} topics",
    )
    OTHER_LOAD_MANAGER_CLASS = entry(
        "other_load_manager_class",
        "Not on {broker} because its load-manager class is {class}, and {=load_manager_class_name}",
        remedy="set {#load_manager_class_name} to the same class on {broker} and on the nodes",
    )
    TOPIC_LIMIT_REACHED = entry(
        "topic_limit_reached",
        "Not on {broker} because it has {topics} topics, those on their way included: {=broker_max_topics}",
        remedy="have {too_many} topics fewer on {broker}, or raise {#broker_max_topics}",
    )
    FAILURE_DOMAIN_HAS_MORE_OF_GROUP = entry(
        "failure_domain_has_more_of_group",
        (
            "Not on {broker} because its failure domain {failure_domain} has {has} {counted} of anti-affinity group"
            " {group}, and another one {least}"
        ),
        remedy=(
            "have {too_many} {counted} of {group} fewer in {failure_domain}, or set {#failure_domains_enabled} to false"
        ),
    )
    HAS_MORE_OF_GROUP = entry(
        "has_more_of_group",
        "Not on {broker} because it has {has} {counted} of anti-affinity group {group}, and another broker {least}",
        remedy="have {too_many} {counted} of {group} fewer on {broker}, or take the namespace out of the group",
    )
    BUSIER_THAN_AVERAGE = entry(
        "busier_than_average",
        (
            "Not on {broker} because it is used {usage_percent} % with what is on its way, and the brokers that may"
            " have it {average_percent} % on average ({=distribute_bundles_evenly_margin_percentage})"
        ),
        remedy=(
            "have {too_many_points} points less used on {broker}, raise {#distribute_bundles_evenly_margin_percentage},"
            " or set {#distribute_bundles_evenly_enabled} to false"
        ),
    )
    OWNS_MORE_OF_NAMESPACE = entry(
        "owns_more_of_namespace",
        "Not on {broker} because it has {has} bundles of {namespace}, and another broker {least}",
        remedy=(
            "have {too_many} bundles of {namespace} fewer on {broker}, or set"
            " {#distribute_bundles_evenly_enabled} to false"
        ),
    )
    OLDER_VERSION = entry(
        "older_version",
        "Not on {broker} because it runs version {version}, and another broker {latest}",
        remedy="run {latest} on {broker}, or set {#prefer_later_versions} to false",
    )
    VERSION_UNREADABLE = entry("version_unreadable")
