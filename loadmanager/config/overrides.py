"""Dynamic configuration: values as text, by key, that override a node's own settings at run time."""

from __future__ import annotations

import re
from collections.abc import Mapping

from loadmanager.config.dynamic_settings import NEEDS_RESTART, settings_of, with_overrides
from loadmanager.config.node_settings import Settings
from loadmanager.core.domain.settings import AS_PULSAR, KEYS
from loadmanager.errors import BadRequestError, ConfigurationError, NotDynamicError

_FIELDS = {Settings.key(name): name for name in Settings.model_fields}
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
