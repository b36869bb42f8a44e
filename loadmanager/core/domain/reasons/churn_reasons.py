"""Reasons why the limits on churn stop a move, or all."""

from __future__ import annotations

from loadmanager.core.domain.reasons.reason import Reason, entry


class ChurnReason(Reason):
    MOVED_ENOUGH_THIS_CYCLE = entry(
        "moved_enough_this_cycle",
        (
            "No move because its {share_percent} % of all load and the {moved_percent} % that this round moves without"
            " it are more than {=max_load_moved_per_cycle_percentage} %"
        ),
        remedy="raise {#max_load_moved_per_cycle_percentage}, or split the bundle",
    )
    MOVED_ENOUGH_THIS_HOUR = entry(
        "moved_enough_this_hour",
        (
            "No move because its {share_percent} % of all load and the {moved_percent} % that were moved within the"
            " hour are more than {=max_load_moved_per_hour_percentage} %; they will not be in {seconds_left} s"
        ),
        (
            "No move because its {share_percent} % of all load and the {moved_percent} % that were moved within the"
            " hour are more than {=max_load_moved_per_hour_percentage} %"
        ),
        remedy="wait, or raise {#max_load_moved_per_hour_percentage}",
    )
    NO_RETURN = entry(
        "no_return",
        (
            "No move because it would return to {broker}, which it left {seconds_ago} s ago"
            " ({=return_cool_down_minutes})"
        ),
        remedy="wait, or lower {#return_cool_down_minutes}",
    )
    KEEPS_RETURNING = entry(
        "keeps_returning",
        "No move for another {seconds_left} s because it kept returning to former owners ({=max_bundle_returns})",
        (
            "Not shed for an hour: it was returned to a former owner {returns} times within four hours"
            " ({=max_bundle_returns})"
        ),
        remedy="wait {seconds_left} s, or lift the breaker",
    )
    SHEDDING_STOPPED = entry(
        "shedding_stopped",
        (
            "No move because shedding is stopped for another {seconds_left} s: of all load it returned"
            " {back_percent} % ({=thrash_threshold_percentage}) to former owners, and moved {again_percent} %"
            " ({=moved_again_threshold_percentage}) again within two hours"
        ),
        (
            "Nothing is shed for half an hour: of all load {back_percent} % ({=thrash_threshold_percentage}) were"
            " returned to former owners within four hours, and {again_percent} %"
            " ({=moved_again_threshold_percentage}) moved again within two hours"
        ),
        remedy="wait {seconds_left} s, or lift the breaker",
    )
    EXCHANGE_BROKEN = entry("exchange_broken", "No move because it was for an exchange, of which {other} stays")
    BREAKER_LIFTED = entry("breaker_lifted", "The breaker was lifted by an operator")
