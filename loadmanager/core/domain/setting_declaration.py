"""How a setting is declared: once, as the field of a frozen dataclass, with its key, default, meaning and bounds.

    broker_max_topics: int = setting("loadBalancerBrokerMaxTopics", 50_000, "Brokers with more ...", ge=0)

The configuration of a node is made of it (`loadmanager.config`), and so are the keys in what is said about decisions.
"""

from __future__ import annotations

from dataclasses import Field, dataclass, field, fields
from typing import Any, TypeVar

_Value = TypeVar("_Value")
_DECLARED = "declared"

INT_MAX = 2**31 - 1
"""The largest of Java's ints, which most of Pulsar's settings are."""


@dataclass(frozen=True, slots=True)
class Declared:
    """What is said of a setting besides its type; its unit is in the description. None: no bound. `installed` is what a
    new installation has where that is not the default, with which a strategy decides as Pulsar's.
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
    """The field of a dataclass that holds a setting."""
    return field(default=default, metadata={_DECLARED: Declared(key, default, description, gt, ge, le, installed)})


def percent(key: str, default: float, description: str) -> float:
    """A setting in whole per cent, as Pulsar writes them, up to all of it."""
    return setting(key, default, description, ge=0, le=100)


def weight(key: str, default: float, description: str) -> float:
    return setting(key, default, description, ge=0, le=100)


def count(key: str, default: int, description: str) -> int:
    """A setting that is a number of things, or of bytes or messages, up to the largest of Java's ints."""
    return setting(key, default, description, ge=0, le=INT_MAX)


def minutes(key: str, default: float, description: str) -> float:
    """A time, which may be none."""
    return setting(key, default, description, ge=0, le=100_000)


def declared_in(settings: type[Any]) -> dict[str, Declared]:
    """The settings that a dataclass declares, by the names of its fields."""
    return {each.name: _of(each) for each in fields(settings) if _DECLARED in each.metadata}


def _of(each: Field[Any]) -> Declared:
    declared = each.metadata[_DECLARED]
    assert isinstance(declared, Declared)
    return declared
