"""Secrets of the configuration are in force, and shown nowhere."""

from __future__ import annotations

import pytest
from support.nodes import a_leader, settings
from support.tokens import CLOSED, SECRET, bearer, token_of

from loadmanager.config.agent_settings import AgentSettings
from loadmanager.config.dynamic_settings import settings_recorded, values_as_text, with_overrides
from loadmanager.config.node_settings import Settings
from loadmanager.config.settings_loader import load_settings, render_fields
from loadmanager.errors import ConfigurationError
from loadmanager.lab.decide.cluster_dump import configuration_of
from loadmanager.net.auth.gate import AuthGate
from loadmanager.net.auth.outgoing_token import TokenAlone, own_token

TEXT = str(CLOSED["token_secret_key"].get_secret_value())
TOKEN = token_of("node")


def test_override_of_another_key_keeps_secrets() -> None:
    closed = with_overrides(settings(**CLOSED), {"loadBalancerSheddingGracePeriodMinutes": "7"}, "test")
    own = own_token(closed)
    assert own is not None
    assert own.read() == TOKEN
    assert not AuthGate(closed).is_open


def test_printed_recorded_and_dumped_settings_hide_secrets() -> None:
    closed = settings(**CLOSED)
    texts = values_as_text(closed)
    assert texts["tokenSecretKey"] == texts["brokerClientAuthenticationParameters"] == "***"
    assert values_as_text(settings())["tokenSecretKey"] == ""
    assert settings_recorded(texts).authentication_enabled, "a history can be read"
    shown = (repr(closed), str(texts), render_fields(closed, Settings.model_fields), str(configuration_of(closed)))
    for text in shown:
        assert TEXT not in text
        assert SECRET.decode() not in text
        assert TOKEN not in text
    assert "tokenSecretKey" not in configuration_of(closed)


async def test_runtime_configuration_hides_secrets() -> None:
    async with a_leader(**CLOSED) as (_, node):
        reply = await node.get("/admin/v2/brokers/configuration/runtime", headers=bearer(token_of("root")))
        assert reply.json()["tokenSecretKey"] == "***"
        assert TOKEN.encode() not in reply.body


def test_error_about_a_secret_does_not_contain_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADMANAGER_TOKENSECRETKEY", TEXT)
    with pytest.raises(ConfigurationError) as error:
        load_settings(AgentSettings, None, {"brokerClientAuthenticationParameters": ["planted"], "bindAddress": 7})
    assert "brokerClientAuthenticationParameters: " in str(error.value)
    assert "planted" not in str(error.value)
    assert TEXT not in str(error.value)


@pytest.mark.parametrize("text", ["", "two words", "t\u00f6ken", "line\nbreak"])
def test_invalid_token_is_rejected_without_being_shown(text: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        TokenAlone(text, "--token")
    assert str(error.value) == "--token: expected a token, which is one word, and nothing else"
