"""What counts of a table, and who keeps account of it: the common part of Delta's logs and of our manifests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

WHOLE = "all"
"""The key of the only part of a table that is written as a whole."""

PART = "part"
"""The column by which the files of a table are kept apart."""

TIME = "at_ms"
"""The column whose first and last value is told of each file, in tables that have it."""


_BELOW_ROOT = 4
"""Parts of a file's path that are the same wherever it is said: its table, two folders, and its name."""


def place_of(path: str) -> str:
    """Where a file is, from the root of its tables, or of a history, on."""
    return "/".join(path.split("/")[-_BELOW_ROOT:])


@dataclass(frozen=True, slots=True)
class RowFile:
    """`path` is from the table's folder on; `times` are of its rows the first and the last `at_ms`., if any."""

    path: str
    rows: int
    size_bytes: int
    times: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Contents:
    """The files of each part; number 0 is that of a table that was never written."""

    number: int = 0
    parts: Mapping[str, Sequence[RowFile]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(file.rows for files in self.parts.values() for file in files)


class Account(Protocol):
    """Of the tables under one root. Raises `PipelineError`, `OSError`, or `pyarrow.ArrowException`."""

    def contents(self, name: str) -> Contents:
        """What counts at this moment."""
        ...

    def commit(self, name: str, added: Mapping[str, Sequence[RowFile]], replaced: Sequence[str] | None) -> None:
        """Make these files the parts that are `replaced`, all at once; None: all parts that there are."""
        ...

    def clean(self, name: str) -> None:
        """Delete files that do not count and that nobody needs any more, as far as they can be deleted now."""
        ...
