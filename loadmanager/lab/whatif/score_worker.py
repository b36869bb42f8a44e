"""Scores of a recorded range, observed and with other strategies, computed in a worker process: `python -m
loadmanager.lab.whatif.score_worker`.

For a service that runs beside a cluster: a separate process does the work, at the lowest priority and with limited
memory, and is killed after a timeout. It reads a `ScoreQuestion` and writes a `ScoreAnswer`, each a JSON object. For
two strategies, an hour of 100 brokers and 10,000 bundles takes about 4 s of one core and 500 MiB.

    fault                                        answer
    -------------------------------------------  ----------------------------------------------------------
    a strategy is unknown or cannot run          `left_out` has the reason; the other strategies are scored
    no reports, or unreadable files              only `error`, with the reason
    not enough memory                            only `error`, which says so
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import orjson
from pydantic import TypeAdapter

from loadmanager.config.dynamic_settings import settings_recorded
from loadmanager.errors import LoadManagerError
from loadmanager.history.reader import History
from loadmanager.lab.simulate.sim_result import mean_known
from loadmanager.lab.whatif.range_figures import RangeFigures, read_observed, settings_with, simulate
from loadmanager.lab.whatif.recorded_ranges import Stretch, read_range

_LOWEST_PRIORITY = 19
LONGEST_S = 600.0
MOST_MEMORY_BYTES = 4 * 1024**3
_SHOWN = 500
"""Maximum number of characters of the process's output in an error."""


@dataclass(frozen=True, slots=True)
class ScoreQuestion:
    """Request for the scores of `from_ms` <= time < `to_ms` of the history at `url`. Settings are texts by key; the
    strategy "" is that of the settings.

    `memory_bytes` limits the data memory of the process; `step_s` is the length of a simulation step.
    """

    url: str
    from_ms: int
    to_ms: int
    settings: Mapping[str, str]
    strategies: Sequence[str]
    step_s: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class ScoreAnswer:
    """Scores: `imbalance` as observed, by the cost model; `worlds` by strategy; `left_out` the reason for each strategy
    without a score.
    """

    imbalance: float = 1.0
    worlds: Mapping[str, RangeFigures] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    error: str = ""


SCORE_ANSWER = TypeAdapter(ScoreAnswer)
"""Parser of an answer."""


class ScoringError(LoadManagerError):
    """The score could not be computed."""


async def ask(question: ScoreQuestion, longest_s: float = LONGEST_S, command: tuple[str, ...] = ()) -> ScoreAnswer:
    """Return the scores from a worker process. Raises `ScoringError`."""
    try:
        process = await asyncio.create_subprocess_exec(
            *(command or (sys.executable, "-m", "loadmanager.lab.whatif.score_worker")),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise ScoringError(f"no process can be started to compute the score: {error}") from None
    try:
        async with asyncio.timeout(longest_s):
            output, errors = await process.communicate(orjson.dumps(question))
    except TimeoutError:
        raise ScoringError(f"the score was not ready within {longest_s:.0f} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        reason = errors.decode(errors="replace").strip()[-_SHOWN:]
        raise ScoringError(f"the process that computes the score ended with {process.returncode}: {reason}")
    try:
        found = SCORE_ANSWER.validate_json(output)
    except ValueError:
        raise ScoringError(f"the process that computes the score answered {output[:_SHOWN]!r}") from None
    if found.error:
        raise ScoringError(found.error)
    return found


def answer(question: ScoreQuestion) -> ScoreAnswer:
    """Compute the answer in this process."""
    history = History(question.url)
    stretch = Stretch(0, question.from_ms, question.to_ms)
    settings = settings_recorded(question.settings)
    worlds: dict[str, RangeFigures] = {}
    left_out: dict[str, str] = {}
    try:
        imbalance, _ = read_observed(history, stretch, settings, question.step_s)
        recorded = read_range(history, stretch, settings)
    except (ValueError, LoadManagerError) as error:
        return ScoreAnswer(error=str(error))
    for strategy in question.strategies:
        try:
            worlds[strategy] = simulate(recorded, settings_with(settings, strategy), question.step_s)
        except (ValueError, LoadManagerError) as error:
            left_out[strategy] = str(error)
    return ScoreAnswer(mean_known(imbalance), worlds, left_out)


def main() -> None:
    """Answer the question on standard input."""
    question = ScoreQuestion(**orjson.loads(sys.stdin.buffer.read()))
    os.nice(_LOWEST_PRIORITY)
    resource.setrlimit(resource.RLIMIT_DATA, (question.memory_bytes, question.memory_bytes))
    try:
        found = answer(question)
    except MemoryError:
        found = ScoreAnswer(error=f"{question.memory_bytes / 2**20:.0f} MiB of memory are not enough for it")
    sys.stdout.buffer.write(orjson.dumps(found))


if __name__ == "__main__":
    main()
