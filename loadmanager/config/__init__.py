"""Settings: frozen models with bounds, Pulsar's keys and defaults wherever Pulsar has one.

Sources, the later one wins: defaults, the YAML file, environment variables (`LOADMANAGER_` and the key, in any case).
Settings are resolved once, where a process starts, and passed down; nothing reads them globally.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from loadmanager.config.agent_settings import AgentSettings
from loadmanager.config.auth_settings import AuthSettings
from loadmanager.config.settings_base import ENVIRONMENT_PREFIX
from loadmanager.config.settings_loader import load_settings, render_fields, render_yaml
from loadmanager.config.shared_settings import (
    AuditSettings,
    HttpSettings,
    SessionSettings,
    StoreSettings,
    TlsSettings,
    TracingSettings,
    zookeeper_parts,
)

if TYPE_CHECKING:
    from loadmanager.config.dynamic_settings import (
        NEEDS_RESTART,
        dynamic_keys,
        settings_of,
        text_of,
        values_as_text,
        with_overrides,
    )
    from loadmanager.config.node_settings import Settings
    from loadmanager.config.pulsar_service_settings import PulsarServiceSettings

_OF_NODES = {"PulsarServiceSettings": "pulsar_service_settings", "Settings": "node_settings"} | dict.fromkeys(
    ("NEEDS_RESTART", "dynamic_keys", "settings_of", "text_of", "values_as_text", "with_overrides"), "dynamic_settings"
)
"""By module what is imported when somebody asks for it: it needs packages that an agent is installed without."""


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever has that name
    if name not in _OF_NODES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_OF_NODES[name]}"), name)


__all__ = [
    "ENVIRONMENT_PREFIX",
    "NEEDS_RESTART",
    "AgentSettings",
    "AuditSettings",
    "AuthSettings",
    "HttpSettings",
    "PulsarServiceSettings",
    "SessionSettings",
    "Settings",
    "StoreSettings",
    "TlsSettings",
    "TracingSettings",
    "dynamic_keys",
    "load_settings",
    "render_fields",
    "render_yaml",
    "settings_of",
    "text_of",
    "values_as_text",
    "with_overrides",
    "zookeeper_parts",
]
