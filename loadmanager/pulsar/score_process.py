"""Scores of a recorded range, computed in a subprocess.

An hour of 100 brokers and 10,000 bundles takes about 4 s of one core and 500 MiB for two strategies. The process has
the lowest priority and is killed after a timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

import orjson

from loadmanager.errors import LoadManagerError
from loadmanager.lab.whatif.score_worker import ScoreAnswer, ScoreQuestion

LONGEST_S = 600.0
MOST_MEMORY_BYTES = 4 * 1024**3
_SHOWN = 500
"""Maximum number of characters of the process's output in an error."""


class ScoringError(LoadManagerError):
    """The score could not be computed."""


async def ask(question: ScoreQuestion, longest_s: float = LONGEST_S, command: tuple[str, ...] = ()) -> ScoreAnswer:
    """Return the scores. Raises `ScoringError`."""
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
        found = ScoreAnswer.from_json(output)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ScoringError(f"the process that computes the score answered {output[:_SHOWN]!r}") from None
    if found.error:
        raise ScoringError(found.error)
    return found
