"""What would have to change for a verdict to be another one: what an operator can do, or has to wait for."""

from __future__ import annotations

from loadmanager.core.plan import Reason, Verdict

_REMEDIES: tuple[tuple[Reason, str], ...] = (
    (Reason.BROKER_DRAINING, "end its drain"),
    (Reason.BROKER_EXCLUDED, "take back its exclusion"),
    (Reason.ISOLATION_POLICY, "let {reserved_by} cover {namespace}, or take {broker} out of its primary brokers"),
    (
        Reason.ISOLATION_POLICY,
        (
            "make {broker} a primary broker of {policy}; its secondary ones count when fewer than {min_limit} primary"
            " ones are there"
        ),
    ),
    (Reason.PERSISTENCE_DISABLED, "let {broker} serve {domain} topics"),
    (Reason.OTHER_LOAD_MANAGER_CLASS, "set loadManagerClassName to the same class on {broker} and on the nodes"),
    (Reason.TOPIC_LIMIT_REACHED, "have {too_many} topics fewer on {broker}, or raise loadBalancerBrokerMaxTopics"),
    (
        Reason.FAILURE_DOMAIN_HAS_MORE_OF_GROUP,
        "have {too_many} {counted} of {group} fewer in {failure_domain}, or set failureDomainsEnabled to false",
    ),
    (
        Reason.HAS_MORE_OF_GROUP,
        "have {too_many} {counted} of {group} fewer on {broker}, or take the namespace out of the group",
    ),
    (
        Reason.OWNS_MORE_OF_NAMESPACE,
        (
            "have {too_many} bundles of {namespace} fewer on {broker}, or set"
            " loadBalancerDistributeBundlesEvenlyEnabled to false"
        ),
    ),
    (Reason.OLDER_VERSION, "run {latest} on {broker}, or set preferLaterVersions to false"),
    (Reason.NOT_REGISTERED, "have {broker} register and report"),
    (Reason.COMES_AFTER, "have less on {broker} than on the {ahead} before it, or pin the bundle to {broker}"),
    (Reason.AS_GOOD_AS_CHOSEN, "pin the bundle to {broker}"),
    (Reason.DECIDED_BEFORE, "wait for the next round of shedding, which forgets what was decided"),
    (Reason.PINNED_TO_BROKER, "take back its pin"),
    (Reason.SHEDDING_DISABLED, "set loadBalancerEnabled and loadBalancerSheddingEnabled to true"),
    (Reason.SHEDDING_FROZEN, "take back the freeze"),
    (Reason.ONE_BROKER_ONLY, "have another broker register"),
    (Reason.BUNDLE_PINNED, "take back its pin"),
    (Reason.BUNDLE_FROZEN, "take back its freeze"),
    (Reason.KEEPS_RETURNING, "wait {seconds_left} s, or lift the breaker"),
    (Reason.SHEDDING_STOPPED, "wait {seconds_left} s, or lift the breaker"),
    (Reason.REPORT_DISTRUSTED, "mend what its agent reports, or restart the broker"),
    (Reason.NO_RETURN, "wait, or lower loadBalancerReturnCoolDownMinutes"),
    (Reason.MOVED_ENOUGH_THIS_CYCLE, "raise loadBalancerMaxLoadMovedPerCyclePercentage, or split the bundle"),
    (Reason.MOVED_ENOUGH_THIS_HOUR, "wait, or raise loadBalancerMaxLoadMovedPerHourPercentage"),
    (Reason.NO_OWNER, "look up one of its topics, which gives it an owner"),
    (Reason.ON_ITS_WAY, "wait for its move to end"),
    (Reason.NOT_REPORTED, "wait for the next report of {broker}"),
    (Reason.RECENTLY_UNLOADED, "wait, or lower loadBalancerSheddingGracePeriodMinutes"),
    (Reason.NAMESPACE_EXCLUDED, "take {namespace} out of loadBalancerSheddingExcludedNamespaces"),
    (Reason.ANTI_AFFINITY_KEPT, "have a broker that may own it with fewer than {least} namespaces of {group}"),
    (Reason.NO_OTHER_BROKER, "have another broker that may own it"),
    (Reason.NO_BROKER_AVAILABLE, "have a broker that may own it"),
    (Reason.AWAITING_REPORT, "wait for its next report"),
    (Reason.SINGLE_BUNDLE, "split its bundle"),
    (Reason.NO_ELIGIBLE_BUNDLE, "wait for the end of grace periods, or take back pins and freezes"),
)


def remedy_of(verdict: Verdict) -> str:
    """What would have to change, without a full stop; empty where only the load decides."""
    return verdict.find_text(_REMEDIES) or ""
