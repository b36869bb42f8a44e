from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from loadmanager.cli import broker_conf
from loadmanager.cli.broker_conf import KeyOutcome, import_broker_conf
from loadmanager.cli.config_command import config
from loadmanager.cli.pulsar_files import ConfEntry, parse_properties
from loadmanager.config import AgentSettings, Settings, load_settings
from loadmanager.core.domain.settings import AS_PULSAR, PlannerSettings

PREFIX = "org.apache.pulsar.broker.loadbalance"


def take(folder: Path, *lines: str) -> Result:
    path = folder / "broker.conf"
    path.write_text("\n".join(lines), encoding="utf-8")
    return CliRunner(env={"NO_COLOR": "1"}).invoke(config, ["import", str(path)])


def fates(folder: Path, *lines: str) -> dict[str, tuple[KeyOutcome, str]]:
    path = folder / "broker.conf"
    path.write_text("\n".join(lines), encoding="utf-8")
    return {converted.entry.key: (converted.outcome, converted.why) for converted in import_broker_conf(path).converted}


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("a=1", [ConfEntry(1, "a", "1")]),
        ("# a=1\n  ! b=2\n\n c = 3 ", [ConfEntry(4, "c", "3")]),
        ("a: 1\nb 2\nc", [ConfEntry(1, "a", "1"), ConfEntry(2, "b", "2"), ConfEntry(3, "c", "")]),
        ("a=1,\\\n   2\nb=3", [ConfEntry(1, "a", "1,2"), ConfEntry(3, "b", "3")]),
        ("a=x\\\\\nb=1\\", [ConfEntry(1, "a", "x\\"), ConfEntry(2, "b", "1")]),
        (r"a\ b\:c=\u0041\t", [ConfEntry(1, "a b:c", "A")]),
        ("a=b=c", [ConfEntry(1, "a", "b=c")]),
        ("", []),
    ],
)
def test_a_properties_file_is_read_as_java_does(text: str, entries: list[ConfEntry]) -> None:
    assert list(parse_properties(text)) == entries


def test_what_is_printed_is_a_configuration_that_a_node_takes(tmp_path: Path) -> None:
    done = take(
        tmp_path,
        "metadataStoreUrl=zk:zk1:2181,zk2:2181/pulsar",
        "clusterName=c1",
        "loadBalancerSheddingExcludedNamespaces=t/a, t/b",
        "loadBalancerSheddingGracePeriodMinutes=15",
        "loadBalancerDistributeBundlesEvenlyEnabled=false",
        f"loadBalancerLoadSheddingStrategy={PREFIX}.impl.OverloadShedder",
    )
    assert done.exit_code == 0
    path = tmp_path / "loadmanager.yaml"
    path.write_text(done.stdout, encoding="utf-8")
    settings = load_settings(Settings, path)
    assert settings.metadata_store_url == "zk:zk1:2181,zk2:2181/pulsar"
    assert settings.cluster_name == "c1"
    assert settings.planner_settings().shedding_excluded_namespaces == {"t/a", "t/b"}
    assert settings.load_balancer_shedding_grace_period_minutes == 15
    assert not settings.planner_settings().distribute_bundles_evenly_enabled
    assert settings.planner_settings().shedding_strategy == f"{PREFIX}.impl.OverloadShedder"
    assert len(yaml.safe_load(done.stdout)) == 6 + len(AS_PULSAR)


