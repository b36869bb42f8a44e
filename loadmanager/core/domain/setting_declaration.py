"""Declaration of settings as fields of a frozen dataclass, each once with key, default, description and bounds.

    broker_max_topics: int = setting("loadBalancerBrokerMaxTopics", 50_000, "Brokers with more ...", ge=0)

The configuration of a node is built from it (`loadmanager.config`), and so are the keys in verdicts.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple, TypeVar

_Value = TypeVar("_Value")
_Number = TypeVar("_Number", int, float)
_DECLARED = "declared"

INT_MAX = 2**31 - 1
"""Largest Java int, the type of most of Pulsar's settings."""


class Fit(NamedTuple):
    """Scaling of a threshold: the measure of load, and the mean per broker for which the default is right."""

    measure: Literal["usage", "messages/s", "bytes/s"]
    reference: float


BY_USAGE = Fit("usage", 0.5)


@dataclass(frozen=True, slots=True)
class Declared:
    """Declaration of a setting besides its type; its unit is in the description. None: no bound.

    `default` is Pulsar's. With `fits`, a new installation scales it to the load of its fleet.
    """

    key: str
    default: Any
    description: str
    gt: float | None = None
    ge: float | None = None
    le: float | None = None
    fits: Fit | None = None


def setting(
    key: str,
    default: _Value,
    description: str,
    *,
    gt: float | None = None,
    ge: float | None = None,
    le: float | None = None,
    fits: Fit | None = None,
) -> _Value:
    """Declare a setting as a dataclass field."""
    declared = Declared(key, default, description, gt, ge, le, fits)
    return field(default=default, metadata={_DECLARED: declared})


def percent(key: str, default: _Number, description: str, fits: Fit | None = None) -> _Number:
    """Declare a setting in whole per cent, 0 to 100, as Pulsar writes them."""
    return setting(key, default, description, ge=0, le=100, fits=fits)


def weight(key: str, default: float, description: str) -> float:
    return setting(key, default, description, ge=0, le=100)


def count(key: str, default: int, description: str, fits: Fit | None = None) -> int:
    """Declare a non-negative number of things, bytes or messages, up to the largest Java int."""
    return setting(key, default, description, ge=0, le=INT_MAX, fits=fits)


def declared_in(settings: type[Any]) -> dict[str, Declared]:
    """Return the settings declared by a dataclass, by field name."""
    return {each.name: each.metadata[_DECLARED] for each in fields(settings) if _DECLARED in each.metadata}
