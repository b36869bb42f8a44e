"""Reasons why a rule or limit forbids a move: filters, limits on churn, guardrails for acting on a real Pulsar."""

from __future__ import annotations

from loadmanager.core.domain.reasons.reason import Reason, entry


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
    MOVED_ENOUGH_THIS_CYCLE = entry(
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
    EXCHANGE_BROKEN = entry("No move because it is part of an exchange, and {other} stays")
    BREAKER_LIFTED = entry("The breaker was lifted by an operator")


class GuardrailReason(Reason):
    MODE_IS_OBSERVE = entry(
        "No move because mode is observe: the process plans and compares, and changes nothing",
        remedy="run loadmanager pulsar act, with a stateStoreUrl",
    )
    CLUSTER_STATE_INCOMPLETE = entry(
        "No move because not all brokers answered the last poll",
        remedy="wait for the next poll; if it stays, faults in the status name the broker",
    )
    EARLIER_MOVES_UNRESOLVED = entry(
        "No move because the outcome of earlier moves is unknown: {why}",
        remedy="wait for their recovery; if their record cannot be read, run loadmanager admin pulsar resume",
    )
    POLICIES_UNKNOWN = entry(
        "No move because not all of the cluster's policies are known: {why}",
        remedy="repair the isolation policies or failure domains of the cluster",
    )
    MOVE_INTERRUPTED = entry(
        "A move of an earlier term from {source} to {destination} was interrupted: it is on {owner}",
        "A move of an earlier term from {source} was interrupted: it is on {owner}",
        "A move of an earlier term from {source} was interrupted: it has no owner",
    )
    DRY_RUN_ON = entry("No move because dry run is on", remedy="loadmanager admin balancer dry-run off")
    NO_DESTINATION = entry(
        "No move because all {registered} registered brokers are excluded or drained",
        remedy="loadmanager admin brokers include BROKER",
    )
    PULSAR_SHEDS = entry(
        "No move because Pulsar's own shedding is on at {brokers} of {registered} brokers: {which}",
        remedy="set loadBalancerSheddingEnabled of the brokers to false, or let this process do it (takeOver)",
    )
    PULSAR_SPLITS = entry(
        "No move because Pulsar's own splits are on at {brokers} of {registered} brokers: {which}",
        remedy="set loadBalancerAutoBundleSplitEnabled of the brokers to false, or let this process do it (takeOver)",
    )
    SETTINGS_UNKNOWN = entry(
        "No move because {brokers} of {registered} brokers did not report their settings, so they may shed or"
        " split: {which}",
        remedy="let this process reach the web service of each broker, with a token that may read configuration",
    )
    LOAD_MANAGER_UNKNOWN = entry(
        "No move because {brokers} of {registered} brokers run an unknown load manager: {which}",
        remedy="run ModularLoadManagerImpl or ExtensibleLoadManagerImpl on all brokers",
    )
    PULSAR_HAS_NO_LEADER = entry(
        "No move because Pulsar's leader {leader} is not among its {registered} registered brokers",
        "No move because none of Pulsar's {registered} registered brokers leads",
        remedy="wait for Pulsar's election: /admin/v2/brokers/leaderBroker names the leader",
    )
    BROKERS_SETTLING = entry(
        "No move because a broker joined or left {seconds_ago} s ago (settlingSeconds {settling_s})",
        remedy="wait, or lower settlingSeconds",
    )
    TOO_MANY_FAILURES = entry(
        "No move because the last {failures} moves failed (failuresUntilStop {failures_until_stop})",
        remedy=(
            "find the cause in the decisions of kinds unload_failed and split, then run loadmanager admin pulsar resume"
        ),
    )
    HOURLY_LIMIT_REACHED = entry(
        "No move because {moves} moves began within the hour (movesPerHour {moves_per_hour})",
        remedy="wait, or raise movesPerHour",
    )
    ROUND_LIMIT_REACHED = entry(
        "No move because {moves} moves of this round have begun (movesPerRound {moves_per_round})",
        remedy="wait for the next round, or raise movesPerRound",
    )
    NAMESPACE_NOT_INCLUDED = entry(
        "No move because {namespace} is excluded by {pattern}",
        "No move because {namespace} is not one of the included namespaces",
        remedy="change includedNamespaces or excludedNamespaces",
    )
    REPORT_BEFORE_MOVE = entry(
        "No move because the last report of {broker} is older than the last move from or to it, {seconds_ago} s ago",
        remedy="wait for its next report",
    )