def test_where_a_new_installation_decides_otherwise_a_broker_conf_means_what_pulsar_does(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("clusterName=c1\n", encoding="utf-8")
    assert import_broker_conf(path).settings.planner_settings() == PlannerSettings()
    assert {key: yaml.safe_load(take(tmp_path, "clusterName=c1").stdout)[key] for key in AS_PULSAR} == AS_PULSAR
    assert Settings().planner_settings() != PlannerSettings()


def test_strategies_that_must_be_named_together_are_taken_together(tmp_path: Path) -> None:
    done = take(
        tmp_path,
        f"loadBalancerLoadSheddingStrategy={PREFIX}.impl.AvgShedder",
        f"loadBalancerLoadPlacementStrategy={PREFIX}.impl.AvgShedder",
    )
    assert done.exit_code == 0


KEY = "loadBalancerSheddingGracePeriodMinutes"
CONFIG_MAP = """
kind: ConfigMap
metadata: {name: pulsar-%s}
data: {PULSAR_PREFIX_loadBalancerSheddingGracePeriodMinutes: "%s", clusterName: %s}
---"""


@pytest.mark.parametrize(
    ("file", "lines", "line"),
    [
        ("broker.conf", ["\ufeffloadBalancerSheddingGracePeriodMinutes=7"], 1),
        ("broker.conf", [f"{KEY}: 7", "clusterName: c1"], 1),
        ("broker.env", [f'export PULSAR_PREFIX_{KEY}="7"'], 1),
        ("variables", ["# of the container", f"PULSAR_PREFIX_{KEY}='7'", "clusterName=c1"], 2),
        ("broker.yaml", [f"{KEY}: 7  # minutes"], 1),
        (
            "map.yaml",
            [CONFIG_MAP % ("proxy", 1, "p"), CONFIG_MAP % ("broker", 7, "c1"), CONFIG_MAP % ("zk", 2, "z")],
            9,
        ),
        (
            "map",
            ["kind: ConfigMap", "data:", "  broker.conf: |", "    # ours", f"    {KEY}=7", f"  proxy.conf: {KEY}=1"],
            5,
        ),
        ("values.yaml", ["proxy:", f"  configData: {{{KEY}: 1}}", "broker:", "  configData:", f"    {KEY}: '7'"], 5),
        ("compose.yml", ["services:", "  broker:", "    environment:", f"      - PULSAR_PREFIX_{KEY}=7"], 4),
        ("pod.yaml", ["spec:", "  containers:", "  - env:", f"    - name: PULSAR_PREFIX_{KEY}", '      value: "7"'], 4),
        ("pod.json", [f'[{{"Config": {{"Env": ["PATH=/bin", "PULSAR_PREFIX_{KEY}=7"]}}}}]'], 1),
    ],
)
def test_keys_are_found_in_each_kind_of_file(tmp_path: Path, file: str, lines: list[str], line: int) -> None:
    path = tmp_path / file
    path.write_text("\n".join(lines), encoding="utf-8")
    imported = import_broker_conf(path)
    (converted,) = (each for each in imported.converted if each.entry.key == KEY)
    assert (converted.outcome, converted.entry.line) == (KeyOutcome.USED, line)
    assert imported.settings.load_balancer_shedding_grace_period_minutes == 7
    assert imported.settings.cluster_name in {"c1", "standalone"}


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("x.yaml", "a: {b: 1}", "no keys of a Pulsar broker"),
        ("x.conf", "# nothing", "no keys of a Pulsar broker"),
        ("x.yaml", "a: [", "not valid YAML"),
    ],
)
def test_a_file_without_keys_ends_with_2(tmp_path: Path, file: str, text: str, why: str) -> None:
    (tmp_path / file).write_text(text, encoding="utf-8")
    done = CliRunner().invoke(config, ["import", str(tmp_path / file)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"loadmanager: {tmp_path / file}: {why}")


@pytest.mark.parametrize(
    ("lines", "rejected", "why"),
    [
        (
            [
                "authenticationProviders=org.apache.pulsar.broker.authentication.AuthenticationProviderSasl",
                "saslJaasClientAllowedIds=.*",
                'brokerClientAuthenticationParameters={"saslJaasClientSectionName": "PulsarClient"}',
            ],
            {"authenticationEnabled"},
            "tokenSecretKey and tokenPublicKey: neither is set",
        ),
        (["tokenSecretKey=data:base64,c2hvcnQ="], set(), "tokenSecretKey: expected file:///path"),
        (
            [f"tokenSecretKey={'a' * 44}", "tokenPublicKey=file:///k"],
            {"authenticationEnabled", "tokenPublicKey"},
            "both",
        ),
        (["tokenPublicKey=bm8ga2V5"], {"tokenPublicKey"}, "tokenPublicKey: expected a public RSA key"),
        (
            [f"tokenSecretKey={'a' * 44}", "tokenAudience=here"],
            {"tokenAudience"},
            "tokenAudience: takes tokenAudienceClaim too",
        ),
        ([f"tokenSecretKey={'a' * 44}"], None, ""),
        (["tokenPublicKey=file:///is/on/the/brokers/public.key"], None, ""),
        (["tlsTrustCertsFilePath=/is/on/the/brokers/ca.pem"], None, ""),
    ],
)
def test_value_refused_at_start(tmp_path: Path, lines: list[str], rejected: set[str] | None, why: str) -> None:
    lines = ["authenticationEnabled=true", "superUserRoles=admin", *lines]
    found = fates(tmp_path, *lines)
    assert {key for key, (outcome, _) in found.items() if outcome is KeyOutcome.REJECTED} == (rejected or set())
    assert found["superUserRoles"][0] is KeyOutcome.USED
    done = take(tmp_path, *lines)
    assert done.exit_code == (0 if rejected is None else 2)
    assert why in done.stderr
    assert "a node refuses this: " in done.stderr or rejected is None
    assert yaml.safe_load(done.stdout)["authenticationEnabled"], "a node that starts asks for tokens"
    assert ("# tokenSecretKey: write this secret here yourself" in done.stdout) == any("SecretKey=" in x for x in lines)


@pytest.mark.parametrize(
    ("lines", "key", "value"),
    [
        (["loadBalancerBandwithInResourceWeight=0.5"], "loadBalancerBandwidthInResourceWeight", 0.5),
        (["loadBalancerBandwithOutResourceWeight=0.5"], "loadBalancerBandwidthOutResourceWeight", 0.5),
        (
            ["loadBalancerBandwidthInResourceWeight=1", "loadBalancerBandwithInResourceWeight=0.5"],
            "loadBalancerBandwidthInResourceWeight",
            0.5,
        ),
        (
            ["loadBalancerBandwithInResourceWeight=0.5", "loadBalancerBandwidthInResourceWeight=0.8"],
            "loadBalancerBandwidthInResourceWeight",
            0.8,
        ),
        (["zookeeperServers=zk1:2181,zk2:2181"], "metadataStoreUrl", "zk:zk1:2181,zk2:2181"),
        (["zookeeperServers=zk1:2181", "metadataStoreUrl="], "metadataStoreUrl", "zk:zk1:2181"),
        (["zooKeeperSessionTimeoutMillis=30000"], "metadataStoreSessionTimeoutMillis", 30_000),
        (
            ["topicBundleAssignmentStrategy=org.apache.pulsar.common.naming.ConsistentHashingTopicBundleAssigner"],
            "defaultHashFunction",
            "crc32",
        ),
    ],
)
def test_a_key_of_another_name_is_translated(tmp_path: Path, lines: list[str], key: str, value: object) -> None:
    assert yaml.safe_load(take(tmp_path, *lines).stdout) == {key: value, **AS_PULSAR}


def test_the_last_of_two_equal_keys_counts(tmp_path: Path) -> None:
    assert yaml.safe_load(take(tmp_path, "clusterName=a", "clusterName=b").stdout)["clusterName"] == "b"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("webServicePort=8080", "says where the broker is"),
        ("advertisedAddress=h", "says where the broker is"),
        ("loadBalancerReportUpdateMaxIntervalMinutes=15", "a setting of the agent"),
        ("loadManagerMigrationEnabled=true", "there is one load manager here"),
        ("loadBalancerFutureKey=1", "no such setting here"),
        ("clusterName=", "empty"),
        ("topicBundleAssignmentStrategy=my.Own", "only Pulsar's usual hash"),
        ("managedLedgerDefaultEnsembleSize=2", "not about load balancing"),
    ],
)
def test_a_key_that_is_not_used_is_ignored_for_a_reason(tmp_path: Path, line: str, why: str) -> None:
    ((outcome, reason),) = fates(tmp_path, line).values()
    assert outcome is KeyOutcome.IGNORED
    assert reason.startswith(why)


