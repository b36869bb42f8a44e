"""What a passive machine has to say to whoever reads the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Say:
    """An instruction: an entry of the log."""

    event: str
    fields: Mapping[str, object]
    is_warning: bool = True
