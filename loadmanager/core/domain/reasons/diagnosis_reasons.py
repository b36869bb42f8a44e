"""Reasons outside decisions: comparison with Pulsar, certificates, ownership changes and load reports."""

from __future__ import annotations

from loadmanager.core.domain.reasons.reason import Reason, entry

_WE_WOULD = "We would move it from {source} to {destination}, {mib_per_s} MiB/s, and Pulsar does not: "


class ComparisonReason(Reason):
    MOVED_AS_WE_WOULD = entry(
        "Pulsar moved it from {source} to {destination}, {mib_per_s} MiB/s, and so would we, {minutes} min before",
        "Pulsar moved it from {source} to {destination}, {mib_per_s} MiB/s, and so would we",
    )
    MOVED_ELSEWHERE = entry(
        "Pulsar moved it from {source} to {destination}, {mib_per_s} MiB/s; so would we, but to {ours}"
    )
    MOVED_BACK = entry(
        (
            "Pulsar moved it back from {source} to {destination}, which it had left {minutes_ago} min before,"
            " {mib_per_s} MiB/s, and we would not"
        ),
        remedy="look at the thresholds of Pulsar's strategy: it takes back what it did",
    )
    MOVED_ANOTHER = entry(
        "Pulsar moved it from {source} to {destination}, {mib_per_s} MiB/s; we would have taken others"
        " from there ({others}), {ours} first"
    )
    MOVED_AGAINST_US = entry("Pulsar moved it from {source} to {destination}, {mib_per_s} MiB/s, and we would not")
    MOVED_UNSELECTED = entry(
        "It was moved from {source} to {destination}, {mib_per_s} MiB/s; we would not, nor does Pulsar's strategy"
        " select it as we work it out: an operator's word, load that came since our last round, or a Pulsar that"
        " decides otherwise than the one that is known here"
    )
    MOVED_BEFORE_OUR_ROUND = entry(
        "Pulsar moved it from {source} to {destination}, {mib_per_s} MiB/s, before there was a round of ours to"
        " compare it with"
    )
    CAME_BACK = entry(
        (
            "Pulsar unloaded it from {source}, and it came back there: its clients were cut off for {seconds} s for"
            " nothing"
        ),
        remedy="have Pulsar name a destination when it unloads, which it does from 3.0 on",
    )
    LEFT_WITHOUT_OWNER = entry(
        "Pulsar unloaded it from {source}, and nobody has asked for it within {seconds} s: it has no owner"
    )
    OWNER_LEFT = entry(
        "{source}, which had it, left; {destination} has it since: no decision of shedding",
        "{source}, which had it, left; nobody has asked for it since: no decision of shedding",
    )
    FIRST_OWNER = entry("Nobody had it; {destination} was given it when it was asked for")
    PULSAR_SPLIT = entry("Pulsar split it, or moved it as it made it by a split: no decision of shedding")
    MOVED_BY_US = entry(
        "We moved it from {source} to {destination}, {mib_per_s} MiB/s",
        "We had it unloaded from {source}, {mib_per_s} MiB/s, and nobody has it",
        "We had it placed on {destination}",
    )
    NO_LONGER_WANTED = entry(
        "We would no longer move it from {source} to {destination}, as we would have for {minutes} min"
    )
    WE_ALONE_SHEDDING_OFF = entry(
        _WE_WOULD + "its shedding is off",
        remedy="set {#load_balancer_enabled} and {#shedding_enabled} to true on the brokers, or let us act",
    )
    WE_ALONE_NOT_SELECTED = entry(_WE_WOULD + "its strategy does not select it")
    WE_ALONE_UNKNOWN = entry(_WE_WOULD + "its strategy is one that is not known here")
    WE_ALONE_WAITS = entry(_WE_WOULD + "it may not move it again so soon")
    WE_ALONE_STAYS = entry(_WE_WOULD + "its strategy selects it, and its placement does not take it elsewhere")
    WE_ALONE_STALLED = entry(_WE_WOULD + "it has stalled")
    WE_ALONE_UNEXPLAINED = entry(
        _WE_WOULD + "as we work it out its strategy would, and it has not for {minutes} min",
        remedy=(
            "look into the log of Pulsar's leader: it goes by averages from before we looked, or makes no rounds at all"
        ),
    )
    STRATEGY_UNKNOWN = entry("What Pulsar's own round would be is not known here: {error}")
    STALLED_ON_OWNER = entry(
        (
            "Pulsar has stalled: for {rounds} rounds its strategy selected {bundles} of the bundles of {source}, and"
            " its placement chose their present owner each time. Nothing moves, and the same repeats for ever"
        ),
        remedy=(
            (
                "set {#distribute_bundles_evenly_enabled} to false on Pulsar's brokers, for which {passed_over} brokers"
                " are passed over, or let us act"
            ),
            "let us act",
        ),
    )
    STALLED_WITHOUT_DESTINATION = entry(
        (
            "Pulsar has stalled: for {rounds} rounds its strategy selected {bundles} of the bundles of {source}, and"
            " none of them may go elsewhere"
        ),
        remedy="see why each of them stays",
    )
    STALLED_UNEXPLAINED = entry(
        (
            "Pulsar does not move what we expect of it: for {rounds} rounds its strategy, as we work it out, would"
            " have moved {bundles} of the bundles of {source}, and nothing was moved"
        ),
        remedy=(
            "look into the log of Pulsar's leader: it goes by averages from before we looked, or makes no rounds at all"
        ),
    )
    STALL_OVER = entry(
        "Pulsar moves bundles again, after {minutes} min in which nothing moved",
        "Pulsar's strategy selects nothing any more, after {idle_minutes} min in which nothing moved",
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
    OWNS_IT_ALREADY = entry("It is on {broker}, or on its way there")
    WOULD_BE_CHOSEN = entry(
        "Not on {broker} because it has not left {holder}: placement would choose {broker}, of {candidates} candidates",
        "Placement would choose {broker} now, of {candidates} candidates",
    )
    AS_GOOD_AS_CHOSEN = entry(
        "Not on {broker} but by chance: it is one of {equals} equally good ones, of which {chosen} was drawn",
        remedy="pin the bundle to {broker}",
    )
    COMES_AFTER = entry(
        "Not on {broker} because {ahead} of {candidates} candidates come before it, the first of them {chosen}",
        remedy="have less on {broker} than on the {ahead} before it, or pin the bundle to {broker}",
    )
    NOT_REGISTERED = entry(
        "Not on {broker} because it is not registered, or has not reported yet",
        remedy="have {broker} register and report",
    )


class CertificateReason(Reason):
    PLAN_CERTIFIED = entry(
        "Heat {heat_after} after {heat_before}: no assignment can be below {bound} ({bound_by}), and none below"
        " {bound_in_budget} that moves no more; {load_moved_percent} % of all load moves, at least"
        " {least_load_percent} % has to for that heat; noise alone makes {noise_floor}"
    )
    NOTHING_MOVES = entry(
        "Heat {heat_before}: no assignment can be below {bound} ({bound_by}); noise alone makes {noise_floor}"
    )


class OwnershipReason(Reason):
    LOOKUP = entry()
    ADMIN_UNLOAD = entry()
    OWNER_GONE = entry()
    UNLOAD_FAILED = entry()
    UNLOAD_COMPLETED = entry()
    UNLOAD_CANCELLED = entry()
    DRAIN = entry()
    RETURNED_AFTER_DRAIN = entry()
    PLAN_EXECUTED = entry()
    DRAIN_ENDED = entry("Drain ended because another process of the broker has registered")


class ValidationReason(Reason):
    REPORT_DISTRUSTED = entry(
        "Neither gives nor gets because its report is not to be believed: {fault}; its last good load counts",
        remedy="mend what its agent reports, or restart the broker",
    )
    LIMIT_UNKNOWN = entry(
        "The limits of {recalled} are not known any more; those that were count",
        "The limits of {unknown} are not known, and what it uses of them counts for nothing: they have to be declared",
    )
    SICK_WITH_OTHERS = entry(
        (
            "Given bundles only where no less sick broker may have them: its {figure} is {value}, that of well brokers"
            " {peers}; {off} of {brokers} brokers are sick, so the cause is probably common"
        ),
        remedy="look for what these brokers share",
    )


class ReportReason(Reason):
    FIRST_REPORT = entry()
    REPORT_TOO_OLD = entry()
    LOAD_CHANGED = entry()
    BUNDLE_UNLOADED = entry()
    RECORD_OVERWRITTEN = entry()
