from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from loadmanager.agent.agent_service import url_of
from loadmanager.config.agent_settings import AgentSettings
from loadmanager.config.settings_loader import load_settings, render_yaml
from loadmanager.errors import ConfigurationError

FILE = Path(__file__).parents[3] / "config" / "agent.yaml"
REQUIRED = {"brokerId": "a.example:8080", "brokerUrl": "http://127.0.0.1:7070", "loadManagerUrls": ["http://lm:8080"]}


def test_configuration_file_is_the_rendered_settings() -> None:
    assert FILE.read_text(encoding="utf-8") == render_yaml(AgentSettings)


def test_configuration_file_is_valid_once_required_keys_are_set() -> None:
    values: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    assert load_settings(AgentSettings, None, {**values, **REQUIRED}) == load_settings(AgentSettings, None, REQUIRED)


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({}, "http://a.example:9999"),
        ({"bindAddress": "127.0.0.1"}, "http://127.0.0.1:9999"),
        ({"bindAddress": "10.0.0.5"}, "http://10.0.0.5:9999"),
        ({"bindAddress": "0.0.0.0"}, "http://a.example:9999"),
        ({"bindAddress": "::", "brokerId": "[fd00::1]:8080"}, "http://[fd00::1]:9999"),
        ({"bindAddress": "0.0.0.0", "agentUrl": "https://agent.example/"}, "https://agent.example"),
    ],
)
def test_agent_url_is_built_from_bind_address_or_broker_host(settings: dict[str, Any], url: str) -> None:
    assert url_of(load_settings(AgentSettings, None, {**REQUIRED, **settings}), "http", 9999) == url


BY_TLS_ALONE = {
    "agentPort": None,
    "agentPortTls": 0,
    "agentLocalPort": 0,
    "tlsCertificateFilePath": "c",
    "tlsKeyFilePath": "k",
}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"agentLocalPort": 1, "brokerSocketPath": "/run/agent"},
            "agentLocalPort, brokerSocketPath: the broker asks at",
        ),
        ({"agentPort": None}, "agentPort, agentPortTls: both are empty"),
        ({"agentPort": None, "agentPortTls": 1}, "agentPortTls: needs a tlsCertificateFilePath and a tlsKeyFilePath"),
        (
            {"agentPort": None, "agentPortTls": 1, "tlsCertificateFilePath": "c", "tlsKeyFilePath": "k"},
            "agentLocalPort: required for the broker",
        ),
        ({**BY_TLS_ALONE, "agentUrl": "http://a:9090"}, "agentUrl: http needs a plain agentPort"),
        ({"brokerClientTlsEnabled": True}, "brokerClientTlsEnabled: there is no TLS port: give agentPortTls"),
        ({"tlsRequireTrustedClientCertOnConnect": True}, "no certificate is trusted: give tlsTrustCertsFilePath"),
    ],
)
def test_invalid_listener_settings_are_rejected_by_key(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        load_settings(AgentSettings, None, {**REQUIRED, **settings})


def test_empty_values_count_as_unset() -> None:
    settings = load_settings(AgentSettings, None, {**REQUIRED, "agentLocalPort": "", "brokerSocketPath": ""})
    assert settings.shares_a_port
    assert settings == load_settings(AgentSettings, None, REQUIRED)
