"""Declaration of settings as fields of a frozen dataclass, each once with key, default, description and bounds.

    broker_max_topics: int = setting("loadBalancerBrokerMaxTopics", 50_000, "Brokers with more ...", ge=0)

The configuration of a node is built from it (`loadmanager.config`), and so are the keys in verdicts.
"""

from __future__ import annotations

from dataclasses import Field, dataclass, field, fields
from typing import Any, TypeVar

_Value = TypeVar("_Value")
_DECLARED = "declared"

INT_MAX = 2**31 - 1
"""Largest Java int, the type of most of Pulsar's settings."""


@dataclass(frozen=True, slots=True)
class Declared:
    """Metadata of a setting besides its type; its unit is in the description. None: no bound. `installed` is the value
    of a new installation, if it is not the default, at which a strategy decides as Pulsar's.
    """

    key: str
    default: Any
    description: str
    gt: float | None = None
    ge: float | None = None
    le: float | None = None
    installed: Any = None


def setting(
    key: str,
    default: _Value,
    description: str,
    *,
    gt: float | None = None,
    ge: float | None = None,
    le: float | None = None,
    installed: _Value | None = None,
) -> _Value:
    """Declare a setting as a dataclass field."""
    return field(default=default, metadata={_DECLARED: Declared(key, default, description, gt, ge, le, installed)})


def percent(key: str, default: float, description: str) -> float:
    """Declare a setting in whole per cent, 0 to 100, as Pulsar writes them."""
    return setting(key, default, description, ge=0, le=100)


def weight(key: str, default: float, description: str) -> float:
    return setting(key, default, description, ge=0, le=100)


def count(key: str, default: int, description: str) -> int:
    """Declare a non-negative number of things, bytes or messages, up to the largest Java int."""
    return setting(key, default, description, ge=0, le=INT_MAX)


def minutes(key: str, default: float, description: str) -> float:
    """Declare a non-negative time in minutes."""
    return setting(key, default, description, ge=0, le=100_000)


def declared_in(settings: type[Any]) -> dict[str, Declared]:
    """Return the settings declared by a dataclass, by field name."""
    return {each.name: _of(each) for each in fields(settings) if _DECLARED in each.metadata}


def _of(each: Field[Any]) -> Declared:
    declared = each.metadata[_DECLARED]
    assert isinstance(declared, Declared)
    return declared
