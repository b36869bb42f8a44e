from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from loadmanager.agent.service import url_of
from loadmanager.config import AgentSettings, load_settings, render_yaml

FILE = Path(__file__).parents[3] / "config" / "agent.yaml"
REQUIRED = {"brokerId": "a.example:8080", "brokerUrl": "http://127.0.0.1:7070", "loadManagerUrls": ["http://lm:8080"]}


def test_the_configuration_file_is_what_the_settings_are_rendered_to() -> None:
    assert FILE.read_text(encoding="utf-8") == render_yaml(AgentSettings)


def test_the_configuration_file_works_once_the_required_keys_are_filled_in() -> None:
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
def test_the_agents_url_is_as_configured_or_where_the_broker_is(settings: dict[str, Any], url: str) -> None:
    assert url_of(load_settings(AgentSettings, None, {**REQUIRED, **settings}), 9999) == url
