"""Conversion of a node's settings to and from text, and the keys that can change at run time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr, ValidationError

from loadmanager.config.auth_settings import AuthSettings
from loadmanager.config.node_settings import Settings, SettingsAlone
from loadmanager.config.settings_base import hidden, without_password
from loadmanager.config.settings_loader import faults_of, refuse_unknown_keys
from loadmanager.config.shared_settings import AuditSettings, HttpSettings, StoreSettings, TlsSettings, TracingSettings
from loadmanager.errors import ConfigurationError

NEEDS_RESTART = frozenset(
    {
        *StoreSettings.model_fields,  # the session is opened at the start
        *TracingSettings.model_fields,  # the exporter is set up at the start
        *HttpSettings.model_fields,  # the port is opened at the start
        *AuditSettings.model_fields,  # the file is opened at the start
        *AuthSettings.model_fields,  # a setting must not decide who may change settings
        "cluster_name",  # a label of every metric, and the cluster that admin paths name
        "bind_address",
        "web_service_port",
        "web_service_port_tls",
        *TlsSettings.model_fields,  # their files are read again when they change
        "advertised_address",  # the node is registered under it
        "load_balancer_enabled",  # as in Pulsar
        "load_balancer_load_placement_strategy",  # as in Pulsar
        "load_balancer_placement_strategy",  # as in Pulsar
        "load_balancer_broker_underloaded_threshold_percentage",  # as in Pulsar
        "load_balancer_broker_comfort_load_level_percentage",  # as in Pulsar
        "lower_boundary_shedding_enabled",  # as in Pulsar
        "lookup_timeout_ms",  # nodes derive their timeouts for each other from it
        "leader_silence_ms",  # and from this
        "history_url",  # the history is opened at the start, so this and all history settings
        "history_flush_interval_s",
        "history_retention_hours",
        "history_max_bytes",
    }
)
"""Settings that need a restart. All others can change at run time, on all nodes at once.

Every dynamic key of Pulsar is dynamic here too.
"""


def dynamic_keys() -> list[str]:
    """Return the keys that can change at run time, sorted."""
    return sorted(Settings.key(name) for name in Settings.model_fields.keys() - NEEDS_RESTART)


def settings_of(values: Mapping[str, Any], where: str) -> Settings:
    """Build settings from these keys and values; the environment is ignored.

    Raises `ConfigurationError` naming `where`, the key and what is allowed.
    """
    refuse_unknown_keys(SettingsAlone, values, where)
    try:
        return SettingsAlone(**values)
    except ValidationError as error:
        raise ConfigurationError(faults_of(SettingsAlone, error, where)) from None


def with_overrides(base: Settings, texts: Mapping[str, str], where: str) -> Settings:
    """Return `base` with other values for some keys, given as text; lists are separated by commas.

    Raises `ConfigurationError` naming `where`, the key and what is allowed.
    """
    refuse_unknown_keys(Settings, texts, where)
    fields = {Settings.key(name): name for name in Settings.model_fields}
    values = base.model_dump() | {fields[key]: _parse_text(fields[key], text) for key, text in texts.items()}
    try:
        return SettingsAlone(**values)
    except ValidationError as error:
        raise ConfigurationError(faults_of(SettingsAlone, error, where)) from None


def values_as_text(settings: Settings) -> dict[str, str]:
    """Return all settings by key, in the format of `with_overrides` and of a `broker.conf`."""
    return {Settings.key(name): text_of(value) for name, value in settings.model_dump().items()}


def text_of(value: object) -> str:
    """Format a value as in a `broker.conf`; secrets and passwords in URLs become `***`."""
    if isinstance(value, SecretStr):
        return hidden(value)
    if isinstance(value, frozenset | list | tuple):
        return ",".join(sorted(value) if isinstance(value, frozenset) else map(str, value))
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else without_password(str(value))


def _parse_text(name: str, text: str) -> str | list[str]:
    default = Settings.model_fields[name].default
    if not isinstance(default, frozenset | tuple):
        return text
    return [part.strip() for part in text.split(",") if part.strip()]
