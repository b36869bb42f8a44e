"""Why a bundle is given to nobody that brokers seem to die of."""

from __future__ import annotations

from loadmanager.core.reasons.base import Reason, entry


class PoisonReason(Reason):
    POISON_BUNDLE = entry(
        "poison_bundle",
        (
            "Given to nobody because its last {deaths} owners died soon after they got it ({=poison_bundle_seconds}):"
            " {owners}"
        ),
        remedy=(
            "find out what of it brokers die of, then lift it (loadmanager admin balancer lift-poison --bundle"
            " {bundle}); or name a broker for it ({#poison_bundle_broker}), where it can be split"
        ),
    )
    GIVEN_TO_POISON_BROKER = entry(
        "given_to_poison_broker",
        "Placed on {broker} because its last {deaths} owners died of it ({=poison_bundle_broker})",
    )
    TOO_MANY_TO_BE_POISON = entry(
        "too_many_to_be_poison",
        (
            "No bundle is poison for the death of {broker}: of {bundles} bundles the last owners died soon"
            " ({=max_poison_bundles}), so the cause is another"
        ),
        remedy="look for what these brokers share; hold off, or drain, those that are restarted",
    )
    POISON_LIFTED = entry("poison_lifted", "An operator has it given to brokers again")
