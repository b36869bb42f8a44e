"""The manifests and the compose file: valid for what reads them, and true to the program."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from pydantic import ValidationError
from support.command_line import check, root

from loadmanager.cli import COMMANDS
from loadmanager.config.agent_settings import AgentSettings
from loadmanager.config.dynamic_settings import settings_of
from loadmanager.config.node_settings import Settings
from loadmanager.config.pulsar_service_settings import PulsarServiceSettings
from loadmanager.config.settings_base import ENVIRONMENT_PREFIX
from loadmanager.config.settings_loader import load_settings

AnySettings = Settings | AgentSettings | PulsarServiceSettings

TOP = Path(__file__).parents[2]
OLDEST_KUBERNETES = "1.29"
NEWEST_KUBERNETES = "1.35"
OF_KUSTOMIZE = sorted([*(TOP / "k8s").rglob("kustomization.yaml"), *(TOP / "config").rglob("kustomization.yaml")])
CONFIGURATIONS = sorted((TOP / "k8s").rglob("loadmanager.yaml"))
MANIFESTS = sorted({*(TOP / "k8s").rglob("*.yaml")} - {*OF_KUSTOMIZE, *CONFIGURATIONS})
MONITORING = TOP / "config" / "monitoring"
EXAMPLE = TOP / "k8s" / "overlays" / "example"
OF_THE_OPERATOR = {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
OF_SPARK = "SparkApplication"
WITH_PODS = ("StatefulSet", "Deployment")
COMPOSE = yaml.safe_load((TOP / "docker" / "compose.yaml").read_text(encoding="utf-8"))


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in MANIFESTS:
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            yield f"{path.name}: {document['kind']} {document['metadata']['name']}", document


def containers() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, document in documents():
        if document["kind"] in WITH_PODS:
            pod = document["spec"]["template"]["spec"]
            for container in (*pod.get("initContainers", ()), *pod["containers"]):
                yield f"{name}: {container['name']}", container


def settings_from(environment: dict[str, str], model: type[AnySettings]) -> AnySettings:
    """The settings that a process with these variables would have; keys are known in any case."""
    keys = {model.key(name).lower(): model.key(name) for name in model.model_fields}
    values: dict[str, Any] = {}
    for variable, value in environment.items():
        if variable.startswith(ENVIRONMENT_PREFIX):
            key = keys[variable.removeprefix(ENVIRONMENT_PREFIX).lower()]
            values[key] = yaml.safe_load(value) if value.startswith("[") else value
    return model(**values)


@pytest.mark.parametrize("version", [OLDEST_KUBERNETES, NEWEST_KUBERNETES])
@pytest.mark.parametrize(
    "document", [pytest.param(each, id=name) for name, each in documents() if each["kind"] != OF_SPARK]
)
def test_every_manifest_is_valid(document: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(document, version, strict=True)


def test_invalid_manifest_is_detected() -> None:
    _, document = next(each for each in documents() if each[1]["kind"] == "StatefulSet")
    document["spec"]["replica"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, OLDEST_KUBERNETES, strict=True)


def config_map(name: str, file: str) -> dict[str, Any]:
    (found,) = (each for _, each in documents() if each["kind"] == "ConfigMap" and each["metadata"]["name"] == name)
    content: dict[str, Any] = yaml.safe_load(found["data"][file])
    return content


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.parent.name)
def test_node_configuration_is_valid(path: Path) -> None:
    settings = settings_of(yaml.safe_load(path.read_text(encoding="utf-8")), path.name)
    assert settings.planner_settings().shedding_strategy == "Level"


@pytest.mark.parametrize("path", OF_KUSTOMIZE, ids=lambda path: path.parent.name)
def test_kustomizations_name_existing_files(path: Path) -> None:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert content["kind"] in ("Kustomization", "Component")
    files = [each.rpartition("=")[2] for one in content.get("configMapGenerator", ()) for each in one["files"]]
    named = [*content.get("resources", ()), *content.get("components", ()), *files]
    missing = [each for each in named if not (path.parent / each).exists()]
    assert not missing
    outside = [each for each in named if not (path.parent / each).is_dir() and ".." in each]
    assert not outside, "kustomize loads no file from outside"


def test_operator_rules_equal_the_prometheus_rules() -> None:
    wrapped = yaml.safe_load((MONITORING / "kubernetes" / "prometheusrule.yaml").read_text(encoding="utf-8"))
    assert wrapped["spec"] == yaml.safe_load((MONITORING / "alerts.yaml").read_text(encoding="utf-8"))


def test_monitors_select_existing_services_and_ports() -> None:
    service, pods = yaml.safe_load_all((MONITORING / "kubernetes" / "monitors.yaml").read_text(encoding="utf-8"))
    asked = service["spec"]["selector"]["matchLabels"].items()
    found = [
        each for _, each in documents() if each["kind"] == "Service" and asked <= each["metadata"]["labels"].items()
    ]
    assert [each["metadata"]["name"] for each in found] == ["loadmanager-nodes"]
    assert {each["port"] for each in service["spec"]["endpoints"]} <= {
        each["name"] for each in found[0]["spec"]["ports"]
    }
    label = pods["spec"]["selector"]["matchLabels"].items()
    templates = [each["spec"]["template"] for _, each in documents() if each["kind"] in WITH_PODS]
    (broker,) = (each for each in templates if label <= each["metadata"]["labels"].items())
    ports = {port["name"] for each in broker["spec"]["initContainers"] for port in each["ports"]}
    assert {each["port"] for each in pods["spec"]["podMetricsEndpoints"]} <= ports


def test_example_overlay_builds_valid_manifests() -> None:
    built = {(each["kind"], each["metadata"]["name"]): each for each in built_from(EXAMPLE)}
    nodes = built["StatefulSet", "loadmanager"]["spec"]
    (container,) = nodes["template"]["spec"]["containers"]
    assert container["image"] == "registry.example/loadmanager:0.1.0"
    mounted = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    history = next(each["value"] for each in container["env"] if each["name"] == "LOADMANAGER_HISTORYURL")
    assert history.startswith(mounted["history"])
    assert [each["metadata"]["name"] for each in nodes["volumeClaimTemplates"]] == ["history"]
    (source,) = (each["configMap"]["name"] for each in nodes["template"]["spec"]["volumes"])
    assert "example" in built["ConfigMap", source]["data"]["loadmanager.yaml"]
    assert {kind for kind, _ in built} >= OF_THE_OPERATOR


def test_autoscaling_keeps_its_replicas_while_nobody_leads() -> None:
    """KEDA takes a missing value for 0 unless it is told otherwise, and would scale in to the minimum."""
    recipe = re.search(r"```yaml\n(.*?kind: ScaledObject.*?)```", (TOP / "k8s/README.md").read_text(), re.DOTALL)
    assert recipe
    (trigger,) = yaml.safe_load(recipe[1])["spec"]["triggers"]
    assert trigger["metadata"]["ignoreNullValues"] == "false"


def test_token_component_mounts_the_configured_files() -> None:
    component = yaml.safe_load((TOP / "k8s/components/tokens/kustomization.yaml").read_text(encoding="utf-8"))
    pod = yaml.safe_load(component["patches"][0]["patch"])["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    settings = settings_from({each["name"]: each["value"] for each in container["env"]}, Settings)
    assert settings.authentication_enabled
    (mount,) = container["volumeMounts"]
    (volume,) = pod["volumes"]
    assert mount["name"] == volume["name"]
    for secret in (settings.token_secret_key, settings.broker_client_authentication_parameters):
        assert secret.get_secret_value().startswith(f"file://{mount['mountPath']}/")


def test_tls_component_opens_and_mounts_what_it_configures(tmp_path: Path) -> None:
    base, component = (os.path.relpath(TOP / "k8s" / each, tmp_path) for each in ("base", "components/tls"))
    overlay = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": [base]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay | {"components": [component]}))
    built = {(each["kind"], each["metadata"]["name"]): each for each in built_from(tmp_path)}
    pod = built["StatefulSet", "loadmanager"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    plain = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    settings = settings_from(plain, Settings)
    assert isinstance(settings, Settings)
    (mount,) = (each["mountPath"] for each in container["volumeMounts"] if each["name"] == "tls")
    files = (
        settings.tls_certificate_file_path,
        settings.tls_key_file_path,
        settings.broker_client_trust_certs_file_path,
    )
    assert {str(each.parent) for each in files if each is not None} == {mount}
    port = settings.web_service_port_tls
    assert {"name": "https", "containerPort": port} in container["ports"]
    for service in ("loadmanager", "loadmanager-nodes"):
        assert {"name": "https", "port": port, "targetPort": "https"} in built["Service", service]["spec"]["ports"]
    assert {"protocol": "TCP", "port": port} in built["NetworkPolicy", "loadmanager"]["spec"]["ingress"][0]["ports"]
    assert settings.broker_client_tls_enabled


def built_from(folder: Path) -> Iterator[dict[str, Any]]:
    """Valid manifests that kustomize builds of the folder."""
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl")
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for each in yaml.safe_load_all(done.stdout):
        if each["kind"] not in OF_THE_OPERATOR:
            kubernetes_validate.validate(each, OLDEST_KUBERNETES, strict=True)
        yield each


def test_pulsar_configuration_is_valid_and_can_act() -> None:
    content = config_map("loadmanager-pulsar", "pulsar.yaml")
    settings = load_settings(PulsarServiceSettings, None, content)
    assert (settings.mode, settings.bind_address) == ("observe", "0.0.0.0")
    assert load_settings(PulsarServiceSettings, None, {**content, "mode": "act"}).mode == "act"


def test_pulsar_process_writes_to_mounted_folders() -> None:
    content = config_map("loadmanager-pulsar", "pulsar.yaml")
    (container,) = (each for name, each in containers() if "Deployment loadmanager-pulsar" in name)
    mounted = {each["mountPath"] for each in container["volumeMounts"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {content["folder"], str(Path(content["tokenFile"]).parent)} <= mounted
    assert [each["containerPort"] for each in container["ports"]] == [
        PulsarServiceSettings.model_fields["web_service_port"].default
    ]


def test_pod_variables_are_keys_of_their_program() -> None:
    models: dict[str, type[AnySettings]] = {"serve": Settings, "agent": AgentSettings, "pulsar": PulsarServiceSettings}
    needed = {
        "agent": {"LOADMANAGER_BROKERID": "b:1"},
        "pulsar": {"LOADMANAGER_ADMINURLS": '["http://b:8080"]'},
    }
    started = 0
    for name, container in containers():
        command = container["args"][0]
        if command in models:
            started += 1
            plain = {each["name"]: each["value"] for each in container["env"] if "value" in each}
            settings_from({**plain, **needed.get(command, {})}, models[command])
            assert command in COMMANDS, name
    assert started == len(models)


def test_nightly_job_runs_existing_commands_and_publishes() -> None:
    (job,) = (each for _, each in documents() if each["kind"] == "CronJob")
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    ((run,), (publish,)) = pod["initContainers"], pod["containers"]
    for container in (run, publish):
        check(root(), list(container["args"]))
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}
    out = run["args"][run["args"].index("--out") + 1]
    assert publish["args"][publish["args"].index("--out") + 1] == out
    assert any(out.startswith(each["mountPath"]) for each in run["volumeMounts"])
    assert pod["enableServiceLinks"] is False


def test_spark_application_has_the_versions_of_the_image() -> None:
    (spec,) = (each["spec"] for _, each in documents() if each["kind"] == OF_SPARK)
    check(root(), list(spec["arguments"]))
    assert f"pyspark=={spec['sparkVersion']}" in (TOP / "constraints.txt").read_text(encoding="utf-8").splitlines()
    dockerfile = (TOP / "docker" / "Dockerfile").read_text(encoding="utf-8")
    folder, _, script = spec["mainApplicationFile"].removeprefix("local://").rpartition("/")
    assert f"/{script} {folder}/" in dockerfile
    assert spec["sparkConf"]["spark.pyspark.python"] in dockerfile


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["driver", "--properties-file", "/a b", "local:///x.py", "pipeline", "run"],
            ["spark-submit", "--conf", "spark.driver.bindAddress=10.0.0.1", "--deploy-mode", "client"],
        ),
        (["executor"], ["java", "-Da=b c", "-Dd=e", "-Xms6g", "-Xmx6g", "-cp"]),
        (["pipeline", "--help"], ["loadmanager", "pipeline", "--help"]),
    ],
)
def test_image_starts_spark_driver_and_executor(tmp_path: Path, words: list[str], said: list[str]) -> None:
    for name in ("bin/java", "bin/spark-submit", "bin/loadmanager"):
        program = tmp_path / name
        program.parent.mkdir(exist_ok=True)
        program.write_text('#!/bin/sh\nprintf "%s\\n" "${0##*/}" "$@"\n')
        program.chmod(0o755)
    told = ("DRIVER_URL", "EXECUTOR_ID", "EXECUTOR_CORES", "APPLICATION_ID", "EXECUTOR_POD_IP", "RESOURCE_PROFILE_ID")
    environment = {
        "PATH": f"{tmp_path / 'bin'}:{os.defpath}",
        "SPARK_HOME": str(tmp_path),
        "JAVA_HOME": str(tmp_path),
        "SPARK_DRIVER_BIND_ADDRESS": "10.0.0.1",
        "SPARK_EXECUTOR_MEMORY": "6g",
        "SPARK_JAVA_OPT_0": "-Da=b c",
        "SPARK_JAVA_OPT_1": "-Dd=e",
        **{f"SPARK_{name}": f"{name}'s" for name in (*told, "EXECUTOR_POD_NAME")},
    }
    done = subprocess.run(
        ["/bin/sh", str(TOP / "docker" / "spark.sh"), *words],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    printed = done.stdout.splitlines()
    assert printed[: len(said)] == said
    if words == ["executor"]:
        assert printed[len(said)] == f"{tmp_path}/jars/*"
        options = dict(zip(printed[len(said) + 2 :: 2], printed[len(said) + 3 :: 2], strict=True))
        assert options["--driver-url"] == "DRIVER_URL's"
        assert options["--podName"] == "EXECUTOR_POD_NAME's"
        assert len(options) == len(told) + 1
    elif words[0] == "driver":
        assert printed[len(said) :] == words[1:]


def test_probes_and_services_use_named_ports() -> None:
    for name, container in containers():
        named = {port["name"]: port["containerPort"] for port in container["ports"]}
        probes = [container[kind] for kind in ("startupProbe", "livenessProbe", "readinessProbe") if kind in container]
        assert probes, f"{name} has no probe"
        for probe in probes:
            asked = (probe.get("httpGet") or probe["tcpSocket"])["port"]
            assert asked in named or isinstance(asked, int), f"{name}: no port {asked}"


def test_pods_have_no_service_variables() -> None:
    pods = [each["spec"]["template"]["spec"] for _, each in documents() if each["kind"] in WITH_PODS]
    assert pods
    assert all(pod["enableServiceLinks"] is False for pod in pods)


def test_compose_variables_are_keys_of_their_program() -> None:
    started = {"serve": 0, "agent": 0}
    for service in COMPOSE["services"].values():
        if service["image"] != "loadmanager" or service.get("entrypoint"):
            continue
        command = service.get("command", ["serve"])[0]
        settings_from(service["environment"], AgentSettings if command == "agent" else Settings)
        started[command] += 1
    assert started == {"serve": 3, "agent": 3}


def test_variable_out_of_bounds_is_detected() -> None:
    with pytest.raises(ValidationError):
        settings_from({"LOADMANAGER_WEBSERVICEPORT": "70000"}, Settings)


def test_demo_brokers_are_started_with_existing_options() -> None:
    source = (TOP / "loadmanager" / "dev" / "demo" / "demo_broker.py").read_text(encoding="utf-8")
    known = set(re.findall(r'add_argument\(\s*"(--[a-z-]+)"', source))
    scripts = [" ".join(service["command"]) for service in COMPOSE["services"].values() if service.get("entrypoint")]
    scripts += [" ".join(container["args"]) for _, container in containers() if container.get("command")]
    for script in scripts:
        used = set(re.findall(r"--[a-z-]+", script))
        assert used, script
        assert used <= known, f"{used - known} in {script}"


def test_image_build_copies_exactly_the_allowed_files() -> None:
    dockerfile = (TOP / "docker" / "Dockerfile").read_text(encoding="utf-8")
    copied = {
        word for line in re.findall(r"^COPY (?!--from)(.*)$", dockerfile, re.MULTILINE) for word in line.split()[:-1]
    }
    allowed = {
        line.removeprefix("!")
        for line in (TOP / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line[0] == "!"
    }
    assert copied == allowed
    assert all((TOP / path).exists() for path in copied)


def test_broker_is_drained_before_it_stops_within_the_grace_period() -> None:
    (pod,) = (each["spec"]["template"]["spec"] for _, each in documents() if each["metadata"]["name"] == "broker")
    (broker,) = (each for each in pod["containers"] if each["name"] == "broker")
    ((shell, option, script),) = [broker["lifecycle"]["preStop"]["exec"]["command"]]
    assert (shell, option) == ("sh", "-c")
    minutes = re.fullmatch(r'loadmanager admin brokers drain "\$BROKER_ID" --wait --at-most (\d+)m \|\| true', script)
    assert minutes
    assert pod["terminationGracePeriodSeconds"] >= int(minutes[1]) * 60 + 60
    variables = {each["name"]: each.get("value") for each in broker["env"]}
    agent = {each["name"]: each.get("value") for each in pod["initContainers"][0]["env"]}
    assert variables["BROKER_ID"] == agent["LOADMANAGER_BROKERID"]
