"""Why two bundles are merged, or are not."""

from __future__ import annotations

from loadmanager.core.reasons.base import Reason, entry


class MergeReason(Reason):
    COLD_NEIGHBOURS = entry(
        "cold_neighbours",
        (
            "Merged with {with} because together their {topics} topics ({=loadBalancerBundleMergeMaxTopics}),"
            " {sessions} sessions ({=loadBalancerBundleMergeMaxSessions}), {msg_rate_per_s} messages/s"
            " ({=loadBalancerBundleMergeMaxMsgRate}) and {mib_per_s} MiB/s"
            " ({=loadBalancerBundleMergeMaxBandwidthMbytes}) are cold"
        ),
    )
    ADMIN_MERGE = entry("admin_merge", "Merged with {with} because it was asked for")
    MERGING_DISABLED = entry("merging_disabled", "No merge because {=loadBalancerAutoBundleMergeEnabled}")
    NAMESPACE_HAS_MINIMUM_BUNDLES = entry(
        "namespace_has_minimum_bundles",
        "No merge because it has {bundles} bundles and {=loadBalancerNamespaceMinimumBundles}",
    )
    NO_COLD_NEIGHBOURS = entry(
        "no_cold_neighbours",
        (
            "No merge because of {pairs} pairs of neighbours {apart} have not one owner, {young} changed within"
            " {=loadBalancerBundleMergeMinAgeMinutes} minutes, {held} are held by operators and {warm} are warm"
        ),
    )
    MERGE_FAILED = entry("merge_failed", "No merge because it failed: {error}")
