from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from loadmanager.config.pulsar_service_settings import PulsarServiceSettings
from loadmanager.config.settings_loader import load_settings
from loadmanager.errors import ConfigurationError
from loadmanager.pulsar.broker_settings import BrokerSettings, PulsarSettings

ADDRESSES = {"adminUrls": ["http://broker:8080"]}


def settings(values: Mapping[str, Any] | None = None) -> PulsarServiceSettings:
    return load_settings(PulsarServiceSettings, None, {**ADDRESSES, **(values or {})})


def told(**texts: str) -> BrokerSettings:
    return BrokerSettings("http://broker:8080", "rp", texts)


def test_admin_urls_suffice_as_configuration() -> None:
    assert (settings().mode, settings().take_over, settings().bind_address) == ("observe", False, "127.0.0.1")


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"mode": "act"}, "stateStoreUrl: is required to act"),
        ({"takeOver": True}, "takeOver: only with mode: act"),
        ({"tokenHostSuffixes": ["example.com"]}, "tokenHostSuffixes"),
        ({"tokenHostSuffixes": [".example.com"], "tlsAllowInsecureConnection": True}, "tokenHostSuffixes: not with"),
        ({"adminUrls": []}, "adminUrls: A list should have at least 1 item"),
        ({"excludedNamespaces": ["lm/(a"]}, "excludedNamespaces.0: not a regular expression"),
        ({"strategies": ["NoSuchShedder"]}, "strategies.0: unknown strategy; known are"),
        ({"movesAtOnce": 0}, "movesAtOnce"),
    ],
)
def test_invalid_settings_are_rejected_by_key(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match="settings") as refused:
        settings(values)
    assert complaint in str(refused.value)


def test_invalid_entry_of_a_list_is_one_fault() -> None:
    with pytest.raises(ConfigurationError) as refused:
        settings({"adminUrls": ["broker:8080"]})
    assert str(refused.value).startswith("settings: adminUrls.0: String should match pattern")
    assert ";" not in str(refused.value)


def test_state_store_may_be_a_chroot_of_the_store_of_pulsar() -> None:
    assert settings({"mode": "act", "stateStoreUrl": "zk:pulsar:2181/loadmanager"}).mode == "act"


def test_plans_use_broker_settings_except_for_moving(tmp_path: Path) -> None:
    ours = settings({"folder": str(tmp_path), "movesAtOnce": 3, "moveTimeoutMs": 7_000})
    live = PulsarSettings(
        told(
            loadBalancerBrokerThresholdShedderPercentage="25",
            loadBalancerSheddingEnabled="false",
            loadBalancerEnabled="false",
            loadBalancerAutoBundleSplitEnabled="true",
            namespaceBundleUnloadingTimeoutMs="60000",
        ),
        ours,
    )
    now = live.current
    assert now.planner_settings().broker_threshold_shedder_percentage == 25
    assert (now.planner_settings().load_balancer_enabled, now.planner_settings().shedding_enabled) == (True, True)
    assert (now.planner_settings().auto_bundle_split_enabled, now.planner_settings().auto_bundle_merge_enabled) == (
        False,
        False,
    )
    assert (now.max_concurrent_unloads, now.namespace_bundle_unloading_timeout_ms) == (3, 7_000)
    assert (now.cluster_name, now.history_url) == ("rp", str(tmp_path / "history"))


def test_overrides_take_precedence_over_changed_broker_settings() -> None:
    live = PulsarSettings(told(), settings({"overrides": {"loadBalancerBrokerThresholdShedderPercentage": "5"}}))
    changed = {"loadBalancerBrokerThresholdShedderPercentage": "50", "loadBalancerSheddingGracePeriodMinutes": "7"}
    assert live.apply(changed) == []
    assert live.planner.broker_threshold_shedder_percentage == 5
    assert live.current.load_balancer_shedding_grace_period_minutes == 7


