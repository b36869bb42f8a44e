"""What a report is of, and what was read for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

Contents = Mapping[str, pd.DataFrame]
"""What was read, by table; a table that was never written is absent."""


@dataclass(frozen=True, slots=True)
class About:
    """Where the report comes from; `recommended` is the configuration file, if one was made.

    `notes` say by step what it left out.
    """

    run: str
    history: str
    out: str
    from_ms: int | None
    to_ms: int | None
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    recommended: str | None = None


def table(contents: Contents, name: str) -> pd.DataFrame:
    """Empty, without columns, where there is none."""
    return contents.get(name, pd.DataFrame())
