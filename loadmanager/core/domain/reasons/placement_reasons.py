"""Reasons for placing a bundle on a broker, common to all strategies, or on none."""

from __future__ import annotations

from loadmanager.core.domain.reasons.reason import Reason, entry


class PlacementReason(Reason):
    ALL_BROKERS_OVERLOADED = entry(
        "all_brokers_overloaded",
        (
            "Placed on {broker} by chance because each of {candidates} candidates is above"
            " {=broker_overloaded_threshold_percentage} %"
        ),
    )
    ROUND_ROBIN = entry("round_robin", "Placed because it is the turn of {broker} among {candidates} candidates")
    DECIDED_BEFORE = entry(
        "decided_before",
        "Placed on {broker} because that was decided before",
        remedy="wait for the next round of shedding, which forgets what was decided",
    )
    PINNED_TO_BROKER = entry(
        "pinned_to_broker",
        "Placed on {broker} because it is pinned there",
        remedy="take back its pin",
    )
    HELD_FOR_OWNER = entry("held_for_owner", "Placed on {broker} because it was kept for it while that one was away")
    NO_BROKER_AVAILABLE = entry(
        "no_broker_available",
        (
            "Not placed because isolation policy {policy} leaves no broker that may own it: {brokers} registered,"
            " {primary} primary and {secondary} secondary ones, min_limit {min_limit}"
        ),
        "Not placed because none of {brokers} registered brokers may own it",
        remedy="have a broker that may own it",
    )
    NO_OTHER_BROKER = entry(
        "no_other_broker",
        (
            "No move because isolation policy {policy} leaves no other broker that may own it: {brokers} registered,"
            " {primary} primary and {secondary} secondary ones, min_limit {min_limit}"
        ),
        "No move because none of the other of {brokers} registered brokers may own it",
        remedy="have another broker that may own it",
    )
    OWNER_CHOSEN = entry(
        "owner_chosen",
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
    NOT_FREE = entry("not_free", "Not placed because it is owned by, or on its way to, {broker}")
