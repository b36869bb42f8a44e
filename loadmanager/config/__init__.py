"""Settings: frozen models with bounds, Pulsar's keys and defaults wherever Pulsar has one.

Sources, the later one wins: defaults, the YAML file, environment variables (`LOADMANAGER_` and the key, in any case).
Settings are resolved once, where a process starts, and passed down; nothing reads them globally.
"""

from __future__ import annotations

from loadmanager.config.agent import AgentSettings
from loadmanager.config.base import ENVIRONMENT_PREFIX
from loadmanager.config.beside import BesideSettings
from loadmanager.config.dynamic import NEEDS_RESTART, dynamic_keys, text_of, values_as_text, with_overrides
from loadmanager.config.loading import load_settings, settings_of
from loadmanager.config.node import Settings
from loadmanager.config.rendering import render_fields, render_yaml
from loadmanager.config.shared import AuditSettings, HttpSettings, SessionSettings, StoreSettings, zookeeper_parts

__all__ = [
    "ENVIRONMENT_PREFIX",
    "NEEDS_RESTART",
    "AgentSettings",
    "AuditSettings",
    "BesideSettings",
    "HttpSettings",
    "SessionSettings",
    "Settings",
    "StoreSettings",
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
