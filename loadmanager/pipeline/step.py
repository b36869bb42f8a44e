"""Steps of the pipeline, and the summary of a run: `<out>/summary.json`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import orjson

from loadmanager.errors import ConfigurationError, PipelineError
from loadmanager.history.files import Directory
from loadmanager.pipeline.datasets import schema_of

if TYPE_CHECKING:
    from loadmanager.pipeline.job import JobRun

SUMMARY = "summary.json"


@dataclass(frozen=True, slots=True)
class Step:
    """Step of the pipeline. It may access only the tables that it declares.

    Tables in `reads` must exist, those in `reads_if_there` may be missing. `check` runs before the first step of a run
    and raises `LoadManagerError` if the step cannot run. `function` raises `NoResult` if it has no result.
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


class NoResult(Exception):  # noqa: N818 - not an error: the run goes on
    """A step has no result; the text is the reason. Tables that it has not written are then emptied."""


@dataclass(slots=True)
class StepResult:
    """Result of a step: number of `rows` per table written, number of `hours` that `ingest` made, and `notes` about
    what was left out.
    """

    step: str
    run: str
    seconds: float = 0.0
    rows: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    fault: str | None = None
    hours: int = 0

    def note(self, text: str) -> None:
        """Add a sentence about what was left out, once."""
        if text not in self.notes:
            self.notes.append(text)


@dataclass(slots=True)
class Summary:
    """Latest result of each step, from the last run or an earlier one, and the range of the ingested reports."""

    run: str
    history: str
    out: str
    from_ms: int | None = None
    to_ms: int | None = None
    steps: list[StepResult] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        """Return the notes of all steps."""
        return [note for done in self.steps for note in done.notes]

    def notes_of(self, step: str) -> list[str]:
        """Return the notes of one step."""
        return [note for done in self.steps if done.step == step for note in done.notes]

    def begin(self, step: str) -> StepResult:
        """Replace the result of the step by a new one."""
        done = StepResult(step, self.run)
        self.steps = [*(each for each in self.steps if each.step != step), done]
        return done

    def encode(self) -> bytes:
        return orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2)


def get_summary(out: str) -> Summary:
    """Read the summary of the last run into this directory. Raises `ConfigurationError` or `PipelineError`."""
    directory = Directory.of(out)
    try:
        content = orjson.loads(directory.read(SUMMARY))
        return Summary(**{**content, "out": out, "steps": [StepResult(**each) for each in content["steps"]]})
    except OSError:
        from loadmanager.config.settings_base import without_password  # noqa: PLC0415 - slow import

        raise ConfigurationError(
            f"--out {without_password(out)}: no {SUMMARY}: has the pipeline been run into it?"
        ) from None
    except (ValueError, TypeError, KeyError) as error:
        raise PipelineError(f"{directory}/{SUMMARY}: not the summary of a run: {error}") from None
