"""What a run did, kept beside its tables: `<out>/summary.json`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import orjson

from loadmanager.errors import PipelineError
from loadmanager.history.files import Directory

SUMMARY = "summary.json"


@dataclass(slots=True)
class Done:
    """What became of a step in a run: `rows` by the name of each table that it wrote; `notes` say what was left out."""

    step: str
    run: str
    seconds: float = 0.0
    rows: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    fault: str | None = None

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


@dataclass(slots=True)
class Summary:
    """What the last run did, and of each step that it had not, what the last one did that had it. The range is that of
    the reports that were ingested.
    """

    run: str
    history: str
    out: str
    from_ms: int | None = None
    to_ms: int | None = None
    steps: list[Done] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        """What was left out, a sentence each."""
        return [note for done in self.steps for note in done.notes]

    def begin(self, step: str) -> Done:
        """Of this step only this run counts from now on."""
        done = Done(step, self.run)
        self.steps = [*(each for each in self.steps if each.step != step), done]
        return done

    def encode(self) -> bytes:
        return orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2)


def get_summary(out: str) -> Summary:
    """What the last run into this directory said of itself. Raises `PipelineError`."""
    directory = Directory.of(out)
    try:
        said = orjson.loads(directory.read(SUMMARY))
        return Summary(**{**said, "out": out, "steps": [Done(**each) for each in said["steps"]]})
    except OSError:
        raise PipelineError(f"{directory}/{SUMMARY}: cannot be read: has the pipeline been run into it?") from None
    except (ValueError, TypeError, KeyError) as error:
        raise PipelineError(f"{directory}/{SUMMARY}: not the summary of a run: {error}") from None
