"""Reasons outside decisions: guardrails beside a Pulsar, comparison with it, explanations, certificates, validation of
reports, ownership changes and load reports.
"""

from __future__ import annotations

from loadmanager.core.domain.reasons.reason import Reason, entry

_WE_WOULD = "We would move it from {source} to {destination}, {mib_per_s} MiB/s, and Pulsar does not: "

_CHECK_LEADERS_LOG = "check the log of Pulsar's leader: it uses averages from before our start, or runs no rounds"


class ComparisonReason(Reason):
    MOVED_AS_WE_WOULD = entry(
        "Pulsar moved it from {source} to {destination}, {mib_per_s} MiB/s, and so would we, {minutes} min before",
        "Pulsar moved it from {source} to {destination}, {mib_per_s} MiB/s, and so would we",
    )
    MOVED_ELSEWHERE = entry(
        "Pulsar moved it from {source} to {destination}, {mib_per_s} MiB/s; so would we, but to {ours}"
    )
    MOVED_BACK = entry(
        "Pulsar moved it back from {source} to {destination}, which it had left {minutes_ago} min before,"
        " {mib_per_s} MiB/s, and we would not",
        remedy="check the thresholds of Pulsar's strategy: it reverses its own moves",
    )
    MOVED_ANOTHER = entry(
        "Pulsar moved it from {source} to {destination}, {mib_per_s} MiB/s; we would have taken others"
        " from there ({others}), {ours} first"
    )
    MOVED_AGAINST_US = entry("Pulsar moved it from {source} to {destination}, {mib_per_s} MiB/s, and we would not")
    MOVED_UNSELECTED = entry(
        "It was moved from {source} to {destination}, {mib_per_s} MiB/s; neither we nor Pulsar's strategy, as"
        " computed here, would move it: an operator's command, load that changed since our last round, or rules of"
        " another version of Pulsar"
    )
    MOVED_BEFORE_OUR_ROUND = entry(
        "Pulsar moved it from {source} to {destination}, {mib_per_s} MiB/s, before our first round"
    )
    CAME_BACK = entry(
        "Pulsar unloaded it from {source}, and it returned there: clients were disconnected for {seconds} s without"
        " effect",
        remedy="make Pulsar name a destination when it unloads (3.0 or newer)",
    )
    LEFT_WITHOUT_OWNER = entry(
        "Pulsar unloaded it from {source}, and nobody has looked it up for {seconds} s: it has no owner"
    )
    OWNER_LEFT = entry(
        "{source}, its owner, left; {destination} owns it since then: not a shedding decision",
        "{source}, its owner, left; nobody has looked it up since then: not a shedding decision",
    )
    FIRST_OWNER = entry("It had no owner; a lookup assigned it to {destination}")
    PULSAR_SPLIT = entry("Pulsar split it, or moved it after a split: not a shedding decision")
    MOVED_BY_US = entry(
        "We moved it from {source} to {destination}, {mib_per_s} MiB/s",
        "We unloaded it from {source}, {mib_per_s} MiB/s, and it has no owner",
        "We had Pulsar place it on {destination}",
    )
    NO_LONGER_WANTED = entry("We no longer want to move it from {source} to {destination}, as we did for {minutes} min")
    WE_ALONE_SHEDDING_OFF = entry(
        _WE_WOULD + "its shedding is off",
        remedy="set {#load_balancer_enabled} and {#shedding_enabled} to true on the brokers, or let us act",
    )
    WE_ALONE_NOT_SELECTED = entry(_WE_WOULD + "its strategy does not select it")
    WE_ALONE_UNKNOWN = entry(_WE_WOULD + "its strategy is unknown here")
    WE_ALONE_WAITS = entry(_WE_WOULD + "its grace period has not ended")
    WE_ALONE_STAYS = entry(_WE_WOULD + "its strategy selects it, and its placement leaves it there")
    WE_ALONE_STALLED = entry(_WE_WOULD + "it has stalled")
    WE_ALONE_UNEXPLAINED = entry(
        _WE_WOULD + "its strategy, as computed here, would, and it has not for {minutes} min", remedy=_CHECK_LEADERS_LOG
    )
    STRATEGY_UNKNOWN = entry("Pulsar's own round cannot be computed here: {error}")
    STALLED_ON_OWNER = entry(
        "Pulsar has stalled: for {rounds} rounds its strategy selected {bundles} of the bundles of {source}, and"
        " its placement chose their present owner each time. Nothing moves, and every round repeats this",
        remedy=(
            (
                "set {#distribute_bundles_evenly_enabled} to false on Pulsar's brokers, because it excludes"
                " {passed_over} brokers; or let us act"
            ),
            "let us act",
        ),
    )
    STALLED_WITHOUT_DESTINATION = entry(
        "Pulsar has stalled: for {rounds} rounds its strategy selected {bundles} of the bundles of {source}, and no"
        " other broker may own any of them",
        remedy="see the reason of each bundle",
    )
    STALLED_UNEXPLAINED = entry(
        "Pulsar does not move what we expect: for {rounds} rounds its strategy, as computed here, would have moved"
        " {bundles} of the bundles of {source}, and nothing was moved",
        remedy=_CHECK_LEADERS_LOG,
    )
    STALL_OVER = entry(
        "Pulsar moves bundles again, after {minutes} min without a move",
        "Pulsar's strategy no longer selects a bundle, after {idle_minutes} min without a move",
    )


