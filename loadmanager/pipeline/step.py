"""A step of the pipeline: what it reads, what it writes, and the function that does it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loadmanager.errors import PipelineError
from loadmanager.pipeline.datasets import schema_of

if TYPE_CHECKING:
    from loadmanager.pipeline.job import JobRun


@dataclass(frozen=True, slots=True)
class Step:
    """A step may read and write the tables that it names here, and no others; and read what it has written itself.

    `reads` have to be there, `reads_if_there` need not. `check` is asked before any step begins, and raises
    `LoadManagerError` for what the step could not do. The function raises `NothingToSay` where there is nothing.
    """

    name: str
    function: Callable[[JobRun], None]
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    reads_if_there: tuple[str, ...] = ()
    check: Callable[[JobRun], None] | None = None

    def __post_init__(self) -> None:
        for table in (*self.reads, *self.writes, *self.reads_if_there):
            schema_of(table)

    def require_reads(self, table: str) -> None:
        if table not in (*self.reads, *self.reads_if_there, *self.writes):
            raise PipelineError(f"table {table}: not declared as read")

    def require_writes(self, table: str) -> None:
        if table not in self.writes:
            raise PipelineError(f"table {table}: not declared as written")


class NothingToSay(Exception):  # noqa: N818 - not an error: the run goes on
    """A step has nothing to say; the text is why. Those of its tables that it has not written are empty then."""
