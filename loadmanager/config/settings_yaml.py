"""Rendering of settings as YAML."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath
from typing import Any

import yaml
from pydantic import SecretStr

from loadmanager.config.settings_base import KeyedSettings, bounds_of, hidden
from loadmanager.core.domain.hashing import HashFunction

_NO_WIDTH = 10_000
"""A line of YAML is never broken."""


def render_yaml(model: type[KeyedSettings]) -> str:
    """Return the configuration of a new fleet as a YAML file, with a comment on every key."""
    lines = [f"# {model.title}: every key, for a new fleet. Pulsar's broker.conf keys keep their names.", ""]
    for name, field in model.model_fields.items():
        lines.append(f"# {field.description}")
        bounds = bounds_of(field)
        if bounds:
            lines.append(f"# Allowed: {bounds}.")
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        value = model.of_a_new_fleet.get(name, default)
        if value != default:
            lines.append(f"# Default: {_yaml_value(default)}.")
        prefix = "# " if field.is_required() or value is None else ""
        lines.append(f"{prefix}{model.key(name)}: {_yaml_value(value)}".rstrip())
        lines.append("")
    return "\n".join(lines)


def render_fields(settings: KeyedSettings, names: Iterable[str]) -> str:
    """Render these fields as lines of YAML."""
    return "".join(f"{settings.key(name)}: {_yaml_value(getattr(settings, name))}\n" for name in names)


def _yaml_value(value: Any) -> str:  # noqa: ANN401 - whatever a field's default is
    if isinstance(value, SecretStr):
        value = hidden(value)
    if value is None or value == "":
        return '""' if value == "" else ""
    plain = sorted(value) if isinstance(value, frozenset) else list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(
        str(plain) if isinstance(plain, HashFunction | PurePath) else plain, default_flow_style=True, width=_NO_WIDTH
    ).splitlines()[0]
