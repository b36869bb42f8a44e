from __future__ import annotations

from loadmanager.core.domain.plan import Verdict
from loadmanager.core.domain.reasons import OwnershipReason, SheddingReason


def test_non_move_names_the_need_and_the_setting_with_its_value() -> None:
    why = {"need_mib_per_s": 8.1, "loadBalancerBundleUnloadMinThroughputThreshold": 10.0}
    assert Verdict("broker-1:8080", SheddingReason.NEED_BELOW_MINIMUM, acted=False, why=why).sentence() == (
        "No move because need 8.1 MiB/s is below loadBalancerBundleUnloadMinThroughputThreshold 10 MiB/s"
    )


def test_sentence_is_chosen_by_the_available_figures() -> None:
    overloaded = {"usage_percent": 50.0, "loadBalancerBrokerOverloadedThresholdPercentage": 85}
    average = {"usage_percent": 50.0, "average_percent": 45.5, "loadBalancerBrokerThresholdShedderPercentage": 10}
    assert Verdict("b", SheddingReason.BELOW_THRESHOLD, acted=False, why=overloaded).sentence() == (
        "No move because usage 50 % is below loadBalancerBrokerOverloadedThresholdPercentage 85 %"
    )
    assert Verdict("b", SheddingReason.BELOW_THRESHOLD, acted=False, why=average).sentence() == (
        "No move because usage 50 % is below average 45.5 % plus loadBalancerBrokerThresholdShedderPercentage 10 %"
    )


def test_figure_that_would_round_to_the_setting_has_more_digits() -> None:
    key = "loadBalancerBundleUnloadMinThroughputThreshold"
    for need, said in ((9.9999, "9.9999"), (10.0, "10"), (9.991, "9.99")):
        why = {"need_mib_per_s": need, key: 10.0}
        assert Verdict("b", SheddingReason.NEED_BELOW_MINIMUM, acted=False, why=why).sentence() == (
            f"No move because need {said} MiB/s is below {key} 10 MiB/s"
        )


def test_tiny_setting_is_not_shown_as_0() -> None:
    key = "loadBalancerBundleUnloadMinThroughputThreshold"
    why = {"need_mib_per_s": 0.0002, key: 0.00039}
    assert Verdict("b", SheddingReason.NEED_BELOW_MINIMUM, acted=False, why=why).sentence() == (
        f"No move because need 0.0002 MiB/s is below {key} 0.00039 MiB/s"
    )


def test_reason_without_a_sentence_is_shown_as_words() -> None:
    assert Verdict("b", OwnershipReason.DRAIN, acted=True).sentence() == "Drain"
    why = {"after_s": 1.5, "attempts": 3}
    assert (
        Verdict("b", OwnershipReason.UNLOAD_FAILED, acted=False, why=why).sentence()
        == "Unload failed: after_s 1.5, attempts 3"
    )