def test_nothing_that_a_node_or_an_agent_knows_counts_as_not_needed() -> None:
    known = {model.key(name) for model in (Settings, AgentSettings) for name in model.model_fields}
    assert not broker_conf._NOT_NEEDED.keys() & known


def test_of_two_spellings_the_one_that_does_not_count_says_so(tmp_path: Path) -> None:
    new, old = "loadBalancerBandwidthInResourceWeight", "loadBalancerBandwithInResourceWeight"
    assert fates(tmp_path, f"{new}=0.8", f"{old}=0.5") == {
        new: (KeyOutcome.USED, ""),
        old: (KeyOutcome.IGNORED, f"deprecated, and {new} is set"),
    }
    assert fates(tmp_path, f"{new}=1.0", f"{old}=0.5") == {
        new: (KeyOutcome.IGNORED, f"the default, and {old} is set"),
        old: (KeyOutcome.TRANSLATED, f"deprecated: now {new}"),
    }


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("loadBalancerBrokerMaxTopics=many", "valid integer"),
        ("loadBalancerBrokerThresholdShedderPercentage=101", "allowed: >= 0, <= 100"),
        ("loadBalancerSheddingEnabled=perhaps", "valid boolean"),
        ("loadBalancerLoadSheddingStrategy=my.OwnShedder", "unknown strategy"),
        ("metadataStoreUrl=etcd:http://h:2379", "only ZooKeeper can be used"),
    ],
)
def test_bad_value_ends_with_2_and_names_line_and_key(tmp_path: Path, line: str, complaint: str) -> None:
    done = take(tmp_path, "# a broker.conf", "clusterName=c1", line)
    key = line.partition("=")[0]
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"loadmanager: {tmp_path}/broker.conf:3: {key}: ")
    assert complaint in done.stderr


