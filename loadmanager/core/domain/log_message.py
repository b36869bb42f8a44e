"""Log entries of passive state machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Say:
    """Action of a state machine: write a log entry."""

    event: str
    fields: Mapping[str, object]
    is_warning: bool = True
