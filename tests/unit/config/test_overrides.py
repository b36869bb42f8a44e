from __future__ import annotations

import pytest

from loadmanager.config.dynamic_settings import (
    NEEDS_RESTART,
    check_dynamic,
    dynamic_keys,
    settings_of,
    settings_recorded,
    settings_under,
    usable_overrides,
    values_as_text,
    with_overrides,
)
from loadmanager.config.node_settings import Settings
from loadmanager.core.domain.settings import AS_PULSAR
from loadmanager.errors import BadRequestError, NotDynamicError

BASE = Settings(load_balancer_shedding_grace_period_minutes=7)
GRACE = "loadBalancerSheddingGracePeriodMinutes"
OVERLOADED = "loadBalancerBrokerOverloadedThresholdPercentage"
SHEDDING = "loadBalancerLoadSheddingStrategy"
EXCLUDED = "loadBalancerSheddingExcludedNamespaces"

PULSARS_FIXED = {
    "loadBalancerEnabled",
    "loadBalancerLoadPlacementStrategy",
    "loadBalancerPlacementStrategy",
    "lowerBoundarySheddingEnabled",
    "loadBalancerBrokerUnderloadedThresholdPercentage",
    "loadBalancerBrokerComfortLoadLevelPercentage",
}


def test_every_key_is_dynamic_or_needs_a_restart() -> None:
    assert Settings.model_fields.keys() >= NEEDS_RESTART
    keys = dynamic_keys()
    assert keys == sorted(keys)
    assert len(keys) + len(NEEDS_RESTART) == len(Settings.model_fields)
    assert not PULSARS_FIXED & set(keys)
    assert {"loadManagerClassName", SHEDDING, GRACE, "namespaceBundleUnloadingTimeoutMs"} <= set(keys)


def test_override_replaces_only_its_own_setting() -> None:
    settings = settings_under(BASE, {OVERLOADED: "70", "loadBalancerSheddingEnabled": "false"})
    assert settings.planner_settings().broker_overloaded_threshold_percentage == 70
    assert settings.planner_settings().shedding_enabled is False
    assert settings.load_balancer_shedding_grace_period_minutes == 7


def test_override_takes_precedence_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"LOADMANAGER_{OVERLOADED}", "60")
    base = Settings()
    assert base.planner_settings().broker_overloaded_threshold_percentage == 60
    assert settings_under(base, {OVERLOADED: "70"}).planner_settings().broker_overloaded_threshold_percentage == 70
    assert settings_under(base, {}).planner_settings().broker_overloaded_threshold_percentage == 60


@pytest.mark.parametrize(
    ("text", "namespaces"), [("t/a, t/b", {"t/a", "t/b"}), ("t/a", {"t/a"}), ("", set()), (" , ", set())]
)
def test_lists_are_separated_by_commas(text: str, namespaces: set[str]) -> None:
    assert settings_under(BASE, {EXCLUDED: text}).planner_settings().shedding_excluded_namespaces == namespaces


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        (OVERLOADED, "101", rf"{OVERLOADED}.*less than or equal to 100 \(got '101'; allowed: >= 0, <= 100\)"),
        (OVERLOADED, "many", f"{OVERLOADED}.*integer"),
        (GRACE, "nan", GRACE),
        (GRACE, "", GRACE),
        ("loadBalancerSheddingEnabled", "perhaps", "loadBalancerSheddingEnabled.*boolean"),
        (SHEDDING, "Tarot", f"{SHEDDING}: unknown strategy; known are .*ThresholdShedder"),
        (SHEDDING, "AvgShedder", "AvgShedder has to be both or neither"),
    ],
)
def test_invalid_value_is_rejected_with_the_allowed_ones(key: str, text: str, message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        settings_under(BASE, {key: text})


@pytest.mark.parametrize(
    "key", ["noSuchKey", "clusterName", "metadataStoreUrl", *sorted(PULSARS_FIXED), "cluster_name"]
)
def test_non_dynamic_key_is_rejected(key: str) -> None:
    with pytest.raises(NotDynamicError, match=key):
        check_dynamic(key)
    with pytest.raises(NotDynamicError):
        settings_under(BASE, {key: "1"})


def test_valid_stored_overrides_are_used_and_others_named() -> None:
    stored = {OVERLOADED: "70", GRACE: "-1", "noSuchKey": "1", "clusterName": "x"}
    settings, usable, faults = usable_overrides(BASE, stored)
    assert usable == {OVERLOADED: "70"}
    assert settings.planner_settings().broker_overloaded_threshold_percentage == 70
    assert settings.load_balancer_shedding_grace_period_minutes == 7
    assert [key for key in stored if any(key in fault for fault in faults)] == [GRACE, "noSuchKey", "clusterName"]
    assert len(faults) == 3


def test_overrides_valid_only_together_are_used_together() -> None:
    stored = {
        "supportedNamespaceBundleSplitAlgorithms": "topic_count_equally_divide",
        "defaultNamespaceBundleSplitAlgorithm": "topic_count_equally_divide",
    }
    with pytest.raises(BadRequestError):
        settings_under(BASE, dict(list(stored.items())[:1]))
    assert usable_overrides(BASE, stored)[1:] == (stored, [])


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({OVERLOADED: "many"}, OVERLOADED),
        ({"noSuchKey": "1"}, "noSuchKey"),
        ({SHEDDING: "AvgShedder"}, SHEDDING),
        ({"availableNamespaces": "t/a,no-namespace"}, "availableNamespaces.1"),
    ],
)
def test_invalid_override_does_not_affect_others(bad: dict[str, str], named: str) -> None:
    good = {
        GRACE: "5",
        "supportedNamespaceBundleSplitAlgorithms": "topic_count_equally_divide",
        "defaultNamespaceBundleSplitAlgorithm": "topic_count_equally_divide",
    }
    _, usable, (fault,) = usable_overrides(BASE, {**bad, **good})
    assert usable == good
    assert named in fault


def test_conflicting_override_named_by_the_error_is_dropped() -> None:
    stored = {
        GRACE: "5",
        "supportedNamespaceBundleSplitAlgorithms": "range_equally_divide",
        "defaultNamespaceBundleSplitAlgorithm": "topic_count_equally_divide",
    }
    _, usable, faults = usable_overrides(BASE, stored)
    assert usable == {key: stored[key] for key in list(stored)[:2]}
    assert len(faults) == 1


def test_settings_as_text_are_read_back() -> None:
    base = settings_of({EXCLUDED: ["t/b", "t/a"]}, "test")
    texts = values_as_text(base)
    assert texts[EXCLUDED] == "t/a,t/b"
    assert texts["loadBalancerEnabled"] == "true"
    assert with_overrides(Settings(), texts, "here").model_dump() == base.model_dump()


def test_key_missing_in_a_history_has_its_former_value() -> None:
    texts = values_as_text(BASE)
    assert {key: values_as_text(settings_recorded(texts))[key] for key in texts} == texts
    former = {key: text for key, text in texts.items() if key not in AS_PULSAR}
    assert BASE.planner_settings().fitted
    assert not settings_recorded(former).planner_settings().fitted
