"""Settings: frozen models with bounds, Pulsar's keys and defaults wherever Pulsar has one.

Sources, the later one wins: defaults, the YAML file, environment variables (`LOADMANAGER_` and the key, in any case).
Settings are resolved once, where a process starts, and passed down; nothing reads them globally.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from loadmanager.config.agent import AgentSettings
from loadmanager.config.auth import AuthSettings
from loadmanager.config.base import ENVIRONMENT_PREFIX
from loadmanager.config.loading import load_settings
from loadmanager.config.rendering import render_fields, render_yaml
from loadmanager.config.shared import (
    AuditSettings,
    HttpSettings,
    SessionSettings,
    StoreSettings,
    TracingSettings,
    zookeeper_parts,
)
from loadmanager.config.tls import TlsSettings

if TYPE_CHECKING:
    from loadmanager.config.beside import BesideSettings
    from loadmanager.config.dynamic import (
        NEEDS_RESTART,
        dynamic_keys,
        settings_of,
        text_of,
        values_as_text,
        with_overrides,
    )
    from loadmanager.config.node import Settings

_OF_NODES = {"BesideSettings": "beside", "Settings": "node"} | dict.fromkeys(
    ("NEEDS_RESTART", "dynamic_keys", "settings_of", "text_of", "values_as_text", "with_overrides"), "dynamic"
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
    "BesideSettings",
    "HttpSettings",
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
