from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import orjson
import pytest
from support.waiting import eventually

from loadmanager.lab.whatif.score_worker import MOST_MEMORY_BYTES, ScoreAnswer, ScoreQuestion, ScoringError, ask

NOTHING = ScoreQuestion("", 0, 1, {}, (), 60.0, 1)


NOT_NICE = f"""#!{sys.executable}
import os, runpy, sys
os.nice = lambda by: None
runpy.run_module(sys.argv[2], run_name="__main__")
"""
"""An interpreter for `-m` whose processes keep their priority: a busy machine would starve them."""


async def test_process_reads_the_requested_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text(NOT_NICE)
    interpreter.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    question = ScoreQuestion(str(tmp_path), 0, 60_000, {}, [""], 60.0, MOST_MEMORY_BYTES)
    with pytest.raises(ScoringError, match="no broker has reported in the range"):
        await ask(question)


async def test_answer_of_the_process_is_returned() -> None:
    answer = ScoreAnswer(1.5, left_out={"Level": "why"})
    assert await ask(NOTHING, command=(sys.executable, "-c", f"print({orjson.dumps(answer).decode()!r})")) == answer


async def test_missing_program_is_an_error() -> None:
    with pytest.raises(ScoringError, match="no process can be started to compute the score"):
        await ask(NOTHING, command=("/no-such-program",))


async def test_cancellation_ends_the_process(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    script = f"import os, time; open({str(file)!r}, 'w').write(str(os.getpid()) + ' '); time.sleep(60)"
    asking = asyncio.create_task(ask(NOTHING, command=(sys.executable, "-c", script)))
    await eventually(lambda: file.exists() and file.read_text().endswith(" "))
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    with pytest.raises(ProcessLookupError):
        os.kill(int(file.read_text()), 0)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("import time; time.sleep(60)", "not ready within 0 s"),
        ("import sys; sys.exit('no such thing')", "ended with 1: no such thing"),
        ("""print('{"worlds": 1}')""", "answered b'{"),
        ("print('[]')", r"answered b'\[\]"),
        ("""print('{"worlds": {}, "error": "no broker has reported"}')""", "^no broker has reported$"),
    ],
)
async def test_failure_of_the_process_is_reported(script: str, expected: str) -> None:
    with pytest.raises(ScoringError, match=expected):
        await ask(NOTHING, 0.4 if "sleep" in script else 60.0, (sys.executable, "-c", script))
