"""Progress of a pipeline run, estimated by the durations of each step in the last run.

    part of the run = seconds that its steps so far should have taken / seconds that all should take

What they should take is what they took in the last run into the same directory; where there was none, what they take
of a small history. The first steps that are done say how many times as long everything takes this time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from rich.console import Console
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from loadmanager.cli.text.numbers import format_duration

_USUAL_S = {
    "ingest": 20.0,
    "balance": 10.0,
    "forecast": 8.0,
    "capacity": 5.0,
    "advice": 5.0,
    "whatif": 20.0,
    "report": 8.0,
}
_OTHER_S = 5.0
_NOT_DONE = 0.95
"""A step that takes longer than it should is not done for that."""


class Estimate:
    """Passive: it is told of each moment. Moments are in seconds and only ever grow."""

    def __init__(self, steps: Sequence[str], earlier: Mapping[str, float], now_s: float) -> None:
        known = sum(seconds for step, seconds in earlier.items() if step in steps)
        usual = sum(_usual_s(step) for step in earlier if step in steps)
        self._expected = {step: earlier.get(step, _usual_s(step) * (known / usual if usual else 1.0)) for step in steps}
        self._is_known = bool(known)
        self._began_s, self._step_began_s = now_s, now_s
        self._done_s = self._under_way_s = 0.0

    def begin(self, step: str, now_s: float) -> None:
        self._under_way_s, self._step_began_s = self._expected[step], now_s

    def end(self, now_s: float) -> None:
        self._done_s += self._under_way_s
        self._under_way_s, self._step_began_s = 0.0, now_s

    def part(self, now_s: float) -> float:
        """Return the finished fraction of the run, from 0 to 1."""
        total = sum(self._expected.values())
        if not total:
            return 1.0
        so_far = (now_s - self._step_began_s) / self._times()
        return (self._done_s + min(so_far, _NOT_DONE * self._under_way_s)) / total

    def left_s(self, now_s: float) -> float | None:
        """None while nothing says how fast this machine is."""
        if not self._done_s and not self._is_known:
            return None
        return (1 - self.part(now_s)) * sum(self._expected.values()) * self._times()

    def describe(self, now_s: float) -> str:
        left = self.left_s(now_s)
        part = f"{100 * self.part(now_s):.0f} %"
        return f"{part}, about {format_duration(left)} left" if left else part

    def _times(self) -> float:
        """Return the ratio of actual to expected duration so far."""
        took = self._step_began_s - self._began_s
        return took / self._done_s if took and self._done_s else 1.0


def _usual_s(step: str) -> float:
    return _USUAL_S.get(step, _OTHER_S)


class ProgressView:
    """Says on standard error how far a run is: a line for each table, and what is under way, if that is a terminal."""

    def __init__(
        self, steps: Sequence[str], earlier: Mapping[str, float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._steps = steps
        self._clock = clock
        self._estimate = Estimate(steps, earlier, clock())
        self._console = Console(stderr=True, highlight=False)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            _Said(lambda: self._estimate.describe(clock())),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._rows = 0

    def __enter__(self) -> Self:
        self._bar.start()
        self._task = self._bar.add_task("", total=None)
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def began(self, step: str) -> None:
        self._rows = 0
        self._estimate.begin(step, self._clock())
        self._bar.update(self._task, description=f"{step} ({self._steps.index(step) + 1} of {len(self._steps)})")

    def wrote(self, step: str, table: str, rows: int) -> None:
        self._rows += rows
        self._bar.update(self._task, description=f"{step}: {table}: {rows:,} rows")
        self._console.print(f"  {table}: {rows:,} rows", style="dim")

    def ended(self, step: str, seconds: float) -> None:
        now_s = self._clock()
        self._estimate.end(now_s)
        rows = f"{self._rows:,} rows, " if self._rows else ""
        self._console.print(f"{step}: {rows}{seconds:.1f} s ({self._estimate.describe(now_s)})")


class _Said(ProgressColumn):
    def __init__(self, said: Callable[[], str]) -> None:
        super().__init__()
        self._text = said

    def render(self, task: Task) -> Text:  # noqa: ARG002 - the run is one task
        return Text(self._text(), style="progress.percentage")
