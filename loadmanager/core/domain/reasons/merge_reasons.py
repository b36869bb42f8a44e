"""Reasons for or against a merge."""

from __future__ import annotations

from loadmanager.core.domain.reasons.reason import Reason, entry


class MergeReason(Reason):
    COLD_NEIGHBOURS = entry(
        "cold_neighbours",
        (
            "Merged with {with} because both are cold: together {topics} of at most {most_topics} topics, {sessions} of"
            " {most_sessions} sessions, {msg_rate_per_s} of {most_msg_rate_per_s} messages/s and {mib_per_s} of"
            " {most_mib_per_s} MiB/s"
        ),
    )
    ADMIN_MERGE = entry("admin_merge", "Merged with {with} because it was asked for")
    MERGING_DISABLED = entry("merging_disabled", "No merge because {=auto_bundle_merge_enabled}")
    NAMESPACE_HAS_MINIMUM_BUNDLES = entry(
        "namespace_has_minimum_bundles",
        "No merge because it has only {bundles} bundles",
    )
    NO_COLD_NEIGHBOURS = entry(
        "no_cold_neighbours",
        (
            "No merge because of {pairs} pairs of neighbours {apart} have not one owner, {young} changed within"
            " the last hour, {held} are held by operators and {warm} are warm"
        ),
    )
    MERGE_FAILED = entry("merge_failed", "No merge because it failed: {error}")
