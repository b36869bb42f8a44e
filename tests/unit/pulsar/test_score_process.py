from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from support.recorded import NOON_MS
from support.recorded_fleet import MINUTE_MS, record_fleet
from support.waiting import eventually

from loadmanager.config import settings_of, values_as_text
from loadmanager.lab.whatif.score_worker import ScoreQuestion
from loadmanager.pulsar.score_process import MOST_MEMORY_BYTES, ScoringError, ask

NOTHING = ScoreQuestion("", 0, 1, {}, (), 60.0, 1)


async def test_a_score_is_worked_out_of_what_was_recorded(tmp_path: Path) -> None:
    record_fleet(tmp_path, 20)
    settings = values_as_text(settings_of({}, "test"))
    to_ms = NOON_MS + 20 * MINUTE_MS
    found = await ask(ScoreQuestion(str(tmp_path), NOON_MS, to_ms, settings, [""], 60.0, MOST_MEMORY_BYTES))
    assert found.imbalance > 1
    assert set(found.worlds) == {""}


async def test_without_a_process_there_is_no_score() -> None:
    with pytest.raises(ScoringError, match="no process can be started for it"):
        await ask(NOTHING, command=("/no-such-program",))


async def test_whoever_does_not_wait_for_it_ends_it(tmp_path: Path) -> None:
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
        ("import time; time.sleep(60)", "not worked out within 0 s"),
        ("import sys; sys.exit('no such thing')", "ended with 1: no such thing"),
        ("print('{}')", "answered b'{}"),
        ("print('[]')", r"answered b'\[\]"),
        ("""print('{"worlds": {}, "error": "no broker has reported"}')""", "^no broker has reported$"),
    ],
)
async def test_what_goes_wrong_is_said(script: str, expected: str) -> None:
    with pytest.raises(ScoringError, match=expected):
        await ask(NOTHING, 0.4 if "sleep" in script else 60.0, (sys.executable, "-c", script))
