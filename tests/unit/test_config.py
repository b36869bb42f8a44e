"""Settings: where they come from, and what is said when they cannot be used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from pydantic.alias_generators import to_camel, to_snake

import loadmanager
from loadmanager.config.agent_settings import AgentSettings
from loadmanager.config.dynamic_settings import settings_of, with_overrides
from loadmanager.config.node_settings import Settings
from loadmanager.config.pulsar_service_settings import PulsarServiceSettings
from loadmanager.config.settings_base import KeyedSettings
from loadmanager.config.settings_loader import load_settings, render_yaml
from loadmanager.config.shared_settings import zookeeper_parts
from loadmanager.core.domain.resources import ResourceWeights
from loadmanager.core.domain.setting_declaration import declared_in
from loadmanager.core.domain.settings import AS_PULSAR, PlannerSettings
from loadmanager.errors import ConfigurationError


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "loadmanager.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def refusal(path: Path | None) -> str:
    with pytest.raises(ConfigurationError) as refused:
        load_settings(Settings, path)
    return str(refused.value)


def test_defaults_are_those_of_pulsar() -> None:
    settings = load_settings(Settings, None)
    assert settings.load_balancer_shedding_interval_minutes == 1
    assert settings.load_balancer_shedding_grace_period_minutes == 30
    assert settings.planner_settings().broker_overloaded_threshold_percentage == 85
    assert settings.planner_settings().broker_threshold_shedder_percentage == 10
    assert settings.planner_settings().history_resource_percentage == 0.9
    assert settings.planner_settings().resource_quota_update_interval_minutes == 15
    assert settings.namespace_bundle_unloading_timeout_ms == 60_000
    assert settings.default_number_of_namespace_bundles == 4


def test_every_core_setting_is_a_node_setting_under_its_key() -> None:
    assert settings_of(AS_PULSAR, "as Pulsar").planner_settings() == PlannerSettings()
    defaults = {Settings.key(name): field.default for name, field in Settings.model_fields.items()}
    assert {defaults[key] for key in AS_PULSAR} == {None}
    names = {Settings.key(name): name for name in Settings.model_fields}
    keys = [each.key for owner in (PlannerSettings, ResourceWeights) for each in declared_in(owner).values()]
    assert len(keys) == len(set(keys)) > 50
    assert [to_camel(names[key]).lower() for key in keys] == [key.lower() for key in keys]


@pytest.mark.parametrize("text", ["", "# nothing but a comment\n", "{}"])
def test_empty_file_changes_nothing(tmp_path: Path, text: str) -> None:
    assert load_settings(Settings, written(tmp_path, text)) == load_settings(Settings, None)


def test_environment_overrides_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "webServicePort: 5\nclusterName: west\ntokenAuthClaim: role\n")
    monkeypatch.setenv("LOADMANAGER_WEBSERVICEPORT", "6")
    monkeypatch.setenv("loadmanager_clusterName", "east")
    settings = load_settings(Settings, path)
    assert (settings.web_service_port, settings.cluster_name) == (6, "east")
    assert settings.token_auth_claim == "role"


def test_list_in_the_environment_is_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADMANAGER_LOADBALANCERSHEDDINGEXCLUDEDNAMESPACES", '["a/b", "c/d"]')
    assert load_settings(Settings, None).planner_settings().shedding_excluded_namespaces == {"a/b", "c/d"}


def test_strategy_may_have_its_class_name_of_pulsar(tmp_path: Path) -> None:
    name = "org.apache.pulsar.broker.loadbalance.impl.OverloadShedder"
    settings = load_settings(Settings, written(tmp_path, f"loadBalancerLoadSheddingStrategy: {name}"))
    assert settings.planner_settings().shedding_strategy == name


def test_history_weight_may_be_one(tmp_path: Path) -> None:
    settings = load_settings(Settings, written(tmp_path, "loadBalancerHistoryResourcePercentage: 1.0"))
    assert settings.planner_settings().history_resource_percentage == 1


def test_settings_are_immutable() -> None:
    settings = load_settings(Settings, None)
    with pytest.raises(ValueError, match="frozen"):
        setattr(settings, "web_service_port", 1)  # noqa: B010 - as a caller without types might


@pytest.mark.parametrize(
    ("url", "hosts", "chroot"),
    [
        ("zk:a:2181", "a:2181", ""),
        ("a:2181,b:2181", "a:2181,b:2181", ""),
        ("zk:a:2181,b:2181/x/y/", "a:2181,b:2181", "/x/y"),
        ("zk:a:2181/", "a:2181", ""),
    ],
)
def test_metadata_store_url_has_hosts_and_chroot(tmp_path: Path, url: str, hosts: str, chroot: str) -> None:
    settings = load_settings(Settings, written(tmp_path, f"metadataStoreUrl: '{url}'"))
    assert zookeeper_parts(settings.metadata_store_url) == (hosts, chroot)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("loadBalancerSheddingIntervalMinute: 1", "did you mean 'loadBalancerSheddingIntervalMinutes'?"),
        ("webserviceport: 1", "unknown key 'webserviceport'; did you mean 'webServicePort'?"),
        ("completelyDifferent: 1", "unknown key 'completelyDifferent'"),
        ("1: 2", "unknown key '1'"),
        (
            "webServicePort: 70000",
            "webServicePort: Input should be less than or equal to 65535 (got 70000; allowed: >= 0, <= 65535)",
        ),
        ("webServicePort: http", "webServicePort: Input should be a valid integer"),
        ("webServicePort: 80.5", "webServicePort: Input should be a valid integer"),
        ("clusterName: 5", "clusterName: Input should be a valid string (got 5)"),
        ("clusterName:", "clusterName: Input should be a valid string (got None)"),
        ("loadBalancerEnabled: perhaps", "loadBalancerEnabled: Input should be a valid boolean"),
        ("loadBalancerSheddingIntervalMinutes: 0", "loadBalancerSheddingIntervalMinutes: Input should be greater than"),
        ("loadBalancerSheddingIntervalMinutes: .nan", "loadBalancerSheddingIntervalMinutes: Input should be a finite"),
        ("loadBalancerHistoryResourcePercentage: 1.01", "loadBalancerHistoryResourcePercentage: Input should be less"),
        ("defaultNumberOfNamespaceBundles: 100000", "defaultNumberOfNamespaceBundles: Input should be less than"),
        ("loadBalancerSheddingExcludedNamespaces: a/b", "loadBalancerSheddingExcludedNamespaces: Input should be"),
        ("tlsProtocols: [SSLv3]", "tlsProtocols.0: Input should be 'TLSv1.2' or 'TLSv1.3'"),
        ("loadBalancerLoadSheddingStrategy: Foo", "unknown strategy; known are AvgShedder, Level, OverloadShedder"),
        ("loadBalancerLoadPlacementStrategy: Foo", "unknown strategy; known are AvgShedder, LeastLongTermMessageRate"),
        ("supportedNamespaceBundleSplitAlgorithms: [halves]", "unknown strategy; known are flow_or_qps_equally_divide"),
        (
            "supportedNamespaceBundleSplitAlgorithms: [topic_count_equally_divide]",
            "defaultNamespaceBundleSplitAlgorithm 'range_equally_divide': not one of supportedNamespaceBundle",
        ),
        ("a: b: c", "not valid YAML"),
        ("a: !!python/object:os.system x", "not valid YAML"),
        ("- webServicePort", "expected `key: value` lines, got a list"),
        ("words", "expected `key: value` lines, got a str"),
        (b"\xff\xfe", "not UTF-8 text"),
    ],
)
def test_bad_value_names_file_key_and_allowed_values(tmp_path: Path, text: str | bytes, complaint: str) -> None:
    path = written(tmp_path, text)
    message = refusal(path)
    assert message.startswith(f"{path}: ")
    assert complaint in message


def test_all_errors_of_a_file_are_reported_at_once(tmp_path: Path) -> None:
    message = refusal(written(tmp_path, "webServicePort: x\nloadBalancerSheddingIntervalMinutes: -1"))
    assert "webServicePort" in message
    assert "loadBalancerSheddingIntervalMinutes" in message
    assert "allowed: > 0, <= 100000" in message


def test_missing_or_unreadable_file_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "missing.yaml") == f"{tmp_path / 'missing.yaml'}: No such file or directory"
    assert refusal(tmp_path) == f"{tmp_path}: Is a directory"


def test_misspelt_environment_variable_is_named_with_a_suggestion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADMANAGER_WEBSERVICEPRT", "7")
    assert refusal(None) == (
        "environment variable LOADMANAGER_WEBSERVICEPRT: no such key; did you mean 'webServicePort'?"
    )


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LOADMANAGER_WEBSERVICEPORT", "x"),
        ("LOADMANAGER_LOADBALANCERSHEDDINGEXCLUDEDNAMESPACES", "a/b"),
        ("LOADMANAGER_AVAILABLENAMESPACES", '["public"]'),
    ],
)
def test_bad_environment_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    assert refusal(written(tmp_path, "webServicePort: 5")).startswith(f"environment variable {variable}: ")


def test_required_agent_settings_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load_settings(AgentSettings, written(tmp_path, ""))
    assert "brokerId: is required; brokerUrl: is required; loadManagerUrls: is required" in str(refused.value)


@pytest.mark.parametrize("model", [Settings, AgentSettings, PulsarServiceSettings])
def test_rendered_file_has_every_key_with_its_description(model: type[KeyedSettings]) -> None:
    text = render_yaml(model)
    for name, field in model.model_fields.items():
        assert re.search(rf"^(# )?{model.key(name)}:", text, re.MULTILINE), name
        assert field.description
        assert f"# {field.description}" in text


def test_every_setting_is_read_by_the_code() -> None:
    package = Path(loadmanager.__file__).parent
    code = "\n".join(path.read_text(encoding="utf-8") for path in package.rglob("*.py"))
    read = set(re.findall(r"\.(\w+)\b(?! = )", code))
    by_computed_name = {f"{role}_roles" for role in ("operate", "read", "lookup", "peer")}
    in_core = {to_snake(declared.key): name for name, declared in declared_in(PlannerSettings).items()}
    for model in (Settings, AgentSettings, PulsarServiceSettings):
        assert {in_core.get(name, name) for name in model.model_fields} <= read | by_computed_name


def test_rendered_file_selects_level_and_the_defaults(tmp_path: Path) -> None:
    path = written(tmp_path, render_yaml(Settings))
    settings, defaults = load_settings(Settings, path), load_settings(Settings, None)
    assert settings.planner_settings().shedding_strategy == settings.planner_settings().placement_strategy == "Level"
    assert settings.load_balancer_shedding_interval_minutes == 0.25
    others = {name: getattr(defaults, name) for name in Settings.of_a_new_fleet}
    assert settings.model_copy(update=others) == defaults
    given = {Settings.key(name) for name, field in Settings.model_fields.items() if field.default is not None}
    assert set(yaml.safe_load(path.read_text())) == given, "those that are empty by default stand there as comments"


def test_rendered_agent_file_is_valid_once_required_keys_are_set(tmp_path: Path) -> None:
    required = "brokerId: b1:8080\nbrokerUrl: http://b1:8081\nloadManagerUrls: [http://n1:8080]\n"
    plain = load_settings(AgentSettings, written(tmp_path, required))
    assert load_settings(AgentSettings, written(tmp_path, render_yaml(AgentSettings) + "\n" + required)) == plain


def test_threshold_is_fitted_until_it_is_set(tmp_path: Path) -> None:
    key, name = "loadBalancerBrokerThresholdShedderPercentage", "broker_threshold_shedder_percentage"
    fitted = load_settings(Settings, None)
    assert name in fitted.planner_settings().fitted
    given = load_settings(Settings, written(tmp_path, f"{key}: 10\n"))
    dynamic = with_overrides(fitted, {key: "10"}, "dynamic configuration")
    for each in (given, dynamic):
        assert fitted.planner_settings().fitted - each.planner_settings().fitted == {name}
    assert name in with_overrides(given, {key: ""}, "dynamic configuration").planner_settings().fitted
