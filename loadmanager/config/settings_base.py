"""Base class of all settings: sources, keys, types and bounds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, SecretStr
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from loadmanager.core.domain.setting_declaration import Declared, Fit

_IN_URL = re.compile(r"://[^/@\s]+@")

ENVIRONMENT_PREFIX = "LOADMANAGER_"

Percent = Annotated[int, Field(ge=0, le=100)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
PositiveMs = Annotated[int, Field(ge=1, le=86_400_000)]
Port = Annotated[int, Field(ge=0, le=65_535)]
_EMPTY_IS_NONE = BeforeValidator(lambda value: None if value == "" else value)
OptionalPort = Annotated[int | None, Field(ge=0, le=65_535), _EMPTY_IS_NONE]
OptionalPath = Annotated[Path | None, _EMPTY_IS_NONE]
Minutes = Annotated[float, Field(gt=0, le=100_000, allow_inf_nan=False)]

_SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


def type_of_core(declared: Declared, hint: Any) -> Any:  # noqa: ANN401 - types are values here
    """Return the type of a core setting: finite, and optional if it is fitted to the fleet."""
    finite = Finite if hint is float else hint
    return finite if declared.fits is None else Annotated[finite | None, _EMPTY_IS_NONE]


def of_core(declared: Declared) -> Any:  # noqa: ANN401 - a field that fits any type
    """Return the pydantic field of a core setting."""
    bounds = {name: bound for name in _SIGNS if (bound := getattr(declared, name, None)) is not None}
    default, description = declared.default, declared.description
    if declared.fits is not None:
        description += f" Empty: {default}, and less in a fleet with less than {_describe(declared.fits)} per broker."
        default = None
    return Field(default, alias=declared.key, description=description, **bounds)


def _describe(fit: Fit) -> str:
    return f"{fit.reference:.0%} usage" if fit.measure == "usage" else f"{fit.reference:,.0f} {fit.measure}"


def bounds_of(field: FieldInfo) -> str:
    shown = [
        f"{sign} {getattr(constraint, name)}"
        for constraint in field.metadata
        for name, sign in _SIGNS.items()
        if getattr(constraint, name, None) is not None
    ]
    return ", ".join(shown)


def is_secret(field: FieldInfo) -> bool:
    """Return True if the field's value must not appear in errors, logs, answers or the history."""
    return field.annotation is SecretStr


def without_password(url: str) -> str:
    """Return the URL with its password replaced by `***`; any other text unchanged."""
    return _IN_URL.sub("://***@", url)


def hidden(secret: SecretStr) -> str:
    """Return the replacement for a secret: `***`, or nothing for an empty one."""
    return "***" if secret.get_secret_value() else ""


class KeyedSettings(BaseSettings):
    """Frozen settings. The key of a field is its name in camel case by default."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        env_prefix=ENVIRONMENT_PREFIX,
        env_prefix_target="all",
    )
    title: ClassVar[str]
    of_a_new_fleet: ClassVar[Mapping[str, Any]] = {}
    """Values by field name in a generated configuration, if they differ from the defaults."""
    reads_environment: ClassVar[bool] = True

    @classmethod
    def settings_customise_sources(  # the order is documented at the top of the package
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - not a source of ours
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - not a source of ours
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        del settings_cls
        return (env_settings, init_settings) if cls.reads_environment else (init_settings,)

    @classmethod
    def key(cls, name: str) -> str:
        """Return the configuration key of a field."""
        return cls.model_fields[name].alias or name
