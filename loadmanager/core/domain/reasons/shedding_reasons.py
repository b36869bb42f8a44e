"""Reasons of shedding rounds that are common to all strategies: the moves of a round, or why a bundle stays."""

from __future__ import annotations

from loadmanager.core.domain.reasons.reason import Reason, entry


class SheddingReason(Reason):
    ROUND_MOVES = entry("round_moves", "Round {round}: {bundles} bundles, {share_percent} % of the traffic: {routes}")
    SHEDDING_DISABLED = entry(
        "shedding_disabled",
        "No move because {=load_balancer_enabled} and {=shedding_enabled}",
        remedy="set {#load_balancer_enabled} and {#shedding_enabled} to true",
    )
    SHEDDING_FROZEN = entry(
        "shedding_frozen",
        "No move because the balancer is frozen: {frozen}",
        remedy="take back the freeze",
    )
    ONE_BROKER_ONLY = entry(
        "one_broker_only",
        "No move because it takes two brokers and {brokers} are registered",
        remedy="have another broker register",
    )
    BELOW_THRESHOLD = entry(
        "below_threshold",
        (
            "No move because usage {usage_percent} % is below average {average_percent} % plus"
            " {=broker_threshold_shedder_percentage} %"
        ),
        (
            "No move because usage {usage_percent} % ({resource}) is not above"
            " {=broker_overloaded_threshold_percentage} %"
        ),
        "No move because usage {usage_percent} % is below {=broker_overloaded_threshold_percentage} %",
    )
    NEED_BELOW_MINIMUM = entry(
        "need_below_minimum",
        ("No move because need {need_mib_per_s} MiB/s is below {=bundle_unload_min_throughput_threshold} MiB/s"),
        (
            "No move because need {need_msg_rate_per_s} messages/s is not above {=min_unload_message} and"
            " need {need_mib_per_s} MiB/s is not above {=min_unload_message_throughput} bytes/s"
        ),
        "No move because need {need_msg_rate_per_s} messages/s is below {=min_unload_message}",
        "No move because need {need_mib_per_s} MiB/s is below {=min_unload_message_throughput} bytes/s",
    )
    AWAITING_REPORT = entry(
        "awaiting_report",
        "No move because usage {usage_percent} % is from before a bundle left, or began to: awaiting its next report",
        "No move because its load is from before a bundle left, or began to",
        remedy="wait for its next report",
    )
    NO_BUNDLES = entry(
        "no_bundles",
        "No move because it reports no bundle at usage {usage_percent} %",
        "No move because it reports no bundle",
    )
    SINGLE_BUNDLE = entry(
        "single_bundle",
        "No move because its only bundle would take all of usage {usage_percent} % along",
        "No move because its only bundle would take all of its load along",
        remedy="split its bundle",
    )
    NO_ELIGIBLE_BUNDLE = entry(
        "no_eligible_bundle",
        (
            "No move because none of its {bundles} bundles may move now, {recently_unloaded} of"
            " them as recently unloaded"
        ),
        remedy="wait for the end of grace periods, or take back pins and freezes",
    )
    NO_BUNDLE_FITS = entry(
        "no_bundle_fits",
        (
            "No move because none of its {bundles} busiest bundles may go to {partner} and fits into want"
            " {want_mib_per_s} MiB/s"
        ),
        (
            "No move because none of {eligible} bundles that may move fits into need {need_msg_rate_per_s} messages/s"
            " and {=max_unload_bundle_num_per_shedding}"
        ),
        (
            "No move because none of {eligible} bundles that may move fits into need {need_mib_per_s} MiB/s"
            " and {=max_unload_bundle_num_per_shedding}"
        ),
        (
            "No move because none of {eligible} bundles that may move carries something and fits into need"
            " {need_msg_rate_per_s} messages/s"
        ),
        (
            "No move because none of {eligible} bundles that may move carries something and fits into need"
            " {need_mib_per_s} MiB/s"
        ),
    )
    NO_TRANSFERABLE_BUNDLES = entry(
        "no_transferable_bundles",
        "No move because no bundle of the {brokers_tried} most used brokers may move and fits",
    )
    BUNDLE_PINNED = entry(
        "bundle_pinned",
        "No move because it is pinned to {pinned_to}",
        remedy="take back its pin",
    )
    BUNDLE_FROZEN = entry(
        "bundle_frozen",
        "No move because it is frozen: {frozen}",
        remedy="take back its freeze",
    )
    NAMESPACE_EXCLUDED = entry(
        "namespace_excluded",
        "No move because {namespace} is in {#shedding_excluded_namespaces}",
        remedy="take {namespace} out of {#shedding_excluded_namespaces}",
    )
    ANTI_AFFINITY_KEPT = entry(
        "anti_affinity_kept",
        (
            "No move because each of {candidates} brokers that may own it has {least} namespaces of anti-affinity group"
            " {group}"
        ),
        remedy="have a broker that may own it with fewer than {least} namespaces of {group}",
    )
    DESTINATION_NOT_ALLOWED = entry("destination_not_allowed", "No move because {broker} may not own it: {rule}")
    NO_OWNER = entry(
        "no_owner",
        "No move because no broker has it",
        remedy="look up one of its topics, which gives it an owner",
    )
    ON_ITS_WAY = entry(
        "on_its_way",
        "No move because it is on its way from {source} to {broker}",
        "No move because its owner is letting go of it, for whoever is asked for it next",
        remedy="wait for its move to end",
    )
    NOT_REPORTED = entry(
        "not_reported",
        "No move because {broker} has not reported it since it was given it",
        remedy="wait for the next report of {broker}",
    )
    RECENTLY_UNLOADED = entry(
        "recently_unloaded",
        "No move because it was unloaded within the grace period",
        remedy="wait, or lower loadBalancerSheddingGracePeriodMinutes",
    )
    SELF_TEST_BUNDLE = entry(
        "self_test_bundle", "No move because a broker tests itself in {namespace}, which belongs to that one"
    )