def test_excluded_namespaces_are_added_to_those_of_pulsar() -> None:
    live = PulsarSettings(told(loadBalancerSheddingExcludedNamespaces="t/told"), settings())
    excluded: list[set[str]] = []

    def note() -> None:
        excluded.append({*live.planner.shedding_excluded_namespaces})

    live.exclude(frozenset({"lm/a", "lm/b"}))
    note()
    assert live.apply({"loadBalancerSheddingExcludedNamespaces": "t/dynamic,t/more"}) == []
    note()
    live.exclude(frozenset({"lm/a"}))
    note()
    live.exclude(frozenset())
    note()
    assert excluded == [
        {"t/told", "lm/a", "lm/b"},
        {"t/dynamic", "t/more", "lm/a", "lm/b"},
        {"t/dynamic", "t/more", "lm/a"},
        {"t/dynamic", "t/more"},
    ]
    assert live.theirs.planner_settings().shedding_excluded_namespaces == {"t/dynamic", "t/more"}


@pytest.mark.parametrize("splits", [False, True])
def test_splits_enabled_overrides_other_keys_and_merging_is_off(*, splits: bool) -> None:
    others = {
        "loadBalancerAutoBundleSplitEnabled": str(not splits).lower(),
        "loadBalancerAutoBundleMergeEnabled": "true",
    }
    live = PulsarSettings(told(**others), settings({"splitsEnabled": splits, "overrides": others}))
    assert live.apply(others) == []
    assert live.planner.auto_bundle_split_enabled is splits
    assert not live.planner.auto_bundle_merge_enabled


def test_shedding_is_planned_although_pulsar_disables_it() -> None:
    live = PulsarSettings(told(), settings())
    assert live.apply({"loadBalancerSheddingEnabled": "false", "brokerDeleteInactiveTopicsEnabled": "false"}) == []
    assert live.planner.shedding_enabled


def test_invalid_broker_settings_are_ignored_and_reported() -> None:
    live = PulsarSettings(told(loadBalancerBrokerThresholdShedderPercentage="a lot"), settings())
    assert live.planner.broker_threshold_shedder_percentage == 10
    assert "loadBalancerBrokerThresholdShedderPercentage" in live.faults[0]


@pytest.mark.parametrize("overrides", [{"noSuchKey": "1"}, {"loadBalancerBrokerThresholdShedderPercentage": "x"}])
def test_invalid_overrides_are_rejected(overrides: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="overrides"):
        PulsarSettings(told(), settings({"overrides": overrides}))


def test_settings_of_the_leader_of_pulsar_are_kept_separately(tmp_path: Path) -> None:
    ours = settings({"folder": str(tmp_path), "overrides": {"loadBalancerBrokerThresholdShedderPercentage": "5"}})
    live = PulsarSettings(
        told(loadBalancerBrokerThresholdShedderPercentage="25", loadBalancerSheddingEnabled="false"), ours
    )
    theirs = live.theirs
    assert (
        theirs.planner_settings().broker_threshold_shedder_percentage,
        theirs.planner_settings().shedding_enabled,
    ) == (
        25,
        False,
    )
    live.apply({"loadBalancerSheddingEnabled": "true", "loadBalancerSheddingIntervalMinutes": "3", "else": "1"})
    assert (live.theirs.planner_settings().shedding_enabled, live.theirs.load_balancer_shedding_interval_minutes) == (
        True,
        3,
    )
    assert live.theirs.planner_settings().broker_threshold_shedder_percentage == 25
    assert live.planner.broker_threshold_shedder_percentage == 5
    live.apply({})
    assert live.theirs == theirs


def test_doubtful_settings_of_pulsar_are_reported(tmp_path: Path) -> None:
    live = PulsarSettings(told(), settings({"folder": str(tmp_path)}))
    assert live.doubt == ""
    live.apply({"loadBalancerLoadSheddingStrategy": "org.apache.pulsar.x.UniformLoadShedder"})
    assert live.doubt == (
        "Pulsar's own rounds may differ from those computed here: loadBalancerLoadSheddingStrategy was set by"
        " dynamic configuration, which a broker applies at its next start."
    )
    unknown = PulsarSettings(told(loadBalancerLoadPlacementStrategy="org.us.Own"), settings({"folder": str(tmp_path)}))
    assert "loadBalancerLoadPlacementStrategy" in unknown.doubt
    assert "org.us.Own" in unknown.doubt
