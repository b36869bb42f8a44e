"""Conversion of a node's settings to and from text, and dynamic configuration: the keys that can change at run time,
and their values as text, which override a node's own settings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr, ValidationError

from loadmanager.config.auth_settings import AuthSettings
from loadmanager.config.node_settings import Settings, SettingsAlone
from loadmanager.config.settings_base import hidden, without_password
from loadmanager.config.settings_loader import faults_of, refuse_unknown_keys
from loadmanager.config.shared_settings import AuditSettings, HttpSettings, StoreSettings, TlsSettings
from loadmanager.core.domain.settings import AS_PULSAR, KEYS
from loadmanager.errors import BadRequestError, ConfigurationError, NotDynamicError

_FIELDS = {Settings.key(name): name for name in Settings.model_fields}

NEEDS_RESTART = frozenset(
    {
        *StoreSettings.model_fields,  # the session is opened at the start
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
        "leader_silence_ms",  # the watch of the leader begins at the start
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
    return sorted(key for key, name in _FIELDS.items() if name not in NEEDS_RESTART)


def settings_of(values: Mapping[str, Any], where: str) -> Settings:
    """Build settings from these keys and values; the environment is ignored.

    Raises `ConfigurationError` naming `where`, the key and what is allowed.
    """
    refuse_unknown_keys(SettingsAlone, values, where)
    return _validate(values, where)


def with_overrides(base: Settings, texts: Mapping[str, str], where: str) -> Settings:
    """Return `base` with other values for some keys, given as text; lists are separated by commas.

    Raises `ConfigurationError` naming `where`, the key and what is allowed.
    """
    refuse_unknown_keys(Settings, texts, where)
    parsed = {_FIELDS[key]: _parse_text(_FIELDS[key], text) for key, text in texts.items()}
    return _validate(base.model_dump() | parsed, where)


def _validate(values: Mapping[str, Any], where: str) -> Settings:
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


_WHERE = "dynamic configuration"
_RECORDED = "the recorded settings"

OF_THE_NODE = frozenset(map(Settings.key, NEEDS_RESTART)).difference(KEYS.values())
"""Keys of a node's address, peers and recordings: no decision depends on them."""


def check_dynamic(key: str) -> None:
    """Raise `NotDynamicError` unless the key can change at run time."""
    name = _FIELDS.get(key)
    if name is None:
        raise NotDynamicError(f"{key}: no such key")
    if name in NEEDS_RESTART:
        raise NotDynamicError(f"{key}: is not dynamic; change it where nodes are configured, and restart them")


def settings_under(base: Settings, overrides: Mapping[str, str]) -> Settings:
    """Return the settings under these overrides.

    Raises `NotDynamicError` for a key that is unknown or needs a restart, `BadRequestError` for an invalid value, with
    the allowed ones.
    """
    for key in overrides:
        check_dynamic(key)
    try:
        return with_overrides(base, overrides, _WHERE)
    except ConfigurationError as error:
        raise BadRequestError(str(error)) from None


def usable_overrides(base: Settings, overrides: Mapping[str, str]) -> tuple[Settings, dict[str, str], list[str]]:
    """Return the settings under the usable overrides, these overrides, and the faults of the others.

    First invalid values are dropped, then those that contradict each other.
    """
    faults: list[str] = []
    usable: dict[str, str] = {}
    for key, text in overrides.items():
        try:
            check_dynamic(key)
            usable[key] = text
        except NotDynamicError as error:
            faults.append(str(error))
    while True:
        try:
            return settings_under(base, usable), usable, faults
        except BadRequestError as error:
            faults.append(str(error))
            named = [key for key in usable if re.search(rf"\b{key}(\.\d+)?(: | ')", str(error))]
            usable = {key: text for key, text in usable.items() if named and key not in named}


def settings_recorded(texts: Mapping[str, str]) -> Settings:
    """Return settings from a history, without the environment. Unknown keys are ignored. A key newer than the recording
    gets the value that had the same effect then.
    """
    known = {key: text for key, text in texts.items() if key in _FIELDS}
    return with_overrides(settings_of({}, _RECORDED), {**AS_PULSAR, **known}, _RECORDED)
