"""Reasons of guardrails for acting on a real Pulsar."""

from __future__ import annotations

from loadmanager.core.domain.reasons.reason import Reason, entry


class GuardrailReason(Reason):
    MODE_IS_OBSERVE = entry(
        "mode_is_observe",
        "No move because mode is observe: the process plans and compares, and changes nothing",
        remedy="run loadmanager pulsar act, with a stateStoreUrl",
    )
    PICTURE_INCOMPLETE = entry(
        "picture_incomplete",
        "No move because not all brokers answered the last poll",
        remedy="wait for the next poll; if it stays, faults in the status name the broker",
    )
    EARLIER_MOVES_OPEN = entry(
        "earlier_moves_open",
        "No move because what became of earlier moves is not known: {why}",
        remedy="wait until they were seen through; if what was written down of them cannot be read, say go on",
    )
    POLICIES_UNKNOWN = entry(
        "policies_unknown",
        "No move because not all of the cluster's policies are known: {why}",
        remedy="repair the isolation policies or failure domains of the cluster",
    )
    MOVE_CUT_SHORT = entry(
        "move_cut_short",
        "A move of an earlier term from {source} to {destination} was cut short: it is on {owner}",
        "A move of an earlier term from {source} was cut short: it is on {owner}",
        "A move of an earlier term from {source} was cut short: nobody owns it",
    )
    PULSAR_SHEDS = entry(
        "pulsar_sheds",
        "No move because Pulsar's own shedding is on at {brokers} of {registered} brokers: {which}",
        remedy="set loadBalancerSheddingEnabled of the brokers to false, or have it taken over (takeOver)",
    )
    PULSAR_SPLITS = entry(
        "pulsar_splits",
        "No move because Pulsar's own splits are on at {brokers} of {registered} brokers: {which}",
        remedy="set loadBalancerAutoBundleSplitEnabled of the brokers to false, or have it taken over (takeOver)",
    )
    SETTINGS_UNKNOWN = entry(
        "settings_unknown",
        (
            "No move because {brokers} of {registered} brokers did not say by which settings they go, so they may shed"
            " or split: {which}"
        ),
        remedy="let this process reach the web service of each broker, with a token that may read configuration",
    )
    LOAD_MANAGER_UNKNOWN = entry(
        "load_manager_unknown",
        "No move because {brokers} of {registered} brokers run an unknown load manager: {which}",
        remedy="run ModularLoadManagerImpl or ExtensibleLoadManagerImpl on all brokers",
    )
    PULSAR_HAS_NO_LEADER = entry(
        "pulsar_has_no_leader",
        "No move because Pulsar's leader {leader} is not among its {registered} registered brokers",
        "No move because none of Pulsar's {registered} registered brokers leads",
        remedy="wait for Pulsar's election: /admin/v2/brokers/leaderBroker names the leader",
    )
    BROKERS_SETTLING = entry(
        "brokers_settling",
        "No move because a broker joined or left {seconds_ago} s ago (settlingSeconds {settling_s})",
        remedy="wait, or lower settlingSeconds",
    )
    MOVES_KEEP_FAILING = entry(
        "moves_keep_failing",
        "No move because the last {failures} moves failed (failuresUntilStop {failures_until_stop})",
        remedy="find out why they did, then say go on",
    )
    HOUR_IS_FULL = entry(
        "hour_is_full",
        "No move because {moves} moves began within the hour (movesPerHour {moves_per_hour})",
        remedy="wait, or raise movesPerHour",
    )
    ROUND_IS_FULL = entry(
        "round_is_full",
        "No move because {moves} moves of this round have begun (movesPerRound {moves_per_round})",
        remedy="wait for the next round, or raise movesPerRound",
    )
    NAMESPACE_LEFT_OUT = entry(
        "namespace_left_out",
        "No move because {namespace} is left out by {pattern}",
        "No move because {namespace} is not among the namespaces that are included",
        remedy="change includedNamespaces or excludedNamespaces",
    )
    REPORT_BEFORE_MOVE = entry(
        "report_before_move",
        (
            "No move because {broker} has not reported since a bundle was last taken from it, or given to it,"
            " {seconds_ago} s ago"
        ),
        remedy="wait for its next report",
    )
