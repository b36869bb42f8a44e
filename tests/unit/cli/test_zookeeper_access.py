from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import trustme
from structlog.testing import capture_logs

from loadmanager.cli.service_runner import access_of
from loadmanager.config.agent_settings import AgentSettings
from loadmanager.config.node_settings import Settings
from loadmanager.config.settings_loader import load_settings
from loadmanager.errors import ConfigurationError

REQUIRED = {"pulsarMetadataStoreUrl": "zk:zk:2181", "adminUrls": ["http://b:8080"]}


def a_node(**keys: object) -> Settings:
    return load_settings(Settings, None, keys)


@pytest.fixture
def credentials(tmp_path: Path) -> str:
    path = tmp_path / "zk"
    path.write_text("lm:secret")
    return f"file://{path}"


def test_access_is_anonymous_and_open_by_default() -> None:
    access = access_of(a_node())
    assert (access.credentials, access.tls, access.acls.are_open) == (None, None, True)


def test_credentials_close_znodes_to_others(credentials: str) -> None:
    access = access_of(a_node(metadataStoreCredentials=credentials))
    assert access.credentials is not None
    assert (access.acls.nodes, access.acls.agents) == ((access.credentials.identity,), ())
    assert access_of(a_node(metadataStoreCredentials=credentials, metadataStoreNodeIds=["world:anyone"])).acls.are_open


def test_agent_settings_name_the_owners_of_znodes(credentials: str) -> None:
    keys = {
        "brokerId": "b:1",
        "brokerUrl": "http://b:1",
        "loadManagerUrls": ["http://n:1"],
        "metadataStoreCredentials": f"sasl:{credentials}",
        "metadataStoreNodeIds": ["sasl:lm"],
        "metadataStoreAgentIds": ["sasl:agent"],
    }
    access = access_of(load_settings(AgentSettings, None, keys))
    assert access.credentials is not None
    assert access.credentials.scheme == "sasl"
    assert [f"{scheme}:{name}" for scheme, name in access.acls.nodes + access.acls.agents] == ["sasl:lm", "sasl:agent"]


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"metadataStoreCredentials": "file:///no/such/file"}, "metadataStoreCredentials file /no/such/file: No such"),
        ({"metadataStoreNodeIds": ["lm"]}, "metadataStoreNodeIds: 'lm': expected digest:user:hash"),
        ({"metadataStoreAgentIds": ["world:anyone"]}, "metadataStoreAgentIds: 'world:anyone': expected digest"),
        (
            {"metadataStoreNodeIds": ["world:anyone"], "metadataStoreAgentIds": ["lm"]},
            "metadataStoreAgentIds: 'lm': expected digest:user:hash",
        ),
        ({"metadataStoreAgentIds": ["sasl:agent"]}, "metadataStoreAgentIds: without metadataStoreCredentials or"),
        (
            {"metadataStoreTlsTrustCertsFilePath": "/no/ca.pem"},
            "metadataStoreTlsTrustCertsFilePath /no/ca.pem: No such file",
        ),
        (
            {"metadataStoreTlsCertificateFilePath": "/no/lm.pem"},
            "metadataStoreTlsCertificateFilePath /no/lm.pem, metadataStoreTlsKeyFilePath",
        ),
    ],
)
def test_invalid_access_is_rejected_with_key_and_file(keys: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        access_of(a_node(**keys))
    assert str(refused.value).startswith(says)


def test_sasl_without_its_package_is_rejected(monkeypatch: pytest.MonkeyPatch, credentials: str) -> None:
    monkeypatch.setattr("loadmanager.cli.service_runner.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"metadataStoreCredentials sasl:file:.* needs .* loadmanager\[sasl\]"):
        access_of(a_node(metadataStoreCredentials=f"sasl:{credentials}"))
    assert importlib.util.find_spec("puresasl")


def test_certificates_are_reread_and_the_last_valid_ones_kept(tmp_path: Path) -> None:
    trusted = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(trusted))
    settings = a_node(metadataStoreTlsTrustCertsFilePath=str(trusted))
    tls = access_of(settings).tls
    assert tls is not None
    first = tls().get_ca_certs()
    trustme.CA().cert_pem.write_to_path(str(trusted))
    second = tls().get_ca_certs()
    assert len(second) == 1
    assert second != first
    trusted.write_text("nothing of the kind")
    with capture_logs() as logs:
        assert tls().get_ca_certs() == second
    assert [(entry["event"], str(trusted) in entry["error"]) for entry in logs] == [("tls_files_unusable", True)]
