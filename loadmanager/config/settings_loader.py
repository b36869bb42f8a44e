"""Settings from files, values and the environment, with errors that name source and key; and settings as YAML."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any, TypeVar

import yaml
from pydantic import SecretStr, ValidationError
from pydantic_settings import SettingsError

from loadmanager.config.settings_base import ENVIRONMENT_PREFIX, KeyedSettings, bounds_of, hidden, is_secret
from loadmanager.errors import ConfigurationError

_OTHER_VARIABLES = frozenset(
    {
        "LOADMANAGER_ADMIN_URL",
        "LOADMANAGER_JAVA",
        "LOADMANAGER_SHARED",
        "LOADMANAGER_TLS_CERTIFICATE_PATH",
        "LOADMANAGER_TLS_KEY_PATH",
        "LOADMANAGER_TLS_TRUST_CERT_PATH",
        "LOADMANAGER_TOKEN",
        "LOADMANAGER_TOKEN_FILE",
    }
)

S = TypeVar("S", bound=KeyedSettings)


def load_settings(model: type[S], path: Path | None, overrides: Mapping[str, Any] | None = None) -> S:
    """Load settings from the file (if any), `overrides` by key, and the environment.

    Raises `ConfigurationError` naming the source, the key and what is allowed.
    """
    _refuse_unknown_variables(model)
    values = {**(_read_yaml(path) if path else {}), **(overrides or {})}
    refuse_unknown_keys(model, values, str(path or "settings"))
    try:
        return model(**values)
    except SettingsError as error:
        keys = [model.key(name) for name in model.model_fields if f'"{name}"' in str(error)]
        variables = " ".join(filter(None, map(_find_variable, keys)))
        raise ConfigurationError(f'environment variable {variables}: expected JSON, such as ["a", "b"]') from None
    except ValidationError as error:
        raise ConfigurationError(faults_of(model, error, str(path or "settings"))) from None


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: not UTF-8 text") from None
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path}: not valid YAML: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigurationError(f"{path}: expected `key: value` lines, got a {type(content).__name__}")
    return {str(key): value for key, value in content.items()}


def _keys(model: type[KeyedSettings]) -> list[str]:
    return [model.key(name) for name in model.model_fields]


def refuse_unknown_keys(model: type[KeyedSettings], values: Mapping[str, Any], where: str) -> None:
    known = _keys(model)
    for key in values:
        if key not in known and key not in model.model_fields:
            raise ConfigurationError(f"{where}: unknown key {key!r}{_did_you_mean(key, known)}")


def _refuse_unknown_variables(model: type[KeyedSettings]) -> None:
    known = {f"{ENVIRONMENT_PREFIX}{key}".lower(): key for key in _keys(model)}
    others = {variable.lower() for variable in _OTHER_VARIABLES}
    for variable in os.environ:
        lowered = variable.lower()
        if lowered.startswith(ENVIRONMENT_PREFIX.lower()) and lowered not in known and lowered not in others:
            key = variable[len(ENVIRONMENT_PREFIX) :]
            hint = _did_you_mean(key, list(known.values()))
            raise ConfigurationError(f"environment variable {variable}: no such key{hint}")


def _did_you_mean(key: str, known: list[str]) -> str:
    by_lowered = {name.lower(): name for name in known}
    close = difflib.get_close_matches(key.lower(), by_lowered, n=1)
    return f"; did you mean {by_lowered[close[0]]!r}?" if close else ""


def faults_of(model: type[KeyedSettings], error: ValidationError, where: str) -> str:
    """Describe invalid values by source. The environment overrides the file, so a key in both is a fault of the
    environment.
    """
    by_source: dict[str, list[str]] = {}
    errors = error.errors(include_url=False)
    with_invalid_entries = {fault["loc"][0] for fault in errors if len(fault["loc"]) > 1}
    for fault in errors:
        if fault["type"] == "too_short" and fault["loc"][0] in with_invalid_entries:
            continue  # Pydantic does not count invalid entries, and says so a second time
        field = str(fault["loc"][0]) if fault["loc"] else ""
        key = model.key(field) if field in model.model_fields else field
        variable = _find_variable(key) if model.reads_environment else None
        source = f"environment variable {variable}" if variable else where
        by_source.setdefault(source, []).append(_fault(model, dict(fault)))
    return "; ".join(f"{source}: {'; '.join(faults)}" for source, faults in by_source.items())


def _find_variable(key: str) -> str | None:
    wanted = f"{ENVIRONMENT_PREFIX}{key}".lower()
    return next((variable for variable in os.environ if variable.lower() == wanted), None)


def _fault(model: type[KeyedSettings], fault: dict[str, Any]) -> str:
    location = [str(part) for part in fault["loc"]]
    names = {model.key(name): name for name in model.model_fields}
    name = names.get(location[0], location[0]) if location else ""
    field = model.model_fields.get(name)
    key = ".".join([model.key(name), *location[1:]] if field else location)
    if fault["type"] == "missing":
        return f"{key}: is required"
    message = str(fault["msg"]).removeprefix("Value error, ").replace("Tuple", "A list").replace("tuple", "list")
    if not location:
        return message
    if field is not None and is_secret(field):
        return f"{key}: {message}"
    allowed = bounds_of(field) if field else ""
    return f"{key}: {message} (got {fault['input']!r}{f'; allowed: {allowed}' if allowed else ''})"


_NO_WIDTH = 10_000
"""Lines of YAML are never wrapped."""


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


def _yaml_value(value: Any) -> str:  # noqa: ANN401 - any field's default
    if isinstance(value, SecretStr):
        value = hidden(value)
    if value is None or value == "":
        return '""' if value == "" else ""
    plain = sorted(value) if isinstance(value, frozenset) else list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(
        str(plain) if isinstance(plain, PurePath) else plain, default_flow_style=True, width=_NO_WIDTH
    ).splitlines()[0]
