"""Reasons that tell the distance from a decision."""

from __future__ import annotations

from loadmanager.core.domain.reasons.reason import Reason, entry


class ExplanationReason(Reason):
    STAYS_ON_BROKER = entry(
        "stays_on_broker",
        "No move because a round takes {bundles_taken} others from {broker}",
        "No move because a round takes nothing from {broker}",
    )
    SHEDS_FROM = entry(
        "sheds_from",
        "Would shed from {usage_points} points more usage, after {rounds} rounds",
        "Would shed from {usage_points} points more usage",
        "Would shed after {rounds} more rounds like this",
        "Would shed from {msg_rate_per_s} messages/s more, or {mib_per_s} MiB/s more",
        "Would shed from {msg_rate_per_s} messages/s more",
        "Would shed from {mib_per_s} MiB/s more",
    )
    OWNS_IT_ALREADY = entry("owns_it_already", "It is on {broker}, or on its way there")
    WOULD_BE_CHOSEN = entry(
        "would_be_chosen",
        "Not on {broker} because it has not left {holder}: placement would choose {broker}, of {candidates} candidates",
        "Placement would choose {broker} now, of {candidates} candidates",
    )
    AS_GOOD_AS_CHOSEN = entry(
        "as_good_as_chosen",
        "Not on {broker} but by chance: it is one of {equals} equally good ones, of which {chosen} was drawn",
        remedy="pin the bundle to {broker}",
    )
    COMES_AFTER = entry(
        "comes_after",
        "Not on {broker} because {ahead} of {candidates} candidates come before it, the first of them {chosen}",
        remedy="have less on {broker} than on the {ahead} before it, or pin the bundle to {broker}",
    )
    NOT_REGISTERED = entry(
        "not_registered",
        "Not on {broker} because it is not registered, or has not reported yet",
        remedy="have {broker} register and report",
    )
