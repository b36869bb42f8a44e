"""What a decision is: the steps to take, and for everything looked at, why or why not."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from loadmanager.core.ownership import Registration


class Reason(enum.StrEnum):
    """Why something was done or was not done: its value is the log field, the metric label and the explanation."""

    # Placement: why this broker.
    LEAST_LONG_TERM_MESSAGE_RATE = "least_long_term_message_rate"
    ALL_BROKERS_OVERLOADED = "all_brokers_overloaded"

    # Placement: why some brokers were not considered, or none was found.
    PERSISTENCE_DISABLED = "persistence_disabled"
    TOPIC_LIMIT_REACHED = "topic_limit_reached"
    OWNS_MORE_OF_NAMESPACE = "owns_more_of_namespace"
    NO_BROKER_AVAILABLE = "no_broker_available"
    NO_OTHER_BROKER = "no_other_broker"
    NOT_FREE = "not_free"

    # Shedding: why from this broker.
    BROKER_OVERLOADED = "broker_overloaded"
    BROKER_ABOVE_AVERAGE = "broker_above_average"
    LOWER_BOUNDARY = "lower_boundary"

    # Shedding: why not.
    SHEDDING_DISABLED = "shedding_disabled"
    ONE_BROKER_ONLY = "one_broker_only"
    CLUSTER_IDLE = "cluster_idle"
    BELOW_THRESHOLD = "below_threshold"
    NEED_BELOW_MINIMUM = "need_below_minimum"
    AWAITING_REPORT = "awaiting_report"
    NO_BUNDLES = "no_bundles"
    SINGLE_BUNDLE = "single_bundle"
    NO_ELIGIBLE_BUNDLE = "no_eligible_bundle"
    NAMESPACE_EXCLUDED = "namespace_excluded"

    # Reports: why a broker publishes its load.
    FIRST_REPORT = "first_report"
    REPORT_TOO_OLD = "report_too_old"
    LOAD_CHANGED = "load_changed"
    BUNDLE_UNLOADED = "bundle_unloaded"
    RECORD_OVERWRITTEN = "record_overwritten"

    # What happens to an ownership besides a plan.
    LOOKUP = "lookup"
    ADMIN_UNLOAD = "admin_unload"
    OWNER_GONE = "owner_gone"
    UNLOAD_FAILED = "unload_failed"
    UNLOAD_COMPLETED = "unload_completed"


Figure = float | int | str

_SENTENCES: tuple[tuple[Reason, str], ...] = (
    (
        Reason.LEAST_LONG_TERM_MESSAGE_RATE,
        (
            "Placed because {broker} has the least long-term message rate, {msg_rate_per_s} messages/s, of {candidates}"
            " candidates"
        ),
    ),
    (
        Reason.ALL_BROKERS_OVERLOADED,
        (
            "Placed on {broker} by chance because each of {candidates} candidates is above"
            " {=loadBalancerBrokerOverloadedThresholdPercentage} %"
        ),
    ),
    (Reason.NO_BROKER_AVAILABLE, "Not placed because none of {brokers} registered brokers may own it"),
    (Reason.NO_OTHER_BROKER, "No move because none of the other of {brokers} registered brokers may own it"),
    (Reason.NOT_FREE, "Not placed because it is owned by, or on its way to, {broker}"),
    (
        Reason.BROKER_OVERLOADED,
        (
            "Shed {bundles_taken} of {bundles} bundles because usage {usage_percent} % is not below"
            " {=loadBalancerBrokerOverloadedThresholdPercentage} %: need {need_mib_per_s} MiB/s"
        ),
    ),
    (
        Reason.BROKER_ABOVE_AVERAGE,
        (
            "Shed {bundles_taken} of {bundles} bundles because usage {usage_percent} % is not below average"
            " {average_percent} % plus {=loadBalancerBrokerThresholdShedderPercentage} %: need {need_mib_per_s} MiB/s"
        ),
    ),
    (
        Reason.LOWER_BOUNDARY,
        (
            "Shed {bundles_taken} of {bundles} bundles because usage {usage_percent} % is the highest and another"
            " broker's is below average {average_percent} % minus {=loadBalancerBrokerThresholdShedderPercentage} %:"
            " need {need_mib_per_s} MiB/s"
        ),
    ),
    (
        Reason.SHEDDING_DISABLED,
        "No move because {=loadBalancerEnabled} and {=loadBalancerSheddingEnabled}",
    ),
    (Reason.ONE_BROKER_ONLY, "No move because it takes two brokers and {brokers} are registered"),
    (Reason.CLUSTER_IDLE, "No move because the average usage of {brokers} brokers is 0"),
    (
        Reason.BELOW_THRESHOLD,
        (
            "No move because usage {usage_percent} % is below average {average_percent} % plus"
            " {=loadBalancerBrokerThresholdShedderPercentage} %"
        ),
    ),
    (
        Reason.BELOW_THRESHOLD,
        "No move because usage {usage_percent} % is below {=loadBalancerBrokerOverloadedThresholdPercentage} %",
    ),
    (
        Reason.NEED_BELOW_MINIMUM,
        (
            "No move because need {need_mib_per_s} MiB/s is below"
            " {=loadBalancerBundleUnloadMinThroughputThreshold} MiB/s"
        ),
    ),
    (
        Reason.AWAITING_REPORT,
        ("No move because usage {usage_percent} % is from before a bundle left, or began to: awaiting its next report"),
    ),
    (Reason.NO_BUNDLES, "No move because it reports no bundle at usage {usage_percent} %"),
    (Reason.SINGLE_BUNDLE, "No move because its only bundle would take all of usage {usage_percent} % along"),
    (
        Reason.NO_ELIGIBLE_BUNDLE,
        (
            "No move because none of its {bundles} bundles may move now, {recently_unloaded} of"
            " them as recently unloaded"
        ),
    ),
    (Reason.NAMESPACE_EXCLUDED, "No move because {namespace} is in loadBalancerSheddingExcludedNamespaces"),
)
"""Sentences with fields of `why`; `{=key}` is the key and its value. The first that has all its fields is used."""

_FIELD = re.compile(r"\{(=?)(\w+)\}")


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """What became of one broker, bundle or the whole cluster (`subject`), and the numbers that decided.

    In `why`, a setting that decided stands under its configuration key; units are in the names.
    """

    subject: str
    verdict: Reason
    acted: bool
    why: Mapping[str, Figure] = field(default_factory=dict)

    def sentence(self) -> str:
        """The verdict for an operator to read, without its subject."""
        for reason, template in _SENTENCES:
            if reason is self.verdict and all(name in self.why for _, name in _FIELD.findall(template)):
                return _FIELD.sub(self._fill, template)
        words = self.verdict.value.replace("_", " ").capitalize()
        figures = ", ".join(f"{name} {_text(value)}" for name, value in self.why.items())
        return f"{words}: {figures}" if figures else words

    def _fill(self, found: re.Match[str]) -> str:
        with_key, name = found.groups()
        return f"{name} {_text(self.why[name])}" if with_key else _text(self.why[name])


def _text(figure: Figure) -> str:
    return f"{figure:.2f}".rstrip("0").rstrip(".") if isinstance(figure, float) else str(figure)


@dataclass(frozen=True, slots=True)
class Assign:
    """Give a free bundle to `destination`."""

    bundle: str
    destination: Registration
    reason: Reason


@dataclass(frozen=True, slots=True)
class Unload:
    """Take a bundle from `source`; with a destination it is a transfer, without one it becomes free."""

    bundle: str
    source: Registration
    destination: Registration | None
    reason: Reason


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Steps in the order they were decided, for the snapshot of this revision: whoever executes them checks each one
    against what is true then.
    """

    revision: int
    taken_at_s: float
    steps: tuple[Assign | Unload, ...]
    verdicts: tuple[Verdict, ...]
