"""Python processes of a test, which end with it, however it ends; and the end of those that were told to."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from loadmanager.embedded.processes import ServerProcesses

ENDS_WITHIN_S = 30.0
"""A process that was told to end takes a moment, and on a machine that is busy some moments."""


async def ended(process: asyncio.subprocess.Process, within_s: float = ENDS_WITHIN_S) -> tuple[int, str, str]:
    """Exit code, output and errors of a process that is about to end; not to do so is a failure, and it is killed."""
    talking = asyncio.create_task(process.communicate())
    await asyncio.wait([talking], timeout=within_s)
    is_late = not talking.done()
    if is_late:
        process.kill()
    out, errors = [(data or b"").decode() for data in await asyncio.wait_for(talking, within_s)]
    assert not is_late, _late(within_s, out, errors)
    assert process.returncode is not None
    return process.returncode, out, errors


def ended_sync(process: subprocess.Popen[str], within_s: float = ENDS_WITHIN_S) -> tuple[int, str, str]:
    """`ended` for tests without an event loop."""
    try:
        out, errors = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        out, errors = process.communicate(timeout=within_s)
        raise AssertionError(_late(within_s, out, errors)) from None
    return process.returncode, out, errors


def _late(within_s: float, out: str, errors: str) -> str:
    return f"not ended within {within_s:g} s, and killed. Its output:\n{out[-2000:]}\nits errors:\n{errors[-2000:]}"


class Processes:
    """Processes by name; `folder` is where they run. Use it with `with`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._guarded = ServerProcesses()

    def start(self, name: str, arguments: Sequence[str], log: Path) -> int:
        """Start a Python with `arguments`, its output appended to `log`; the process id."""
        return self._guarded.start(name, [sys.executable, *arguments], cwd=self._folder, log=log)

    def signal(self, name: str, number: signal.Signals) -> None:
        self._guarded.signal(name, number)

    def is_running(self, name: str) -> bool:
        return self._guarded.find_exit_code(name) is None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._guarded.close()