class ExplanationReason(Reason):
    STAYS_ON_BROKER = entry(
        "No move because a round takes {bundles_taken} others from {broker}",
        "No move because a round takes nothing from {broker}",
    )
    SHEDS_FROM = entry(
        "Round {rounds} from now would shed if usage were {usage_points} points higher",
        "A round would shed if usage were {usage_points} points higher",
        "Round {rounds} from now would shed if nothing changes",
        "A round would shed with {msg_rate_per_s} messages/s more, or {mib_per_s} MiB/s more",
        "A round would shed with {msg_rate_per_s} messages/s more",
        "A round would shed with {mib_per_s} MiB/s more",
    )
    OWNS_IT_ALREADY = entry("It is on {broker}, or moving there")
    WOULD_BE_CHOSEN = entry(
        "Not on {broker} because it has not left {holder}: placement would choose {broker}, of {candidates} candidates",
        "Placement would choose {broker} now, of {candidates} candidates",
    )
    AS_GOOD_AS_CHOSEN = entry(
        "Not on {broker} because {chosen} was drawn at random from {equals} equally good brokers",
        remedy="pin the bundle to {broker}",
    )
    COMES_AFTER = entry(
        "Not on {broker} because {ahead} of {candidates} candidates rank before it, {chosen} first",
        remedy="reduce the load of {broker} below that of the {ahead} before it, or pin the bundle to {broker}",
    )
    NOT_REGISTERED = entry(
        "Not on {broker} because it is not registered, or has not reported yet",
        remedy="start {broker} and wait for its first report",
    )


class CertificateReason(Reason):
    PLAN_CERTIFIED = entry(
        "Heat {heat_before} -> {heat_after}; best possible {bound} ({bound_by}), or {bound_in_budget} if no more"
        " may move; {load_moved_percent} % of all load moves, at least {least_load_percent} % must for that heat;"
        " noise alone causes {noise_floor}"
    )
    NOTHING_MOVES = entry("Heat {heat_before}; best possible {bound} ({bound_by}); noise alone causes {noise_floor}")


class OwnershipReason(Reason):
    LOOKUP = entry()
    ADMIN_UNLOAD = entry()
    OWNER_GONE = entry()
    UNLOAD_FAILED = entry()
    UNLOAD_COMPLETED = entry()
    UNLOAD_CANCELLED = entry()
    DESTINATION_MISSED = entry(
        "Landed on {owner} instead of {destination}",
        remedy="wait: it is decided again in the next round",
    )
    DRAIN = entry()
    RETURNED_AFTER_DRAIN = entry()
    PLAN_EXECUTED = entry()
    DRAIN_ENDED = entry("Drain ended because another process of the broker has registered")


class ValidationReason(Reason):
    REPORT_DISTRUSTED = entry(
        "Neither gives nor gets bundles because its report is implausible: {fault}; its last plausible load counts",
        remedy="correct what its agent reports, or restart the broker",
    )
    LIMIT_UNKNOWN = entry(
        "The limits of {recalled} are no longer reported; the last known ones count",
        "The limits of {unknown} are unknown, so their usage does not count: declare them",
    )
    SICK_WITH_OTHERS = entry(
        "Given bundles only where no healthier broker may own them: its {figure} is {value}, that of healthy"
        " brokers {peers}; {off} of {brokers} brokers are sick, so the cause is probably common",
        remedy="look for a common cause, such as a shared host or network",
    )


class ReportReason(Reason):
    FIRST_REPORT = entry()
    REPORT_TOO_OLD = entry()
    LOAD_CHANGED = entry()
    BUNDLE_UNLOADED = entry()
    RECORD_OVERWRITTEN = entry()


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
        "No move because the last {failures} moves failed",
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
