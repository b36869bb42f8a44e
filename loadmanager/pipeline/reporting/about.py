"""What a report is of, and what was read for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

Contents = Mapping[str, pd.DataFrame]
"""What was read, by table; a table that was never written is absent."""


@dataclass(frozen=True, slots=True)
class About:
    """Where the report comes from; `recommended` is the configuration file, if one was made."""

    run: str
    history: str
    out: str
    from_ms: int | None
    to_ms: int | None
    notes: Sequence[str] = ()
    recommended: str | None = None


def table(contents: Contents, name: str) -> pd.DataFrame:
    """Empty, without columns, where there is none."""
    return contents.get(name, pd.DataFrame())