def test_values_that_exclude_each_other_end_with_2(tmp_path: Path) -> None:
    done = take(tmp_path, f"loadBalancerLoadSheddingStrategy={PREFIX}.impl.AvgShedder")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"loadmanager: {tmp_path}/broker.conf: ")


def test_a_file_that_is_not_there_ends_with_2(tmp_path: Path) -> None:
    done = CliRunner().invoke(config, ["import", str(tmp_path / "none")])
    assert (done.exit_code, done.stderr) == (2, f"loadmanager: {tmp_path}/none: No such file or directory\n")


def test_a_file_that_is_not_text_ends_with_2(tmp_path: Path) -> None:
    (tmp_path / "broker.conf").write_bytes(b"a=\xff\xfe")
    done = CliRunner().invoke(config, ["import", str(tmp_path / "broker.conf")])
    assert (done.exit_code, done.stderr) == (2, f"loadmanager: {tmp_path}/broker.conf: not UTF-8 text\n")


def test_the_table_has_what_is_about_load_balancing_and_counts_the_rest(tmp_path: Path) -> None:
    done = take(tmp_path, "clusterName=c1", "webServicePort=8080", "managedLedgerMaxSize=1", "zzz=1")
    rows = [line.split() for line in done.stderr.splitlines()]
    assert ["1", "clusterName", "used"] in rows
    assert any(row[:3] == ["2", "webServicePort", "ignored"] for row in rows)
    assert "managedLedgerMaxSize" not in done.stderr
    assert "nothing to do with load balancing: 2;" in done.stderr


def test_who_may_ask_is_taken_over_and_secrets_are_printed_nowhere(tmp_path: Path) -> None:
    lines = (
        "authenticationEnabled=true",
        "superUserRoles=admin, ops",
        "tokenSecretKey=data:;base64,cGxhbnRlZCBzZWNyZXQ=",
        "brokerClientAuthenticationParameters=token:planted.token.here",
    )
    done = take(tmp_path, *lines)
    assert "planted" not in done.output
    assert "cGxhbnRlZCBzZWNyZXQ" not in done.output
    assert yaml.safe_load(done.stdout)["superUserRoles"] == ["admin", "ops"]
    assert fates(tmp_path, *lines)["tokenSecretKey"][0] is KeyOutcome.IGNORED
